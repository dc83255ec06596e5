"""DistData: a partition on disk as one rank sees it.

Topology is mapped, never copied: the ranks of a machine share one copy. The rank's own parts (a run of
num_parts / world_size of them) give its features, labels and splits. Where nodes have types, each part has one range of
ids per type, so a rank with several parts has several of them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fastsample_dist import __version__
from fastsample_dist.comm.agree import EXCHANGE_SCHEMA, agree, agree_on
from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.machine import boot_id
from fastsample_dist.device.placement import DEVICE
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.graph import storage
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.manifest import MANIFEST_NAME, Manifest
from fastsample_dist.graph.partition_book import NodeIds, PartitionBook
from fastsample_dist.graph.verification import FileState, known_states
from fastsample_dist.pipeline.placed import OWN, WHOLE, PlacedTables, PlacementRequest, place_tables
from fastsample_dist.pipeline.verifying import FULL, NEVER, check_verify, verify_together


class DistData:
    """A partitioned graph, opened by all ranks together. Made by `DistData.load`.

    Attributes:
      ctx: the rank's context.
      manifest: what the partition says about itself.
      graph: the whole topology, mapped, with orig_ids.
      book: node ranges of the parts on disk.
      rank_book: node ranges of the ranks (equal to `book` when there is one part per rank).
      own_range: (lo, hi), this rank's nodes.
      clusters: int32 [num_nodes], mapped; the cluster of each node of `graph`, own or not. A cluster lies in one part.
        None when the partition has none (`fastsample-partition --clusters`).
      features: DistFeatures, or None when the partition has none.
      verified: by name, the state in which this rank's files were found to be what the manifest says.
      labels: int64 [own nodes] (-1: unlabelled); for the tasks "multilabel" and "regression" float32 [own nodes,
        num_outputs] (NaN: not known); or None.
      table_bytes: what this rank's tables may take of a GPU's memory, its topology, its features and a loader's cache;
        batches, models and scratch come on top. None, unless set before loaders are made: all that is free but the
        reserve (device/placement.py).

    All of these stay in host memory; `placed_tables` has what a GPU's kernels read.
    """

    def __init__(self, path: Path, ctx: DistContext, manifest: Manifest) -> None:
        self.path, self.ctx, self.manifest = path, ctx, manifest
        self.book = PartitionBook(torch.tensor(manifest.part_ranges, dtype=torch.int64))
        parts_per_rank = manifest.num_parts // ctx.world_size
        self.rank_book = PartitionBook(self.book.part_ranges[::parts_per_rank].contiguous())
        self.own_range = self.rank_book.part2range(ctx.rank)
        self.graph = storage.load_topology(path, manifest)
        self.clusters = storage.load_clusters(path, manifest)
        own = [storage.load_part(path, manifest, part) for part in own_parts(manifest.num_parts, ctx)]
        self.features = self.labels = None
        if all(part.features is not None for part in own):
            local = LocalFeatures.from_parts([part.feature_table for part in own], self.own_range[0])
            self.features = DistFeatures(local, self.rank_book, ctx.comm)
        if all(part.labels is not None for part in own):
            self.labels = own[0].labels if len(own) == 1 else torch.cat([part.labels for part in own])
        self.verified: dict[str, FileState] = {}
        self.table_bytes: int | None = None
        self._placed: dict[tuple[object, ...], PlacedTables] = {}
        self._splits = {
            name: torch.cat([part.splits[name] for part in own])
            for name in storage.SPLITS
            if all(name in part.splits for part in own)
        }
        self._type_ends = torch.tensor([ends[1:] for ends in manifest.type_ranges], dtype=torch.int64).flatten()

    @classmethod
    def load(cls, path: str | Path, ctx: DistContext, *, verify: str | bool = "once") -> DistData:
        """Open a partition. Collective: every rank must call this.

        Args:
          path: the partition's directory.
          ctx: the rank's context.
          verify: whether the bytes of the files used are compared with the manifest's sha256 (each rank its own parts,
            one rank per copy the topology). "once": those that were not yet, in this copy
            (graph/verification.py); "full" (True): all; "never" (False): none, only sizes and headers.
        Raises:
          ValueError: path is no path, ctx no context. On all ranks when they have different releases of this library or
            different partitions, when one rank finds a file missing, truncated, altered or foreign, or when world_size
            does not divide the number of parts; another `verify`.
        """
        if not isinstance(path, str | os.PathLike):
            raise ValueError(f"path is {path!r}; expected the output directory of fastsample-partition.")
        if not isinstance(ctx, DistContext):
            raise ValueError(f"ctx is a {type(ctx).__name__}; expected a DistContext, such as DistContext.from_env().")
        path, verify = Path(path), check_verify(verify)
        manifest = read_same_manifest(path, ctx)

        def open_here() -> DistData:
            check_world_size(path, manifest.num_parts, ctx.world_size)
            return cls(path, ctx, manifest)

        data = agree(ctx, open_here)
        if verify == NEVER:
            data.verified = known_states(path, data.manifest, own_features(data.manifest, ctx))
        else:
            names = files_to_verify(path, data.manifest, ctx)
            data.verified = verify_together(ctx, path, data.manifest, names, full=verify == FULL)
        return data

    def first_edge(self, rank: int) -> int:
        """Position in the partition's edges, `graph.indices`, of the first in-edge of a rank's nodes."""
        return int(self.graph.indptr[self.rank_book.part2range(rank)[0]])

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return self.manifest.num_nodes

    @property
    def num_classes(self) -> int:
        """Classes of the labels; 0 for other tasks than classification."""
        return int(self.manifest.num_classes or 0)

    @property
    def task(self) -> str:
        """What the labels are for: "classification" (also without labels), "multilabel" or "regression"."""
        return self.manifest.task

    @property
    def num_outputs(self) -> int:
        """Columns that a model gives: the classes, or for other tasks the columns of the labels."""
        return self.manifest.num_targets or self.num_classes

    @property
    def edge_map(self) -> Tensor | None:
        """Place of every edge of `graph` in the input's list, int32 | int64 [num_edges]; None if it is not stored.

        `edge_map[mfg.edge_ids]` leads from sampled edges to rows of the input's edge features. Where an
        undirected input's edge is stored in both directions, both have its place; merged duplicates have the first's.
        """
        return self.graph.edge_map

    @property
    def node_types(self) -> tuple[str, ...]:
        """Names of the node types; () for a graph without types."""
        return self.manifest.node_types

    @property
    def feature_dim(self) -> int:
        """Columns of a feature row, 0 without features."""
        return 0 if self.features is None else self.features.dim

    def split(self, name: str) -> Tensor:
        """Own nodes of a split, int64, ascending.

        Raises:
          ValueError: the partition has no such split.
        """
        if not isinstance(name, str) or name not in self._splits:
            found = ", ".join(self._splits) or "none"
            raise ValueError(
                f"{self.path} has no split {name!r} (found: {found}); partition an input with {name}_idx.npy."
            )
        return self._splits[name]

    def orig_ids(self, ids: NodeIds) -> Tensor:
        """Original ids of nodes of the partitioned graph, int64, same shape and device.

        Args:
          ids: integer tensor of any shape and device, or what makes one.
        Raises:
          ValueError: they are no integers, or one is outside 0 .. num_nodes - 1.
        """
        ids = self.book.checked(ids)
        return self.graph.orig_ids[ids.cpu()].to(ids.device)

    def node_type(self, ids: NodeIds) -> Tensor:
        """Types of nodes of the partitioned graph, own or not: a search in num_parts x num_types offsets.

        Args:
          ids: as of `orig_ids`.
        Returns:
          int64 tensor of the same shape and device: index into `node_types`.
        Raises:
          ValueError: the graph has no node types, or as `orig_ids`.
        """
        if not self.node_types:
            raise ValueError(f"{self.path} has no node types; partition an input with node_type.npy.")
        ids = self.book.checked(ids)
        # right=True: the first range that ends after the id, so empty ranges are skipped
        ranges = torch.bucketize(ids, self._type_ends.to(ids.device), right=True)
        return ranges % len(self.node_types)

    def own_graph(self) -> CSCGraph:
        """The in-edges of own nodes only: row i is node own_range[0] + i. All that the vanilla scheme may read."""
        return self.graph_of([self.ctx.rank])

    def graph_of(self, ranks: Sequence[int]) -> CSCGraph:
        """The in-edges of some ranks' nodes, of all from the first rank's to the last's: row 0 is the first's first."""
        node_range = self.rank_book.part2range(min(ranks))[0], self.rank_book.part2range(max(ranks))[1]
        return storage.load_topology(self.path, self.manifest, node_range)

    def placed_tables(
        self,
        device: torch.device,
        topology: str | None,
        choice: str = "auto",
        *,
        weighted: bool = False,
        valued: bool = False,
        ranks: Sequence[int] = (),
        features: bool = True,
    ) -> PlacedTables:
        """What sampling and fetching read, where a device's kernels read it; placed once and kept.

        Args:
          device: whose kernels will read.
          topology: placed.WHOLE, or OWN for the in-edges of own nodes; None: features alone.
          choice: "auto", "device" or "pinned".
          weighted: edges are drawn by their weights.
          valued: the weights of the edges are read.
          ranks: whose nodes OWN stands for; none: this rank's.
          features: place them too; False: they stay in host memory.
        Raises:
          ValueError: as `place_tables`.
        """
        moves = device.type != "cpu"
        ranks = tuple(ranks) or (self.ctx.rank,)
        of_ranks = ranks if topology == OWN else ()
        key = (device, topology, choice, weighted and moves, valued and moves, of_ranks, features)
        if key not in self._placed:
            graph = None if topology is None else self.graph if topology == WHOLE else self.graph_of(ranks)
            unplaced = PlacedTables(graph, self.graph.orig_ids, self.features if features else None)
            request = PlacementRequest(
                device, choice, weighted=weighted, valued=valued, ranks_on_host=self.ctx.local_world_size,
                most_bytes=self.table_bytes_left(device),
            )  # fmt: skip
            self._placed[key] = place_tables(unplaced, request)
        return self._placed[key]

    def table_bytes_left(self, device: torch.device) -> int | None:
        """What `table_bytes` leaves beside the tables that were placed in a device's memory; None: it is no limit."""
        if self.table_bytes is None:
            return None
        places = [place for tables in self._placed.values() for place in tables.places]
        return self.table_bytes - sum(
            place.num_bytes for place in places if place.where == DEVICE and place.device == device
        )

    def forget_placed(self, device: torch.device) -> None:
        """Keep no table that was placed for a device; its memory goes with the loaders that use it."""
        self._placed = {key: tables for key, tables in self._placed.items() if key[0] != device}

    def labels_of(self, nodes: NodeIds) -> Tensor:
        """Labels of own nodes, on their device: int64 [n] (-1: none), or float32 [n, num_outputs] as `labels`.

        Args:
          nodes: own nodes (`own_range`): an integer tensor, or what makes one.
        Raises:
          ValueError: the partition has no labels; they are no integers, or one is not an own node.
        """
        if self.labels is None:
            raise ValueError(f"{self.path} has no labels; partition an input with labels.npy.")
        ids = self.book.checked(nodes)
        check_own(self, "nodes", ids)
        return self.labels[ids.cpu() - self.own_range[0]].to(ids.device)


def check_own(data: DistData, name: str, ids: Tensor) -> None:
    """Refuse nodes that are not this rank's own, those outside the graph first.

    Args:
      data: the opened partition.
      name: of the ids, for messages.
      ids: int64, of any shape.
    Raises:
      ValueError: as said.
    """
    lo, hi = data.own_range
    wrong = ids[(ids < lo) | (ids >= hi)]
    if not wrong.numel():
        return
    outside = wrong[(wrong < 0) | (wrong >= data.num_nodes)]
    if outside.numel():
        raise ValueError(
            f"{name} holds {int(outside[0])}; expected node ids of the partition, 0 to {data.num_nodes - 1}."
        )
    owner = int(data.rank_book.nid2part(wrong[:1]))
    raise ValueError(
        f"{name} of rank {data.ctx.rank} holds node {int(wrong[0])}, which is rank {owner}'s; expected its own nodes "
        f"{lo} to {hi - 1} (data.own_range)."
    )


def check_data(data: object) -> None:
    """Refuse what is no opened partition.

    Raises:
      ValueError: as said.
    """
    if not isinstance(data, DistData):
        raise ValueError(
            f"data is a {type(data).__name__}; expected the partition that fsd.DistData.load(path, ctx) opens."
        )


def check_feature_dtype(data: DistData) -> None:
    """Refuse features of which no batch can be made, as older releases stored them.

    Raises:
      ValueError: as said.
    """
    dtype = data.manifest.feature_dtype
    if dtype in storage.WIDE_DTYPES:
        raise ValueError(
            f"{data.path} has features of type {dtype}, of which no batch can be made; partition the graph again with "
            "--feature-dtype float32."
        )


def read_same_manifest(path: Path, ctx: DistContext) -> Manifest:
    """The manifest, which is the same on all ranks; it holds the SHA-256 of every file. Paths may differ.

    Collective: every rank must call this.

    Raises:
      ValueError: on all ranks when one cannot read it, or when their manifests or releases differ.
    """
    release = {"release": __version__, "schema of what ranks exchange": EXCHANGE_SCHEMA}
    agree_on(ctx.comm, "DistData", release, remedy="install the same release of fastsample_dist on every machine")

    def read() -> tuple[Manifest, str]:
        return storage.read_manifest(path), hashlib.sha256((path / MANIFEST_NAME).read_bytes()).hexdigest()

    manifest, digest = agree(ctx, read)
    facts = {
        "sha256 of manifest.json": digest, "format version": manifest.version, "name": manifest.name,
        "num_nodes": manifest.num_nodes, "num_edges": manifest.num_edges, "num_parts": manifest.num_parts,
        "method": manifest.method, "seed": manifest.seed,
    }  # fmt: skip
    agree_on(ctx.comm, "DistData", facts, remedy="give every rank the same partition: copy it again from one place")
    return manifest


def check_world_size(path: Path, num_parts: int, world_size: int) -> None:
    """Refuse a number of ranks that does not divide the number of parts."""
    if num_parts % world_size != 0:
        raise ValueError(
            f"{path} has {num_parts} parts but world_size is {world_size}; "
            f"start {num_parts} ranks or partition with --num-parts {world_size}."
        )


def own_parts(num_parts: int, ctx: DistContext) -> range:
    """Parts of this rank: a run of num_parts / world_size."""
    per_rank = num_parts // ctx.world_size
    return range(ctx.rank * per_rank, (ctx.rank + 1) * per_rank)


def own_features(manifest: Manifest, ctx: DistContext) -> list[str]:
    """Files of this rank's feature rows and their scales, those that the partition has."""
    own = own_parts(manifest.num_parts, ctx)
    names = [file_of(part) for file_of in (storage.features_file, storage.scales_file) for part in own]
    return [name for name in names if name in manifest.files]


def files_to_verify(path: Path, manifest: Manifest, ctx: DistContext) -> list[str]:
    """Own parts' files; on the first of the ranks that read the same copy of the topology that too.

    Collective: every rank must call this. Purpose "setup".
    """
    files = [name for part in own_parts(manifest.num_parts, ctx) for name in storage.part_files(manifest, part)]
    topology = storage.topology_files(manifest)
    try:
        states = [(path / name).stat() for name in topology]
        own = (boot_id() or ctx.rank, *((state.st_dev, state.st_ino) for state in states))
    except OSError:  # is refused by its name
        own = (ctx.rank,)
    copies = ctx.comm.all_gather_object(own, purpose="setup")
    return files + (topology if copies.index(own) == ctx.rank else [])

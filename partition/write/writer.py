"""Relabelling a graph part by part and writing it in the format of graph/storage.py.

New ids: sort the nodes by (part, type, original id). Part p then owns one range of ids, its nodes of type t are a
range of it, and inside that the order of original ids survives (a graph without types has one type). Row v of the
topology is the old row of orig_ids[v], its sources renamed but not re-sorted: the old rows ascend by original id, and
that is the canonical order. Rows are renamed and written in chunks, so memory for the new topology is never needed;
feature rows go from the input to their part in chunks too. Files that the writer has already (a run that resumes after
a kill) are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.labels import target_rows
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.graph.npy_files import drop_pages, row_chunks
from fastsample_dist.graph.storage import CLUSTERS, INPUT_IDS, SPLITS, PartitionWriter
from fastsample_dist.partition.external.csc import StoredTopology
from fastsample_dist.partition.external.rows import FeatureRows, TopologyRows
from fastsample_dist.partition.external.scaled_rows import SCALE_DTYPE
from fastsample_dist.partition.methods.adjacency import edge_chunks
from fastsample_dist.partition.methods.constraints import InSplit, node_chunks, split_bits
from fastsample_dist.partition.write.grouping import group_nodes


@dataclass(frozen=True, eq=False)
class Relabelling:
    """New ids of a partitioned graph.

    Attributes:
      orig_ids: int32 | int64 [num_nodes]; original id of each new id.
      new_ids: the same type; new id of each original id.
      type_ranges: int64 [num_parts, num_types + 1]; part p's nodes of type t are the new ids type_ranges[p, t] ..
        type_ranges[p, t + 1] - 1.
    """

    orig_ids: np.ndarray
    new_ids: np.ndarray
    type_ranges: np.ndarray

    @classmethod
    def from_parts(
        cls, parts: np.ndarray, num_parts: int, node_type: np.ndarray | None = None, num_types: int = 1
    ) -> Relabelling:
        """Number the nodes by (part, type, original id).

        Args:
          parts: integer [num_nodes]; part of each node, 0 .. num_parts - 1.
          num_parts: number of parts.
          node_type: integer [num_nodes]; type of each node, 0 .. num_types - 1. None: all are of type 0.
          num_types: number of types.
        """
        num_nodes = len(parts)

        def key_of(chunk: slice) -> np.ndarray:
            keys = parts[chunk].astype(np.int64) * num_types
            if node_type is not None:
                keys += node_type[chunk].astype(np.int64)
                drop_pages(node_type)
            drop_pages(parts)
            return keys

        orig_ids, ends = group_nodes(key_of, num_nodes, num_parts * num_types)
        new_ids = np.empty_like(orig_ids)
        for chunk in node_chunks(num_nodes):
            new_ids[orig_ids[chunk]] = np.arange(chunk.start, chunk.stop)
        ends = ends.reshape(num_parts, num_types)
        begins = np.concatenate([[0], ends[:-1, -1]])
        return cls(orig_ids, new_ids, np.column_stack([begins, ends]))

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.type_ranges)

    @property
    def part_ranges(self) -> np.ndarray:
        """int64 [num_parts + 1]; part p owns the new ids part_ranges[p] .. part_ranges[p + 1] - 1."""
        return np.append(self.type_ranges[:, 0], len(self.orig_ids))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a partition was made, for its manifest: method, seed, and further facts for reports."""

    method: str
    seed: int
    stats: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How to write.

    Attributes:
      feature_dtype: "keep", or the type that features are converted to (see external/rows.py).
      chunk_edges: edges to rename at a time; None: adjacency.CHUNK_EDGES.
      clusters: int32 [num_nodes]; cluster of each node by original id, to be stored; None: none are.
      on_bytes: called with the number of bytes of features and topology written since its last call.
    """

    feature_dtype: str = "keep"
    chunk_edges: int | None = None
    clusters: np.ndarray | None = None
    on_bytes: Callable[[int], None] = lambda count: None


def write_partition(
    writer: PartitionWriter,
    raw: RawGraph,
    topology: CSCGraph | StoredTopology,
    labelling: Relabelling,
    origin: Origin,
    options: WriteOptions | None = None,
) -> Manifest:
    """Write a whole partition and publish it.

    Args:
      writer: an entered PartitionWriter.
      raw: features, labels (or targets) and splits by original ids.
      topology: of the whole graph, original ids.
      labelling: new ids.
      origin: for the manifest.
      options: how to write.
    Returns:
      The manifest.
    Raises:
      ValueError: a feature that the type asked for cannot hold.
      OSError: the disk refuses.
    """
    options = options or WriteOptions()
    features = None if raw.features is None else FeatureRows(raw.features, options.feature_dtype)
    _write_topology(writer, topology, labelling, options)
    if options.clusters is not None:
        _write_rows(writer, CLUSTERS, options.clusters.dtype, labelling.orig_ids, options.clusters)
    if raw.input_ids is not None and INPUT_IDS not in writer.files:
        _write_input_ids(writer, raw.input_ids)
    kinds = split_bits(raw.splits, raw.num_nodes)
    for part in range(labelling.num_parts):
        owned = _Owned(*labelling.part_ranges[part : part + 2].tolist(), labelling, kinds)
        _write_part(writer, raw, f"part-{part}", owned, options)
    return writer.finish(
        name=raw.name,
        num_nodes=raw.num_nodes,
        num_edges=topology.num_edges,
        num_parts=labelling.num_parts,
        part_ranges=tuple(labelling.part_ranges.tolist()),
        feature_dim=None if features is None else features.dim,
        feature_dtype=None if features is None else features.stored_as,
        feature_scales=features is not None and features.scaled,
        num_classes=raw.num_classes,
        method=origin.method,
        seed=origin.seed,
        undirected=raw.undirected,
        stats=origin.stats,
        node_types=raw.node_types,
        type_ranges=tuple(map(tuple, labelling.type_ranges.tolist())) if raw.node_types else (),
        task=raw.task,
        num_targets=0 if raw.targets is None else raw.targets.shape[1],
    )


def bytes_to_write(raw: RawGraph, topology: CSCGraph | StoredTopology, feature_dtype: str = "keep") -> int:
    """What `on_bytes` of `write_partition` adds up to."""
    rows = TopologyRows(topology)
    edge_bytes = sum(rows.dtype(name).itemsize for name in rows.names)
    feature_bytes = 0
    if raw.features is not None:
        feature_bytes = len(raw.features) * FeatureRows(raw.features, feature_dtype).row_bytes
    return topology.num_edges * edge_bytes + feature_bytes


def _write_topology(
    writer: PartitionWriter, topology: CSCGraph | StoredTopology, labelling: Relabelling, options: WriteOptions
) -> None:
    num_edges, new_ids = topology.num_edges, torch.from_numpy(labelling.new_ids)
    with TopologyRows(topology) as rows:
        _write_offsets(writer, rows.indptr, labelling.orig_ids)
        _write_rows(writer, "topology/orig_ids.npy", np.dtype(np.int64), labelling.orig_ids)
        for name in rows.names:
            dtype = labelling.new_ids.dtype if name == "indices" else rows.dtype(name)
            if f"topology/{name}.npy" in writer.files:
                options.on_bytes(num_edges * dtype.itemsize)
                continue
            with writer.open(f"topology/{name}.npy", dtype, (num_edges,)) as file:
                for nodes in _edge_chunks(rows.indptr, labelling.orig_ids, options.chunk_edges):
                    values = rows.read(name, nodes)
                    if name == "indices":
                        values = ops.gather_rows(new_ids, torch.from_numpy(values)).numpy()
                    file.append(values)
                    options.on_bytes(values.nbytes)


def _edge_chunks(indptr: np.ndarray, orig_ids: np.ndarray, chunk_edges: int | None) -> Iterator[np.ndarray]:
    """The nodes in their new order, those of about so many in-edges at a time."""
    for chunk in node_chunks(len(orig_ids)):
        nodes = orig_ids[chunk]
        for lo, hi in edge_chunks(indptr[nodes + 1] - indptr[nodes], chunk_edges):
            yield nodes[lo:hi]


def _write_offsets(writer: PartitionWriter, indptr: np.ndarray, orig_ids: np.ndarray) -> None:
    if "topology/indptr.npy" in writer.files:
        return
    with writer.open("topology/indptr.npy", np.dtype(np.int64), (len(orig_ids) + 1,)) as file:
        done = np.zeros(1, dtype=np.int64)
        file.append(done)
        for chunk in node_chunks(len(orig_ids)):
            nodes = orig_ids[chunk]
            ends = np.cumsum(indptr[nodes + 1] - indptr[nodes]) + done
            file.append(ends)
            done = ends[-1:]


def _write_rows(
    writer: PartitionWriter, name: str, dtype: np.dtype, nodes: np.ndarray, column: np.ndarray | None = None
) -> None:
    """An entry of a column by original id for each of the nodes; without a column the nodes themselves."""
    if name in writer.files:
        return
    with writer.open(name, dtype, (len(nodes),)) as file:
        for chunk in node_chunks(len(nodes)):
            file.append((nodes[chunk] if column is None else column[nodes[chunk]]).astype(dtype, copy=False))
            drop_pages(column)


def _write_input_ids(writer: PartitionWriter, input_ids: np.ndarray) -> None:
    """What the nodes were called in an input that was relabelled, by original id."""
    with writer.open(INPUT_IDS, input_ids.dtype, input_ids.shape) as file:
        for lo, hi in row_chunks(len(input_ids), input_ids.itemsize):
            file.append(np.asarray(input_ids[lo:hi]))
            drop_pages(input_ids)


class _Owned(NamedTuple):
    """The nodes of one part: new ids lo .. hi - 1.

    Attributes:
      labelling: of the whole graph.
      kinds: uint8 [num_nodes]; splits of each node by original id, see `split_bits`.
    """

    lo: int
    hi: int
    labelling: Relabelling
    kinds: np.ndarray

    @property
    def nodes(self) -> np.ndarray:
        """Their original ids."""
        return self.labelling.orig_ids[self.lo : self.hi]

    def ids_in(self, split: str) -> np.ndarray:
        """int64; new ids of those in a split, ascending."""
        in_split, nodes = InSplit(self.kinds, SPLITS.index(split)), self.nodes
        found = [np.flatnonzero(in_split[nodes[chunk]]) + chunk.start for chunk in node_chunks(len(nodes))]
        return np.concatenate(found) + self.lo if found else np.empty(0, dtype=np.int64)


def _write_part(writer: PartitionWriter, raw: RawGraph, folder: str, owned: _Owned, options: WriteOptions) -> None:
    nodes = owned.nodes
    if raw.features is not None:
        with FeatureRows(raw.features, options.feature_dtype) as features:
            _write_features(writer, features, nodes, folder, options)
    if raw.labels is not None:
        _write_rows(writer, f"{folder}/labels.npy", np.dtype(np.int64), nodes, raw.labels)
    if raw.targets is not None and f"{folder}/targets.npy" not in writer.files:
        num_targets = raw.targets.shape[1]
        with writer.open(f"{folder}/targets.npy", np.dtype(np.float32), (len(nodes), num_targets)) as file:
            for start, stop in row_chunks(len(nodes), num_targets * max(4, raw.targets.itemsize)):
                file.append(target_rows(raw.targets, nodes[start:stop], raw.task))
                drop_pages(raw.targets)
    for split in raw.splits:
        if f"{folder}/{split}.npy" not in writer.files:
            writer.write(f"{folder}/{split}.npy", owned.ids_in(split))


def _write_features(
    writer: PartitionWriter, features: FeatureRows, owned: np.ndarray, folder: str, options: WriteOptions
) -> None:
    """Rows and, where there are any, their scales, chunk by chunk into their files; both unless both are there."""
    files = {f"{folder}/features.npy": (features.dtype, (len(owned), features.dim))}
    if features.scaled:
        files[f"{folder}/scales.npy"] = (SCALE_DTYPE, (len(owned),))
    if files.keys() <= writer.files.keys():
        options.on_bytes(len(owned) * features.row_bytes)
        return
    with ExitStack() as stack:
        opened = [stack.enter_context(writer.open(name, *form)) for name, form in files.items()]
        for start, stop in row_chunks(len(owned), features.chunk_row_bytes):
            for file, rows in zip(opened, features.stored(owned[start:stop]), strict=False):
                file.append(rows)
            options.on_bytes((stop - start) * features.row_bytes)

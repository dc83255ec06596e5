"""What a partition is like, counted from its files: cut, balance, halo, sizes.

An edge is stored with its destination, so part p stores the in-edges of its nodes; one whose source lives in another
part is cut. The halo of p is the set of distinct remote sources: what a layer over all of p would fetch. All figures
are counted from the stored topology, none is taken from the partitioner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.graph.csc import destinations
from fastsample_dist.graph.npy_files import drop_pages, open_npy, row_chunks
from fastsample_dist.graph.storage import (
    Manifest,
    load_clusters,
    load_part,
    load_topology,
    part_files,
    topology_files,
)
from fastsample_dist.partition.methods.constraints import InDegrees, node_chunks
from fastsample_dist.partition.report.multiplicity import STEP_EDGES, EdgeCounter, EdgeCounts


@dataclass(frozen=True, kw_only=True)
class PartQuality:
    """Figures of one part.

    Attributes:
      part: part index.
      nodes: nodes it owns.
      in_edges: edges into them.
      cut_in_edges: those of them whose source another part owns.
      halo_nodes: distinct sources of the cut in-edges.
      splits: nodes of each stored split that it owns.
      node_types: nodes of each type that it owns; {} without types.
      bytes: size of its files, the topology not counted.
    """

    part: int
    nodes: int
    in_edges: int
    cut_in_edges: int
    halo_nodes: int
    splits: Mapping[str, int]
    node_types: Mapping[str, int]
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ClusterQuality:
    """Figures of a partition's clusters.

    Attributes:
      number: of clusters.
      smallest, largest: nodes of a cluster.
      edges_inside: stored directed edges whose ends are in one cluster.
      fraction_inside: the same as a share of the stored edges; 0 without edges.
    """

    number: int
    smallest: int
    largest: int
    edges_inside: int
    fraction_inside: float


@dataclass(frozen=True, kw_only=True)
class PartitionQuality:
    """Figures of a partition.

    Attributes:
      manifest: of the partition.
      parts: one entry per part.
      topology_bytes: size of the topology's files.
      max_in_degree: most in-edges of one node.
      edge_counts: parallel edges, self-loops, nodes without an edge.
      clusters: None: the partition has none.
    """

    manifest: Manifest
    parts: tuple[PartQuality, ...]
    topology_bytes: int
    max_in_degree: int
    edge_counts: EdgeCounts
    clusters: ClusterQuality | None = None

    @property
    def cut_edges(self) -> int:
        """Stored directed edges whose ends are in different parts."""
        return sum(part.cut_in_edges for part in self.parts)

    @property
    def cut_fraction(self) -> float:
        """`cut_edges` as a share of the stored edges; 0 without edges."""
        return self.cut_edges / self.manifest.num_edges if self.manifest.num_edges else 0.0

    @property
    def balance(self) -> dict[str, float]:
        """Largest part over mean part, for nodes, in_edges, halo_nodes and each stored split; 1 is even.

        What no part has (a mean of 0) is left out.
        """
        columns = {name: [getattr(part, name) for part in self.parts] for name in ("nodes", "in_edges", "halo_nodes")}
        for split in self.parts[0].splits:
            columns[split] = [part.splits[split] for part in self.parts]
        return {name: max(values) * len(values) / sum(values) for name, values in columns.items() if sum(values)}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        manifest = asdict(self.manifest)
        files = manifest.pop("files")
        return {
            **manifest,
            "edge_cut": {"edges": self.cut_edges, "fraction": self.cut_fraction},
            "balance": self.balance,
            "max_in_degree": self.max_in_degree,
            "edge_counts": self.edge_counts.to_json(),
            "clusters": None if self.clusters is None else asdict(self.clusters),
            "parts": [asdict(part) for part in self.parts],
            "bytes": {
                "topology": self.topology_bytes,
                "parts": sum(part.bytes for part in self.parts),
                "files": {name: record["bytes"] for name, record in files.items()},
            },
        }


def measure_partition(path: str | Path, manifest: Manifest) -> PartitionQuality:
    """Count a partition's figures from its files.

    Args:
      path: the partition's directory, with all parts in it.
      manifest: of that directory.
    Returns:
      PartitionQuality. Cost: one pass over the topology's indices.
    Raises:
      ValueError: a file is missing, truncated or does not fit (by name).
    """
    load_topology(path, manifest)  # refuses files that do not fit
    indptr, indices = (open_npy(Path(path) / f"topology/{name}.npy") for name in ("indptr", "indices"))
    counter, clusters = EdgeCounter(indptr), load_clusters(path, manifest)
    parts, is_halo = [], np.empty(manifest.num_nodes, dtype=bool)
    for part in range(manifest.num_parts):
        lo, hi = manifest.part_ranges[part : part + 2]
        sources = indices[indptr[lo] : indptr[hi]]
        is_halo[:] = False
        cut = 0
        for start, stop in row_chunks(len(sources), sources.itemsize):
            chunk = sources[start:stop]
            remote = chunk[(chunk < lo) | (chunk >= hi)]
            is_halo[remote] = True
            cut += len(remote)
            counter.add(chunk)
            drop_pages(indices)
        splits = load_part(path, manifest, part).splits
        runs = [np.diff(run) for run in manifest.type_ranges if lo <= run[0] and run[-1] <= hi]
        type_sizes = np.sum(runs, axis=0, dtype=np.int64).tolist() if runs else [0] * len(manifest.node_types)
        parts.append(
            PartQuality(
                part=part,
                nodes=hi - lo,
                in_edges=len(sources),
                cut_in_edges=cut,
                halo_nodes=int(is_halo.sum()),
                splits={split: len(ids) for split, ids in splits.items()},
                node_types=dict(zip(manifest.node_types, type_sizes, strict=True)),
                bytes=_total_bytes(manifest, part_files(manifest, part)),
            )
        )
    return PartitionQuality(
        manifest=manifest,
        parts=tuple(parts),
        topology_bytes=_total_bytes(manifest, topology_files(manifest)),
        max_in_degree=_max_in_degree(indptr),
        edge_counts=counter.counts(undirected=manifest.undirected, listed=manifest.stats.get("edges_listed")),
        clusters=None if clusters is None else _measure_clusters(clusters.numpy(), indptr, indices),
    )


def _max_in_degree(indptr: np.ndarray) -> int:
    degrees, most = InDegrees(indptr), 0
    for chunk in node_chunks(len(indptr) - 1):
        most = max(most, int(degrees[chunk].max()))
        drop_pages(indptr)
    return most


def _measure_clusters(clusters: np.ndarray, indptr: np.ndarray, indices: np.ndarray) -> ClusterQuality:
    """One pass more over the topology's indices."""
    sizes, inside, num_edges = np.bincount(clusters), 0, len(indices)
    for start in range(0, num_edges, STEP_EDGES):
        sources = indices[start : start + STEP_EDGES]
        inside += int(np.count_nonzero(clusters[sources] == clusters[destinations(indptr, start, len(sources))]))
        drop_pages(indices)
    return ClusterQuality(
        number=len(sizes),
        smallest=int(sizes.min()),
        largest=int(sizes.max()),
        edges_inside=inside,
        fraction_inside=inside / num_edges if num_edges else 0.0,
    )


def _total_bytes(manifest: Manifest, names: list[str]) -> int:
    return sum(manifest.files[name]["bytes"] for name in names)

"""Relabelling a graph part by part and writing it in format version 1.

New ids: sort the nodes by (part, original id). Part p then owns one range of ids, and inside a part the order of
original ids survives. Row v of the topology is the old row of orig_ids[v], its sources renamed but not re-sorted: the
old rows ascend by original id, and that is the canonical order. Rows are renamed and written in chunks, so memory
for the new topology is never needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastsample_dist.graph.csc import CSCGraph, id_dtype
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.graph.npy_files import row_chunks
from fastsample_dist.graph.storage import PartitionWriter
from partition.adjacency import edge_chunks, row_positions


@dataclass(frozen=True, eq=False)
class Relabelling:
    """New ids of a partitioned graph.

    Attributes:
      orig_ids: int64 [num_nodes]; original id of each new id.
      new_ids: int32 | int64 [num_nodes]; new id of each original id.
      part_ranges: int64 [num_parts + 1]; part p owns the new ids part_ranges[p] .. part_ranges[p + 1] - 1.
    """

    orig_ids: np.ndarray
    new_ids: np.ndarray
    part_ranges: np.ndarray

    @classmethod
    def from_parts(cls, parts: np.ndarray, num_parts: int) -> Relabelling:
        """Number the nodes by (part, original id).

        Args:
          parts: integer [num_nodes]; part of each node, 0 .. num_parts - 1.
          num_parts: number of parts.
        """
        num_nodes = len(parts)
        narrow = np.uint16 if num_parts <= 2**16 else parts.dtype  # NumPy's stable sort of 16-bit keys is a radix sort
        orig_ids = np.argsort(parts.astype(narrow), kind="stable")
        new_ids = np.empty(num_nodes, dtype=np.int32 if id_dtype(num_nodes) == torch.int32 else np.int64)
        new_ids[orig_ids] = np.arange(num_nodes, dtype=new_ids.dtype)
        part_ranges = np.zeros(num_parts + 1, dtype=np.int64)
        np.cumsum(np.bincount(parts, minlength=num_parts), out=part_ranges[1:])
        return cls(orig_ids, new_ids, part_ranges)

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.part_ranges) - 1


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a partition was made, for its manifest: method, seed, and further facts for reports."""

    method: str
    seed: int
    stats: dict[str, Any]


def write_partition(
    writer: PartitionWriter,
    raw: RawGraph,
    topology: CSCGraph,
    labelling: Relabelling,
    origin: Origin,
    *,
    on_bytes: Callable[[int], None] = lambda count: None,
) -> Manifest:
    """Write a whole partition and publish it.

    Args:
      writer: an entered PartitionWriter.
      raw: features, labels and splits by original ids.
      topology: of the whole graph, original ids.
      labelling: new ids.
      origin: for the manifest.
      on_bytes: called with the number of bytes of features and topology written since its last call.
    Returns:
      The manifest.
    Raises:
      OSError: the disk refuses.
    """
    _write_topology(writer, topology, labelling, on_bytes)
    for part in range(labelling.num_parts):
        _write_part(writer, raw, labelling, part, on_bytes)
    features = raw.features
    return writer.finish(
        name=raw.name,
        num_nodes=raw.num_nodes,
        num_edges=topology.num_edges,
        num_parts=labelling.num_parts,
        part_ranges=tuple(labelling.part_ranges.tolist()),
        feature_dim=None if features is None else features.shape[1],
        feature_dtype=None if features is None else features.dtype.name,
        num_classes=raw.num_classes,
        method=origin.method,
        seed=origin.seed,
        undirected=raw.undirected,
        stats=origin.stats,
    )


def bytes_to_write(raw: RawGraph, topology: CSCGraph) -> int:
    """What `on_bytes` of `write_partition` adds up to."""
    edge_bytes = topology.indices.element_size()
    if topology.weights is not None:
        edge_bytes += topology.weights.element_size()
    return topology.num_edges * edge_bytes + (0 if raw.features is None else raw.features.nbytes)


def _write_topology(
    writer: PartitionWriter, topology: CSCGraph, labelling: Relabelling, on_bytes: Callable[[int], None]
) -> None:
    old_indptr, indices = topology.indptr.numpy(), topology.indices.numpy()
    degrees = np.diff(old_indptr)[labelling.orig_ids]
    indptr = np.zeros(len(old_indptr), dtype=np.int64)
    np.cumsum(degrees, out=indptr[1:])
    writer.write("topology/indptr.npy", indptr)
    writer.write("topology/orig_ids.npy", labelling.orig_ids)
    columns = {"indices": (labelling.new_ids.dtype, lambda positions: labelling.new_ids[indices[positions]])}
    if topology.weights is not None:
        weights = topology.weights.numpy()
        columns["weights"] = (weights.dtype, lambda positions: weights[positions])
    for name, (dtype, values) in columns.items():
        with writer.open(f"topology/{name}.npy", dtype, (topology.num_edges,)) as file:
            for lo, hi in edge_chunks(degrees):
                positions, _ = row_positions(old_indptr, labelling.orig_ids[lo:hi])
                file.append(values(positions))
                on_bytes(len(positions) * dtype.itemsize)


def _write_part(
    writer: PartitionWriter, raw: RawGraph, labelling: Relabelling, part: int, on_bytes: Callable[[int], None]
) -> None:
    lo, hi = labelling.part_ranges[part : part + 2].tolist()
    owned = labelling.orig_ids[lo:hi]
    folder = Path(f"part-{part}")
    if raw.features is not None:
        dtype = raw.features.dtype
        row_bytes = raw.features.shape[1] * dtype.itemsize
        with writer.open(f"{folder}/features.npy", dtype, (hi - lo, raw.features.shape[1])) as file:
            for start, stop in row_chunks(hi - lo, row_bytes):
                file.append(raw.features[owned[start:stop]])
                on_bytes((stop - start) * row_bytes)
    if raw.labels is not None:
        writer.write(f"{folder}/labels.npy", raw.labels[owned].astype(np.int64))
    for split, ids in raw.splits.items():
        new_ids = labelling.new_ids[ids].astype(np.int64)
        writer.write(f"{folder}/{split}.npy", np.sort(new_ids[(new_ids >= lo) & (new_ids < hi)]))

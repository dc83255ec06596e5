"""Relabelling a graph part by part and writing it in format version 1.

New ids: sort the nodes by (part, original id). Part p then owns one range of ids, and inside a part the order of
original ids survives. Row v of the topology is the old row of orig_ids[v], its sources renamed but not re-sorted: the
old rows ascend by original id, and that is the canonical order. Rows are renamed and written in chunks, so memory
for the new topology is never needed; feature rows go from the input to their part in chunks too. Files that the
writer has already (a run that goes on after a kill) are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph, id_dtype
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.graph.npy_files import row_chunks
from fastsample_dist.graph.storage import PartitionWriter
from partition.adjacency import edge_chunks
from partition.external.csc import StoredTopology
from partition.external.rows import FeatureRows, TopologyRows


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


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How to write.

    Attributes:
      feature_dtype: "keep", or the type that features are converted to (see external/rows.py).
      chunk_edges: edges to rename at a time; None: adjacency.CHUNK_EDGES.
      on_bytes: called with the number of bytes of features and topology written since its last call.
    """

    feature_dtype: str = "keep"
    chunk_edges: int | None = None
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
      raw: features, labels and splits by original ids.
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
    for part in range(labelling.num_parts):
        _write_part(writer, raw, labelling, part, options)
    return writer.finish(
        name=raw.name,
        num_nodes=raw.num_nodes,
        num_edges=topology.num_edges,
        num_parts=labelling.num_parts,
        part_ranges=tuple(labelling.part_ranges.tolist()),
        feature_dim=None if features is None else features.dim,
        feature_dtype=None if features is None else features.stored_as,
        num_classes=raw.num_classes,
        method=origin.method,
        seed=origin.seed,
        undirected=raw.undirected,
        stats=origin.stats,
    )


def bytes_to_write(raw: RawGraph, topology: CSCGraph | StoredTopology, feature_dtype: str = "keep") -> int:
    """What `on_bytes` of `write_partition` adds up to."""
    rows = TopologyRows(topology)
    edge_bytes = rows.dtype("indices").itemsize + (rows.dtype("weights").itemsize if rows.has_weights else 0)
    feature_bytes = 0
    if raw.features is not None:
        feature_bytes = raw.features.size * FeatureRows(raw.features, feature_dtype).dtype.itemsize
    return topology.num_edges * edge_bytes + feature_bytes


def _write_topology(
    writer: PartitionWriter, topology: CSCGraph | StoredTopology, labelling: Relabelling, options: WriteOptions
) -> None:
    num_edges, new_ids = topology.num_edges, torch.from_numpy(labelling.new_ids)
    with TopologyRows(topology) as rows:
        degrees = np.diff(rows.indptr)[labelling.orig_ids]
        if "topology/indptr.npy" not in writer.files:
            writer.write("topology/indptr.npy", np.concatenate([np.zeros(1, np.int64), np.cumsum(degrees)]))
        if "topology/orig_ids.npy" not in writer.files:
            writer.write("topology/orig_ids.npy", labelling.orig_ids)
        for name in ("indices", "weights") if rows.has_weights else ("indices",):
            dtype = labelling.new_ids.dtype if name == "indices" else rows.dtype(name)
            if f"topology/{name}.npy" in writer.files:
                options.on_bytes(num_edges * dtype.itemsize)
                continue
            with writer.open(f"topology/{name}.npy", dtype, (num_edges,)) as file:
                for lo, hi in edge_chunks(degrees, options.chunk_edges):
                    values = rows.read(name, labelling.orig_ids[lo:hi])
                    if name == "indices":
                        values = ops.gather_rows(new_ids, torch.from_numpy(values)).numpy()
                    file.append(values)
                    options.on_bytes(values.nbytes)


def _write_part(
    writer: PartitionWriter, raw: RawGraph, labelling: Relabelling, part: int, options: WriteOptions
) -> None:
    lo, hi = labelling.part_ranges[part : part + 2].tolist()
    owned = labelling.orig_ids[lo:hi]
    folder = f"part-{part}"
    if raw.features is not None:
        with FeatureRows(raw.features, options.feature_dtype) as features:
            row_bytes = features.dim * features.dtype.itemsize
            if f"{folder}/features.npy" in writer.files:
                options.on_bytes((hi - lo) * row_bytes)
            else:
                with writer.open(f"{folder}/features.npy", features.dtype, (hi - lo, features.dim)) as file:
                    for start, stop in row_chunks(hi - lo, row_bytes):
                        file.append(features.read(owned[start:stop]))
                        options.on_bytes((stop - start) * row_bytes)
    if raw.labels is not None and f"{folder}/labels.npy" not in writer.files:
        writer.write(f"{folder}/labels.npy", raw.labels[owned].astype(np.int64))
    for split, ids in raw.splits.items():
        if f"{folder}/{split}.npy" not in writer.files:
            new_ids = labelling.new_ids[ids].astype(np.int64)
            writer.write(f"{folder}/{split}.npy", np.sort(new_ids[(new_ids >= lo) & (new_ids < hi)]))

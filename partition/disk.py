"""How much disk cutting a graph takes, phase by phase, and the refusal where there is less.

Bytes on disk at the end of each phase, beside the input:

    topology   on disk only: every edge as a 64-bit key with its weight, and the sorted rows that come out of them
    write      on disk only: the rows and the part of each node; and in either case the finished partition
An older partition that is overwritten stays until the new one is complete, so it gives no room. What a killed run has
left in the work directory is used again or deleted, so it does.

Only what is certainly needed is asked for: how many edges of an undirected graph are left when duplicates are merged
shows when the topology is built, and then the question is asked again. File systems take whole blocks and the manifest
is not counted, so a disk can still fill up by some kilobytes, or by what others write meanwhile.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from fastsample_dist.graph.csc import id_dtype
from fastsample_dist.graph.datasets import RawGraph
from partition.external.csc import weight_dtype
from partition.external.journal import INPUT_FOLDER, work_directory
from partition.external.rows import FeatureRows

HEADER_BYTES = 128  # of a .npy file
KEY_BYTES = OFFSET_BYTES = ORIG_ID_BYTES = LABEL_BYTES = SPLIT_BYTES = 8
PART_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class DiskSizes:
    """What the space depends on; none of it needs the data.

    Attributes:
      num_nodes: of the graph.
      grouped_edges: edges that are sorted: the listed ones, of an undirected graph both directions of each.
      stored_edges: directed edges of the topology: the same, duplicates of an undirected graph merged.
      weight_bytes: of one stored edge weight (4 or 8); 0 without weights.
      num_parts: number of parts.
      feature_bytes: of one feature row as it is stored; 0 without features.
      has_labels: labels are stored.
      split_nodes: nodes in each split that is stored.
    """

    num_nodes: int
    grouped_edges: int
    stored_edges: int
    num_parts: int
    weight_bytes: int = 0
    feature_bytes: int = 0
    has_labels: bool = False
    split_nodes: tuple[int, ...] = ()

    @classmethod
    def at_least(cls, raw: RawGraph, num_parts: int, feature_dtype: str, stored_edges: int | None = None) -> DiskSizes:
        """Sizes of a graph, no larger than they will be.

        Args:
          raw: the graph.
          num_parts: number of parts.
          feature_dtype: as `external.rows.FEATURE_CHOICES`.
          stored_edges: of the topology, where that is built.
        """
        listed, weights = raw.edge_index.shape[1], weight_dtype(raw)
        if stored_edges is None:
            stored_edges = min(listed, 1) if raw.undirected else listed
        feature_bytes = 0
        if raw.features is not None:
            rows = FeatureRows(raw.features, feature_dtype)
            feature_bytes = rows.dim * rows.dtype.itemsize
        return cls(
            num_nodes=raw.num_nodes,
            grouped_edges=listed,
            stored_edges=stored_edges,
            num_parts=num_parts,
            weight_bytes=0 if weights is None else weights.itemsize,
            feature_bytes=feature_bytes,
            has_labels=raw.labels is not None,
            split_nodes=tuple(len(ids) for ids in raw.splits.values()),
        )


def partition_bytes(sizes: DiskSizes) -> int:
    """Size of a finished partition's files, manifest.json aside."""
    files = 3 + (sizes.weight_bytes > 0)
    files += sizes.num_parts * ((sizes.feature_bytes > 0) + sizes.has_labels + len(sizes.split_nodes))
    per_node = OFFSET_BYTES + ORIG_ID_BYTES + sizes.feature_bytes + (LABEL_BYTES if sizes.has_labels else 0)
    splits = SPLIT_BYTES * sum(sizes.split_nodes)
    return files * HEADER_BYTES + OFFSET_BYTES + sizes.num_nodes * per_node + _edge_bytes(sizes) + splits


def disk_bytes(sizes: DiskSizes, *, on_disk: bool) -> dict[str, int]:
    """Bytes on disk at the end of each phase, the input aside; the largest is what the run needs.

    Args:
      sizes: of the graph and the partition.
      on_disk: edges are sorted on disk, not in memory.
    Returns:
      {"topology": bytes, "write": bytes}; "write" is followed by the end, where `partition_bytes` are left.
    """
    finished = partition_bytes(sizes)
    if not on_disk:
        return {"topology": 0, "write": finished}
    rows = _edge_bytes(sizes) + 2 * OFFSET_BYTES * sizes.num_nodes  # degrees as counted and as sorted
    keys = (KEY_BYTES + sizes.weight_bytes) * sizes.grouped_edges
    return {"topology": keys + rows, "write": rows + PART_BYTES * sizes.num_nodes + finished}


def check_space(output: str | Path, needed: int, *, used: int = 0) -> None:
    """Refuse an output for which the disk has no room.

    Args:
      output: the partition's directory; its parent is there.
      needed: bytes that will be on disk.
      used: bytes of them that are there already.
    Raises:
      ValueError: fewer are free.
    """
    parent = Path(output).absolute().parent
    free = free_bytes(parent)
    if free is not None and needed - used > free:
        raise ValueError(
            f"{output} takes {needed - used:,} bytes of disk while it is made but {free:,} are free in {parent}; "
            "make room or choose another output."
        )


def free_bytes(directory: Path) -> int | None:
    """Bytes that this user may write to a directory's file system; None where the system does not tell."""
    status = os.statvfs(directory)
    blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail  # some are kept for root
    return blocks * status.f_frsize if status.f_blocks else None


def used_bytes(output: str | Path) -> int:
    """Bytes on disk of the unfinished work on an output; files made from the input are not counted."""
    work = work_directory(output)
    return sum(
        file.stat().st_blocks * 512
        for file in work.rglob("*")
        if file.is_file() and work / INPUT_FOLDER not in file.parents
    )


def _edge_bytes(sizes: DiskSizes) -> int:
    id_bytes = 4 if id_dtype(sizes.num_nodes) == torch.int32 else 8
    return sizes.stored_edges * (id_bytes + sizes.weight_bytes)

"""The refusal of a disk with too little room for a partition; plan/disk.py computes how much it takes.

An older partition that is overwritten stays until the new one is complete, so it frees no room. What a killed run has
left in the work directory is used again or deleted, so it does.

Only what is certainly needed is asked for: how many edges of an undirected graph are left when duplicates are merged
is known once the topology is built, and then the check is repeated. A disk can still fill up by the last kilobytes,
as files take whole blocks, or by what others write meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fastsample_dist.files import free_bytes
from fastsample_dist.graph.inputs.sizes import GraphSizes
from fastsample_dist.partition.external.journal import INPUT_FOLDER, work_directory
from fastsample_dist.partition.methods.request import NO_FILES, WorkFiles
from fastsample_dist.partition.plan.disk import PART_BYTES, method_bytes, output_bytes, work_bytes


def least_bytes(
    sizes: GraphSizes,
    num_parts: int,
    feature_dtype: str,
    *,
    on_disk: bool,
    stored_edges: int | None = None,
    made: WorkFiles = NO_FILES,
) -> int:
    """Bytes that will be on disk at the widest place, the input aside, at least.

    Args:
      sizes: of the graph.
      num_parts: number of parts.
      feature_dtype: as `external.rows.FEATURE_CHOICES`.
      on_disk: the edges are sorted on disk, not in memory.
      stored_edges: of the topology, where that is there; what came before no longer counts then.
      made: by the method, beside what is sorted: as if every edge's reverse were listed, self-loops and parallel edges
        aside. Of an undirected graph whose rows are not sorted yet no more than certain is known.
    """
    listed = replace(sizes, undirected=False)  # duplicates and self-loops may halve the edges, and merge them further
    fewest = min(1, sizes.num_listed) if sizes.undirected else sizes.num_listed
    final = replace(listed, num_listed=fewest if stored_edges is None else stored_edges)
    if not on_disk:
        return output_bytes(final, num_parts, feature_dtype)
    sorting, writing = (work_bytes(each, num_parts, feature_dtype) for each in (listed, final))
    if sizes.undirected:
        made = replace(made, adjacency=False)  # its rows serve, unless it has self-loops
    own = max(method_bytes(final, made, final.num_edges, 0))
    assigning = writing["assign"] - PART_BYTES * sizes.num_nodes + own
    if stored_edges is not None:
        return max(assigning, writing["write"])
    return max(sorting["group" if sizes.undirected else "sort"], assigning, writing["write"])


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


def used_bytes(output: str | Path) -> int:
    """Bytes on disk of the unfinished work on an output; files made from the input are not counted."""
    work = work_directory(output)
    return sum(
        file.stat().st_blocks * 512
        for file in work.rglob("*")
        if file.is_file() and work / INPUT_FOLDER not in file.parents
    )

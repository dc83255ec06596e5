"""Ids that are names: text, or integers with gaps, become 0, 1, 2, ... in sorted order.

Integers are sorted as numbers, text by the bytes of its UTF-8 (which is the order of its code points); ids are integers
if every one of them is one that int64 holds (007 and "7" are 7 then), else all are text. So the new ids depend on the
set of names alone, not on the order of the list or on how it is read. Two passes over the list: the first gathers the
distinct names, the second looks every id up. Memory: the distinct names, several times over while they are merged; if
that is more than there is room for, it is refused before it is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from fastsample_dist.graph.inputs.edge_options import NotIntegersError
from fastsample_dist.memory_sizes import format_size

logger = logging.getLogger(__name__)

MERGE_BYTES = 1 << 24  # of names that came since the last merge, or as much as was merged so far
_COPIES = 3  # of what is merged: joined, sorted, and the result


class Named(Protocol):
    """A source whose ids can be read as they are."""

    def names(self, *, as_text: bool) -> Iterator[np.ndarray]:
        """Ends of edges [n, 2]: int64, or bytes with `as_text`; NotIntegersError where an id is not an integer."""


def distinct_names(source: Named, room_bytes: int | None) -> np.ndarray:
    """Names of all nodes of a list, ascending.

    Args:
      source: the list.
      room_bytes: memory that this may take; None: not limited.
    Returns:
      int64 or bytes (UTF-8) [num_nodes], each once.
    Raises:
      ValueError: the names take more memory, a line that is not an edge, or more nodes than there may be.
    """
    try:
        return _gathered(source.names(as_text=False), room_bytes)
    except NotIntegersError as error:
        logger.info("ids are taken as text, as not all are integers (%s)", str(error).split(";")[0])
    return _gathered(source.names(as_text=True), room_bytes)


def least_bytes(num_names: int, name_bytes: int) -> int:
    """Room that `distinct_names` takes for so many names of so many bytes, at least."""
    return _COPIES * name_bytes * num_names


def numbered(source: Named, names: np.ndarray) -> Iterator[np.ndarray]:
    """The edges by new ids, int64 [n, 2] at a time; `names` as from `distinct_names`."""
    for ids in source.names(as_text=names.dtype.kind == "S"):
        yield np.searchsorted(names, ids)


def _gathered(chunks: Iterable[np.ndarray], room_bytes: int | None) -> np.ndarray:
    names, fresh = np.empty(0, dtype=np.int64), []
    step = MERGE_BYTES if room_bytes is None else max(1, min(MERGE_BYTES, room_bytes // 16))
    for chunk in chunks:
        fresh.append(np.unique(chunk))
        if sum(part.nbytes for part in fresh) >= max(step, names.nbytes):
            names, fresh = _merged(names, fresh, room_bytes), []
    return _merged(names, fresh, room_bytes)


def _merged(names: np.ndarray, fresh: list[np.ndarray], room_bytes: int | None) -> np.ndarray:
    """All of them, ascending, each once."""
    parts = [part for part in (names, *fresh) if len(part)]
    if not parts:
        return names
    width = max(part.dtype.itemsize for part in parts)
    needed = sum(part.nbytes for part in parts) + _COPIES * width * sum(map(len, parts))
    if room_bytes is not None and needed > room_bytes:
        known = max(map(len, parts))
        raise ValueError(
            f"--relabel has found {known} distinct ids of up to {width} bytes or more, which take about "
            f"{format_size(needed)} while they are sorted, but {format_size(max(0, room_bytes))} are left within the "
            f"memory limit; pass a --memory-limit that is at least {format_size(needed - room_bytes)} higher, or "
            "relabel the list yourself."
        )
    return np.unique(np.concatenate(parts))

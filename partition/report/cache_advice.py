"""How large a cache of remote rows is worth its memory: the knee of the curve of rows saved against rows cached.

The knee is the point of the curve farthest above the chord from no node cached to all of them: from there on another
1 % of all nodes saves less than 1 % of the remote rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fastsample_dist.memory_sizes import format_size

_PLACE_BYTES, _PAIR_BYTES = 4, 8  # of a node's slot in a list of all nodes; of a node and its slot in a hash table
_LISTED_FROM = 4  # more than one node in so many is cached: a list


@dataclass(frozen=True, kw_only=True)
class CacheAdvice:
    """The size of a machine's cache at the knee.

    Attributes:
      policy: of the curve.
      rows: cached rows.
      share: of all nodes.
      capacity_bytes: memory for the rows and for what finds them.
      saved: share of the remote rows that are cached.
    """

    policy: str
    rows: int
    share: float
    capacity_bytes: int
    saved: float

    @property
    def option(self) -> str:
        """The option of the training command."""
        return f"--cache {format_size(self.capacity_bytes)}"

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        return {**asdict(self), "option": self.option}


@dataclass(frozen=True, eq=False)
class SavedRows:
    """What caching saves, of a policy on one machine: its list of nodes, of which those matter that batches read.

    Attributes:
      places: int64 [m]; where these nodes stand in the list, from 0, ascending.
      rows: float64 [m]; remote rows that each one saves.
    """

    places: np.ndarray
    rows: np.ndarray

    def of_first(self, cached: int) -> float:
        """Rows saved when the first `cached` nodes of the list are cached."""
        return float(self.rows[: np.searchsorted(self.places, cached)].sum())


def advise(policy: str, saved: Sequence[SavedRows], num_nodes: int, row_bytes: int) -> CacheAdvice | None:
    """The cache at the knee of the machines' curves together.

    Args:
      policy: of the curves.
      saved: per machine, of an epoch.
      num_nodes: of the graph.
      row_bytes: of a feature row; 0: there are no features.
    Returns:
      None where nothing is remote or there are no features.
    """
    every = np.concatenate([own.places for own in saved])
    gained = np.concatenate([own.rows for own in saved])
    if not gained.any() or row_bytes == 0:
        return None
    # the curve rises behind these places only: its knee is there
    places, at = np.unique(every, return_inverse=True)
    cached = np.concatenate([[0], places + 1])
    total = np.concatenate([[0.0], np.cumsum(np.bincount(at, gained))])
    share_saved = total / total[-1]
    knee = int(np.argmax(share_saved - cached / num_nodes))
    rows = int(cached[knee])
    return CacheAdvice(
        policy=policy,
        rows=rows,
        share=rows / num_nodes,
        capacity_bytes=rows * row_bytes + place_bytes(rows, num_nodes),
        saved=float(share_saved[knee]),
    )


def place_bytes(rows: int, num_nodes: int) -> int:
    """Memory of what finds a cached node's row."""
    if rows * _LISTED_FROM > num_nodes:
        return _PLACE_BYTES * num_nodes
    return _PAIR_BYTES * (2 << max(rows - 1, 0).bit_length())  # a power of two, at most half taken


def advice_text(advice: Mapping[str, Any]) -> str:
    """The advised size of a machine's cache in words, from `CacheAdvice.to_json`."""
    return (
        f"{advice['option']} ({advice['capacity_bytes']:,} bytes: {advice['rows']:,} rows, {advice['share']:.1%} of "
        f"the nodes, by {advice['policy']}) saves {advice['saved']:.1%} of the remote rows; from there on another 1 % "
        "of the nodes saves less than 1 % of them"
    )

"""The exponential race by definition: which vertices of a combined neighbourhood come first (csrc/core/
exponential_race.h holds the same for the compiled engines, and the bound of the logarithm's error).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from fastsample_dist.ops import reference

if TYPE_CHECKING:
    from fastsample_dist.sampling.transit.values import Row

LOG_BITS = 58  # fractional bits of a logarithm
LOG_ERROR = 2  # a logarithm is off by less than so many units of 2^-LOG_BITS
_LN2 = 0xB17217F7D1CF79AC  # ln 2 in units of 2^-64, rounded
_TERMS = 19


def race_log(word: int) -> int:
    """-ln((word | 1) / 2^64) in units of 2^-58, off by less than LOG_ERROR of them: s ln 2 + 2 atanh(z)."""
    shift = 64 - (word | 1).bit_length()
    m = (word | 1) << shift
    z = ((2**64 - m) << 63) // (2**63 + (m >> 1))
    w, series = z * z >> 64, 0
    for term in range(_TERMS, 0, -1):
        series = (series * w >> 64) + (2**64 - 1) // (2 * term + 1)
    atanh = z + (z * (w * series >> 64) >> 64)
    return (_LN2 * shift + 2 * atanh) >> 6


def column_weights(rows: Sequence[tuple[int, Row]]) -> dict[int, float]:
    """Sum over the rows v of a(v, u)^2 for every column u, with a = A + I divided by the row's sum: LADIES' law up to a
    factor. Of rows that begin alike the sums are made alike, from the left.

    Args:
      rows: (node, its row), the distinct transits in their order.
    """
    sums: dict[int, float] = {}
    for node, row in rows:
        total, own = row.total_weight + 1.0, 0.0
        for source, value in _entries(row):
            if source == node:
                own = value
            else:
                entry = value / total
                sums[source] = sums.get(source, 0.0) + entry * entry
        entry = (1.0 + own) / total
        sums[node] = sums.get(node, 0.0) + entry * entry
    return sums


def _entries(row: Row) -> Iterator[tuple[int, float]]:
    """(source, sum of its parallel edges' weights from the left) in the row's order, where they stand side by side."""
    for source, edges in groupby(range(len(row)), key=row.__getitem__):
        *_, value = accumulate(row.weight(edge) for edge in edges)
        yield source, value


def rank(
    weights: Mapping[int, float], orig_id: Callable[[int], int], key: tuple[int, int], sample_id: int, wanted: int
) -> list[int]:
    """The first `wanted` vertices to arrive, in order of (time, original id).

    Args:
      weights: of the vertices; one of weight 0 never arrives.
      orig_id: original id of a vertex.
      key: of domain RACE.
    """

    def arrival(node: int) -> tuple[float, int]:
        words = reference.node_words(key, orig_id(node), sample_id)
        log = race_log(next(words) | next(words) << 32)
        return float(log) / weights[node], orig_id(node)

    return sorted((node for node, weight in weights.items() if weight > 0.0), key=arrival)[:wanted]

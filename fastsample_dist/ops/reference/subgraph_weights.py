"""Weights of a subgraph's edges from the definition of each law, in decimal arithmetic of 60 digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext

DIGITS = 60


def drawn_inclusion(
    draws: int, columns: Mapping[str, Sequence[float]], u: int, v: int, parallel: int
) -> float:  # fmt: skip
    """P(u, v both in a subgraph) of independent draws and Poisson arrivals; P(v) where u is v.

    Args:
      draws: their number.
      columns: chances, arrivals, links and shares of the nodes.
      parallel: edges from u to v, and from v to u.
    """
    with localcontext() as context:
        context.prec = DIGITS
        q, a, link, share = (list(map(Decimal, columns[name])) for name in ("chances", "arrivals", "links", "shares"))

        def miss(chance: Decimal, arrived: Decimal) -> Decimal:
            return chance_power(1 - chance, draws) * (-arrived).exp()

        if u == v:
            return float(1 - miss(q[v], a[v]))
        both = miss(q[u] + q[v] - parallel * (share[u] + share[v]), a[u] + a[v] - parallel * (link[u] + link[v]))
        return float(1 - miss(q[u], a[u]) - miss(q[v], a[v]) + both)


def chance_power(base: Decimal, exponent: int) -> Decimal:
    """base ** exponent, 1 for 0 ** 0 and 0 for a base that rounding has made negative."""
    return Decimal(1) if exponent == 0 else max(base, Decimal(0)) ** exponent


def ratio_weights(inclusion: Sequence[float], row_sum: float) -> list[float]:
    """Weights of one row's edges: the inverses of their inclusion, which add up to `row_sum`."""
    inverses = [1 / chance for chance in inclusion]
    return [row_sum * inverse / sum(inverses) for inverse in inverses]


def counted_inclusion(members_u: set[int], members_v: set[int], count: int) -> float:
    """Share of `count` subgraphs that two nodes are in, given the subgraphs that each is in."""
    return len(members_u & members_v) / count

"""The measured walks as a user would write them: Numba compiles their `next`, whatever the library has built in."""

from __future__ import annotations

from fastsample_dist.sampling import transit


class OwnUniform(transit.App):
    """Walks to a neighbour, uniformly.

    Args:
      length: steps.
    """

    needs = transit.needs(weights=False)

    def __init__(self, length: int) -> None:
        self.length = length

    def steps(self) -> int:
        """See App."""
        return self.length

    def sample_size(self, step: int) -> int:
        """See App."""
        return 1

    def next(s, transits, edges, step, draw, par):
        """A neighbour."""
        if len(edges) == 0:
            return transit.NULL
        return edges[draw.below(len(edges))]


class OwnDeepWalk(OwnUniform):
    """Walks to a neighbour by weight."""

    needs = transit.needs(weights=True)

    def next(s, transits, edges, step, draw, par):
        """A neighbour."""
        if len(edges) == 0:
            return transit.NULL
        return edges.pick(draw)


class OwnNode2Vec(transit.Node2Vec):
    """node2vec by rejection, the coin after the query."""

    def next(s, transits, edges, step, draw, par):
        """A neighbour."""
        if len(edges) == 0 or step == 0:
            return edges.pick(draw)
        previous = s.prev_vertex(2, draw.index)
        while True:
            u = edges.pick(draw)
            if u == previous:
                threshold = par.back
            elif s.prev_edges(2, draw.index).has(u):
                threshold = par.near
            else:
                threshold = par.far
            if draw.coin(threshold):
                return u

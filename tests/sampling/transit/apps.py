"""Small applications and graphs for the tests of transit-parallel sampling."""

from typing import ClassVar

import numpy as np
import torch

from fastsample_dist import CSCGraph
from fastsample_dist.sampling import transit


class Own(transit.App):
    """Uniform picks by the plainest of functions; tests derive from it."""

    num_steps, picks, distinct = 3, 1, False

    def steps(self):
        return self.num_steps

    def sample_size(self, step):
        return self.picks

    def unique(self, step):
        return self.distinct

    def next(s, transits, edges, step, draw, par):
        if len(edges) == 0:
            return transit.NULL
        return edges[draw.below(len(edges))]


class Together(Own):
    """Uniform picks from the neighbours of all transits."""

    sampling_type = transit.COLLECTIVE
    picks = 4


class Counting(Own):
    """Counts its picks in a state of 32 bits, from close to its end; starts one past the root's position."""

    state: ClassVar = {"count": (np.int32, 2)}

    def initial(s, draw, par):
        s.count[1] = draw.below(7)

    def next(s, transits, edges, step, draw, par):
        s.count[0] = s.count[0] + 2**30 + s.count[1]
        if s.count[0] < 0 or len(edges) == 0:
            return transit.NULL
        return edges[draw.below(len(edges))]


def small_graph(weighted: bool = True, dtype: torch.dtype = torch.int32) -> CSCGraph:
    """12 nodes: node 0 without neighbours, self-loops, parallel edges, weights of 0, one row of them alone."""
    rows = [
        [],
        [1],
        [1, 3],
        [0, 2, 3, 4],
        [5, 5, 6],
        [4, 6, 7],
        [3, 4, 8, 9],
        [10, 11],
        [2, 6],
        [8, 10],
        [7, 9, 11],
        [4],
    ]
    generator = torch.Generator().manual_seed(4)
    indices = torch.tensor([node for row in rows for node in row], dtype=dtype)
    indptr = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    weights = 0.25 + torch.rand(indices.numel(), generator=generator)
    weights[indptr[3]] = weights[indptr[6] + 1] = weights[-1] = 0.0
    return CSCGraph(indptr, indices, weights if weighted else None)

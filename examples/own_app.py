"""A sampling application of your own: random walks with restart, and whom they meet most often.

The application is the class; its `next` in Python is compiled by Numba (pip install fastsample_dist[apps]).

    python examples/own_app.py
"""

import torch

import fastsample_dist as fsd
from fastsample_dist.graph.generators import random_graph
from fastsample_dist.sampling import transit


class WalkWithRestart(transit.App):
    """Before every step the walk returns to its root with probability `restart`, and wherever it cannot continue."""

    def __init__(self, length: int = 20, restart: float = 0.15) -> None:
        self.length = length
        self.par = transit.params(restart=int(restart * 2**32))

    def steps(self) -> int:
        return self.length

    def sample_size(self, step: int) -> int:
        return 1

    def next(s, transits, edges, step, draw, par):
        if draw.coin(par.restart) or len(edges) == 0:
            return s.root(0)
        return edges[draw.below(len(edges))]

    def law(self, graph: fsd.CSCGraph, history: transit.History) -> dict[int, float]:
        """For check_app: the probability of every vertex as the next one."""
        row = graph.indices[graph.indptr[history.transit] : graph.indptr[history.transit + 1]].tolist()
        restart = self.par.restart / 2**32 if row else 1.0
        law = {history.path[0]: restart}
        for u in row:
            law[u] = law.get(u, 0.0) + (1.0 - restart) / len(row)
        return law


def main() -> None:
    """Print the nodes that 200 walks from each of three nodes meet most often."""
    graph = random_graph(num_nodes=1000, num_edges=5000, seed=0)
    roots = torch.tensor([1, 2, 3])
    out = fsd.TransitSampler(graph, WalkWithRestart(), rng_seed=1).sample(roots.repeat_interleave(200))
    for root, walks in zip(roots.tolist(), out.vertices[:, 1:].reshape(3, -1), strict=True):
        nodes, visits = walks[walks != root].unique(return_counts=True)
        print(f"node {root} meets {nodes[visits.argsort(descending=True, stable=True)[:5]].tolist()} most often")


if __name__ == "__main__":
    main()

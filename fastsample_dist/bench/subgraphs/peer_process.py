"""A package that draws subgraphs when it is asked, in a process of its own and with one thread.

    python -m fastsample_dist.bench.subgraphs.peer_process PEER [FOLDER]

Without FOLDER it tries whether the package can be run. Else it reads the graph there. A line of standard input is
{"draw": method, "budget": ...} or {"induce": FILE of nodes}; the answer is a line {"seconds", "nodes", "edges"}.
Samplers are made when they are first asked for, and drawn from once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fastsample_dist.bench.asked import answer_lines
from fastsample_dist.bench.peers import answer_trial, read_columns
from fastsample_dist.bench.timing import steady
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.sampling.subgraph_spec import NODE

Sizes = Callable[[], tuple[int, int]]  # the nodes and edges of what it has drawn


class _Dgl:
    """DGL's samplers."""

    def __init__(self, graph: CSCGraph) -> None:
        from fastsample_dist.interop import dgl

        dgl.require_dgl("--baseline dgl")
        dgl.set_num_threads(1)
        dgl.set_rng_seed(0)
        self._dgl, self._graph = dgl, dgl.with_all_formats(graph)

    def sampler(self, mode: str, budget: int | tuple[int, int]) -> Sizes:
        draw = self._dgl.saint_sampler(self._graph, mode, budget)

        def sizes() -> tuple[int, int]:
            found = draw()
            return found.num_nodes(), found.num_edges()

        return sizes

    def inducer(self, file: str) -> Sizes:
        nodes = torch.from_numpy(np.load(file)).long()
        return lambda: (nodes.numel(), self._dgl.node_subgraph(self._graph, nodes).num_edges())


class _Pyg:
    """PyG's samplers."""

    def __init__(self, graph: CSCGraph) -> None:
        from fastsample_dist.interop import pyg

        self._pyg, self._graph = pyg, graph

    def sampler(self, mode: str, budget: int | tuple[int, int]) -> Sizes:
        return self._pyg.saint_sampler(self._graph, mode, budget)


def main(words: list[str]) -> None:
    """Try the package, or answer until standard input ends."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind = {"dgl": _Dgl, "pyg": _Pyg}[words[0]]
    if len(words) == 1:
        answer_trial(lambda graph: kind(graph).sampler(NODE, 1))
        return
    peer = kind(read_columns(Path(words[1])))
    samplers: dict[str, Sizes] = {}

    def reply(asked: dict) -> dict:
        if "induce" in asked:
            draw = peer.inducer(asked["induce"])
        else:
            method, budget = asked["draw"], asked["budget"]
            if method not in samplers:
                samplers[method] = peer.sampler(method, tuple(budget) if isinstance(budget, list) else budget)
                samplers[method]()
            draw = samplers[method]
        start = time.perf_counter()
        nodes, edges = draw()
        return {"seconds": time.perf_counter() - start, "nodes": nodes, "edges": edges}

    with steady():
        answer_lines(reply)


if __name__ == "__main__":
    main(sys.argv[1:])

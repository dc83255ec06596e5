"""The peers: each waits in a process of its own until it is asked for one subgraph, so that all can take turns.

`dgl` and `pyg` are installed packages, run by peer_process.py. `ipdps19=DIR` is the paper's own C++ sampler in a
program that the user has built, DIR/frontier, called as

    frontier GRAPH FRONTIER_SIZE BUDGET

GRAPH holds int64 nodes, edges and roots, then int32 offsets [nodes + 1], neighbours [edges] and roots. For each line of
its standard input it draws one subgraph and prints one line: milliseconds in all, those of the walk, nodes, edges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.bench.asked import AskedProcess
from fastsample_dist.bench.peers import PACKAGES, Baseline, require_packages, write_columns
from fastsample_dist.bench.subgraphs.cases import SubgraphCase
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.sampling.subgraph_spec import EDGE, FRONTIER, NODE, WALK
from fastsample_dist.testing.supervisor import Supervisor

IPDPS19 = "ipdps19"
MODES = {"dgl": (NODE, WALK, EDGE), "pyg": (NODE, WALK), IPDPS19: (FRONTIER,)}
INDUCES = ("dgl",)
PEER_PROCESS = "fastsample_dist.bench.subgraphs.peer_process"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One subgraph of a contestant.

    Attributes:
      seconds: to draw and induce it.
      nodes, edges: of it.
      walk_s: of these, to draw it; None where it is not told.
    """

    seconds: float
    nodes: int
    edges: int
    walk_s: float | None = None


def program(baseline: Baseline) -> Path:
    """The paper's sampler.

    Raises:
      ValueError: the directory lacks it.
    """
    return baseline.program("frontier", "the directory of a program that draws subgraphs when it is asked")


def check_packages(baselines: Sequence[Baseline], cases: Sequence[SubgraphCase]) -> None:
    """Refuse packages that would be asked for something and cannot be run.

    Raises:
      ImportError: one, or something that it needs, is missing.
    """
    methods = {case.method for case in cases}
    packages = [baseline.name for baseline in baselines if baseline.directory is None]
    require_packages([name for name in packages if name in INDUCES or methods & set(MODES[name])], PEER_PROCESS)


def write_graph(graph: CSCGraph, roots: Tensor, baselines: Sequence[Baseline], folder: Path) -> None:
    """Write the graph as the peers read it.

    Raises:
      ValueError: it is too large for the int32 offsets of the paper's code.
    """
    if any(baseline.name in PACKAGES for baseline in baselines):
        write_columns(graph, folder)
    if any(baseline.name == IPDPS19 for baseline in baselines):
        if graph.num_edges >= 2**31:
            raise ValueError(f"the graph has {graph.num_edges} edges; the offsets of {IPDPS19} end at 2**31 - 1.")
        with (folder / "graph.bin").open("wb") as file:
            np.array([graph.num_nodes, graph.num_edges, roots.numel()], np.int64).tofile(file)
            for column in (graph.indptr, graph.indices, roots):
                column.to(torch.int32).numpy().tofile(file)


class Peer:
    """A peer that waits to be asked. Ends with the supervisor's block.

    Args:
      supervisor: that it is started by.
      baseline: which one.
      folder: with the graph's files; its messages are kept there.
      case: of the program of the paper, which draws one kind of subgraph; the packages draw any.
    Attributes:
      name: of the baseline.
    """

    def __init__(self, supervisor: Supervisor, baseline: Baseline, folder: Path, case: SubgraphCase) -> None:
        self.name = baseline.name
        if self.name == IPDPS19:
            sizes = (str(case.frontier_size), str(case.budget))
            words = [str(program(baseline)), str(folder / "graph.bin"), *sizes]
        else:
            words = [sys.executable, "-m", PEER_PROCESS, self.name, str(folder)]
        self._process = AskedProcess(supervisor, self.name, words, folder)

    def draw(self, case: SubgraphCase) -> Drawn:
        """One subgraph of a case.

        Raises:
          RuntimeError: it ended, or did not answer in time; with its last line.
        """
        if self.name == IPDPS19:
            whole_ms, walk_ms, nodes, edges = self._process.ask("draw").split()
            return Drawn(seconds=float(whole_ms) / 1e3, nodes=int(nodes), edges=int(edges), walk_s=float(walk_ms) / 1e3)
        return Drawn(**self._process.ask_json({"draw": case.method, "budget": case.peer_budget}))

    def induce(self, nodes: Path) -> Drawn:
        """The subgraph induced by the nodes in a file of NumPy."""
        return Drawn(**self._process.ask_json({"induce": str(nodes)}))

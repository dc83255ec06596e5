"""The peers of `fastsample-bench gpu walk`: NextDoor's programs, and packages that walk on GPUs.

NextDoor's programs (a directory that the user has built) run in processes of their own, with all nodes as roots, walks
of 100 steps and weights as its paper has them; a step is a vertex that a sample has in the end, the clock is its own
("End to end time"). DGL, PyG and cuGraph walk from this run's roots, in turns with this library's schedules.

NextDoor weighs a step of node2vec back, to a common neighbour or elsewhere by (p, 1/q, 1), where others have (1/p, 1,
1/q): with its p 2 and q 0.5 that is (2, 2, 1), the others' p 1 and q 2, with which it is compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.bench import peers
from fastsample_dist.bench.peers import Baseline
from fastsample_dist.bench.walk.cases import CASES, STOP, P, Q, WalkCase
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.sampling import transit
from fastsample_dist.testing.jobs import own_environment
from fastsample_dist.testing.supervisor import last_line, run_process

NEXTDOOR, CUGRAPH = "nextdoor", "cugraph"
PACKAGES = (*peers.PACKAGES, CUGRAPH)
KERNELS = {"transit": ("TransitParallel", "-l"), "transit_flat": ("TransitParallel",), "sample": ("SampleParallel",)}
EXAMPLE = "a directory with its programs, such as DeepWalkSampling and KHopSampling"
STEPS = 100  # of its walks
FANOUTS = (25, 10)  # of k-hop neighbourhoods
RECORDS = 1 << 24  # edges that are written at once
MOST_STEPS = 1000  # of a walk that ends by chance: what a package is given as its length
_EDGE = np.dtype([("source", np.int32), ("destination", np.int32), ("weight", np.float32)])
_SECONDS = re.compile(r"End to end time ([0-9.eE+-]+) secs")
_VERTICES = re.compile(r"totalSampledVertices (\d+)")

# What its programs do, as this library's applications: (program, case).
NEXTDOOR_CASES = (
    (
        "DeepWalkSampling",
        WalkCase(name="deepwalk", weighted=True, make=lambda length: transit.DeepWalk(length, weighted=True)),
    ),
    ("PPRSampling", WalkCase(name="ppr, stop 0.01", weighted=True, make=lambda _: transit.PPR(0.01, weighted=True))),
    (
        "Node2VecSampling",
        WalkCase(
            name="node2vec, p 1, q 2", weighted=False,
            make=lambda length: transit.Node2Vec(length, 1.0, 2.0, weighted=False),
        ),
    ),
    ("KHopSampling", WalkCase(name="khop", weighted=False, make=lambda _: transit.KHop(FANOUTS))),
)  # fmt: skip


def write_edges(graph: CSCGraph, file: Path) -> None:
    """Write what NextDoor reads: a record of 12 bytes per edge, from the node that walks leave to where they go.

    Args:
      graph: with weights, in host memory.
    Raises:
      ValueError: more nodes or edges than its 32-bit numbers can tell apart.
    """
    if max(graph.num_nodes, graph.num_edges) >= 2**31:
        raise ValueError(
            f"the graph has {graph.num_nodes} nodes and {graph.num_edges} edges; NextDoor's numbers end at 2**31 - 1."
        )
    rows = torch.repeat_interleave(torch.arange(graph.num_nodes, dtype=torch.int32), graph.in_degrees())
    with file.open("wb") as out:
        for first in range(0, graph.num_edges, RECORDS):
            own = slice(first, first + RECORDS)
            records = np.empty(rows[own].numel(), _EDGE)
            records["source"], records["destination"] = rows[own].numpy(), graph.indices[own].numpy()
            records["weight"] = graph.weights[own].numpy()
            records.tofile(out)


def nextdoor_rates(baseline: Baseline, program: str, edges: Path, way: str, runs: int) -> list[float]:
    """Steps per second of each of NextDoor's runs.

    Args:
      baseline: with its directory.
      program: one of NEXTDOOR_CASES.
      edges: of `write_edges`.
      way: of KERNELS.
      runs: in one process.
    Raises:
      ValueError: the program is not there.
      RuntimeError: it failed, or printed no times; with its last line.
    """
    words = [baseline.program(program, EXAMPLE), "-g", edges, "-t", "edge-list", "-f", "binary", "-n", runs, "-k"]
    done = run_process([*map(str, words), *KERNELS[way]], env=own_environment())
    seconds, vertices = _SECONDS.findall(done.stdout), _VERTICES.search(done.stdout)
    if done.returncode != 0 or len(seconds) != runs or vertices is None:
        raise RuntimeError(f"{program} ended with {done.returncode}: {last_line(done)}")
    return [int(vertices[1]) / float(own) for own in seconds]


def package_walker(
    package: str, app: str, graph: CSCGraph, length: int, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """A package's function of roots on the device that returns the vertices it adds to them, -1: none.

    Args:
      package: one of PACKAGES.
      app: name of the application.
      length: steps of a walk.
    Raises:
      ImportError: the package is missing.
      ValueError: it has no such application on a GPU.
    """
    if package == CUGRAPH:
        return _cugraph_walker(app, graph, length, device)
    if app not in CASES:
        raise ValueError("only walks are compared with it")
    case = CASES[app]
    if package == "pyg":
        from fastsample_dist.interop import pyg

        if case.weighted or case.one_root or app not in ("uniform", "node2vec"):
            raise ValueError("PyG has uniform walks and node2vec only")
        return _added(pyg.walker(graph, length, p_q=(P, Q) if app == "node2vec" else (1.0, 1.0), device=device))
    from fastsample_dist.interop import dgl

    if app not in ("uniform", "deepwalk", "ppr"):
        raise ValueError("DGL walks on a GPU uniformly, by weight, or to a random end")
    most, stop = (MOST_STEPS, STOP) if case.one_root else (length, None)
    return _added(dgl.walker(graph, most, weighted=case.weighted, stop=stop, device=device))


def _cugraph_walker(app: str, graph: CSCGraph, length: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    from fastsample_dist.interop import cugraph

    if app == "khop":
        return cugraph.neighbour_sampler(graph, FANOUTS, device=device)
    if app not in ("uniform", "deepwalk", "node2vec"):
        raise ValueError("cuGraph has uniform and weighted walks, node2vec and k-hop neighbourhoods with repetition")
    p_q = (P, Q) if app == "node2vec" else None
    return _added(cugraph.walker(graph, length, weighted=CASES[app].weighted, p_q=p_q, device=device))


def _added(walk: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Walks without their roots."""
    return lambda roots: walk(roots)[:, 1:]

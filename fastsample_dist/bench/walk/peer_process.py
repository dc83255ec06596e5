"""One peer that is a package, walking in a process of its own.

    python -m fastsample_dist.bench.walk.peer_process PEER [APP FOLDER LENGTH THREADS TRIALS BATCH]

PEER alone: tries whether it can be run. Else reads indptr.npy, indices.npy, weights.npy and roots.npy in FOLDER; the
last line printed is {"rates": steps per second of each trial}. A step is a vertex that a walk added.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.bench.asked import write_answer
from fastsample_dist.bench.peers import answer_trial, read_columns
from fastsample_dist.bench.timing import steady
from fastsample_dist.bench.walk.cases import CASES, STOP, P, Q, WalkCase
from fastsample_dist.graph.csc import CSCGraph

MOST_STEPS = 1000  # of a walk that ends by chance: what a package is given as its length


def peer_walker(peer: str, case: WalkCase, graph: CSCGraph, length: int, threads: int) -> Callable[[Tensor], Tensor]:
    """The peer's function of roots that returns walks [num_walks, vertices], -1 behind a walk's end.

    Raises:
      ImportError: the package is missing.
    """
    p_q = (P, Q) if case.name == "node2vec" else None
    torch.set_num_threads(threads)
    if peer == "dgl":
        from fastsample_dist.interop import dgl

        dgl.require_dgl("--baseline dgl")
        dgl.set_num_threads(threads)
        dgl.set_rng_seed(0)
        stop = STOP if case.one_root else None
        return dgl.walker(graph, MOST_STEPS if case.one_root else length, weighted=case.weighted, stop=stop, p_q=p_q)
    from fastsample_dist.interop import pyg

    return pyg.walker(graph, length, p_q=p_q or (1.0, 1.0))


def main(words: list[str]) -> None:
    """Try the package, or walk and write the rates."""
    if len(words) == 1:
        answer_trial(lambda graph: peer_walker(words[0], CASES["uniform"], graph, 1, 1))
        return
    peer, app, folder, (length, threads, trials, batch) = words[0], words[1], Path(words[2]), map(int, words[3:])
    case = CASES[app]
    walk = peer_walker(peer, case, read_columns(folder, weighted=case.weighted), length, threads)
    groups = torch.from_numpy(np.load(folder / "roots.npy")).split(batch)
    walk(groups[0])
    rates = []
    with steady():
        for _ in range(trials):
            seconds, steps = 0.0, 0
            for group in groups:
                start = time.perf_counter()
                walks = walk(group)
                seconds += time.perf_counter() - start
                steps += int((walks[:, 1:] >= 0).sum())
            rates.append(steps / seconds)
    write_answer({"rates": rates})  # peers.run_peer reads the last line


if __name__ == "__main__":
    main(sys.argv[1:])

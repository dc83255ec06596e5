"""Hit rates of every policy at every size, and the seconds that its scores take.

Presampled epochs, the oracle's and the run's are sampled by the same sampler; those of the run are numbered from 0 and
the presampled ones from 2^62 on, as at run time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor

from fastsample_dist.bench.cache import replay
from fastsample_dist.bench.cache.accesses import CacheOptions, Rank, Run
from fastsample_dist.features import policies
from fastsample_dist.graph import hotness

Scorer = Callable[[policies.Workload], Tensor]
ORACLE = "oracle"
SCORERS: dict[str, Scorer] = {
    "random": partial(policies.score, "random"),
    "degree": partial(policies.score, "degree"),
    "presample K=1": partial(policies.presample, epochs=1),
    "presample K=2": partial(policies.presample, epochs=2),
    "vip": partial(policies.score, "vip"),
    "presample 2 + 2 vip": partial(policies.score, "presample", presample_epochs=2),
    "auto": partial(policies.score, "auto"),
}
DYNAMIC = ("lookahead", "belady", "lru")


@dataclass
class Figures:
    """What was found of one policy.

    Attributes:
      hits: int64 [shares], over all ranks.
      score_s: seconds to score, per rank; empty where nothing is scored.
      score_cpu_s: processor seconds of the same, all threads together.
    """

    hits: np.ndarray
    score_s: list[float] = field(default_factory=list)
    score_cpu_s: list[float] = field(default_factory=list)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Note the seconds of the block."""
        begin, begin_cpu = time.perf_counter(), time.process_time()
        yield
        self.score_s.append(time.perf_counter() - begin)
        self.score_cpu_s.append(time.process_time() - begin_cpu)


@dataclass(frozen=True)
class Found:
    """All figures.

    Attributes:
      policies: by name, in the order of the table.
      input_rows, remote_rows: of the run, over all ranks and steps.
      num_batches: batches of the run that have seeds, over all ranks.
    """

    policies: dict[str, Figures]
    input_rows: int
    remote_rows: int
    num_batches: int

    def rates(self, name: str) -> list[float]:
        """Hit rate of a policy at every share."""
        return (self.policies[name].hits / max(1, self.remote_rows)).tolist()

    def of_oracle(self, name: str) -> list[float]:
        """Hits of a policy over those of the best static set, at every share."""
        best = self.policies[ORACLE].hits
        return (self.policies[name].hits / np.maximum(1, best)).tolist()

    def to_json(self) -> dict:
        """Everything as plain values for JSON."""
        batches = max(1, self.num_batches)
        return {
            "input_rows_per_step": self.input_rows / batches,
            "remote_rows_per_step": self.remote_rows / batches,
            "policies": [
                {
                    "policy": name,
                    "hit_rates": self.rates(name),
                    "of_oracle": self.of_oracle(name),
                    "score_s": figures.score_s,
                    "score_cpu_s": figures.score_cpu_s,
                }
                for name, figures in self.policies.items()
            ],
        }


def measure(run: Run, options: CacheOptions, progress: Callable[[str], object]) -> Found:
    """Score, sample the run and replay it, rank by rank."""
    names = (*SCORERS, ORACLE, f"lookahead {options.lookahead}", *DYNAMIC[1:])
    found = {name: Figures(np.zeros(len(options.shares), dtype=np.int64)) for name in names}
    inputs = remote = batches = 0
    for rank in run.ranks:
        progress(f"part {rank.part}: scores")
        scores = {name: _timed(found[name], scorer, rank) for name, scorer in SCORERS.items()}
        progress(f"part {rank.part}: {options.epochs} epochs")
        with found[ORACLE].timed():
            sampled = [
                list(rank.workload.sample(number, number * run.steps_per_epoch)) for number in range(options.epochs)
            ]
        epochs = [[nodes[rank.remote[nodes]] for nodes in epoch] for epoch in sampled]
        for name, hits in replay_rank(run, rank, options, scores, epochs).items():
            found[name].hits += hits
        inputs += sum(len(nodes) for epoch in sampled for nodes in epoch)
        remote += sum(len(nodes) for epoch in epochs for nodes in epoch)
        batches += options.epochs * rank.workload.num_batches
    return Found(found, inputs, remote, batches)


def replay_rank(
    run: Run, rank: Rank, options: CacheOptions, scores: dict[str, Tensor], epochs: replay.Epochs
) -> dict[str, list[int]]:
    """{policy: hits at every share} of one rank.

    Args:
      run: that it is one of.
      rank: with `remote`.
      options: shares and window.
      scores: of the static policies.
      epochs: remote input nodes of the run.
    """
    num_nodes, orig_ids = run.graph.num_nodes, hotness.original_ids(run.graph)
    visits = hotness.counts((nodes for steps in epochs for nodes in steps), num_nodes)
    slots = [int(share * num_nodes) for share in options.shares]
    orders = {
        name: hotness.hottest(values, orig_ids, max(slots), rank.remote)
        for name, values in {**scores, ORACLE: visits}.items()
    }
    found = {name: [replay.static_hits(visits, order, rows) for rows in slots] for name, order in orders.items()}
    every = hotness.hottest(scores["auto"], orig_ids, num_nodes, rank.remote)
    found[f"lookahead {options.lookahead}"] = [
        replay.lookahead_hits(epochs, every, orig_ids, rows, options.lookahead) for rows in slots
    ]
    found["belady"] = [replay.belady_hits(epochs, num_nodes, rows) for rows in slots]
    found["lru"] = [replay.lru_hits(epochs, num_nodes, rows) for rows in slots]
    return found


def _timed(figures: Figures, scorer: Scorer, rank: Rank) -> Tensor:
    with figures.timed():
        return scorer(rank.workload)

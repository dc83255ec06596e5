"""The measurement of `fastsample-bench models`: runs on every number of ranks, and the figures of every case.

A step of every contestant has as many seeds over all ranks, and DGL's one process has as many threads as all ranks
together. Parts of an epoch are medians over the timed epochs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.bench.graphs import GraphSource
from fastsample_dist.bench.models.cases import ModelCase
from fastsample_dist.bench.models.peer import PeerSettings
from fastsample_dist.bench.timing import quantiles
from fastsample_dist.pipeline.roles import Roles
from fastsample_dist.testing.jobs import RankJob, run_ranks

RANK_TASK = "fastsample_dist.bench.models.rank:models_rank"
OURS, DGL = "fastsample_dist", "dgl"
PARTS = ("sample_s", "fetch_s", "train_s")


@dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    """What is run.

    Attributes:
      source: the graph.
      cases: workloads.
      ranks: numbers of ranks.
      epochs: timed ones, after one warm-up epoch.
      batch_size: seeds per step, all ranks together.
      hidden: columns of a hidden row.
      dropout: of hidden rows.
      threads: per rank.
      cache_share: rows that a cache holds, as a share of all nodes.
      rng_seed: of everything drawn.
      has_peer: DGL runs beside.
      roles: that runs of so many ranks have as well; None: none.
      deadline_s: for the ranks of one run to end.
    Raises:
      ValueError: a batch that ranks cannot share equally; roles of another number of ranks.
    """

    source: GraphSource
    cases: tuple[ModelCase, ...]
    ranks: tuple[int, ...]
    epochs: int = 3
    batch_size: int = 1000
    hidden: int = 256
    dropout: float = 0.5
    threads: int = 1
    cache_share: float = 0.2
    rng_seed: int = 0
    has_peer: bool = False
    roles: Roles | None = None
    deadline_s: float = 3600.0

    def __post_init__(self) -> None:
        for number in self.ranks:
            if self.batch_size % number:
                raise ValueError(
                    f"--batch-size is {self.batch_size}, which {number} ranks cannot share equally; pass a multiple."
                )

        if self.roles is not None and self.roles.ranks not in self.ranks:
            raise ValueError(
                f"--roles {self.roles} are {self.roles.ranks} ranks, but --ranks is {','.join(map(str, self.ranks))}; "
                f"pass --ranks with {self.roles.ranks}."
            )

    @property
    def needs_weights(self) -> bool:
        """Whether a case draws by edge weights."""
        return any(case.is_weighted for case in self.cases)


def measure(options: ModelsOptions, folder: Path, progress: Callable[[str], object]) -> list[dict]:
    """Run every number of ranks.

    Args:
      options: what to run.
      folder: with what DGL reads, see `peer.write_task`.
      progress: called with a line about what is done next.
    Returns:
      Per number of ranks what `summarize` returns, joined.
    Raises:
      ValueError, RuntimeError: a run failed.
    """
    runs = []
    for number in options.ranks:
        path = options.source.parts(number, progress)
        progress(f"training with {number} rank(s)")
        results = run_ranks(_job(options, number, path, folder))
        runs += [summarize(found, number, options.threads) for found in results[0]["cases"]]
    return runs


def _job(options: ModelsOptions, number: int, path: Path, folder: Path) -> RankJob:
    drawing = {"hidden": options.hidden, "dropout": options.dropout, "rng_seed": options.rng_seed}
    peer = None
    if options.has_peer:
        peer = PeerSettings(
            folder=folder, threads=number * options.threads, batch_size=options.batch_size,
            answer_s=options.deadline_s, **drawing,
        )  # fmt: skip
    settings = {
        "path": str(path), "cases": [case.name for case in options.cases], "epochs": options.epochs,
        "batch_size": options.batch_size // number, "cache_share": options.cache_share, "peer": peer,
        "roles": str(options.roles) if options.roles and options.roles.ranks == number else None, **drawing,
    }  # fmt: skip
    return RankJob(
        task=RANK_TASK, settings=[settings] * number, deadline_s=options.deadline_s, timeout_s=options.deadline_s,
        threads=options.threads,
    )  # fmt: skip


def summarize(found: dict, ranks: int, threads: int) -> dict:
    """The figures of one case.

    Args:
      found: an entry of what `models_rank` returned on rank 0.
      ranks: how many.
      threads: per rank.
    Returns:
      {"case", "ranks", "steps", "cache", "contestants": [{"name", "processes", "threads": of each, "epoch_s":
      {"median", "p10", "p90"}, "sample_s", "fetch_s", "train_s", "epochs_s": each timed epoch, "loss": of every epoch,
      "val_acc", "test_acc", "ratio": its / ours}]}.
    """
    contestants = [
        _figures(f"{OURS}, {way}" if way else OURS, ranks, threads, figures) for way, figures in found["ours"].items()
    ]
    if found["dgl"] is not None:
        contestants.append(_figures(DGL, 1, ranks * threads, found["dgl"]))
    for one in contestants:
        one["ratio"] = one["epoch_s"]["median"] / contestants[0]["epoch_s"]["median"]
    shared = {name: found[name] for name in ("case", "steps", "cache")}
    return {**shared, "ranks": ranks, "contestants": contestants}


def _figures(name: str, processes: int, threads: int, found: dict) -> dict:
    epochs: Sequence[dict] = found["epochs"]
    timed = epochs[1:]
    seconds = [epoch["seconds"] for epoch in timed]
    return {
        "name": name, "processes": processes, "threads": threads, "epoch_s": quantiles(seconds), "epochs_s": seconds,
        **{part: statistics.median(epoch[part] for epoch in timed) for part in PARTS},
        "loss": [epoch["loss"] for epoch in epochs], "val_acc": found["val_acc"], "test_acc": found["test_acc"],
    }  # fmt: skip

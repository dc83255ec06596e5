"""The measurement of `fastsample-bench roles`: runs on every number of ranks, and predictions from the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from fastsample_dist.bench.graphs import GraphSource
from fastsample_dist.bench.roles.rank import roles_of, split_ways
from fastsample_dist.bench.timing import quantiles
from fastsample_dist.pipeline.roles import (
    ROLES_AUTO,
    ROLES_NONE,
    EpochShape,
    Roles,
    StageTimes,
    choose_roles,
    predict_factored,
    predict_time_sharing,
)
from fastsample_dist.testing.jobs import RankJob, run_ranks

RANK_TASK = "fastsample_dist.bench.roles.rank:roles_rank"
LOSS_TOLERANCE = 1e-3  # of time sharing, whose gradients add up in another order


@dataclass(frozen=True, kw_only=True)
class RolesOptions:
    """What is run.

    Attributes:
      source: the graph.
      ranks: numbers of ranks, each >= 2.
      settings: of a rank but for path and ways, see roles_rank.
      switching: with samplers that train at the end, without, or both.
      threads: per rank.
      mpirun: program that starts the ranks; None: torch.distributed.
      deadline_s: for the ranks of one run to end.
    """

    source: GraphSource
    ranks: tuple[int, ...]
    settings: dict
    switching: tuple[bool, ...] = (True, False)
    threads: int = 1
    mpirun: str | None = None
    deadline_s: float = 1800.0


def measure(options: RolesOptions, progress: Callable[[str], object]) -> list[dict]:
    """Run every number of ranks; returns what `summarize` returns for each.

    Args:
      options: what to run.
      progress: called with a line about what is done next.
    Raises:
      ValueError, RuntimeError: a run failed.
    """
    runs = []
    for number in options.ranks:
        path = options.source.parts(number, progress)
        progress(f"training with {number} ranks in all roles")
        ways = [ROLES_NONE, *split_ways(number, options.switching), ROLES_AUTO]
        settings = [{"path": str(path), "ways": ways, **options.settings}] * number
        job = RankJob(task=RANK_TASK, settings=settings, deadline_s=options.deadline_s, threads=options.threads)
        results = run_ranks(job, mpirun=options.mpirun)
        runs.append(summarize(results, options.settings["staleness"], options.settings["device"] != "cpu"))
    return runs


def summarize(results: Sequence[dict], staleness: int, on_gpus: bool = False) -> dict:
    """The figures of one number of ranks.

    Args:
      results: what roles_rank returned, by rank.
      staleness: of the splits.
      on_gpus: ranks that only train have a larger cache, so they fetch in a time of their own.
    Returns:
      {"ranks", "graph", "tasks", "times": StageTimes measured in this run, "alone": a rank's time alone / beside the
      others, "paper": samplers by the paper's rule,
      "predicted_best": a way, "best", "auto": {"roles", "median_s", "is_best": within the best way's p10-p90 or below},
      "differences": ways with another loss, "ways": [{"name", "roles", "predicted_s", "error": predicted / measured -
      1, "epoch_s": {"median", "p10", "p90"}, "epochs_s", "loss", "stood_by": tasks an epoch, means, "cache_rows":
      the most of any rank, "hit_rate": over all ranks; both None without a cache}]}.
    """
    tasks = results[0]["virtual_ranks"] * results[0]["steps"]
    ranks, cores = len(results), results[0]["cores"]
    shape = EpochShape(tasks, cores, results[0]["virtual_ranks"], staleness)
    measured = stage_times(results, on_gpus)
    times = StageTimes(**{name: s and s * cores / ranks for name, s in asdict(measured).items()})  # of a rank alone
    times = replace(times, sum_s=measured.sum_s, skew_s=measured.skew_s)
    names = list(results[0]["ways"])
    ways = [_figures(results, name, _predict(name, times, shape, ranks)) for name in names if name != ROLES_AUTO]
    best = min(ways, key=lambda way: way["epoch_s"]["median"])
    choice = choose_roles(times, shape, ranks)
    auto = _figures(results, ROLES_AUTO, None)
    median_s = auto["epoch_s"]["median"]
    return {
        "ranks": ranks, "graph": results[0]["graph"], "tasks": tasks, "times": asdict(measured),
        "alone": cores / ranks, "paper": choice.paper,
        "predicted_best": str(choice.chosen or ROLES_NONE), "best": best["name"],
        "auto": {"roles": auto["roles"], "median_s": median_s, "is_best": median_s <= best["epoch_s"]["p90"]},
        "differences": differences([*ways, auto], staleness), "ways": [*ways, auto],
    }  # fmt: skip


def stage_times(results: Sequence[dict], on_gpus: bool = False) -> StageTimes:
    """Medians over the timed epochs: stages of time sharing, per task, and the copy into the queue of samplers. An
    update is made once in a step, however many tasks that has, so it is taken out of training, by the rehearsal's
    figure (of a rank alone). Summing gradients takes what that found a sum to take; the rest of it is waiting for the
    slowest rank. On GPUs fetching is measured on ranks that only train, too.
    """
    steps = results[0]["steps"]
    epochs = results[0]["ways"][ROLES_NONE]["epochs"][1:]  # their seconds are means over ranks
    medians = {
        name: statistics.median(epoch[name] for epoch in epochs) / steps
        for name in ("sample_s", "fetch_s", "compute_s", "gradients_s")
    }
    of_roles = [
        epoch
        for result in results
        for way in result["ways"].values()
        for epoch in way["epochs"][1:]
        if "sampled" in epoch
    ]
    copies = [epoch["hand_over_s"] / epoch["sampled"] for epoch in of_roles if epoch["sampled"]]
    trained_only = [epoch for epoch in of_roles if epoch["trained"] and not epoch["sampled"]]
    fetches = [epoch["own_fetch_s"] / epoch["trained"] for epoch in trained_only]
    update_s = min(results[0]["update_s"] * len(results) / results[0]["cores"], medians["compute_s"])
    sum_s = min(results[0]["sum_s"], medians["gradients_s"])
    return StageTimes(
        medians["sample_s"], medians["fetch_s"], medians["compute_s"] - update_s,
        fetch_factored_s=statistics.median(fetches) if on_gpus and fetches else None,
        handover_s=statistics.median(copies) if copies else 0.0, update_s=update_s, sum_s=sum_s,
        skew_s=medians["gradients_s"] - sum_s,
    )  # fmt: skip


def differences(ways: Sequence[dict], staleness: int = 0) -> list[str]:
    """Ways with roles whose losses are not those of the first one, and time sharing where it is far from them. With a
    staleness, which neither time sharing nor "auto" has, the splits alone are compared.
    """
    if staleness > 0:
        ways = [way for way in ways if way["name"] not in (ROLES_NONE, ROLES_AUTO)]
    first = next((way["loss"] for way in ways if way["roles"] != ROLES_NONE), None)
    if first is None:
        return []
    return [
        way["name"]
        for way in ways
        if (way["loss"] != first if way["roles"] != ROLES_NONE else _apart(way["loss"], first) > LOSS_TOLERANCE)
    ]


def _apart(losses: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(one / other - 1) for one, other in zip(losses, others, strict=True))


def _predict(name: str, times: StageTimes, shape: EpochShape, ranks: int) -> float:
    roles = roles_of(name)
    if not isinstance(roles, Roles):
        return predict_time_sharing(times, shape, ranks)
    return predict_factored(times, replace(shape, switching=roles.switching), roles.samplers, roles.trainers)


def _figures(results: Sequence[dict], name: str, predicted_s: float | None) -> dict:
    of_ranks = [result["ways"][name] for result in results]
    timed = of_ranks[0]["epochs"][1:]
    seconds = [epoch["seconds"] for epoch in timed]
    caches = [rank["cache"] for rank in of_ranks if rank["cache"] is not None]
    inputs = [sum(cache[name] for name in ("own", "neighbour", "cached", "kept", "exchanged")) for cache in caches]
    stood_by = [epoch.get("stood_by", 0) for rank in of_ranks for epoch in rank["epochs"][1:]]
    return {
        "name": name, "roles": of_ranks[0]["roles"], "predicted_s": predicted_s,
        "error": None if predicted_s is None else predicted_s / statistics.median(seconds) - 1,
        "epoch_s": quantiles(seconds), "epochs_s": seconds, "loss": [epoch["loss"] for epoch in of_ranks[0]["epochs"]],
        "stood_by": sum(stood_by) / len(timed),
        "cache_rows": max((cache["cache_rows"] for cache in caches), default=None),
        "hit_rate": sum(cache["cached"] for cache in caches) / sum(inputs) if caches else None,
    }  # fmt: skip

"""The measurement of `fastsample-bench features`: runs on every number of ranks, and the figures of each way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastsample_dist.bench.features.rank import OWN
from fastsample_dist.bench.graphs import GraphSource
from fastsample_dist.bench.timing import spread
from fastsample_dist.testing.jobs import RankJob, run_ranks

RANK_TASK = "fastsample_dist.bench.features.rank:features_rank"


@dataclass(frozen=True, kw_only=True)
class FeaturesOptions:
    """What is run.

    Attributes:
      source: the graph.
      ranks: numbers of ranks.
      settings: of a rank but for the path, see features_rank.
      threads: intra-op threads per rank.
      mpirun: program that starts the ranks; None: torch.distributed.
      deadline_s: for the ranks of one run to end.
    """

    source: GraphSource
    ranks: tuple[int, ...]
    settings: dict
    threads: int = 1
    mpirun: str | None = None
    deadline_s: float = 1800.0


def measure(options: FeaturesOptions, progress: Callable[[str], object]) -> list[dict]:
    """Run every number of ranks; returns what `summarize` returns for each.

    Args:
      options: what to run.
      progress: called with a line about what is done next.
    Raises:
      ValueError, RuntimeError: a run failed.
    """
    runs = []
    for num_ranks in options.ranks:
        parts = options.source.parts(num_ranks, progress)
        progress(f"fetching with {num_ranks} rank(s)")
        settings = [{"path": str(parts), **options.settings}] * num_ranks
        job = RankJob(task=RANK_TASK, settings=settings, deadline_s=options.deadline_s, threads=options.threads)
        runs.append(summarize(run_ranks(job, mpirun=options.mpirun)))
    return runs


def summarize(results: Sequence[dict]) -> dict:
    """The figures of one number of ranks.

    Args:
      results: what features_rank returned, by rank.
    Returns:
      {"ranks", "graph", "row_bytes", "inputs", "remote": rows of a step, means over ranks, "differences": of all ranks,
      "ways": {name: {"wall_ms": spread over steps of the slowest rank, "cpu_ms": spread over repeats of a rank's mean,
      per step, "ratio_to_own": of the median walls}}}.
    """
    ways = {name: _figures([result["ways"][name] for result in results]) for name in results[0]["ways"]}
    for figures in ways.values():
        figures["ratio_to_own"] = figures["wall_ms"]["median"] / ways[OWN]["wall_ms"]["median"]
    return {
        "ranks": len(results), "graph": results[0]["graph"], "row_bytes": results[0]["row_bytes"],
        **{name: sum(result[name] for result in results) / len(results) for name in ("inputs", "remote")},
        "differences": sorted({name for result in results for name in result["differences"]}), "ways": ways,
    }  # fmt: skip


def _figures(of_ranks: Sequence[dict]) -> dict:
    walls = [
        1e3 * max(of_step)
        for of_repeat in zip(*(rank["walls_s"] for rank in of_ranks), strict=True)
        for of_step in zip(*of_repeat, strict=True)
    ]
    steps = len(of_ranks[0]["walls_s"][0])
    cpu = [
        1e3 * sum(repeat) / len(repeat) / steps for repeat in zip(*(rank["cpu_s"] for rank in of_ranks), strict=True)
    ]
    return {"wall_ms": spread(walls), "cpu_ms": spread(cpu)}

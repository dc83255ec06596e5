"""The measurement of `fastsample-bench epoch`: runs, checks, and the figures of each configuration.

For every number of ranks: start them (here, or on hosts in namespaces), let them train epochs of {vanilla, hybrid} x
{prefetch depths} in turn (bench/epoch/rank.py), demand that the losses are equal, and take medians over the timed
epochs. A step's time is split into
    sample, fetch   making the batch; with prefetching in a second thread, beside the rest
    compute         forward, backward, optimizer
    gradients       waiting for the other ranks' gradients after this rank's own backward pass
    idle            the rest: with prefetching waiting for the next batch, otherwise the loop around the parts
sample and fetch contain the waiting for the other ranks in their exchanges. Beside them stands the floor
(bench/epoch/floor.py): the matrix products alone, and the sums of gradients alone, in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.bench.epoch.namespaces import namespace_hosts
from fastsample_dist.bench.epoch.network_model import (
    MACHINES,
    BatchWork,
    Host,
    Measured,
    epoch_s,
    mean_share,
    steps_of,
)
from fastsample_dist.bench.graphs import GraphSource
from fastsample_dist.graph.network import Network
from fastsample_dist.testing.jobs import RankJob, run_ranks
from fastsample_dist.train.metrics import PAYLOAD_PURPOSES, payload_exchanges

RANK_TASK = "fastsample_dist.bench.epoch.rank:epoch_rank"
NETWORK, PROCESSOR = "network", "processor"  # of measured messages
MEASURED_BESIDE = ("messages", "batches", "training_s")  # what a rank measures beside its epochs
TIMES = ("sample_s", "fetch_s", "compute_s", "gradients_s")


@dataclass(frozen=True, kw_only=True)
class EpochOptions:
    """What is run.

    Attributes:
      source: the graph.
      ranks: numbers of ranks.
      configurations: (scheme, prefetch) pairs.
      training: epochs, batch_size, fanouts, hidden, dropout, lr, precision, rng_seed, transport, exchange.
      threads: intra-op threads per rank.
      mpirun: program that starts the ranks; None: torch.distributed.
      namespaces: every rank on a host of its own.
      rate: of the hosts' links.
      deadline_s: for the ranks of one run to end.
      timeout_s: of one collective.
    """

    source: GraphSource
    ranks: tuple[int, ...]
    configurations: tuple[tuple[str, int], ...]
    training: dict
    threads: int = 1
    mpirun: str | None = None
    namespaces: bool = False
    rate: str | None = None
    deadline_s: float = 3600.0
    timeout_s: float = 600.0


def measure(options: EpochOptions, progress: Callable[[str], object]) -> list[dict]:
    """Run every number of ranks; returns what `summarize` returns for each.

    Args:
      options: what to run.
      progress: called with a line about what is done next.
    Raises:
      ValueError, RuntimeError: a run failed, or configurations disagree in their losses.
    """
    runs = []
    for num_ranks in options.ranks:
        parts = options.source.parts(num_ranks, progress)
        progress(f"training with {num_ranks} rank(s)")
        runs.append(summarize(_run(options, num_ranks, parts), num_ranks))
    return runs


def rank_settings(options: EpochOptions, path: Path) -> dict:
    """The settings of a rank, see epoch_rank."""
    return {"path": str(path), "configurations": options.configurations, **options.training}


def _run(options: EpochOptions, num_ranks: int, parts: Path) -> list[dict]:
    def job(path: Path) -> RankJob:
        return RankJob(
            task=RANK_TASK, settings=[rank_settings(options, path)] * num_ranks, deadline_s=options.deadline_s,
            timeout_s=options.timeout_s, threads=options.threads,
        )  # fmt: skip

    if not options.namespaces:
        return run_ranks(job(parts), mpirun=options.mpirun)
    with namespace_hosts(parts, num_ranks, rate=options.rate, work=options.source.work) as made:
        return run_ranks(job(made.data), made.hosts)


def summarize(results: Sequence[dict], num_ranks: int) -> dict:
    """The figures of one number of ranks.

    Args:
      results: what epoch_rank returned, by rank.
      num_ranks: how many.
    Returns:
      {"ranks", "steps", "num_seeds", "first_step_s": slowest rank, "graph", "transport", "messages", "batches",
      "training_s": as measured (batches: rank 0's), "largest": of a step's batches, the products of the largest over
      the mean, "floor_s", "floor_cpu_s", "all_reduce_s" (medians over timed epochs of the means over ranks),
      "configurations": [{"scheme", "prefetch", "loss": per epoch, "epoch_s", "sample_s",
      "fetch_s", "compute_s", "gradients_s", "idle_s" (medians over timed epochs), "epochs_s": each timed epoch, "comm":
      {purpose: {"calls", "bytes_sent"}} per step and rank, "remote_share": of input rows, "exchanges": payload
      exchanges per step, "ratio_to_vanilla", "ratio_to_floor": epoch_s / (floor_s + all_reduce_s)}]}.
    Raises:
      RuntimeError: the losses of two configurations differ.
    """
    steps = results[0]["steps"]
    configurations = [
        _figures([result["configurations"][number] for result in results], steps)
        for number in range(len(results[0]["configurations"]))
    ]
    check_losses(configurations, num_ranks)
    floor = _floor([result["floor"] for result in results])
    vanilla = {entry["prefetch"]: entry["epoch_s"] for entry in configurations if entry["scheme"] == "vanilla"}
    base = vanilla.get(0, next(iter(vanilla.values()), None))
    for entry in configurations:
        entry["ratio_to_vanilla"] = None if base is None else base / entry["epoch_s"]
        entry["ratio_to_floor"] = entry["epoch_s"] / (floor["floor_s"] + floor["all_reduce_s"])
    return {
        "ranks": num_ranks, "steps": steps, "num_seeds": sum(result["num_seeds"] for result in results),
        "first_step_s": max(result["first_step_s"] for result in results), "graph": results[0]["graph"],
        "transport": results[0]["transport"], **{name: results[0][name] for name in MEASURED_BESIDE}, **floor,
        "largest": _largest([result["products"] for result in results]),
        "configurations": configurations,
    }  # fmt: skip


def _floor(of_ranks: Sequence[Sequence[dict]]) -> dict[str, float]:
    """Medians over epochs of the means over ranks."""
    epochs = list(zip(*of_ranks, strict=True))
    return {
        name: statistics.median(statistics.fmean(rank[name] for rank in epoch) for epoch in epochs)
        for name in of_ranks[0][0]
    }


def _largest(of_ranks: Sequence[Sequence[float]]) -> float:
    """The mean over steps of the largest number, over that of all numbers."""
    steps = list(zip(*of_ranks, strict=True))
    return sum(map(max, steps)) / sum(map(statistics.fmean, steps))


def check_losses(configurations: Sequence[dict], num_ranks: int) -> None:
    """All configurations trained on the same batches, so every epoch's loss must be the same number.

    Raises:
      RuntimeError: with the first epoch that differs.
    """
    first = configurations[0]
    for other in configurations[1:]:
        for epoch, (expected, found) in enumerate(zip(first["loss"], other["loss"], strict=True)):
            if found != expected:
                raise RuntimeError(
                    f"{num_ranks} ranks, epoch {epoch}: the loss is {found!r} with {label(other)} but {expected!r} "
                    f"with {label(first)}; the batches or the arithmetic differ, run fastsample-verify."
                )


def label(configuration: dict) -> str:
    """What a configuration is called in tables."""
    return f"{configuration['scheme']}, prefetch {configuration['prefetch']}"


def _figures(of_ranks: Sequence[dict], steps: int) -> dict:
    """One configuration; seconds are the same on all ranks (means), calls and bytes are averaged over ranks."""
    timed = of_ranks[0]["epochs"][1:]
    medians = {name: statistics.median(epoch[name] for epoch in timed) for name in ("seconds", *TIMES)}
    beside = ("sample_s", "fetch_s") if of_ranks[0]["prefetch"] else ()
    idle_s = statistics.median(
        epoch["seconds"] - sum(epoch[name] for name in TIMES if name not in beside) for epoch in timed
    )
    comm: dict[str, dict[str, float]] = {}
    counted = [epoch["comm"] for rank in of_ranks for epoch in rank["epochs"][1:]]
    for purpose in sorted({purpose for stats in counted for purpose in stats}):
        comm[purpose] = {
            name: sum(stats.get(purpose, {}).get(name, 0) for stats in counted) / len(counted) / steps
            for name in ("calls", "bytes_sent")
        }
    return {
        "scheme": of_ranks[0]["scheme"], "prefetch": of_ranks[0]["prefetch"],
        "loss": [epoch["loss"] for epoch in of_ranks[0]["epochs"]], "epoch_s": medians.pop("seconds"), **medians,
        "idle_s": max(0.0, idle_s), "epochs_s": [epoch["seconds"] for epoch in timed], "comm": comm,
        "remote_share": statistics.fmean(rank["remote_share"] for rank in of_ranks),
        "exchanges": sum(payload_exchanges(stats) for stats in counted) / len(counted) / steps,
    }  # fmt: skip


def check_model(ranks: Sequence[int], configurations: Sequence[tuple[str, int]]) -> None:
    """Refuse runs from which no network can be modelled.

    Raises:
      ValueError: not both one rank and several, or no hybrid scheme without prefetching.
    """
    if min(ranks) > 1 or max(ranks) < 2 or ("hybrid", 0) not in configurations:
        found = ", ".join(f"{scheme} {depth}" for scheme, depth in configurations)
        raise ValueError(
            "--model-network takes a step's work from 1 rank and its bytes from several, hybrid with prefetch 0; got "
            f"ranks {', '.join(map(str, ranks))} and {found}."
        )


def messages_of_runs(runs: Sequence[dict], what: str) -> Network:
    """What messages cost of the "network" or of a "processor", as measured on the fewest ranks that are several."""
    found = min((run for run in runs if run["ranks"] > 1), key=lambda run: run["ranks"])["messages"][what]
    return Network(found["alpha_s"], found["beta_bytes_s"])


def host_of(run: dict, alone: dict, threads_per_core: float) -> Host:
    """What the ranks of a run have of their machine.

    Args:
      run: of several ranks.
      alone: of one rank on the same machine.
      threads_per_core: of a rank.
    """
    crowding = run["training_s"] / alone["training_s"]
    return Host(crowding=crowding, busy=min(1.0, run["ranks"] * threads_per_core), largest=run["largest"])


def model_network(runs: Sequence[dict], network: Network, batch_size: int, threads_per_core: float) -> list[dict]:
    """Predicted seconds per epoch on 2 to 64 machines, and predicted beside measured steps; see network_model.

    Args:
      runs: what `measure` returned, with runs that `check_model` accepts.
      network: the network.
      batch_size: seeds per rank and step.
      threads_per_core: of a rank.
    Returns:
      [{"scheme", "prefetch", "epoch_s": {machines: seconds}, "steps": [{"ranks", "predicted_s", "measured_s"}]}]; the
      steps are those of the runs on several ranks.
    """
    few, most = min(runs, key=lambda run: run["ranks"]), max(runs, key=lambda run: run["ranks"])
    local = [entry for entry in few["configurations"] if (entry["scheme"], entry["prefetch"]) == ("hybrid", 0)]
    assert few["ranks"] == 1 and most["ranks"] >= 2 and local, "see check_model"
    batches, predictions = [BatchWork(**batch) for batch in few["batches"]], []
    for number, entry in enumerate(most["configurations"]):
        alone = mean_share(batches, steps_of(few["num_seeds"], 1, batch_size))
        counted = mean_share(batches, steps_of(most["num_seeds"], most["ranks"], batch_size))
        measured = Measured(
            sample_s=local[0]["sample_s"] / few["steps"] / alone.inputs,
            fetch_s=local[0]["fetch_s"] / few["steps"] / alone.inputs,
            compute_s=local[0]["compute_s"] / few["steps"] / alone.products,
            comm=_of_full_batches(entry["comm"], counted.inputs), remote_share=entry["remote_share"],
            num_ranks=most["ranks"], processor=messages_of_runs(runs, PROCESSOR), num_seeds=most["num_seeds"],
            batch_size=batch_size, batches=batches,
        )  # fmt: skip
        prefetch = entry["prefetch"]
        steps = [
            {
                "ranks": run["ranks"],
                "predicted_s": epoch_s(measured, network, run["ranks"], prefetch, host_of(run, few, threads_per_core))
                / run["steps"],
                "measured_s": run["configurations"][number]["epoch_s"] / run["steps"],
            }
            for run in runs
            if run["ranks"] > 1
        ]
        unshared = Host(busy=min(1.0, threads_per_core), largest=most["largest"])
        seconds = {machines: epoch_s(measured, network, machines, prefetch, unshared) for machines in MACHINES}
        predictions.append({"scheme": entry["scheme"], "prefetch": prefetch, "epoch_s": seconds, "steps": steps})
    return predictions


def _of_full_batches(comm: dict[str, dict[str, float]], inputs: float) -> dict[str, dict[str, float]]:
    """Calls and bytes of steps whose batches have `inputs` of a full one's input rows, as if all were full."""
    return {
        purpose: {**counted, "bytes_sent": counted["bytes_sent"] / (inputs if purpose in PAYLOAD_PURPOSES else 1.0)}
        for purpose, counted in comm.items()
    }

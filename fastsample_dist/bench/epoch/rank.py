"""What a rank of `fastsample-bench epoch` does: train epochs of every configuration in turn.

A configuration is a scheme and a prefetch depth. Each has its own loader and its own model with the same initial
parameters; epoch e of all configurations is run before epoch e + 1 of any, so that slow changes of the machine affect
all of them alike. After each timed epoch comes its floor (bench/epoch/floor.py), once, because all configurations have
the same batches. Collectives are counted per configuration.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F

from fastsample_dist.bench.epoch.floor import EpochFloor, num_products
from fastsample_dist.bench.graphs import load_classes
from fastsample_dist.comm.base import Communicator, RowPlan
from fastsample_dist.comm.context import DistContext
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.train.metrics import CommTally
from fastsample_dist.train.models import GraphSAGE, layer_widths
from fastsample_dist.train.trainer import Trainer

MESSAGE_BYTES, EXCHANGES = 4 << 20, 9  # of measured_network; the least bytes
SMALLEST_BATCH, BATCHES, TRAININGS = 16, 4, 7  # of measured_batches, each size; of crowded_training


def epoch_rank(ctx: DistContext, settings: dict, folder: Path | None = None) -> dict:
    """Train. Collective: every rank must call this.

    Args:
      ctx: the rank's context.
      settings: {"path", "configurations": [[scheme, prefetch], ...], "epochs": timed ones, after one warm-up epoch,
        "batch_size", "fanouts", "hidden", "dropout", "lr", "precision", "rng_seed", "transport", "exchange"}.
      folder: not used.
    Returns:
      {"num_seeds": own, "steps": per epoch, "transport", "first_step_s": from the start of this process, "graph":
      {"name", "num_nodes", "num_edges"}, "floor": FloorTime of each timed epoch, "messages": measured_network's,
      "batches": measured_batches', "products": of the last epoch's steps, "training_s": crowded_training's,
      "configurations": [{"scheme", "prefetch", "remote_share": of this rank's input rows, "epochs": [EpochStats and
      "comm" of this rank]}]}; the first epoch is the warm-up.
    """
    data = load_classes(settings["path"], ctx)
    runs = [_Configuration(data, settings, scheme, prefetch) for scheme, prefetch in settings["configurations"]]
    first_step, floors = _FirstStep(), []
    floor = _floor(data, settings)
    for epoch in range(1 + settings["epochs"]):
        for run in runs:
            run.run_epoch(first_step)
        if epoch > 0:
            floors.append(asdict(floor.measure(runs[0].steps, ctx.comm)))
    for run in runs:
        run.loader.close()
    messages = measured_network(ctx.comm)
    training_s = crowded_training(ctx.comm, data, settings, runs[0].first_batch)
    manifest = data.manifest
    return {
        "num_seeds": data.split("train").numel(),
        "steps": len(runs[0].loader),
        "transport": runs[0].loader.transport,
        "first_step_s": first_step.seconds,
        "graph": {"name": manifest.name, "num_nodes": manifest.num_nodes, "num_edges": manifest.num_edges},
        "floor": floors,
        "messages": messages,
        "batches": measured_batches(data, settings),
        "products": [num_products(_widths(data, settings), layers) for layers in runs[0].steps],
        "training_s": training_s,
        "configurations": [
            {
                "scheme": run.loader.options.scheme,
                "prefetch": run.loader.options.prefetch,
                "remote_share": 1 - run.loader.rows.own / max(1, run.loader.rows.inputs),
                "epochs": run.epochs,
            }
            for run in runs
        ],
    }


def _floor(data: DistData, settings: dict) -> EpochFloor:
    model = _model(data, settings)
    dtype = torch.bfloat16 if settings["precision"] == "bf16" else torch.float32
    return EpochFloor(_widths(data, settings), dtype, sum(parameter.numel() for parameter in model.parameters()))


def _widths(data: DistData, settings: dict) -> list[tuple[int, int]]:
    return layer_widths(data.feature_dim, settings["hidden"], data.num_classes, len(settings["fanouts"]))


def _model(data: DistData, settings: dict) -> GraphSAGE:
    torch.manual_seed(settings["rng_seed"])
    num_layers = len(settings["fanouts"])
    return GraphSAGE(data.feature_dim, settings["hidden"], data.num_classes, num_layers, settings["dropout"])


def measured_network(comm: Communicator) -> dict[str, dict[str, float]] | None:
    """What messages between the ranks cost as a program sees it, and what they take of a processor: {"network",
    "processor": {"alpha_s", "beta_bytes_s"}}; None for one rank.

    Collective: every rank must call this, after its epochs. Exchanges of 8 bytes with every other rank, and of as many
    as `comm` has sent it rows in a step (MESSAGE_BYTES if these are more): the first is alpha for every other rank, the
    difference is bytes over beta. Of the network they are medians of the slowest rank's time, with the work of sockets
    and copies; of the processor medians of the ranks' mean processor time.
    """
    if comm.world_size == 1:
        return None
    others, sent = comm.world_size - 1, comm.stats().get("feature_rows", {"calls": 0, "bytes_sent": 0})
    usual = sent["bytes_sent"] // max(1, sent["calls"] * others)
    most = max(MESSAGE_BYTES, int(comm.all_reduce(torch.tensor([usual]), op="max", purpose="benchmark")))
    small, large = (_exchange_times(comm, num_bytes) for num_bytes in (8, most))
    return {
        name: {"alpha_s": small[name] / others, "beta_bytes_s": others * most / max(large[name] - small[name], 1e-9)}
        for name in small
    }


def _exchange_times(comm: Communicator, num_bytes: int) -> dict[str, float]:
    """Seconds of an exchange of so many bytes with every other rank, {"network", "processor"}."""
    counts = [0 if peer == comm.rank else num_bytes for peer in range(comm.world_size)]
    plan, rows = RowPlan(counts, counts, num_bytes), torch.zeros(sum(counts), dtype=torch.uint8)
    seconds, work = [], []
    for _ in range(1 + EXCHANGES):
        comm.barrier(purpose="benchmark")
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        comm.exchange_rows(rows, plan, purpose="benchmark")
        seconds.append(time.perf_counter() - begin_s)
        work.append(time.process_time() - begin_cpu_s)
    slowest = comm.all_reduce(torch.tensor(seconds[1:]), op="max", purpose="benchmark")
    summed = comm.all_reduce(torch.tensor(work[1:]), purpose="benchmark")
    return {"network": float(slowest.median()), "processor": float(summed.median()) / comm.world_size}


def measured_batches(data: DistData, settings: dict) -> list[dict[str, float]]:
    """What batches of this rank's seeds have to do: {"seeds", "inputs", "products"} of full ones, then of half as many
    seeds, a quarter, ...; means over a few of each size.
    """
    seeds = data.split("train")
    seeds = seeds[torch.randperm(seeds.numel(), generator=torch.Generator().manual_seed(settings["rng_seed"]))]
    sampler = NeighborSampler(data.graph, settings["fanouts"], rng_seed=settings["rng_seed"])
    widths, size, found = _widths(data, settings), min(settings["batch_size"], seeds.numel()), []
    while size > 0 and (not found or size >= SMALLEST_BATCH):
        batches = [sampler.sample(some, step) for step, some in enumerate(seeds.split(size)[:BATCHES])]
        batches = [batch for batch in batches if batch.seeds.numel() == size]
        products = [num_products(widths, [mfg.num_dst for mfg in batch.mfgs]) for batch in batches]
        inputs = [batch.input_nodes.numel() for batch in batches]
        found.append({
            "seeds": float(size), "inputs": sum(inputs) / len(batches), "products": sum(products) / len(batches),
        })  # fmt: skip
        size //= 2
    return found


def crowded_training(comm: Communicator, data: DistData, settings: dict, batch: MiniBatch) -> float:
    """Seconds that the slowest rank takes to train a batch that it has, by its matrix products, when all do so at once;
    a median. A rank without seeds is none of them.

    Collective: every rank must call this.
    """
    model, seconds, is_bf16 = _model(data, settings), [], settings["precision"] == "bf16"
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    features = torch.full((batch.input_nodes.numel(), data.feature_dim), 2.0**-5, dtype=dtype)
    products = num_products(_widths(data, settings), [mfg.num_dst for mfg in batch.mfgs])
    for _ in range(1 + TRAININGS):
        comm.barrier(purpose="benchmark")
        begin_s = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            losses = F.cross_entropy(model(batch.mfgs, features).float(), batch.labels, reduction="sum")
        losses.backward()
        seconds.append((time.perf_counter() - begin_s) / products if products else 0.0)
    return float(comm.all_reduce(torch.tensor(seconds[1:]), op="max", purpose="benchmark").median())


class _FirstStep:
    """How long after the start of this process its first training step was done.

    Attributes:
      seconds: 0 before that.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def take(self) -> None:
        """Called after steps; the first call counts."""
        self.seconds = self.seconds or time.time() - psutil.Process(os.getpid()).create_time()


class _Configuration:
    """One scheme with one prefetch depth."""

    def __init__(self, data: DistData, settings: dict, scheme: str, prefetch: int) -> None:
        precision = settings["precision"]
        self.loader = DistLoader(
            data, settings["fanouts"], settings["batch_size"], scheme=scheme, prefetch=prefetch,
            rng_seed=settings["rng_seed"], transport=settings["transport"], exchange=settings["exchange"],
            feature_dtype=torch.bfloat16 if precision == "bf16" else None,
        )  # fmt: skip
        model = _model(data, settings)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
        self._trainer = Trainer(model, optimizer, data.ctx, precision=precision)
        self._comm = data.ctx.comm
        self.epochs: list[dict] = []
        self.steps: list[list[int]] = []  # of the last epoch: destinations per layer
        self.first_batch: MiniBatch | None = None  # of it

    def run_epoch(self, first_step: _FirstStep) -> None:
        """One epoch, timed and counted. Collective: every rank must call this."""
        self._comm.barrier(purpose="benchmark")  # no rank is still busy with the configuration before
        self.steps, self.first_batch = [], None

        def after_step(batch: MiniBatch) -> None:
            first_step.take()
            self.first_batch = self.first_batch or batch
            self.steps.append([mfg.num_dst for mfg in batch.mfgs])

        with CommTally(self._comm) as tally:
            stats = self._trainer.run_epoch(self.loader, after_step)
        self.epochs.append({**asdict(stats), "comm": tally.stats})

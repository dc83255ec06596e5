"""What a rank of `fastsample-bench roles` does: train epochs by every way of sharing the work in turn.

A way is roles "none", a split with or without switching, or "auto". Each has its own loader and its own model with the
same initial parameters; epoch e of all ways is run before epoch e + 1 of any, so that slow changes of the machine
affect all alike. Nothing is prefetched, so that the seconds of time sharing add up to the epoch. On GPUs one way is run
after the other instead, each with the memory of the one before (gpus.py).
"""

from __future__ import annotations

import gc
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from fastsample_dist.bench.graphs import load_classes
from fastsample_dist.bench.roles.gpus import cache_of, limit_tables, on_gpu
from fastsample_dist.bench.timing import steady
from fastsample_dist.comm.context import DistContext
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.pipeline.roles import ROLES_AUTO, ROLES_NONE, Roles
from fastsample_dist.pipeline.transport import SHARED
from fastsample_dist.train.models import GraphSAGE
from fastsample_dist.train.trainer import Trainer

STAYING = " stay"  # ends the name of a split whose samplers never train
TALLIES = ("sampled", "trained", "stood_by", "hand_over_s")


def split_ways(ranks: int, switching: tuple[bool, ...]) -> list[str]:
    """Names of all splits of so many ranks, each with and without switching as asked for."""
    splits = [str(Roles(samplers, ranks - samplers)) for samplers in range(1, ranks)]
    return [f"{split}{'' if switches else STAYING}" for split in splits for switches in switching]


def roles_of(way: str) -> str | Roles:
    """What the loader of a way is given."""
    if way in (ROLES_NONE, ROLES_AUTO):
        return way
    split = Roles.parse(way.removesuffix(STAYING))
    return Roles(split.samplers, split.trainers, switching=not way.endswith(STAYING))


def roles_rank(ctx: DistContext, settings: dict, folder: Path | None = None) -> dict:
    """Train. Collective: every rank must call this.

    Args:
      ctx: the rank's context.
      settings: {"path", "ways": names, "none" first and "auto" among them, "epochs": timed ones, after one warm-up
        epoch, "batch_size", "fanouts", "hidden", "dropout", "rng_seed", "staleness", "device": "cpu" or "cuda",
        "gpu_memory": bytes that a rank's tables may take there, None: its share}.
      folder: not used.
    Returns:
      {"graph": {"name", "num_nodes", "num_edges"}, "virtual_ranks", "steps": of an epoch, "cores": ranks for which the
      rehearsal of "auto" found room, "update_s", "sum_s": of an update alone and a sum that waits for nobody, as it
      found, "ways": {name: {"roles": in the end,
      "epochs": [EpochStats, "own_fetch_s" and, with roles, TALLIES of this rank], "cache": its CacheReport, None:
      none}}}; the first epoch is the warm-up.
    """
    on_cpu, names = settings["device"] == "cpu", settings["ways"]
    if not on_cpu:
        ctx = on_gpu(ctx)
    figures, choice = {}, None
    for group in [names] if on_cpu else [[name] for name in names]:
        data = load_classes(settings["path"], ctx)
        if not on_cpu:
            limit_tables(data, settings["gpu_memory"])
        ways = {name: _Way(data, name, settings) for name in group}
        for _ in range(1 + settings["epochs"]):
            for way in ways.values():
                way.run_epoch()
        for name, way in ways.items():
            figures[name], choice = way.figures(), way.choice or choice
            way.loader.close()
        steps, manifest = len(way.loader), data.manifest
        del data, ways, way
        gc.collect()  # what they have on a GPU, which the ranks of the next way find free: opening a partition meets
        torch.cuda.empty_cache()
    return {
        "graph": {"name": manifest.name, "num_nodes": manifest.num_nodes, "num_edges": manifest.num_edges},
        "virtual_ranks": manifest.num_parts,
        "steps": steps,
        "cores": choice.shape.cores,
        "update_s": choice.times.update_s,
        "sum_s": choice.times.sum_s,
        "ways": figures,
    }  # fmt: skip


class _Way:
    """One way of sharing the work. Collective: every rank must call this and its method.

    Attributes:
      loader: of the training batches.
      choice: of "auto"; else None.
      epochs: figures of each.
    """

    def __init__(self, data: DistData, name: str, settings: dict) -> None:
        roles = roles_of(name)
        make = partial(
            DistLoader, data, settings["fanouts"], settings["batch_size"], rng_seed=settings["rng_seed"], prefetch=0,
            roles=roles, staleness=settings["staleness"] if isinstance(roles, Roles) else 0,
        )  # fmt: skip
        if settings["device"] == "cpu":
            self.loader = make()
        else:
            self.loader = make(transport=SHARED, cache=cache_of(data, roles))
        torch.manual_seed(settings["rng_seed"])
        model = GraphSAGE(
            data.feature_dim, settings["hidden"], data.num_classes, len(settings["fanouts"]), settings["dropout"]
        )
        model.to(data.ctx.device)
        self._trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=3e-3), data.ctx)
        self.choice = self._trainer.settle_roles(self.loader)
        self._comm = data.ctx.comm
        self.epochs: list[dict] = []

    def run_epoch(self) -> None:
        """One epoch, timed."""
        self._comm.barrier(purpose="benchmark")  # no rank is still busy with the way before
        with steady():
            stats = asdict(self._trainer.run_epoch(self.loader))
        executor = self.loader.executor
        tally = {} if executor is None else {name: getattr(executor.tally, name) for name in TALLIES}
        self.epochs.append(stats | {"own_fetch_s": self._trainer.own_totals["fetch_s"]} | tally)

    def figures(self) -> dict:
        """See roles_rank."""
        cache = None if self.loader.cache is None else self.loader.cache_report().as_json()
        return {"roles": str(self.loader.roles or ROLES_NONE), "epochs": self.epochs, "cache": cache}

"""What a rank of `fastsample-bench roles` does: train epochs by every way of sharing the work in turn.

A way is roles "none", a split with or without switching, or "auto". Each has its own loader and its own model with the
same initial parameters; epoch e of all ways is run before epoch e + 1 of any, so that slow changes of the machine
affect all alike. Nothing is prefetched, so that the seconds of time sharing add up to the epoch.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from fastsample_dist.bench.graphs import load_classes
from fastsample_dist.bench.timing import steady
from fastsample_dist.comm.context import DistContext
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.pipeline.roles import ROLES_AUTO, ROLES_NONE, Roles
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
        epoch, "batch_size", "fanouts", "hidden", "dropout", "rng_seed", "staleness"}.
      folder: not used.
    Returns:
      {"graph": {"name", "num_nodes", "num_edges"}, "virtual_ranks", "steps": of an epoch, "cores": ranks for which the
      rehearsal of "auto" found room, "update_s": of an update alone, as it found, "ways": {name: {"roles": in the end,
      "epochs": [EpochStats and, with roles, TALLIES of this rank]}}}; the first epoch is the warm-up.
    """
    data = load_classes(settings["path"], ctx)
    ways = {name: _Way(data, name, settings) for name in settings["ways"]}
    for _ in range(1 + settings["epochs"]):
        for way in ways.values():
            way.run_epoch()
    manifest, first, choice = data.manifest, next(iter(ways.values())), ways[ROLES_AUTO].choice
    figures = {name: {"roles": str(way.loader.roles or ROLES_NONE), "epochs": way.epochs} for name, way in ways.items()}
    found = {
        "graph": {"name": manifest.name, "num_nodes": manifest.num_nodes, "num_edges": manifest.num_edges},
        "virtual_ranks": manifest.num_parts,
        "steps": len(first.loader),
        "cores": choice.shape.cores,
        "update_s": choice.times.update_s,
        "ways": figures,
    }  # fmt: skip
    for way in ways.values():
        way.loader.close()
    return found


class _Way:
    """One way of sharing the work. Collective: every rank must call this and its method.

    Attributes:
      loader: of the training batches.
      choice: of "auto"; else None.
      epochs: figures of each.
    """

    def __init__(self, data: DistData, name: str, settings: dict) -> None:
        roles = roles_of(name)
        self.loader = DistLoader(
            data, settings["fanouts"], settings["batch_size"], rng_seed=settings["rng_seed"], prefetch=0, roles=roles,
            staleness=0 if roles == ROLES_NONE else settings["staleness"],
        )  # fmt: skip
        torch.manual_seed(settings["rng_seed"])
        model = GraphSAGE(
            data.feature_dim, settings["hidden"], data.num_classes, len(settings["fanouts"]), settings["dropout"]
        )
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
        self.epochs.append(stats | tally)

"""What a rank of `fastsample-bench models` does: train every case, epochs of our ways and of DGL in turns.

Our first way is time sharing over the exchange transport, with a cache. Roles read all rows in place, so beside them
stands time sharing that does.

Rank 0 asks DGL's process while the other ranks wait at a barrier, so that ours and the peer never work at once and what
slows the machine for a while slows both. The first epoch of each is a warm-up. Seconds of ours are those of the
trainer (train/metrics.py) without prefetching, so that sampling, fetching and training add up.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from fastsample_dist.bench.cache.accesses import EpochBatches
from fastsample_dist.bench.graphs import load_classes, with_weights
from fastsample_dist.bench.models.cases import CASES, LR, ModelCase
from fastsample_dist.bench.models.hit_rate import POLICY, auto_hit_rate
from fastsample_dist.bench.models.peer import DglPeer
from fastsample_dist.bench.timing import steady
from fastsample_dist.comm.context import DistContext
from fastsample_dist.features.cache import CacheReport, FeatureCache
from fastsample_dist.features.policies import Workload
from fastsample_dist.ops.locate_rows import slots_bytes
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.epoch_plan import EpochPlan
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.pipeline.roles import ROLES_NONE
from fastsample_dist.pipeline.transport import EXCHANGE, SHARED
from fastsample_dist.testing.supervisor import Supervisor
from fastsample_dist.train.trainer import Trainer

PURPOSE = "benchmark"
SPLITS = ("val", "test")
IN_PLACE = "in place"


def models_rank(ctx: DistContext, settings: dict, folder: Path | None = None) -> dict:
    """Train. Collective: every rank must call this.

    Args:
      ctx: the rank's context.
      settings: {"path", "cases": names, "epochs": timed ones, after one warm-up epoch, "batch_size": per rank,
        "hidden", "dropout", "rng_seed", "cache_share": of all nodes, "roles": of these ranks or None, "peer":
        PeerSettings or None}.
      folder: not used.
    Returns:
      {"cases": [{"case", "steps": of an epoch, "ours": {"" and, with roles, IN_PLACE and their name: figures}, "dgl":
      figures or None, "cache": {"policy", "rows", "hit_rate", "oracle_hit_rate"} or None}]}, figures being {"epochs":
      [{"seconds", "sample_s", "fetch_s", "train_s", "loss"}], "val_acc", "test_acc"}; of DGL on rank 0 alone,
      everything else the same on all ranks.
    """
    data, cases = load_classes(settings["path"], ctx), [CASES[name] for name in settings["cases"]]
    if any(case.is_weighted for case in cases):
        data.graph = with_weights(data.graph)
    with Supervisor() as supervisor:
        asks = settings["peer"] is not None and ctx.rank == 0
        peer = DglPeer(supervisor, settings["peer"]) if asks else None
        return {"cases": [_measure(data, case, settings, peer) for case in cases]}


def _measure(data: DistData, case: ModelCase, settings: dict, peer: DglPeer | None) -> dict:
    theirs, comm, roles = {"epochs": []}, data.ctx.comm, settings["roles"]
    ours = {"": _Run(data, case, settings)}
    if roles is not None:
        ours |= {IN_PLACE: _Run(data, case, settings, ROLES_NONE), roles: _Run(data, case, settings, roles)}
    if peer is not None:
        peer.begin(case)
    for _ in range(1 + settings["epochs"]):
        for run in ours.values():
            comm.barrier(purpose=PURPOSE)  # no rank works while the peer, or another way, does
            run.train()
        comm.barrier(purpose=PURPOSE)
        if peer is not None:
            theirs["epochs"].append(peer.train())
    found = {
        "case": case.name, "steps": len(ours[""].loader), "cache": ours[""].cache_figures(),
        "ours": {
            name: {"epochs": run.epochs} | {f"{split}_acc": run.accuracy(split) for split in SPLITS}
            for name, run in ours.items()
        },
    }  # fmt: skip
    for run in ours.values():
        run.loader.close()
    if peer is not None:
        theirs |= {f"{split}_acc": peer.accuracy(split) for split in SPLITS}
    return {**found, "dgl": theirs if peer is not None else None}


class _Run:
    """One case on our side. Collective: every rank must call this and all of its methods.

    Args:
      roles: of the ranks, which then read all rows in place; None: none, over the exchange transport with a cache.
    Attributes:
      loader: of the training batches.
      epochs: figures of each.
    """

    def __init__(self, data: DistData, case: ModelCase, settings: dict, roles: str | None = None) -> None:
        self._data, self._case, self._settings = data, case, settings
        self._transport = EXCHANGE if roles is None else SHARED
        self._rows = int(settings["cache_share"] * data.num_nodes) if roles is None else 0
        self.loader = self._make_loader("train", cache=self._cache(), roles=roles or ROLES_NONE)
        model = case.build(data, settings["hidden"], settings["dropout"], settings["rng_seed"])
        self._trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=LR), data.ctx)
        self.epochs: list[dict] = []

    def train(self) -> None:
        """One epoch."""
        with steady():
            stats = asdict(self._trainer.run_epoch(self.loader))
        names = ("seconds", "sample_s", "fetch_s", "loss")
        train_s = stats["compute_s"] + stats["gradients_s"]
        self.epochs.append({**{name: stats[name] for name in names}, "train_s": train_s})

    def accuracy(self, split: str) -> float:
        """Over all ranks' nodes of a split, with sampled neighbours."""
        loader = self._make_loader(split, shuffle=False, cache=self.loader.cache)
        try:
            return self._trainer.evaluate(loader)
        finally:
            loader.close()

    def cache_figures(self) -> dict | None:
        """Of the cache over all epochs; of one process, which reads all rows in place, of the cache that it would have;
        None without one.
        """
        if self._rows == 0:
            return None
        if self._data.ctx.world_size == 1:
            return auto_hit_rate(self._workload(), len(self.epochs), self._rows)
        reports = self._data.ctx.comm.all_gather_object(self.loader.cache_report(), purpose=PURPOSE)
        total = CacheReport.total(reports)
        names = ("policy", "hit_rate", "oracle_hit_rate")
        return {"rows": total.cache_rows} | {name: getattr(total, name) for name in names}

    def _make_loader(self, split: str, **options: object) -> DistLoader:
        settings = self._settings
        return self._case.loader(
            self._data, split, settings["batch_size"], settings["rng_seed"], transport=self._transport, **options
        )

    def _cache(self) -> FeatureCache | None:
        """Room for so many rows, with what finds them."""
        if self._rows == 0 or self._data.ctx.world_size == 1:
            return None
        row_bytes, num_nodes = self._data.features.local.row_bytes, self._data.num_nodes
        slots = slots_bytes(self._rows, num_nodes, self._data.features.device)
        return FeatureCache(self._rows * row_bytes + slots, POLICY)

    def _workload(self) -> Workload:
        """What one process trains on."""
        data, case, settings = self._data, self._case, self._settings
        train, rng_seed = data.split("train"), settings["rng_seed"]
        plan = EpochPlan(0, 0, [train.numel()], settings["batch_size"])
        return Workload(
            graph=data.graph, train_nodes=train, batch_size=plan.batch_size, rng_seed=rng_seed,
            spec=case.spec(rng_seed), steps_per_epoch=plan.num_steps, undirected=data.manifest.undirected,
            sample=EpochBatches(case.sampler(data.graph, rng_seed), train, 0, plan, rng_seed),
        )  # fmt: skip

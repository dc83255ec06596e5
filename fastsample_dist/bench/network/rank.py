"""What a rank of `fastsample-bench network` does: train epochs with every row's savings in turn.

Epoch e of all rows is run before epoch e + 1 of any, so that slow changes of the machine affect all alike. Bytes are
counted twice: by the communicator, and by the host's network interface, which sees everything that leaves the host.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from fastsample_dist.bench.network.rows import CACHE, LOOKAHEAD, WINDOW, Row
from fastsample_dist.comm.context import DistContext
from fastsample_dist.features.cache import FeatureCache
from fastsample_dist.ops.locate_rows import slots_bytes
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.train.metrics import CommTally
from fastsample_dist.train.models import GraphSAGE
from fastsample_dist.train.trainer import Trainer

LINK = "eth0"  # of a host in namespaces
_COUNTED = Path("/proc/self/net/dev")  # of this process's network namespace


def network_rank(ctx: DistContext, settings: dict, folder: Path | None = None) -> dict:
    """Train. Collective: every rank must call this.

    Args:
      ctx: the rank's context.
      settings: {"path", "rows": names, "cache_share": cached nodes of all nodes, "prefetch", "epochs": timed ones,
        after one warm-up epoch, "batch_size", "fanouts", "hidden", "dropout", "lr", "precision", "rng_seed"}.
      folder: not used.
    Returns:
      {"steps": per epoch, "graph": {"name", "num_nodes", "num_edges"}, "row_bytes": stored, "rows": [{"name",
      "transport", "exchange", "rails", "fetched": CacheReport of all epochs, "epochs": [EpochStats, "comm" of this
      rank, "link_bytes": that left the host]}]}; the first epoch is the warm-up.
    """
    data = DistData.load(settings["path"], ctx)
    if data.features is None or data.labels is None:
        raise ValueError(f"{settings['path']} lacks features or labels; partition an input with both.")
    runs = [_Run(data, settings, Row(name)) for name in settings["rows"]]
    for _ in range(1 + settings["epochs"]):
        for run in runs:
            run.run_epoch()
    for run in runs:
        run.loader.close()
    manifest = data.manifest
    return {
        "steps": len(runs[0].loader), "row_bytes": data.features.local.row_bytes,
        "graph": {"name": manifest.name, "num_nodes": manifest.num_nodes, "num_edges": manifest.num_edges},
        "rows": [run.results() for run in runs],
    }  # fmt: skip


class _Run:
    """One row: a loader and a model of its own, with the same initial parameters as the others'."""

    def __init__(self, data: DistData, settings: dict, row: Row) -> None:
        precision, layers = settings["precision"], len(settings["fanouts"])
        self.loader = DistLoader(
            data, settings["fanouts"], settings["batch_size"], prefetch=settings["prefetch"],
            rng_seed=settings["rng_seed"], feature_dtype=torch.bfloat16 if precision == "bf16" else None,
            cache=cache_of(data, row, settings["cache_share"]), **row.loader_options(),
        )  # fmt: skip
        torch.manual_seed(settings["rng_seed"])
        model = GraphSAGE(data.feature_dim, settings["hidden"], data.num_classes, layers, settings["dropout"])
        optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
        self._trainer = Trainer(model, optimizer, data.ctx, precision=precision)
        self._row, self._ctx = row, data.ctx
        self._epochs: list[dict] = []

    def run_epoch(self) -> None:
        """One epoch, timed and counted. Collective: every rank must call this."""
        comm = self._ctx.comm
        comm.barrier(purpose="benchmark")  # no rank is still busy with the row before
        before = sent_by_host()
        with CommTally(comm) as tally:
            stats = self._trainer.run_epoch(self.loader)
        comm.barrier(purpose="benchmark")  # all that this epoch sends has left
        link_bytes = sent_by_host() - before if self._ctx.local_rank == 0 else 0
        self._epochs.append({**asdict(stats), "comm": tally.stats, "link_bytes": link_bytes})

    def results(self) -> dict:
        """What is returned of this row."""
        loader = self.loader
        return {
            "name": self._row.name, "transport": loader.transport, "exchange": loader.exchange, "rails": loader.rails,
            "fetched": asdict(loader.cache_report()), "epochs": self._epochs,
        }  # fmt: skip


def cache_of(data: DistData, row: Row, share: float) -> FeatureCache | None:
    """A cache with room for a share of all nodes; None in a row without."""
    if not row.has(CACHE):
        return None
    count = max(1, int(share * data.num_nodes))
    window = WINDOW if row.has(LOOKAHEAD) else 0
    slots = data.num_nodes * torch.int32.itemsize if window else slots_bytes(count, data.num_nodes)
    return FeatureCache(capacity_bytes=count * data.features.local.row_bytes + slots, lookahead=window)


def sent_by_host(counted: str | None = None) -> int:
    """Bytes that have left this host by its link; 0 where it has none.

    Args:
      counted: content of /proc/net/dev; None: what it is now.
    """
    text = _COUNTED.read_text(encoding="ascii") if counted is None else counted
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == LINK:
            return int(numbers.split()[8])  # the first of the numbers that count what was sent
    return 0

"""The model and the clocked epoch that DistDGL's trainers and one-process DGL share.

An epoch's time is cut into laps without gaps, so the phases add up to the epoch: sample (the data loader's
next batch), copy (features and labels of that batch), forward (model and loss), backward (gradients; under
DistributedDataParallel with their all_reduce), optimizer, other (bookkeeping).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import dgl.nn
import torch
from settings import EventWriter, Settings
from torch import Tensor, nn
from torch.nn import functional

PHASES = ("sample", "copy", "forward", "backward", "optimizer", "other")


class GraphSAGE(nn.Module):
    """GraphSAGE with mean aggregation, ReLU and dropout between layers, built of dgl.nn.SAGEConv.

    Args:
      sizes: widths from the features to the classes; len(sizes) - 1 layers.
      dropout: probability of dropout between layers; 0.0 leaves the operator out.
    """

    def __init__(self, sizes: list[int], dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(dgl.nn.SAGEConv(*widths, "mean") for widths in pairwise(sizes))
        self.dropout = nn.Dropout(dropout) if dropout > 0.0 else nn.Identity()

    def forward(self, blocks: list[dgl.DGLGraph], features: Tensor) -> Tensor:
        """Return class scores float32 [num_seeds, num_classes] for one mini-batch."""
        hidden = features
        for depth, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            hidden = layer(block, hidden)
            if depth < len(self.layers) - 1:
                hidden = self.dropout(functional.relu(hidden))
        return hidden


def build_model(settings: Settings, feature_dim: int, num_classes: int) -> GraphSAGE:
    """Return the model of the settings: one layer per fanout."""
    hidden = [settings.hidden] * (len(settings.fanouts) - 1)
    return GraphSAGE([feature_dim, *hidden, num_classes], settings.dropout)


class LapClock:
    """Adds the time since the last lap to a phase. Cost: one perf_counter call a lap."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.start = self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """End a phase."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    @property
    def total_s(self) -> float:
        """Seconds from the start to the last lap."""
        return self._last - self.start


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What one training process brings to the epochs.

    rank: of this process; steps: mini-batches an epoch, equal on all ranks; loader: yields (input_nodes,
    seeds, blocks); fetch(input_nodes, seeds) -> (features, labels); barrier(): waits for all ranks;
    count_remote(ids): how many of the nodes another machine owns; received_bytes(): what this machine's
    network interface has received.
    """

    rank: int
    steps: int
    loader: Iterable
    fetch: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    barrier: Callable[[], None]
    count_remote: Callable[[Tensor], int]
    received_bytes: Callable[[], int]


def train_epoch(worker: Worker) -> dict[str, object]:
    """Train one epoch and return its figures. Collective: every rank must call this."""
    worker.model.train()
    losses, inputs, layer_rows = [], [], []
    seeds_seen = edges = 0
    worker.barrier()
    received = worker.received_bytes()
    clock = LapClock()
    batches = iter(worker.loader)
    for _ in range(worker.steps):
        input_nodes, seeds, blocks = next(batches)
        clock.lap("sample")
        features, labels = worker.fetch(input_nodes, seeds)
        clock.lap("copy")
        loss = functional.cross_entropy(worker.model(blocks, features), labels)
        clock.lap("forward")
        worker.optimizer.zero_grad()
        loss.backward()
        clock.lap("backward")
        worker.optimizer.step()
        clock.lap("optimizer")
        losses.append(loss.detach() * len(seeds))
        inputs.append(input_nodes)
        seeds_seen += len(seeds)
        edges += sum(block.num_edges() for block in blocks)
        layer_rows.append([block.num_dst_nodes() for block in blocks])
        clock.lap("other")
    worker.barrier()
    received = worker.received_bytes() - received
    return {
        "rank": worker.rank,
        "epoch_s": clock.total_s,
        **{f"{phase}_s": seconds for phase, seconds in clock.seconds.items()},
        "loss_sum": float(torch.stack(losses).sum()),
        "steps": worker.steps,
        "seeds": seeds_seen,
        "sampled_edges": edges,
        "layer_rows": [sum(rows) for rows in zip(*layer_rows, strict=True)],
        "input_nodes": sum(len(ids) for ids in inputs),
        "remote_inputs": sum(worker.count_remote(ids) for ids in inputs),
        "received_bytes": received,
    }


def run_epochs(worker: Worker, settings: Settings, emit: EventWriter) -> None:
    """One warm-up epoch, the timed epochs, one epoch during which the session samples memory.

    Collective: every rank must call this.
    """
    train_epoch(worker)
    emit("warm", rank=worker.rank)
    for epoch in range(settings.epochs):
        emit("epoch", epoch=epoch, **train_epoch(worker))
    emit("memory_begin", rank=worker.rank)
    train_epoch(worker)
    emit("memory_end", rank=worker.rank)


def seed_everything(seed: int) -> None:
    """Seed torch's and DGL's generators."""
    torch.manual_seed(seed)
    dgl.seed(seed)

"""`fastsample-bench gpu epoch`: a training epoch on one GPU, split into sample, gather and compute.

Every way trains GraphSAGE of the same sizes on the same seeds in the same order:
- "gpu": sampled on the GPU, features in its memory, this library's model;
- "gpu, trainer": the same by DistLoader and Trainer, as train_sage.py --device cuda does it;
- "gpu, trainer ahead": the same with PREFETCH batches made ahead by a thread; its split is that of an epoch without;
- "cpu sampling": sampled and gathered by this library on the CPU, copied to the GPU, the same model;
- "torch_geometric": its NeighborLoader on the CPU, features gathered there and copied, its model; where it lacks what
  it samples with, this library's CPU sampler takes the loader's place ("torch_geometric model").

The split comes from an epoch in which the device is waited for after each part; the time of an epoch from others, in
which nothing waits but what must.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fastsample_dist import DistContext, DistData, DistLoader, ops
from fastsample_dist.bench.gpu.device import GpuDevice
from fastsample_dist.bench.timing import spread
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.command import one_line
from fastsample_dist.graph import storage
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.labels import CLASSIFICATION
from fastsample_dist.interop import pyg
from fastsample_dist.ops import SampledHops, SampleSpec, SamplingGraph
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.sampling.mfg import DrawKey, MiniBatch, assemble
from fastsample_dist.train.metrics import EpochStats, seed_loss
from fastsample_dist.train.models import GraphSAGE
from fastsample_dist.train.trainer import Trainer

PARTS = ("sample_s", "gather_s", "compute_s")
OURS, TRAINER, AHEAD, ON_HOST, PYG, PYG_MODEL = (
    "gpu", "gpu, trainer", "gpu, trainer ahead", "cpu sampling", "torch_geometric", "torch_geometric model"
)  # fmt: skip
PREFETCH = 2
HIDDEN, DROPOUT, LEARNING_RATE = 256, 0.5, 0.006

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class GpuEpochOptions:
    """What is run.

    Attributes:
      batch_size, fanouts: of the training.
      epochs: timed ones of each way, after one for warming up.
      workers: processes of torch_geometric's loader.
      rng_seed: of the seeds' order, the draws and the models.
    """

    batch_size: int = 1000
    fanouts: tuple[int, ...] = (15, 10, 5)
    epochs: int = 3
    workers: int = 0
    rng_seed: int = 0


@dataclass(frozen=True, eq=False)
class Task:
    """A partition of one part.

    Attributes:
      graph: whole topology.
      features: [num_nodes, feature_dim], host memory.
      labels: int64 [num_nodes].
      seeds: int64, of the training split, in the order in which they are taken.
    """

    graph: CSCGraph
    features: Tensor
    labels: Tensor
    seeds: Tensor

    @classmethod
    def load(cls, parts: Path, rng_seed: int) -> Task:
        """The task of a partition's directory.

        Raises:
          ValueError: it has several parts, or lacks features, classes or training nodes.
        """
        manifest = storage.read_manifest(parts)
        if manifest.num_parts != 1:
            raise ValueError(f"{parts} has {manifest.num_parts} parts; expected 1: an epoch on one GPU.")
        part = storage.load_part(parts, manifest, 0)
        missing = [
            name for name, has in (
                ("features", part.features is not None), ("labels", part.labels is not None),
                ("training nodes", part.splits.get("train", torch.empty(0)).numel() > 0),
            ) if not has
        ]  # fmt: skip
        if missing:
            raise ValueError(f"{parts} has no {' and no '.join(missing)}; there is nothing to train on.")
        if manifest.task != CLASSIFICATION:
            raise ValueError(f"{parts} has labels for {manifest.task}; the benchmark trains on classes.")
        seeds = part.splits["train"]
        order = torch.randperm(seeds.numel(), generator=torch.Generator().manual_seed(rng_seed))
        features = part.feature_table.values(torch.arange(manifest.num_nodes))  # a copy
        return cls(storage.load_topology(parts, manifest), features, part.labels.clone(), seeds[order])

    @property
    def num_classes(self) -> int:
        """Classes of the labels."""
        return int(self.labels.max()) + 1


class Way(Protocol):
    """One way of training an epoch."""

    def batches(self) -> Iterable[Any]:
        """The epoch's batches, each sampled when it is asked for."""
        ...

    def gather(self, batch: Any) -> tuple[Any, Tensor, Tensor]:
        """(batch, features, labels) on the device."""
        ...

    def loss(self, batch: Any, features: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of the batch's seeds."""
        ...

    def model(self) -> nn.Module:
        """What is trained."""
        ...


def measure(parts: Path, device: GpuDevice, options: GpuEpochOptions, progress: Callable[[str], object]) -> dict:
    """Every way that runs here.

    Returns:
      {"steps", "batch_size", "fanouts", "hidden", "feature_dim", "ways": [{"way", "epoch_s", "sample_s", "gather_s",
      "compute_s": see `spread`, "loss": mean over the last epoch}], "missing": {way: why it was left out}}.
    Raises:
      ValueError: see `Task.load`.
    """
    task = Task.load(parts, options.rng_seed)
    found, missing = [], {}
    for name, run in ways(parts, task, device, options).items():
        if name == PYG_MODEL and PYG not in missing:
            continue
        progress(f"training: {name}")
        device.release()
        try:
            found.append({"way": name, **run()})
        except ImportError as error:
            missing[name] = one_line(error)
    return {
        "steps": len(list(_seed_batches(task, options))), "batch_size": options.batch_size,
        "fanouts": list(options.fanouts), "hidden": HIDDEN, "feature_dim": task.features.shape[1],
        "ways": found, "missing": missing,
    }  # fmt: skip


def ways(parts: Path, task: Task, device: GpuDevice, options: GpuEpochOptions) -> dict[str, Callable[[], dict]]:
    """By name, what measures a way; the last one stands in for torch_geometric's loader where that is missing."""
    return {
        OURS: lambda: _measure_way(OnDevice(task, device, options), device, options),
        TRAINER: lambda: _measure_trainer(parts, task, device, options, prefetch=0),
        AHEAD: lambda: _measure_trainer(parts, task, device, options, prefetch=PREFETCH),
        ON_HOST: lambda: _measure_way(SampledOnHost(task, device, options), device, options),
        PYG: lambda: _measure_way(PygLoader(task, device, options), device, options),
        PYG_MODEL: lambda: _measure_way(PygModel(task, device, options), device, options),
    }


def _measure_way(way: Way, device: GpuDevice, options: GpuEpochOptions) -> dict:
    optimizer = torch.optim.Adam(way.model().parameters(), lr=LEARNING_RATE)
    run_epoch(way, optimizer, device.synchronize)  # warms up
    epochs: list[float] = []
    split: list[dict[str, float]] = []
    for _ in range(options.epochs):
        loss, seconds = _timed(device, lambda: run_epoch(way, optimizer, lambda: None)["loss"])
        epochs.append(seconds)
        split.append(run_epoch(way, optimizer, device.synchronize))
    return {"epoch_s": spread(epochs), "loss": loss, **{name: spread([own[name] for own in split]) for name in PARTS}}


def _measure_trainer(parts: Path, task: Task, device: GpuDevice, options: GpuEpochOptions, *, prefetch: int) -> dict:
    ctx = DistContext(LocalCommunicator(), device=device.torch_device)
    data = DistData.load(parts, ctx, verify=False)
    model = _our_model(task, device, options)
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE), ctx)
    shared = {"rng_seed": options.rng_seed, "feature_dtype": task.features.dtype}
    loaders = [
        DistLoader(data, options.fanouts, options.batch_size, prefetch=ahead, **shared) for ahead in (0, prefetch)
    ]
    for loader in loaders:
        trainer.run_epoch(loader)  # warms up
    epochs: list[float] = []
    split: list[EpochStats] = []
    for _ in range(options.epochs):
        split.append(trainer.run_epoch(loaders[0]))
        stats, seconds = _timed(device, lambda: trainer.run_epoch(loaders[1]))
        epochs.append(seconds)
    return {
        "epoch_s": spread(epochs), "loss": stats.loss, "sample_s": spread([own.sample_s for own in split]),
        "gather_s": spread([own.fetch_s for own in split]), "compute_s": spread([own.compute_s for own in split]),
    }  # fmt: skip


def _timed(device: GpuDevice, call: Callable[[], T]) -> tuple[T, float]:
    """(result, seconds on the host's clock, from an idle device to an idle device)."""
    device.synchronize()
    start = time.perf_counter()
    result = call()
    device.synchronize()
    return result, time.perf_counter() - start


def run_epoch(way: Way, optimizer: torch.optim.Optimizer, wait: Callable[[], object]) -> dict[str, float]:
    """Train one epoch.

    Args:
      way: how.
      optimizer: of its model.
      wait: called after each part of a step.
    Returns:
      {"sample_s", "gather_s", "compute_s": seconds of the host's clock, which are the parts' own only where `wait`
      waits for the device, "loss": mean over the steps}.
    """
    spent = dict.fromkeys(PARTS, 0.0)
    losses: list[Tensor] = []
    clock = time.perf_counter()

    def lap(part: str) -> None:
        nonlocal clock
        wait()
        now = time.perf_counter()
        spent[part] += now - clock
        clock = now

    for batch in way.batches():
        lap("sample_s")
        batch, features, labels = way.gather(batch)
        lap("gather_s")
        loss = way.loss(batch, features, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        lap("compute_s")
    return {**spent, "loss": statistics.mean(torch.stack(losses).tolist())}


class OnDevice:
    """Topology and features in device memory, sampled there."""

    def __init__(self, task: Task, device: GpuDevice, options: GpuEpochOptions) -> None:
        graph = task.graph
        orig_ids = None if graph.orig_ids is None else device.put(graph.orig_ids)
        self._graph = CudaSamplingGraph(device.put(graph.indptr), device.put(graph.indices), orig_ids)
        self._orig_ids = orig_ids
        self._features, self._labels = device.put(task.features), device.put(task.labels)
        self._seeds = [device.put(seeds) for seeds in _seed_batches(task, options)]
        self._spec = _spec(options)
        self._model = _our_model(task, device, options)

    def batches(self) -> Iterator[MiniBatch]:
        for step, seeds in enumerate(self._seeds):
            yield assemble(
                self._graph.sample(seeds, self._spec, step), self._orig_ids, DrawKey(self._spec.rng_seed, step)
            )

    def gather(self, batch: MiniBatch) -> tuple[MiniBatch, Tensor, Tensor]:
        features = ops.gather_rows(self._features, batch.input_nodes)
        return batch, features, self._labels[batch.seeds.long()]

    def loss(self, batch: MiniBatch, features: Tensor, labels: Tensor) -> Tensor:
        return seed_loss(self._model(batch.mfgs, features), labels, labels.numel())

    def model(self) -> nn.Module:
        return self._model


class SampledOnHost:
    """Sampled and gathered on the CPU; hops, features and labels are copied to the device."""

    def __init__(self, task: Task, device: GpuDevice, options: GpuEpochOptions) -> None:
        self._task, self._device, self._options, self._spec = task, device, options, _spec(options)
        self._graph = SamplingGraph(task.graph.indptr, task.graph.indices, task.graph.orig_ids)
        self._orig_ids = None if task.graph.orig_ids is None else device.put(task.graph.orig_ids)
        self._model = _our_model(task, device, options)

    def batches(self) -> Iterator[tuple[SampledHops, int]]:
        for step, seeds in enumerate(_seed_batches(self._task, self._options)):
            yield self._graph.sample(seeds, self._spec, step), step

    def gather(self, batch: tuple[SampledHops, int]) -> tuple[MiniBatch, Tensor, Tensor]:
        (hops, step), put = batch, self._device.put
        seeds = hops.nodes[: hops.indptrs[0].numel() - 1].long()
        features, labels = ops.gather_rows(self._task.features, hops.nodes), self._task.labels[seeds]
        moved = SampledHops(put(hops.nodes), [put(own) for own in hops.indptrs], [put(own) for own in hops.indices], [])
        return assemble(moved, self._orig_ids, DrawKey(self._spec.rng_seed, step)), put(features), put(labels)

    def loss(self, batch: MiniBatch, features: Tensor, labels: Tensor) -> Tensor:
        return seed_loss(self._model(batch.mfgs, features), labels, labels.numel())

    def model(self) -> nn.Module:
        return self._model


class PygModel:
    """torch_geometric's model on batches that this library samples on the CPU."""

    def __init__(self, task: Task, device: GpuDevice, options: GpuEpochOptions) -> None:
        self._task, self._device, self._options, self._spec = task, device, options, _spec(options)
        graph = task.graph
        self._graph = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)
        torch.manual_seed(options.rng_seed)
        sizes = (task.features.shape[1], HIDDEN, task.num_classes, len(options.fanouts), DROPOUT)
        self._model = pyg.graph_sage(*sizes).to(device.torch_device)

    def batches(self) -> Iterable[Any]:
        for step, seeds in enumerate(_seed_batches(self._task, self._options)):
            hops = self._graph.sample(seeds, self._spec, step)
            yield pyg.to_data(assemble(hops, None, DrawKey(self._spec.rng_seed, step)))

    def gather(self, batch: Any) -> tuple[Any, Tensor, Tensor]:
        put = self._device.put
        features = ops.gather_rows(self._task.features, batch.n_id)
        labels = self._task.labels[batch.n_id[: batch.batch_size]]
        return batch.to(self._device.torch_device), put(features), put(labels)

    def loss(self, batch: Any, features: Tensor, labels: Tensor) -> Tensor:
        scores = self._model(
            features, batch.edge_index, num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )  # fmt: skip
        return nn.functional.cross_entropy(scores[: batch.batch_size], labels, ignore_index=-1)

    def model(self) -> nn.Module:
        return self._model


class PygLoader(PygModel):
    """torch_geometric's NeighborLoader and model."""

    def __init__(self, task: Task, device: GpuDevice, options: GpuEpochOptions) -> None:
        super().__init__(task, device, options)
        self._loader = pyg.neighbor_loader(
            task.graph, task.seeds, fanouts=options.fanouts, batch_size=options.batch_size, workers=options.workers
        )
        next(iter(self._loader))  # fails at once where it cannot sample at all

    def batches(self) -> Iterable[Any]:
        return self._loader


def _seed_batches(task: Task, options: GpuEpochOptions) -> Iterator[Tensor]:
    yield from task.seeds.to(task.graph.indices.dtype).split(options.batch_size)


def _spec(options: GpuEpochOptions) -> SampleSpec:
    return SampleSpec(fanouts=options.fanouts, rng_seed=options.rng_seed)


def _our_model(task: Task, device: GpuDevice, options: GpuEpochOptions) -> nn.Module:
    torch.manual_seed(options.rng_seed)
    sizes = (task.features.shape[1], HIDDEN, task.num_classes, len(options.fanouts), DROPOUT)
    return GraphSAGE(*sizes).to(device.torch_device)

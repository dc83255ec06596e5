"""Layer-wise inference with all neighbours: each layer for all nodes of the graph before the next begins.

Batch-wise evaluation with all neighbours visits a node once per batch that reaches it; here every node passes through
every layer once (GraphSAGE, NeurIPS'17, calls it full-batch inference). A rank computes the rows of its own nodes, in
runs of consecutive ids; the rows of their in-neighbours come by the exchange that fetches features, from a table that
each rank keeps of its own rows of the layer before. That table is a file mapped into memory, so a rank needs memory
for one batch, not for its share of the hidden rows. For a model on a GPU the host looks up the in-edges and fetches the
rows, and the GPU computes: its memory too holds one batch.

Where neighbourhoods are not rows of the graph (PinSAGE), a sampler says what they are: it samples those of every node
once per layer, and the layers are computed over these. For a node at hop h of a sampler that keeps the contract they
do not depend on the batch, so the result is that of one batch of all nodes.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.files import complete_file, naming_file
from fastsample_dist.graph.npy_files import NpyWriter, open_npy
from fastsample_dist.ops import checks
from fastsample_dist.pipeline.data import DistData, check_data, check_feature_dtype, own_parts
from fastsample_dist.sampling.mfg import MFG
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.sampling.sampler import HopwiseSampler, Sampler
from fastsample_dist.train.agreement import model_facts
from fastsample_dist.train.objectives import METRICS, MetricSums, SumMetric
from fastsample_dist.train.protocol import LayerwiseModel, check_layerwise, check_rows

EDGES_PER_NODE = 64  # a batch ends early when its nodes have more in-edges than this on average


@dataclass(frozen=True)
class _Pass:
    """What is computed for all nodes before the next pass begins.

    Attributes:
      num_hops: MFGs that one node's row needs, with all neighbours.
      compute: called as compute(mfgs, rows of mfgs[0]'s sources) -> rows of mfgs[-1]'s destinations.
      name: for messages.
    """

    num_hops: int
    compute: Callable[[list[MFG], Tensor], Tensor]
    name: str


def layerwise(
    model: nn.Module | LayerwiseModel,
    data: DistData,
    batch_size: int = 1000,
    *,
    num_layers: int | None = None,
    output: str | Path | None = None,
    on_batch: Callable[[int, int], object] | None = None,
    sampler: HopwiseSampler | None = None,
) -> Tensor:
    """Scores of this rank's own nodes, computed with all in-neighbours at every layer.

    Collective: every rank must call this, with the same model and batch_size.

    Args:
      model: GraphSAGE, GCN, GAT, another LayeredModel, or a model of your own (train/protocol.py); dropout is off.
        Computes in its parameters' dtype. A module without `apply_layer` is called with the MFGs of all hops instead,
        so that a node is computed again for every batch that reaches it: correct, but much slower on a deep model.
      data: with features.
      batch_size: most own nodes per batch, at least 1.
      num_layers: MFGs that the model takes, if it has no attribute of that name.
      output: directory for the result as part-<p>.npy [nodes of part p, num_classes], row i being the part's node
        i; made when it is missing, files appear when complete. None writes nothing that stays.
      on_batch: called after every batch with (batches done, batches in all), to show progress.
      sampler: whose neighbourhoods, those of step 0, stand in the place of all in-neighbours, such as a PinSAGESampler
        of data.graph; None: all in-neighbours.
    Returns:
      [own nodes, num_classes], row i is node data.own_range[0] + i; float32 where the model computes in bfloat16, which
      files of arrays do not have. When `output` is given, a mapped file: the part's, or of several parts one without a
      name, whose blocks in `output` are free once nothing refers to the tensor.
    Raises:
      ValueError: batch_size is no integer >= 1, a partition without features, of another width than the model's, or of
        a type of which no batch can be made, a model that does not fit train/protocol.py or computes in a type to
        which features are not converted, a sampler of another number of layers, a disk that refuses a layer's rows or
        the output, by file (on all ranks).
      RuntimeError: a collective failed or passed its deadline.
    Source: GraphSAGE, NeurIPS'17, algorithm 1. Memory per rank: the rows of one batch and its in-neighbours, at most
    (1 + EDGES_PER_NODE) * batch_size rows of the widest layer, or one node's in-neighbours where those are more;
    without `output` the result too.
    Deterministic: yes, up to the rounding of torch.mm.
    """
    check_data(data)
    agree(data.ctx, lambda: _check(model, num_layers, data, batch_size, sampler))
    passes = _passes(model, num_layers)
    facts = {
        "batch_size": batch_size,
        "num_layers": sum(one.num_hops for one in passes),
        "output": None if output is None else "given",
        "sampler": None if sampler is None else sampler.facts(),
        **model_facts(model),
    }
    agree_on(data.ctx.comm, "layerwise", facts)
    bounds = _batch_bounds(data, batch_size, by_edges=sampler is None)
    steps = int(data.ctx.comm.all_reduce(torch.tensor([len(bounds) - 1]), op="max", purpose="setup"))
    lo, hi = data.own_range
    features, done, total = data.features, 0, steps * len(passes)
    assert features is not None  # checked above
    of_pass = _samplers(data, passes, sampler)
    folder = None if output is None else Path(output)
    agree(data.ctx, lambda: _make_directory(folder))
    with _evaluating(model), _working_directory(folder) as work, torch.inference_mode():
        rows = None
        for number, one in enumerate(passes):
            rows = None
            for step in range(steps):
                first, last = bounds[min(step, len(bounds) - 1)], bounds[min(step + 1, len(bounds) - 1)]
                batch = _infer_batch(model, one, of_pass[number], features, torch.arange(lo + first, lo + last))
                if rows is None:
                    file = work / f"layer-{number}.npy"
                    rows = agree(data.ctx, partial(_table, file, hi - lo, batch))
                rows[first:last] = batch.numpy()
                done += 1
                if on_batch is not None:
                    on_batch(done, total)
            features = DistFeatures(LocalFeatures(torch.from_numpy(rows), lo), data.rank_book, data.ctx.comm)
        if folder is None:
            return torch.from_numpy(np.array(rows))
        return agree(data.ctx, lambda: _write_parts(rows, data, folder))


def accuracy(scores: Tensor, data: DistData, split: str) -> float:
    """Share of a split's nodes, over all ranks, whose largest score is at their label.

    Collective: every rank must call this. Arguments: as `measure`.
    """
    return measure(scores, data, split, METRICS["classification"])["acc"]


def measure(scores: Tensor, data: DistData, split: str, metrics: Mapping[str, SumMetric]) -> dict[str, float]:
    """Metrics of a split's nodes, over all ranks, by name.

    Collective: every rank must call this.

    Args:
      scores: [own nodes, columns], as `layerwise` returns them.
      data: with labels and that split.
      split: "train", "val" or "test".
      metrics: what to measure.
    """
    nodes, sums = data.split(split), MetricSums(metrics)
    sums.add(scores[nodes - data.own_range[0]], data.labels_of(nodes))
    return sums.values(data.ctx.comm)


def _check(
    model: nn.Module | LayerwiseModel,
    num_layers: int | None,
    data: DistData,
    batch_size: int,
    sampler: HopwiseSampler | None,
) -> None:
    checks.whole("batch_size", batch_size, 1)
    if data.features is None:
        raise ValueError(f"{data.path} has no features; partition an input with features.npy.")
    check_feature_dtype(data)
    check_layerwise(model, num_layers)
    dtype, stored = next(iter(model.parameters())).dtype, data.features.dtype
    if dtype not in (*checks.REAL_DTYPES, stored):
        raise ValueError(
            f"{type(model).__name__} has parameters of {dtype} but features are {stored}; convert the model to "
            "float32, float64 or bfloat16, or to the features' type."
        )
    in_dim = getattr(model, "in_dim", data.feature_dim)
    if in_dim != data.feature_dim:
        raise ValueError(
            f"{data.path} has features of {data.feature_dim} columns but the model has in_dim {in_dim}; "
            "build the model for this partition."
        )
    if sampler is not None and not isinstance(sampler, HopwiseSampler):
        found = type(sampler).__name__
        raise ValueError(f"sampler is a {found}; expected one whose hops can be drawn apart, as PinSAGESampler.")
    count = getattr(model, "num_layers", num_layers)
    if sampler is not None and sampler.num_layers != count:
        raise ValueError(
            f"the sampler has num_layers {sampler.num_layers} but the model has {count} layers; make it for this model."
        )


def _samplers(data: DistData, passes: list[_Pass], sampler: HopwiseSampler | None) -> list[Sampler]:
    """Of every pass, what gives its MFGs; passes begin at the input side, hops at the seeds."""
    if sampler is None:
        return [NeighborSampler(data.graph, [-1] * passes[0].num_hops)] * len(passes)
    if passes[0].num_hops == sampler.num_layers:
        return [sampler]
    return [sampler.hop(number) for number in reversed(range(len(passes)))]


def _passes(model: nn.Module | LayerwiseModel, num_layers: int | None) -> list[_Pass]:
    """One per layer, or a single one for a model that computes all of its layers at once."""
    count, name = getattr(model, "num_layers", num_layers), type(model).__name__
    if not hasattr(model, "apply_layer"):
        return [_Pass(count, model, name)]

    def layer(number: int) -> _Pass:
        return _Pass(
            1, lambda mfgs, rows: model.apply_layer(number, mfgs[0], rows), f"{name}.apply_layer({number}, ...)"
        )

    return [layer(number) for number in range(count)]


def _batch_bounds(data: DistData, batch_size: int, *, by_edges: bool = True) -> list[int]:
    """Where own batches begin and end: 0 = b[0] < b[1] < ... = own nodes; [0, 0] for a rank without nodes.

    Args:
      by_edges: end a batch early at EDGES_PER_NODE.
    """
    lo, hi = data.own_range
    if not by_edges:
        return [*range(0, max(1, hi - lo), batch_size), hi - lo]
    offsets = data.graph.indptr[lo : hi + 1].numpy()
    bounds = [0]
    while bounds[-1] < hi - lo:
        first = bounds[-1]
        most_edges = offsets[first] + EDGES_PER_NODE * batch_size
        last = int(np.searchsorted(offsets, most_edges, side="right")) - 1
        bounds.append(max(first + 1, min(first + batch_size, last, hi - lo)))
    return bounds if len(bounds) > 1 else [0, 0]


def _infer_batch(
    model: nn.Module | LayerwiseModel, one: _Pass, sampler: Sampler, below: DistFeatures, nodes: Tensor
) -> Tensor:
    """A pass's rows of `nodes`, on the host, from the rows below; all ranks call this together, some without nodes."""
    batch = sampler.sample(nodes, 0)
    parameter = next(model.parameters())
    rows = below.fetch(batch.input_nodes, parameter.dtype).to(parameter.device)
    result = one.compute([mfg.to(parameter.device) for mfg in batch.mfgs], rows)
    check_rows(one.name, result, len(nodes), "destination")
    return (result.float() if result.dtype == torch.bfloat16 else result).cpu()


def _table(path: Path, num_rows: int, like: Tensor) -> np.ndarray:
    """A new mapped file for the rows of a layer; without a name, so that its blocks are free once it is unmapped.

    Its blocks are taken at once: a disk that is full refuses here, where a write to the map would kill the process.
    """
    shape, dtype = (num_rows, like.shape[1]), like.numpy().dtype
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:  # cannot be mapped
        return np.empty(shape, dtype)
    with naming_file(path), path.open("w+b") as file:
        path.unlink()
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return np.memmap(file, dtype, mode="r+", shape=shape)


@contextmanager
def _evaluating(model: nn.Module | LayerwiseModel) -> Iterator[None]:
    """Dropout is off in the block; the model's mode is as before afterwards, also when the block fails."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _make_directory(output: Path | None) -> None:
    if output is not None:
        with naming_file(output):
            output.mkdir(parents=True, exist_ok=True)


@contextmanager
def _working_directory(output: Path | None) -> Iterator[Path]:
    """A directory for this rank's tables, beside the output when there is one; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=".layerwise-", dir=output) as folder:
        yield Path(folder)


def _write_parts(rows: np.ndarray, data: DistData, folder: Path) -> Tensor:
    """Own parts' rows as files; returns all own rows, mapped: the part's file, or of several parts the table."""
    own = own_parts(data.manifest.num_parts, data.ctx)
    for part in own:
        first, last = (bound - data.own_range[0] for bound in data.book.part2range(part))
        path = folder / f"part-{part}.npy"
        with complete_file(path) as partial, NpyWriter(partial, rows.dtype, rows[first:last].shape) as file:
            file.append(rows[first:last])
    return torch.from_numpy(open_npy(path) if len(own) == 1 else rows)

"""Layer-wise inference with all neighbours: each layer for all nodes of the graph before the next begins.

Batch-wise evaluation with all neighbours visits a node once per batch that reaches it; here every node passes every
layer once (GraphSAGE, NeurIPS'17, calls it full-batch inference). A rank computes the rows of its own nodes, in runs
of consecutive ids; the rows of their in-neighbours come by the exchange that fetches features, from a table that each
rank keeps of its own rows of the layer before. That table is a file mapped into memory, so a rank needs memory for one
batch, not for its share of the hidden rows. For a model on a GPU the host looks up the in-edges and fetches the rows,
and the GPU computes: its memory too holds one batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.graph.npy_files import open_npy
from fastsample_dist.pipeline.data import DistData, agree, own_parts
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.train.metrics import global_count
from fastsample_dist.train.models import LayeredModel

EDGES_PER_NODE = 64  # a batch ends early when its nodes have more in-edges than this on average


def layerwise(
    model: LayeredModel,
    data: DistData,
    batch_size: int = 1000,
    *,
    output: str | Path | None = None,
    on_batch: Callable[[int, int], object] | None = None,
) -> Tensor:
    """Scores of this rank's own nodes, computed with all in-neighbours at every layer.

    Collective: every rank must call this, with the same model and batch_size.

    Args:
      model: GraphSAGE, GCN, GAT or another LayeredModel; dropout is off. Computes in its parameters' dtype.
      data: with features.
      batch_size: most own nodes per batch, at least 1.
      output: directory for the result as part-<p>.npy [nodes of part p, num_classes], row i being the part's node
        i; made when it is missing, files appear when complete. None writes nothing that stays.
      on_batch: called after every batch with (batches done, batches in all), to show progress.
    Returns:
      [own nodes, num_classes], row i is node data.own_range[0] + i; a mapped file when `output` is given.
    Raises:
      ValueError: batch_size below 1, a partition without features, or of another width than the model's (on all
        ranks).
      RuntimeError: a collective failed or passed its deadline.
    Source: GraphSAGE, NeurIPS'17, algorithm 1. Memory per rank: the rows of one batch and its in-neighbours, at most
    (1 + EDGES_PER_NODE) * batch_size rows of the widest layer, or one node's in-neighbours where those are more.
    Deterministic: yes, up to the rounding of torch.mm.
    """
    agree(data.ctx, lambda: _check(model, data, batch_size))
    bounds = _batch_bounds(data, batch_size)
    steps = int(data.ctx.comm.all_reduce(torch.tensor([len(bounds) - 1]), op="max", purpose="setup"))
    lo, hi = data.own_range
    features, done, total = data.features, 0, steps * model.num_layers
    assert features is not None  # checked above
    sampler = NeighborSampler(data.graph, [-1])
    folder = None if output is None else Path(output)
    with _evaluating(model), _working_directory(folder) as work, torch.inference_mode():
        rows = None
        for number in range(model.num_layers):
            rows = None
            for step in range(steps):
                first, last = bounds[min(step, len(bounds) - 1)], bounds[min(step + 1, len(bounds) - 1)]
                batch = _infer_batch(model, number, sampler, features, torch.arange(lo + first, lo + last))
                if rows is None:
                    rows = _table(work / f"layer-{number}.npy", hi - lo, batch)
                rows[first:last] = batch.numpy()
                done += 1
                if on_batch is not None:
                    on_batch(done, total)
            features = DistFeatures(LocalFeatures(torch.from_numpy(rows), lo), data.rank_book, data.ctx.comm)
        result = _write_parts(rows, data, folder) if folder is not None else torch.from_numpy(np.array(rows))
    return result


def accuracy(scores: Tensor, data: DistData, split: str) -> float:
    """Share of a split's nodes, over all ranks, whose largest score is at their label.

    Collective: every rank must call this.

    Args:
      scores: [own nodes, num_classes], as `layerwise` returns them.
      data: with labels and that split.
      split: "train", "val" or "test".
    """
    nodes = data.split(split)
    picked = scores[nodes - data.own_range[0]].argmax(dim=1)
    correct, total = global_count(data.ctx.comm, [int((picked == data.labels_of(nodes)).sum()), nodes.numel()])
    return correct / total


def _check(model: LayeredModel, data: DistData, batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; expected at least 1.")
    if data.features is None:
        raise ValueError(f"{data.path} has no features; partition an input with features.npy.")
    if data.feature_dim != model.in_dim:
        raise ValueError(
            f"{data.path} has features of {data.feature_dim} columns but the model has in_dim {model.in_dim}; "
            "build the model for this partition."
        )


def _batch_bounds(data: DistData, batch_size: int) -> list[int]:
    """Where own batches begin and end: 0 = b[0] < b[1] < ... = own nodes; [0, 0] for a rank without nodes."""
    lo, hi = data.own_range
    offsets = data.graph.indptr[lo : hi + 1].numpy()
    bounds = [0]
    while bounds[-1] < hi - lo:
        first = bounds[-1]
        most_edges = offsets[first] + EDGES_PER_NODE * batch_size
        by_edges = int(np.searchsorted(offsets, most_edges, side="right")) - 1
        bounds.append(max(first + 1, min(first + batch_size, by_edges, hi - lo)))
    return bounds if len(bounds) > 1 else [0, 0]


def _infer_batch(
    model: LayeredModel, number: int, sampler: NeighborSampler, below: DistFeatures, nodes: Tensor
) -> Tensor:
    """Layer `number`'s rows of `nodes`, on the host, from the rows below; all ranks come here together, some with no
    nodes.
    """
    batch = sampler.sample(nodes.to(sampler.graph.indices.dtype))
    parameter = next(model.parameters())
    rows = below.fetch(batch.input_nodes, parameter.dtype).to(parameter.device)
    return model.apply_layer(number, batch.mfgs[0].to(parameter.device), rows).cpu()


def _table(path: Path, num_rows: int, like: Tensor) -> np.ndarray:
    """A new mapped file for the rows of a layer; without a name, so that its blocks are free once it is unmapped."""
    shape, dtype = (num_rows, like.shape[1]), like.numpy().dtype
    table = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    path.unlink()
    return table


@contextmanager
def _evaluating(model: LayeredModel) -> Iterator[None]:
    """Dropout is off in the block; the model's mode is as before afterwards, also when the block fails."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def _working_directory(output: Path | None) -> Iterator[Path]:
    """A directory for this rank's tables, beside the output when there is one; gone afterwards."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".layerwise-", dir=output) as folder:
        yield Path(folder)


def _write_parts(rows: np.ndarray, data: DistData, folder: Path) -> Tensor:
    """Own parts' rows as files; returns all own rows, mapped."""
    pieces = []
    for part in own_parts(data.manifest.num_parts, data.ctx):
        first, last = (bound - data.own_range[0] for bound in data.book.part2range(part))
        path = folder / f"part-{part}.npy"
        unfinished = path.with_suffix(".npy.unfinished")
        with unfinished.open("wb") as file:
            np.save(file, rows[first:last])
        unfinished.replace(path)
        pieces.append(torch.from_numpy(open_npy(path)))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

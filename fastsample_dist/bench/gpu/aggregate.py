"""`fastsample-bench gpu aggregate`: the rows of sampled neighbours combined, beside torch.sparse and torch_geometric.

One hop of a mini-batch of the benchmark's graph, rows drawn at random. Forward is the call; backward is the gradient of
the rows, by autograd, of an output that is kept. torch.sparse.mm multiplies by a CSR matrix made before the clock runs
(ones, or one over the in-degree; it has no maximum); torch_geometric is SimpleConv over an edge_index made before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fastsample_dist import NeighborSampler, ops
from fastsample_dist.bench.gpu.device import GpuDevice, GpuTimer
from fastsample_dist.bench.graphs import draw_seeds
from fastsample_dist.bench.timing import spread
from fastsample_dist.command import one_line
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.interop import pyg
from fastsample_dist.sampling.mfg import MFG

OURS, SPARSE, PYG = "fastsample_dist", "torch.sparse", "torch_geometric"
REDUCTIONS = ("sum", "mean", "max")
DTYPES = (torch.float32, torch.bfloat16)
PEER_ERRORS = (RuntimeError, NotImplementedError, ImportError, ValueError)  # of what a peer cannot do here

Combine = Callable[[Tensor], Tensor]  # rows [num_src, width] -> [num_dst, width], differentiable


@dataclass(frozen=True, kw_only=True)
class AggregateOptions:
    """What is run.

    Attributes:
      batch_size: seeds of the mini-batch.
      fanouts: of its hops; the last hop's MFG, the largest, is combined.
      widths: columns of the rows.
      rng_seed: of seeds, draws and rows.
      verify: compare output and gradient with the CPU's before a case is timed.
    """

    batch_size: int = 1024
    fanouts: tuple[int, ...] = (15, 10, 5)
    widths: tuple[int, ...] = (128, 256)
    rng_seed: int = 0
    verify: bool = False


def measure(
    graph: CSCGraph, device: GpuDevice, timer: GpuTimer, options: AggregateOptions, progress: Callable[[str], object]
) -> dict:
    """Every width, dtype and reduction.

    Returns:
      {"num_dst", "num_src", "num_edges", "cases": [see `_measure_one`], "missing": {peer: why it was left out of a
      case, the first time}}.
    Raises:
      RuntimeError: with `verify`, numbers that are not the CPU's; one line.
    """
    sampler = NeighborSampler(graph, options.fanouts, rng_seed=options.rng_seed)
    mfg = sampler.sample(draw_seeds(graph, options.batch_size, 1, options.rng_seed)[0]).mfgs[0]
    found: list[dict] = []
    missing: dict[str, str] = {}
    for width in options.widths:
        for dtype in DTYPES:
            for reduce in REDUCTIONS:
                progress(f"combining {mfg.num_edges} rows of {width} {dtype}, {reduce}")
                generator = torch.Generator().manual_seed(options.rng_seed)
                rows = torch.randn(mfg.num_src, width, generator=generator).to(dtype)
                if options.verify:
                    verify(device, mfg, rows, reduce)
                found.append(_measure_one(device, timer, mfg, rows, reduce, missing))
    return {
        "num_dst": mfg.num_dst, "num_src": mfg.num_src, "num_edges": mfg.num_edges, "cases": found, "missing": missing,
    }  # fmt: skip


def verify(device: GpuDevice, mfg: MFG, rows: Tensor, reduce: str) -> None:
    """Output and gradient on the device against the CPU's.

    Raises:
      RuntimeError: one line.
    """
    results = []
    for put in (lambda tensor: tensor, device.put):
        x = put(rows).requires_grad_()
        out = ops.aggregate(put(mfg.indptr), put(mfg.indices), x, reduce=reduce)
        results.append((out, *torch.autograd.grad(out, x, put(_output_gradient(mfg, rows)))))
    for what, expected, found in zip(("output", "gradient"), *results, strict=True):
        if not torch.equal(expected, found.cpu()):
            raise RuntimeError(
                f"verify: {reduce} of {rows.dtype} rows of {rows.shape[1]}: the {what} is not the CPU's."
            )


def contestants(device: GpuDevice, mfg: MFG, dtype: torch.dtype, reduce: str) -> dict[str, Callable[[], Combine]]:
    """By name, what makes a way of combining; it may raise PEER_ERRORS."""
    indptr, indices = device.put(mfg.indptr), device.put(mfg.indices)
    return {
        OURS: lambda: partial(_ours, indptr, indices, reduce),
        SPARSE: lambda: _sparse(indptr, indices, mfg.num_src, dtype, reduce),
        PYG: lambda: _pyg(indptr, indices, mfg.num_src, reduce),
    }


def _ours(indptr: Tensor, indices: Tensor, reduce: str, x: Tensor) -> Tensor:
    return ops.aggregate(indptr, indices, x, reduce=reduce, checked=True)  # as models do with a sampler's edges


def _sparse(indptr: Tensor, indices: Tensor, num_src: int, dtype: torch.dtype, reduce: str) -> Combine:
    if reduce == "max":
        raise ValueError("torch.sparse.mm has no maximum")
    degrees = indptr.diff()
    share = torch.ones_like(degrees, dtype=dtype) if reduce == "sum" else (1 / degrees.clamp(min=1)).to(dtype)
    values, columns = share.repeat_interleave(degrees), indices.long()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that CSR tensors are new
        matrix = torch.sparse_csr_tensor(indptr, columns, values, (degrees.numel(), num_src))
    return partial(torch.sparse.mm, matrix)


def _pyg(indptr: Tensor, indices: Tensor, num_src: int, reduce: str) -> Combine:
    conv, num_dst = pyg.simple_conv(reduce), indptr.numel() - 1
    dst = torch.arange(num_dst, device=indptr.device).repeat_interleave(indptr.diff())
    edge_index = torch.stack([indices.long(), dst])
    return lambda x: conv((x, None), edge_index, size=(num_src, num_dst))


def _output_gradient(mfg: MFG, rows: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(mfg.num_dst, rows.shape[1], generator=generator).to(rows.dtype)


def _measure_one(
    device: GpuDevice, timer: GpuTimer, mfg: MFG, rows: Tensor, reduce: str, missing: dict[str, str]
) -> dict:
    """One width, dtype and reduction, all ways in turns.

    Returns:
      {"width", "dtype", "reduce", "ways": [{"way", "forward_s", "backward_s": see `spread`, "forward_bytes_s": bytes
      of rows read, one per edge, and written per second, "ratio": of this way's time to ours, forward and backward
      together}]}; a peer that cannot take the case is left out, and `missing` gets the reason.
    """
    x = device.put(rows).requires_grad_()
    gradient = device.put(_output_gradient(mfg, rows))
    calls: dict[str, Callable[[int], object]] = {}
    for name, make in contestants(device, mfg, rows.dtype, reduce).items():
        try:
            combine = make()
            out = combine(x)
            torch.autograd.grad(out, x, gradient, retain_graph=True)
        except PEER_ERRORS as error:
            if name == OURS:
                raise
            missing.setdefault(name, f"{reduce} of {rows.dtype}: {one_line(error)}")
            continue
        calls[f"{name} forward"] = partial(_forward, combine, x)
        calls[f"{name} backward"] = partial(_backward, out, x, gradient)
    times = {name: spread(seconds) for name, seconds in timer.turns(calls).items()}
    num_bytes = (mfg.num_edges + mfg.num_dst) * rows.shape[1] * rows.element_size()
    ways = [_figures(name, times, num_bytes) for name in (OURS, SPARSE, PYG) if f"{name} forward" in times]
    return {"width": rows.shape[1], "dtype": str(rows.dtype).removeprefix("torch."), "reduce": reduce, "ways": ways}


def _forward(combine: Combine, x: Tensor, _: int) -> Tensor:
    return combine(x)


def _backward(out: Tensor, x: Tensor, gradient: Tensor, _: int) -> Tensor:
    return torch.autograd.grad(out, x, gradient, retain_graph=True)[0]


def _figures(name: str, times: dict[str, dict], num_bytes: int) -> dict:
    def both(way: str) -> float:
        return times[f"{way} forward"]["median"] + times[f"{way} backward"]["median"]

    forward = times[f"{name} forward"]
    return {
        "way": name, "forward_s": forward, "backward_s": times[f"{name} backward"],
        "forward_bytes_s": num_bytes / forward["median"], "ratio": both(name) / both(OURS),
    }  # fmt: skip

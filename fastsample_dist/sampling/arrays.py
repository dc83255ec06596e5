"""Which core samples a graph: the CPU's, or the kernels of a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.device.choice import computing
from fastsample_dist.device.placement import Table, choose_places, measured_room
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.placed import place_graph, topology_bytes
from fastsample_dist.ops import SampleSpec, SamplingGraph, kernel_choice
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.ops.kernel_choice import KernelReport


def runs_kernels(device: torch.device) -> bool:
    """Whether CUDA kernels work on this device's tensors."""
    return device.type == "cuda"


def check_graph(graph: object) -> None:
    """Refuse what is no graph.

    Raises:
      ValueError: as said.
    """
    if not isinstance(graph, CSCGraph):
        raise ValueError(f"graph is a {type(graph).__name__}; expected a CSCGraph.")


def check_kernel(kernel: str, device: torch.device | None = None, spec: SampleSpec | None = None) -> None:
    """Refuse a kernel before any work.

    Args:
      kernel: one of kernel_choice.CHOICES.
      device: that samples, once it is known.
      spec: how it draws, once that is known.
    Raises:
      ValueError: an unknown kernel, one chosen for the CPU, or one that does not draw that way.
    """
    kernel_choice.check_kernel(kernel)
    if spec is not None:
        kernel_choice.check_served(kernel, spec)
    if kernel != "auto" and device is not None and not runs_kernels(device):
        raise ValueError(
            f"kernel is {kernel!r} but the device is {device}: kernels are those of GPUs; choose a CUDA device, or "
            "kernel 'auto'."
        )


def placed(graph: CSCGraph, device: torch.device | str | None, *, weighted: bool = False) -> CSCGraph:
    """The graph where a device can sample it: itself if it is there, else a copy (see device/placement.py).

    Args:
      graph: on any device.
      device: that samples; None takes the graph's own.
      weighted: its weights are needed too.
    Raises:
      ValueError: the graph fits neither on the device nor into pinned memory, or lacks weights.
      MemoryError, RuntimeError: the memory has been taken in the meantime; a GPU that this process cannot use.
    """
    check_graph(graph)
    device = graph.device if device is None else computing(device)
    if device == graph.device:
        return graph
    table = Table("topology", topology_bytes(graph, weighted=weighted))
    [place] = choose_places([table], measured_room(device))
    return place_graph(graph, place, weighted=weighted)


def sampling_arrays(
    graph: CSCGraph, spec: SampleSpec, kernel: str = "auto", src_orig_ids: Tensor | None = None
) -> SamplingGraph:
    """The graph's arrays for the core that samples on graph.device.

    Args:
      graph: placed for its device.
      spec: how neighbours are drawn.
      kernel: "per_hop", "persistent" or "cooperative" for a GPU; "auto".
      src_orig_ids: as SamplingGraph's, for a slice of a graph.
    Raises:
      ValueError: what `check_kernel` refuses; weights that are missing.
    """
    check_kernel(kernel, graph.device, spec)
    weights = graph.edge_weights if spec.traits.weighted else None
    arrays = (graph.indptr, graph.indices, graph.orig_ids, src_orig_ids, weights)
    if not runs_kernels(graph.device):
        return SamplingGraph(*arrays)
    return CudaSamplingGraph(*arrays, device=graph.device, kernel=kernel)


def stored_weights(graph: CSCGraph, edge_ids: Tensor) -> Tensor:
    """Weights of edges, on the ids' device.

    Args:
      graph: with weights, placed where that device reads them.
      edge_ids: int64 [n], positions in graph.indices that a sampler gave.
    Returns:
      [n], dtype of the weights.
    """
    return ops.gather_rows(graph.weights, edge_ids, checked=False)


def check_edge_values(graph: CSCGraph, spec: SampleSpec) -> None:
    """Refuse to return the stored weights of the picks where there are none.

    Raises:
      ValueError: a graph without weights, or a spec without edge ids.
    """
    if graph.weights is None:
        raise ValueError(
            "edge_values is True, but the graph has no edge weights; partition an input with edge_weight.npy, or leave "
            "edge_values out."
        )
    if not spec.edge_ids:
        raise ValueError(
            "edge_values is True, but the spec's edge_ids is False; pass edge_ids=True: weights are found by them."
        )


def kernel_report(arrays: SamplingGraph) -> list[KernelReport]:
    """What kernel "auto" has measured and chosen so far, by kind of batch; empty on the CPU."""
    return arrays.kernel_report() if isinstance(arrays, CudaSamplingGraph) else []

"""Which core samples a graph: the CPU's, or the kernels of a GPU, and whether it can draw what is asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.comm.device import numbered
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.placement import Table, choose_places, measured_room, place_graph, topology_bytes
from fastsample_dist.ops import SampleSpec, SamplingGraph
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph

KERNELS = ("auto", "per_hop", "persistent")
CUDA_METHODS = ("uniform",)
VANILLA_OPERATORS = ("bucket_by_part", "compact")


def runs_kernels(device: torch.device) -> bool:
    """Whether CUDA kernels work on this device's tensors."""
    return device.type == "cuda"


def check_kernel(kernel: str) -> str:
    """The choice of a kernel itself.

    Raises:
      ValueError: not one of KERNELS.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel is {kernel!r}; expected 'auto', 'per_hop' or 'persistent'.")
    return kernel


def check_spec(spec: SampleSpec, device: torch.device, kernel: str) -> None:
    """Refuse before any work what this device does not draw.

    Raises:
      ValueError: an unknown kernel, a kernel chosen for the CPU, a method that GPUs lack.
    """
    check_kernel(kernel)
    if not runs_kernels(device):
        if kernel != "auto":
            raise ValueError(
                f"kernel is {kernel!r} but the device is {device}: kernels are those of GPUs; choose a CUDA device, or "
                "kernel 'auto'."
            )
    elif spec.method not in CUDA_METHODS:
        raise ValueError(
            f"method is {spec.method!r}, but a GPU draws uniformly only; sample on the CPU, or pass method='uniform'."
        )


def check_vanilla(device: torch.device) -> None:
    """Refuse the vanilla scheme where its operators have no kernels.

    Raises:
      ValueError: names the operators.
    """
    missing = [name for name in VANILLA_OPERATORS if name not in ops.cuda_kernels]
    if runs_kernels(device) and missing:
        raise ValueError(
            f"scheme is 'vanilla' but the device is {device}, where {' and '.join(missing)} have no kernels; use "
            "scheme 'hybrid', or the CPU."
        )


def placed(graph: CSCGraph, device: torch.device | str | None) -> CSCGraph:
    """The graph where a device can sample it: itself if it is there, else a copy (see graph/placement.py).

    Args:
      graph: on any device.
      device: that samples; None takes the graph's own.
    Raises:
      ValueError, MemoryError, RuntimeError: the graph fits neither on the device nor into pinned memory.
    """
    device = graph.device if device is None else numbered(device)
    if device == graph.device:
        return graph
    [place] = choose_places([Table("topology", topology_bytes(graph))], measured_room(device))
    return place_graph(graph, place)


def sampling_arrays(
    graph: CSCGraph, spec: SampleSpec, kernel: str = "auto", src_orig_ids: Tensor | None = None
) -> SamplingGraph:
    """The graph's arrays for the core that samples on graph.device.

    Args:
      graph: placed for its device.
      spec: how neighbours are drawn.
      kernel: "per_hop" or "persistent" for a GPU; "auto".
      src_orig_ids: as SamplingGraph's, for a slice of a graph.
    Raises:
      ValueError: what `check_spec` refuses; weights that are missing.
    """
    check_spec(spec, graph.device, kernel)
    if runs_kernels(graph.device):
        return CudaSamplingGraph(graph.indptr, graph.indices, graph.orig_ids, device=graph.device)
    weights = graph.edge_weights if spec.method == "weighted" else None
    return SamplingGraph(graph.indptr, graph.indices, graph.orig_ids, src_orig_ids, weights)

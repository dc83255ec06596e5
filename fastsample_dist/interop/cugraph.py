"""RAPIDS cuGraph's random walks and neighbour sampling on a GPU, by pylibcugraph, to compare this library with. The
only module that imports it and cupy, and only on use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph


class _Lists:
    """cuGraph's graph whose out-edges are in-neighbour lists, so that it walks against the edges as this library does.

    Its numbers of nodes and of edges have one type. Nodes are renumbered, as its Python layer does by default.

    Args:
      graph: in-neighbour lists.
      device: where it is put.
      weighted: with graph.weights.
    Raises:
      ImportError: pylibcugraph or cupy is missing.
    """

    def __init__(self, graph: CSCGraph, device: torch.device | None, *, weighted: bool = False) -> None:
        self._cupy, self.library = _libraries()
        self.device = graph.device if device is None else device
        self._dtype = torch.int32 if max(graph.num_nodes, graph.num_edges) < 2**31 else torch.int64
        self.handle = self.library.ResourceHandle()
        self.graph = self.library.SGGraph(
            self.handle,
            self.library.GraphProperties(is_symmetric=False, is_multigraph=True),
            self.array(graph.indptr),
            self.array(graph.indices),
            weight_array=self._cupy.asarray(graph.weights.to(self.device, torch.float32)) if weighted else None,
            store_transposed=False,
            renumber=True,
            do_expensive_check=False,
            input_array_format="CSR",
        )

    def array(self, numbers: Tensor) -> object:
        """What cuGraph takes for integers."""
        return self._cupy.asarray(numbers.to(self.device, self._dtype))

    def tensor(self, array: object) -> Tensor:
        """What cuGraph returned."""
        return torch.as_tensor(array, device=self.device)


def _libraries() -> tuple[ModuleType, ModuleType]:
    """(cupy, pylibcugraph)."""
    try:
        import cupy
        import pylibcugraph
    except (ImportError, OSError) as error:
        raise ImportError(
            f"cuGraph needs pylibcugraph and cupy, which cannot be imported ({error}); install pylibcugraph-cu13"
        ) from error
    return cupy, pylibcugraph


def walker(
    graph: CSCGraph,
    length: int,
    *,
    weighted: bool = False,
    p_q: tuple[float, float] | None = None,
    device: torch.device | None = None,
) -> Callable[[Tensor], Tensor]:
    """cuGraph's own random walks, against the direction of the edges as this library's.

    Args:
      graph: in-neighbour lists.
      length: nodes that a walk adds, at most.
      weighted: by graph.weights.
      p_q: node2vec's return and in-out parameters; None: walks of first order.
      device: that walks; None: the graph's.
    Returns:
      A function of roots there, int64 [num_walks], that returns integers [num_walks, length + 1], -1 behind a walk's
      end.
    Raises:
      ImportError: pylibcugraph or cupy is missing.
    """
    lists = _Lists(graph, device, weighted=weighted)
    walks = lists.library.biased_random_walks if weighted else lists.library.uniform_random_walks
    further: tuple[float, ...] = ()
    if p_q is not None:
        walks, further = lists.library.node2vec_random_walks, p_q

    def walk(roots: Tensor) -> Tensor:
        paths, *_ = walks(lists.handle, lists.graph, lists.array(roots), length, *further)
        return lists.tensor(paths).view(roots.numel(), length + 1)

    return walk


def neighbour_sampler(
    graph: CSCGraph, fanouts: Sequence[int], *, device: torch.device | None = None
) -> Callable[[Tensor], Tensor]:
    """cuGraph's own sampling of k-hop neighbourhoods, with replacement.

    Args:
      graph: in-neighbour lists.
      fanouts: picks per node and hop, from the seeds outwards; every pick is a node of the next hop.
      device: that samples; None: the graph's.
    Returns:
      A function of seeds there, int64 [num_seeds], that returns the picks of all seeds and hops, integers [num_picks].
    Raises:
      ImportError: pylibcugraph or cupy is missing.
    """
    lists, sizes = _Lists(graph, device), np.array(fanouts, dtype=np.int32)

    def sample(seeds: Tensor) -> Tensor:
        found = lists.library.homogeneous_uniform_neighbor_sample(
            lists.handle, lists.graph, lists.array(seeds), None, sizes, with_replacement=True, do_expensive_check=False
        )
        return lists.tensor(found["minors"])

    return sample

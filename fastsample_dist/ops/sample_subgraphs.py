"""sample_subgraphs: subgraphs with their edges by number, by the compiled core.

What the core returns is its own memory: the tensors are views of it, and the last of them to go gives it back.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.owned_memory import OwnedMemory
from fastsample_dist.ops.sampling_graph import SamplingGraph
from fastsample_dist.ops.subgraph_nodes import DrawnNodes, check_tables
from fastsample_dist.ops.subgraph_rule import SubgraphArguments, SubgraphRule, SubgraphTables, TableArguments


@library.DECLARED.mirror("FsSubgraph")
class _Subgraph(Structure):
    """FsSubgraph. Its fields are words of 8 bytes, so that a call's are an array of words."""

    _fields_ = (("drawn", DrawnNodes), ("edges", library.Hop), ("num_loss", c_int64))


_WORDS = [name for part in (DrawnNodes, library.Hop) for name, _ in part._fields_] + ["num_loss"]
_ARRAYS = ("nodes", "indptr", "indices", "edge_ids", "num_nodes", "num_edges", "num_loss", "num_visits")
_COUNTS = ("num_nodes", "num_edges", "num_loss", "num_visits", "steps", "probes", "cleanups", "growths")
_array_words = operator.itemgetter(*map(_WORDS.index, _ARRAYS))
library.DECLARED.functions(
    fs_sample_subgraphs=(
        POINTER(library.Graph), POINTER(SubgraphArguments), POINTER(TableArguments), c_void_p, c_int64,
        c_void_p, c_int32, c_void_p, c_void_p,
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class InducedNodes:
    """A subgraph, or the disjoint union of several, as a square graph of local ids.

    Attributes:
      nodes: ids [num_nodes] of the graph's dtype; the loss nodes first.
      indptr: int64 [num_nodes + 1]; in-edges of the nodes.
      indices: [num_edges] of the graph's dtype; sources as positions in `nodes`, rows in the order of the graph's.
      edge_ids: int64 [num_edges], positions in the graph's indices, or None.
      num_loss: loss nodes.
      num_visits: draws that gave the nodes; fewer than the budget where a subgraph ended early.
    """

    nodes: Tensor
    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    num_loss: int
    num_visits: int


@dataclass(frozen=True, eq=False)
class SampledSubgraphs:
    """Subgraphs of one call.

    Attributes:
      graphs: one per number, or their union alone.
      words: those of FsSubgraph [count], 64 bits each. (No tensor: what a call does in torch costs as much as its walk
        where other work has taken the caches.)
      num_nodes, num_edges, num_loss: int64 [count]; sizes of each subgraph, and how many of its nodes are loss nodes.
      num_visits: int64 [count]; fewer than the budget where a subgraph ended early.
      steps: int64 [count]; pops of a frontier, hops, or draws.
      probes, cleanups, growths: int64 [count]; of a dashboard.
    """

    graphs: list[InducedNodes]
    words: array

    def _counts(self, name: str) -> Tensor:
        return torch.tensor(self.words[_WORDS.index(name) :: len(_WORDS)].tolist(), dtype=torch.int64)

    num_nodes, num_edges, num_loss, num_visits, steps, probes, cleanups, growths = (
        property(operator.methodcaller("_counts", name)) for name in _COUNTS
    )


def sample_subgraphs(
    graph: SamplingGraph,
    rule: SubgraphRule,
    tables: SubgraphTables,
    numbers: Sequence[int],
    *,
    loss_flags: Tensor | None = None,
    edge_ids: bool = False,
    union: bool = False,
) -> SampledSubgraphs:
    """Subgraphs with all edges of the graph between their nodes, one subgraph per thread.

    A subgraph's nodes are its distinct visits, loss nodes first, both kinds in order of first appearance. The union of
    several has the loss nodes of the first, of the second, ..., then their other nodes in the same order: its first
    num_loss rows are an MFG whose destinations are the loss nodes.

    Args:
      graph: in-neighbour lists with a row for every source.
      rule: how nodes are drawn.
      tables: what they are drawn from, made for this rule and graph.
      numbers: 0 .. 2**64 - 1 each; may repeat.
      loss_flags: uint8 or bool [num_nodes of the graph], not 0 for a loss node; None: all nodes are. Of
        method "ego" only roots can be.
      edge_ids: return which edges of the graph they are.
      union: return one graph, the disjoint union.
    Raises:
      ValueError: as `subgraph_nodes`; flags of another dtype or length; a union that int32 ids cannot number.
    Source: Zeng et al., "Accurate, efficient and scalable graph embedding", IPDPS 2019, algorithms 1 to 3 and 5.
    Memory: at most twice a subgraph's own; while a union of several is made, theirs besides. Deterministic: yes, by
    (rng_seed, number) alone.
    """
    check_tables(graph, tables)
    if loss_flags is not None:
        loss_flags = checks.vector("loss_flags", loss_flags, (torch.uint8, torch.bool), graph.num_rows)
    outside = [number for number in numbers if not 0 <= number < 2**64]
    if outside:
        raise ValueError(f"numbers holds {outside[0]}; expected 0 to 2**64 - 1.")
    count, asked = len(numbers), array("Q", numbers)
    words, joined = _zero_words(count), _zero_words(1) if union else None
    library.call(
        library.core().fs_sample_subgraphs,
        graph.view, rule.arguments(), tables.arguments(), _address(asked), count,
        library.address(loss_flags), edge_ids, _address(words), None if joined is None else _address(joined),
    )  # fmt: skip
    return SampledSubgraphs(_views(words if joined is None else joined, graph.dtype, edge_ids), words)


def _zero_words(count: int) -> array:
    """FsSubgraph [count]."""
    return array("q", bytes(8 * len(_WORDS) * count))


def _address(words: array) -> int:
    return words.buffer_info()[0]


def _views(words: array, dtype: torch.dtype, edge_ids: bool) -> list[InducedNodes]:
    """Views of the library's memory; the last of a subgraph's gives its memory back."""
    graphs = []
    for first in range(0, len(words), len(_WORDS)):
        owner = OwnedMemory((words, first), _free)
        own = words[first : first + len(_WORDS)]
        nodes, indptr, indices, positions, num_nodes, num_edges, num_loss, num_visits = _array_words(own)
        graphs.append(
            InducedNodes(
                owner.tensor(nodes, num_nodes, dtype),
                owner.tensor(indptr, num_nodes + 1, torch.int64),
                owner.tensor(indices, num_edges, dtype),
                owner.tensor(positions, num_edges, torch.int64) if edge_ids else None,
                num_loss,
                num_visits,
            )
        )
    return graphs


def _free(subgraph: tuple[array, int]) -> None:
    words, first = subgraph
    library.core().fs_subgraphs_free(_address(words) + 8 * first, 1)

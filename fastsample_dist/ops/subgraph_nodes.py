"""subgraph_nodes: the nodes of subgraphs by number, by the compiled core.

What the core returns is its own memory: the tensors are views of it, and the last of them to go gives it back.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_int64, c_uint64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.owned_memory import OwnedMemory
from fastsample_dist.ops.sampling_graph import SamplingGraph
from fastsample_dist.ops.subgraph_rule import SubgraphArguments, SubgraphRule, SubgraphTables, TableArguments


@library.DECLARED.mirror("FsSubgraphNodes")
class DrawnNodes(Structure):
    """FsSubgraphNodes. Its fields are words of 8 bytes, so that a call's are a tensor."""

    _fields_ = (
        ("nodes", c_void_p),
        ("num_nodes", c_int64),
        ("num_visits", c_int64),
        ("steps", c_int64),
        ("probes", c_int64),
        ("cleanups", c_int64),
        ("growths", c_int64),
    )


_FIELDS = tuple(name for name, _ in DrawnNodes._fields_)
library.DECLARED.functions(
    fs_subgraph_nodes=(
        POINTER(library.Graph), POINTER(SubgraphArguments), POINTER(TableArguments), c_uint64, c_int64,
        c_void_p,
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class SubgraphNodes:
    """Nodes of consecutive subgraphs.

    Attributes:
      nodes: by subgraph, ids [num_nodes]: distinct visits in order of first appearance.
      num_visits: int64 [count]; fewer than the budget where a subgraph ended early.
      steps: int64 [count]; pops of a frontier, hops, or draws.
      probes, cleanups, growths: int64 [count]; of a dashboard.
    """

    nodes: list[Tensor]
    num_visits: Tensor
    steps: Tensor
    probes: Tensor
    cleanups: Tensor
    growths: Tensor


def subgraph_nodes(
    graph: SamplingGraph, rule: SubgraphRule, tables: SubgraphTables, first: int, count: int
) -> SubgraphNodes:
    """The nodes of the subgraphs first .. first + count - 1, one subgraph per thread.

    Args:
      graph: in-neighbour lists with a row for every source.
      rule: how they are drawn.
      tables: what they are drawn from, made for this rule and graph.
      first: 0 .. 2**64 - count, number of the first one.
      count: 0 or more.
    Raises:
      ValueError: tables of another id dtype or method, roots or source ids outside the graph, numbers out of range.
    Source: Zeng et al., "Accurate, efficient and scalable graph embedding", IPDPS 2019, algorithms 2, 3 and 5; Zeng et
    al., "GraphSAINT", ICLR 2020, section 3. Deterministic: yes, by (rng_seed, number) alone.
    """
    checks.require(
        min(first, count) >= 0 and first + count <= 2**64,
        f"subgraphs {first} to {first + count - 1} were asked for; expected numbers of 64 bits.",
    )
    check_tables(graph, tables)
    words = torch.zeros((count, len(_FIELDS)), dtype=torch.int64)  # FsSubgraphNodes [count]
    library.call(
        library.core().fs_subgraph_nodes,
        graph.view, rule.arguments(), tables.arguments(), first, count, words.data_ptr(),
    )  # fmt: skip
    owner = OwnedMemory(words, _free)
    addresses, sizes = (words[:, _FIELDS.index(name)].tolist() for name in ("nodes", "num_nodes"))
    nodes = [owner.tensor(at, size, graph.dtype) for at, size in zip(addresses, sizes, strict=True)]
    return SubgraphNodes(nodes, *words[:, _FIELDS.index("num_visits") :].clone().unbind(1))


def check_tables(graph: SamplingGraph, tables: SubgraphTables) -> None:
    """Refuse tables whose ids are not of the graph's dtype."""
    for name in ("roots", "connected", "cluster_nodes"):
        table = getattr(tables, name)
        if table is not None and table.dtype != graph.dtype:
            raise ValueError(f"{name} is {table.dtype} but indices is {graph.dtype}; they must agree.")


def _free(words: Tensor) -> None:
    library.core().fs_subgraph_nodes_free(words.data_ptr(), words.shape[0])

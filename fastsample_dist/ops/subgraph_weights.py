"""node_inclusion, subgraph_weights, edge_fingerprint: the probability of nodes and edges to be in a random subgraph,
and the edge weights that make up for it.

A law says how a random subgraph comes about, by numbers of the nodes that are asked for (a subgraph's, as a rule):
independent draws, clusters, or counted subgraphs. csrc/include/fastsample_inclusion.h has the formulas.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library

LAW_CODES = {"draws": 0, "clusters": 1, "counts": 2}
FORM_CODES = {"inclusion": 0, "ratio": 1, "saint": 2}
library.DECLARED.values(
    **{f"FS_INCLUSION_{name.upper()}": code for name, code in LAW_CODES.items()},
    FS_EDGE_INCLUSION=0, FS_RATIO_WEIGHTS=1, FS_SAINT_WEIGHTS=2,
)  # fmt: skip


@library.DECLARED.mirror("FsInclusionLaw")
class _Law(Structure):
    """FsInclusionLaw."""

    _fields_ = (
        ("chances", c_void_p),
        ("arrivals", c_void_p),
        ("links", c_void_p),
        ("shares", c_void_p),
        ("draws", c_double),
        ("clusters", c_void_p),
        ("same", c_double),
        ("apart", c_double),
        ("bits", c_void_p),
        ("num_words", c_int64),
        ("count", c_int64),
        ("num_nodes", c_int64),
        ("kind", c_int32),
    )


@library.DECLARED.mirror("FsSubgraphEdges")
class _Edges(Structure):
    """FsSubgraphEdges."""

    _fields_ = (
        ("indptr", c_void_p),
        ("indices", c_void_p),
        ("row_sums", c_void_p),
        ("num_edges", c_int64),
        ("id_type", c_int32),
        ("form", c_int32),
        ("num_threads", c_int32),
    )


library.DECLARED.functions(
    fs_node_inclusion=(POINTER(_Law), c_void_p),
    fs_subgraph_weights=(POINTER(_Law), POINTER(_Edges), c_void_p),
    fs_edge_fingerprint=(POINTER(library.Graph), c_int32, POINTER(c_uint64), c_void_p),
)


@dataclass(frozen=True, eq=False)
class DrawsLaw:
    """A subgraph of independent draws of nodes, and of Poisson arrivals at them.

    Attributes:
      chances: float64 [num_nodes], 0 .. 1; probability that a draw visits the node.
      draws: their number.
      arrivals: float64 [num_nodes], 0 or more: mean arrivals at the node from others; None: none.
      links: float64 [num_nodes], 0 or more: what each edge from the node brings its other end of these; None: 0.
      shares: float64 [num_nodes]; a draw visits both ends of an edge with the sum of theirs; None: 0.
    """

    chances: Tensor
    draws: int
    arrivals: Tensor | None = None
    links: Tensor | None = None
    shares: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        """Nodes that it knows."""
        return self.chances.numel()

    def _arguments(self) -> _Law:
        given = {name: getattr(self, name) for name in ("chances", "arrivals", "links", "shares")}
        checks.on_host(**given)
        columns = [
            None if column is None else checks.vector(name, column, (torch.float64,), self.num_nodes)
            for name, column in given.items()
        ]
        law = _Law(*map(library.address, columns), self.draws)
        return _finish(law, self.num_nodes, "draws", columns)


@dataclass(frozen=True, eq=False)
class ClustersLaw:
    """A subgraph of whole clusters.

    Attributes:
      clusters: int64 [num_nodes]; cluster of each node.
      same, apart: probability that a subgraph holds a cluster, and two given ones.
    """

    clusters: Tensor
    same: float
    apart: float

    @property
    def num_nodes(self) -> int:
        """Nodes that it knows."""
        return self.clusters.numel()

    def _arguments(self) -> _Law:
        checks.on_host(clusters=self.clusters)
        clusters = checks.vector("clusters", self.clusters, (torch.int64,))
        law = _Law(clusters=clusters.data_ptr(), same=self.same, apart=self.apart)
        return _finish(law, self.num_nodes, "clusters", [clusters])


@dataclass(frozen=True, eq=False)
class CountsLaw:
    """Subgraphs that were counted.

    Attributes:
      bits: int64 [num_nodes, words]; bit i of a row says whether the node is in subgraph i.
      count: subgraphs, at most 64 * words.
    """

    bits: Tensor
    count: int

    @property
    def num_nodes(self) -> int:
        """Nodes that it knows."""
        return self.bits.shape[0]

    def _arguments(self) -> _Law:
        checks.on_host(bits=self.bits)
        bits = checks.matrix("bits", self.bits, (torch.int64,))
        law = _Law(bits=bits.data_ptr(), num_words=bits.shape[1], count=self.count)
        return _finish(law, self.num_nodes, "counts", [bits])


InclusionLaw = DrawsLaw | ClustersLaw | CountsLaw


def _finish(law: _Law, num_nodes: int, kind: str, columns: list[Tensor | None]) -> _Law:
    law.num_nodes, law.kind = num_nodes, LAW_CODES[kind]
    law.columns = columns  # which the addresses are of
    return law


def node_inclusion(law: InclusionLaw) -> Tensor:
    """Probability of every node of the law to be in a subgraph, float64 [num_nodes].

    Raises:
      ValueError: a column of another dtype or length, or not in host memory; fewer bits than counted subgraphs.
    Deterministic: yes, the same bits on every processor.
    """
    out = torch.empty(law.num_nodes, dtype=torch.float64)
    library.call(library.core().fs_node_inclusion, ctypes.byref(law._arguments()), out.data_ptr())
    return out


def subgraph_weights(
    indptr: Tensor,
    indices: Tensor,
    law: InclusionLaw,
    form: str = "ratio",
    *,
    row_sums: Tensor | None = None,
    num_threads: int | None = None,
) -> Tensor:
    """Weights of a subgraph's edges by the probability P(u, v) that a subgraph holds both ends of one.

    Args:
      indptr: int64 [num_nodes + 1]; CSC offsets from 0 to num_edges.
      indices: int32 | int64 [num_edges]; numbers of the law's nodes, parallel edges side by side.
      law: of the subgraph's nodes.
      form: "ratio": 1 / P(u, v), scaled so that row v adds up to row_sums[v]; "saint": P(v) / P(u, v), v the row;
        "inclusion": P(u, v) itself.
      row_sums: float64 [num_nodes], for "ratio".
      num_threads: threads that share the rows; None takes torch's setting. Never changes a result.
    Returns:
      [num_edges], float32, float64 for "inclusion". An edge of a node to itself has P(v).
    Raises:
      ValueError: an unknown form, an offset or id out of range, a shape or dtype mismatch, a tensor that is not in host
        memory.
    Source: GraphSAINT (ICLR 2020), section 3.2, whose alpha is the inverse of "saint". Cost: O(num_edges).
    Deterministic: yes, the same bits on every processor.
    """
    checks.require(form in FORM_CODES, f"form is {form!r}; expected one of {', '.join(map(repr, FORM_CODES))}.")
    indptr = checks.vector("indptr", indptr, (torch.int64,), law.num_nodes + 1)
    indices = checks.vector("indices", indices, checks.ID_DTYPES)
    if form == "ratio":
        checks.require(row_sums is not None, "row_sums is None; form 'ratio' needs the sum of every row.")
        row_sums = checks.vector("row_sums", row_sums, (torch.float64,), law.num_nodes)
    checks.on_host(indptr=indptr, indices=indices, row_sums=row_sums)
    first, last, num_edges = int(indptr[0]), int(indptr[-1]), indices.numel()
    checks.require(
        first == 0 and last == num_edges,
        f"indptr runs from {first} to {last} but indices has {num_edges} entries; expected 0 to {num_edges}.",
    )
    out = torch.empty(indices.numel(), dtype=torch.float64 if form == "inclusion" else torch.float32)
    edges = _Edges(
        indptr.data_ptr(), indices.data_ptr(), library.address(row_sums), indices.numel(), library.type_code(indices),
        FORM_CODES[form], library.num_threads(num_threads),
    )  # fmt: skip
    function = library.core().fs_subgraph_weights
    library.call(function, ctypes.byref(law._arguments()), ctypes.byref(edges), out.data_ptr())
    return out


class EdgeFingerprint(NamedTuple):
    """What one pass over the edges says of a graph.

    Attributes:
      is_symmetric: every edge is there in both directions, equally often (but for a chance of about 2^-64).
      loops: int32 [num_nodes]; edges of each node to itself.
    """

    is_symmetric: bool
    loops: Tensor


def edge_fingerprint(indptr: Tensor, indices: Tensor, num_threads: int | None = None) -> EdgeFingerprint:
    """Whether a graph is its own reverse: sums of a hash of its edges, along and against them.

    Args:
      indptr: int64 [num_nodes + 1]; CSC offsets, non-decreasing.
      indices: int32 | int64 [num_edges].
      num_threads: threads that share the rows; None takes torch's setting. Never changes a result.
    Raises:
      ValueError: damaged offsets, a dtype mismatch, a tensor that is not in host memory.
    Cost: one pass over the edges. Memory: 4 bytes per node.
    """
    checks.on_host(indptr=indptr, indices=indices)
    indptr = checks.vector("indptr", indptr, (torch.int64,))
    checks.require(indptr.numel() >= 1, "indptr is empty; expected num_nodes + 1 offsets.")
    indices = checks.vector("indices", indices, checks.ID_DTYPES)
    rows = indptr.numel() - 1
    graph = library.Graph(
        indptr=indptr.data_ptr(), indices=indices.data_ptr(), num_rows=rows, num_sources=rows,
        num_edges=indices.numel(), id_type=library.type_code(indices),
    )  # fmt: skip
    sums, loops = (c_uint64 * 2)(), torch.empty(rows, dtype=torch.int32)
    threads = library.num_threads(num_threads)
    library.call(library.core().fs_edge_fingerprint, ctypes.byref(graph), threads, sums, loops.data_ptr())
    return EdgeFingerprint(sums[0] == sums[1], loops)

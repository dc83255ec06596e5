"""A graph's topology as in-neighbour lists (compressed sparse columns).

`indptr` int64 [N + 1] and `indices` [E]: the sources of the edges into node v are
`indices[indptr[v] : indptr[v + 1]]`, in canonical order: ascending original id. A partitioned graph is
relabelled, so there a row is sorted by `orig_ids[source]` and the order survives relabelling; that is what
lets a sample be the same in every partitioning.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.ops import checks

INT32_MAX_NODES = 2**31 - 1
_CHECKED_AT_ONCE = 1 << 24  # weights


def id_dtype(num_nodes: int) -> torch.dtype:
    """int32 while every node id fits, else int64."""
    return torch.int32 if num_nodes <= INT32_MAX_NODES else torch.int64


@dataclass(frozen=True, eq=False)
class CSCGraph:
    """In-neighbour lists of a directed graph.

    Attributes:
      indptr: int64 [num_nodes + 1]; row offsets, non-decreasing, `indptr[0] == 0`.
      indices: int32 | int64 [num_edges]; source node ids, rows in canonical order (see the module text).
      weights: float32 | float64 [num_edges] or None; one weight per edge.
      orig_ids: int64 [num_nodes] or None; original id of each node, None when ids are original already.
      device: whose kernels read the graph; None: that of its tensors. It differs for a graph in pinned host memory
        that a GPU samples (device/placement.py).
      edge_map: int32 | int64 [num_edges] or None; place of each edge in the list that the graph was made from.
    Args:
      weights_checked: the weights are known to be finite and not negative (those of a partition, which was refused
        otherwise), so they are not read here.
    Raises:
      ValueError: a wrong dtype, a wrong shape, offsets that do not end at num_edges, or a weight that is negative,
        infinite or NaN. Ids inside `indices` are not read here (a mapped graph stays untouched); `validate()` reads
        them all.
    """

    indptr: Tensor
    indices: Tensor
    weights: Tensor | None = None
    orig_ids: Tensor | None = None
    device: torch.device | None = None
    edge_map: Tensor | None = None
    weights_checked: InitVar[bool] = False

    def __post_init__(self, weights_checked: bool) -> None:
        for name in ("indptr", "indices", "weights", "orig_ids", "edge_map"):
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                object.__setattr__(self, name, checks.as_tensor(value))
        checks.tensors(indptr=self.indptr, indices=self.indices)
        if self.device is None:
            object.__setattr__(self, "device", self.indptr.device)
        _check_column("indptr", self.indptr, (torch.int64,))
        _check_column("indices", self.indices, (torch.int32, torch.int64))
        if self.indptr.numel() == 0:
            raise ValueError("indptr is empty; a graph of N nodes needs N + 1 offsets, at least [0].")
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        if first != 0 or last != self.indices.numel():
            raise ValueError(
                f"indptr runs from {first} to {last} but indices has {self.indices.numel()} entries; "
                "expected 0 to len(indices)."
            )
        if self.weights is not None:
            _check_column("weights", self.weights, (torch.float32, torch.float64), self.num_edges)
            if not weights_checked:
                _check_weights(self.weights)
        if self.orig_ids is not None:
            _check_column("orig_ids", self.orig_ids, (torch.int64,), self.num_nodes)
        if self.edge_map is not None:
            _check_column("edge_map", self.edge_map, (torch.int32, torch.int64), self.num_edges)

    @property
    def num_nodes(self) -> int:
        """Number of nodes (rows)."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return self.indices.numel()

    def in_degrees(self) -> Tensor:
        """In-degree of every node, int64 [num_nodes]."""
        return self.indptr[1:] - self.indptr[:-1]

    @cached_property
    def edge_weights(self) -> ops.EdgeWeights:
        """Weights and alias tables, for drawing edges by weight; built on first use and kept with the graph.

        Memory: 8 bytes per edge, and 8 per node where some weight is 0 (`ops.alias_tables`).

        Raises:
          ValueError: the graph has no weights, or one that is negative, infinite or NaN.
        """
        if self.weights is None:
            raise ValueError("the graph has no edge weights; build it with weights, one per edge, or sample uniformly.")
        return ops.EdgeWeights(self.weights.contiguous(), ops.alias_tables(self.indptr, self.weights))

    def advise_huge_pages(self, *, now: bool = False) -> None:
        """Ask the system to hold the topology in huge pages, which sampling's random reads benefit from.

        Args:
          now: gather what is in memory already (for a graph held there; a mapped one is read as it is used).
        """
        for column in (self.indptr, self.indices, self.weights, self.orig_ids):
            if column is not None:
                ops.advise_huge_pages(column, now=now)

    def check_offsets(self) -> None:
        """Refuse offsets that decrease: with the ends, which are always looked at, none leaves the graph then.

        Raises:
          ValueError: names the first bad row. Cost: O(num_nodes).
        """
        decreases = self.indptr[1:] < self.indptr[:-1]
        if bool(decreases.any()):
            row = int(torch.nonzero(decreases)[0])
            raise ValueError(f"indptr decreases at node {row}; offsets must be non-decreasing.")

    def validate(self) -> None:
        """Read the whole graph and refuse offsets that decrease or source ids outside 0 .. num_nodes - 1.

        Raises:
          ValueError: names the first bad row or the bad ids. Cost: O(num_nodes + num_edges).
        """
        self.check_offsets()
        if self.num_edges:
            low, high = int(self.indices.min()), int(self.indices.max())
            if low < 0 or high >= self.num_nodes:
                raise ValueError(f"indices holds node ids from {low} to {high}; expected 0 to {self.num_nodes - 1}.")

    def transposed(self) -> CSCGraph:
        """The graph with every edge turned round: row v lists the destinations of the edges out of v.

        A walk moves from a node to one of its row, so against the edges on a graph and along them on its transposed
        one. Rows are canonical again (ascending original id, parallel edges by weight, then in their old order);
        weights and edge_map follow their edges, orig_ids stay. Memory while it runs: at most
        28 bytes per edge and 24 per node.

        Raises:
          ValueError: the graph is on a GPU, or it is a slice: an edge comes from a node that has no row.
        """
        if self.indices.device.type != "cpu":
            raise ValueError(f"the graph is on {self.indices.device}; transpose it on the CPU, then move it.")
        order = torch.from_numpy(self._transposed_order())
        dst = destinations(self.indptr.numpy(), 0, self.num_edges)  # again: not held while edges are sorted
        indices = torch.from_numpy(dst).to(self.indices.dtype)[order]
        del dst
        degrees = np.bincount(self.indices.numpy(), minlength=self.num_nodes)
        if len(degrees) > self.num_nodes:
            raise ValueError(
                f"indices holds node {len(degrees) - 1} but the graph has {self.num_nodes} rows; expected the whole "
                "graph (a slice of it cannot be transposed)."
            )
        indptr = np.concatenate([[0], degrees.cumsum()])
        columns = [None if column is None else column[order] for column in (self.weights, self.edge_map)]
        graph = CSCGraph(
            torch.from_numpy(indptr), indices, columns[0], self.orig_ids, edge_map=columns[1], weights_checked=True
        )
        graph.advise_huge_pages(now=True)
        return graph

    def _transposed_order(self) -> np.ndarray:
        """Permutation that sorts edges by (source, original id of the destination, weight)."""
        dst = destinations(self.indptr.numpy(), 0, self.num_edges)
        if self.orig_ids is not None:
            dst = self.orig_ids.numpy()[dst]
        weights = None if self.weights is None else self.weights.numpy()
        return _row_major_order(dst, self.indices.numpy(), self.num_nodes, weights)

    @classmethod
    def from_edge_index(
        cls,
        src: Tensor,
        dst: Tensor,
        num_nodes: int,
        weights: Tensor | None = None,
        *,
        edge_map: Tensor | None = None,
        weights_checked: bool = False,
    ) -> CSCGraph:
        """Build the graph of the edges src[i] -> dst[i]; parallel edges are kept.

        Args:
          src: integer [num_edges]; source node ids.
          dst: integer [num_edges]; destination node ids.
          num_nodes: number of nodes; ids are 0 .. num_nodes - 1.
          weights: float [num_edges] or None, finite and not negative; follows its edge.
          edge_map: integer [num_edges] or None; follows its edge. Where it ascends, as it does along a list, so does it
            among parallel edges of one weight.
          weights_checked: they are known to be finite and not negative.
        Returns:
          CSCGraph whose row v lists the sources of the edges into v, ascending, parallel edges by weight, so that the
          order of the edge list does not matter; int32 ids when they fit. Held in huge pages where possible.
        Raises:
          ValueError: lengths or types differ, an id is negative or >= num_nodes, or a weight is negative, infinite or
            NaN (by its position in the list).
        """
        num_nodes = checks.whole("num_nodes", num_nodes, 0)
        src, dst = (_node_ids(name, ids, num_nodes) for name, ids in (("src", src), ("dst", dst)))
        if src.numel() != dst.numel():
            raise ValueError(f"src has {src.numel()} entries and dst has {dst.numel()}; they must be equal.")
        if weights is not None:
            weights = _edge_column("weights", weights, (torch.float32, torch.float64), src.numel())
            if not weights_checked:
                _check_weights(weights)
        if edge_map is not None:
            edge_map = _edge_column("edge_map", edge_map, (torch.int32, torch.int64), src.numel())
        order = _row_major_order(src.numpy(), dst.numpy(), num_nodes, None if weights is None else weights.numpy())
        indptr = np.zeros(num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(dst.numpy(), minlength=num_nodes), out=indptr[1:])
        indices = src[torch.from_numpy(order)].to(id_dtype(num_nodes))
        if weights is not None:
            weights = weights[torch.from_numpy(order)]
        if edge_map is not None:
            edge_map = edge_map[torch.from_numpy(order)]
        graph = cls(torch.from_numpy(indptr), indices, weights, edge_map=edge_map, weights_checked=True)
        graph.advise_huge_pages(now=True)
        return graph


def row_positions(indptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the entries of some rows are, row after row.

    Args:
      indptr: int64 [num_rows + 1].
      rows: integer [n]; row ids, in any order.
    Returns:
      (positions int64 [m], owner int64 [m]): entry i of the result belongs to rows[owner[i]].
    """
    starts = indptr[rows]
    degrees = indptr[rows + 1] - starts
    owner = np.repeat(np.arange(len(rows)), degrees)
    ends = np.cumsum(degrees)
    positions = np.arange(len(owner), dtype=np.int64) + (starts - (ends - degrees))[owner]
    return positions, owner


def destinations(indptr: np.ndarray, first_edge: int, count: int) -> np.ndarray:
    """Destination of each of the edges first_edge .. first_edge + count - 1.

    Args:
      indptr: int64 [num_nodes + 1]; row offsets.
    Returns:
      int64 [count].
    """
    if not count:
        return np.empty(0, dtype=np.int64)
    lo = int(np.searchsorted(indptr, first_edge, side="right")) - 1
    hi = int(np.searchsorted(indptr, first_edge + count - 1, side="right"))
    inside = np.clip(indptr[lo : hi + 1], first_edge, first_edge + count)
    return np.repeat(np.arange(lo, hi), np.diff(inside))


def _row_major_order(src: np.ndarray, dst: np.ndarray, num_nodes: int, weights: np.ndarray | None) -> np.ndarray:
    """Permutation that sorts edges by (dst, src, weight)."""
    if num_nodes > 2**31:
        return np.lexsort((src, dst) if weights is None else (weights, src, dst))
    pairs = dst.astype(np.int64)  # (dst, src) as one number, which fits: one sort instead of two
    pairs *= num_nodes
    pairs += src
    return np.argsort(pairs, kind="stable") if weights is None else np.lexsort((weights, pairs))


def _check_column(name: str, value: Tensor, dtypes: tuple[torch.dtype, ...], length: int | None = None) -> None:
    expected = " or ".join(str(dtype) for dtype in dtypes)
    if not isinstance(value, Tensor) or value.dim() != 1 or value.dtype not in dtypes:
        found = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(type(value))
        raise ValueError(f"{name} is {found}; expected a one-dimensional tensor of {expected}.")
    if length is not None and value.numel() != length:
        raise ValueError(f"{name} has {value.numel()} entries; expected {length}.")


def _edge_column(name: str, given: object, dtypes: tuple[torch.dtype, ...], num_edges: int) -> Tensor:
    """One value per edge, without derivatives: sampling has none."""
    try:
        column = checks.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError):  # text, rows of unequal length
        found = type(given).__name__
        raise ValueError(f"{name} is a {found}; expected a tensor or list, one value per edge.") from None
    _check_column(name, column, dtypes, num_edges)
    return column


def _check_weights(weights: Tensor) -> None:
    """Refuse weights that no edge can be drawn in proportion to; memory: a chunk of marks."""
    for lo in range(0, weights.numel(), _CHECKED_AT_ONCE):
        chunk = weights[lo : lo + _CHECKED_AT_ONCE]
        sound = torch.isfinite(chunk) & (chunk >= 0)
        if not bool(sound.all()):
            position = lo + int(torch.nonzero(~sound)[0])
            raise ValueError(
                f"the weight of edge {position} is {float(weights[position])}; expected a finite number, 0 or more "
                "(edges are drawn in proportion to it); correct it, or leave the weights out."
            )


def _node_ids(name: str, given: object, num_nodes: int) -> Tensor:
    try:
        ids = checks.as_tensor(given).reshape(-1)
    except (TypeError, ValueError, RuntimeError):  # text, None, rows of unequal length
        raise ValueError(f"{name} is a {type(given).__name__}; expected a tensor or list of node ids.") from None
    if ids.dtype.is_floating_point or ids.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise ValueError(f"{name} is {ids.dtype}; node ids must be integers.")
    ids = checks.signed(name, ids)
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= num_nodes:
            raise ValueError(f"{name} holds node ids from {low} to {high}; expected 0 to {num_nodes - 1}.")
    return ids

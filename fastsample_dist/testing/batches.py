"""Reads sampled mini-batches: checks what must hold in every one, and counts how often each edge was taken.

Edges are told apart by their ids when the batches carry them; otherwise parallel edges are one class, which can be
taken as often as there are edges in it. An edge that the law never picks (of weight 0, say) has no room in its class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampleSpec, checks
from fastsample_dist.ops.reference import RowLaw

SampleFunction = Callable[[Tensor, int], Any]


def fail(step: int, hop: int, text: str) -> NoReturn:
    """Raise AssertionError for what one batch shows."""
    raise AssertionError(f"step {step}, hop {hop}: {text}")


@dataclass(frozen=True, eq=False)
class HopEdges:
    """One MFG of a batch as NumPy arrays; `dst` holds the destination's local id of every edge."""

    step: int
    hop: int
    indptr: np.ndarray
    indices: np.ndarray
    src_nodes: np.ndarray
    dst: np.ndarray
    edge_ids: np.ndarray | None

    @property
    def num_dst(self) -> int:
        """Number of destinations."""
        return self.indptr.size - 1

    def picks(self) -> dict[int, list]:
        """Per destination node what it got, in order: source nodes, and edge ids where the batch has them."""
        ids = [] if self.edge_ids is None else [self.edge_ids.tolist()]
        edges = list(zip(self.src_nodes[self.indices].tolist(), *ids, strict=True))
        ends = self.indptr.tolist()
        nodes = self.src_nodes[: self.num_dst].tolist()
        return {node: edges[ends[i] : ends[i + 1]] for i, node in enumerate(nodes)}


def read_layers(batch: Any, seeds: Tensor, step: int, num_hops: int) -> list[HopEdges]:
    """The layers of a batch from the seeds outwards, each a well-formed MFG on top of the one before.

    Raises:
      AssertionError: names the step, the hop and the first thing that is wrong.
    """
    if not hasattr(batch, "mfgs"):
        raise AssertionError(f"step {step}: the sampler returned a {type(batch).__name__}; expected a MiniBatch.")
    if len(batch.mfgs) != num_hops:
        raise AssertionError(f"step {step}: the batch has {len(batch.mfgs)} MFGs; expected one for each of {num_hops}.")
    layers = []
    dst_nodes = _array(seeds)
    for hop, mfg in enumerate(reversed(batch.mfgs)):
        layer = _read_layer(mfg, dst_nodes, step, hop)
        _check_order(layer)
        layers.append(layer)
        dst_nodes = layer.src_nodes
    return layers


LawOfRow = Callable[[slice, int], RowLaw]  # (positions of the row's edges in graph.indices, fanout) -> law
_ANY_NUMBER = 2**40  # picks of one edge, where it can be picked more than once


@dataclass(frozen=True, eq=False)
class _Limits:
    """What batches may hold with one fanout; filled in row by row, as rows are met.

    Attributes:
      fewest, most: int64 [num_nodes]; picks of a row; `most` is -1 for a row that was not met.
      room: int64 [num_classes]; picks of a class.
    """

    fewest: np.ndarray
    most: np.ndarray
    room: np.ndarray

    @classmethod
    def none_met(cls, num_nodes: int, num_classes: int) -> _Limits:
        """Before the first row."""
        return cls(np.full(num_nodes, -1), np.full(num_nodes, -1), np.zeros(num_classes, dtype=np.int64))


class EdgeClasses:
    """The edges of a graph in classes, and how many picks of one destination fit into each.

    Args:
      graph: read as a whole. Cost: O(num_edges * log(num_edges)) time, about 60 bytes per edge.
      spec: `edge_ids`: every edge is a class of its own; `fanouts`.
      law_of: says what fits; asked once per row and fanout.
    """

    def __init__(self, graph: CSCGraph, spec: SampleSpec, law_of: LawOfRow) -> None:
        self.spec, self.law_of = spec, law_of
        self.indptr = _array(graph.indptr)
        self.indices = _array(graph.indices)
        degrees = np.diff(self.indptr)
        self.num_nodes = degrees.size
        dst = np.repeat(np.arange(self.num_nodes), degrees)
        self.degrees = degrees
        keys = dst * self.num_nodes + self.indices
        self.keys, self.class_of_edge = keys, np.arange(keys.size)
        if not spec.edge_ids:
            self.keys, self.class_of_edge = np.unique(keys, return_inverse=True)
        self._limits = {fanout: _Limits.none_met(degrees.size, self.keys.size) for fanout in spec.fanouts}

    @property
    def num_classes(self) -> int:
        """Classes of all rows."""
        return self.keys.size

    def of_row(self, node: int) -> tuple[slice, int, np.ndarray, np.ndarray]:
        """The row's edges, its first class, every position's class counted from there, every class's source."""
        edges = self._edges(node)
        classes = self.class_of_edge[edges]
        first, end = (int(classes.min()), int(classes.max()) + 1) if classes.size else (0, 0)
        return edges, first, classes - first, self.keys[first:end] % self.num_nodes

    def of_layer(self, layer: HopEdges) -> np.ndarray:
        """Class of every edge of a layer, after all checks that need no statistics.

        Raises:
          AssertionError: an edge that is not in the graph or has weight 0, an edge taken twice, a wrong count.
        """
        dst, src = layer.src_nodes[layer.dst], layer.src_nodes[layer.indices]
        self._check_counts(layer)
        if self.spec.edge_ids:
            classes = self._by_edge_id(layer, dst, src)
        else:
            keys = dst * self.num_nodes + src
            classes = np.minimum(np.searchsorted(self.keys, keys), max(self.keys.size - 1, 0))
            found = self.keys[classes] == keys if self.keys.size else np.zeros(keys.size, dtype=bool)
            if not found.all():
                edge = int(np.argmin(found))
                fail(layer.step, layer.hop, f"an edge from node {src[edge]} to node {dst[edge]} is not in the graph.")
        taken, counts = np.unique(classes, return_counts=True)
        limits = self._limits[self.spec.fanouts[layer.hop]].room[taken]
        over = counts > limits
        if over.any():
            worst = int(np.argmax(over))
            edge = int(np.argmax(classes == taken[worst]))
            fail(
                layer.step,
                layer.hop,
                f"node {dst[edge]} got the edge from node {src[edge]} {counts[worst]} times; expected at most "
                f"{limits[worst]} (edges between them that can be drawn).",
            )
        return classes

    def _check_counts(self, layer: HopEdges) -> None:
        fanout, nodes = self.spec.fanouts[layer.hop], layer.src_nodes[: layer.num_dst]
        limits = self._limits_of(nodes, fanout)
        got, fewest, most = np.diff(layer.indptr), limits.fewest[nodes], limits.most[nodes]
        wrong = (got < fewest) | (got > most)
        if wrong.any():
            row = int(np.argmax(wrong))
            wanted = f"{fewest[row]}" if fewest[row] == most[row] else f"{fewest[row]} to {most[row]}"
            drawable = sum(self.law_of(self._edges(nodes[row]), fanout).possible)
            fail(
                layer.step,
                layer.hop,
                f"node {nodes[row]} got {got[row]} neighbours; expected {wanted} (degree "
                f"{self.degrees[nodes[row]]}, {drawable} edges to draw from, fanout {fanout}).",
            )

    def _limits_of(self, nodes: np.ndarray, fanout: int) -> _Limits:
        """With the rows of these nodes filled in."""
        limits = self._limits[fanout]
        for node in nodes[limits.most[nodes] < 0].tolist():
            edges = self._edges(node)
            law = self.law_of(edges, fanout)
            limits.fewest[node], limits.most[node] = law.num_picks
            room = np.array(law.possible, dtype=np.int64) * (_ANY_NUMBER if law.repeats else 1)
            np.add.at(limits.room, self.class_of_edge[edges], room)
        return limits

    def _edges(self, node: int) -> slice:
        """Positions of a row's edges."""
        return slice(int(self.indptr[node]), int(self.indptr[node + 1]))

    def _by_edge_id(self, layer: HopEdges, dst: np.ndarray, src: np.ndarray) -> np.ndarray:
        if layer.edge_ids is None:
            fail(layer.step, layer.hop, "edge_ids is None; expected one id per edge.")
        ids = layer.edge_ids
        if ids.shape != layer.indices.shape:
            fail(layer.step, layer.hop, f"edge_ids has shape {ids.shape}; expected {layer.indices.shape}.")
        inside = (ids >= self.indptr[dst]) & (ids < self.indptr[dst + 1])
        right = inside & (self.indices[np.where(inside, ids, 0)] == src) if ids.size else inside
        if not right.all():
            edge = int(np.argmin(right))
            fail(
                layer.step,
                layer.hop,
                f"edge id {ids[edge]} stands for an edge from node {src[edge]} to node {dst[edge]}; the graph has no "
                "such edge at that position.",
            )
        return ids


def _read_layer(mfg: Any, dst_nodes: np.ndarray, step: int, hop: int) -> HopEdges:
    indptr, indices, src_nodes = (_column(mfg, name, step, hop) for name in ("indptr", "indices", "src_nodes"))
    num_dst = checks.plain(getattr(mfg, "num_dst", None))
    if type(num_dst) is not int:
        fail(step, hop, f"num_dst is {num_dst!r}; expected an integer.")
    if num_dst != dst_nodes.size or indptr.shape != (num_dst + 1,):
        text = f"num_dst is {num_dst} and indptr has shape {indptr.shape}"
        fail(step, hop, f"{text}; expected {dst_nodes.size} destinations and one offset more.")
    if not np.array_equal(src_nodes[:num_dst], dst_nodes):
        fail(step, hop, "src_nodes does not begin with the destinations, the sources of the hop before (the seeds).")
    counts = np.diff(indptr)
    if indptr[0] != 0 or indptr[-1] != indices.size or (counts < 0).any():
        fail(
            step, hop, f"indptr runs from {indptr[0]} to {indptr[-1]}; expected 0 to {indices.size}, never decreasing."
        )
    edge_ids = None if getattr(mfg, "edge_ids", None) is None else _column(mfg, "edge_ids", step, hop)
    dst = np.repeat(np.arange(num_dst), counts)
    return HopEdges(step, hop, indptr, indices, src_nodes, dst, edge_ids)


def _check_order(layer: HopEdges) -> None:
    """Local ids in range, nodes distinct, new nodes in order of first appearance and none without an edge."""
    indices, num_src = layer.indices, layer.src_nodes.size
    if indices.size and not 0 <= indices.min() <= indices.max() < num_src:
        text = f"indices holds local ids from {indices.min()} to {indices.max()}"
        fail(layer.step, layer.hop, f"{text}; expected 0 to {num_src - 1}.")
    if np.unique(layer.src_nodes).size != num_src:
        fail(layer.step, layer.hop, "src_nodes holds a node twice.")
    local, first = np.unique(indices, return_index=True)
    new = local >= layer.num_dst
    if int(new.sum()) != num_src - layer.num_dst:
        text = f"{int(new.sum())} nodes appear first in this hop"
        fail(layer.step, layer.hop, f"{text}; expected {num_src - layer.num_dst}, as many as src_nodes adds.")
    falls = np.nonzero(np.diff(first[new]) < 0)[0]
    if falls.size:
        late, early = layer.src_nodes[local[new][falls[0]]], layer.src_nodes[local[new][falls[0] + 1]]
        text = f"node {late} comes before node {early} in src_nodes"
        fail(layer.step, layer.hop, f"{text} but appears after it in the edge list; expected order of appearance.")


def _column(mfg: Any, name: str, step: int, hop: int) -> np.ndarray:
    """One of an MFG's columns of numbers, int64 [n]."""
    values = getattr(mfg, name, None)
    array = np.zeros(0, dtype=np.int64) if isinstance(values, list | tuple) and not values else _array(values)
    if array.ndim != 1 or array.dtype != np.int64:
        found = f"of {array.dtype} and shape {array.shape}" if array.ndim else f"a {type(values).__name__}"
        fail(step, hop, f"{name} is {found}; expected integers of shape (n,).")
    return array


def _array(values: Tensor | Sequence[int]) -> np.ndarray:
    """On the host; integers as int64."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return array.astype(np.int64) if np.issubdtype(array.dtype, np.integer) else array

"""`stream`: multilevel partitioning of a graph whose edges stay on disk.

Semi-external: some words per node are in memory and the rows of the adjacency are read front to back, a few times.

    clusters    streamed label propagation makes clusters, a full part having CLUSTERS_PER_PART or more (clusters.py)
    model       the graph between them, in memory: at most `buffer` bytes. Where its pairs do not fit, the lightest are
                left out, its clusters are clustered in memory, and the links between the larger ones are read again.
    cut         clusters of clusters until METIS can hold the model; METIS cuts it, every constraint balanced
    refine      on every model on the way back, then streamed: nodes move where most of their links are, as far as the
                capacities allow

Each pass after the first makes clusters that lie within the parts, and refines the models of those and then the nodes:
what is moved as a whole, nodes alone would not leave (iterated multilevel). A pass reads the rows SWEEPS + 2 times, and
once more for each of SHEDS. In an order other than that of the file, mapped rows are copied in it first
(external/ordered_rows.py). Threads read rows ahead; the parts do not depend on their number.

Akhremtsev, Sanders and Schulz, "(Semi-)external algorithms for graph partitioning and clustering", ALENEX 2015;
Walshaw, "Multilevel refinement for combinatorial optimisation problems", 2004 (iterated).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from fastsample_dist import ops
from fastsample_dist.ops.cluster_nodes import MOST_BOUND
from fastsample_dist.partition.methods.adjacency import Adjacency
from fastsample_dist.partition.methods.clusters import (
    CHUNK_NODES,
    SHRINKS,
    SWEEPS,
    UNIT,
    WeighedGraph,
    contract,
    find_clusters,
    grow_clusters,
    rename,
    spread,
)
from fastsample_dist.partition.methods.levelling import Loads, level_parts
from fastsample_dist.partition.methods.metis import cut_model, require_metis
from fastsample_dist.partition.methods.request import SPLITS, PartitionRequest, fill_empty_parts
from fastsample_dist.partition.methods.simple import assign_random

PASSES = 2
BUFFER_BYTES = 256 << 20
CLUSTERS_PER_PART = 32  # of full ones
# Sweeps of refinement: the share of its links that a node may lose by leaving a part that is too full.
MODEL_SHEDS = (0.0, 0.25, 0.5, 0.75, 1.0, 0.0, 0.0, 0.0)
SHEDS = (0.25, 0.5, 0.0)
SLACK = 0.04  # of a part's share: how far above and below it what a part holds may get by moves
METIS_PAIRS = 1 << 19  # a model of more is made smaller by clusters before METIS gets it
METIS_NODE_PAIRS = 4  # pairs per node of METIS' model, at least
PAIR_BYTES = 64  # of a model, per pair of clusters: its slots, and its rows while they are put in order
METIS_PAIR_BYTES = 280  # METIS' memory per pair of its model, with what it takes per node
# Per pair of neighbours: links between the same clusters are one pair of the model (21 to 41 seen).
FILLED_PAIR_BYTES = 32
LEAST_PART_BYTES = 1 << 16  # METIS' model has room for 58 clusters per part
SEEDS_PER_LEVEL = 8  # sweeps of one level
NUM_LIMITS = 2 + len(SPLITS)  # nodes, in-edges, splits


def assign_stream(request: PartitionRequest) -> np.ndarray:
    """Cut few edges within memory for the nodes and the buffer, all constraints balanced.

    Args:
      request: what to cut; its `passes`, `order`, `buffer_bytes` and `num_threads` are read.
    Returns:
      int32 [num_nodes]; no part is empty. Deterministic: yes.
    Raises:
      ValueError: a buffer too small for a model of so many parts.
      MissingPackageError: neither cmeel-metis nor pymetis is installed.
    """
    require_metis()
    buffer_bytes = BUFFER_BYTES if request.buffer_bytes is None else request.buffer_bytes
    check_buffer(buffer_bytes, request.num_parts)
    if request.num_parts == 1:
        return np.zeros(request.num_nodes, dtype=np.int32)
    if len(request.adjacency.indices) == 0:
        return assign_random(request)
    parts = None
    with _rows_to_read(request) as rows:
        passes = PASSES if request.passes is None else request.passes
        stream = _Stream(request, rows, buffer_bytes, passes)
        for cycle in range(passes):
            parts = stream.improve(parts, request.seed << 16 | cycle % 128 << 9)
    fill_empty_parts(parts, request.num_parts, request.graph.indptr.numpy())
    return parts


@contextmanager
def _rows_to_read(request: PartitionRequest) -> Iterator[ops.Neighbours]:
    """The adjacency in the order to visit, where it is mapped and not in that order a copy that is."""
    links, order = request.adjacency, request.order
    if order is not None:
        order = np.ascontiguousarray(order, dtype=np.int64)
    if order is None or request.reorder is None:
        yield ops.Neighbours(links.indptr, links.indices, links.weights, order)
        return
    with ExitStack() as copies:
        columns = {"indices": links.indices, "weights": links.weights}
        copied = [
            None if column is None else copies.enter_context(request.reorder(links.indptr, column, order, name))
            for name, column in columns.items()
        ]
        yield ops.Neighbours(_offsets_by_turn(links.indptr, order), *copied, order, rows_by_turn=True)


def _offsets_by_turn(indptr: np.ndarray, order: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(indptr), dtype=np.int64)
    for lo in range(0, len(order), CHUNK_NODES):
        nodes = order[lo : lo + CHUNK_NODES]
        offsets[lo + 1 : lo + len(nodes) + 1] = indptr[nodes + 1] - indptr[nodes]
    return np.cumsum(offsets, out=offsets)


def check_buffer(buffer_bytes: int, num_parts: int) -> None:
    """Refuse a buffer in which no useful model of so many parts has room.

    Raises:
      ValueError: with what would do.
    """
    least = num_parts * LEAST_PART_BYTES
    if buffer_bytes < least:
        fewer = buffer_bytes // LEAST_PART_BYTES
        raise ValueError(
            f"buffer is {buffer_bytes} bytes but the model of a graph in {num_parts} parts needs {least}; pass "
            f"--buffer {math.ceil(least / 1e6)}MB or more{f', or fewer parts: {fewer} at most' if fewer > 1 else ''}."
        )


def filled_bytes(buffer_bytes: int, num_entries: int) -> int:
    """Bytes of a buffer that the models of a graph are expected to fill, with METIS.

    Args:
      buffer_bytes: of the buffer.
      num_entries: of the adjacency.
    """
    return min(buffer_bytes, FILLED_PAIR_BYTES * (num_entries // 2))


@dataclass(frozen=True, eq=False)
class _Model:
    """A graph between clusters.

    Attributes:
      graph: its clusters, with what they weigh.
      adjacency: the same rows.
      labels: int32; cluster of each node of the graph below.
      loads: int32 [num_clusters, NUM_LIMITS]; what each cluster counts against the limits of parts.
      within: int32 [num_clusters]; part of each cluster where there are parts already.
    """

    graph: WeighedGraph
    adjacency: Adjacency
    labels: np.ndarray
    loads: np.ndarray
    within: np.ndarray | None


class _Stream:
    """A request's graph, what its nodes weigh and what parts may hold."""

    def __init__(self, request: PartitionRequest, rows: ops.Neighbours, buffer_bytes: int, passes: int) -> None:
        self._num_parts, self._num_threads = request.num_parts, request.num_threads
        self._in_offsets, self._kinds = request.graph.indptr.numpy(), request.kinds
        self._totals = self._loads(np.zeros(request.num_nodes, dtype=np.int32), 1)[0]
        means = self._totals / self._num_parts
        self._bounds = {
            "capacities": np.maximum(1, np.ceil(means * (1 + SLACK))).astype(np.int64),
            "floors": np.maximum(1, np.floor(means * (1 - SLACK))).astype(np.int64),
        }
        self._graph = WeighedGraph(rows, self._node_weights(), request.num_threads, request.progress.bytes_done)
        self._progress, self._bytes_to_read = request.progress, 0
        self._will_read(passes * (SWEEPS + 2 + len(SHEDS)))
        self._most_pairs = buffer_bytes // PAIR_BYTES
        self._metis_pairs = min(METIS_PAIRS, buffer_bytes // METIS_PAIR_BYTES)

    def _will_read(self, times: int) -> None:
        """Report that the rows are going to be read so many times more than was known."""
        self._bytes_to_read += times * self._graph.neighbours.indices.nbytes
        self._progress.bytes_total(self._bytes_to_read)

    def improve(self, parts: np.ndarray | None, rng_seed: int) -> np.ndarray:
        """int32 [num_nodes]; parts that cut fewer edges than those given, if any were (whose memory is used)."""
        models = self._models(parts, rng_seed)
        top = models[-1]
        if top.within is None:
            constraints = [column for column in top.loads.T if column.any()]
            found = cut_model(top.adjacency, constraints, self._num_parts, rng_seed >> 16)
        else:
            found = top.within
        del top
        while models:
            model = models.pop()
            limits = ops.PartLimits(**self._bounds, node_loads=model.loads)
            if not models and parts is None:
                self._level(model, found)
            held = np.array([np.bincount(found, column, minlength=self._num_parts) for column in model.loads.T])
            self._refine(model.graph, limits, found, held.T, MODEL_SHEDS)
            rename(model.labels, found)
            found = model.labels
        limits = ops.PartLimits(**self._bounds, in_offsets=self._in_offsets, kinds=self._kinds)
        self._refine(self._graph, limits, found, self._loads(found, self._num_parts), SHEDS)
        return found

    def _level(self, model: _Model, parts: np.ndarray) -> None:
        """Bring what parts hold within SLACK where METIS missed it by more, but for what a hub alone exceeds."""
        if len(parts) < self._num_parts:
            return
        fill_empty_parts(parts, self._num_parts, model.adjacency.indptr)
        most = self._bounds["capacities"]
        columns = {str(limit): column for limit, column in enumerate(model.loads.T) if 0 < column.max() <= most[limit]}
        level_parts(parts, model.adjacency, Loads.count(parts, columns, self._num_parts), tolerance=SLACK)

    def _refine(
        self, graph: WeighedGraph, limits: ops.PartLimits, parts: np.ndarray, held: np.ndarray, sheds: tuple[float, ...]
    ) -> None:
        loads = np.ascontiguousarray(held, dtype=np.int64)
        for shed in sheds:
            for turns in graph.turns():
                ops.refine_parts(
                    graph.neighbours, limits, parts, loads, shed=shed, turns=turns, num_threads=graph.num_threads
                )

    def _models(self, parts: np.ndarray | None, rng_seed: int) -> list[_Model]:
        """Graphs between clusters, each of the clusters of the one before; METIS can hold the last."""
        labels, weights = find_clusters(self._graph, UNIT, rng_seed, within=parts)
        adjacency, whole = contract(self._graph, labels, len(weights), self._most_pairs)
        bound = UNIT
        while not whole and bound < MOST_BOUND:
            rng_seed += SEEDS_PER_LEVEL
            within = None if parts is None else spread(parts, labels, len(weights))
            graph = WeighedGraph.of(adjacency, weights, self._num_threads)
            more, weights, bound = grow_clusters(graph, bound, rng_seed, within=within, whole=False)
            rename(labels, more)
            del graph, adjacency, more
            self._will_read(1)
            adjacency, whole = contract(self._graph, labels, len(weights), self._most_pairs)
        model = self._model(adjacency, labels, weights, self._loads(labels, len(weights)), parts)
        models = [model]
        while self._exceeds_metis(model):
            rng_seed += SEEDS_PER_LEVEL
            labels, weights, bound = grow_clusters(model.graph, bound, rng_seed, within=model.within)
            last = len(weights) > SHRINKS * model.graph.num_nodes
            adjacency, _ = contract(
                model.graph, labels, len(weights), self._metis_pairs if last else len(model.graph.neighbours.indices)
            )
            columns = [np.bincount(labels, column, minlength=len(weights)) for column in model.loads.T]
            model = self._model(adjacency, labels, weights, np.array(columns).T, model.within)
            models.append(model)
            if last:
                break
        return models

    def _model(
        self, adjacency: Adjacency, labels: np.ndarray, weights: np.ndarray, loads: np.ndarray, parts: np.ndarray | None
    ) -> _Model:
        within = None if parts is None else spread(parts, labels, len(weights))
        loads = np.ascontiguousarray(loads, dtype=np.int32)
        graph = WeighedGraph.of(adjacency, weights, self._num_threads)
        return _Model(graph, adjacency, labels, loads, within)

    def _exceeds_metis(self, model: _Model) -> bool:
        pairs = len(model.adjacency.indices) // 2
        return pairs > self._metis_pairs or model.graph.num_nodes > self._metis_pairs // METIS_NODE_PAIRS

    def _loads(self, labels: np.ndarray, num_labels: int) -> np.ndarray:
        """int64 [num_labels, NUM_LIMITS]; what the nodes of each label count together: nodes, in-edges, splits."""
        loads = np.zeros((NUM_LIMITS, num_labels), dtype=np.int64)
        for lo in range(0, len(labels), CHUNK_NODES):
            own = labels[lo : lo + CHUNK_NODES].astype(np.int64)
            loads[0] += np.bincount(own, minlength=num_labels)
            degrees = np.diff(self._in_offsets[lo : lo + CHUNK_NODES + 1])
            loads[1] += np.bincount(own, degrees, minlength=num_labels).astype(np.int64)
            for bit in range(len(SPLITS)):
                chosen = self._kinds[lo : lo + CHUNK_NODES] >> bit & 1 == 1
                loads[2 + bit] += np.bincount(own[chosen], minlength=num_labels)
        return loads.T

    def _node_weights(self) -> np.ndarray:
        """int32 [num_nodes]; see clusters.py. A part's share of everything weighs CLUSTERS_PER_PART * UNIT."""
        shares = np.where(self._totals > 0, 1 / np.maximum(1, self._totals), 0)
        shares *= self._num_parts * CLUSTERS_PER_PART * UNIT / np.count_nonzero(shares)
        weights = np.empty(len(self._kinds), dtype=np.int32)
        for lo in range(0, len(weights), CHUNK_NODES):
            chunk = shares[0] + shares[1] * np.diff(self._in_offsets[lo : lo + CHUNK_NODES + 1])
            for bit in range(len(SPLITS)):
                chunk += shares[2 + bit] * (self._kinds[lo : lo + CHUNK_NODES] >> bit & 1)
            weights[lo : lo + CHUNK_NODES] = np.clip(np.rint(chunk), 1, MOST_BOUND)
        return weights

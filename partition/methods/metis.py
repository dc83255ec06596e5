"""`metis`: multilevel k-way partitioning (Karypis and Kumar), every constraint balanced.

With libmetis (package cmeel-metis) each of nodes, in-edges, train, validation and test nodes is a constraint of its
own. The imbalance that METIS is given binds the largest part alone: the smallest may fall short by P - 1 times as much.
So it is given TOLERANCE / (P - 1), at most MAX_IMBALANCE. A tight bound also cuts better: RMAT scale 17, edge factor
16, 8 parts, cut edges and in-edges of the smallest part over the mean: 79.5 % and 0.57 with 5 %, 78.8 % and 0.85 with
2 %, 78.1 % and 0.965 with 0.5 %.

METIS' result depends strongly on the seed where there are many constraints: the cut of Debian's package graph in 8
parts is 27 % to 35 % over eight seeds. Small graphs are cut with TRIALS seeds and the smallest cut is taken.

pymetis, used where libmetis is missing, hands METIS one number per node; so there a node weighs

    RESOLUTION * (1 + in_degree / mean in_degree + [is a train node] * num_nodes / num_train)

rounded: over the graph, each of the three sums to RESOLUTION * num_nodes, and none outweighs the others. k-way and not
recursive bisection, which misses the balance with weights as skewed as a power law's: RMAT scale 19, edge factor 16,
in-edges of the largest over the smallest part: 8.5 by bisection and 1.7 by k-way for 2 parts, 12.5 and 5.8 for 4.

Ctrl-C and SIGTERM end a call of libmetis at once (`libmetis`). pymetis 2025.2.2 keeps Python's lock, so a Python
handler of Ctrl-C waits until METIS is done; it catches SIGTERM itself and fails.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import numpy as np

from fastsample_dist.partition.methods import libmetis
from fastsample_dist.partition.methods.adjacency import Adjacency
from fastsample_dist.partition.methods.constraints import NodeWeights
from fastsample_dist.partition.methods.request import (
    MAX_SEED,
    MissingPackageError,
    PartitionRequest,
    fill_empty_parts,
    importable,
)
from fastsample_dist.partition.methods.simple import assign_random

logger = logging.getLogger(__name__)

EXTRA = "fastsample_dist[partition]"
RESOLUTION = 100  # a hundredth of the mean weight is the finest difference that combined weights show
TOLERANCE = 0.04  # of the smallest part
MAX_IMBALANCE = 0.005
# Iterations of refinement: METIS' default, and for more than LARGE neighbours. RMAT scale 18, edge factor 32, 8 parts:
# 6.6 s and 81.1 % of edges cut with 10, 4.3 s and 81.3 % with 3.
ITERATIONS, FEW_ITERATIONS, LARGE = 10, 3, 1 << 24
MODEL_TRIALS = 4  # of `cut_model`
TRIALS, SMALL = 8, 1 << 21  # of graphs with at most SMALL neighbours: seconds in all
CLUSTER_ADVICE = "make room, or leave --clusters out"
CLUSTER_IMBALANCE = 0.03  # of clusters, METIS' default: a batch of several evens them out


def assign_metis(request: PartitionRequest) -> np.ndarray:
    """Cut few edges while balancing all constraints.

    Args:
      request: what to cut.
    Returns:
      int32 [num_nodes]; no part is empty.
    Raises:
      ValueError: the graph is too large for the integers of this METIS.
      MissingPackageError: neither cmeel-metis nor pymetis is installed.
      RuntimeError: METIS fails.
    """
    require_metis()
    part_graph = _multi_constraint if libmetis.load() is not None else _combined
    if request.num_parts == 1:
        return np.zeros(request.num_nodes, dtype=np.int32)
    adjacency = request.adjacency
    if len(adjacency.indices) == 0:  # nothing to cut; METIS wants at least one edge
        return assign_random(request)
    advice = "make room, or take --method ldg, fennel, random or range"
    with _failures_named(request.num_nodes, len(adjacency.indices), advice):
        parts = part_graph(request, adjacency)
    fill_empty_parts(parts, request.num_parts, adjacency.indptr)
    return parts


def cut_nodes(adjacency: Adjacency, num_parts: int, seed: int) -> np.ndarray:
    """Cut few edges while balancing the number of nodes, to within CLUSTER_IMBALANCE where METIS finds a way.

    Args:
      adjacency: symmetric, without self-loops.
      num_parts: 2 .. num_nodes.
      seed: of METIS.
    Returns:
      int32 [num_nodes]; no part is empty.
    Raises:
      ValueError, MissingPackageError, RuntimeError: as `assign_metis`.
    """
    num_nodes, num_edges = adjacency.num_nodes, len(adjacency.indices)
    if num_edges == 0:  # METIS wants at least one edge
        return (np.arange(num_nodes) % num_parts).astype(np.int32)
    metis = libmetis.load()
    if metis is None:
        pymetis = _import_pymetis()
        dtype = np.dtype(pymetis.zero_copy_dtype())
        check_counts(adjacency, int(np.iinfo(dtype).max), dtype)
        columns = [adjacency.indptr, adjacency.indices, adjacency.weights]
        indptr, indices, weights = (None if column is None else column.astype(dtype, copy=False) for column in columns)
        rows, options = pymetis.CSRAdjacency(indptr, indices), pymetis.Options(seed=seed)
        with _failures_named(num_nodes, num_edges, CLUSTER_ADVICE):
            _, found = pymetis.part_graph(num_parts, rows, eweights=weights, recursive=False, options=options)
        parts = np.asarray(found, dtype=np.int32)
    else:
        check_counts(adjacency, int(np.iinfo(metis.dtype).max), metis.dtype)
        nodes = np.ones((num_nodes, 1), dtype=metis.dtype)
        columns = adjacency.indptr, adjacency.indices, nodes, adjacency.weights
        with _failures_named(num_nodes, num_edges, CLUSTER_ADVICE):
            parts = metis.part_graph(
                *columns, num_parts, seed=seed, iterations=_iterations(adjacency), imbalance=CLUSTER_IMBALANCE
            )
    fill_empty_parts(parts, num_parts, adjacency.indptr)
    return parts


def require_metis() -> None:
    """Refuse where METIS is not there.

    Raises:
      MissingPackageError: neither cmeel-metis nor pymetis is installed.
    """
    if libmetis.load() is None:
        _import_pymetis()


def cut_model(adjacency: Adjacency, constraints: Sequence[NodeWeights], num_parts: int, seed: int) -> np.ndarray:
    """Cut a small graph with edge weights that stands for a larger one, all constraints balanced.

    Args:
      adjacency: symmetric, without self-loops, with weights; int32 indices.
      constraints: integer [num_nodes] each, >= 0, what parts are to hold equally.
      num_parts: 2 or more.
      seed: of METIS.
    Returns:
      int32 [num_nodes]; parts may be empty.
    Raises:
      MissingPackageError, RuntimeError: as `assign_metis`.
    """
    if len(adjacency.indices) == 0:  # METIS wants at least one edge
        return (np.arange(adjacency.num_nodes) % num_parts).astype(np.int32)
    shrink = int(adjacency.weights.sum(dtype=np.int64)) // np.iinfo(np.int32).max + 1
    weights = adjacency.weights if shrink == 1 else -(-adjacency.weights // shrink)
    adjacency = Adjacency(adjacency.indptr, adjacency.indices, weights)
    with _failures_named(adjacency.num_nodes, len(adjacency.indices), "make room, or pass a smaller --buffer"):
        if libmetis.load() is not None:
            return _best_of_trials(adjacency, constraints, num_parts, seed, MODEL_TRIALS)
        shares = sum(weight * (RESOLUTION * adjacency.num_nodes / weight.sum()) for weight in constraints)
        pymetis = _import_pymetis()
        dtype = np.dtype(pymetis.zero_copy_dtype())
        columns = [adjacency.indptr, adjacency.indices, adjacency.weights, np.rint(shares).astype(np.int64)]
        indptr, indices, links, nodes = (column.astype(dtype, copy=False) for column in columns)
        _, found = pymetis.part_graph(
            num_parts, pymetis.CSRAdjacency(indptr, indices), vweights=nodes, eweights=links, recursive=False,
            options=pymetis.Options(seed=seed),
        )  # fmt: skip
        return np.asarray(found, dtype=np.int32)


def _multi_constraint(request: PartitionRequest, adjacency: Adjacency) -> np.ndarray:
    trials = TRIALS if len(adjacency.indices) <= SMALL else 1
    constraints = list(request.constraints().values())
    return _best_of_trials(adjacency, constraints, request.num_parts, request.seed, trials)


def _best_of_trials(
    adjacency: Adjacency, constraints: Sequence[NodeWeights], num_parts: int, seed: int, trials: int
) -> np.ndarray:
    """The parts of fewest cut edges of as many calls of libmetis, each with a seed of its own."""
    metis = libmetis.load()
    largest = int(np.iinfo(metis.dtype).max)
    check_counts(adjacency, largest, metis.dtype)
    weights = np.empty((adjacency.num_nodes, len(constraints)), dtype=metis.dtype)
    for column, looked_up in enumerate(constraints):
        weight = looked_up[:].astype(metis.dtype)
        shrink = int(weight.sum()) // largest + 1  # 1 unless parallel edges outnumber what METIS can add up
        weights[:, column] = weight if shrink == 1 else -(-weight // shrink)
    found = [
        metis.part_graph(
            adjacency.indptr,
            adjacency.indices,
            weights,
            adjacency.weights,
            num_parts,
            seed=(seed * trials + trial) % (MAX_SEED + 1),
            iterations=_iterations(adjacency),
            imbalance=min(MAX_IMBALANCE, TOLERANCE / (num_parts - 1)),
        )
        for trial in range(trials)
    ]
    return found[0] if trials == 1 else min(found, key=lambda parts: cut_weight(parts, adjacency))


def _iterations(adjacency: Adjacency) -> int:
    return ITERATIONS if len(adjacency.indices) <= LARGE else FEW_ITERATIONS


@contextmanager
def _failures_named(num_nodes: int, num_neighbours: int, advice: str) -> Iterator[None]:
    """METIS under pymetis catches SIGTERM and then says no more than that it failed."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"METIS stopped on {num_nodes} nodes and {num_neighbours} neighbours ({error}): it was asked to end, or "
            f"out of memory; {advice}."
        ) from error


def cut_weight(parts: np.ndarray, adjacency: Adjacency) -> int:
    """Weight of the neighbours in different parts, each pair counted in both directions."""
    cut = np.repeat(parts, np.diff(adjacency.indptr)) != parts[adjacency.indices]
    return int(cut.sum() if adjacency.weights is None else adjacency.weights[cut].sum())


def _combined(request: PartitionRequest, adjacency: Adjacency) -> np.ndarray:
    pymetis = _import_pymetis()
    logger.info(
        "cmeel-metis with cmeel-gklib is not installed: METIS balances one combined weight through pymetis; "
        "pip install cmeel-metis cmeel-gklib balances nodes, in-edges and splits each for itself."
    )
    dtype = np.dtype(pymetis.zero_copy_dtype())
    largest = int(np.iinfo(dtype).max)
    check_counts(adjacency, largest, dtype)
    indptr, indices = (column.astype(dtype, copy=False) for column in (adjacency.indptr, adjacency.indices))
    _, assigned = pymetis.part_graph(
        request.num_parts,
        pymetis.CSRAdjacency(indptr, indices),
        vweights=combined_weights(request.in_degrees, request.train, largest).astype(dtype, copy=False),
        eweights=None if adjacency.weights is None else adjacency.weights.astype(dtype, copy=False),
        recursive=False,
        options=pymetis.Options(seed=request.seed),
    )
    return np.asarray(assigned, dtype=np.int32)


def _import_pymetis() -> ModuleType:
    try:
        import pymetis
        from pymetis import zero_copy_dtype  # noqa: F401 - since 2025.2.1
    except ImportError as error:
        raise MissingPackageError(
            f"method metis needs cmeel-metis or pymetis >= 2025.2.1, and neither is there ({error}); "
            f"pip install {EXTRA}"
        ) from error
    return pymetis


def missing_metis() -> str:
    """See Method.missing."""
    try:
        is_there = libmetis.load() is not None or importable("pymetis")
    except ImportError as error:  # cmeel-metis is damaged, and the message says what to do
        return str(error)
    return "" if is_there else f"pip install '{EXTRA}'"


def check_counts(adjacency: Adjacency, largest: int, dtype: np.dtype) -> None:
    """Refuse a graph whose neighbours, or their weights, METIS cannot count.

    Raises:
      ValueError: more than `largest` of them.
    """
    weights = adjacency.weights
    total = len(adjacency.indices) if weights is None else int(weights.sum(dtype=np.int64))
    if total > largest:
        raise ValueError(
            f"the graph has {total} neighbours but this METIS counts in {dtype}; take --method kaminpar, ldg or random."
        )


def combined_weights(in_degrees: np.ndarray, train: np.ndarray, largest_sum: int) -> np.ndarray:
    """One integer weight of each node for nodes, in-edges and train nodes together, see the module text.

    Args:
      in_degrees: int64 [num_nodes].
      train: int64 [num_train]; train node ids.
      largest_sum: the weights of all nodes together stay below it (METIS adds them up in one integer).
    Returns:
      int64 [num_nodes], each at least 1.
    """
    num_nodes, num_edges = len(in_degrees), int(in_degrees.sum())
    resolution = max(1, min(RESOLUTION, largest_sum // (4 * num_nodes)))  # 3 shares, and room for rounding up
    weights = np.full(num_nodes, resolution, dtype=np.int64)
    if num_edges:
        weights += np.rint(in_degrees * (resolution * num_nodes / num_edges)).astype(np.int64)
    if len(train):
        weights[train] += round(resolution * num_nodes / len(train))
    return weights

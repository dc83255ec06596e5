"""Symmetric graphs for the tests of partitioning passes."""

import numpy as np

from fastsample_dist import ops
from tests.optional import st


def pairs_of(
    num_nodes: int, pairs: list[tuple[int, int]], weights: list[int] | None = None, **columns
) -> ops.Neighbours:
    """Both directions of every pair, rows ascending; a pair of a node with itself is one entry."""
    weights = [1] * len(pairs) if weights is None else weights
    entries = [(a, b, weight) for (a, b), weight in zip(pairs, weights, strict=True)]
    entries = sorted(entries + [(b, a, weight) for a, b, weight in entries if a != b])
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount([row for row, _, _ in entries], minlength=num_nodes), out=indptr[1:])
    id_dtype, weight_dtype = columns.pop("id_dtype", np.int32), columns.pop("weight_dtype", None)
    return ops.Neighbours(
        indptr,
        np.array([other for _, other, _ in entries], dtype=id_dtype),
        None if weight_dtype is None else np.array([weight for _, _, weight in entries], dtype=weight_dtype),
        **columns,
    )


@st.composite
def neighbours(draw):
    """A tiny graph: self-loops, parallel entries, weights of both types or none, any order."""
    num_nodes = draw(st.integers(1, 10))
    node = st.integers(0, num_nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=25))
    order = draw(st.none() | st.permutations(range(num_nodes)))
    graph = pairs_of(
        num_nodes,
        pairs,
        draw(st.lists(st.integers(0, 3), min_size=len(pairs), max_size=len(pairs))),
        id_dtype=draw(st.sampled_from([np.int32, np.int64])),
        weight_dtype=draw(st.sampled_from([None, np.uint8, np.int32])),
        order=None if order is None else np.array(order, dtype=np.int64),
    )
    return rows_by_turn(graph) if order is not None and draw(st.booleans()) else graph


def rows_by_turn(graph: ops.Neighbours) -> ops.Neighbours:
    """The same lists, copied in the order of the turns."""
    degrees = np.diff(graph.indptr)[graph.order]
    entries = [np.arange(graph.indptr[node], graph.indptr[node + 1]) for node in graph.order]
    places = np.concatenate([np.empty(0, dtype=np.int64), *entries])
    weights = None if graph.weights is None else graph.weights[places]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return ops.Neighbours(indptr, graph.indices[places], weights, graph.order, rows_by_turn=True)


def large(seed: int, num_nodes: int, *, order: bool) -> ops.Neighbours:
    """Near and far neighbours, a hub with a row that is not read ahead, weights, nodes in order or in any."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, num_nodes, 8 * num_nodes)
    b = np.where(
        rng.random(len(a)) < 0.5, (a + rng.integers(1, 40, len(a))) % num_nodes, rng.integers(0, num_nodes, len(a))
    )
    a = np.concatenate([a, np.zeros(num_nodes, dtype=np.int64)])
    b = np.concatenate([b, np.arange(num_nodes)])
    rows, others = np.concatenate([a, b]), np.concatenate([b, a])
    by_row = np.argsort(rows, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_nodes))])
    weights = rng.integers(0, 4, len(a))
    return ops.Neighbours(
        indptr,
        others[by_row].astype(np.int32),
        np.concatenate([weights, weights])[by_row].astype(np.uint8),
        rng.permutation(num_nodes) if order else None,
    )

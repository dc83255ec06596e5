"""A graph's arrays where kernels of a device read them (device/placement.py chooses the place)."""

from __future__ import annotations

from fastsample_dist import ops
from fastsample_dist.device.placement import HOST, Placement
from fastsample_dist.graph.csc import CSCGraph

ALIAS_BYTES = 8  # per edge and, at most, per node of the tables that weighted sampling reads (ops.AliasTables)


def topology_bytes(graph: CSCGraph, *, weighted: bool = False, valued: bool = False) -> int:
    """Bytes of what sampling reads: offsets, sources, original ids; `valued`: weights, `weighted`: alias tables too."""
    columns = [graph.indptr, graph.indices, graph.orig_ids, graph.weights if weighted or valued else None]
    tables = ALIAS_BYTES * (graph.num_edges + graph.num_nodes) if weighted else 0
    return sum(column.nbytes for column in columns if column is not None) + tables


def place_graph(graph: CSCGraph, placement: Placement, *, weighted: bool = False, valued: bool = False) -> CSCGraph:
    """The graph in its place, to be sampled by kernels of placement.device.

    A graph that is mapped from files is copied, into pinned memory too (device/pinned.py says why). Each rank has a
    copy of its own: R ranks of a host that pin the topology hold R * topology_bytes, besides the pages of the files.

    Args:
      graph: in memory or mapped.
      placement: of `choose_places`.
      weighted: place the weights too, and the alias tables that drawing by weight needs (built here, on the CPU).
      valued: place the weights, if there are any, to be read only.
    Returns:
      CSCGraph; without `weighted` and `valued` it has no weights. placement.where "host" gives the graph itself.
    Raises:
      ValueError: weighted without weights.
      MemoryError, RuntimeError: the device or the host does not have enough memory for it.
    """
    if placement.where == HOST:
        return graph
    tables = graph.edge_weights.tables if weighted else None  # from the host's arrays
    placed = CSCGraph(
        placement.put(graph.indptr),
        placement.put(graph.indices),
        placement.put(graph.weights) if weighted or (valued and graph.weights is not None) else None,
        None if graph.orig_ids is None else placement.put(graph.orig_ids),
        placement.device,
        weights_checked=True,
    )
    if tables is not None:
        num_positive = None if tables.num_positive is None else placement.put(tables.num_positive)
        placed_tables = ops.AliasTables(placement.put(tables.table), num_positive)
        placed.__dict__["edge_weights"] = ops.EdgeWeights(placed.weights, placed_tables)
    return placed

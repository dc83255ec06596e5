"""Peak memory of cutting a graph, from its sizes alone: by method and step, edges sorted in memory or on disk.

Each figure is what is alive at a step's widest place, counted from the code and compared with runs
(benchmarks/partition-plan.md): bytes above what the process holds before, mapped pages of the input included. A refusal
is decided by the same figure with MARGIN (`needed_bytes`).

In memory (`_cut_in_memory`): E stored edges, w bytes per id as computed with
    topology   the mapped list; 8 bytes per edge each for sort keys and order, half as much for the sort's workspace; in
               both directions 2 w more
    after it   the list's pages stay, 4 bytes per edge and 8 per node of the topology
    cluster    METIS on one part's edges
    write      28 bytes per edge of a chunk: positions, owners, their sum, the values of two chunks
On disk (`_cut_on_disk`): a piece or a bucket at a time, as large as MemoryBudget says; 12 bytes per edge of a bucket,
and of a chunk that is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastsample_dist.graph.inputs.sizes import GraphSizes
from fastsample_dist.graph.npy_files import CHUNK_BYTES
from fastsample_dist.memory_sizes import available_bytes
from fastsample_dist.partition.external import ordered_rows
from fastsample_dist.partition.external.adjacency import LINK_NODE_BYTES, link_budget
from fastsample_dist.partition.external.budget import (
    DEFAULT_SHARE,
    LEVELLED_NODE_BYTES,
    NODE_BYTES,
    SLACK_BYTES,
    MemoryBudget,
)
from fastsample_dist.partition.external.csc import sort_edge_bytes
from fastsample_dist.partition.methods import METHODS, AssignMemory, Method
from fastsample_dist.partition.methods.adjacency import CHUNK_EDGES
from fastsample_dist.partition.methods.constraints import NODES_AT_ONCE_BYTES
from fastsample_dist.partition.methods.levelling import CANDIDATES
from fastsample_dist.partition.methods.order import ORDER_BYTES, SEARCH_BYTES

MARGIN = 1.2  # of a refusal, above what is expected
FIXED_BYTES = 12 << 20  # code that is loaded on first use, the allocator, what reading the input leaves (4 MB seen)
SORTED_EDGE_BYTES = 20  # key, order, workspace
BUCKET_EDGE_BYTES = 12  # key, place in the row
LINK_PIECE_BYTES, LINK_EDGE_BYTES = 26, 17  # rows and keys of a piece; key, place, count
LEVELLING_NODE_BYTES = 10  # parts, splits, what may move, and the nodes of each part
COPIED_MEMBER_BYTES = 4  # per node of the part that some leave, or join
MOVE_EDGE_BYTES = 64  # levelling: positions, owners, ends and costs of a candidate's edges
SYMMETRISE_EDGE_BYTES = 62  # per edge of a chunk: keys of both directions, sorted, and where rows begin
WRITE_EDGE_BYTES, WRITE_NODE_BYTES = 28, 13  # rows of a topology in memory; parts, old and new ids, splits
CLUSTER_EDGE_BYTES, CLUSTER_NODE_BYTES = 33, 20  # edges of a chunk: source, owner, mark; nodes in order, local, found
READ_EDGE_BYTES, READ_NODE_BYTES = 12, 17  # of one on disk: values as read, renamed, and of the chunk before; offsets
NODE_CHUNK_BYTES = 32  # per node of a chunk: ids, keys, places, sums
OFFSET_BYTES = DEGREE_BYTES = 8  # per node, of the rows of a topology on disk
MAPPED_WINDOW_BYTES = 128 << 20  # of the sorted edges, between two sweeps that let pages go

Taken = Callable[[AssignMemory, int, int], int]  # AssignMemory.least, total or most

SMALL_EDGES = 1 << 24  # listed edges that are sorted in memory where they fit; more are sorted on disk sooner


@dataclass(frozen=True)
class PeakMemory:
    """Predicted peak of one way to cut a graph.

    Attributes:
      steps: {step of progress.STEPS: bytes above the process's own}.
    """

    steps: dict[str, int]

    @property
    def widest(self) -> str:
        """The step with the most."""
        return max(self.steps, key=lambda step: self.steps[step])

    @property
    def extra_bytes(self) -> int:
        """Bytes above what the process holds before."""
        return self.steps[self.widest]


def in_memory_peak(sizes: GraphSizes, method: str, num_parts: int, filled: int | None = None) -> PeakMemory:
    """Peak where the topology is built in memory.

    Args:
      sizes, method, num_parts: of the graph and the cut.
      filled: bytes of the method's buffer that are used, in place of its fixed_bytes.
    """
    held = _held_topology(sizes)
    return PeakMemory(
        {
            "topology": topology_bytes(sizes),
            "assign": held + _assign_bytes(sizes, method, filled),
            "balance": held + _balance_bytes(sizes, method, num_parts),
            "write": held + _write_bytes(sizes, CHUNK_EDGES, WRITE_EDGE_BYTES, WRITE_NODE_BYTES),
            "measure": held + _measure_bytes(sizes),
            **_clusters_step(sizes, num_parts, held),
        }
    )


def on_disk_peak(
    sizes: GraphSizes, method: str, num_parts: int, budget: MemoryBudget, filled: int | None = None
) -> PeakMemory:
    """Peak where the edges are sorted on disk, with the pieces and buckets of the memory budget.

    Args:
      sizes, method, num_parts, filled: as of `in_memory_peak`.
      budget: of the graph.
    """
    num_nodes, num_edges = sizes.num_nodes, sizes.num_edges
    window = (sizes.node_id_bytes + sizes.weight_bytes) * num_edges  # the edge map is not looked at
    assign = _taken(sizes, method, filled) + OFFSET_BYTES * num_nodes
    if METHODS[method].in_memory:
        rows = 0 if METHODS[method].memory.copies else window
        assign = max(assign, _symmetrise_bytes(sizes)) + _adjacency_bytes(sizes) + rows
    elif METHODS[method].memory.own_process:  # works when nothing is mapped any more
        assign = max(assign, min(window, MAPPED_WINDOW_BYTES))
    elif METHODS[method].balances:
        assign += min(window, MAPPED_WINDOW_BYTES)
    balance = _balance_bytes(sizes, method, num_parts) + min(window, MAPPED_WINDOW_BYTES) + OFFSET_BYTES * num_nodes
    linking = {}
    if METHODS[method].stores_adjacency:
        linking = {"adjacency": _linking_bytes(sizes, budget) + FIXED_BYTES}
        assign += OFFSET_BYTES * num_nodes
        balance += OFFSET_BYTES * num_nodes
    return PeakMemory(
        {
            "topology": _sorting_bytes(sizes, budget),
            **linking,
            "assign": assign + FIXED_BYTES,
            "balance": balance + FIXED_BYTES,
            "write": _write_bytes(sizes, budget.write_edges, READ_EDGE_BYTES, READ_NODE_BYTES) + FIXED_BYTES,
            "measure": _measure_bytes(sizes) + FIXED_BYTES,
            **_clusters_step(sizes, num_parts, FIXED_BYTES),
        }
    )


def with_order(peak: PeakMemory, sizes: GraphSizes, method: str, *, on_disk: bool) -> PeakMemory:
    """The peak where the nodes are searched breadth first and assigned in that order.

    Args:
      peak: of ascending ids.
      sizes: of the graph.
      method: name of the method that will assign.
      on_disk: the edges are sorted on disk, and the rows that it reads copied in the new order.
    """
    nodes, copy = sizes.num_nodes, 0
    held = _held_topology(sizes)
    if on_disk:
        held = min(sizes.node_id_bytes * sizes.num_edges, MAPPED_WINDOW_BYTES) + 16 * nodes + FIXED_BYTES
        copy = held + (ORDER_BYTES + ordered_rows.NODE_BYTES) * nodes + ordered_rows.FIXED_BYTES
    steps = dict(peak.steps)
    steps["order"] = held + (ORDER_BYTES + SEARCH_BYTES) * nodes
    steps["assign"] = max(steps["assign"] + _order_bytes(METHODS[method]) * nodes, copy)
    steps["balance"] += ORDER_BYTES * nodes
    return PeakMemory(steps)


def topology_bytes(sizes: GraphSizes) -> int:
    """At the widest place of `RawGraph.to_csc`, the listed edges included; for rows that are given, what is copied."""
    if sizes.given_rows:
        keys = 16 * sizes.num_listed if sizes.undirected else 0
        return sizes.edge_bytes * sizes.num_listed + keys + FIXED_BYTES
    kind = np.dtype(sizes.id_dtype)
    width = 4 if kind == np.int32 else 8
    copied = 2 * width * sizes.num_listed if kind not in (np.dtype(np.int32), np.dtype(np.int64)) else 0
    both = 2 * width * sizes.num_edges if sizes.undirected else copied
    carried = sizes.weight_bytes + sizes.edge_map_bytes
    weights = (2 * carried + 8) * sizes.num_edges if carried else 0
    edges = _listed_bytes(sizes) + both + weights + SORTED_EDGE_BYTES * sizes.num_edges
    return edges + 16 * sizes.num_nodes + FIXED_BYTES


def num_neighbours(sizes: GraphSizes) -> int:
    """Entries of the adjacency, at most: every directed edge in both rows, unless its reverse is listed too."""
    return sizes.num_edges if sizes.undirected else 2 * sizes.num_edges


def whole_graph_bytes(sizes: GraphSizes, method: str, num_edges: int, neighbours: int, taken: Taken) -> int:
    """What a method that holds the whole graph needs above the process's own, sorted on disk.

    Args:
      sizes: of the graph.
      method: its name.
      num_edges: stored edges.
      neighbours: entries of the adjacency.
      taken: of which kind of graph, where the method's memory depends on that.
    """
    memory = METHODS[method].memory
    own = taken(memory, sizes.num_nodes, neighbours)
    if memory.own_process:
        return own + 2 * OFFSET_BYTES * sizes.num_nodes  # of the topology and of the adjacency
    held = (sizes.node_id_bytes + sizes.weight_bytes) * num_edges + 8 * sizes.num_nodes
    copied = 0 if sizes.undirected else (sizes.node_id_bytes + 4) * neighbours
    return held + copied + own


def compressed_needs(sizes: GraphSizes, method: str, budget: MemoryBudget, graph_bytes: int) -> int:
    """Bytes that a method in a process of its own needs for a graph that it compresses to so many, at least."""
    nodes = sizes.num_nodes
    return budget.base + METHODS[method].memory.total(nodes, 0) + 2 * OFFSET_BYTES * nodes + graph_bytes


def cluster_bytes(sizes: GraphSizes, nodes: int, edges: int) -> int:
    """What METIS needs to cut one part into clusters, the part's own rows included.

    Args:
      sizes: of the whole graph.
      nodes: of the part.
      edges: inside it.
    """
    neighbours = edges if sizes.undirected else 2 * edges
    rows = (8 + sizes.node_id_bytes) * (nodes + neighbours) + CLUSTER_NODE_BYTES * sizes.num_nodes
    chunk = CLUSTER_EDGE_BYTES * min(sizes.num_edges, CHUNK_EDGES)
    return rows + max(chunk, METHODS["metis"].memory.total(nodes, neighbours))


def cluster_needs(sizes: GraphSizes, budget: MemoryBudget, nodes: int, edges: int) -> int:
    """Bytes that must be available before a part is cut into clusters; see `cluster_bytes`."""
    return needed_bytes(budget.base, cluster_bytes(sizes, nodes, edges))


def needed_bytes(base: int, extra_bytes: int) -> int:
    """What must be available before starting work that is expected to take this many bytes above `base`."""
    return base + int(MARGIN * extra_bytes) + SLACK_BYTES


def memory_budget(
    limit: int | None, base: int, sizes: GraphSizes, method: str, *, ordered: bool = False
) -> MemoryBudget:
    """How the memory is divided for a graph.

    Args:
      limit: bytes the process may hold; None: `base` and DEFAULT_SHARE of what is available, which `base` is not.
      base: bytes it holds before the work.
      sizes: of the graph.
      method: name of the method that will assign.
      ordered: the nodes come in an order that is held meanwhile.
    """
    return MemoryBudget(
        limit=base + int(available_bytes() * DEFAULT_SHARE) if limit is None else limit,
        base=base,
        num_nodes=sizes.num_nodes,
        sort_edge_bytes=sort_edge_bytes(sizes.weight_bytes, sizes.edge_map_bytes),
        node_bytes=_node_bytes(METHODS[method]) + (_order_bytes(METHODS[method]) if ordered else 0),
        edge_map_bytes=sizes.edge_map_bytes,
    )


def _order_bytes(method: Method) -> int:
    """Per node: the order and, of a method that reads its adjacency from a copy in that order, offsets in it."""
    return ORDER_BYTES + (OFFSET_BYTES if method.stores_adjacency else 0)


def _node_bytes(method: Method) -> int:
    """Per node at the widest place, without an order; what a method holds in a process of its own, or with the whole
    graph, is counted where it is refused (`method_needs`)."""
    held = LEVELLED_NODE_BYTES if method.balances else NODE_BYTES
    if not method.in_memory and not method.memory.own_process:
        held = max(held, method.memory.node_bytes + OFFSET_BYTES)
    return held + (OFFSET_BYTES if method.stores_adjacency else 0)


def sorted_on_disk(sizes: GraphSizes, budget: MemoryBudget, method: str | None = None) -> bool:
    """Whether a graph's edges are sorted on disk by default: there are many, or memory does not suffice.

    Args:
      method: one whose adjacency can be in files takes the disk too where memory does not suffice for that.
    """
    widest = topology_bytes(sizes)
    if method is not None and METHODS[method].stores_adjacency:
        widest = max(widest, _held_topology(sizes) + _assign_bytes(sizes, method))
    in_memory = needed_bytes(budget.base, widest)
    return (sizes.num_listed > SMALL_EDGES and not sizes.given_rows) or in_memory > budget.limit


def method_needs(
    sizes: GraphSizes,
    method: str,
    budget: MemoryBudget,
    num_edges: int,
    neighbours: int,
    taken: Taken = AssignMemory.least,
) -> int:
    """Bytes that a method needs if it holds so many edges and neighbours in memory; 0 for the others.

    With MARGIN, unless it is watched while it works (`AssignMemory.own_process`).

    Args:
      taken: as of `whole_graph_bytes`.
    """
    if not holds_graph(method):
        return 0
    held = whole_graph_bytes(sizes, method, num_edges, neighbours, taken)
    if METHODS[method].memory.own_process:
        return budget.base + held + SLACK_BYTES
    return needed_bytes(budget.base, held)


def holds_graph(method: str) -> bool:
    """Whether the whole graph must be in memory, be it compressed and in another process."""
    return METHODS[method].in_memory or METHODS[method].memory.own_process


def _listed_bytes(sizes: GraphSizes) -> int:
    """The edges as read, in memory or as pages of their file."""
    width = 2 * np.dtype(sizes.id_dtype).itemsize
    if sizes.weight_dtype is not None:
        width += np.dtype(sizes.weight_dtype).itemsize
    return width * sizes.num_listed


def _held_topology(sizes: GraphSizes) -> int:
    """What stays when the topology is built."""
    topology = sizes.edge_bytes * sizes.num_edges + 8 * sizes.num_nodes
    return _listed_bytes(sizes) + topology + FIXED_BYTES


def _adjacency_bytes(sizes: GraphSizes) -> int:
    """Of `adjacency.symmetrise`'s result; an undirected topology is its own."""
    return 0 if sizes.undirected else 4 * num_neighbours(sizes)


def _taken(sizes: GraphSizes, method: str, filled: int | None) -> int:
    """What a method takes for itself; `filled` as of `in_memory_peak`."""
    memory = METHODS[method].memory
    memory = memory if filled is None else memory._replace(fixed_bytes=filled)
    return memory.total(sizes.num_nodes, num_neighbours(sizes))


def _assign_bytes(sizes: GraphSizes, method: str, filled: int | None = None) -> int:
    """What assigning takes beside a topology in memory."""
    taken = _taken(sizes, method, filled)
    if METHODS[method].links == "adjacency":
        taken = max(taken, _symmetrise_bytes(sizes)) + _adjacency_bytes(sizes)
    return taken


def _linking_bytes(sizes: GraphSizes, budget: MemoryBudget) -> int:
    """The widest of counting, grouping and sorting the edges in the other direction; see external/adjacency.py."""
    piece = min(budget.piece_edges, sizes.num_edges)
    reading = (2 * sizes.node_id_bytes + LINK_PIECE_BYTES) * piece
    if sizes.undirected:
        return reading + 16 * sizes.num_nodes
    bucket = min(link_budget(budget).bucket_edges, num_neighbours(sizes))
    return max(reading, LINK_EDGE_BYTES * bucket) + LINK_NODE_BYTES * sizes.num_nodes


def _symmetrise_bytes(sizes: GraphSizes) -> int:
    return 0 if sizes.undirected else SYMMETRISE_EDGE_BYTES * min(sizes.num_edges, CHUNK_EDGES)


def _balance_bytes(sizes: GraphSizes, method: str, num_parts: int) -> int:
    """Levelling looks at the edges of some nodes of one part; methods that are not levelled move train nodes alone."""
    if not METHODS[method].balances or num_parts == 1:
        return 4 * sizes.num_nodes + _node_chunk_bytes(sizes)
    copied = COPIED_MEMBER_BYTES * sizes.num_nodes // num_parts
    nodes = LEVELLING_NODE_BYTES * sizes.num_nodes + copied + _node_chunk_bytes(sizes)
    candidates = min(sizes.num_nodes // num_parts, CANDIDATES)
    edges = min(sizes.num_edges * candidates // sizes.num_nodes, CHUNK_EDGES)
    return nodes + MOVE_EDGE_BYTES * edges


def _node_chunk_bytes(sizes: GraphSizes) -> int:
    """Temporaries of a chunk of nodes (`methods.constraints.node_chunks`), where several passes follow one another."""
    return min(NODE_CHUNK_BYTES * sizes.num_nodes, CHUNK_BYTES // 2)


def _clusters_step(sizes: GraphSizes, num_parts: int, held: int) -> dict[str, int]:
    """The step "cluster", where there is one, of parts that are equal and cut no edge."""
    if not sizes.clusters:
        return {}
    nodes, edges = -(-sizes.num_nodes // num_parts), -(-sizes.num_edges // num_parts)
    return {"cluster": held + cluster_bytes(sizes, nodes, edges)}


def _measure_bytes(sizes: GraphSizes) -> int:
    """Two marks per node, and a chunk of the sources that is read and picked from."""
    return 2 * sizes.num_nodes + 2 * min(CHUNK_BYTES, sizes.node_id_bytes * sizes.num_edges)


def _write_bytes(sizes: GraphSizes, chunk_edges: int, edge_bytes: int, node_bytes: int) -> int:
    features = 2 * CHUNK_BYTES if sizes.feature_dim else 0
    chunk_nodes = min(sizes.num_nodes, CHUNK_BYTES // NODES_AT_ONCE_BYTES)  # whose edges a chunk has at most
    return (
        max(edge_bytes * min(sizes.num_edges * chunk_nodes // sizes.num_nodes, chunk_edges), features)
        + node_bytes * sizes.num_nodes
        + _node_chunk_bytes(sizes)
    )


def _sorting_bytes(sizes: GraphSizes, budget: MemoryBudget) -> int:
    """The widest of counting, grouping and sorting; see external/csc.py."""
    kind = np.dtype(sizes.id_dtype)
    width = 4 if kind == np.int32 else 8
    piece = min(budget.piece_edges, sizes.num_listed)
    directions = 2 if sizes.undirected else 1
    keys = (8 + sizes.weight_bytes + sizes.edge_map_bytes) * directions * piece
    ids = 2 * width * piece
    reading = _listed_bytes(sizes) * piece // max(1, sizes.num_listed) + ids
    grouping = ids + keys + 2 * directions * piece
    if piece < sizes.num_listed:
        reading += keys  # of the piece before
    bucket = min(budget.bucket_edges, sizes.num_edges)
    plain = not sizes.weight_bytes and not sizes.edge_map_bytes
    entry = BUCKET_EDGE_BYTES if plain else budget.sort_edge_bytes
    return max(reading, grouping, entry * bucket) + DEGREE_BYTES * sizes.num_nodes + FIXED_BYTES

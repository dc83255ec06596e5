"""What is refused before work is done: outputs, packages, numbers of parts, memory and disk that do not suffice.

Sizes and names show some of it before the data are read, the sorted topology the rest before the nodes are assigned.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.relabel import least_bytes as least_bytes_of_names
from fastsample_dist.graph.inputs.sizes import GraphSizes, sizes_of
from fastsample_dist.graph.storage import check_output
from fastsample_dist.memory_sizes import format_size, resident_bytes
from fastsample_dist.partition.external.budget import BASE_SPREAD_BYTES, MemoryBudget
from fastsample_dist.partition.external.csc import StoredTopology
from fastsample_dist.partition.external.journal import work_directory
from fastsample_dist.partition.external.rows import check_feature_dtype
from fastsample_dist.partition.methods import METHODS
from fastsample_dist.partition.methods.adjacency import estimate_neighbours
from fastsample_dist.partition.methods.request import NO_FILES, check_num_clusters
from fastsample_dist.partition.plan.buffer import buffer_within
from fastsample_dist.partition.plan.memory import (
    compressed_needs,
    holds_graph,
    memory_budget,
    method_needs,
    sorted_on_disk,
)
from fastsample_dist.partition.write.clusters import require_for_clusters
from fastsample_dist.partition.write.disk_space import check_space, least_bytes, used_bytes
from fastsample_dist.partition.write.options import PartitionOptions

logger = logging.getLogger(__name__)


def check_request(
    sizes: GraphSizes, options: PartitionOptions, output: str | Path, *, overwrite: bool = False, is_read: bool = False
) -> MemoryBudget:
    """Refuse what sizes and names alone show to be impossible, before any data are read.

    Args:
      sizes: of the graph; where they are not known yet, what is certain (`inputs.least_sizes`).
      options, output, overwrite: as of `build_partition`.
      is_read: the graph has been read, and what that left counts as held.
    Returns:
      How the memory is divided.
    Raises:
      ValueError: an output that exists or cannot be written, no assignment file, more parts than nodes or than train
        nodes, more clusters than nodes, features of a type that is not kept, a memory limit or a disk that does not
        suffice.
      ImportError: the method's package is not there.
    """
    check_output(output, overwrite)
    check_feature_dtype(sizes.name, sizes.feature_dtype, options.feature_dtype)
    sizes = replace(sizes, **options.stored())
    METHODS[options.method].require()
    if options.clusters is not None:
        require_for_clusters()
    if options.assignment is not None and not Path(options.assignment).is_file():
        raise ValueError(f"{options.assignment} is missing; expected the file with the part of each node.")
    if sizes.least_nodes is None and options.num_parts > sizes.num_nodes:
        raise ValueError(
            f"num_parts is {options.num_parts} but the graph has {sizes.num_nodes} nodes; take at most one part per "
            "node."
        )
    if sizes.least_nodes is None and options.clusters is not None:
        check_num_clusters(options.clusters, options.num_parts, sizes.num_nodes)
    num_train = sizes.splits.get("train", 0)
    if 0 < num_train < options.num_parts:
        raise ValueError(
            f"num_parts is {options.num_parts} but {sizes.name} has {num_train} train nodes; training needs at least "
            "one per part, so take fewer parts."
        )
    ordered = options.order == "bfs"
    budget = memory_budget(options.memory_limit, resident_bytes(), sizes, options.method, ordered=ordered)
    if is_read:
        budget = replace(budget, base_is="held after reading the input")
    _check_listed(sizes, options.method, budget)
    buffer_within(options.method, options.buffer, options.num_parts, budget)
    on_disk = sorts_on_disk(sizes, options, budget)
    if on_disk:
        budget.check()
    _check_names(sizes, budget.limit)
    if not work_directory(output).exists():  # what a killed run has left counts: see check_disk
        planned, made = (options.num_parts, options.feature_dtype), METHODS[options.method].work_files(ordered=ordered)
        check_space(output, least_bytes(sizes, *planned, on_disk=on_disk, made=made))
    return budget


def sorts_on_disk(sizes: GraphSizes, options: PartitionOptions, budget: MemoryBudget) -> bool:
    """Whether the edges are sorted on disk: asked for, or because memory is too small."""
    return options.on_disk or sorted_on_disk(sizes, budget, options.method)


def _check_names(sizes: GraphSizes, limit: int) -> None:
    """Refuse names, of a list that is still to be read, that do not fit into memory while they are sorted."""
    needed, held = least_bytes_of_names(sizes.num_nodes, sizes.name_bytes), resident_bytes()
    if sizes.name_bytes and held + needed > limit:
        enough = format_size(held + needed + BASE_SPREAD_BYTES)
        raise ValueError(
            f"--relabel sorts {sizes.num_nodes} names of {sizes.name_bytes} bytes or more, which take at least "
            f"{format_size(needed)} beside the {format_size(held)} of the program itself, and the memory limit is "
            f"{format_size(limit)}; pass --memory-limit {enough} or more, or relabel the list yourself."
        )


def _check_listed(sizes: GraphSizes, method: str, budget: MemoryBudget) -> None:
    """Refuse a method that holds the whole graph where it would not fit even if every listed edge were there twice."""
    _refuse_above(budget, method, sizes, sizes.num_listed, sizes.num_listed)


def check_stored(raw: RawGraph, method: str, budget: MemoryBudget, topology: CSCGraph | StoredTopology) -> None:
    """Refuse a method that holds the whole graph once the edges are sorted: which are listed both ways is known then.

    Raises:
      ValueError: it would not fit into the memory limit.
    """
    if not holds_graph(method):
        return
    with as_graph(topology) as graph:
        neighbours = estimate_neighbours(graph, undirected=raw.undirected)
    _refuse_above(budget, method, sizes_of(raw), topology.num_edges, neighbours)


def check_compressed(sizes: GraphSizes, method: str, budget: MemoryBudget, graph_bytes: int) -> None:
    """Refuse a method in a process of its own for a graph that is too large even compressed, before edges are sorted.

    Args:
      sizes: of the graph.
      method: its name.
      budget: of the graph.
      graph_bytes: what the graph takes compressed.
    Raises:
      ValueError: that, and what nodes take, does not fit into the memory limit.
    """
    needed = compressed_needs(sizes, method, budget, graph_bytes)
    held = f"{format_size(needed)} or more, {format_size(graph_bytes)} of it the graph as {method} compresses it"
    if needed > budget.limit:
        raise ValueError(
            f"method {method} takes {held}, and the memory limit is {format_size(budget.limit)}; pass a larger "
            f"--memory-limit if the machine has it, or another --method, see --plan."
        )
    logger.info("method %s takes %s", method, held)


def _refuse_above(budget: MemoryBudget, method: str, sizes: GraphSizes, num_edges: int, neighbours: int) -> None:
    needed = method_needs(sizes, method, budget, num_edges, neighbours)
    if needed > budget.limit:
        others = ", ".join(name for name in METHODS if not holds_graph(name))
        enough = format_size(max(needed, budget.least()) + BASE_SPREAD_BYTES)
        raise ValueError(
            f"method {method} holds the whole graph in memory, about {enough} for {sizes.num_nodes} nodes and "
            f"{num_edges} edges, and the memory limit is {format_size(budget.limit)}; pass --memory-limit {enough} if "
            f"the machine has it, or another --method ({others})."
        )


def check_disk(
    raw: RawGraph,
    options: PartitionOptions,
    output: str | Path,
    topology: CSCGraph | StoredTopology | None = None,
    *,
    on_disk: bool = False,
    assigned: bool = True,
) -> None:
    """Refuse a graph for which the disk has no room: all of it or, once the topology is there, what remains.

    Args:
      raw, options, output: as of `build_partition`.
      topology: once it is there.
      on_disk: the edges are sorted on disk.
      assigned: the method has nothing to make any more.
    Raises:
      ValueError: the disk does not suffice.
    """
    stored_edges = None if topology is None else topology.num_edges
    planned = options.num_parts, options.feature_dtype
    sizes = sizes_of(raw, **options.stored())
    made = NO_FILES if assigned else METHODS[options.method].work_files(ordered=options.order == "bfs")
    needed = least_bytes(sizes, *planned, on_disk=on_disk, stored_edges=stored_edges, made=made)
    check_space(output, needed, used=used_bytes(output) if on_disk else 0)


def as_graph(topology: CSCGraph | StoredTopology) -> AbstractContextManager[CSCGraph]:
    """A topology as a graph while a block lasts."""
    return topology.mapped() if isinstance(topology, StoredTopology) else nullcontext(topology)

"""From a graph to a finished partition: topology, assignment, balance, relabelling, writing, measuring.

A small graph is cut in memory. A large one, or one that would not fit into the memory limit, is cut on disk
(external/): its edges are sorted in files beside the output, and what is finished survives a kill.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.files import naming_file
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.sizes import GraphSizes, sizes_of
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.graph.npy_files import map_array
from fastsample_dist.graph.storage import PartitionWriter, check_output
from fastsample_dist.memory_sizes import format_size
from fastsample_dist.partition.external.adjacency import (
    StoredAdjacency,
    adjacency_bytes,
    build_adjacency,
    remove_adjacency,
)
from fastsample_dist.partition.external.budget import BASE_SPREAD_BYTES, MemoryBudget, resident_bytes
from fastsample_dist.partition.external.csc import StoredTopology, build_stored, sort_bytes
from fastsample_dist.partition.external.journal import Journal, fingerprint, work_directory
from fastsample_dist.partition.external.ordered_rows import rows_in_order
from fastsample_dist.partition.external.output import ResumableWriter
from fastsample_dist.partition.external.rows import FEATURE_CHOICES
from fastsample_dist.partition.methods import MAX_SEED, METHODS, PartitionRequest
from fastsample_dist.partition.methods.adjacency import estimate_neighbours
from fastsample_dist.partition.methods.balance import balance_parts
from fastsample_dist.partition.methods.options import ORDERS, StreamOptions
from fastsample_dist.partition.methods.order import bfs_order
from fastsample_dist.partition.methods.request import check_num_clusters
from fastsample_dist.partition.plan.buffer import buffer_within
from fastsample_dist.partition.plan.memory import (
    cluster_needs,
    holds_graph,
    memory_budget,
    method_needs,
    sorted_on_disk,
)
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.report.quality import PartitionQuality, measure_partition
from fastsample_dist.partition.write.clusters import assign_clusters, require_for_clusters
from fastsample_dist.partition.write.disk_space import check_space, least_bytes, used_bytes
from fastsample_dist.partition.write.gaps import check_gaps
from fastsample_dist.partition.write.writer import Origin, Relabelling, WriteOptions, bytes_to_write, write_partition

METHOD_FOLDER = "assign"  # of the work directory: files of the method

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """How to cut a graph.

    Attributes:
      num_parts: number of parts, 1 .. num_nodes.
      method: one of `fastsample_dist.partition.methods.METHODS`.
      seed: 0 .. 2**31 - 1; the same seed on the same graph gives the same files.
      assignment: for method "file": the file with the part of each node.
      passes, order, buffer: as of `methods.options.StreamOptions`, for methods that read them.
      memory_limit: bytes that the process may hold; None: four fifths of what is available at the start.
      on_disk: sort the edges on disk even where memory would do, so that a killed run can be resumed.
      feature_dtype: "keep", "float16", "bfloat16", "float32" or "int8" (rounded, with a scale per row): how features
        are stored.
      edge_map: store for every edge of the topology its place in the input's list of edges: the column of edge_index,
        or the edge's number in a list as text, from 0. Both directions of an undirected edge have the place of that
        edge, and of edges that are merged the first one's counts.
      clusters: also cut the parts into so many clusters in all (clusters.py), from num_parts to num_nodes; None: into
        none.
    Raises:
      ValueError: a value outside these.
    """

    num_parts: int
    method: str = "metis"
    seed: int = 0
    assignment: str | Path | None = None
    passes: int | None = None
    order: str = ORDERS[0]
    buffer: int | None = None
    memory_limit: int | None = None
    on_disk: bool = False
    feature_dtype: str = "keep"
    edge_map: bool = False
    clusters: int | None = None

    def __post_init__(self) -> None:
        if self.num_parts < 1:
            raise ValueError(f"num_parts is {self.num_parts}; expected at least 1.")
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}; expected one of {', '.join(METHODS)}.")
        if (self.method == "file") != (self.assignment is not None):
            raise ValueError("method file and an assignment go together; pass both or neither.")
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed is {self.seed}; expected 0 to {MAX_SEED}.")
        self.streaming.check(self.method)
        if self.memory_limit is not None and self.memory_limit < 1:
            raise ValueError(f"memory_limit is {self.memory_limit}; expected bytes, at least 1.")
        if self.feature_dtype not in FEATURE_CHOICES:
            raise ValueError(f"feature_dtype is {self.feature_dtype!r}; expected one of {', '.join(FEATURE_CHOICES)}.")
        if self.clusters is not None:
            check_num_clusters(self.clusters, self.num_parts, None)

    @property
    def streaming(self) -> StreamOptions:
        """Options of methods that stream."""
        return StreamOptions(passes=self.passes, order=self.order, buffer=self.buffer)

    def stored(self) -> dict[str, bool]:
        """What is stored beside the graph's own columns, as `sizes_of` takes it."""
        return {"edge_map": self.edge_map, "clusters": self.clusters is not None}


@dataclass(frozen=True, eq=False)
class Assigned:
    """Where the nodes of a graph go, by original id.

    Attributes:
      parts: integer [num_nodes].
      train_moved: train nodes that were moved between parts to balance them.
      clusters: int32 [num_nodes], or None.
    """

    parts: np.ndarray
    train_moved: int
    clusters: np.ndarray | None


def build_partition(
    raw: RawGraph,
    options: PartitionOptions,
    output: str | Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PartitionQuality:
    """Cut a graph into parts and write them.

    Args:
      raw: the graph.
      options: number of parts, method, seed, memory.
      output: the partition's directory; it appears when complete.
      overwrite: replace a partition that is there.
      progress: gets the steps.
    Returns:
      The finished partition's figures, counted from its files.
    Raises:
      ValueError: what `check_request` refuses, or ids with huge gaps; both before the data are read.
      ImportError: method metis, or clusters, without METIS.
      OSError: the disk refuses; it names the file. Sorted in memory, nothing is left behind; on disk, the work
        directory (`external.journal.work_directory`), from which the same call resumes.
    """
    progress = progress or Progress()
    check_gaps(raw)
    sizes = sizes_of(raw, **options.stored())
    budget = check_request(sizes, options, output, overwrite=overwrite)
    topology = None
    if sizes.given_rows and not _sorts_on_disk(sizes, options, budget):
        topology = raw.rows_as_given(edge_map=options.edge_map)
        if topology is None:  # reverses are to be added: it is a list like any other
            sizes = replace(sizes, given_rows=False)
            budget = check_request(sizes, options, output, overwrite=overwrite)
    if _sorts_on_disk(sizes, options, budget):
        manifest = _cut_on_disk(raw, options, budget, output, overwrite, progress)
    else:
        manifest = _cut_in_memory(raw, topology, options, budget, output, overwrite, progress)
    with progress.step("measure"):
        quality = measure_partition(output, manifest)
    if quality.edge_counts.parallel_edges:
        logger.warning("%s: %s", raw.name, quality.edge_counts.lines()[0])
    return quality


def check_request(
    sizes: GraphSizes, options: PartitionOptions, output: str | Path, *, overwrite: bool = False
) -> MemoryBudget:
    """Refuse what sizes and names alone show to be impossible, before any data are read.

    Args:
      sizes: of the graph; where they are not known yet, what is certain (`inputs.least_sizes`).
      options, output, overwrite: as of `build_partition`.
    Returns:
      How the memory is divided.
    Raises:
      ValueError: an output that exists or cannot be written, no assignment file, more parts than nodes or than train
        nodes, more clusters than nodes, a memory limit or a disk that does not suffice.
      ImportError: the method's package is not there.
    """
    check_output(output, overwrite)
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
    _check_listed(sizes, options.method, budget)
    buffer_within(options.method, options.buffer, options.num_parts, budget)
    on_disk = _sorts_on_disk(sizes, options, budget)
    if on_disk:
        budget.check()
    if not work_directory(output).exists():  # what a killed run has left counts: see _check_disk
        planned, files = (options.num_parts, options.feature_dtype), METHODS[options.method].work_files
        check_space(output, least_bytes(sizes, *planned, on_disk=on_disk, **files))
    return budget


def _sorts_on_disk(sizes: GraphSizes, options: PartitionOptions, budget: MemoryBudget) -> bool:
    return options.on_disk or sorted_on_disk(sizes, budget, options.method)


def _file_state(path: str | Path | None) -> list[str | int] | None:
    """Plain values that change with a file."""
    if path is None:
        return None
    status = Path(path).stat()
    return [str(Path(path).absolute()), status.st_size, status.st_mtime_ns]


def _check_listed(sizes: GraphSizes, method: str, budget: MemoryBudget) -> None:
    """Refuse a method that holds the whole graph where it would not fit even if every listed edge were there twice."""
    _refuse_above(budget, method, sizes, sizes.num_listed, sizes.num_listed)


def _check_stored(raw: RawGraph, method: str, budget: MemoryBudget, topology: CSCGraph | StoredTopology) -> None:
    """The same once the edges are sorted, when it is known which of them are listed in both directions."""
    if not holds_graph(method):
        return
    with _as_graph(topology) as graph:
        neighbours = estimate_neighbours(graph, undirected=raw.undirected)
    _refuse_above(budget, method, sizes_of(raw), topology.num_edges, neighbours)


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


def _check_disk(
    raw: RawGraph,
    options: PartitionOptions,
    output: str | Path,
    topology: CSCGraph | StoredTopology | None = None,
    *,
    on_disk: bool = False,
    adjacency: bool = False,
) -> None:
    """Refuse a graph for which the disk has no room: all of it or, once the topology is there, what remains; with the
    adjacency, where that is still to be made."""
    stored_edges = None if topology is None else topology.num_edges
    planned = options.num_parts, options.feature_dtype
    sizes = sizes_of(raw, **options.stored())
    files = METHODS[options.method].work_files if adjacency else {}
    needed = least_bytes(sizes, *planned, on_disk=on_disk, stored_edges=stored_edges, **files)
    check_space(output, needed, used=used_bytes(output) if on_disk else 0)


def _as_graph(topology: CSCGraph | StoredTopology) -> AbstractContextManager[CSCGraph]:
    return topology.mapped() if isinstance(topology, StoredTopology) else nullcontext(topology)


def _cut_in_memory(
    raw: RawGraph,
    topology: CSCGraph | None,
    options: PartitionOptions,
    budget: MemoryBudget,
    output: str | Path,
    overwrite: bool,
    progress: Progress,
) -> Manifest:
    """Cut a graph whose topology is there already, or (None) is built in memory."""
    _check_disk(raw, options, output, topology)
    with progress.step("topology"):
        topology = topology or raw.to_csc(edge_map=options.edge_map)
        _check_stored(raw, options.method, budget, topology)
        _check_disk(raw, options, output, topology)
    parts, moved = _assign(raw, topology, options, budget, progress)
    clusters = _cluster(raw, topology, parts, options, budget, progress)
    with progress.step("write"), PartitionWriter(output, overwrite=overwrite) as writer:
        return _write(writer, raw, topology, Assigned(parts, moved, clusters), options, progress)


def _cut_on_disk(
    raw: RawGraph,
    options: PartitionOptions,
    budget: MemoryBudget,
    output: str | Path,
    overwrite: bool,
    progress: Progress,
) -> Manifest:
    method = METHODS[options.method]
    made_from = {
        "edges": [fingerprint(raw.edge_index), raw.num_nodes, raw.undirected],
        "splits": {split: fingerprint(ids) for split, ids in raw.splits.items()},
        "options": [options.num_parts, options.method, options.seed, _file_state(options.assignment)],
        "streaming": options.streaming.given(),
    }
    with Journal(output) as journal:
        if not journal.finished("sort"):
            _check_disk(raw, options, output, on_disk=True, adjacency=method.stores_adjacency)
        with progress.step("topology"):
            progress.bytes_total(sort_bytes(raw))
            topology = build_stored(raw, journal, budget, progress.bytes_done, edge_map=options.edge_map)
            _check_stored(raw, options.method, budget, topology)
            _check_disk(raw, options, output, topology, on_disk=True)
        state, file = journal.begin("assign", made_from), journal.path / "parts.int32"
        if not state.get("done"):
            links = None
            if method.stores_adjacency:
                _check_disk(raw, options, output, topology, on_disk=True, adjacency=True)
                with progress.step("adjacency"):
                    progress.bytes_total(adjacency_bytes(topology, undirected=raw.undirected))
                    links = build_adjacency(topology, journal, budget, progress.bytes_done, undirected=raw.undirected)
                state = journal.begin("assign", made_from)  # again: making it may have started later steps anew
            parts, moved = _assign(raw, topology, options, budget, progress, _method_files(journal, state), links)
            state = {"moved": moved, "done": True}
            _keep(journal, "assign", file, parts, state)
            shutil.rmtree(journal.path / METHOD_FOLDER)
        remove_adjacency(journal)
        parts = map_array(file, np.dtype(np.int32), (raw.num_nodes,))
        made_from["clusters"] = options.clusters
        file = journal.path / "clusters.int32"
        if not journal.begin("cluster", made_from) and options.clusters is not None:
            found = _cluster(raw, topology, parts, options, budget, progress)
            _keep(journal, "cluster", file, found, {"done": True})
        clusters = None if options.clusters is None else map_array(file, np.dtype(np.int32), (raw.num_nodes,))
        assigned = Assigned(parts, state["moved"], clusters)
        columns = [raw.edge_weight, raw.features, raw.labels, raw.node_type, raw.input_ids]
        columns += [] if raw.targets is None else [raw.targets]
        made_from |= {
            "columns": [fingerprint(column) for column in columns],
            "manifest": [raw.name, raw.num_classes, options.feature_dtype, state["moved"], *raw.node_types],
            "task": raw.task,
            "edge_map": options.edge_map,
        }
        writer = ResumableWriter(output, journal, made_from, overwrite=overwrite)
        with progress.step("write"), writer:
            manifest = _write(writer, raw, topology, assigned, options, progress, budget.write_edges)
        journal.remove()
    return manifest


def _method_files(journal: Journal, state: dict[str, Any]) -> Path:
    """A directory for the method's files; what a killed run has left there stays if it was made from the same."""
    folder = journal.path / METHOD_FOLDER
    if not state:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        journal.save("assign", begun=True)
    return folder


def _keep(journal: Journal, step: str, file: Path, numbers: np.ndarray, state: dict[str, Any]) -> None:
    """Write what a step has found to a file of the work directory, then record the step."""
    with naming_file(file):  # not by tofile, which loses the disk's refusal of the last bytes
        file.write_bytes(numbers.astype(np.int32, copy=False).data)
    journal.save(step, **state)


def _write(
    writer: PartitionWriter,
    raw: RawGraph,
    topology: CSCGraph | StoredTopology,
    assigned: Assigned,
    options: PartitionOptions,
    progress: Progress,
    chunk_edges: int | None = None,
) -> Manifest:
    """Write and publish."""
    progress.bytes_total(bytes_to_write(raw, topology, options.feature_dtype))
    stats = {
        "edges_listed": raw.edge_index.shape[1],
        "nonfinite_features": raw.nonfinite_features,
        "train_nodes_moved": assigned.train_moved,
    }
    if options.streaming.given():
        stats["options"] = options.streaming.given()
    write_options = WriteOptions(
        feature_dtype=options.feature_dtype,
        chunk_edges=chunk_edges,
        clusters=assigned.clusters,
        on_bytes=progress.bytes_done,
    )
    return write_partition(
        writer,
        raw,
        topology,
        Relabelling.from_parts(assigned.parts, options.num_parts, raw.node_type, max(1, len(raw.node_types))),
        Origin(method=options.method, seed=options.seed, stats=stats),
        write_options,
    )


def _assign(
    raw: RawGraph,
    topology: CSCGraph | StoredTopology,
    options: PartitionOptions,
    budget: MemoryBudget,
    progress: Progress,
    work: Path | None = None,
    links: StoredAdjacency | None = None,
) -> tuple[np.ndarray, int]:
    """Part of each node, and how many train nodes were moved to balance them.

    Args:
      work: for the method's files; None: the system's directory for temporary ones.
      links: the adjacency, where it is in files.
    """
    method = METHODS[options.method]
    mapped = nullcontext() if links is None else links.mapped()
    with _as_graph(topology) as graph, mapped as adjacency:
        request = PartitionRequest(
            graph=graph,
            undirected=raw.undirected,
            num_parts=options.num_parts,
            seed=options.seed,
            splits=raw.splits,
            assignment=options.assignment,
            passes=options.passes,
            buffer_bytes=buffer_within(options.method, options.buffer, options.num_parts, budget),
            work=work,
            memory_limit=budget.limit,
            on_memory=progress.memory_held,
            stored=adjacency,
        )
        if options.order == "bfs":
            with progress.step("order"):
                links = method.links_of(request)
                stored = links if method.links == "adjacency" else None  # made once
                copied = None if work is None else partial(rows_in_order, work=work)
                request = replace(request, order=bfs_order(links), reorder=copied, stored=stored)
        with progress.step("assign"):
            parts = method.assign(request)
        with progress.step("balance"):
            balanced = balance_parts(request, method, parts)
    for note in balanced.notes:
        logger.info("%s", note)
    return parts, balanced.train_moved


def _cluster(
    raw: RawGraph,
    topology: CSCGraph | StoredTopology,
    parts: np.ndarray,
    options: PartitionOptions,
    budget: MemoryBudget,
    progress: Progress,
) -> np.ndarray | None:
    """Cluster of each node, or None where none are asked for."""
    if options.clusters is None:
        return None

    def check(nodes: int, edges: int) -> None:
        needed = cluster_needs(sizes_of(raw), budget, nodes, edges)
        if needed > budget.limit:
            raise ValueError(
                f"clusters are cut in memory, a part at a time: about {format_size(needed + BASE_SPREAD_BYTES)} for a "
                f"part with {nodes} nodes and {edges} edges inside, and the memory limit is "
                f"{format_size(budget.limit)}; take more parts, a larger --memory-limit, or leave --clusters out."
            )

    with progress.step("cluster"):
        return assign_clusters(
            topology, parts, options.clusters, undirected=raw.undirected, seed=options.seed, check=check
        )

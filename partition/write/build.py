"""From a graph to a finished partition: topology, assignment, balance, relabelling, writing, measuring.

A small graph is cut in memory. A large one, or one that would not fit into the memory limit, is cut on disk
(external/): its edges are sorted in files beside the output, and what is finished survives a kill.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.files import naming_file
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.graph.npy_files import map_array
from fastsample_dist.graph.storage import PartitionWriter
from fastsample_dist.memory_sizes import format_size
from fastsample_dist.partition.external.adjacency import (
    StoredAdjacency,
    adjacency_bytes,
    build_adjacency,
    link_budget,
    remove_adjacency,
)
from fastsample_dist.partition.external.budget import BASE_SPREAD_BYTES, MemoryBudget
from fastsample_dist.partition.external.csc import StoredTopology, build_stored, sort_bytes
from fastsample_dist.partition.external.journal import Journal, fingerprint
from fastsample_dist.partition.external.ordered_rows import rows_in_order
from fastsample_dist.partition.external.output import ResumableWriter
from fastsample_dist.partition.methods import METHODS, PartitionRequest
from fastsample_dist.partition.methods.balance import balance_parts
from fastsample_dist.partition.methods.order import bfs_order
from fastsample_dist.partition.plan.buffer import buffer_within
from fastsample_dist.partition.plan.memory import cluster_needs
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.report.quality import PartitionQuality, measure_partition
from fastsample_dist.partition.write.checks import (
    as_graph,
    check_compressed,
    check_disk,
    check_request,
    check_stored,
    sorts_on_disk,
)
from fastsample_dist.partition.write.clusters import assign_clusters
from fastsample_dist.partition.write.gaps import check_gaps
from fastsample_dist.partition.write.options import PartitionOptions
from fastsample_dist.partition.write.writer import Origin, Relabelling, WriteOptions, bytes_to_write, write_partition

METHOD_FOLDER = "assign"  # of the work directory: files of the method

logger = logging.getLogger(__name__)


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
    budget = check_request(sizes, options, output, overwrite=overwrite, is_read=True)
    topology = None
    if sizes.given_rows and not sorts_on_disk(sizes, options, budget):
        topology = raw.rows_as_given(edge_map=options.edge_map)
        if topology is None:  # reverses are to be added: it is a list like any other
            sizes = replace(sizes, given_rows=False)
            budget = check_request(sizes, options, output, overwrite=overwrite, is_read=True)
    if sorts_on_disk(sizes, options, budget):
        manifest = _cut_on_disk(raw, options, budget, output, overwrite, progress)
    else:
        manifest = _cut_in_memory(raw, topology, options, budget, output, overwrite, progress)
    with progress.step("measure"):
        quality = measure_partition(output, manifest)
    if quality.edge_counts.parallel_edges:
        logger.warning("%s: %s", raw.name, quality.edge_counts.lines()[0])
    return quality


def _file_state(path: str | Path | None) -> list[str | int] | None:
    """Plain values that change with a file."""
    if path is None:
        return None
    status = Path(path).stat()
    return [str(Path(path).absolute()), status.st_size, status.st_mtime_ns]


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
    check_disk(raw, options, output, topology)
    with progress.step("topology"):
        topology = topology or raw.to_csc(edge_map=options.edge_map)
        check_stored(raw, options.method, budget, topology)
        check_disk(raw, options, output, topology)
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
            check_disk(raw, options, output, on_disk=True, assigned=False)
        with progress.step("topology"):
            progress.bytes_total(sort_bytes(raw))
            links = partial(link_budget(budget).check, edges="neighbours") if method.stores_adjacency else None
            compressed = partial(check_compressed, sizes_of(raw), options.method, budget)
            topology = build_stored(
                raw,
                journal,
                budget,
                progress.bytes_done,
                edge_map=options.edge_map,
                check_links=links,
                check_compressed=compressed if method.memory.own_process else None,
            )
            check_stored(raw, options.method, budget, topology)
        state, file = journal.begin("assign", made_from), journal.path / "parts.int32"
        check_disk(raw, options, output, topology, on_disk=True, assigned=bool(state.get("done")))
        if not state.get("done"):
            links = None
            if method.stores_adjacency:
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
    with as_graph(topology) as graph, mapped as adjacency:
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
            progress=progress,
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

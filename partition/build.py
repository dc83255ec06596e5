"""From a graph to a finished partition: topology, assignment, balance, relabelling, writing, measuring.

A small graph is cut in memory. A large one, or one that would not fit into the memory limit, is cut on disk
(external/): its edges are sorted in files beside the output, and what is finished survives a kill.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.graph.storage import PartitionWriter, check_output
from partition.adjacency import symmetrise
from partition.balance import balance_train_nodes
from partition.external.csc import StoredTopology, build_stored, sort_bytes, sort_edge_bytes
from partition.external.journal import Journal, fingerprint
from partition.external.memory import DEFAULT_SHARE, MemoryPlan, available_bytes, format_size, resident_bytes
from partition.external.output import ResumableWriter
from partition.external.rows import FEATURE_CHOICES
from partition.methods import MAX_SEED, METHODS, metis_parts, random_parts
from partition.quality import PartitionQuality, measure_partition
from partition.writer import Origin, Relabelling, WriteOptions, bytes_to_write, write_partition

logger = logging.getLogger(__name__)

STEPS = ("topology", "assign", "balance", "write", "measure")
SMALL_EDGES = 1 << 24  # listed edges that are sorted in memory where they fit; more are sorted on disk sooner
IN_MEMORY_EDGE_BYTES = 64  # of building the topology in memory, per stored edge
METIS_EDGE_BYTES = 100  # of METIS and the graph it gets, per stored edge
METIS_NODE_BYTES = 150


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """How to cut a graph.

    Attributes:
      num_parts: number of parts, 1 .. num_nodes.
      method: one of `partition.methods.METHODS`.
      seed: 0 .. 2**31 - 1; the same seed on the same graph gives the same files.
      memory_limit: bytes that the process may hold; None: four fifths of what is available at the start.
      on_disk: sort the edges on disk even where memory would do, so that a killed run can go on.
      feature_dtype: "keep", "float16", "bfloat16" or "float32": how features are stored.
    Raises:
      ValueError: a value outside these.
    """

    num_parts: int
    method: str = "metis"
    seed: int = 0
    memory_limit: int | None = None
    on_disk: bool = False
    feature_dtype: str = "keep"

    def __post_init__(self) -> None:
        if self.num_parts < 1:
            raise ValueError(f"num_parts is {self.num_parts}; expected at least 1.")
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}; expected {' or '.join(METHODS)}.")
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed is {self.seed}; expected 0 to {MAX_SEED}.")
        if self.memory_limit is not None and self.memory_limit < 1:
            raise ValueError(f"memory_limit is {self.memory_limit}; expected bytes, at least 1.")
        if self.feature_dtype not in FEATURE_CHOICES:
            raise ValueError(f"feature_dtype is {self.feature_dtype!r}; expected one of {', '.join(FEATURE_CHOICES)}.")


class Progress:
    """What `partition_graph` tells while it works; this one keeps silent, the command line's shows it."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Surrounds each of STEPS in turn."""
        yield

    def bytes_total(self, count: int) -> None:
        """How many bytes the running step is going to report, at most."""

    def bytes_done(self, count: int) -> None:
        """That so many more of them are written."""


def partition_graph(
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
      progress: is told the steps.
    Returns:
      The finished partition's figures, counted from its files.
    Raises:
      ValueError: more parts than nodes, an output that exists or cannot be written, a memory limit that cannot work.
      ImportError: method metis without pymetis.
      OSError: the disk refuses. Sorted in memory, nothing is left behind; on disk, the work directory
        (`external.journal.work_directory`), from which the same call goes on.
    """
    progress = progress or Progress()
    check_output(output, overwrite)
    if options.num_parts > raw.num_nodes:
        raise ValueError(
            f"num_parts is {options.num_parts} but the graph has {raw.num_nodes} nodes; take at most one part per node."
        )
    train = raw.splits.get("train", np.empty(0, dtype=np.int64))
    if "train" in raw.splits and len(train) < options.num_parts:
        logger.warning(
            "%s has %d train nodes for %d parts, expected at least one per part; "
            "training refuses a split that is empty on a rank",
            *(raw.name, len(train), options.num_parts),
        )
    plan = _memory_plan(raw, options)
    if options.method == "metis":
        _check_metis_memory(raw, plan)
    if options.on_disk or _wants_disk(raw, plan):
        manifest = _cut_on_disk(raw, train, options, plan, output, overwrite, progress)
    else:
        manifest = _cut_in_memory(raw, train, options, output, overwrite, progress)
    with progress.step("measure"):
        return measure_partition(output, manifest)


def _memory_plan(raw: RawGraph, options: PartitionOptions) -> MemoryPlan:
    limit = options.memory_limit
    return MemoryPlan(
        limit=int(available_bytes() * DEFAULT_SHARE) if limit is None else limit,
        base=resident_bytes(),
        num_nodes=raw.num_nodes,
        sort_edge_bytes=sort_edge_bytes(raw),
    )


def _stored_edges(raw: RawGraph) -> int:
    """Edges of the topology, at most."""
    return raw.edge_index.shape[1] * (2 if raw.undirected else 1)


def _wants_disk(raw: RawGraph, plan: MemoryPlan) -> bool:
    in_memory = plan.least() + _stored_edges(raw) * IN_MEMORY_EDGE_BYTES
    return raw.edge_index.shape[1] > SMALL_EDGES or in_memory > plan.limit


def _check_metis_memory(raw: RawGraph, plan: MemoryPlan) -> None:
    needed = plan.base + METIS_EDGE_BYTES * _stored_edges(raw) + METIS_NODE_BYTES * raw.num_nodes
    if needed > plan.limit:
        raise ValueError(
            f"method metis holds the whole graph in memory, about {format_size(needed)} for {raw.num_nodes} nodes and "
            f"{_stored_edges(raw)} edges, and the memory limit is {format_size(plan.limit)}; pass --memory-limit "
            f"{format_size(needed)} if the machine has it, or take --method random."
        )


def _cut_in_memory(
    raw: RawGraph,
    train: np.ndarray,
    options: PartitionOptions,
    output: str | Path,
    overwrite: bool,
    progress: Progress,
) -> Manifest:
    with progress.step("topology"):
        topology = raw.to_csc()
    parts, moved = _assign(raw, topology, train, options, progress.step)
    with progress.step("write"), PartitionWriter(output, overwrite=overwrite) as writer:
        return _write(writer, raw, topology, (parts, moved), options, progress)


def _cut_on_disk(
    raw: RawGraph,
    train: np.ndarray,
    options: PartitionOptions,
    plan: MemoryPlan,
    output: str | Path,
    overwrite: bool,
    progress: Progress,
) -> Manifest:
    plan.check()
    made_from = {
        "edges": [fingerprint(raw.edge_index), raw.num_nodes, raw.undirected],
        "train": fingerprint(train),
        "options": [options.num_parts, options.method, options.seed],
    }
    with Journal(output) as journal:
        with progress.step("topology"):
            progress.bytes_total(sort_bytes(raw))
            topology = build_stored(raw, journal, plan, progress.bytes_done)
        state, file = journal.begin("assign", made_from), journal.path / "parts.int32"
        if not state:
            parts, moved = _assign(raw, topology, train, options, progress.step)
            parts.astype(np.int32, copy=False).tofile(file)
            state = {"moved": moved, "done": True}
            journal.save("assign", **state)
        assigned = np.fromfile(file, dtype=np.int32), state["moved"]
        columns = [raw.edge_weight, raw.features, raw.labels, *raw.splits.values()]
        made_from |= {
            "columns": [fingerprint(column) for column in columns],
            "manifest": [raw.name, raw.num_classes, list(raw.splits), options.feature_dtype, state["moved"]],
        }
        writer = ResumableWriter(output, journal, made_from, overwrite=overwrite)
        with progress.step("write"), writer:
            manifest = _write(writer, raw, topology, assigned, options, progress, plan.write_edges)
        journal.remove()
    return manifest


def _write(
    writer: PartitionWriter,
    raw: RawGraph,
    topology: CSCGraph | StoredTopology,
    assigned: tuple[np.ndarray, int],
    options: PartitionOptions,
    progress: Progress,
    chunk_edges: int | None = None,
) -> Manifest:
    """Write and publish; `assigned` is the part of each node and the number of train nodes moved."""
    progress.bytes_total(bytes_to_write(raw, topology, options.feature_dtype))
    stats = {
        "edges_listed": raw.edge_index.shape[1],
        "nonfinite_features": raw.nonfinite_features,
        "train_nodes_moved": assigned[1],
    }
    return write_partition(
        writer,
        raw,
        topology,
        Relabelling.from_parts(assigned[0], options.num_parts),
        Origin(method=options.method, seed=options.seed, stats=stats),
        WriteOptions(feature_dtype=options.feature_dtype, chunk_edges=chunk_edges, on_bytes=progress.bytes_done),
    )


def _assign(
    raw: RawGraph,
    topology: CSCGraph | StoredTopology,
    train: np.ndarray,
    options: PartitionOptions,
    step: Callable[[str], AbstractContextManager[None]],
) -> tuple[np.ndarray, int]:
    """Part of each node, and how many train nodes were moved to balance them."""
    if options.method == "random":  # balanced by construction; needs no graph
        with step("assign"):
            return random_parts(raw.num_nodes, train, options.num_parts, options.seed), 0
    with step("assign"):
        graph = topology.mapped() if isinstance(topology, StoredTopology) else topology
        adjacency = symmetrise(graph, undirected=raw.undirected)
        in_degrees = graph.in_degrees().numpy()
        parts = metis_parts(adjacency, in_degrees, train, options.num_parts, options.seed)
    with step("balance"):
        return parts, balance_train_nodes(parts, train, adjacency, options.num_parts)

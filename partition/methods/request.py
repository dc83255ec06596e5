"""What a partitioning method is given, and what it states about itself.

A part of a partition costs features (nodes), sampling work (in-edges) and steps of training and evaluation (train,
validation and test nodes). These five are the constraints that a method is to balance, as far as it can.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.partition.methods.adjacency import Adjacency, rows_of, symmetrise
from fastsample_dist.partition.methods.constraints import InDegrees, InSplit, NodeWeights, part_counts, split_bits
from fastsample_dist.partition.progress import Progress

SPLITS = ("train", "val", "test")
MAX_SEED = 2**31 - 1  # METIS may be built with 32-bit integers


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionRequest:
    """A graph and how to cut it.

    Attributes:
      graph: the topology, original ids; its columns may be mapped from files.
      undirected: the topology holds both directions of every edge, once.
      num_parts: P, 1 .. num_nodes.
      seed: 0 .. MAX_SEED; the same seed on the same graph gives the same parts (except kaminpar).
      splits: node ids of "train", "val" and "test", those that exist; unique, ascending.
      assignment: for method `file`: the file to read.
      num_threads: for methods with threads; None: torch's setting.
      stored: the adjacency, where it is there already, such as mapped from files.
      passes: for methods that read "passes" (`Method.reads`): how often they go over the nodes; None: their default.
      order: for methods that read "order": int64 [num_nodes], the nodes in the order to visit; None: ascending.
      reorder: makes a copy of mapped rows in the order to visit from (indptr, entries, order, name of the column),
        while a block lasts; None: they are read where they lie.
      buffer_bytes: for methods that read "buffer": bytes of the graph that they may hold; None: their default.
      work: a directory for the method's temporary files, which outlives a killed run; None: the system's.
      memory_limit: bytes that this process and those it starts may hold together; None: any number.
      progress: gets how much of the neighbour lists is read, and what the processes hold together while another works.
    Raises:
      ValueError: a value outside these.
    """

    graph: CSCGraph
    undirected: bool
    num_parts: int
    seed: int = 0
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)
    assignment: str | Path | None = None
    num_threads: int | None = None
    stored: Adjacency | None = None
    passes: int | None = None
    order: np.ndarray | None = None
    reorder: Callable[[np.ndarray, np.ndarray, np.ndarray, str], AbstractContextManager[np.ndarray]] | None = None
    buffer_bytes: int | None = None
    work: Path | None = None
    memory_limit: int | None = None
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        if self.num_parts < 1:
            raise ValueError(f"num_parts is {self.num_parts}; expected at least 1.")
        if self.num_parts > self.num_nodes:
            raise ValueError(
                f"num_parts is {self.num_parts} but the graph has {self.num_nodes} nodes; take at most one part per "
                "node."
            )
        if 0 < len(self.train) < self.num_parts:
            raise ValueError(
                f"num_parts is {self.num_parts} but the graph has {len(self.train)} train nodes; training needs at "
                "least one per part, so take fewer parts."
            )
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed is {self.seed}; expected 0 to {MAX_SEED}.")
        if unknown := sorted(set(self.splits) - set(SPLITS)):
            raise ValueError(f"splits has {', '.join(unknown)}; expected {', '.join(SPLITS)}.")

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.graph.num_nodes

    @property
    def in_degrees(self) -> np.ndarray:
        """int64 [num_nodes]; stored in-edges of each node."""
        return self.graph.in_degrees().numpy()

    @property
    def train(self) -> np.ndarray:
        """int64 [num_train]; train node ids, ascending."""
        return np.asarray(self.splits.get("train", ()), dtype=np.int64)

    @cached_property
    def adjacency(self) -> Adjacency:
        """Neighbours in both directions: `stored`, or made on first use and kept."""
        return symmetrise(self.graph, undirected=self.undirected) if self.stored is None else self.stored

    @property
    def rows(self) -> Adjacency:
        """The stored neighbour lists as they are, without copying: in-neighbours, both directions if undirected."""
        return rows_of(self.graph, undirected=self.undirected)

    @property
    def kinds(self) -> np.ndarray:
        """uint8 [num_nodes]; bit k: the node is in SPLITS[k]."""
        return split_bits(self.splits, self.num_nodes)

    def constraints(self) -> dict[str, NodeWeights]:
        """What is to be balanced: the weights of the nodes in "nodes", "in_edges", "train", "val" and "test".

        A constraint that is 0 on every node is left out. They hold a byte per node together.
        """
        weights: dict[str, NodeWeights] = {"nodes": np.broadcast_to(np.int8(1), self.num_nodes)}
        if self.graph.num_edges:
            weights["in_edges"] = InDegrees(self.graph.indptr.numpy())
        kinds = self.kinds
        for bit, split in enumerate(SPLITS):
            if len(self.splits.get(split, ())):
                weights[split] = InSplit(kinds, bit)
        return weights


class AssignMemory(NamedTuple):
    """Memory that a method takes at its widest, beside the topology; measured, see benchmarks/partition-plan.md.

    Attributes:
      node_bytes: per node.
      neighbour_bytes: per entry of the adjacency (`PartitionRequest.adjacency`) of a graph of 2**20 nodes.
      doubling_bytes: as many more per entry for every doubling of the nodes (a level more of a multilevel method).
      fixed_bytes: whatever the graph.
      least_bytes: per entry, of a graph with communities, where it depends on that; None: as neighbour_bytes.
      most_bytes: per entry, of a graph with neither communities nor hubs; None: as neighbour_bytes.
      own_process: it works in a process of its own, which ends where that takes more than there is.
      copies: it reads the adjacency once, into memory of its own; else rows that are mapped stay as long as it works.
    """

    node_bytes: int
    neighbour_bytes: float = 0
    doubling_bytes: float = 0
    fixed_bytes: int = 0
    copies: bool = False
    least_bytes: float | None = None
    most_bytes: float | None = None
    own_process: bool = False

    def total(self, num_nodes: int, num_neighbours: int) -> int:
        """Bytes for a graph."""
        entry = self.neighbour_bytes + self.doubling_bytes * math.log2(num_nodes / 2**20)
        entry = max(entry, self.neighbour_bytes / 4)  # few nodes: the input and its first level remain
        return self.node_bytes * num_nodes + round(entry * num_neighbours) + self.fixed_bytes

    def least(self, num_nodes: int, num_neighbours: int) -> int:
        """Bytes for a graph with communities."""
        return self._of(self.least_bytes).total(num_nodes, num_neighbours)

    def most(self, num_nodes: int, num_neighbours: int) -> int:
        """Bytes for a graph with neither communities nor hubs."""
        return self._of(self.most_bytes).total(num_nodes, num_neighbours)

    def _of(self, entry: float | None) -> AssignMemory:
        return self if entry is None else self._replace(neighbour_bytes=entry)


@dataclass(frozen=True, kw_only=True)
class WorkFiles:
    """What a method makes in the work directory where the edges are sorted on disk.

    Attributes:
      adjacency: that of the graph (external/adjacency.py).
      graph_file: a file of its own, made from the adjacency (parhip.py).
      ordered_rows: a copy of the rows that it reads, in the order of the nodes (external/ordered_rows.py).
    """

    adjacency: bool = False
    graph_file: bool = False
    ordered_rows: bool = False


NO_FILES = WorkFiles()


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to cut a graph.

    Attributes:
      name: as --method takes it.
      assign: from a request to int32 [num_nodes], the part of each node.
      summary: one line for --help.
      memory: what it needs beside the topology's files.
      links: what the cut is counted in: "adjacency", every stored edge in the rows of both its ends, or "rows", the
        stored rows of in-edges as they are.
      in_memory: it needs the adjacency in this process's memory.
      balances: nodes and in-edges are brought within a tolerance afterwards; else only train nodes are.
      blocks_signals: whether it holds Python's lock while it works, so that no signal handler runs before it is done.
      missing: what to install before it works here; "" where nothing is missing.
      require: raises MissingPackageError when a package that it needs is not there; called before the graph is read.
      reads: which of "passes", "order" and "buffer" it reads from a request.
    """

    name: str
    assign: Callable[[PartitionRequest], np.ndarray]
    summary: str
    memory: AssignMemory
    links: str
    in_memory: bool
    balances: bool
    blocks_signals: Callable[[], bool] = lambda: False
    missing: Callable[[], str] = lambda: ""
    require: Callable[[], object] = lambda: None
    reads: frozenset[str] = frozenset()

    @property
    def stores_adjacency(self) -> bool:
        """Whether the adjacency is made in files where the edges are sorted on disk, and mapped while it works."""
        return self.links == "adjacency" and not self.in_memory

    def links_of(self, request: PartitionRequest) -> Adjacency:
        """The neighbour lists of a request that the method's cut is counted in (`links`)."""
        return request.adjacency if self.links == "adjacency" else request.rows

    def work_files(self, *, ordered: bool) -> WorkFiles:
        """What it makes in the work directory.

        Args:
          ordered: the nodes come in an order of their own.
        """
        stores = self.stores_adjacency
        return WorkFiles(
            adjacency=stores,
            graph_file=stores and self.memory.own_process,
            ordered_rows=ordered and "order" in self.reads,
        )


class MissingPackageError(ImportError):
    """A method's package is not installed; the text names the command that installs it, without a full stop."""


def check_num_clusters(clusters: int, num_parts: int, num_nodes: int | None) -> None:
    """Refuse a number of clusters that no partition has.

    Args:
      clusters: asked for.
      num_parts: of the partition.
      num_nodes: of the graph; None: not known yet.
    Raises:
      ValueError: fewer than parts, or more than nodes.
    """
    if clusters < num_parts:
        raise ValueError(
            f"clusters is {clusters} but there are {num_parts} parts, and a cluster lies in one part; pass at least "
            f"{num_parts}."
        )
    if num_nodes is not None and clusters > num_nodes:
        raise ValueError(
            f"clusters is {clusters} but the graph has {num_nodes} nodes; take at most one cluster per node."
        )


def importable(package: str) -> bool:
    """Whether a package could be imported; it is not imported."""
    return importlib.util.find_spec(package) is not None


def fill_empty_parts(parts: np.ndarray, num_parts: int, indptr: np.ndarray) -> None:
    """Give every part without nodes the least connected node of the largest part.

    Args:
      parts: integer [num_nodes]; changed in place.
      num_parts: number of parts.
      indptr: int64 [num_nodes + 1]; of the neighbour lists.
    """
    counts = part_counts(parts, num_parts)
    for part in np.flatnonzero(counts == 0):
        largest = int(counts.argmax())
        members = np.flatnonzero(parts == largest)
        parts[members[(indptr[members + 1] - indptr[members]).argmin()]] = part
        counts[largest] -= 1
        counts[part] += 1

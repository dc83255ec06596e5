"""From a graph to a finished partition: topology, assignment, balance, relabelling, writing, measuring."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.storage import PartitionWriter, check_output
from partition.adjacency import symmetrise
from partition.balance import balance_train_nodes
from partition.methods import MAX_SEED, METHODS, metis_parts, random_parts
from partition.quality import PartitionQuality, measure_partition
from partition.writer import Origin, Relabelling, bytes_to_write, write_partition

logger = logging.getLogger(__name__)

STEPS = ("topology", "assign", "balance", "write", "measure")


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """How to cut a graph.

    Attributes:
      num_parts: number of parts, 1 .. num_nodes.
      method: "metis" or "random".
      seed: 0 .. 2**31 - 1; the same seed on the same graph gives the same files.
    Raises:
      ValueError: a value outside these.
    """

    num_parts: int
    method: str = "metis"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_parts < 1:
            raise ValueError(f"num_parts is {self.num_parts}; expected at least 1.")
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}; expected {' or '.join(METHODS)}.")
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed is {self.seed}; expected 0 to {MAX_SEED}.")


class Progress:
    """What `partition_graph` tells while it works; this one keeps silent, the command line's shows it."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Surrounds each of STEPS in turn."""
        yield

    def bytes_total(self, count: int) -> None:
        """How many bytes the step "write" is going to report."""

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
      options: number of parts, method, seed.
      output: the partition's directory; it appears when complete.
      overwrite: replace a partition that is there.
      progress: is told the steps.
    Returns:
      The finished partition's figures, counted from its files.
    Raises:
      ValueError: more parts than nodes, or an output that exists or cannot be written.
      ImportError: method metis without pymetis.
      OSError: the disk refuses; nothing is left behind.
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
    with progress.step("topology"):
        topology = raw.to_csc()
    parts, moved = _assign(raw, topology, train, options, progress.step)
    origin = Origin(
        method=options.method,
        seed=options.seed,
        stats={
            "edges_listed": raw.edge_index.shape[1],
            "nonfinite_features": raw.nonfinite_features,
            "train_nodes_moved": moved,
        },
    )
    with progress.step("write"), PartitionWriter(output, overwrite=overwrite) as writer:
        progress.bytes_total(bytes_to_write(raw, topology))
        labelling = Relabelling.from_parts(parts, options.num_parts)
        manifest = write_partition(writer, raw, topology, labelling, origin, on_bytes=progress.bytes_done)
    with progress.step("measure"):
        return measure_partition(output, manifest)


def _assign(
    raw: RawGraph,
    topology: CSCGraph,
    train: np.ndarray,
    options: PartitionOptions,
    step: Callable[[str], AbstractContextManager[None]],
) -> tuple[np.ndarray, int]:
    """Part of each node, and how many train nodes were moved to balance them."""
    if options.method == "random":  # balanced by construction
        with step("assign"):
            return random_parts(raw.num_nodes, train, options.num_parts, options.seed), 0
    with step("assign"):
        adjacency = symmetrise(topology, undirected=raw.undirected)
        in_degrees = topology.in_degrees().numpy()
        parts = metis_parts(adjacency, in_degrees, train, options.num_parts, options.seed)
    with step("balance"):
        return parts, balance_train_nodes(parts, train, adjacency, options.num_parts)

"""How a graph is to be cut: the options of a partition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.partition.external.rows import FEATURE_CHOICES
from fastsample_dist.partition.methods import MAX_SEED, METHODS
from fastsample_dist.partition.methods.options import ORDERS, StreamOptions
from fastsample_dist.partition.methods.request import check_num_clusters


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """How to cut a graph.

    Attributes:
      num_parts: number of parts, 1 .. num_nodes.
      method: one of `fastsample_dist.partition.methods.METHODS`.
      seed: 0 .. 2**31 - 1; the same seed on the same graph gives the same files.
      assignment: for method "file": the file with the part of each node.
      passes, order, buffer: as of `methods.options.StreamOptions`, for methods that read them.
      memory_limit: bytes that the process may hold; None: what it holds at the start and four fifths of what is
        available.
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

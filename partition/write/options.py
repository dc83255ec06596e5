"""How a graph is to be cut: the options of a partition."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.ops import checks
from fastsample_dist.partition.external.rows import FEATURE_CHOICES
from fastsample_dist.partition.methods import MAX_SEED, METHODS
from fastsample_dist.partition.methods.options import ORDERS, StreamOptions
from fastsample_dist.partition.methods.request import check_num_clusters


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """How to cut a graph. Numbers and truth values may be NumPy's or torch's; they become Python's.

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
      ValueError: a value outside these, or of another type.
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
        checks.make_plain(self)
        self._check_types()
        if (self.method == "file") != (self.assignment is not None):
            raise ValueError("method file and an assignment go together; pass both or neither.")
        self.streaming.check(self.method)
        if self.clusters is not None:
            check_num_clusters(self.clusters, self.num_parts, None)

    def _check_types(self) -> None:
        for name, least, most in (("num_parts", 1, None), ("seed", 0, MAX_SEED)):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name), least, most))
        for name in ("passes", "buffer", "memory_limit", "clusters"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else checks.whole(name, value, 1))
        for name, known in (("method", METHODS), ("order", ORDERS), ("feature_dtype", FEATURE_CHOICES)):
            checks.one_of(name, getattr(self, name), known)
        for name in ("on_disk", "edge_map"):
            checks.flag(name, getattr(self, name))
        if not isinstance(self.assignment, str | os.PathLike | None):
            found = type(self.assignment).__name__
            raise ValueError(f"assignment is a {found}; expected the path of a file with the part of each node.")

    @property
    def streaming(self) -> StreamOptions:
        """Options of methods that stream."""
        return StreamOptions(passes=self.passes, order=self.order, buffer=self.buffer)

    def stored(self) -> dict[str, bool]:
        """What is stored beside the graph's own columns, as `sizes_of` takes it."""
        return {"edge_map": self.edge_map, "clusters": self.clusters is not None}

"""SubgraphRule: how the nodes of subgraphs are drawn, as one value; SubgraphTables: what they are drawn from.

What C's types cannot express (names, integers) is refused here, the rest by the core, in its words.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library

SUBGRAPH_METHODS = {"frontier": 0, "node": 1, "edge": 2, "walk": 3, "cluster": 4, "ego": 5}
FRONTIER_STRUCTURES = {"sums": 0, "dashboard": 1}
library.DECLARED.values(
    **{f"FS_SUBGRAPH_{name.upper()}": code for name, code in SUBGRAPH_METHODS.items()},
    **{f"FS_FRONTIER_{name.upper()}": code for name, code in FRONTIER_STRUCTURES.items()},
)


@library.DECLARED.mirror("FsSubgraphSpec")
class SubgraphArguments(Structure):
    """FsSubgraphSpec."""

    _fields_ = (
        ("budget", c_int64),
        ("frontier_size", c_int64),
        ("walk_length", c_int64),
        ("max_degree", c_int64),
        ("clusters_per_batch", c_int64),
        ("depth", c_int64),
        ("fanout", c_int64),
        ("eta", c_double),
        ("rng_seed", c_uint64),
        ("method", c_int32),
        ("structure", c_int32),
        ("num_threads", c_int32),
    )


@library.DECLARED.mirror("FsSubgraphTables")
class TableArguments(Structure):
    """FsSubgraphTables."""

    _fields_ = (
        ("roots", c_void_p),
        ("degree_sums", c_void_p),
        ("connected", c_void_p),
        ("cluster_nodes", c_void_p),
        ("cluster_offsets", c_void_p),
        ("num_roots", c_int64),
        ("num_connected", c_int64),
        ("num_clusters", c_int64),
    )


library.DECLARED.functions(fs_check_subgraph_spec=(c_char_p, POINTER(SubgraphArguments)))


@dataclass(frozen=True, kw_only=True)
class SubgraphRule:
    """How the nodes of subgraphs are drawn; csrc/include/fastsample_subgraph.h has the law of each method.

    Attributes:
      method: one of SUBGRAPH_METHODS.
      budget: visits of a frontier, draws of nodes or edges, or visits of walks, of which there are
        budget // (walk_length + 1).
      frontier_size: walkers of a frontier, at most `budget`.
      walk_length: hops of a walk.
      clusters_per_batch: clusters of a subgraph of method "cluster".
      depth: hops around a root of method "ego".
      fanout: in-neighbours that each of them takes; -1: all.
      structure: one of FRONTIER_STRUCTURES: how a frontier finds the walker that advances.
      eta: entries of a dashboard per live entry, above 1.
      max_degree: a walker of a frontier advances in proportion to its degree, but no more than this; None: to its
        degree.
      rng_seed: 0 .. 2**63 - 1; key of the counter-based generator.
      num_threads: subgraphs that are drawn at the same time; None takes torch's setting. Never changes a result.
    Raises:
      ValueError: a name that is unknown, a number that is not an integer or out of range, a frontier larger than the
        budget.
    """

    method: str = "frontier"
    budget: int = 8000
    frontier_size: int = 1000
    walk_length: int = 2
    clusters_per_batch: int = 10
    depth: int = 2
    fanout: int = 10
    structure: str = "sums"
    eta: float = 2.0
    max_degree: int | None = None
    rng_seed: int = 0
    num_threads: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("method", SUBGRAPH_METHODS), ("structure", FRONTIER_STRUCTURES)):
            checks.one_of(name, getattr(self, name), known)
        for name in ("budget", "frontier_size", "walk_length", "clusters_per_batch", "depth", "fanout"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        object.__setattr__(self, "rng_seed", checks.whole("rng_seed", self.rng_seed, 0, checks.LARGEST))
        if self.max_degree is not None:
            object.__setattr__(self, "max_degree", _whole("max_degree", self.max_degree))
            checks.require(self.max_degree >= 1, f"max_degree is {self.max_degree}; expected 1 or more, or None.")
        library.call(library.core().fs_check_subgraph_spec, b"SubgraphRule", self.arguments())

    def arguments(self) -> SubgraphArguments:
        """The rule as the compiled core takes it."""
        threads = library.num_threads(self.num_threads)
        if threads not in self._arguments:
            self._arguments[threads] = self._made_arguments(threads)
        return self._arguments[threads]

    @cached_property
    def _arguments(self) -> dict[int, SubgraphArguments]:
        """Those that were made, by the number of threads: torch's setting may change."""
        return {}

    def _made_arguments(self, threads: int) -> SubgraphArguments:
        return SubgraphArguments(
            self.budget, self.frontier_size, self.walk_length, self.max_degree or 0, self.clusters_per_batch,
            self.depth, self.fanout, self.eta, self.rng_seed, SUBGRAPH_METHODS[self.method],
            FRONTIER_STRUCTURES[self.structure], threads,
        )  # fmt: skip


def _whole(name: str, value: object) -> int:
    """A 64-bit integer; anything else is refused rather than rounded."""
    whole = checks.as_integer(value)
    if whole is None or abs(whole) >= 2**63:
        raise ValueError(f"{name} is {value!r}; expected an integer of 64 bits.")
    return whole


@dataclass(frozen=True, eq=False)
class SubgraphTables:
    """What the subgraphs of one rule are drawn from besides the graph. Lists ascend by original id.

    Attributes:
      roots: ids of the graph's dtype [num_roots].
      degree_sums: int64 [num_roots + 1], 0 and the inclusive sums of the roots' in-degrees; of method "node".
      connected: ids [num_connected], the roots that have in-edges; of method "edge".
      cluster_nodes: ids, the members of cluster 0, 1, ...; of method "cluster".
      cluster_offsets: int64 [num_clusters + 1], where each cluster begins.
    """

    roots: Tensor
    degree_sums: Tensor | None = None
    connected: Tensor | None = None
    cluster_nodes: Tensor | None = None
    cluster_offsets: Tensor | None = None

    @classmethod
    def of(
        cls, rule: SubgraphRule, indptr: Tensor, orig_ids: Tensor | None, roots: Tensor, id_dtype: torch.dtype
    ) -> SubgraphTables:
        """The tables that all methods but cluster read.

        Args:
          rule: its method alone matters.
          indptr: int64 [num_nodes + 1].
          orig_ids: int64 [num_nodes] or None.
          roots: integers [num_roots], in any order; a node may stand in it more than once and then counts so often.
          id_dtype: of the graph's indices.
        Raises:
          ValueError: no roots, or one outside the graph.
        """
        num_nodes = indptr.numel() - 1
        roots = checks.vector("roots", roots, checks.ID_DTYPES).long()
        checks.require(roots.numel() > 0, "roots is empty; expected at least one node.")
        low, high = int(roots.min()), int(roots.max())
        checks.require(
            low >= 0 and high < num_nodes, f"roots holds nodes from {low} to {high}; expected 0 to {num_nodes - 1}."
        )
        ordered = torch.sort(roots if orig_ids is None else orig_ids[roots], stable=True).indices
        roots = roots[ordered]
        degrees = indptr[roots + 1] - indptr[roots]
        ids = roots.to(id_dtype)
        if rule.method == "node":
            return cls(ids, torch.cat([degrees.new_zeros(1), degrees.cumsum(0)]))
        return cls(ids, connected=ids[degrees > 0] if rule.method == "edge" else None)

    @classmethod
    def of_clusters(
        cls, clusters: Tensor, orig_ids: Tensor | None, id_dtype: torch.dtype, chosen: Tensor | None = None
    ) -> SubgraphTables:
        """The tables of method "cluster".

        Args:
          clusters: integers [num_nodes]; cluster of each node, 0 or more.
          orig_ids: int64 [num_nodes] or None.
          id_dtype: of the graph's indices.
          chosen: int64, distinct; the clusters to draw from, in this order. None: all, by number.
        Raises:
          ValueError: no nodes, a negative cluster, or one that is chosen and is not there.
        """
        clusters = checks.vector("clusters", clusters, checks.ID_DTYPES)
        checks.require(clusters.numel() > 0, "clusters is empty; expected a cluster per node.")
        low, count = int(clusters.min()), int(clusters.max()) + 1
        checks.require(low >= 0, f"clusters holds {low}; expected 0 or more.")
        if orig_ids is None:
            members = torch.argsort(clusters, stable=True)
        else:
            by_original_id = torch.argsort(orig_ids)
            members = by_original_id[torch.argsort(clusters[by_original_id], stable=True)]
            del by_original_id
        sizes = torch.bincount(clusters, minlength=count)
        if chosen is not None:
            found = f"chosen has clusters from {int(chosen.min())} to {int(chosen.max())}" if chosen.numel() else ""
            fits = chosen.numel() > 0 and int(chosen.min()) >= 0 and int(chosen.max()) < count
            checks.require(fits, f"{found or 'chosen is empty'}; expected some of 0 to {count - 1}.")
            members = torch.cat([members.split(sizes.tolist())[cluster] for cluster in chosen.tolist()])
            sizes = sizes[chosen]
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        ids = members.to(id_dtype)
        return cls(ids[:0], cluster_nodes=ids, cluster_offsets=offsets)

    def arguments(self) -> TableArguments:
        """The tables as the compiled core takes them; they must outlive its use."""
        return self._arguments

    @cached_property
    def _arguments(self) -> TableArguments:
        num_clusters = 0 if self.cluster_offsets is None else self.cluster_offsets.numel() - 1
        lists = (self.roots, self.degree_sums, self.connected, self.cluster_nodes, self.cluster_offsets)
        return TableArguments(
            *(_address(table) for table in lists),
            self.roots.numel(), 0 if self.connected is None else self.connected.numel(), num_clusters,
        )  # fmt: skip


_NOTHING = ctypes.create_string_buffer(8)


def _address(table: Tensor | None) -> int | None:
    """Where a table lies; one without entries lies somewhere too, as NULL says that there is none."""
    return ctypes.addressof(_NOTHING) if table is not None and table.numel() == 0 else library.address(table)

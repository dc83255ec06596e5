"""FeatureCache: how many bytes of other ranks' rows are kept where they are read, and CacheReport: what that saved.

A cache holds the rows that the transport does not read in place: with transport "exchange" those of all other ranks, on
every rank; with "shared" those of other machines, one cache per machine. It is filled once, before the first batch, by
scores of the nodes (graph/hotness.py, features/policies.py), and changes neither batches nor features.
pipeline/caching.py builds it; DistFeatures reads it like any other table of rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.hot_rows import HotRows
from fastsample_dist.features.policies import MOST_AHEAD, POLICIES, PRESAMPLE_EPOCHS, Lookahead
from fastsample_dist.features.sharers import Sharers
from fastsample_dist.memory_sizes import available_bytes, format_size
from fastsample_dist.ops import checks

NONE = "none"


@dataclass(frozen=True)
class FeatureCache:
    """A cache of feature rows, described; `DistLoader(..., cache=...)` makes it.

    Every loader makes one of its own, scored for its own seeds and sampler; `cache=other.cache` shares another's.

    Attributes:
      capacity_bytes: rows and the table that finds them, per machine where its ranks read each other's rows in place
        (transport "shared"), else per rank; in front of host memory rows alone, of every GPU that trains, and of a
        sampler's what its topology leaves of that; 0: no cache.
      policy: which rows. "vip": by the probability that a batch needs them, computed from the topology; "presample": by
        how often batches of `presample_epochs` epochs need them, which are drawn as the run's but are none of them;
        "degree": by out-degree; "random"; "oracle": by how often the run's own first `presample_epochs` epochs need
        them, for reports; "none": no cache. "auto": vip, but presample for a sampler or application of the user's.
      presample_epochs: of "presample" and "oracle".
      lookahead: batches ahead of their turn whose rows stay once they have been fetched, up to MOST_AHEAD (100); 0: the
        set never changes.
      device: where the rows are: the device that reads them (None), or "cpu": for a GPU, pinned host memory.
    Raises:
      ValueError: a value out of range, an unknown policy.
    """

    capacity_bytes: int
    policy: str = "auto"
    presample_epochs: int = PRESAMPLE_EPOCHS
    lookahead: int = 0
    device: torch.device | str | None = None

    def __post_init__(self) -> None:
        checks.make_plain(self)
        if not isinstance(self.policy, str) or self.policy not in POLICIES:
            raise ValueError(f"the cache's policy is {self.policy!r}; expected one of {', '.join(POLICIES)}.")
        for name, least in (("capacity_bytes", 0), ("presample_epochs", 1), ("lookahead", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"the cache's {name} is {value!r}; expected an integer >= {least}.")
        if self.lookahead > MOST_AHEAD:
            raise ValueError(f"the cache's lookahead is {self.lookahead}; expected at most {MOST_AHEAD} batches.")
        if self.device is not None and str(self.device) != "cpu":
            raise ValueError(f"the cache's device is {self.device!r}; expected None (where rows are read) or 'cpu'.")

    @property
    def is_on(self) -> bool:
        """Whether there is anything to make."""
        return self.capacity_bytes > 0 and self.policy != NONE

    def facts(self) -> str:
        """What ranks compare; the device is a machine's own."""
        names = ("capacity_bytes", "policy", "presample_epochs", "lookahead")
        return ", ".join(f"{name} {getattr(self, name)}" for name in names)

    def check_memory(self, sharers: int = 1) -> None:
        """Refuse a cache that host memory has no room for.

        Args:
          sharers: caches of this size that processes of this machine make.
        Raises:
          ValueError: it is larger than the memory available.
        """
        room = available_bytes() // sharers
        if self.capacity_bytes > room:
            what = f", {format_size(room)} for each of the {sharers} ranks of this machine" if sharers > 1 else ""
            raise ValueError(
                f"the cache's capacity is {format_size(self.capacity_bytes)} but {format_size(room * sharers)} of "
                f"memory are available{what}; choose a smaller one."
            )


@dataclass(frozen=True, kw_only=True)
class CacheReport:
    """Where the feature rows of an epoch's batches came from: on one rank, or summed over several (`total`).

    own + neighbour + cached + kept + exchanged are the input nodes of the batches that were made, and the last four are
    those that other ranks own. `exchanged` rows alone pass the Communicator.

    Attributes:
      own: rows that the rank owns.
      neighbour: rows of other ranks of the machine, read where they are.
      cached: rows found in the cache.
      kept: rows kept from an earlier batch (`lookahead`).
      exchanged: rows that their owners sent.
      oracle_hits: rows that the best unchanging cache of the same number of rows, known only afterwards, would have
        found: the best for all ranks that share it; None where no cache is on.
      row_bytes: of an id that is sent and the row that comes back.
      policy: that filled the cache; "none" without one.
      cache_rows, cache_bytes: its rows; its memory, the table that finds them included.
      score_s, load_s: seconds that scoring the nodes and loading the rows took, before the first batch.
      is_front: the cache is a GPU's, in front of host memory: own and neighbours' rows crossed the bus, cached ones did
        not.
    """

    own: int = 0
    neighbour: int = 0
    cached: int = 0
    kept: int = 0
    exchanged: int = 0
    oracle_hits: int | None = None
    row_bytes: int = 0
    policy: str = NONE
    cache_rows: int = 0
    cache_bytes: int = 0
    score_s: float = 0.0
    load_s: float = 0.0
    is_front: bool = False

    @property
    def inputs(self) -> int:
        """All rows."""
        return self.own + self.neighbour + self.cached + self.kept + self.exchanged

    @property
    def hit_rate(self) -> float | None:
        """Of the rows that are not read in place, the share that did not travel; None where there are none. Where the
        cache is in front of host memory: of all rows.
        """
        return self._share(self.cached + self.kept)

    @property
    def oracle_hit_rate(self) -> float | None:
        """The same of the best unchanging cache of as many rows; None without a cache."""
        return None if self.oracle_hits is None else self._share(self.oracle_hits)

    @property
    def bytes_saved(self) -> int:
        """Bytes of ids and rows that did not travel."""
        return (self.cached + self.kept) * self.row_bytes

    def as_json(self) -> dict[str, object]:
        """All of this as JSON values."""
        derived = ("hit_rate", "oracle_hit_rate", "bytes_saved")
        return asdict(self) | {name: getattr(self, name) for name in derived}

    @staticmethod
    def total(reports: Iterable[CacheReport]) -> CacheReport:
        """Rows summed; of the caches the largest and the slowest."""
        found = list(reports)
        summed = {"own", "neighbour", "cached", "kept", "exchanged"}
        values = {
            field.name: (sum if field.name in summed else max)(getattr(one, field.name) for one in found)
            for field in fields(CacheReport)
            if field.name != "oracle_hits"
        }
        known = [one.oracle_hits for one in found if one.oracle_hits is not None]
        return CacheReport(**values, oracle_hits=sum(known) if known else None)

    def _share(self, hits: int) -> float | None:
        reachable = self.inputs if self.is_front else self.cached + self.kept + self.exchanged
        return hits / reachable if reachable else None


@dataclass(frozen=True, kw_only=True, eq=False)
class MadeCache:
    """A cache that a loader made; str() is one line for a report.

    Attributes:
      features: those that it was made for, reading it too.
      description: what was asked for.
      policy: which it was filled by.
      nodes: int64 [n], ascending; whose rows it holds, with `lookahead` at the beginning.
      sharers: ranks that share it.
      rule: which rows replace others; None: none do.
      num_bytes: of rows and of what finds them.
      score_s, load_s: seconds that scoring and loading took.
      why_empty: in a few words, where it holds nothing.
      front: its rows on a GPU, where they are in front of features in host memory.
    """

    features: DistFeatures
    description: FeatureCache
    policy: str = NONE
    nodes: Tensor
    sharers: Sharers
    rule: Lookahead | None = None
    num_bytes: int = 0
    score_s: float = 0.0
    load_s: float = 0.0
    why_empty: str = ""
    front: HotRows | None = None

    def __str__(self) -> str:
        if self.why_empty:
            return f"cache: empty, {self.why_empty}"
        ahead = f" and what the next {self.rule.window} batches use" if self.rule is not None else ""
        capacity = format_size(self.description.capacity_bytes)
        return (
            f"cache: {self.nodes.numel()} rows by {self.policy}{ahead}, {format_size(self.num_bytes)} of {capacity} "
            f"(scored in {self.score_s:.2f} s, loaded in {self.load_s:.2f} s)"
        )

    @property
    def is_front(self) -> bool:
        """Whether it is a GPU's, in front of features in host memory."""
        return self.front is not None

    @property
    def num_remote(self) -> int:
        """Rows of other ranks; where it is in front of host memory, of any."""
        if self.is_front:
            return self.nodes.numel()
        return 0 if self.features.cache is None else self.features.cache.rows.shape[0]

    def facts(self) -> str:
        """What ranks compare."""
        return f"another loader's of {self.description.facts()}"

    def figures(self) -> CacheReport:
        """What a report says of the cache itself."""
        return CacheReport(
            policy=self.policy, cache_rows=self.nodes.numel(), cache_bytes=self.num_bytes, score_s=self.score_s,
            load_s=self.load_s, is_front=self.is_front,
        )  # fmt: skip


class Visits:
    """How often every node was an input of a rank's batches: in the epoch under way and in all epochs.

    Memory: 6 bytes per node of the graph, on a GPU 2 of them there; 2 more for epochs of 65,536 steps or more.

    Args:
      num_nodes: of the graph.
      num_steps: of an epoch.
      device: of the batches.
    """

    def __init__(self, num_nodes: int, num_steps: int, device: torch.device) -> None:
        dtype = torch.int16 if num_steps < 1 << 16 else torch.int32  # read as unsigned
        self._epoch = torch.zeros(num_nodes, dtype=dtype, device=device)
        self._all = np.zeros(num_nodes, dtype=np.int32)

    def add(self, nodes: Tensor) -> None:
        """Count one batch.

        Args:
          nodes: int32 | int64 [n], unique.
        """
        self._epoch[nodes.to(self._epoch.device).long()] += 1

    def clear_epoch(self) -> None:
        """Begin an epoch."""
        self._all += self._counts()
        self.drop_epoch()

    def drop_epoch(self) -> None:
        """Begin an epoch in place of the one under way, which counts no more."""
        self._epoch.zero_()

    def counts(self, in_place: Iterable[tuple[int, int]], *, all_epochs: bool = False) -> Tensor:
        """Visits of every node, int64 [num_nodes].

        Args:
          in_place: ranges (begin, end) of nodes whose rows need no cache: 0 for these.
          all_epochs: of all epochs together; False: of the one under way.
        """
        counts = self._counts().astype(np.int64)
        if all_epochs:
            counts += self._all
        for begin, end in in_place:
            counts[begin:end] = 0
        return torch.from_numpy(counts)

    def _counts(self) -> np.ndarray:
        counts = self._epoch.cpu().numpy()
        return counts.view(f"u{counts.itemsize}")


def best_hits(visits: Tensor, visits_of_all: Tensor, num_rows: int) -> int:
    """A rank's visits of the nodes that the best unchanging cache of so many rows holds.

    Args:
      visits: int64 [num_nodes]; of the rank.
      visits_of_all: int64 [num_nodes]; of all ranks that share the cache.
      num_rows: of the cache.
    """
    others = visits.numel() - num_rows
    if others <= 0 or num_rows == 0:
        return int(visits.sum()) if num_rows else 0
    best = np.argpartition(visits_of_all.numpy(), others)[others:]
    return int(visits.numpy()[best].sum())

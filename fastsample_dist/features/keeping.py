"""KeepingFeatures: a cache in which the rows that the next batches use stay once they have been fetched.

The rule is `policies.Lookahead`'s: after a step, of the rows that are held and those that have just come, the ones
that the next steps use stay, then the hottest. Which rows these are follows from the batches alone, so hits and bytes
are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.comm.rows import RowPlan
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.policies import Lookahead
from fastsample_dist.ops.gather_rows import row_in


class KeepingFeatures:
    """Fetches as DistFeatures does, and replaces rows of its cache after every fetch. For one thread at a time.

    Args:
      features: in host memory; their cache has a slot for every node (`dense_slots`) and is nobody else's.
      rule: of the cache, whose slots hold what the rule says.
    Attributes:
      features, rule: the same.
      upcoming: input nodes of the next steps, the next one first; to be set before every fetch.
    """

    def __init__(self, features: DistFeatures, rule: Lookahead) -> None:
        assert features.cache is not None
        self.features, self.rule = features, rule
        self.upcoming: Sequence[Tensor] = ()
        self._held = rule.nodes.clone()  # node in each slot
        self._is_kept = torch.zeros(rule.nodes.numel(), dtype=torch.bool)  # slots whose row a batch has left

    @property
    def dtype(self) -> torch.dtype:
        """Stored dtype."""
        return self.features.dtype

    def fetch(self, nodes: Tensor, dtype: torch.dtype | None = None, *, checked: bool = True) -> Tensor:
        """As `DistFeatures.fetch`. Collective: every rank must call this, with its own nodes."""
        located = self.locate(nodes)
        return self.complete(located, self.receive(located, dtype), dtype)

    def locate(self, nodes: Tensor) -> ops.Located:
        """As `DistFeatures.locate`."""
        return self.features.locate(nodes)

    def receive(self, located: ops.Located, dtype: torch.dtype | None, plan: RowPlan | None = None) -> Tensor:
        """As `DistFeatures.receive`. Collective: every rank must call this, with its own nodes."""
        return self.features.receive(located, dtype, plan)

    def complete(self, located: ops.Located, received: Tensor, dtype: torch.dtype | None) -> Tensor:
        """As `DistFeatures.complete`; some rows that came stay."""
        rows = self.features.complete(located, received, dtype)
        self._count_kept(located)
        self._replace(located.missing.long(), received)
        return rows

    def _count_kept(self, located: ops.Located) -> None:
        """Tell rows that a batch has left from those that were in the cache from the beginning."""
        slots = row_in(self.features.cache_table, located.places)
        kept = int(self._is_kept[slots].sum())
        tally = self.features.tally
        tally.kept, tally.cached = tally.kept + kept, tally.cached - kept

    def _replace(self, fetched: Tensor, received: Tensor) -> None:
        """Put rows that have come in the place of others."""
        slots, chosen = self.rule.replace(fetched, self.upcoming)
        cache, left = self.features.cache, self._held[slots]
        assert cache is not None
        cache.slots.table[left[left >= 0]] = -1
        cache.slots.table[fetched[chosen]] = slots.to(torch.int32)
        cache.rows[slots] = received[chosen].to(cache.rows.dtype)  # rows that travel narrower are read narrower
        self._held[slots], self._is_kept[slots] = fetched[chosen], True


def dense_slots(nodes: Tensor, num_nodes: int) -> ops.CachedSlots:
    """Slot i holds nodes[i] (int64 [n]); a slot for every node, which can be changed."""
    table = torch.full((num_nodes,), -1, dtype=torch.int32)
    table[nodes] = torch.arange(nodes.numel(), dtype=torch.int32)
    return ops.CachedSlots(table, nodes.numel())

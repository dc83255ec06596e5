"""BatchOptions: what every loader can be asked for about making batches, whatever it samples: how far ahead, where, and
how rows of other ranks come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from fastsample_dist.device.placement import CHOICES
from fastsample_dist.features.cache import FeatureCache, MadeCache
from fastsample_dist.features.policies import check_policy
from fastsample_dist.ops import SampleSpec, checks
from fastsample_dist.pipeline.exchange import COMBINED, EXCHANGES
from fastsample_dist.pipeline.transport import AUTO, TRANSPORTS
from fastsample_dist.sampling.mfg import MiniBatch

RANKS_OWN = ("device", "kernel", "placement")  # options that never change a batch: every rank may have its own


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How a loader makes its batches.

    Attributes:
      prefetch: batches made ahead in a background thread; 0 makes each batch when it is asked for.
      feature_dtype: convert features to this dtype on arrival (float32, float64, bfloat16); None: float32 for
        features stored as 16-bit floats or integers, else as stored.
      transform: called with every batch after features and labels, in the prefetch thread where there is one; what it
        returns is what the iteration yields. With prefetching for a GPU that must be a MiniBatch, and tensors that are
        added to it must be attributes of it.
      device: where batches are made and handed over; None: the context's.
      placement: for a GPU, of topology and features: "auto", "device" or "pinned" (device/placement.py).
      transport: of other ranks' rows and topology: "exchange"; "shared", which reads those of ranks on the same machine
        where they lie; "auto", which is "shared" where it can be (pipeline/transport.py). A GPU's batches are exchanged
        by "auto"; by "shared", of a DistLoader, their rows are read in host memory. Never changes a batch.
      exchange: how ranks meet to fetch features. "paired": ids out and rows back in two exchanges a step. "combined":
        the rows of a step with the ids of the next in one, S + 2 for an epoch of S steps; batches are then sampled two
        steps before they are handed out, with prefetch=0 too. "auto": combined, unless the sampler itself exchanges
        (scheme "vanilla"). Never changes a batch.
      rails: where several ranks share each of several machines, a row that some of them need crosses the network once,
        into memory that they share. False: every rank fetches for itself. Never changes a batch.
      cache: of other ranks' feature rows (features/cache.py), or that of another loader of the same data, to share it;
        None: none. On a GPU that reads rows in host memory: of all ranks' rows. Never changes a batch.
    Raises:
      ValueError: a value out of range, an unknown name.
    """

    prefetch: int = 0
    feature_dtype: torch.dtype | None = None
    transform: Callable[[MiniBatch], Any] | None = None
    device: torch.device | str | None = None
    placement: str = "auto"
    transport: str = AUTO
    exchange: str = "auto"
    rails: bool = True
    cache: FeatureCache | MadeCache | None = None

    def __post_init__(self) -> None:
        checks.make_plain(self)
        if isinstance(self.prefetch, bool) or not isinstance(self.prefetch, int) or self.prefetch < 0:
            raise ValueError(f"prefetch is {self.prefetch!r}; expected 0 (off) or the number of batches to make ahead.")
        if self.feature_dtype is not None and self.feature_dtype not in checks.REAL_DTYPES:
            raise ValueError(
                f"feature_dtype is {self.feature_dtype!r}; expected None, or {', '.join(map(str, checks.REAL_DTYPES))}."
            )
        if self.transform is not None and not callable(self.transform):
            raise ValueError(f"transform is {self.transform!r}; expected None or a function.")
        for name, known in (("placement", CHOICES), ("transport", TRANSPORTS), ("exchange", EXCHANGES)):
            checks.one_of(name, getattr(self, name), known)
        checks.flag("rails", self.rails)
        self._check_cache()

    @property
    def neighbour_spec(self) -> SampleSpec | None:
        """How the library's samplers of neighbours draw the batches; None: something else makes them."""
        return None

    def facts(self) -> dict[str, object]:
        """What all ranks must have alike: everything but RANKS_OWN. An object stands for its class or name."""
        return {field.name: _fact(getattr(self, field.name)) for field in fields(self) if field.name not in RANKS_OWN}

    def _check_cache(self) -> None:
        if self.cache is None:
            return
        description = getattr(self.cache, "description", self.cache)
        if not isinstance(description, FeatureCache):
            raise ValueError(
                f"cache is {self.cache!r}; pass a FeatureCache, such as fsd.FeatureCache(capacity_bytes=2 << 30), or "
                "the cache of another loader."
            )
        check_policy(description.policy, self.neighbour_spec)
        if description.lookahead > 0 and self.exchange == COMBINED:
            raise ValueError(
                f"the cache's lookahead is {description.lookahead} beside exchange 'combined', which asks for rows "
                "before the cache has those of the steps before; pass exchange='paired' or 'auto', or lookahead=0."
            )


def _fact(value: object) -> object:
    """An option as ranks compare it."""
    value = checks.plain(value)
    if value is None or isinstance(value, (str, int, float, tuple, list)):
        return value
    if isinstance(value, torch.dtype):
        return str(value)
    if callable(getattr(value, "facts", None)) and not isinstance(value, type):  # a cache, some samplers
        return value.facts()
    return getattr(value, "__qualname__", type(value).__qualname__)

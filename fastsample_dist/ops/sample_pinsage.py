"""sample_pinsage: mini-batches whose neighbours are the nodes that random walks visit most often."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.sampling_graph import BatchPointer, SampledHops, SamplingGraph
from fastsample_dist.ops.walk_lengths import survival_thresholds

MOST_VISITS = 1 << 24
library.DECLARED.values(FS_MOST_VISITS=MOST_VISITS)


@library.DECLARED.mirror("FsPinsageSpec")
class _Arguments(Structure):
    """FsPinsageSpec."""

    _fields_ = (
        ("survival", POINTER(c_int64)),
        ("num_walks", c_int64),
        ("walk_length", c_int64),
        ("num_neighbors", c_int64),
        ("num_hops", c_int32),
        ("first_hop", c_int32),
        ("num_threads", c_int32),
        ("rng_seed", c_uint64),
        ("step", c_uint64),
    )


library.DECLARED.functions(
    fs_check_pinsage_spec=(c_char_p, POINTER(_Arguments)),
    fs_sample_pinsage=(
        POINTER(library.Graph), POINTER(_Arguments), POINTER(c_void_p), POINTER(c_int64), c_int64,
        POINTER(BatchPointer),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PinSAGERule:
    """What a node's neighbourhood is.

    Attributes:
      num_walks: walks from every node and hop.
      walk_length: steps of a walk at most, 1 or more; num_walks * walk_length is 2**24 at most.
      num_neighbors: the most visited nodes that become neighbours.
      num_layers: hops of a mini-batch, one per model layer.
      end_probability: 0 to 1; that a walk ends after a step.
      first_hop: number of the first hop, part of the walks' ids.
      rng_seed: 0 .. 2**63 - 1; key of the counter-based generator.
      num_threads: threads per call, None for torch's intra-op setting. Never changes a result.
    Raises:
      ValueError: a number that is not an integer or out of range.
    """

    num_walks: int = 4
    walk_length: int = 3
    num_neighbors: int = 5
    num_layers: int = 3
    end_probability: float = 0.5
    first_hop: int = 0
    rng_seed: int = 0
    num_threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_walks", "walk_length", "num_neighbors", "num_layers", "first_hop"):
            least = 0 if name == "first_hop" else 1
            object.__setattr__(self, name, checks.whole(name, getattr(self, name), least))
        object.__setattr__(self, "rng_seed", checks.whole("rng_seed", self.rng_seed, 0, checks.LARGEST))
        checks.require(
            self.num_layers <= checks.MOST_LAYERS,
            f"num_layers is {self.num_layers}; expected at most {checks.MOST_LAYERS}.",
        )
        end = self.end_probability
        checks.require(
            isinstance(end, int | float) and not isinstance(end, bool) and 0.0 <= end <= 1.0,
            f"end_probability is {end!r}; expected 0 (walks of walk_length steps) to 1 (walks of one step).",
        )
        for name in ("num_walks", "walk_length", "num_neighbors"):
            checks.require(getattr(self, name) < 2**63, f"{name} is {getattr(self, name)}; expected 64 bits.")
        library.call(library.core().fs_check_pinsage_spec, b"PinSAGERule", self._arguments(0, None))

    @cached_property
    def survival(self) -> tuple[int, ...] | None:
        """Thresholds of 2^63 below which a walk goes on after its first, second, ... step, [walk_length - 1]; None
        where all do."""
        if self.end_probability == 0:
            return None
        most = self.walk_length - 1
        found = survival_thresholds(self.end_probability, most).tolist()
        return (*found, *[0] * (most - len(found)))

    def arguments(self, step: int) -> Structure:
        """The rule as the compiled core takes it.

        Raises:
          ValueError: a step that is not an integer from 0 to 2**63 - 1.
        """
        return self._arguments(checks.whole("step", step, 0, checks.LARGEST), self._c_survival)

    def _arguments(self, step: int, survival: ctypes.Array | None) -> Structure:
        threads = library.num_threads(self.num_threads)
        return _Arguments(
            survival, self.num_walks, self.walk_length, self.num_neighbors, self.num_layers, self.first_hop, threads,
            self.rng_seed, step,
        )  # fmt: skip

    @cached_property
    def _c_survival(self) -> ctypes.Array | None:
        return None if self.survival is None else (c_int64 * len(self.survival))(*self.survival)


def sample_pinsage(
    graph: SamplingGraph, rule: PinSAGERule, seeds: Sequence[Tensor], first_step: int = 0
) -> list[SampledHops]:
    """Mini-batches of PinSAGE's neighbourhoods: number i is that of seeds[i] at step first_step + i.

    The walks of a destination are those of transit.PPR(stop=end_probability) with uniform picks, cut after walk_length
    steps, under the sample ids original id + num_nodes * (walk + num_walks * hop). Its neighbours are the most visited
    nodes, itself left out, of equally many visits those of smaller original ids; in this order.

    Args:
      graph: in-neighbour lists with a row for every source; offsets that decrease are followed, not refused.
      rule: what a neighbourhood is.
      seeds: per batch, ids [num_seeds] of the graph's dtype, unique.
      first_step: 0 .. 2**63 - 1; global training step of the first batch, part of the generator's key.
    Returns:
      Per batch, SampledHops with edge_weights: an edge's visits / those of all edges of the row, float32; without
      edge_ids, since an edge stands for walks. One batch is made by all threads, of many each by one.
    Raises:
      ValueError: duplicate seeds, an id outside the graph, a dtype mismatch, more walks than have ids (2**63).
    Source: Ying et al., "Graph convolutional neural networks for web-scale recommender systems", KDD 2018, section
    3.1. Cost: O(num_walks * walk_length) per destination. Deterministic: yes.
    """
    kept = [graph.row_ids("seeds", own) for own in seeds]
    batches = (BatchPointer * len(kept))()
    library.call(
        library.core().fs_sample_pinsage,
        graph.view, rule.arguments(first_step), (c_void_p * len(kept))(*(own.data_ptr() for own in kept)),
        (c_int64 * len(kept))(*(own.numel() for own in kept)), len(kept), batches,
    )  # fmt: skip
    return [graph.hops(batch, edge_weights=True) for batch in batches]

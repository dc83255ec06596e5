"""SampleSpec: how neighbours are drawn, as one value.

What C's types cannot express (integers, names of methods) is refused here, the rest by the core, in its words.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.sample_methods import METHODS, SampleMethod

TAKE_ALL = -1
MOST_FANOUT = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class SampleSpec:
    """How neighbours are drawn.

    Attributes:
      fanouts: neighbours per node and hop, hop order from the seeds outwards; 0 .. 2**63 - 1. Not with replacement: -1
        takes all, and so does any number from the largest in-degree up.
      replace: draw with replacement: a fanout, 0 .. 2**31, is then the number of picks of every node that has
        neighbours.
      rng_seed: 0 .. 2**63 - 1; key of the counter-based generator.
      num_threads: threads per call, None for torch's intra-op setting. Never changes a result.
      method: one of sample_methods.METHODS. "uniform"; "weighted": in proportion to the edges' weights, without
        replacement one after another among those that are left (successive sampling), edges of weight 0 never; "labor":
        layer-neighbour sampling, LABOR-0, where all destinations of a hop see one variate per source, and a fanout is
        the mean number of picks.
      layer_dependency: with "labor": one variate per source for all hops of a step, not one per hop. Fewer nodes, but
        the layers are no longer independent.
      edge_ids: return which edge every pick is.
    Raises:
      ValueError: a fanout that is not an integer (10.9, True), below -1 or too large, an rng_seed out of range,
        num_threads out of 1 to 1024, an unknown method, options that exclude each other.
    """

    fanouts: tuple[int, ...]
    replace: bool = False
    rng_seed: int = 0
    num_threads: int | None = None
    method: str = "uniform"
    layer_dependency: bool = False
    edge_ids: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanouts", _fanouts(self.fanouts))
        object.__setattr__(self, "rng_seed", checks.whole("rng_seed", self.rng_seed, 0, checks.LARGEST))
        for name in ("replace", "layer_dependency", "edge_ids"):
            checks.flag(name, getattr(self, name))
        for fanout in self.fanouts:
            checks.require(
                abs(fanout) <= MOST_FANOUT,
                f"fanouts holds {fanout}; expected 64 bits, so at most {MOST_FANOUT}; -1 takes all neighbours.",
            )
        checks.one_of("method", self.method, METHODS)
        checks.require(
            self.traits.replaceable or not self.replace,
            f"method {self.method!r} takes every edge at most once, but replace is True; pass replace=False.",
        )
        sharing = [method.name for method in METHODS.values() if method.shares_variates]
        checks.require(
            self.traits.shares_variates or not self.layer_dependency,
            f"layer_dependency is True, but method {self.method!r} has no variates to share; pass method="
            f"{checks.quoted(sharing)}.",
        )
        library.call(library.core().fs_check_sample_spec, b"SampleSpec", self._arguments(self.threads))

    @property
    def threads(self) -> int:
        """Threads that a call uses."""
        return library.num_threads(self.num_threads)

    @cached_property
    def traits(self) -> SampleMethod:
        """What there is to know about the method."""
        return METHODS[self.method]

    @property
    def flags(self) -> list[int]:
        """Method code, replace, layer_dependency and edge_ids, as the operators take them."""
        return [self.traits.code, int(self.replace), int(self.layer_dependency), int(self.edge_ids)]

    def arguments(self, step: int, hop: int | None = None) -> library.SampleArguments:
        """The spec as the compiled core takes it: all hops from the seeds on, or only one of them.

        Raises:
          ValueError: a step that is not an integer from 0 to 2**63 - 1.
        """
        return self._arguments(self.threads, checks.whole("step", step, 0, checks.LARGEST), hop)

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: what is kept beside them holds addresses, and a hash that other processes do not share."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _arguments(self, threads: int, step: int = 0, hop: int | None = None) -> library.SampleArguments:
        """They last as long as the spec, whose fanouts they refer to."""
        if hop is not None:
            return self._described((ctypes.c_int64 * 1)(self.fanouts[hop]), hop, threads, step)
        arguments = library.SampleArguments.from_buffer_copy(self._of_all_hops)
        arguments.num_threads, arguments.step = threads, step
        return arguments

    def _described(self, fanouts: ctypes.Array, hop: int, threads: int, step: int) -> library.SampleArguments:
        return library.SampleArguments(fanouts, len(fanouts), hop, *self.flags, threads, self.rng_seed, step)

    @cached_property
    def _of_all_hops(self) -> library.SampleArguments:
        return self._described((ctypes.c_int64 * len(self.fanouts))(*self.fanouts), 0, 1, 0)

    @cached_property
    def _hash(self) -> int:
        """Looked up several times for every batch."""
        return hash(tuple(getattr(self, field.name) for field in fields(self)))


def _fanouts(given: object) -> tuple[int, ...]:
    expected = "one fanout per hop, such as [15, 10, 5]"
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ValueError(f"fanouts is {given!r}; expected {expected}.")
    return tuple(_whole(fanout) for fanout in given)


def _whole(fanout: object) -> int:
    """A fanout as a Python integer; anything else is refused rather than rounded."""
    whole = checks.as_integer(fanout)
    if whole is None:
        raise ValueError(f"fanouts holds {fanout!r}; expected integers: -1 (all neighbours), 0 or more.")
    return whole

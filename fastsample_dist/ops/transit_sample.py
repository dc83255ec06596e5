"""transit_sample: samples of an individual application, by the compiled core.

The application comes as numbers and addresses (`IndividualApp`); sampling/transit says what they mean. What the core
returns is its own memory: tensors are views of it, and the last of them to go gives it back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops import checks, library
from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.owned_memory import OwnedMemory
from fastsample_dist.ops.transit_tables import TransitTables

_Result = POINTER(layouts.ResultMemory)
_SCHEDULES = tuple(schedule.name.lower() for schedule in layouts.Schedule)
library.DECLARED.functions(
    fs_transit_sample=(
        POINTER(library.Graph), POINTER(layouts.TableArguments), POINTER(layouts.AppArguments),
        POINTER(layouts.RequestArguments), POINTER(layouts.Failure), POINTER(_Result),
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class IndividualApp:
    """An individual application as the core takes it.

    Attributes:
      sample_sizes: picks per transit, by step; ALL_NEIGHBORS in the last.
      num_transits: transits of a sample, by step.
      num_roots: roots of a sample.
      next_kind: who makes the picks.
      params: int64 words, or None.
      unique: by step, whether the picks of a sample are distinct; None: in no step.
      max_attempts: rounds of picks where they are.
      state_words: int64 words of a sample's state.
      next, step_transits, initial: addresses of compiled functions (FsStepKernel); 0: none.
      until_done: a sample ends when it has no transit left; len(sample_sizes) is then the largest number of steps.
      kept: what params and addresses lead to, kept alive.
    """

    sample_sizes: Sequence[int]
    num_transits: Sequence[int]
    num_roots: int
    next_kind: layouts.NextKind = layouts.NextKind.CALLBACK
    params: np.ndarray | None = None
    unique: Sequence[bool] | None = None
    max_attempts: int = 64
    state_words: int = 0
    next: int = 0
    step_transits: int = 0
    initial: int = 0
    until_done: bool = False
    kept: tuple = ()

    @cached_property
    def picks(self) -> list[int]:
        """Picks of a sample, by step."""
        return [int(size) * int(count) for size, count in zip(self.sample_sizes, self.num_transits, strict=True)]

    @cached_property
    def arguments(self) -> layouts.AppArguments:
        """The struct, which lives as long as the application.

        Raises:
          ValueError: what is said by step is not said of every step.
        """
        return layouts.AppArguments(
            *(None if array is None else array.ctypes.data for array in self._arrays),
            self.next or None, self.step_transits or None, self.initial or None, self._arrays[0].size, self.num_roots,
            self.state_words, self.max_attempts, self.next_kind, layouts.INDIVIDUAL, self.until_done,
        )  # fmt: skip

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
        """What the struct points to."""
        sizes, transits = (np.array(given, dtype=np.int64) for given in (self.sample_sizes, self.num_transits))
        unique = None if self.unique is None else np.array(self.unique, dtype=np.uint8)
        params = None if self.params is None else np.ascontiguousarray(self.params, dtype=np.int64)
        for name, given in (("num_transits", transits), ("unique", unique)):
            checks.require(
                given is None or given.shape == sizes.shape,
                f"{name} has {0 if given is None else given.size} entries; expected one per step, {sizes.size}.",
            )
        return sizes, transits, unique, params


@dataclass(frozen=True)
class TransitRequest:
    """How samples are made.

    Attributes:
      rng_seed, step: key of every draw.
      num_threads: threads of the call; None takes torch's setting.
      schedule: the order of the picks: "sample", "transit", "transit_flat", or "auto".
      block_samples: samples that are taken through the steps together; 0 lets the core choose.
    Only the key decides what is sampled.
    """

    rng_seed: int = 0
    step: int = 0
    num_threads: int | None = None
    schedule: str = "auto"
    block_samples: int = 0

    def __post_init__(self) -> None:
        known = self.schedule in _SCHEDULES
        checks.require(known, f"schedule is {self.schedule!r}; expected one of {', '.join(_SCHEDULES)}.")


@dataclass(frozen=True, eq=False)
class SampledSteps:
    """Samples of one call.

    Attributes:
      vertices: int64 [num_samples, width], roots and picks step after step, -1 for none. Where widths differ
        (until_done, ALL_NEIGHBORS) int64 [offsets[-1]], sample after sample; of until_done up to a sample's last step
        that has a pick.
      offsets: int64 [num_samples + 1], where a sample's vertices begin; None: all have the same width.
      num_steps: steps; of until_done the most that a sample took, the one included in which it found no pick.
      longest: vertices of the sample that has most of them; 0 without samples where widths differ.
    """

    vertices: Tensor
    offsets: Tensor | None
    num_steps: int
    longest: int


def transit_sample(
    tables: TransitTables, app: IndividualApp, roots: Tensor, sample_ids: Tensor | None, request: TransitRequest
) -> SampledSteps:
    """Samples of an individual application.

    Args:
      tables: the graph, and the tables that the application reads.
      app: the application.
      roots: int64 [num_samples, app.num_roots]; -1: none.
      sample_ids: int64 [num_samples], 0 or more; None: positions.
      request: key, threads, schedule.
    Raises:
      AppFailedError: the application did what it must not; the first failure by (step, position in the call).
      ValueError: a wrong dtype or shape, a root outside the graph, sizes that do not fit together, more samples than
        memory holds.
    Source: Jangda et al., "Accelerating Graph Sampling for Graph Machine Learning using GPUs", EuroSys'21, sections
    3 to 6. Deterministic: yes, by (rng_seed, step, sample id) alone.
    """
    roots = checks.matrix("roots", roots, (torch.int64,))
    checks.require(roots.shape[1] == app.num_roots, f"roots has {roots.shape[1]} columns; expected {app.num_roots}.")
    if sample_ids is not None:
        sample_ids = checks.vector("sample_ids", sample_ids, (torch.int64,), roots.shape[0])
    threads = library.num_threads(request.num_threads)
    asked = layouts.RequestArguments(
        roots.data_ptr(), library.address(sample_ids), roots.shape[0], request.block_samples, request.rng_seed,
        request.step, threads, layouts.Schedule[request.schedule.upper()],
    )  # fmt: skip
    failure, result = layouts.Failure(), _Result()
    core = _core()
    status = core.fs_transit_sample(tables.graph, tables.arguments, app.arguments, asked, failure, ctypes.byref(result))
    if status == library.APP_ERROR:
        raise layouts.AppFailedError(core.fs_last_error().decode(errors="replace"), failure)
    library.raise_for_status(status, core.fs_last_error)
    return _samples(result)


def _core() -> ctypes.CDLL:
    core = library.core()
    core.fs_transit_free.argtypes = (_Result,)
    core.fs_transit_free.restype = None
    return core


def _samples(result: ctypes._Pointer) -> SampledSteps:
    """Views of the library's memory."""
    owner, found = OwnedMemory(result, _core().fs_transit_free), result.contents
    vertices = owner.tensor(found.vertices, found.num_vertices, torch.int64)
    if found.width >= 0:
        return SampledSteps(vertices.view(found.num_samples, found.width), None, found.num_steps, found.width)
    offsets = owner.tensor(found.offsets, found.num_samples + 1, torch.int64)
    lengths = np.diff(offsets.numpy())  # not by torch: its threads would spin into the next call
    return SampledSteps(vertices, offsets, found.num_steps, int(lengths.max(initial=0)))

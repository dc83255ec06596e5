"""Samples of users' applications on CUDA: an application's own functions, called by kernels that the build ships.

On a GPU they are linked to a cubin (sampling/transit/compile_cuda.py); the emulated library calls those of the CPU. The
vertices of a level, the roots or the picks of a step, stand sample by sample, so that a step's picks are written side
by side. Where it is not known how many steps there will be, they are made in chunks; after each the host looks whether
any sample goes on.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops import cuda, library
from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.cuda_run import (
    GROUPED,
    NO_FAILURE,
    DeviceRun,
    first_failure,
    offsets_of,
    takes_all,
    total_and_longest,
)  # fmt: skip
from fastsample_dist.ops.transit_layouts import ALL_NEIGHBORS, NULL_NODE
from fastsample_dist.ops.transit_sample import IndividualApp, SampledSteps, TransitRequest
from fastsample_dist.ops.transit_tables import TransitTables

FIRST_CHUNK, LARGEST_CHUNK = 16, 1024  # steps between two looks, which double


@cuda.DECLARED.mirror("FsCudaAppSteps")
class StepArguments(Structure):
    """FsCudaAppSteps."""

    _fields_ = (
        ("task", layouts.StepTask),
        ("app", c_void_p),
        ("levels", c_void_p),
        ("transits", c_void_p),
        ("ended", c_void_p),
        ("live", c_void_p),
        ("lengths", c_void_p),
        ("offsets", c_void_p),
        ("failure", c_void_p),
        ("workspace", c_void_p),
        ("draw", c_void_p),
        ("num_nodes", c_int64),
        ("first_step", c_int64),
        ("end_step", c_int64),
        ("has_step_transits", c_int32),
        ("has_initial", c_int32),
        ("by_walks", c_int32),
    )


cuda.DECLARED.functions(
    fs_cuda_load_app=(c_void_p, POINTER(c_void_p), c_void_p),
    fs_cuda_apps_compiler=(POINTER(c_int32), c_void_p),
    fs_cuda_app_workspace=(
        POINTER(layouts.AppArguments), POINTER(layouts.RequestArguments), c_int64, POINTER(c_int64), c_void_p,
    ),
    fs_cuda_app_steps=(
        POINTER(layouts.AppArguments), POINTER(layouts.RequestArguments), POINTER(StepArguments), c_void_p,
    ),
)  # fmt: skip


def compiler_version() -> tuple[int, int]:
    """Version (major, minor) of the nvcc that made the library and the kernels of applications."""
    version = c_int32()
    cuda.call("fs_cuda_apps_compiler", torch.empty(0), byref(version))
    return divmod(version.value, 1000)


@functools.cache
def loaded(cubin: bytes, device: torch.device) -> int:
    """The handle of a cubin of a user's functions and the kernels around them, loaded for good.

    Raises:
      RuntimeError: it is not for this GPU, or damaged.
    """
    handle = c_void_p()
    cuda.call("fs_cuda_load_app", torch.empty(0, device=device), cubin, byref(handle))
    assert handle.value is not None
    return handle.value


class AppInputs:
    """What an application's functions read of a graph, where a device reads it.

    Args:
      tables: made in host memory, columns included.
      indptr, indices: the graph of the tables.
      put: gives a tensor in its place: device memory, or pinned host memory.
      device: whose kernels read them.
    Attributes:
      indptr, indices, weights: in their place; weights None where the application reads none.
    """

    def __init__(
        self,
        tables: TransitTables,
        indptr: Tensor,
        indices: Tensor,
        put: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        self.device, self.num_rows, hashed = device, tables.num_rows, tables.hashed
        found = (
            indptr, indices, tables.weights, tables.slots, tables.totals, tables.maxima,
            None if hashed is None else hashed.nodes, None if hashed is None else hashed.buckets,
        )  # fmt: skip
        self._kept = [None if tensor is None else put(tensor) for tensor in found]
        self._columns = [put(torch.from_numpy(column)) for column in tables.columns]
        self.indptr, self.indices, self.weights, *rest = self._kept
        graph = library.Graph(
            self.indptr.data_ptr(), self.indices.data_ptr(), None, None, None, tables.num_rows, 0, indices.numel(),
            library.type_code(indices),
        )  # fmt: skip
        if self.weights is not None:
            where, code = self.weights.data_ptr(), library.type_code(self.weights)
            view = self._put_struct(library.WeightTables(where, None, None, code))
            graph.weights = ctypes.cast(view, POINTER(library.WeightTables))
        columns = self._put(np.array([column.data_ptr() for column in self._columns] or [0]))
        arguments = layouts.TableArguments(*map(library.address, rest), columns)
        self.graph, self.tables = self._put_struct(graph), self._put_struct(arguments)

    def _put(self, words: np.ndarray) -> int:
        """The address of a copy in device memory."""
        self._kept.append(torch.from_numpy(words).to(self.device, copy=True))
        return self._kept[-1].data_ptr()

    def _put_struct(self, structure: Structure) -> int:
        return self._put(np.frombuffer(bytearray(structure), dtype=np.uint8))


@dataclass(frozen=True, eq=False)
class AppCode:
    """An application's functions for a device.

    Attributes:
      params: int64 words that `par` is read from, in device memory.
      has_step_transits, has_initial: which functions there are besides `next`.
      cubin: handle of `loaded`; None: the functions are those of the application's addresses, for the emulated library.
    """

    params: Tensor
    has_step_transits: bool
    has_initial: bool
    cubin: int | None


def kernels_of(app: IndividualApp, has_step_transits: bool, has_initial: bool, schedule: str) -> tuple[str, ...]:
    """Names of the kernels that samples of an application need in its cubin; none is the beginning of another, because
    nvJitLink would keep both.

    Args:
      has_step_transits, has_initial: which functions there are besides `next`.
      schedule: see TransitRequest.
    """
    names = ["fs_app_start_samples"] if has_initial else []
    if goes_by_walks(app, has_step_transits, schedule):
        return (*names, "fs_app_chosen_walk" if has_step_transits else "fs_app_walk")
    if has_step_transits:
        names.append("fs_app_choose_transits")
    if app.unique is not None:
        names.append("fs_app_keep_distinct")
    if takes_all(app):
        names.append("fs_app_take_rows")
    return (*names, "fs_app_make_picks")


def goes_by_walks(app: IndividualApp, has_step_transits: bool, schedule: str) -> bool:
    """Whether one launch takes every sample through all steps."""
    if schedule in GROUPED or (app.num_roots != 1 and not has_step_transits):
        return False
    return bool((np.asarray(app.sample_sizes) == 1).all() and (np.asarray(app.num_transits) == 1).all())


class AppRun(DeviceRun):
    """As `transit_sample` of an application of its own functions, on a device.

    It waits for the kernels once; where samples take all neighbours, twice; where they run until they are done, once in
    every chunk of steps. It fails by a function that raised or returned what is no node (fault RAISED), or by a sample
    that has not ended. Level 0 are the roots, level k + 1 the picks of step k, int64 [S, picks] each.

    Args:
      inputs: the graph, and the tables that the application reads.
      app: of kind CALLBACK.
      code: its functions.
      roots, sample_ids, request: see DeviceRun.
      draw: int64 [2] on the device, rng_seed and step that kernels read in place of the request's.
    Raises:
      ValueError, MemoryError: what does not fit.
    """

    def __init__(
        self, inputs: AppInputs, app: IndividualApp, code: AppCode, roots: Tensor, sample_ids: Tensor,
        request: TransitRequest, draw: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(app, roots, sample_ids, request, inputs.device)
        self._count, self._num_steps = roots.shape[0], len(app.sample_sizes)
        sizes = np.asarray(app.sample_sizes, dtype=np.int64)
        self._widths = np.where(sizes == ALL_NEIGHBORS, 0, sizes) * np.asarray(app.num_transits, dtype=np.int64)
        self._rooms: list[Tensor] = []
        self._levels: list[Tensor] = []
        self._prepare(inputs, code, draw)
        self._steps.by_walks = goes_by_walks(app, code.has_step_transits, request.schedule)
        self._chunk_end = min(FIRST_CHUNK, self._num_steps) if app.until_done else self._num_steps
        self._add_levels(0, self._chunk_end)
        self._live = torch.empty(self._chunk_end, **self._words) if app.until_done else None
        self._lengths = torch.empty(self._count, **self._words) if takes_all(app) else None

    def _prepare(self, inputs: AppInputs, code: AppCode, draw: Tensor | None) -> None:
        """What all calls of the core share."""
        device, app, needed = inputs.device, self._app, c_int64()
        cuda.call(
            "fs_cuda_app_workspace", self.roots,
            byref(app.arguments), byref(self._asked), inputs.num_rows, byref(needed),
        )  # fmt: skip
        most_transits = max(map(int, app.num_transits), default=0) if code.has_step_transits else 0
        self._addresses = torch.zeros(self._num_steps + 1, **self._words)
        widths = torch.from_numpy(np.concatenate([[app.num_roots], self._widths])).to(device)
        state = torch.empty((self._count, app.state_words), **self._words)
        ended = torch.empty(self._count, dtype=torch.uint8, device=device) if app.until_done else None
        scratch = torch.empty(1 + self._count * most_transits, **self._words)
        workspace = torch.empty(needed.value, dtype=torch.uint8, device=device)
        task = layouts.StepTask(
            ctypes.cast(inputs.graph, POINTER(library.Graph)),
            ctypes.cast(inputs.tables, POINTER(layouts.TableArguments)),
            params=code.params.data_ptr(), sample_ids=self.sample_ids.data_ptr(), vertices=self._addresses.data_ptr(),
            strides=widths.data_ptr(), widths=widths.data_ptr(), state=state.data_ptr(), failed_slot=scratch.data_ptr(),
            num_samples=self._count, num_roots=app.num_roots, state_words=app.state_words,
        )  # fmt: skip
        self._steps = StepArguments(
            task, code.cubin, transits=scratch.data_ptr() + scratch.element_size(), ended=library.address(ended),
            failure=self._failure.data_ptr(), workspace=workspace.data_ptr(), draw=library.address(draw),
            num_nodes=inputs.num_rows, has_step_transits=code.has_step_transits, has_initial=code.has_initial,
        )  # fmt: skip
        self._kept = (inputs, code, draw, widths, state, ended, scratch, workspace)

    def enqueue(self) -> None:
        """See DeviceRun; of samples that differ in length the first chunk of steps, or all but the last."""
        self._enqueue(0, self._chunk_end, live=self._live, lengths=self._lengths)

    def finish(self) -> SampledSteps:
        """See DeviceRun."""
        if self._app.until_done:
            return self._finish_until_done()
        if self._lengths is not None:
            return self._finish_all(self._lengths)
        return self._finished(self._side_by_side(), int(self._failure))

    def _copied(self) -> Tensor:
        vertices = self._side_by_side()
        return vertices.clone() if self._are_columns else vertices

    def _finished(self, vertices: Tensor, word: int) -> SampledSteps:
        self._raise_failure(word)
        return SampledSteps(vertices, None, self._num_steps, vertices.shape[1])

    def _add_levels(self, first: int, end: int) -> None:
        """Room for the picks of steps, and before the first of them for the roots."""
        widths = self._widths[first:end].tolist()
        if first == 0:
            widths.insert(0, self._app.num_roots)
        room = torch.empty(self._count * sum(widths), **self._words)
        parts = room.split([self._count * width for width in widths])
        self._rooms.append(room)
        self._levels += [part.view(self._count, width) for part, width in zip(parts, widths, strict=True)]
        addresses = torch.tensor([level.data_ptr() for level in self._levels[-len(widths) :]], dtype=torch.int64)
        self._addresses[len(self._levels) - len(widths) : len(self._levels)] = addresses

    def _enqueue(self, first: int, end: int, **arrays: Tensor | None) -> None:
        """Steps first .. end - 1."""
        levels = (c_void_p * (end - first + 1))(*(level.data_ptr() for level in self._levels[first : end + 1]))
        self._steps.levels, self._steps.first_step, self._steps.end_step = ctypes.addressof(levels), first, end
        for name, array in arrays.items():
            setattr(self._steps, name, library.address(array))
        cuda.call("fs_cuda_app_steps", self.roots, byref(self._app.arguments), byref(self._asked), byref(self._steps))

    def _finish_until_done(self) -> SampledSteps:
        first, end, live, num_steps = 0, self._chunk_end, self._live, self._num_steps
        while True:
            found = live.tolist()
            if 0 in found:
                num_steps = first + found.index(0)
            if end >= num_steps:
                break
            first, end = end, min(end + min(2 * (end - first), LARGEST_CHUNK), num_steps)
            live = torch.empty(end - first, **self._words)
            self._add_levels(first, end)
            self._enqueue(first, end, live=live)
        self._raise_failure(int(self._failure))
        del self._levels[num_steps + 1 :]
        kept = torch.zeros(self._count, **self._words)  # levels behind the roots up to the last that has a pick
        for number, level in enumerate(self._levels[1:], 1):
            kept.masked_fill_((level >= 0).any(1), number)
        if num_steps == self._num_steps:
            self._raise_unended(kept)
        ends = torch.from_numpy(np.concatenate([[0], np.cumsum(self._widths[:num_steps])])) + self._app.num_roots
        lengths, vertices = ends.to(kept.device)[kept], self._side_by_side()
        chosen = vertices[torch.arange(vertices.shape[1], device=kept.device) < lengths[:, None]]
        _, longest = total_and_longest(lengths)
        return SampledSteps(chosen, offsets_of(lengths), num_steps, longest)

    def _finish_all(self, lengths: Tensor) -> SampledSteps:
        last, offsets = self._num_steps - 1, offsets_of(lengths)
        self._raise_failure(int(self._failure))
        num_picks, longest = total_and_longest(lengths)
        picks = torch.empty(num_picks, **self._words)
        self._levels[-1] = picks
        self._enqueue(last, self._num_steps, offsets=offsets)
        self._raise_failure(int(self._failure))
        self._levels.pop()
        before = self._side_by_side()
        ends = offsets_of(lengths + before.shape[1])
        places = torch.arange(picks.numel(), device=picks.device)
        owner = torch.arange(self._count, device=picks.device).repeat_interleave(lengths)
        vertices = torch.empty(num_picks + before.numel(), **self._words)
        vertices[places + (owner + 1) * before.shape[1]] = picks
        vertices[ends[:-1, None] + torch.arange(before.shape[1], device=picks.device)] = before
        return SampledSteps(vertices, ends, self._num_steps, longest + before.shape[1])

    def _side_by_side(self) -> Tensor:
        """The levels as columns, int64 [S, width]."""
        if not self._are_columns:
            return torch.cat(self._levels, 1)
        lying = self._rooms[0] if len(self._rooms) == 1 else torch.cat(self._rooms)
        return lying[: self._count * len(self._levels)].view(len(self._levels), self._count).t()

    @property
    def _are_columns(self) -> bool:
        """Whether every level has one, so that they are side by side as they lie."""
        return all(level.shape[1] == 1 for level in self._levels)

    def _raise_failure(self, word: int) -> None:
        error = failure_of(word, self.sample_ids)
        if error is not None:
            raise error

    def _raise_unended(self, kept: Tensor) -> None:
        if self._num_steps > 0 and bool((kept == self._num_steps).any()):
            sample = int((kept == self._num_steps).nonzero()[0])
            line = (
                f"sample {{}} has not ended after {self._num_steps} steps; return transit.NULL in the end, or raise "
                "the application's max_steps"
            )
            raise _failed(sample, self._num_steps, layouts.AppFault.NEVER_ENDS, line, self.sample_ids)


def failure_of(word: int, sample_ids: Tensor) -> layouts.AppFailedError | None:
    """What a call's word says (FsCudaAppSteps.failure), of fault RAISED; None: there was no failure."""
    if word == NO_FAILURE:
        return None
    step, sample = first_failure(word)
    line = f"the application failed in sample {{}} at step {step}"
    return _failed(sample, step, layouts.AppFault.RAISED, line, sample_ids)


def _failed(
    sample: int, step: int, fault: layouts.AppFault, line: str, sample_ids: Tensor
) -> layouts.AppFailedError:  # fmt: skip
    sample_id = int(sample_ids[sample])
    failure = layouts.Failure(sample, sample_id, step, NULL_NODE, fault, layouts.AppFunction.NEXT)
    return layouts.AppFailedError(line.format(sample_id), failure)

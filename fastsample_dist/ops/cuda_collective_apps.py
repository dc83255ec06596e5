"""Steps of users' collective applications on CUDA: an application's own functions, called for all samples of a call.

Where the functions come from is in cuda_apps.py; what becomes of the picks, in sampling/transit/device_collective.py.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_void_p, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastsample_dist.ops import cuda, library
from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.cuda_apps import AppCode, AppInputs, failure_of
from fastsample_dist.ops.cuda_collective import Neighbourhoods, PickRequest
from fastsample_dist.ops.cuda_run import NO_FAILURE
from fastsample_dist.ops.transit_layouts import AppFunction


@cuda.DECLARED.mirror("FsCudaAppCall")
class CallArguments(Structure):
    """FsCudaAppCall."""

    _fields_ = (
        ("task", layouts.StepTask),
        ("app", c_void_p),
        ("begins", c_void_p),
        ("ended", c_void_p),
        ("failure", c_void_p),
        ("num_nodes", c_int64),
        ("function", c_int32),
    )


cuda.DECLARED.functions(
    fs_cuda_call_app=(POINTER(layouts.AppArguments), POINTER(CallArguments), c_void_p),
)


def kernels_of(has_step_transits: bool, has_initial: bool) -> tuple[str, ...]:
    """Names of the kernels that samples of a collective application need in its cubin, by its functions besides `next`;
    see cuda_apps.kernels_of.
    """
    names = ["fs_app_start_samples"] * has_initial + ["fs_app_choose_transits"] * has_step_transits
    return (*names, "fs_app_fill_slots")


class CollectiveAppRun:
    """The functions of a collective application over the samples of one call.

    Args:
      inputs: the graph, and the tables that the application reads.
      app: of kind CALLBACK, with its number of roots.
      code: its functions.
      roots: int64 [num_samples, roots], on the device.
      sample_ids: int64 [num_samples], there.
      request: the key; which step it names is not read.
    """

    def __init__(
        self, inputs: AppInputs, app: layouts.AppArguments, code: AppCode, roots: Tensor, sample_ids: Tensor,
        request: PickRequest,
    ) -> None:  # fmt: skip
        words, count = {"dtype": torch.int64, "device": inputs.device}, len(sample_ids)
        self._app, self._ids, self._levels = app, sample_ids, []
        self._places = torch.empty((2, 0), **words)  # addresses of the levels, and their widths
        self._failure, failed_slot = torch.full((1,), NO_FAILURE, **words), torch.empty(1, **words)
        state = torch.zeros((count, app.state_words), **words)
        self._ended = torch.zeros(count, dtype=torch.bool, device=inputs.device) if app.until_done else None
        task = layouts.StepTask(
            cast(inputs.graph, POINTER(library.Graph)), cast(inputs.tables, POINTER(layouts.TableArguments)),
            params=code.params.data_ptr(), sample_ids=sample_ids.data_ptr(), state=state.data_ptr(),
            failed_slot=failed_slot.data_ptr(), rng_seed=request.rng_seed, step=request.step, num_samples=count,
            num_roots=roots.shape[1], state_words=app.state_words,
        )  # fmt: skip
        self._call = CallArguments(
            task, code.cubin, ended=library.address(self._ended), failure=self._failure.data_ptr(),
            num_nodes=inputs.num_rows,
        )  # fmt: skip
        self._kept, self._seen = (inputs, code, state, failed_slot), ()
        self.add(roots)
        if code.has_initial:
            self._enqueue(AppFunction.INITIAL, 0, picks=1)

    def add(self, level: Tensor) -> None:
        """Vertices that functions see from now on: the roots, then the picks of a step, int64 [num_samples, width]."""
        number = len(self._levels)
        if number == self._places.shape[1]:
            self._places = pad(self._places, (0, max(8, number)))
        self._levels.append(level)
        self._places[:, number] = torch.tensor([level.data_ptr(), level.shape[1]])
        task = self._call.task
        task.vertices, task.strides = (row.data_ptr() for row in self._places)
        task.widths = task.strides

    def choose_transits(self, step: int, width: int) -> Tensor:
        """What step_transits returns, int64 [num_samples, width]. Where samples run until they are done, one that had
        no transit has none again.
        """
        out = torch.empty((len(self._ids), width), dtype=torch.int64, device=self._ids.device)
        self._enqueue(
            AppFunction.STEP_TRANSITS, step, num_transits=width, sample_size=1, picks=width, out_stride=width,
            out=out.data_ptr(), attempt=0,
        )  # fmt: skip
        if self._ended is not None:
            self._ended |= (out < 0).all(1)
        return out

    def look_at(self, found: Neighbourhoods, ranked: Tensor | None) -> None:
        """What `fill` picks from.

        Args:
          found: of the step's distinct transits, with sums of their degrees.
          ranked: int64 [num_samples, n], their neighbours by the race, or None.
        """
        counts = found.begins.diff()
        rows = torch.arange(len(counts), device=counts.device)
        total = found.transits.numel() + len(counts)  # a sample has a sum more than it has transits
        samples = rows.repeat_interleave(counts + 1, output_size=total)
        combined = found.ends[torch.arange(total, device=counts.device) - samples]
        combined -= found.ends[found.begins[samples]]
        task = self._call.task
        task.transits, task.num_distinct, task.combined = map(Tensor.data_ptr, (found.transits, counts, combined))
        task.ranked, task.ranked_stride = library.address(ranked), 0 if ranked is None else ranked.shape[1]
        self._call.begins = found.begins.data_ptr()
        self._seen = (found, ranked, counts, combined)

    def fill(self, request: PickRequest, out: Tensor) -> None:
        """Make the picks of out, int64 [num_samples, sample_size], that are OPEN_SLOT."""
        size = out.shape[1]
        self._enqueue(
            AppFunction.NEXT, request.step_index, sample_size=size, picks=size, out_stride=size, out=out.data_ptr(),
            attempt=request.attempt,
        )  # fmt: skip

    def failure(self) -> layouts.AppFailedError | None:
        """The first failure by (step, position in the call), of fault RAISED; None: there was none. Waits for it."""
        return failure_of(int(self._failure), self._ids)

    def _enqueue(self, function: AppFunction, step: int, **fields: int) -> None:
        self._call.function, self._call.task.step_index = function, step
        for name, value in fields.items():
            setattr(self._call.task, name, value)
        cuda.call("fs_cuda_call_app", self._ids, byref(self._app), byref(self._call))

"""The device of `fastsample-bench gpu`, and the timer that takes its figures.

A time is that between two CUDA events around a call, on an idle device: it begins when the call begins, includes every
gap in which the device waits for the host, and ends when the last kernel has ended and the call has returned. Time
inside kernels alone comes from torch's profiler, in trials of its own, because it slows the host down.
"""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.bench import native
from fastsample_dist.bench.timing import spread, steady
from fastsample_dist.device.pinned import pinned_copy
from fastsample_dist.ops import cuda
from fastsample_dist.ops.captured import CudaGraphRecorder, Recorder

KERNEL_TRIALS = 5  # under the profiler
SMI_FIELDS = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit")
# "void fs::(anonymous namespace)::reservoir_kernel<int>(...)" -> reservoir_kernel
OWN_KERNEL = re.compile(r"\bfs::(?:\(anonymous namespace\)::|\w+::)*(\w+)\s*[<(]")

Call = Callable[[int], Any]  # called with the number of the trial


class GpuDevice:
    """The first CUDA device, made the current one.

    Raises:
      ValueError: torch sees none; one line about what is missing.
      ImportError: libfastsample_cuda.so or libfastsample_bench_cuda.so is missing.
    """

    def __init__(self) -> None:
        reason = missing_reason()
        if reason is not None:
            raise ValueError(reason)
        cuda.core()
        native.cuda_core()
        self.torch_device = torch.device("cuda", 0)
        torch.cuda.set_device(self.torch_device)

    def put(self, tensor: Tensor) -> Tensor:
        """A copy in device memory."""
        return tensor.to(self.torch_device)

    def pin(self, tensor: Tensor) -> Tensor:
        """A copy in pinned host memory, which the device can read."""
        return pinned_copy(tensor, self.torch_device)

    def recorder(self) -> Recorder:
        """What records kernels."""
        return CudaGraphRecorder(self.torch_device)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize()

    def release(self) -> None:
        """Give back the memory that nothing uses any more."""
        gc.collect()
        torch.cuda.empty_cache()

    def elapsed_s(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """(what the call returned, seconds from an idle device to the end of the call and its kernels)."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.synchronize()
        start.record()
        result = call()
        end.record()
        end.synchronize()
        return result, start.elapsed_time(end) / 1e3

    def kernels_s(self, call: Callable[[], Any]) -> list[tuple[str, float]]:
        """(name, seconds) of every kernel that a call runs; [] where torch's profiler sees none."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            self.synchronize()
        return kernel_times(profile.events())

    def conditions(self) -> dict:
        """What the figures depend on besides the host and the options."""
        properties = torch.cuda.get_device_properties(self.torch_device)
        return {
            "device": properties.name, "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count, "capability": f"{properties.major}.{properties.minor}",
            "l2_bytes": getattr(properties, "L2_cache_size", None), "cuda_of_torch": torch.version.cuda,
            **_smi(self.torch_device.index),
        }  # fmt: skip


def missing_reason() -> str | None:
    """Why nothing can be measured here, in one line; None where there is a device."""
    if torch.version.cuda is None:
        return (
            f"fastsample-bench gpu needs an NVIDIA GPU and a torch built with CUDA; torch here is {torch.__version__}, "
            "which is not. Install one: benchmarks/gpu.md says how."
        )
    if not torch.cuda.is_available():
        return (
            f"fastsample-bench gpu needs an NVIDIA GPU; torch {torch.__version__} sees none. Run `nvidia-smi`: it "
            "lists the devices and the driver, or says what is wrong with them."
        )
    return None


@dataclass(frozen=True)
class GpuTimer:
    """Measures times on a device.

    Attributes:
      device: the device.
      warmup: calls before.
      trials: timed calls.
    """

    device: GpuDevice
    warmup: int
    trials: int

    def seconds(self, call: Call) -> list[float]:
        """Seconds of each timed call; trials are numbered from 0 on, warm-up calls among them."""
        return self.turns({"call": call})["call"]

    def turns(self, calls: dict[str, Call], look: Callable[[str, Any], None] | None = None) -> dict[str, list[float]]:
        """Seconds of each timed call of several, in turns: whatever slows the device down slows all of them.

        Args:
          calls: by name; in one trial all are called with the same number.
          look: sees (name, result) of every timed call, outside its time.
        """
        found: dict[str, list[float]] = {name: [] for name in calls}
        with steady():
            for trial in range(self.warmup + self.trials):
                for name, call in calls.items():
                    result, seconds = self.device.elapsed_s(lambda: call(trial))  # noqa: B023
                    if trial >= self.warmup:
                        found[name].append(seconds)
                        if look is not None:
                            look(name, result)
                    del result
        return found

    def rates(self, amount: float, call: Call) -> dict:
        """`amount` per second: {"median", "p10", "p90", "rates"}."""
        return spread([amount / seconds for seconds in self.seconds(call)])

    def kernels(self, call: Call, groups: dict[str, Callable[[str], bool]] | None = None) -> dict[str, dict | None]:
        """Seconds inside kernels per call, by group of kernels: see `spread`; None where the profiler sees no kernel.

        Args:
          call: runs KERNEL_TRIALS times, with the numbers of the first timed trials.
          groups: whether a kernel of this name belongs to the group; one group "all" of every kernel by default.
        """
        groups = groups or {"all": lambda _: True}
        per_call: dict[str, list[float]] = {group: [] for group in groups}
        for trial in range(min(KERNEL_TRIALS, self.trials)):
            times = self.device.kernels_s(lambda: call(self.warmup + trial))  # noqa: B023
            if not times:
                return dict.fromkeys(groups)
            for group, has in groups.items():
                per_call[group].append(sum(seconds for name, seconds in times if has(name)))
        return {group: spread(found) for group, found in per_call.items()}


def kernel_times(events: Iterable[Any]) -> list[tuple[str, float]]:
    """(name, seconds) of the kernels among a profile's events: what ran on the device, except copies and memsets.

    Args:
      events: of torch.profiler.profile.events().
    """
    return [
        (own_name(event.name), event.time_range.elapsed_us() / 1e6)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith(("Memcpy", "Memset"))
        and not getattr(event, "is_user_annotation", False)
    ]


def own_name(kernel: str) -> str:
    """A kernel of this library by its bare name; any other as it is."""
    found = OWN_KERNEL.search(kernel)
    return found[1] if found else kernel


def _smi(index: int) -> dict:
    """What nvidia-smi reports about a device; nothing where it cannot be run."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    fields = ",".join(SMI_FIELDS)
    command = [program, f"--id={index}", f"--query-gpu={fields}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return smi_fields(done.stdout) if done.returncode == 0 else {}


def smi_fields(text: str) -> dict:
    """SMI_FIELDS of a line of nvidia-smi's CSV, dots in their names as underscores."""
    values = [value.strip() for value in text.strip().split(",")]
    if len(values) != len(SMI_FIELDS):
        return {}
    return {name.replace(".", "_"): value for name, value in zip(SMI_FIELDS, values, strict=True)}

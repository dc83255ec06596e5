"""Where a test runs CUDA kernels: on a GPU, or on the CPU through the emulator (csrc/cuda/emulated)."""

import contextlib
import inspect
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from ctypes import c_int64, c_uint64
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.bench import native
from fastsample_dist.ops import cuda, library
from fastsample_dist.sampling import arrays
from tests.toolchain import CSRC, cmake, find_compiler
from tests.waiting import BUILD_S


class CudaDevice:
    """The current GPU."""

    is_emulated = False

    def put(self, tensor: Tensor) -> Tensor:
        """A copy of the tensor that kernels can read and write."""
        return tensor.cuda()

    def kernel(self, name: str) -> Callable:
        """The function that torch.ops.fastsample.<name> runs on CUDA tensors."""
        return ops.cuda_kernels[name]

    def operators(self) -> contextlib.AbstractContextManager:
        """While it is open, every operator that has a CUDA kernel runs it on tensors that were `put` here."""
        return contextlib.nullcontext()


class EmulatedDevice(CudaDevice):
    """The CPU, with the emulated library in place of the CUDA library."""

    is_emulated = True

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._library = cuda.load(path)
        self._library.fs_cuda_set_schedule.argtypes = (c_uint64,)
        self._library.fs_cuda_set_schedule.restype = None
        self._library.fs_cuda_fail_call.argtypes = (c_int64,)
        self._library.fs_cuda_fail_call.restype = c_int64
        self._library.fs_cuda_num_launches.restype = c_int64
        self._library.fs_cuda_blocks_of_launch.argtypes = (c_int64,)
        monkeypatch.setattr(cuda, "core", lambda: self._library)
        benchmarks = library.load(path, native.CUDA, "build it again.", kind="fs_cuda_bench")
        monkeypatch.setattr(native, "cuda_core", lambda: benchmarks)
        self.set_schedule(0)

    def put(self, tensor: Tensor) -> Tensor:
        """A copy of the tensor."""
        return tensor.clone()

    def set_schedule(self, seed: int) -> None:
        """Which thread runs next when one waits: 0 in order, else a random schedule of this seed."""
        self._library.fs_cuda_set_schedule(seed)

    @contextlib.contextmanager
    def operators(self) -> Iterator[None]:
        """In place of the CPU's kernels."""
        require_overrides()
        replaced = torch.library.Library("fastsample", "IMPL")
        with warnings.catch_warnings():  # torch warns of a kernel that takes another's place
            warnings.simplefilter("ignore")
            for name, kernel in ops.cuda_kernels.items():
                replaced.impl(name, kernel, "CPU", allow_override=True)
        try:
            yield
        finally:
            replaced._destroy()

    def failures(self, call: Callable[[], object]) -> list[str]:
        """The line that a call ends with when its first launch, memset or sort fails, when its second does, and so on;
        "": it did not notice.
        """
        fail_call, many, lines = self._library.fs_cuda_fail_call, 10**9, []
        fail_call(many)
        call()
        for number in range(many - fail_call(-1)):
            fail_call(number)
            try:
                call()
                lines.append("")
            except (MemoryError, RuntimeError) as error:
                lines.append(str(error))
            finally:
                fail_call(-1)
        return lines

    def num_launches(self) -> int:
        """Kernels launched since the library was loaded."""
        return int(self._library.fs_cuda_num_launches())

    def grids(self, call: Callable[[], object]) -> list[int]:
        """Blocks of the kernels that a call launches, in order; at most 64."""
        first = self.num_launches()
        call()
        return [self._library.fs_cuda_blocks_of_launch(number) for number in range(first, self.num_launches())]


class CallAgain:
    """In place of a CUDA graph where there is no device: the same work into the same arrays."""

    def record(self, enqueue):
        self._enqueue = enqueue
        enqueue()

    def replay(self):
        self._enqueue()

    def follow(self):
        """The work of a call is over when it returns, and there is no stream."""


def build_emulated(directory: Path, sanitizer: str = "") -> Path:
    """libfastsample_emulated.so, built in `directory`."""
    find_compiler()
    options = ["-DFS_CUDA=OFF", "-DFS_EMULATED=ON", f"-DFS_SANITIZE={sanitizer}"]
    build = [cmake(), "--build", str(directory), "--parallel", str(os.cpu_count() or 1)]
    for command in (
        [cmake(), "-S", str(CSRC), "-B", str(directory), *options],
        [*build, "--target", "fastsample_emulated"],
    ):
        run = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
        assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout[-2000:]}\n{run.stderr[-6000:]}"
    return directory / "libfastsample_emulated.so"


def require_overrides() -> None:
    """Skip where operators keep the kernel that they have."""
    if "allow_override" not in inspect.signature(torch.library.Library.impl).parameters:
        pytest.skip("this torch overrides no operator")


@contextlib.contextmanager
def kernels_on_the_cpu(library: Path) -> Iterator[EmulatedDevice]:
    """The whole library as on a GPU, with CPU tensors: every operator that has a CUDA kernel, and sampling, runs it
    through the emulator.

    Args:
      library: libfastsample_emulated.so.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        device = EmulatedDevice(library, monkeypatch)
        monkeypatch.setattr(arrays, "runs_kernels", lambda device: True)
        with device.operators():
            yield device

"""The device of fastsample-bench gpu, played by the CPU and the emulator: everything runs, times mean nothing."""

import time

import torch

from fastsample_dist.bench.gpu.device import GpuDevice
from tests.cuda_devices import CallAgain

CONDITIONS = {
    "device": "emulated", "memory_bytes": 2**30, "multiprocessors": 1, "capability": "0.0", "l2_bytes": None,
    "cuda_of_torch": None,
}  # fmt: skip


class EmulatedGpu(GpuDevice):
    """Needs the fixture `emulated_device`, which puts the emulated library in the CUDA library's place."""

    torch_device = torch.device("cpu")

    def __init__(self, kernels=(("sample_by_groups", 1e-6), ("reservoir_kernel", 4e-6), ("relabel", 2e-6))):
        self.kernels = list(kernels)

    def put(self, tensor):
        return tensor.clone()

    def pin(self, tensor):
        return tensor.clone()

    def recorder(self):
        return CallAgain()

    def synchronize(self):
        pass

    def release(self):
        pass

    def elapsed_s(self, call):
        start = time.perf_counter()
        return call(), time.perf_counter() - start

    def kernels_s(self, call):
        call()
        return self.kernels

    def conditions(self):
        return CONDITIONS

"""Fixtures of the tests of applications on a GPU."""

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.sampling import arrays


@pytest.fixture
def device(cuda_device, monkeypatch):
    """The GPU, or the CPU with the emulator's kernels."""
    if cuda_device.is_emulated:
        monkeypatch.setattr(arrays, "runs_kernels", lambda device: True)
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def on_cpu(monkeypatch):
    """Samples of the CPU's engine, also where the emulator stands in its place."""

    def sample(graph, app, roots, **key):
        with monkeypatch.context() as context:
            context.setattr(arrays, "runs_kernels", lambda device: False)
            return fsd.TransitSampler(graph, app, rng_seed=3).sample(roots, **key)

    return sample

"""Fixtures and markers for every room's tests."""

from pathlib import Path

import pytest
import torch

from tests.cuda_devices import CudaDevice, EmulatedDevice, build_emulated

EMULATING = {"cuda_device", "emulated_device", "emulated_library"}  # fixtures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that run kernels on the emulator; skip tests marked `gpu` where torch sees no CUDA device."""
    for item in items:
        needs_kernels = not EMULATING.isdisjoint(getattr(item, "fixturenames", ()))
        if needs_kernels and item.get_closest_marker("gpu") is None:
            item.add_marker(pytest.mark.emulated)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """--emulated-library: the emulator's tests take a library that was built before, with sanitizers for example."""
    parser.addoption("--emulated-library", metavar="FILE", type=Path, help="a built libfastsample_emulated.so")


@pytest.fixture(scope="session")
def emulated_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CUDA sources compiled for the CPU; skips without a C++ compiler."""
    return request.config.getoption("--emulated-library") or build_emulated(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def emulated_device(emulated_library: Path, monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    """The emulated library in place of the CUDA library, for one test; its schedule starts at 0."""
    return EmulatedDevice(emulated_library, monkeypatch)


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def cuda_device(request: pytest.FixtureRequest) -> CudaDevice:
    """Where CUDA kernels run: the emulator everywhere, and a GPU where there is one."""
    return request.getfixturevalue("emulated_device") if request.param == "emulated" else CudaDevice()

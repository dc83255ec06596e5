"""Fixtures and markers for every room's tests."""

import contextlib
import fcntl
import signal
from pathlib import Path

import pytest
import torch

from tests.cuda_devices import CudaDevice, EmulatedDevice, build_emulated

BUILDING = {"test_build.py", "test_sanitizers.py"}
EMULATING = {"cuda_device", "emulated_device", "emulated_library"}  # fixtures


def pytest_configure() -> None:
    """Take Ctrl-C as a terminal's foreground does, and let no example of a property test have a time limit.

    A shell starts what it puts into the background with SIGINT ignored, and every process that a test starts would
    inherit that; with a handler here they get the default.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(ImportError):
        from hypothesis import settings

        settings.register_profile("untimed", deadline=None)
        settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that run kernels on the emulator; skip tests marked `gpu` where torch sees no CUDA device.

    Files that build come first, so that no process of several (pytest-xdist) is left with one of them at the end.
    """
    items.sort(key=lambda item: item.path.name not in BUILDING)
    for item in items:
        needs_kernels = not EMULATING.isdisjoint(getattr(item, "fixturenames", ()))
        if needs_kernels and item.get_closest_marker("gpu") is None:
            item.add_marker(pytest.mark.emulated)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have recorded (record_property): figures of this run that no verdict depends on."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name} {value}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """--emulated-library: the emulator's tests take a library that was built before, with sanitizers for example."""
    parser.addoption("--emulated-library", metavar="FILE", type=Path, help="a built libfastsample_emulated.so")


@pytest.fixture(scope="session")
def emulated_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CUDA sources compiled for the CPU; skips without a C++ compiler. Processes of one run share it."""
    given = request.config.getoption("--emulated-library")
    if given is not None:
        return given
    if not hasattr(request.config, "workerinput"):
        return build_emulated(tmp_path_factory.mktemp("emulated"))
    shared = tmp_path_factory.getbasetemp().parent / "emulated"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build_emulated(shared)  # the second one finds nothing to compile


@pytest.fixture
def emulated_device(emulated_library: Path, monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    """The emulated library in place of the CUDA library, for one test; its schedule starts at 0."""
    return EmulatedDevice(emulated_library, monkeypatch)


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def cuda_device(request: pytest.FixtureRequest) -> CudaDevice:
    """Where CUDA kernels run: the emulator everywhere, and a GPU where there is one."""
    return request.getfixturevalue("emulated_device") if request.param == "emulated" else CudaDevice()

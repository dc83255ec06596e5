"""Fixtures and markers for every room's tests."""

import contextlib
import fcntl
import gc
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fastsample_dist.testing import ranks, supervisor
from tests.cuda_devices import CudaDevice, EmulatedDevice, build_emulated
from tests.forked import fork_python

# Files that take longest, those that build first: whoever takes one at the end would leave the others without work.
# What test_compile_cpu.py compiles, others read from the run's cache.
LONGEST = (
    "test_sanitizers.py", "test_build.py", "sampling/transit/test_compile_cpu.py", "examples/test_resume.py",
    "test_launch/test_runs.py", "examples/test_train_sage.py", "testing/test_jobs.py", "bench/gpu/test_gpu.py",
    "bench/epoch/test_namespace_launch.py", "train/test_checkpoint.py", "comm/test_failures.py", "comm/test_board.py",
    "comm/test_testing.py", "train/test_interrupts.py", "train/test_steady_state.py", "train/test_parts_on_ranks.py",
    "comm/test_handshake.py", "comm/test_exit.py", "testing/test_check_sampler.py", "test_partition/test_on_disk.py",
    "verify/test_verify.py", "test_partition/test_edge_map.py", "test_partition/test_metis_interrupts.py",
    "bench/epoch/test_epoch.py",
)  # fmt: skip
TESTS = Path(__file__).resolve().parent
PRELOAD = ("pytest", "tests.train.task")
EMULATING = {"cuda_device", "emulated_device", "emulated_library"}  # fixtures


def pytest_configure(config: pytest.Config) -> None:
    """Take Ctrl-C as a terminal's foreground does, let no example of a property test have a time limit, and keep what
    is kept in a user's cache directory for this run alone, all its processes together.

    A shell starts what it puts into the background with SIGINT ignored, and every process that a test starts would
    inherit that; with a handler here they get the default. Forked ranks find loaded what test files import: that would
    take each of them longer than most tests. What is collected lives until the end: looking through all of it for
    garbage, again and again, is a quarter of the time that collecting takes.
    """
    gc.disable()
    ranks.PRELOAD.extend(PRELOAD)
    if not hasattr(config, "workerinput"):  # the processes of pytest-xdist inherit it
        cache = tempfile.TemporaryDirectory(prefix="fastsample-tests-")
        os.environ["XDG_CACHE_HOME"] = cache.name
        config.add_cleanup(cache.cleanup)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(ImportError):
        from hypothesis import settings

        settings.register_profile("untimed", deadline=None)
        settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that run kernels on the emulator; skip tests marked `gpu` where torch sees no CUDA device.

    The longest files come first, so that no process of several (pytest-xdist) is left with one of them at the end.
    """
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    for item in items:
        needs_kernels = not EMULATING.isdisjoint(getattr(item, "fixturenames", ()))
        if needs_kernels and item.get_closest_marker("gpu") is None:
            item.add_marker(pytest.mark.emulated)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


def pytest_collection_finish() -> None:
    """Look for garbage again, among what comes from now on."""
    gc.freeze()
    gc.enable()


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


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of bench's commands are forked: for tests of what they do, not of how they start."""
    monkeypatch.setattr(supervisor, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": fork_python}))

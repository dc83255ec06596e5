"""The C ABI under the sanitizers: many callers at once, against one caller with one thread (csrc/tests/stress*.cpp)."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda_devices import build_emulated
from tests.grids import grid
from tests.toolchain import CSRC, cmake, find_compiler
from tests.waiting import BUILD_S

TESTS = Path(__file__).resolve().parent
KERNEL_TESTS = [
    str(TESTS / name)
    for name in (
        "ops",
        "bench/gpu/test_kernels.py",
        "sampling/transit/test_device_engine.py",
        "sampling/transit/test_device_collective.py",
        "sampling/transit/test_device_apps.py",
        "sampling/transit/test_device_collective_apps.py",
    )
]

PROBE = "#include <thread>\nint main() { std::thread([] {}).join(); return 0; }\n"

PROGRAMS = ("fastsample_stress", "fastsample_stress_partition")

SANITIZERS = ("address,undefined", "thread")
PAIRS, THREES = ("2", "2", "32"), ("3", "3", "32")  # CALLERS TEAM BITS: a race needs two; ids of 32 bits or of 64
THREES_OF_LONG_IDS = ("3", "3", "64")


def load_for(sanitizer: str, compiler: str, load: tuple[str, str, str]) -> tuple[str, str, str, str]:
    """CALLERS TEAM ROUNDS BITS.

    The thread sanitizer cannot see into an OpenMP library. With gcc the build brings one that it can
    (csrc/tests/visible_openmp.cpp); with another compiler a call has one thread, and only callers run at the same time.
    """
    callers, team, bits = load
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    hidden = sanitizer == "thread" and "Free Software Foundation" not in version
    return callers, "1" if hidden else team, "1", bits


def require_runtime(sanitizer: str, compiler: str, directory: Path) -> None:
    """Skip unless a program built with the sanitizer starts here."""
    source, program = directory / "probe.cpp", directory / "probe"
    source.write_text(PROBE)
    build = [compiler, f"-fsanitize={sanitizer}", "-pthread", str(source), "-o", str(program)]
    for command in (build, [str(program)]):
        run = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
        if run.returncode != 0:
            lines = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
            pytest.skip(f"-fsanitize={sanitizer} does not work here: {lines[-1]}")


def succeed(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed."""
    run = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
    assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout[-2000:]}\n{run.stderr[-6000:]}"
    return run


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """By sanitizer: the directory of a build with it; each is configured once."""

    def configure(sanitizer: str) -> Path:
        if sanitizer not in made:
            folder = tmp_path_factory.mktemp("sanitized")
            require_runtime(sanitizer, find_compiler(), folder)
            # What threads share is the same in every set, and intrinsics are not seen by the thread sanitizer.
            sets = "baseline" if sanitizer == "thread" else "all"
            options = ["-DFS_TESTS=ON", "-DFS_CUDA=OFF", f"-DFS_SANITIZE={sanitizer}", f"-DFS_SETS={sets}"]
            succeed(cmake(), "-S", str(CSRC), "-B", str(folder / "build"), *options)
            made[sanitizer] = folder / "build"
        return made[sanitizer]

    made: dict[str, Path] = {}
    return configure


FEW_CALLERS = ("thread", "fastsample_stress", PAIRS)
STRESS = [FEW_CALLERS, *itertools.product(SANITIZERS, PROGRAMS, (THREES, THREES_OF_LONG_IDS))]


@pytest.mark.parametrize("case", grid(STRESS, gate=[FEW_CALLERS]), ids=str)
def test_stress_is_clean_and_independent_of_callers_and_threads(built, case):
    sanitizer, program, load = case
    build = built(sanitizer)
    succeed(cmake(), "--build", str(build), "--target", program, "--parallel", str(os.cpu_count() or 1))
    run = succeed(str(build / program), *load_for(sanitizer, find_compiler(), load))
    assert "every result as with one thread" in run.stdout
    # The undefined-behaviour sanitizer continues after an error.
    assert "runtime error" not in run.stderr, run.stderr[-6000:]


def runtime_library(compiler: str, name: str) -> str:
    """Path of a sanitizer's runtime, to be loaded before everything else."""
    path = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    if not Path(path.strip()).is_absolute():
        pytest.skip(f"{compiler} has no {name} to load beforehand")
    return path.strip()


FEW_TESTS = [str(TESTS / "ops" / f"test_{name}.py") for name in ("compact_cuda", "row_tables", "task_queue")]
KERNEL_RUNS = [
    ("address", "emulated and not grid", FEW_TESTS),
    ("address,undefined", "emulated and not (grid and long)", KERNEL_TESTS),
]


def test_compute_sanitizer_sees_the_kernels_of_users_applications():
    """Their names have no namespace, as nvJitLink is asked for them by name."""
    filters = re.findall(r"--kernel-name kns=(\S+)", (CSRC.parent / "Makefile").read_text())
    kernels = re.findall(r"^FS_APP_KERNEL void (\w+)\(", (CSRC / "cuda" / "app_kernels.cuh").read_text(), re.MULTILINE)
    assert "_ZN2fs" in filters and len(kernels) == 8
    assert all(any(part in kernel for part in filters) for kernel in kernels)


@pytest.mark.grid
@pytest.mark.parametrize("case", KERNEL_RUNS, ids=str)
def test_cuda_kernels_are_clean_on_the_emulator(case, tmp_path):
    """The tests of the kernels again: reads and writes outside of tensors and of the pieces of scratch are found."""
    (sanitizer, tests, files), compiler = case, find_compiler()
    require_runtime(sanitizer, compiler, tmp_path)
    library = build_emulated(tmp_path / "build", sanitizer)
    log = tmp_path / "found"
    environment = os.environ | {
        "LD_PRELOAD": ":".join(runtime_library(compiler, name) for name in ("libasan.so", "libubsan.so")),
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={log}",  # Python keeps memory until the end
        "UBSAN_OPTIONS": f"halt_on_error=1:print_stacktrace=1:log_path={log}",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-m", tests, "-p", "no:cacheprovider", *files]
    run = subprocess.run(
        [*command, f"--emulated-library={library}"],
        capture_output=True, text=True, timeout=BUILD_S, env=environment, cwd=TESTS.parent,
    )  # fmt: skip
    found = "".join(path.read_text()[:6000] for path in tmp_path.glob("found.*"))
    is_clean = "ERROR" not in found and "runtime error" not in found
    assert run.returncode == 0 and is_clean, f"{run.stdout[-3000:]}\n{run.stderr[-3000:]}\n{found}"

"""The C ABI under the sanitizers: many callers at once, against one caller with one thread (csrc/tests/stress.cpp)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[1] / "csrc"
TIMEOUT_S = 600

PROBE = "#include <thread>\nint main() { std::thread([] {}).join(); return 0; }\n"

# CALLERS TEAM ROUNDS. The thread sanitizer cannot see into the OpenMP library, so there a call has one thread and the
# concurrency comes from the callers.
LOADS = {"address,undefined": ("3", "2", "1"), "thread": ("3", "1", "1")}


def cmake() -> str:
    """The cmake of this Python environment, else the one on PATH."""
    beside = Path(sys.executable).with_name("cmake")
    found = str(beside) if beside.exists() else shutil.which("cmake")
    assert found is not None, "cmake is part of the test environment: pip install cmake"
    return found


def require_runtime(sanitizer: str, directory: Path) -> None:
    """Skip unless a program built with the sanitizer starts here."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler on PATH")
    source, program = directory / "probe.cpp", directory / "probe"
    source.write_text(PROBE)
    build = [compiler, f"-fsanitize={sanitizer}", "-pthread", str(source), "-o", str(program)]
    for command in (build, [str(program)]):
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        if run.returncode != 0:
            lines = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
            pytest.skip(f"-fsanitize={sanitizer} does not work here: {lines[-1]}")


@pytest.mark.parametrize("sanitizer", LOADS)
def test_stress_is_clean_and_independent_of_callers_and_threads(sanitizer, tmp_path):
    require_runtime(sanitizer, tmp_path)
    build = tmp_path / "build"
    options = ["-DFS_TESTS=ON", "-DFS_CUDA=OFF", f"-DFS_SANITIZE={sanitizer}"]
    for command in (
        [cmake(), "-S", str(CSRC), "-B", str(build), *options],
        [cmake(), "--build", str(build), "--parallel", str(os.cpu_count() or 1)],
        [str(build / "fastsample_stress"), *LOADS[sanitizer]],
    ):
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout[-2000:]}\n{run.stderr[-6000:]}"
    assert "every result as with one thread" in run.stdout
    assert "runtime error" not in run.stderr, run.stderr[-6000:]  # the undefined-behaviour sanitizer goes on after one

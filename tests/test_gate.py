"""The gate: what `make test` leaves to `make test-all`, no verdict by a clock, a run in the background of a shell."""

import ast
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grids import grid
from tests.waiting import ENOUGH_S

ROOT = Path(__file__).resolve().parents[1]
CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}
CTRL_C = "tests/train/test_stop.py::test_a_second_signal_after_a_while_ends_it_at_once"


def speeds_claimed(source: str) -> Iterator[int]:
    """Lines that assert `time.monotonic() - begin < limit`, or the same with another clock."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assert):
            continue
        for part in ast.walk(node.test):
            if isinstance(part, ast.Compare) and any(map(is_elapsed_below, [part.left, *part.comparators], part.ops)):
                yield node.lineno


def is_elapsed_below(value: ast.expr, operator: ast.cmpop) -> bool:
    """Whether a difference of times is on the left of < or <=."""
    if not (isinstance(operator, ast.Lt | ast.LtE) and isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub)):
        return False
    calls = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in CLOCKS for call in calls)


def test_a_claim_of_speed_is_found():
    assert [*speeds_claimed("a = 1\nassert time.monotonic() - begin < 10")] == [2]
    assert [*speeds_claimed("assert 0.2 <= time.perf_counter() - begin < 10")] == [1]
    waits = "assert time.monotonic() - begin >= 1\nassert lap <= time.perf_counter() - begin\nassert time.time() < end"
    assert [*speeds_claimed(waits)] == []


def test_no_test_claims_a_speed():
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 100
    found = [f"{file.relative_to(ROOT)}:{line}" for file in files for line in speeds_claimed(file.read_text())]
    assert not found, f"{found}: a loaded machine fails these; wait for what must happen instead (tests/waiting.py)"


def test_ctrl_c_reaches_tests_that_a_shell_started_in_the_background():
    """There SIGINT is ignored from the start, and what a process ignores its children ignore."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CTRL_C]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=ENOUGH_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_a_grid_marks_all_but_its_representatives():
    one, two, three = grid([1, 2, 3], gate=[2])
    assert two == 2
    assert [(param.values, [mark.name for mark in param.marks]) for param in (one, three)] == [
        ((1,), ["grid"]),
        ((3,), ["grid"]),
    ]


@pytest.mark.parametrize("gate", [[], [4], [1, 4]])
def test_representatives_that_are_none_are_refused(gate):
    with pytest.raises(ValueError, match="gate has"):
        grid([1, 2, 3], gate=gate)


@pytest.mark.parametrize(("target", "leaves_out"), [("test", True), ("test-all", False)])
def test_make_test_leaves_the_grids_out_and_test_all_nothing(target, leaves_out):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "-n", "--no-print-directory", "-C", str(ROOT), target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENOUGH_S, env=own, check=True)
    (line,) = [line for line in done.stdout.splitlines() if " -m pytest" in line and "--collect-only" not in line]
    assert ('-m "not grid"' in line) == leaves_out

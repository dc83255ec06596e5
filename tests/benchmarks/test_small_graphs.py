"""Benchmarks of one process measure graphs that have fewer batches than they take of a large one."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("script", ["compute_step", "first_layer"])
def test_a_graph_of_one_or_two_batches_is_measured(script):
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), "--scale", "10", "--steps", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "RMAT 10/16, 3 steps" in done.stdout, done.stderr

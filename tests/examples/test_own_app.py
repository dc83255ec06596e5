"""own_app.py runs as it stands, and its application passes check_app."""

from pathlib import Path

import pytest

from examples.own_app import WalkWithRestart
from fastsample_dist.testing import check_app, conformance_graph
from tests.forked import run_python

pytest.importorskip("numba", reason="applications of one's own are compiled by Numba")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.grid
def test_the_application_passes_the_suite():
    report = check_app(WalkWithRestart(length=5), conformance_graph(), law_samples=1500)
    assert report.forms == ("numba",)
    assert report.num_law_picks == 7500
    assert report.num_statistics > 50


def test_the_example_runs():
    run = run_python(ROOT / "examples/own_app.py")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("most often") == 3

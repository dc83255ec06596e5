"""billion_edges.py at a tiny size: every phase runs, what is finished is not repeated, refusals are one line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "billion_edges.py"
SHAPE = ("--edges", "3e4", "--nodes", "2000", "--memory", "2GB", "--parts", "2", "--steps", "120", "--batch-size", "4")
TIMEOUT_S = 400  # for machines that are busy


def command(work: Path, *options: object) -> list[str]:
    return [sys.executable, str(SCRIPT), "--work", str(work), *SHAPE, "--threads", "2", *map(str, options)]


def run(work: Path, *options: object) -> subprocess.CompletedProcess:
    return subprocess.run(command(work, *options), capture_output=True, text=True, timeout=TIMEOUT_S)


def phases(work: Path) -> dict[str, dict]:
    return json.loads((work / "phases.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    work = tmp_path_factory.mktemp("billion")
    return work, run(work, "--methods", "random")


@pytest.mark.grid
def test_every_phase_runs(whole):
    work, ended = whole
    assert ended.returncode == 0, ended.stderr
    found = phases(work)
    assert list(found) == ["generate", "planted-cut", "cut-random", "check", "train", "resume"]
    assert all(phase["seconds"] > 0 and phase["peak_bytes"] > 1e7 for phase in found.values())
    assert found["cut-random"]["predicted_bytes"] > 0.8 * found["cut-random"]["peak_bytes"]
    resumed = found["resume"]["figures"]
    assert 60 <= resumed["resumed_at"] < 120 and resumed["steps"] == 120
    assert "| cut-random |" in ended.stdout and "| random | 5" in ended.stdout


@pytest.mark.grid
def test_the_planted_cut_is_that_of_the_edges(whole):
    work, _ = whole
    edges, of = (np.load(work / "graph" / f"{name}.npy") for name in ("edge_index", "planted"))
    parts = np.load(work / "graph" / "planted.npy") * 0
    sizes, held = np.bincount(of), [0, 0]
    for community in np.argsort(-sizes, kind="stable"):  # the longest first, to the part with more room
        nodes = np.flatnonzero(of == community)
        part = int(held[1] < held[0])
        fits = min(len(nodes), 1000 - held[part])
        parts[nodes] = np.repeat([part, 1 - part], [fits, len(nodes) - fits])
        held[part] += fits
        held[1 - part] += len(nodes) - fits
    assert phases(work)["planted-cut"]["figures"]["cut"] == (parts[edges[0]] != parts[edges[1]]).mean()


@pytest.mark.grid
def test_what_is_finished_is_not_repeated(whole):
    work, _ = whole
    before = phases(work)
    ended = run(work, "--methods", "random")
    assert ended.returncode == 0 and ended.stdout.count("finished before") == 6 and phases(work) == before


def test_a_size_that_cannot_be_is_refused_in_one_line(tmp_path):
    ended = run(tmp_path / "work", "--steps", "400")
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "400 steps of 2 x 4 train nodes need 3200 of them but the graph has 2000 nodes; pass fewer" in ended.stderr


@pytest.mark.grid
def test_a_disk_that_is_too_small_is_refused_in_one_line(tmp_path):
    ended = run(tmp_path / "work", "--disk", "1kB")
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "free but the graph and its parts take " in ended.stderr


@pytest.mark.grid
def test_the_first_method_that_works_is_trained_on(tmp_path):
    """The first one needs a file."""
    ended = run(tmp_path, "--methods", "file,random", "--json", tmp_path / "report.json")
    assert ended.returncode == 0 and list(phases(tmp_path))[-1] == "resume"
    assert (
        "method file and an assignment go together" in json.loads((tmp_path / "report.json").read_text())["refused"][0]
    )


@pytest.mark.grid
def test_a_kill_in_a_phase_is_resumed_by_the_same_command(tmp_path):
    for awaited in ("generate: running", "cut-random: running", "train: running", "resume: running"):
        process = subprocess.Popen(
            command(tmp_path, "--methods", "random"), stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        with process:
            assert any(awaited in line for line in process.stdout)
            process.send_signal(signal.SIGKILL)
    assert run(tmp_path, "--methods", "random").returncode == 0
    assert list(phases(tmp_path))[-1] == "resume"


@pytest.mark.grid
def test_what_training_exchanges_is_what_was_said(tmp_path):
    ended = run(tmp_path, "--methods", "ldg,random:seed=1", "--compare")
    assert ended.returncode == 0, ended.stderr
    found = phases(tmp_path)
    for method in ("ldg", "random:seed=1"):
        said, seen, counted = (found[f"{kind}-{method}"]["figures"] for kind in ("plan", "inspect", "worth"))
        assert seen["remote_rows"] == pytest.approx(said["remote_rows"], rel=0.1)
        assert counted["remote_rows"] == pytest.approx(said["remote_rows"], rel=0.15)
        assert counted["feature_bytes"] == pytest.approx(said["feature_bytes"], rel=0.15)
    assert not (tmp_path / "parts-random-seed=1").exists() and (tmp_path / "parts-ldg").is_dir()

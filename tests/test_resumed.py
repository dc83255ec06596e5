"""Runs of tests that are cut into pieces (tests/resumed.py)."""

import os
import subprocess
import sys

import pytest

from tests import resumed

THREE = """
def test_one(): pass
def test_two(): assert {second}
def test_three(): pass
"""


@pytest.fixture
def run(tmp_path):
    """Runs three tests with some words; returns (exit status, output)."""

    def pieces(*words, second="True"):
        (tmp_path / "test_three.py").write_text(THREE.format(second=second))
        command = [sys.executable, "-m", "pytest", "-p", "tests.resumed", "-p", "no:cacheprovider", "-c", os.devnull]
        done = subprocess.run(
            [*command, "--rootdir", tmp_path, tmp_path, "--passed-file", tmp_path / "build" / "passed", *words],
            cwd=resumed.ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    return pieces


def test_a_run_out_of_time_is_resumed_until_everything_has_passed(run):
    status, text = run("--seconds", "0")
    assert status == 2 and "0 s are over; run the same command again to resume" in text and "1 passed" in text
    status, text = run()
    assert status == 0 and "2 passed, 1 deselected" in text
    status, text = run()
    assert status == 0 and "3 deselected" in text


def test_what_has_failed_runs_again(run):
    assert run(second="False")[0] == 1
    status, text = run()
    assert status == 0 and "1 passed, 2 deselected" in text


def test_with_other_sources_it_begins_anew(run, tmp_path):
    assert run()[0] == 0
    file = tmp_path / "build" / "passed"
    file.write_text(file.read_text().replace("sources ", "sources 0"))
    assert "3 passed" in run()[1]


def test_the_digest_depends_on_names_and_contents(tmp_path):
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "a.cu").write_text("1")
    first = resumed.digest_of_sources(tmp_path)
    (folder / "a.cu").rename(folder / "b.cu")
    second = resumed.digest_of_sources(tmp_path)
    (folder / "b.cu").write_text("2")
    assert len({first, second, resumed.digest_of_sources(tmp_path)}) == 3

"""Files that reading an input makes: what the disk refuses names its file, and nothing stays under that name."""

import os
import subprocess
import sys

import pytest

from fastsample_dist.graph.inputs.scratch import Scratch
from tests.small_disk import small_files


def write_much(path):
    with path.open("wb") as file:
        file.write(bytes(1000))


def test_a_file_that_does_not_fit_is_named_and_does_not_stay(tmp_path):
    source = tmp_path / "edges.csv"
    source.write_text("0,1\n")
    with Scratch(tmp_path / "work") as scratch:
        with small_files(100), pytest.raises(OSError) as raised:
            scratch.made("edges.npy", [source], write_much)
        assert raised.value.filename == str(tmp_path / "work" / "edges.npy")
        assert list((tmp_path / "work").iterdir()) == []
        assert scratch.made("edges.npy", [source], write_much).stat().st_size == 1000


READ = """
import os
from fastsample_dist.graph.inputs.scratch import Scratch
file = Scratch().made("edges.npy", [], lambda path: path.write_bytes(bytes(9)))
child = os.fork()
if child == 0:
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0 and file.stat().st_size == 9
"""


def test_a_temporary_one_that_nobody_closes_goes_with_the_program(tmp_path):
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", READ], env=environ, check=True)
    assert list(tmp_path.iterdir()) == []

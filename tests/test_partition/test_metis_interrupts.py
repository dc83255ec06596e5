"""Ctrl-C and SIGTERM in the middle of METIS: the process ends before METIS would, as after a signal anywhere else."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastsample_dist.partition
from fastsample_dist.graph.generators import rmat, write_npy_graph
from fastsample_dist.partition.methods import libmetis
from tests.waiting import ENOUGH_S

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")

REPOSITORY = Path(fastsample_dist.partition.__file__).parents[2]
NUM_PARTS = 256  # METIS works for several seconds
# Before code that cuts: every text is taken for a long one; "cutting" says that METIS works and that its handler of
# SIGTERM was replaced, "cut" that it is done.
WATCHED = """
import sys, threading, time
from fastsample_dist.graph.inputs import edgelist
from fastsample_dist.partition.methods import interrupts, libmetis

edgelist.SMALL_BYTES = 0
original = libmetis.call_beside

def say(handler):
    while interrupts._installed_handler() != handler:
        time.sleep(0.01)
    print("cutting", flush=True)

def watched(function):
    handler = interrupts._installed_handler()
    def work():
        threading.Timer(0.5, say, (handler,)).start()
        status = function()
        print("cut", flush=True)
        return status
    return original(work)

libmetis.call_beside = watched
"""
COMMAND = "from fastsample_dist.partition import cli\nsys.exit(cli.main(sys.argv[1:]))"
LIBRARY = """
import fastsample_dist as fsd
from fastsample_dist.graph.generators import rmat
try:
    fsd.partition_graph(rmat(17, 16, seed=1), output=sys.argv[1], num_parts=int(sys.argv[2]))
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
    raise SystemExit(3)
"""


@pytest.fixture(scope="module", autouse=True)
def needs_libmetis():
    if sys.platform != "linux":
        pytest.skip("cmeel-metis has no wheel for this system")
    assert libmetis.load() is not None, "cmeel-metis is part of the test environment: pip install cmeel-metis"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, tuple[str, ...]]:
    """One graph as text and as npy: the arguments that name it."""
    directory = tmp_path_factory.mktemp("inputs")
    graph = rmat(17, 16, seed=1, symmetrize=False)
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr.numpy()))
    text = directory / "edges.csv"
    csv.write_csv(pa.table({"src": graph.indices.numpy(), "dst": dst}), text, csv.WriteOptions(include_header=False))
    write_npy_graph(directory / "npy", graph, name="rmat", undirected=True)
    return {
        "text": ("--input", str(text), "--format", "edgelist", "--undirected"),
        "npy": ("--input", str(directory / "npy")),
    }


def end_during_metis(number: signal.Signals, code: str, *argv: str) -> tuple[int, str, str]:
    """(exit status, standard output from "cutting" on, standard error); a "cut" there says that it waited for METIS."""
    command = [sys.executable, "-c", WATCHED + code, *argv]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            for line in process.stdout:
                if line == "cutting\n":
                    break
            process.send_signal(number)
            out, err = process.communicate(timeout=ENOUGH_S)
        finally:
            process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("text", signal.SIGINT),
        pytest.param("npy", signal.SIGTERM, marks=pytest.mark.grid),
        pytest.param("text", signal.SIGTERM, marks=pytest.mark.grid),
        pytest.param("npy", signal.SIGINT, marks=pytest.mark.grid),
    ],
)
def test_the_command_ends_with_one_line_and_leaves_nothing(inputs, tmp_path, kind, number):
    argv = (*inputs[kind], "--num-parts", str(NUM_PARTS), "--output", str(tmp_path / "parts"))
    ended = end_during_metis(number, COMMAND, *argv)
    assert ended == (130, "", "fastsample-partition: interrupted; no partial output is left.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.grid
def test_the_library_raises_keyboard_interrupt(tmp_path):
    ended = end_during_metis(signal.SIGINT, LIBRARY, str(tmp_path / "parts"), str(NUM_PARTS))
    assert ended == (3, "KeyboardInterrupt\n", "")
    assert list(tmp_path.iterdir()) == []


def test_sigterm_ends_a_program_that_does_not_handle_it(tmp_path):
    status, out, _ = end_during_metis(signal.SIGTERM, LIBRARY, str(tmp_path / "parts"), str(NUM_PARTS))
    assert (status, out) == (-signal.SIGTERM, "")

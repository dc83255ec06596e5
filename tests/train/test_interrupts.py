"""Ctrl-C while training runs: one line of each rank, status 130."""

import pytest

from fastsample_dist.testing import mpi_missing_reason
from tests.grids import grid
from tests.interrupted import ROOT, interrupt
from tests.train.task import make_task

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SCRIPT = ROOT / "examples" / "train_sage.py"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return {parts: make_task(tmp_path_factory.mktemp("parts"), parts, dtype="float32").path for parts in (1, 2)}


def options(path):
    return ("--data", path, "--epochs", 100000, "--batch-size", 20, "--hidden", 8, "--threads", 1, "--timeout-s", 60)


@pytest.mark.parametrize("more", grid([(), ("--prefetch", 2)], gate=[("--prefetch", 2)]))
def test_one_process_says_one_line(task, more):
    ended = interrupt([SCRIPT, *options(task[1]), *more], "epoch 2/")
    assert (ended.status, ended.err) == (130, ["fastsample-train: interrupted."])


@pytest.mark.grid  # test_a_script_of_ones_own_says_one_line[2] and the launcher's torchrun represent it
def test_each_rank_under_torchrun_says_one_line(task):
    ended = interrupt([*TORCHRUN, SCRIPT, *options(task[2]), "--prefetch", 2], "epoch 2/")
    own = [line for line in ended.err if "interrupted" in line]
    assert sorted(own) == [f"fastsample-train: rank {rank} was interrupted." for rank in (0, 1)]
    assert not [line for line in ended.err if "[rank" in line or str(ROOT / "fastsample_dist") in line]
    assert ended.status != 0


@pytest.mark.parametrize("way", grid(["torchrun", "mpirun"], gate=["torchrun"]))
def test_the_launcher_says_one_line(task, way):
    if way == "mpirun" and mpi_missing_reason() is not None:
        pytest.skip(f"no MPI here: {mpi_missing_reason()}")
    mpi = ("--mpi",) if way == "mpirun" else ()
    command = ["-m", "fastsample_dist.launch", "--nproc", 2, *mpi, "--", SCRIPT, *options(task[2])]
    ended = interrupt(command, "epoch 2/")
    assert ended.status == 130
    assert ended.err == ["fastsample-launch: interrupted; ending all ranks (once more kills them)"]


OWN_SCRIPT = """
import time
import torch
from fastsample_dist import DistContext

with DistContext.from_env() as ctx:
    ctx.comm.barrier()
    if ctx.rank == 0:
        print("running", flush=True)
    while True:
        ctx.comm.all_reduce(torch.ones(3), purpose="mine")
        time.sleep(0.01)
"""


@pytest.mark.parametrize("ranks", grid([1, 2], gate=[2]))
def test_a_script_of_ones_own_says_one_line(tmp_path, ranks):
    script = tmp_path / "own.py"
    script.write_text(OWN_SCRIPT)
    ended = interrupt([script] if ranks == 1 else [*TORCHRUN, script], "running")
    said = sorted(line.split("]: ")[-1] for line in ended.err if "was interrupted." in line)
    assert said == [f"rank {rank} was interrupted." for rank in range(ranks)]
    assert not [line for line in ended.err if str(script) in line]
    if ranks == 1:
        assert (ended.status, len(ended.err)) == (-2, 1)


DROPPING_SCRIPT = """
import time
from fastsample_dist import DistContext

class Dropping:
    def __del__(self):
        print("running", flush=True)
        time.sleep(0.2)

with DistContext.from_env():
    while True:
        Dropping()
        time.sleep(0.01)
"""


def test_an_interrupt_that_python_drops_ends_a_script_of_ones_own(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(DROPPING_SCRIPT)
    ended = interrupt([script], "running")
    assert (ended.status, ended.err) == (-2, ["rank 0 was interrupted."])


def test_a_rank_that_waits_for_the_others_to_join_says_one_line(tmp_path):
    script = tmp_path / "own.py"
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    script.write_text(
        "import fastsample_dist.comm.context as context\n"
        "meet = context.meet\n"
        "def said(*arguments):\n    print('joining', flush=True)\n    return meet(*arguments)\n"
        f"context.meet = said\n{OWN_SCRIPT}"
    )
    ended = interrupt([script], "joining", **place, MASTER_ADDR="127.0.0.1", MASTER_PORT="29")
    assert (ended.status, ended.err) == (-2, ["rank 1 was interrupted."])


def test_own_code_still_catches_it(tmp_path):
    script = tmp_path / "own.py"
    body = "".join(f"    {line}\n" for line in OWN_SCRIPT.splitlines())
    script.write_text(f"try:\n{body}except KeyboardInterrupt:\n    print('saved')\nraise ValueError('mine')\n")
    ended = interrupt([script], "running")
    assert "saved\n" in ended.out and ended.status == 1
    assert ended.err[-1] == "ValueError: mine" and ended.err[0].startswith("Traceback")

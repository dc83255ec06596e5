"""The scripts for Slurm and mpirun as a user runs them; Slurm itself is played by a small program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastsample_dist.comm.environment import LAUNCHER_VARIABLES
from fastsample_dist.launch.hosts import read_hosts
from fastsample_dist.testing import mpi_missing_reason
from tests.test_launch.programs import ROOT, write_program
from tests.train.task import make_task
from tests.waiting import ENOUGH_S

SLURM = "examples/slurm/train_sage.sbatch"
MPIRUN = "examples/mpirun/train_sage.sh"
SMALL = ("--epochs", "1", "--batch-size", "40", "--hidden", "16", "--threads", "1", "--eval-every", "0")
AS_ROOT = [f"{name}_ALLOW_RUN_AS_ROOT{end}" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")]

# Two tasks of one step on this machine, as far as the environment shows.
SRUN = """
import os, subprocess, sys
command = sys.argv[1:]
while command[0].startswith("-"):
    command = command[1:]
step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}
tasks = [subprocess.Popen(command, env={**os.environ, **step, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)})
         for i in range(2)]
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return str(make_task(tmp_path_factory.mktemp("parts"), 2, dtype="float32").path)


def run(script, *words, env):
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    environ |= {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), **env}
    command = ["bash", script, *words]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=ENOUGH_S, check=False)


def assert_two_ranks_trained(finished, file):
    assert finished.returncode == 0, finished.stderr
    assert json.loads(file.read_text())["world_size"] == 2
    assert finished.stdout.count("epoch 1/1  loss") == 1


def test_slurm_script_trains_on_every_task(parts, tmp_path):
    write_program(tmp_path / "bin", "srun", SRUN)
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": str(os.getpid())}
    finished = run(SLURM, parts, *SMALL, "--json", str(tmp_path / "out.json"), env=env)
    assert_two_ranks_trained(finished, tmp_path / "out.json")


@pytest.mark.skipif(mpi_missing_reason() is not None, reason=str(mpi_missing_reason()))
@pytest.mark.grid
def test_mpirun_script_trains_on_every_slot_of_the_hostfile(parts, tmp_path):
    beside = Path(sys.executable).with_name("mpirun")
    env = {**dict.fromkeys(AS_ROOT, "1"), "MPIRUN": str(beside) if beside.exists() else "mpirun"}
    finished = run(MPIRUN, parts, *SMALL, "--json", str(tmp_path / "out.json"), env=env)
    assert_two_ranks_trained(finished, tmp_path / "out.json")


@pytest.mark.parametrize("script", [SLURM, MPIRUN])
def test_without_parts_the_usage_is_printed(script):
    finished = run(script, env={})
    assert finished.returncode == 2 and finished.stderr.startswith("usage: ") and finished.stdout == ""


def test_the_hostfile_is_one_for_fastsample_launch_too():
    assert [(host.target, host.slots) for host in read_hosts(ROOT / "examples/mpirun/hosts")] == [("localhost", 2)]

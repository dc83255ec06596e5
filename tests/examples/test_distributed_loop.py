"""distributed_loop.py as it stands: short, the same on one rank and two, under torchrun and mpirun, and it learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastsample_dist.testing import mpi_missing_reason
from tests.forked import run_forked
from tests.grids import grid
from tests.train.task import FEATURE_DIM, NUM_CLASSES, make_targets, make_task
from tests.waiting import ENOUGH_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "distributed_loop.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
MPIRUN = (str(Path(sys.executable).with_name("mpirun")), "--allow-run-as-root", "--oversubscribe", "-n")
FORKED = ()
EPOCHS = 12
TOLERANCE = 1e-4  # of float32 sums in another order, grown over the epochs; printed with six digits


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(losses, test accuracy, model) of so many ranks, each launch made once."""

    def launched(launcher, num_ranks):
        if (launcher, num_ranks) not in made:
            folder = tmp_path_factory.mktemp("run")
            parts, file = make_task(folder, num_ranks, dtype="float32").path, folder / "model.pt"
            python = () if launcher == TORCHRUN else (sys.executable,)
            options = (parts, "--epochs", EPOCHS, "--save", file)  # an epoch is one step: all seeds of all ranks
            paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
            environ = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
            if launcher == FORKED:
                finished = run_forked(num_ranks, SCRIPT, options, **environ)
            else:
                finished = subprocess.run(
                    [*launcher, str(num_ranks), *python, str(SCRIPT), *map(str, options)],
                    env={**os.environ, **environ}, capture_output=True, text=True, timeout=ENOUGH_S, check=False,
                )  # fmt: skip
            assert finished.returncode == 0, finished.stderr
            losses = [float(loss) for loss in re.findall(r"^epoch \d+  loss (.+)$", finished.stdout, re.MULTILINE)]
            (accuracy,) = re.findall(r"^test accuracy (.+)$", finished.stdout, re.MULTILINE)
            made[launcher, num_ranks] = losses, float(accuracy), torch.load(file, weights_only=True)
        return made[launcher, num_ranks]

    made = {}
    return launched


def test_the_loop_fits_on_a_page():
    assert len(SCRIPT.read_text().splitlines()) <= 60


@pytest.mark.parametrize("launcher", grid([FORKED, TORCHRUN], gate=[FORKED]))
def test_two_ranks_learn_what_one_does(run, launcher):
    losses, accuracy, model = run(FORKED, 1)
    losses_of_two, accuracy_of_two, model_of_two = run(launcher, 2)
    assert len(losses) == EPOCHS and losses_of_two == pytest.approx(losses, rel=TOLERANCE)
    assert accuracy_of_two == pytest.approx(accuracy, abs=0.05)  # a node on the border may fall to either side
    for name, tensor in model.items():
        torch.testing.assert_close(model_of_two[name], tensor, rtol=0, atol=1e-2, msg=name)


def test_it_learns(run):
    losses, accuracy, _ = run(FORKED, 2)
    assert losses[-1] < 0.7 * losses[0] and accuracy > 2 / NUM_CLASSES


def test_the_saved_model_is_a_state_dict(run):
    _, _, model = run(FORKED, 2)
    assert model["layers.0.linear.weight"].shape == (64, 2 * FEATURE_DIM)


def test_labels_that_are_no_classes_are_one_line(tmp_path):
    parts = make_targets(tmp_path, 1, "multilabel")
    refused = run_forked(1, SCRIPT, [parts])
    assert refused.returncode == 1 and refused.stdout == ""
    assert refused.stderr == f"error: {parts} lacks features, or labels that are classes; expected both.\n"


@pytest.mark.skipif(mpi_missing_reason() is not None, reason=f"no MPI here: {mpi_missing_reason()}")
@pytest.mark.grid
def test_mpirun_gives_the_losses_of_torchrun(run):
    assert run(MPIRUN, 2)[0] == pytest.approx(run(TORCHRUN, 2)[0], rel=TOLERANCE)

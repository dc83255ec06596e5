"""train_node2vec.py as it stands, small: it learns, ranks change nothing, the file is by original id."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.train.task import NUM_CLASSES, make_task
from tests.waiting import ENOUGH_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_node2vec.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
OPTIONS = ("--epochs", "3", "--dim", "16", "--walk-length", "8", "--batch-size", "100", "--lr", "0.05")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(lines, embeddings) of so many ranks on the same two parts, each launch made once."""
    folder = tmp_path_factory.mktemp("node2vec")
    parts = make_task(folder, 2, num_nodes=400, dtype="float32").path

    @functools.cache
    def launched(num_ranks):
        file = folder / f"embeddings-{num_ranks}.npy"
        paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        finished = subprocess.run(
            [
                *TORCHRUN, str(num_ranks), str(SCRIPT), str(parts), *OPTIONS, "--save", str(file),
                "--checkpoint", str(folder / f"checkpoints-{num_ranks}"),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=ENOUGH_S, check=False,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        return finished.stdout, np.load(file)

    return launched


def test_it_learns_and_is_shown_beside_the_features(run):
    text, _ = run(2)
    losses = [float(loss) for loss in re.findall(r"^epoch \d+  loss (\S+)", text, re.MULTILINE)]
    accuracies = dict(re.findall(r"^(\w+): val accuracy \S+, test accuracy (\S+)$", text, re.MULTILINE))
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert set(accuracies) == {"embeddings", "features", "both"}
    assert float(accuracies["embeddings"]) > 2 / NUM_CLASSES


def test_one_rank_gives_the_file_of_two(run):
    (_, one), (_, two) = run(1), run(2)
    assert one.shape == (400, 16) and one.dtype == np.float32
    assert np.array_equal(one, two)

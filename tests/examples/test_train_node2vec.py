"""train_node2vec.py as it stands, small: it learns, ranks change nothing, the file is by original id."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest

from tests.forked import run_forked
from tests.train.task import NUM_CLASSES, make_targets, make_task

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_node2vec.py"
OPTIONS = ("--epochs", "3", "--dim", "16", "--walk-length", "8", "--batch-size", "100", "--lr", "0.05")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """The partition, beside which the runs' files are."""
    return make_task(tmp_path_factory.mktemp("node2vec"), 2, num_nodes=400, dtype="float32").path


@pytest.fixture(scope="module")
def run(task):
    """(lines, embeddings) of so many ranks on the same two parts, each launch made once."""

    @functools.cache
    def launched(num_ranks):
        file = task.parent / f"embeddings-{num_ranks}.npy"
        folder = task.parent / f"checkpoints-{num_ranks}"
        options = [task, *OPTIONS, "--save", file, "--checkpoint", folder]
        finished = run_forked(num_ranks, SCRIPT, options)
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


@pytest.mark.grid
def test_one_rank_gives_the_file_of_two(run):
    (_, one), (_, two) = run(1), run(2)
    assert one.shape == (400, 16) and one.dtype == np.float32
    assert np.array_equal(one, two)


def test_a_checkpoint_of_other_walks_is_refused_in_one_line(run, task):
    run(1)
    folder = task.parent / "checkpoints-1"
    refused = run_forked(1, SCRIPT, [task, *OPTIONS, "--p", "2", "--checkpoint", folder])
    assert refused.returncode == 1 and refused.stdout == ""
    assert re.fullmatch(
        rf"error: {folder}/step-\d+\.ckpt was made with Node2Vec\.p 1\.0 but this run has Node2Vec\.p 2\.0; pass the "
        r"same, or start in another checkpoint directory\.\n",
        refused.stderr,
    )


def test_a_file_that_cannot_be_written_is_refused_before_the_work(task):
    refused = run_forked(1, SCRIPT, [task, *OPTIONS, "--save", task.parent / "no" / "file.npy"])
    assert refused.returncode == 1 and refused.stdout == ""
    expected = f"error: --save {task.parent}/no/file.npy cannot be written (No such file or directory); pass another"
    assert refused.stderr.startswith(expected) and refused.stderr.count("\n") == 1


def test_without_classes_there_are_embeddings_and_no_classifier(tmp_path):
    parts, file = make_targets(tmp_path, 1, "multilabel"), tmp_path / "embeddings.npy"
    finished = run_forked(1, SCRIPT, [parts, *OPTIONS, "--save", file])
    assert finished.returncode == 0, finished.stderr
    assert np.load(file).shape == (120, 16)
    assert finished.stdout.splitlines()[-1] == f"no classifier: {parts} has labels for multilabel, not classes"

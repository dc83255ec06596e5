"""train_sage.py interrupted and resumed as a user does it: Ctrl-C, killed ranks under --max-restarts, a full disk."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fastsample_dist.testing import mpi_missing_reason
from fastsample_dist.train.checkpoint_files import CheckpointFiles
from tests.forked import run_forked
from tests.grids import grid
from tests.train.task import make_task
from tests.waiting import ENOUGH_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_sage.py"
WATCHED = ROOT / "tests" / "examples" / "watched_training.py"
EPOCHS, STEPS = 10, 6  # an epoch; 600 train seeds
OPTIONS = ("--epochs", str(EPOCHS), "--hidden", "16", "--lr", "0.02", "--threads", "1", "--timeout-s", "200")
RANKS = {"alone": 1, "torchrun": 2, "mpirun": 2}
MPIRUN = (str(Path(sys.executable).with_name("mpirun")), "--allow-run-as-root", "--oversubscribe", "-n")
needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=f"no MPI here: {mpi_missing_reason()}")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """The same graph in 1 and in 2 parts."""
    paths = {parts: tmp_path_factory.mktemp(f"parts{parts}") for parts in (1, 2)}
    return {parts: make_task(path, parts, num_nodes=1000, dtype="float32") for parts, path in paths.items()}


def command(launcher, task, directory, *options, elastic=()):
    """A run of 2 ranks, or of one process when `launcher` is "alone"."""
    ranks = RANKS[launcher]
    start = {
        "alone": [sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *elastic],
        "mpirun": [*MPIRUN, "2", sys.executable],
    }[launcher]
    data = ("--data", str(task[ranks].path), "--batch-size", str(600 // STEPS // ranks))
    return [*start, str(WATCHED), *data, *OPTIONS, "--checkpoint-dir", str(directory), *options]


def environ(watch_dir, **extra):
    watch_dir.mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "WATCH_DIR": str(watch_dir), **extra}


def run(line, watch_dir, *, preexec_fn=None, **extra):
    return subprocess.run(
        line, env=environ(watch_dir, **extra), capture_output=True, text=True, timeout=ENOUGH_S, check=False,
        preexec_fn=preexec_fn,
    )  # fmt: skip


def newest(directory):
    return CheckpointFiles(directory, 1).newest()[1]


def witnessed(watch_dir, num_ranks):
    """Per attempt and rank: [(step, epoch, seeds)], as long as the shortest rank's list of the attempt."""
    attempts = []
    while (watch_dir / f"attempt-{len(attempts)}-rank-0.txt").exists():
        files = [watch_dir / f"attempt-{len(attempts)}-rank-{rank}.txt" for rank in range(num_ranks)]
        numbers = [[list(map(int, line.split())) for line in file.read_text().splitlines()] for file in files]
        attempts.append([[(step, epoch, seeds) for step, epoch, *seeds in rank] for rank in numbers])
    return attempts


def surviving_seeds(attempts):
    """{epoch: seeds} of the steps whose effect is in the result: those before the first step of the next attempt."""
    seeds = {}
    for number, attempt in enumerate(attempts):
        end = attempts[number + 1][0][0][0] if number + 1 < len(attempts) else sys.maxsize
        for rank in attempt:
            for step, epoch, found in rank:
                if step < end:
                    seeds.setdefault(epoch, []).extend(found)
    return {epoch: sorted(found) for epoch, found in seeds.items()}


@pytest.fixture(scope="module")
def undisturbed(task, tmp_path_factory):
    """By launcher: the last checkpoint and the JSON results of a run that nothing interrupts."""

    def make(launcher):
        if launcher not in made:
            folder = tmp_path_factory.mktemp(f"undisturbed-{launcher}")
            line = command(launcher, task, folder / "saved", "--json", str(folder / "out.json"))
            if launcher == "torchrun":  # the ranks alone do the same
                own, options = environ(folder / "watch"), line[line.index(str(WATCHED)) + 1 :]
                done = run_forked(2, WATCHED, options, PYTHONPATH=own["PYTHONPATH"], WATCH_DIR=own["WATCH_DIR"])
            else:
                done = run(line, folder / "watch")
            assert done.returncode == 0, done.stderr
            made[launcher] = newest(folder / "saved"), json.loads((folder / "out.json").read_text())
        return made[launcher]

    made = {}
    return make


def assert_same_end(directory, json_file, expected):
    """Parameters and optimizer bit for bit; what is reported of the epochs too."""
    content, results = newest(directory), json.loads(json_file.read_text())
    assert content["state"]["model"].keys() == expected[0]["state"]["model"].keys()
    for name, tensor in expected[0]["state"]["model"].items():
        assert torch.equal(content["state"]["model"][name], tensor), name
    for number, state in expected[0]["state"]["optimizer"]["state"].items():
        for name, tensor in state.items():
            assert torch.equal(content["state"]["optimizer"]["state"][number][name], tensor), (number, name)
    assert (results["val_acc"], results["test_acc"]) == (expected[1]["val_acc"], expected[1]["test_acc"])
    losses = [[epoch["loss"] for epoch in found["epochs"]] for found in (results, expected[1])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def stop_after_some_steps(line, watch_dir, number):
    """Start a slowed run, signal it as a terminal or a scheduler does once it is under way; (output, status)."""
    extra = {"WATCH_PAUSE_S": "0.3"}  # what is left to do lasts long enough for a busy machine to see it
    process = subprocess.Popen(
        line, env=environ(watch_dir, **extra), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        file, deadline_s = watch_dir / "attempt-0-rank-0.txt", time.monotonic() + ENOUGH_S
        while not file.exists() or file.read_text().count("\n") < STEPS + 2:
            assert process.poll() is None and time.monotonic() < deadline_s, process.communicate()[0]
            time.sleep(0.02)
        os.killpg(process.pid, number)
        return process.communicate(timeout=ENOUGH_S)[0], process.returncode
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        pytest.param("alone", signal.SIGINT, marks=pytest.mark.grid),
        pytest.param("alone", signal.SIGTERM, marks=pytest.mark.grid),
        pytest.param("torchrun", signal.SIGINT, marks=pytest.mark.grid),
        pytest.param("mpirun", signal.SIGINT, marks=[needs_mpi, pytest.mark.grid]),
    ],
)
def test_ctrl_c_saves_the_run_and_resume_ends_as_if_it_had_not_come(task, undisturbed, tmp_path, launcher, number):
    saved, watch = tmp_path / "saved", tmp_path / "watch"
    output, status = stop_after_some_steps(command(launcher, task, saved), watch, number)
    assert status == 130 if launcher == "alone" else status != 0, output
    path = max(saved.iterdir())
    assert launcher == "mpirun" or f"stopped; --resume resumes from {path}" in output  # mpirun drops late output
    assert "Traceback" not in output.split("stopped;")[0]
    lasts = [rank[-1][0] for rank in witnessed(watch, RANKS[launcher])[0]]
    assert lasts == [newest(saved)["step"] - 1] * RANKS[launcher]  # all ranks stopped after the step that was saved
    results = tmp_path / "out.json"
    done = run(command(launcher, task, saved, "--resume", "--json", str(results)), watch)
    assert done.returncode == 0, done.stderr
    assert f"resumed from {path}: epoch " in done.stdout and f", {lasts[0] + 1} steps done\n" in done.stdout
    assert_same_end(saved, results, undisturbed(launcher))


@pytest.mark.grid
def test_another_number_of_ranks_sees_each_remaining_seed_once(task, tmp_path):
    """Two ranks under torchrun are stopped in their second epoch; one process continues with both parts."""
    saved, watch, after = tmp_path / "saved", tmp_path / "watch", tmp_path / "after"
    stop_after_some_steps(command("torchrun", task, saved, "--epochs", "3"), watch, signal.SIGINT)
    results = tmp_path / "out.json"
    line = command("alone", {1: task[2]}, saved, "--epochs", "3", "--resume", "--json", str(results))
    done = run(line, after)
    assert done.returncode == 0, done.stderr
    assert "it was written by 2 rank(s), now there are 1" in done.stdout
    resumed = json.loads(results.read_text())["resumed"]
    assert (resumed["step"], resumed["world_size"]) == (len(witnessed(watch, 2)[0][0]), 2)
    train = task[2].node_task.splits["train"].tolist()
    assert surviving_seeds(witnessed(watch, 2) + witnessed(after, 1)) == {epoch: train for epoch in range(3)}


def draw_kills(count, seed):
    """Per attempt, who is killed when: a random moment around the end of a random step after the next checkpoint."""
    rng = random.Random(seed)
    return [
        {"rank": rng.randrange(2), "batches": rng.randint(3, 6), "delay_s": rng.uniform(0, 0.02)} for _ in range(count)
    ]


@pytest.mark.parametrize("kills", grid([1, 2, 10], gate=[1]))
def test_ranks_killed_in_one_run_change_nothing(task, undisturbed, tmp_path, kills):
    saved, watch, results = tmp_path / "saved", tmp_path / "watch", tmp_path / "out.json"
    elastic = (f"--max-restarts={kills + 1}", "--monitor-interval=0.1")
    line = command("torchrun", task, saved, "--checkpoint-every", "2", "--json", str(results), elastic=elastic)
    done = run(line, watch, WATCH_PLAN=json.dumps(draw_kills(kills, 11)))
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = witnessed(watch, 2)
    assert len(attempts) == kills + 1 and done.stderr.count("failed (exitcode: -9)") == kills
    train = task[2].node_task.splits["train"].tolist()
    assert surviving_seeds(attempts) == {epoch: train for epoch in range(EPOCHS)}
    accuracy = json.loads(results.read_text())["test_acc"]
    assert abs(accuracy - undisturbed("torchrun")[1]["test_acc"]) <= 0.005
    assert_same_end(saved, results, undisturbed("torchrun"))


@pytest.mark.grid
def test_a_full_disk_is_a_warning_and_the_earlier_checkpoint_stays(task, tmp_path):
    """A limit on the size of files instead of a disk: the first checkpoint fits, the second has more seeds to come."""
    saved, watch = tmp_path / "saved", tmp_path / "watch"
    done = run(command("alone", task, saved, "--epochs", "1"), watch)
    assert done.returncode == 0, done.stderr
    (path,) = saved.iterdir()
    size_bytes = path.stat().st_size - 1000

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    done = run(command("alone", task, saved, "--epochs", "2", "--resume"), watch, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        f"could not be written (File too large); {path.name} before it is untouched; make room or choose another "
        "directory."
    )
    assert [found.name for found in saved.iterdir()] == [path.name]


def refusal(task, *options):
    done = run_forked(1, SCRIPT, ["--data", task[1].path, "--batch-size", "100", *OPTIONS, *options])
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_refusals_are_one_line_each(task, tmp_path):
    saved = str(tmp_path / "saved")
    assert "--resume needs the --checkpoint-dir to resume from" in refusal(task, "--resume")
    more = ("--checkpoint-dir", saved, "--epochs", "1", "--resume")
    done = run_forked(1, SCRIPT, ["--data", task[1].path, "--batch-size", "100", *OPTIONS, *more])
    assert f"no checkpoint in {saved}: starting from the beginning" in done.stdout
    assert "holds checkpoints already" in refusal(task, "--checkpoint-dir", saved)
    message = refusal(task, "--checkpoint-dir", saved, "--resume", "--hidden", "8")
    assert "was made with hidden 16 but this run has hidden 8; pass the same" in message

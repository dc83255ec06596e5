"""train_sage.py as a user runs it: alone, on ranks, under mpirun, and with input it has to refuse.

Ranks are forked; test_resume.py starts this script by torchrun, tests/train/test_interrupts.py by fastsample-launch.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist import DistContext, DistData
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.testing import mpi_missing_reason
from fastsample_dist.train import load_model
from fastsample_dist.train.cli import parse_arguments
from fastsample_dist.train.inference import layerwise, measure
from fastsample_dist.train.objectives import METRICS
from fastsample_dist.train.session import check_outputs
from tests.forked import run_forked, run_python
from tests.grids import grid
from tests.train.task import make_targets, make_task
from tests.waiting import ENOUGH_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_sage.py"
SMALL = (
    "--epochs", "2", "--batch-size", "40", "--hidden", "16", "--lr", "0.02", "--threads", "1",
    "--transport", "exchange",
)  # fmt: skip
EPOCH_KEYS = {"epoch", "loss", "seconds", "sample_s", "fetch_s", "compute_s"}
KEYS = {"epochs", "val_acc", "test_acc", "world_size", "scheme", "steps", "comm"}
LAUNCHERS = {
    "torchrun": (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
    "mpirun": (str(Path(sys.executable).with_name("mpirun")), "--allow-run-as-root", "--oversubscribe", "-n"),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Directory of a partition by its number of parts."""

    def make(num_parts):
        if num_parts not in made:
            made[num_parts] = make_task(tmp_path_factory.mktemp("parts"), num_parts, dtype="float32").path
        return str(made[num_parts])

    made = {}
    return make


@pytest.fixture(scope="module")
def weighted_parts(tmp_path_factory):
    """Directory of a partition of one part, with edge weights."""
    return make_task(tmp_path_factory.mktemp("weighted"), 1, dtype="float32", weighted=True).path


def run(command, *, timeout_s=ENOUGH_S):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False)


def launch(launcher, num_ranks, *options):
    if launcher == "mpirun":
        if mpi_missing_reason() is not None:
            pytest.skip(f"no MPI here: {mpi_missing_reason()}")
        return run([*LAUNCHERS[launcher], str(num_ranks), sys.executable, str(SCRIPT), *options])
    return run([*LAUNCHERS[launcher], str(num_ranks), str(SCRIPT), *options])


def results_of(finished, file):
    assert finished.returncode == 0, finished.stderr
    results = json.loads(Path(file).read_text())
    assert results.keys() >= KEYS and all(epoch.keys() >= EPOCH_KEYS for epoch in results["epochs"])
    return results


@pytest.fixture(scope="module")
def hybrid_results(parts, tmp_path_factory):
    """(what was printed, the JSON file) of two ranks, hybrid scheme."""
    file = tmp_path_factory.mktemp("hybrid") / "out.json"
    options = ["--data", parts(2), "--scheme", "hybrid", "--exchange", "paired", *SMALL, "--json", file]
    finished = run_forked(2, SCRIPT, options)
    return finished.stdout, results_of(finished, file)


@pytest.fixture(scope="module")
def vanilla_results(parts, tmp_path_factory):
    """The JSON file of two ranks, vanilla scheme."""
    file = tmp_path_factory.mktemp("vanilla") / "out.json"
    options = ["--data", parts(2), "--scheme", "vanilla", *SMALL, "--json", file]
    return results_of(run_forked(2, SCRIPT, options), file)


def load_script():
    """train_sage.py as a module."""
    spec = importlib.util.spec_from_file_location("train_sage", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_evaluation_with_all_neighbours_timeline_and_figures(parts, tmp_path):
    out, trace, lines = tmp_path / "out.json", tmp_path / "trace.json", tmp_path / "epochs.jsonl"
    more = ("--eval", "full", "--trace", str(trace), "--jsonl", str(lines), "--tensorboard", str(tmp_path / "board"))
    more += ("--exchange", "combined")
    finished = run_forked(2, SCRIPT, ["--data", parts(2), *SMALL, *more, "--json", out])
    results = results_of(finished, out)
    assert "(over all ranks; all neighbours)" in finished.stdout
    assert 0.5 < results["test_acc"] <= 1
    assert results["exchange"] == "combined"
    assert exchanges_per_step(results) == (results["steps"] + 2 * len(results["epochs"])) / results["steps"]
    figures = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["loss"] for line in figures] == [epoch["loss"] for epoch in results["epochs"]]
    assert [line["step"] for line in figures] == [results["steps"] // 2, results["steps"]]
    spans = {(event["pid"], event["name"]) for event in json.loads(trace.read_text())["traceEvents"]}
    stages = ("sample", "fetch", "forward", "backward", "optimizer", "evaluate", "all_to_all of feature_rows")
    assert {(rank, stage) for rank in (0, 1) for stage in stages} <= spans
    assert len(list((tmp_path / "board").iterdir())) == 1


def test_tensorboard_is_refused_in_one_line_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("fastsample_dist.train.session.find_spec", lambda name: None)
    config = parse_arguments(["--data", "parts", "--tensorboard", "board"])
    with pytest.raises(
        ValueError, match=r"--tensorboard needs a package; pip install 'fastsample_dist\[tensorboard\]'"
    ):
        check_outputs(config)


def exchanges_per_step(results):
    payload = ("sample_ids", "sample_reply", "feature_ids", "feature_rows")
    return sum(results["comm"].get(purpose, {"calls": 0})["calls"] for purpose in payload) / results["steps"]


def test_alone(parts, tmp_path):
    file = tmp_path / "out.json"
    finished = run_python(SCRIPT, "--data", parts(1), *SMALL, "--json", file)
    results = results_of(finished, file)
    assert (results["world_size"], results["scheme"], results["steps"]) == (1, "hybrid", 6)
    assert f"test accuracy {results['test_acc']:.4f}" in finished.stdout and not finished.stderr
    assert (results["device"], results["device_name"], results["kernel"]) == ("cpu", None, "auto")
    assert [(place["table"], place["where"]) for place in results["places"]] == [
        ("topology", "host"),
        ("features", "host"),
    ]
    assert "device" not in finished.stdout


def test_both_schemes_report_the_same_losses_and_accuracies(hybrid_results, vanilla_results):
    hybrid, vanilla = hybrid_results[1], vanilla_results
    assert (hybrid["scheme"], vanilla["scheme"]) == ("hybrid", "vanilla")
    assert [epoch["loss"] for epoch in hybrid["epochs"]] == [epoch["loss"] for epoch in vanilla["epochs"]]
    assert (hybrid["val_acc"], hybrid["test_acc"]) == (vanilla["val_acc"], vanilla["test_acc"])


def test_payload_exchanges_are_2_and_2l_a_step(hybrid_results, vanilla_results):
    assert exchanges_per_step(hybrid_results[1]) == 2
    assert exchanges_per_step(vanilla_results) == 6
    assert (hybrid_results[1]["exchange"], vanilla_results["exchange"]) == ("paired", "paired")


def test_rank_0_alone_prints_epochs_accuracy_and_the_communication_table(hybrid_results):
    printed, results = hybrid_results
    assert printed.count("epoch 1/2  loss") == printed.count("epoch 2/2  loss") == 1
    assert f"test accuracy {results['test_acc']:.4f}" in printed
    assert all(purpose in printed for purpose in ("feature_rows", "gradients", "payload exchanges per step: 2"))


@pytest.mark.grid  # in the gate test_distributed_loop.py starts ranks with mpirun
def test_mpirun_gives_the_results_of_forked_ranks(parts, tmp_path, hybrid_results):
    file = tmp_path / "out.json"
    finished = launch("mpirun", 2, "--data", parts(2), "--exchange", "paired", *SMALL, "--json", str(file))
    results, expected = results_of(finished, file), hybrid_results[1]
    losses = [[epoch["loss"] for epoch in found["epochs"]] for found in (results, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert results["comm"]["feature_rows"] == expected["comm"]["feature_rows"]
    assert results["comm"]["gradients"]["bytes_sent"] == expected["comm"]["gradients"]["bytes_sent"]


@pytest.mark.parametrize("launcher", grid(["forked", "torchrun"], gate=["forked"]))
def test_parts_that_do_not_fit_the_ranks_are_refused_in_one_line(parts, launcher):
    options = ("--data", parts(3), *SMALL)
    finished = run_forked(2, SCRIPT, options) if launcher == "forked" else launch(launcher, 2, *options)
    lines = {line for line in finished.stderr.splitlines() if line.startswith("error:")}
    expected = f"error: {parts(3)} has 3 parts but world_size is 2; start 3 ranks or partition with --num-parts 2."
    assert finished.returncode != 0 and lines == {expected}
    assert 'train_sage.py", line' not in finished.stderr  # no traceback of the script


def test_fanouts_that_disagree_with_the_layers_are_refused_under_mpirun(parts):
    finished = launch("mpirun", 2, "--data", parts(2), "--layers", "2")
    lines = {line for line in finished.stderr.splitlines() if line.startswith("error:")}
    expected = "error: fanouts has 3 entries but the model has 2 layers; pass one fanout per layer."
    assert lines == {expected}, finished.stderr
    assert finished.returncode != 0 and "Traceback" not in finished.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("launcher", grid(["forked", "torchrun", "mpirun"], gate=["forked"]))
def test_cuda_without_gpus_is_refused_in_one_line(parts, launcher):
    options = ("--data", parts(2), *SMALL, "--device", "cuda")
    finished = run_forked(2, SCRIPT, options) if launcher == "forked" else launch(launcher, 2, *options)
    lines = {line for line in finished.stderr.splitlines() if line.startswith("error:")}
    assert len(lines) == 1 and 'error: device is "cuda" but rank 0 on ' in lines.pop(), finished.stderr
    assert finished.returncode != 0 and 'train_sage.py", line' not in finished.stderr


# ---- one process, inside this one ----


@pytest.fixture
def main():
    """The script's main(); what it sets for its process is set back."""
    module = load_script()
    threads = torch.get_num_threads()

    def call(*options):
        try:
            return module.main([str(option) for option in options])
        except SystemExit as end:
            return end.code

    yield call
    torch.set_num_threads(threads)


@pytest.mark.parametrize("option", ["--json", "--jsonl", "--trace"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(main, option, parts, tmp_path, capsys):
    assert main("--data", parts(1), *SMALL, option, tmp_path / "no" / "file") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"error: {option} {tmp_path}/no/file cannot be written (No such file or directory)" in printed.err


LEARNING = [(model, precision) for precision in ("fp32", "bf16") for model in ("sage", "gcn", "gat")]


@pytest.mark.parametrize(("model", "precision"), grid(LEARNING, gate=LEARNING[::3], several=True))
def test_models_and_precisions_learn(main, parts, tmp_path, model, precision):
    file = tmp_path / "out.json"
    options = ("--model", model, "--precision", precision, "--layers", 2, "--fanouts", "5,5", "--prefetch", 1)
    assert main("--data", parts(1), *SMALL, "--epochs", 12, *options, "--eval-every", 5, "--json", file) == 0
    results = json.loads(file.read_text())
    assert results["test_acc"] > 0.8 and results["epochs"][-1]["loss"] < results["epochs"][0]["loss"]
    assert [epoch["epoch"] for epoch in results["epochs"] if "val_acc" in epoch] == [4, 9, 11]


@pytest.mark.parametrize(
    "options",
    [("--sampler", "weighted"), ("--sampler", "weighted", "--replace"), ("--sampler", "labor"), ("--replace",)],
    ids=" ".join,
)
def test_samplers_learn_and_differ_from_the_uniform_one(main, weighted_parts, tmp_path, options):
    losses = {}
    for name, chosen in (("uniform", ()), ("chosen", options)):
        file = tmp_path / f"{name}.json"
        few = ("--layers", 2, "--fanouts", "3,3", "--epochs", 12, "--eval-every", 12)
        assert main("--data", weighted_parts, *SMALL, *few, *chosen, "--json", file) == 0
        results = json.loads(file.read_text())
        losses[name] = [epoch["loss"] for epoch in results["epochs"]]
        assert results["test_acc"] > 0.8
    assert losses["chosen"] != losses["uniform"]


def test_without_evaluation_there_are_no_accuracies(main, parts, tmp_path):
    file = tmp_path / "out.json"
    assert main("--data", parts(1), *SMALL, "--eval-every", 0, "--json", file) == 0
    results = json.loads(file.read_text())
    assert results["val_acc"] is results["test_acc"] is None and "metrics" not in results["comm_evaluation"]


def test_the_seed_names_the_run(main, parts, tmp_path):
    losses = []
    for number, seed in enumerate((1, 1, 2)):
        file = tmp_path / f"{number}.json"
        assert main("--data", parts(1), *SMALL, "--seed", seed, "--json", file) == 0
        losses.append([epoch["loss"] for epoch in json.loads(file.read_text())["epochs"]])
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_auto_takes_the_cpu_and_says_why(main, parts, capsys):
    assert main("--data", parts(1), *SMALL, "--device", "auto") == 0
    assert "device cpu: torch sees no CUDA device" in capsys.readouterr().out


def test_memory_that_a_gpu_lacks_is_reported_in_one_line(main, parts, monkeypatch, capsys):
    def run_out(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has ...")

    monkeypatch.setattr("fastsample_dist.train.trainer.Trainer._train_step", run_out)
    assert main("--data", parts(1), *SMALL) == 1
    expected = "error: CUDA out of memory; take a smaller --batch-size or --hidden, or --placement pinned.\n"
    assert capsys.readouterr().err == expected


def test_a_loss_that_is_not_finite_is_allowed_with_a_warning(main, parts, tmp_path, caplog):
    file = tmp_path / "out.json"
    options = ("--lr", "1e30", "--eval-every", 0, "--allow-nonfinite", "--json", file)
    assert main("--data", parts(1), *SMALL, *options) == 0
    (record,) = [record for record in caplog.records if record.name == "fastsample_dist.train.finite"]
    assert record.getMessage().startswith("step 1: the loss is ") and len(json.loads(file.read_text())["epochs"]) == 2


def test_the_trained_model_and_its_predictions_come_out(main, parts, tmp_path):
    model, scores = tmp_path / "model.pt", tmp_path / "scores"
    options = ("--fanouts", "5,5", "--eval", "full", "--save-model", model, "--predictions", scores)
    file = tmp_path / "out.json"
    assert main("--data", parts(1), *SMALL, *options, "--json", file) == 0
    built = json.loads((tmp_path / "model.pt.json").read_text())
    assert (built["model"], built["layers"], built["hidden"], built["fanouts"]) == ("sage", 2, 16, [5, 5])
    assert built["partition"] == "communities" and built["versions"].keys() == {"fastsample_dist", "torch"}
    with DistContext(LocalCommunicator()) as ctx:
        data = DistData.load(parts(1), ctx)
        found = layerwise(load_model(model), data, 40)
        assert (
            measure(found, data, "test", METRICS["classification"])["acc"] == json.loads(file.read_text())["test_acc"]
        )
        np.testing.assert_array_equal(np.load(scores / "part-0.npy"), found.numpy())
        np.testing.assert_array_equal(np.load(scores / "part-0-orig_ids.npy"), data.orig_ids(torch.arange(200)).numpy())


@pytest.mark.parametrize(("kind", "names"), [("multilabel", ["f1", "label_acc"]), ("regression", ["rmse", "mae"])])
def test_other_labels_have_their_own_loss_and_metrics(main, tmp_path, capsys, kind, names):
    file, lines = tmp_path / "out.json", tmp_path / "epochs.jsonl"
    options = ("--epochs", 8, "--fanouts", "5,5", "--dropout", 0, "--json", file, "--jsonl", lines)
    assert main("--data", make_targets(tmp_path, 1, kind), *SMALL, *options) == 0
    results, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert results["epochs"][-1]["loss"] < results["epochs"][0]["loss"]
    assert results["val_acc"] is results["test_acc"] is None
    assert all(isinstance(results[f"{split}_{name}"], float) for split in ("val", "test") for name in names)
    assert f"test {names[0]} {results[f'test_{names[0]}']:.4f}, {names[1]} " in printed
    assert f"  val {names[0]} {results[f'val_{names[0]}']:.4f}  " in printed
    assert json.loads(lines.read_text().splitlines()[-1])[f"val_{names[0]}"] == results[f"val_{names[0]}"]


def test_a_schedule_is_reported_and_resumed_with_another_rate_only_by_flag(main, parts, tmp_path, capsys):
    file, saved = tmp_path / "out.json", tmp_path / "saved"
    options = ("--data", parts(1), *SMALL, "--eval-every", 0, "--checkpoint-dir", saved)
    steps = ("--lr-schedule", "step", "--lr-step", 1, "--lr-gamma", 0.5)
    assert main(*options, *steps, "--epochs", 2, "--json", file) == 0
    assert [epoch["lr"] for epoch in json.loads(file.read_text())["epochs"]] == [0.02, 0.01]
    more = (*options, *steps, "--epochs", 3, "--resume", "--lr", 0.1, "--json", file)
    assert main(*more) == 1 and "was made with lr 0.02 but this run has lr 0.1" in capsys.readouterr().err
    assert main(*more, "--allow-new-lr") == 0
    assert [epoch["lr"] for epoch in json.loads(file.read_text())["epochs"]] == pytest.approx([0.02, 0.01, 0.025])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--fanouts", "5,5", "--layers", "3"],
            "fanouts has 2 entries but the model has 3 layers; pass one fanout per layer.",
        ),
        (["--eval-fanouts", "-1"], "fanouts has 1 entries but the model has 3 layers"),
        (["--fanouts", "5,x,5"], "must be a list of fanouts such as 15,10,5, not '5,x,5'"),
        (["--batch-size", "0"], "must be an integer >= 1, not '0'"),
        (["--scheme", "magic"], "invalid choice: 'magic'"),
        (["--sampler", "weighted"], "lacks edge weights for --sampler weighted; partition one with edge_weight.npy."),
        (["--sampler", "labor", "--replace"], "--sampler labor takes every edge at most once; leave out --replace"),
        (["--fanouts", "5,5,-1", "--replace"], "-1 (all neighbours), which cannot be drawn with replacement"),
        (["--dropout", "1.5"], "--dropout is 1.5; expected a probability"),
        (["--lr", "-1"], "--lr is -1.0; expected a number >= 0"),
        (["--prefetch", "-1"], "--prefetch is -1; expected an integer >= 0"),
        (["--seed", "-1"], "--seed is -1; expected an integer from 0"),
        (["--model", "gat", "--heads", "5"], "num_heads is 5 and hidden_dim 16"),
        (["--json", "/nowhere/out.json"], "--json /nowhere/out.json cannot be written"),
        (["--save-model", "/nowhere/model.pt"], "--save-model /nowhere/model.pt cannot be written"),
        (["--predictions", "/dev/null/x"], "--predictions /dev/null/x cannot be written"),
        (["--lr", "1e30"], "lower the learning rate (it is 1e+30)"),
        (["--lr-schedule", "rising"], "invalid choice: 'rising'"),
        (["--verify", "never"], "invalid choice: 'never'"),
        (["--data", "missing"], "missing"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--kernel", "persistent"], "kernel is 'persistent' but the device is cpu: kernels are those of GPUs"),
        (["--placement", "pinned"], "the topology cannot be placed in pinned memory: the device is cpu"),
    ],
)
def test_bad_input_is_refused_in_one_line(main, parts, capsys, options, message):
    assert main("--data", parts(1), *SMALL, *options) == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith("error: ") and message in stderr and stderr.count("\n") == 1

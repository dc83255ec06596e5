"""Training with the CUDA kernels: run by the emulator it equals training on the CPU bit for bit, and on a GPU it does
except for the rounding of its matrix products.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastsample_dist import DistContext, DistData, DistLoader, FeatureCache
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.ops import cuda
from fastsample_dist.sampling import transit
from fastsample_dist.testing import mpi_missing_reason, run_distributed, run_mpi
from fastsample_dist.train import inference
from fastsample_dist.train.trainer import Trainer
from tests.cuda_devices import kernels_on_the_cpu, require_overrides
from tests.train.task import make_model, make_task

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 2
needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=f"no MPI here: {mpi_missing_reason()}")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 1, dtype="float32", weighted=True).path


def train(ctx, path, kind="sage", precision="fp32", **options) -> dict:
    """Losses of the epochs, accuracy and parameters after them."""
    data = DistData.load(path, ctx)
    feature_dtype = torch.bfloat16 if precision == "bf16" else None
    fanouts = None if "app" in options else (4, 3)
    loader = DistLoader(data, fanouts, 30, feature_dtype=feature_dtype, **options)
    model = make_model(kind).float().to(ctx.device)
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.02), ctx, precision=precision)
    losses = [trainer.run_epoch(loader).loss for _ in range(EPOCHS)]
    accuracy = trainer.evaluate(
        DistLoader(data, (-1, -1), 30, split="test", shuffle=False, feature_dtype=feature_dtype)
    )
    return {
        "losses": losses,
        "accuracy": accuracy,
        "parameters": [tensor.cpu() for tensor in model.state_dict().values()],
    }


def train_alone(path, device="cpu", **options) -> dict:
    with DistContext(LocalCommunicator(), device=device) as ctx:
        return train(ctx, path, **options)


def assert_same(found: dict, expected: dict):
    assert (found["losses"], found["accuracy"]) == (expected["losses"], expected["accuracy"])
    assert all(map(torch.equal, found["parameters"], expected["parameters"]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefetch": 2},
        {"scheme": "vanilla"},
        {"kernel": "per_hop", "replace": True},
        {"kernel": "persistent"},
        {"kernel": "cooperative"},
        {"method": "weighted"},
        {"method": "labor"},
        {"precision": "bf16"},
        {"kind": "gcn"},
        {"kind": "gat"},
    ],
    ids=str,
)
def test_training_with_the_kernels_equals_the_cpus(path, emulated_library, monkeypatch, options):
    expected = train_alone(path, **{name: value for name, value in options.items() if name != "kernel"})
    called, call = set(), cuda.call
    monkeypatch.setattr(cuda, "call", lambda name, *given, **options: called.add(name) or call(name, *given, **options))
    with kernels_on_the_cpu(emulated_library):
        found = train_alone(path, **options)
    assert_same(found, expected)
    sampled_by = {"vanilla": "compact", "persistent": "persistent_mfg", "cooperative": "cooperative_mfg"}
    name = sampled_by.get(options.get("scheme") or options.get("kernel"), "sample_mfg")
    of_activation = "act_dropout_backward" if "kind" in options else "act_dropout_backward_sums"
    layers = ("aggregate", "aggregate_backward", "act_dropout", of_activation)
    assert {f"fs_cuda_{kernel}" for kernel in (name, "merge_rows", *layers)} <= called


def train_rank(ctx, path, library, options) -> dict:
    """With the kernels where a library is given."""
    if library is None:
        return train(ctx, path, **options)
    with kernels_on_the_cpu(library):
        return train(ctx, path, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "hybrid", "prefetch": 1},
        {"scheme": "vanilla", "prefetch": 1},
        {"roles": "1+1", "staleness": 1, "cache": FeatureCache(2000)},
        {"app": transit.LADIES((40, 60)), "prefetch": 1},
        {"app": transit.KHop((4, 3)), "roles": "1+1"},
    ],
    ids=lambda options: " ".join(options),
)
def test_two_ranks_with_the_kernels_equal_two_without(tmp_path, emulated_library, options):
    require_overrides()
    parts = make_task(tmp_path, 2, dtype="float32").path
    plain, kernels = (run_distributed(2, train_rank, args=(parts, lib, options)) for lib in (None, emulated_library))
    for found, expected in zip(kernels, plain, strict=True):
        assert_same(found, expected)


class LateClock:
    """The clock of a device that is two steps behind: times are there when they are asked for, not before."""

    lag = 2

    def __init__(self):
        self.marks, self.read = 0, []

    def mark(self):
        self.marks += 1
        return self.marks

    def seconds(self, begin, end):
        self.read.append((end, self.marks))
        return float(end - begin)

    def finish(self):
        pass


def test_times_of_a_device_are_read_some_steps_later(path):
    """So that the host waits for a step that is long done; all of them enter the epoch's report."""
    with DistContext(LocalCommunicator()) as ctx:
        model = make_model("sage").float()
        trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.02), ctx)
        trainer._clock = clock = LateClock()
        stats = trainer.run_epoch(DistLoader(DistData.load(path, ctx), (4, 3), 30))
    behind = [(marks - end) // 2 for end, marks in clock.read]
    assert behind == [2, 2, 1, 0]  # 4 steps, two marks each
    assert stats.steps == 4 and stats.compute_s == 4.0
    assert stats.loss == train_alone(path)["losses"][0]


def test_a_model_on_another_device_is_refused():
    with (
        DistContext(LocalCommunicator()) as ctx,
        pytest.raises(ValueError, match=r"the model is on cpu but the context's device is cuda:0; call model.to\(ctx."),
    ):
        ctx.device = torch.device("cuda", 0)
        Trainer(model := make_model("sage"), torch.optim.Adam(model.parameters()), ctx)


# ---- on a GPU ----


def differences(found: dict, expected: dict) -> list[str]:
    """What of two runs is not close, in torch's words."""
    said = []
    for name, tolerances in (("losses", {"rtol": 1e-3, "atol": 1e-4}), ("parameters", {"rtol": 1e-2, "atol": 1e-3})):
        try:
            torch.testing.assert_close(found[name], expected[name], **tolerances)
        except AssertionError as error:
            said.append(f"{name}: {error}")
    return said


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"scheme": "vanilla"}, {"placement": "pinned"}], ids=str)
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_training_on_a_gpu_is_close_to_the_cpus(path, kind, options):
    plain = {name: value for name, value in options.items() if name != "placement"}
    found, expected = train_alone(path, "cuda:0", kind=kind, **options), train_alone(path, kind=kind, **plain)
    assert differences(found, expected) == []


@pytest.mark.gpu
def test_layerwise_inference_on_a_gpu_is_close_to_the_cpus(path):
    with DistContext(LocalCommunicator()) as ctx:
        data, model = DistData.load(path, ctx), make_model("sage").float()
        expected = inference.layerwise(model, data, 50)
        torch.testing.assert_close(inference.layerwise(model.cuda(), data, 50), expected, rtol=1e-3, atol=1e-4)


def train_staged(ctx, path, options) -> dict:
    """On GPU 0 with the other ranks, whose communicator takes CUDA tensors through host memory."""
    ctx.device = torch.device("cuda", 0)
    return train(ctx, path, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
@pytest.mark.parametrize("run", [run_distributed, pytest.param(run_mpi, marks=needs_mpi)])
def test_ranks_whose_transport_has_no_cuda_exchange_through_host_memory(tmp_path, run, scheme):
    parts, options = make_task(tmp_path, 2, dtype="float32").path, {"scheme": scheme}
    staged = run(2, train_staged, args=(parts, options))
    for found, expected in zip(staged, run(2, train_rank, args=(parts, None, options)), strict=True):
        assert differences(found, expected) == []


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_two_gpus_train_as_two_processes_on_the_cpu(tmp_path, scheme):
    parts, losses = make_task(tmp_path, 2, dtype="float32").path, {}
    for device in ("cpu", "cuda"):
        file = tmp_path / f"{device}.json"
        small = (
            "--data",
            parts,
            "--batch-size",
            40,
            "--hidden",
            16,
            "--epochs",
            2,
            "--prefetch",
            2,
            "--scheme",
            scheme,
        )
        finished = run_script(*small, "--device", device, "--json", file, ranks=2)
        assert finished.returncode == 0, finished.stderr
        losses[device] = [epoch["loss"] for epoch in json.loads(file.read_text())["epochs"]]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-3)


def run_script(*options, ranks=1) -> subprocess.CompletedProcess:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}") if ranks > 1 else ()
    command = [sys.executable, *torchrun, str(ROOT / "examples" / "train_sage.py"), *map(str, options)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.gpu
@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda")], ids=" then ".join)
def test_train_sage_begins_on_one_device_and_resumes_on_the_other(path, tmp_path, devices):
    small = ("--data", path, "--batch-size", 40, "--hidden", 16, "--checkpoint-dir", tmp_path / "run")
    first = run_script(*small, "--epochs", 1, "--device", devices[0], "--json", tmp_path / "0.json")
    second = run_script(*small, "--epochs", 2, "--resume", "--device", devices[1], "--json", tmp_path / "1.json")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    for number, device in enumerate(devices):
        results = json.loads((tmp_path / f"{number}.json").read_text())
        assert results["device"].startswith(device) and len(results["epochs"]) == number + 1
        wheres = {place["where"] for place in results["places"]}
        assert wheres == ({"host"} if device == "cpu" else {"device"})

"""fastsample-bench gpu: what it refuses, how its timer reads times, and a whole run on the emulator."""

import json
import os
import shutil
import subprocess
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fastsample_dist.bench.cli import main, make_parser
from fastsample_dist.bench.gpu import cli as gpu_cli
from fastsample_dist.bench.gpu import device as gpu_device
from fastsample_dist.bench.gpu.device import GpuTimer, kernel_times, own_name, smi_fields
from fastsample_dist.ops.kernel_choice import KERNELS
from tests.bench.gpu.emulated_gpu import EmulatedGpu
from tests.cuda_devices import EmulatedDevice
from tests.waiting import ENOUGH_S

TINY = [
    "--graph", "rmat:7:4", "--batch-sizes", "5", "--fanouts", "3", "--hops", "2", "--read-mib", "1", "--rows", "200",
    "--ids", "100", "--batch-size", "7", "--epochs", "1", "--workers", "0", "--trials", "5", "--warmup", "1",
    "--verify", "--widths", "8", "--walks", "20", "--length", "4",
]  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Keeps the generated graphs for the next run."""
    return str(tmp_path_factory.mktemp("work"))


def run_tiny(work, *words):
    """Runs the command with some more words on a tiny graph."""
    return gpu_cli.run(make_parser().parse_args(["gpu", *words, *TINY, "--work", work]), EmulatedGpu)


@pytest.fixture(scope="module")
def whole(emulated_library, tmp_path_factory, work):
    """(status, results, report) of a run of all parts."""
    file = tmp_path_factory.mktemp("report") / "gpu.md"
    with pytest.MonkeyPatch.context() as patch:
        EmulatedDevice(emulated_library, patch)
        status, results = run_tiny(work, "--markdown", str(file))
    return status, results, file.read_text()


@pytest.mark.grid
@pytest.mark.parametrize("part", ["sampling", "gather"])
def test_a_part_alone_prints_its_table_and_its_goals(emulated_device, work, capsys, part):
    status, results = run_tiny(work, part)
    printed = capsys.readouterr().out
    assert status == 0 and list(results) == ["command", "conditions", "goals", part]
    assert printed.startswith("# fastsample-bench gpu\n\n- emulated, ") and "verified against the CPU" in printed
    assert len(results["goals"]) == {"sampling": 3 + 2 * len(KERNELS), "gather": 2}[part]


@pytest.mark.grid
def test_a_whole_run_reports_every_part(whole):
    status, _, report = whole
    headings = [line for line in report.splitlines() if line.startswith("## ")]
    assert status == 0
    assert headings == [
        "## Sampling", "## gather_rows", "## aggregate", "## Applications", "## Training epoch on one GPU",
    ]  # fmt: skip


@pytest.mark.grid
def test_results_are_json(whole):
    assert json.loads(json.dumps(whole[1])) == whole[1]


@pytest.mark.grid
def test_every_row_of_a_table_has_as_many_cells_as_its_heading(whole):
    lines = whole[2].splitlines()
    tables = [list(own) for is_table, own in groupby(lines, lambda line: line.startswith("|")) if is_table]
    assert len(tables) == 6 and all(len({line.count("|") for line in own}) == 1 for own in tables)


@pytest.mark.grid
def test_the_epoch_is_trained_in_every_way_that_runs_here(whole):
    ways = [way["way"] for way in whole[1]["epoch"]["ways"]]
    assert ways[:4] == ["gpu", "gpu, trainer", "gpu, trainer ahead", "cpu sampling"]
    assert {*ways, *whole[1]["epoch"]["missing"]} >= {"torch_geometric"}


@pytest.mark.grid
def test_gpu_and_cpu_sampling_train_alike(whole):
    """The same batches and the same model: on the emulator, whose operators are the CPU's, the same loss."""
    losses = {way["way"]: way["loss"] for way in whole[1]["epoch"]["ways"]}
    assert losses["gpu"] == losses["cpu sampling"]


@pytest.fixture
def counted(monkeypatch):
    """Parts that are measured, in order; each finds the same nothing."""
    measured = []
    for part in gpu_cli.PARTS:
        step = (lambda _, own=part: measured.append(own) or {"of": own}, lambda found: [found["of"]], lambda _: [])
        monkeypatch.setitem(gpu_cli.STEPS, part, step)
    return measured


def test_an_interrupted_run_is_resumed_where_it_stopped(counted, emulated_device, work, tmp_path, monkeypatch):
    file = str(tmp_path / "parts.json")
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setitem(gpu_cli.STEPS, "aggregate", (lambda _: 1 / 0, None, None))
        run_tiny(work, "--resume", file)
    _, results = run_tiny(work, "--resume", file)
    assert counted == list(gpu_cli.PARTS) and all(results[part] == {"of": part} for part in gpu_cli.PARTS)


def test_parts_of_other_options_are_measured_again(counted, emulated_device, work, tmp_path):
    file = str(tmp_path / "parts.json")
    run_tiny(work, "gather", "--resume", file)
    run_tiny(work, "gather", "--resume", file, "--seed", "5")
    assert counted == ["gather", "gather"]


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"parts": {}}'])
def test_a_file_to_resume_that_is_none_is_refused(emulated_device, work, tmp_path, text):
    file = tmp_path / "parts.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"--resume .*parts.json does not hold parts"):
        run_tiny(work, "gather", "--resume", str(file))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_one_line_says_what_is_missing(capsys):
    assert main(["gpu", "sampling"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "fastsample-bench gpu needs an NVIDIA GPU" in lines[0]


def test_a_torch_without_cuda_is_distinguished_from_a_machine_without_a_device(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "a torch built with CUDA" in gpu_device.missing_reason()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "sees none. Run `nvidia-smi`" in gpu_device.missing_reason()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu_device.missing_reason() is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--trials", "4"], "--trials is 4; expected at least 5"),
        (["--markdown", "/no/such/dir/gpu.md"], "--markdown /no/such/dir/gpu.md cannot be written"),
        (["--hops", "0"], "must be an integer >= 1, not '0'"),
        (["nothing"], "invalid choice: 'nothing'"),
    ],
)
def test_wrong_options_are_refused_before_a_device_is_looked_for(capsys, words, text):
    assert main(["gpu", *words]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and text in lines[0]


@pytest.mark.parametrize("words", [["sampling", "--graph", "rmat:7"], ["gather", "--graph", "no-such-directory"]])
def test_a_graph_that_is_none_is_refused(emulated_device, words):
    args = make_parser().parse_args(["gpu", *words])
    with pytest.raises(ValueError, match="expected"):
        gpu_cli.run(args, EmulatedGpu)


class SteppedGpu(EmulatedGpu):
    """Every call takes one second longer than the one before."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def elapsed_s(self, call):
        self.calls += 1
        return call(), float(self.calls)


def test_the_timer_takes_turns_and_leaves_the_warm_up_out():
    order = []
    timer = GpuTimer(SteppedGpu(), warmup=1, trials=2)
    found = timer.turns({name: lambda trial, name=name: order.append((name, trial)) for name in "ab"})
    assert order == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_the_timer_shows_results_of_timed_calls_only():
    seen = []
    GpuTimer(SteppedGpu(), warmup=2, trials=1).turns({"a": lambda trial: 10 * trial}, lambda *own: seen.append(own))
    assert seen == [("a", 20)]


def test_rates_are_amounts_over_seconds():
    assert GpuTimer(SteppedGpu(), warmup=0, trials=3).rates(6, lambda _: None)["rates"] == [6.0, 3.0, 2.0]


def test_kernel_seconds_add_up_by_group():
    timer = GpuTimer(EmulatedGpu([("a", 1.0), ("b", 2.0), ("a", 4.0)]), warmup=1, trials=2)
    trials = []
    found = timer.kernels(trials.append, {"a": lambda name: name == "a", "all": lambda _: True})
    assert (found["a"]["rates"], found["all"]["rates"], trials) == ([5.0, 5.0], [7.0, 7.0], [1, 2])


def test_a_profiler_that_sees_no_kernel_gives_none():
    assert GpuTimer(EmulatedGpu([]), warmup=0, trials=1).kernels(lambda _: None) == {"all": None}


def event(name, device_type, microseconds=3.0, **more):
    return SimpleNamespace(
        name=name, device_type=device_type, time_range=SimpleNamespace(elapsed_us=lambda: microseconds), **more
    )


def test_kernels_of_a_profile_are_what_ran_on_the_device_without_copies():
    cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    events = [
        event("void fs::relabel<int>(fs::DeviceHop<int>)", cuda), event("Memcpy DtoH (Device -> Pinned)", cuda),
        event("Memset (Device)", cuda), event("cudaLaunchKernel", cpu), event("step", cuda, is_user_annotation=True),
        event("void at::native::scan(int)", cuda, 5.0),
    ]  # fmt: skip
    assert kernel_times(events) == [("relabel", 3e-6), ("void at::native::scan(int)", 5e-6)]


@pytest.mark.parametrize(
    ("demangled", "name"),
    [
        ("void fs::(anonymous namespace)::reservoir_kernel<long>(fs::(anonymous namespace)::Hop<long>, long*)",
         "reservoir_kernel"),
        ("fs::(anonymous namespace)::random_sectors_kernel(unsigned long const*, unsigned long)",
         "random_sectors_kernel"),
        ("void fs::sample_by_groups<int>(fs::DeviceHop<int>, int)", "sample_by_groups"),
        ("void at::native::reduce_kernel<512>(int)", "void at::native::reduce_kernel<512>(int)"),
    ],
)  # fmt: skip
def test_own_kernels_go_by_their_bare_names(demangled, name):
    assert own_name(demangled) == name


def test_fields_of_nvidia_smi():
    found = smi_fields("580.65.06, 345 MHz, 2619 MHz, 1980 MHz, 3201 MHz, 700.00 W\n")
    assert found["driver_version"] == "580.65.06" and found["clocks_max_sm"] == "1980 MHz"
    assert smi_fields("No devices were found\n") == {}


@pytest.mark.gpu
def test_a_gpu_reports_its_name_and_takes_times():
    device = gpu_device.GpuDevice()
    assert device.conditions()["device"] == torch.cuda.get_device_name(0)
    array = device.put(torch.ones(1 << 20))
    found, seconds = device.elapsed_s(lambda: array.sum())
    assert float(found) == 1 << 20 and seconds > 0
    assert len(device.kernels_s(lambda: array.sum())) >= 1


@pytest.mark.gpu
@pytest.mark.long
def test_a_whole_run_on_a_gpu(tmp_path, work, capsys):
    assert main(["gpu", *TINY, "--work", work, "--json", str(tmp_path / "gpu.json")]) == 0, capsys.readouterr().err
    assert set(json.loads((tmp_path / "gpu.json").read_text())) > {"sampling", "gather", "aggregate", "epoch"}


def made(*words):
    """Lines of the commands that make would run."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    command = ["make", "-n", "--no-print-directory", "-C", str(Path(__file__).resolve().parents[3]), *words]
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENOUGH_S, env=own)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_make_gpu_runs_the_tests_and_every_tool_with_the_python_that_is_named():
    lines = made("gpu", "GPU_PYTHON=some-python")
    resumed = "-p tests.resumed --seconds inf --passed-file build/gpu/passed"
    assert f"some-python -m pytest {resumed} -m gpu tests" in lines
    loop = next(line for line in lines if "for tool in" in line)
    assert all(tool in loop for tool in ("memcheck", "racecheck", "synccheck", "initcheck"))
    assert not any("pip install" in line for line in lines)


def test_make_gpu_takes_the_torch_that_is_there():
    lines = made("gpu-bench", "VENV=.venv-of-nobody", "VENV_OPTIONS=--system-site-packages", "TORCH=torch")
    assert any("-m venv --system-site-packages .venv-of-nobody" in line for line in lines)
    assert any(
        line.endswith('install --quiet --disable-pip-version-check --no-compile "torch" numpy') for line in lines
    )
    bench = ".venv-of-nobody/bin/python -m fastsample_dist.bench.cli"
    assert lines[-2].startswith(f"{bench} gpu --verify ") and lines[-1].startswith(f"{bench} roles --device cuda ")

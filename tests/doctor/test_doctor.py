"""fastsample-doctor: each check against a made-up machine, and the command as a user runs it, whole and broken."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fastsample_dist.doctor import checks
from fastsample_dist.doctor import cli as doctor
from fastsample_dist.doctor.checks import ABSENT, BROKEN, OK, WARNING
from tests.waiting import ENOUGH_S

ROOT = Path(__file__).resolve().parents[2]
UNLIMITED = resource.RLIM_INFINITY


def statuses(findings):
    return {finding.subject: finding.status for finding in findings}


def one(findings, subject):
    return next(finding for finding in findings if finding.subject == subject)


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command; (status, findings by subject, what it printed)."""

    def call(*options):
        file = tmp_path / "doctor.json"
        status = doctor.main([*options, "--json", str(file)])
        findings = json.loads(file.read_text())["findings"]
        return status, {finding["subject"]: finding for finding in findings}, capsys.readouterr().out

    return call


def test_this_machine_is_sound_and_two_ranks_exchange_rows(forked_ranks, run):
    status, findings, printed = run("--deadline-s", str(ENOUGH_S))
    assert status == 0, printed
    assert findings["2 ranks, torch"]["status"] == OK and "over lo" in findings["2 ranks, torch"]["found"]
    assert findings["2 ranks, MPI"]["status"] in (OK, ABSENT)
    assert findings["libfastsample.so"]["status"] == OK
    assert {"Python", "torch", "GPUs", "interface used", "shared memory", "open files", "mpirun"} <= findings.keys()


@pytest.mark.grid
def test_an_unknown_interface_is_named_and_fails_the_real_exchange(forked_ranks, run, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    status, findings, _ = run("--deadline-s", str(ENOUGH_S))
    assert status == 1
    assert (
        findings["interface used"]["status"] == BROKEN
        and "unset GLOO_SOCKET_IFNAME" in findings["interface used"]["advice"]
    )
    assert findings["2 ranks, torch"]["status"] == BROKEN and "nosuch0" in findings["2 ranks, torch"]["found"]


def test_a_missing_compiled_library_is_broken_and_says_how_to_build_it(run, monkeypatch, tmp_path):
    from fastsample_dist.ops import library

    monkeypatch.setattr(library, "LIBRARY_DIR", tmp_path)
    library.core.cache_clear()
    try:
        status, findings, _ = run("--no-exchange")
    finally:
        library.core.cache_clear()
    assert status == 1 and findings["libfastsample.so"]["status"] == BROKEN
    assert "pip install" in findings["libfastsample.so"]["found"]


@pytest.mark.grid
def test_a_check_that_fails_itself_leaves_the_others(run, monkeypatch):
    def check_gpus():
        raise RuntimeError("driver\ngone")

    monkeypatch.setattr(checks, "check_gpus", check_gpus)
    status, findings, _ = run("--no-exchange")
    assert status == 1 and findings["check_gpus"]["found"] == "driver gone" and "cores" in findings


def test_without_the_exchange_no_rank_is_started(run, monkeypatch):
    monkeypatch.setattr(checks, "check_exchange", lambda deadline_s: pytest.fail("it was started"))
    _, findings, _ = run("--no-exchange")
    assert not any(subject.startswith("2 ranks") for subject in findings)


def test_without_a_loopback_interface_no_exchange_is_tried(run, monkeypatch):
    """On a machine where lo is down the ranks could not meet, and would wait for their deadline."""
    states = {"lo": SimpleNamespace(isup=False), "eth0": SimpleNamespace(isup=True)}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    monkeypatch.setattr(checks, "check_exchange", lambda deadline_s: pytest.fail("it was started"))
    status, findings, _ = run()
    interfaces = findings["interfaces up"]
    assert status == 1 and (interfaces["status"], interfaces["advice"]) == (BROKEN, "ip link set lo up")
    assert findings["2 ranks"]["found"] == "not tried: interfaces up is broken"


def test_limits_of_open_files_and_locked_memory():
    sound = checks.check_limits((1024, 4096), (8 << 20, UNLIMITED), has_rdma=False)
    assert statuses(sound) == {"open files": OK, "locked memory": OK}
    few = one(checks.check_limits((256, 2048), (UNLIMITED, UNLIMITED), has_rdma=True), "open files")
    assert (few.status, few.advice) == (WARNING, "ulimit -n 2048")
    rdma = checks.check_limits((UNLIMITED, UNLIMITED), (8 << 20, UNLIMITED), has_rdma=True)
    assert statuses(rdma) == {"open files": OK, "locked memory": WARNING}


def test_every_gpu_is_described_and_one_that_is_too_old_is_a_warning():
    new, old = (checks.Gpu("H", (9, 0), 130 << 30, 139 << 30), checks.Gpu("P", (6, 1), 1 << 30, 8 << 30))
    found = checks.describe_gpus([new, old], has_nccl=True)
    assert statuses(found) == {"GPUs": OK, "GPU 0": OK, "GPU 1": WARNING, "nccl": OK}
    assert one(found, "GPUs").found == "2: H, P"
    assert one(found, "GPU 0").found == "compute capability 9.0, 130.0 of 139.0 GiB free"
    assert "7.5 or newer" in one(found, "GPU 1").advice
    assert one(checks.describe_gpus([new], has_nccl=False), "nccl").status == ABSENT


@pytest.mark.gpu
def test_the_kernels_run_on_this_machines_gpu():
    assert one(checks.check_gpus(), "CUDA kernels").status == OK


def test_small_shared_memory_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(checks, "LEAST_SHM_BYTES", 0)
    assert checks.check_shared_memory(tmp_path)[0].status == OK
    monkeypatch.setattr(checks, "LEAST_SHM_BYTES", 1 << 60)
    small = checks.check_shared_memory(tmp_path)[0]
    assert small.status == WARNING and "--shm-size" in small.advice
    assert checks.check_shared_memory(tmp_path / "missing")[0].status == WARNING


def test_the_interface_that_leads_to_an_address():
    assert one(checks.check_network({}, "127.0.0.1"), "interface used").found.startswith("lo (127.0.0.1)")
    unknown = one(checks.check_network({}, "nosuch.invalid"), "interface used")
    assert unknown.status == BROKEN and "nosuch.invalid" in unknown.found
    forced = one(checks.check_network({"GLOO_SOCKET_IFNAME": "lo"}, None), "interface used")
    assert forced.status == OK


def test_more_threads_than_cores_are_a_warning():
    assert checks.check_cores({})[0].status == OK
    assert checks.check_cores({"OMP_NUM_THREADS": "100000"})[0].status == WARNING


def test_leftover_launcher_variables_are_found():
    assert one(checks.check_launchers({}), "environment").status == OK
    half = one(checks.check_launchers({"RANK": "0"}), "environment")
    assert half.status == BROKEN and "WORLD_SIZE" in half.found
    whole = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert one(checks.check_launchers(whole), "environment").status == WARNING


def test_an_mpirun_that_does_not_start_is_found(monkeypatch, tmp_path):
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho libmpi.so not found >&2\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setattr(checks, "find_mpirun", lambda: str(program))
    found = one(checks.check_launchers({}), "mpirun")
    assert (found.status, found.found) == (WARNING, f"{program} ends with status 127 (libmpi.so not found)")


def test_a_package_that_is_not_there_is_absent_with_its_extra(monkeypatch):
    monkeypatch.setattr(checks, "OPTIONAL", {"no-such-package": ("nothing", "none")})
    assert checks.check_optional()[0].status == ABSENT and "[none]" in checks.check_optional()[0].found


def test_every_method_that_works_is_named(monkeypatch):
    monkeypatch.setattr("fastsample_dist.partition.methods.libmetis.load", lambda: None)
    for package in ("pymetis", "kaminpar"):
        monkeypatch.setitem(sys.modules, package, None)
    findings = checks.check_methods()
    assert one(findings, "partition methods").found == "ldg, fennel, random, range, file"
    assert one(findings, "method metis").status == ABSENT
    assert one(findings, "method metis").found == "not available; pip install 'fastsample_dist[partition]'"
    assert one(findings, "method kaminpar").found == "not available; pip install 'fastsample_dist[kaminpar]'"
    monkeypatch.setitem(sys.modules, "pymetis", subprocess)  # any module with a spec
    assert one(checks.check_methods(), "partition methods").found == "metis, ldg, fennel, stream, random, range, file"


def test_what_is_found_here_is_what_works_here():
    from fastsample_dist.partition.methods import METHODS

    named = one(checks.check_methods(), "partition methods").found.split(", ")
    absent = [finding.subject for finding in checks.check_methods() if finding.status == ABSENT]
    assert sorted(named + [subject.removeprefix("method ") for subject in absent]) == sorted(METHODS)
    assert "metis" in named, "cmeel-metis is part of the test environment"


@pytest.mark.parametrize("options", [("--deadline-s", "0"), ("--nonsense",), ("--json", "/nowhere/out.json")])
def test_bad_input_is_refused_in_one_line(options, capsys):
    assert doctor.main(list(options)) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("fastsample-doctor: error: ") and printed.count("\n") == 1


def test_the_module_loads_without_torch():
    code = "import sys; sys.modules['torch'] = None; import fastsample_dist.doctor.cli as d; print(d.checks._torch())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "BROKEN" in done.stdout.upper() and "pip install torch" in done.stdout


def test_a_torch_that_cannot_be_loaded_is_a_line_of_the_report(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: no such file')")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "fastsample_dist.doctor.cli", "--no-exchange"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=ENOUGH_S, check=False)
    assert done.returncode == 1, done.stderr
    assert "pip install torch" in done.stdout and "libtorch.so: no such file" in done.stdout and done.stderr == ""

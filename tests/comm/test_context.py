"""Joining and leaving a run: arguments, the interface, and whole processes started by torchrun and by hand."""

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import fastsample_dist
from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.environment import LAUNCHER_VARIABLES
from fastsample_dist.comm.network_interface import VARIABLE, choose_interface, interface_of, source_address
from fastsample_dist.testing import run_distributed
from tests.waiting import ENOUGH_S

PACKAGE_ROOT = str(Path(fastsample_dist.__file__).parent.parent)


def environment(**changes: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if name not in (*LAUNCHER_VARIABLES, VARIABLE)}
    return {**environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PACKAGE_ROOT, **changes}


# ---- arguments ----


def test_a_run_of_one_process_has_a_local_communicator():
    with DistContext.from_env(environ={}) as ctx:
        assert (ctx.rank, ctx.world_size, ctx.local_rank, ctx.local_world_size) == (0, 1, 0, 1)
        assert ctx.device == torch.device("cpu")
        assert ctx.launcher == "none"
        assert not ctx.comm.uses_torch_distributed


def test_the_default_deadline_is_ten_minutes():
    with DistContext.from_env(environ={}) as ctx:
        assert ctx.comm.timeout_s == 600.0


@pytest.mark.parametrize("timeout_s", [0, -2.0, float("nan")])
def test_a_bad_timeout_is_refused(timeout_s):
    with pytest.raises(ValueError, match=f"timeout_s is {timeout_s}"):
        DistContext.from_env(timeout_s=timeout_s, environ={})


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="device is 'tpu'"):
        DistContext.from_env(device="tpu", environ={})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(RuntimeError, match="torch sees no CUDA device"):
        DistContext.from_env(device="cuda", environ={})


def test_a_partial_environment_is_refused_with_what_was_seen():
    with pytest.raises(ValueError, match=r"seen: RANK=0, WORLD_SIZE=2"):
        DistContext.from_env(environ={"RANK": "0", "WORLD_SIZE": "2"})


def test_leaving_twice_is_leaving_once():
    ctx = DistContext.from_env(environ={})
    ctx.close()
    with ctx:
        ctx.close()
    assert ctx.comm.closed


def test_an_exception_passes_through_the_context():
    with pytest.raises(KeyError, match="boom"), DistContext.from_env(environ={}):
        raise KeyError("boom")


def joined(ctx) -> tuple:
    """What a rank knows of its place, and whether torch agrees."""
    agrees = dist.get_rank(ctx.comm.process_group) == ctx.rank and ctx.comm.uses_torch_distributed
    with pytest.raises(RuntimeError, match="has a torch process group already"):
        DistContext.from_env()
    return ctx.rank, ctx.world_size, ctx.local_rank, ctx.local_world_size, ctx.launcher, agrees


def test_ranks_know_their_places():
    places = run_distributed(3, joined)
    assert places == [(rank, 3, rank, 3, "torchrun", True) for rank in range(3)]


def rejoin_without_local_ranks(ctx) -> tuple[int, int]:
    """The same ranks again, by an environment that gives no local ranks (and over a port of their own)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = ctx.comm.all_gather_object(probe.getsockname()[1], purpose="port")[0]
    ctx.close()
    environ = {"RANK": str(ctx.rank), "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    with DistContext.from_env(environ=environ) as again:
        assert again.comm.stats() == {}
        return again.local_rank, again.local_world_size


def test_local_ranks_are_counted_where_the_launcher_is_silent():
    assert run_distributed(3, rejoin_without_local_ranks) == [(0, 3), (1, 3), (2, 3)]


# ---- the interface ----


def test_the_way_to_this_machine_is_loopback():
    assert source_address("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"


def test_an_address_of_nobody_has_no_interface():
    assert interface_of("203.0.113.77") is None


def test_a_master_that_does_not_resolve_is_refused_by_name():
    with pytest.raises(RuntimeError, match="MASTER_ADDR is no-such-host.invalid, which this machine cannot reach"):
        source_address("no-such-host.invalid")


def test_the_interface_is_chosen_and_logged(monkeypatch, caplog):
    monkeypatch.setenv(VARIABLE, "")
    with caplog.at_level(logging.INFO, logger="fastsample_dist"):
        choose_interface("localhost", several_machines=False)
    assert os.environ[VARIABLE] == "lo"
    assert f"{VARIABLE}=lo: the interface that routes to localhost" in caplog.text


def test_a_given_interface_stays(monkeypatch):
    monkeypatch.setenv(VARIABLE, "eth7")
    choose_interface("no-such-host.invalid", several_machines=True)
    assert os.environ[VARIABLE] == "eth7"


def test_loopback_cannot_join_several_machines(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(RuntimeError, match="leads to 127.0.0.1 here, but the run spans several machines"):
        choose_interface("localhost", several_machines=True)


@pytest.mark.parametrize("several_machines", [False, True])
def test_without_psutil_only_several_machines_are_refused(monkeypatch, several_machines):
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr("fastsample_dist.comm.network_interface.source_address", lambda host: "10.0.0.1")
    if several_machines:
        with pytest.raises(RuntimeError, match="psutil is needed"):
            choose_interface("10.0.0.2", several_machines)
    else:
        choose_interface("10.0.0.2", several_machines)
    assert os.environ[VARIABLE] == ""


# ---- whole processes ----

GOOD_SCRIPT = """
import torch
from fastsample_dist import DistContext

with DistContext.from_env(timeout_s=150) as ctx:
    copy = ctx.comm.duplicate()
    ones = copy.all_reduce(torch.ones(1), purpose="ones")
    print(f"<{ctx.rank} {ctx.launcher} {ones.item():g}>", end="", flush=True)
"""

# Rank 0 fails while its prefetching thread waits for a rank that never answers; rank 1 is in another collective.
# With the default deadline of 600 s, a process that waits for anybody outlasts ENOUGH_S.
BAD_SCRIPT = """
import sys, threading, time
from fastsample_dist import DistContext

def prefetch(comm):
    try:
        comm.barrier(purpose="prefetch")
    except RuntimeError as error:
        sys.stderr.write(f"prefetch ended: {error}")

with DistContext.from_env() as ctx:
    copy = ctx.comm.duplicate()
    if ctx.rank == 0:
        threading.Thread(target=prefetch, args=(copy,), daemon=True).start()
        time.sleep(0.3)
        raise ValueError("boom")
    ctx.comm.barrier()
"""


def start_by_hand(script: str, tmp_path: Path, world_size: int) -> list[subprocess.Popen]:
    path = tmp_path / "script.py"
    path.write_text(script)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, str(path)],
            env=environment(RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]


def test_torchrun_starts_and_ends_in_silence(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(GOOD_SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=ENOUGH_S)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.replace(">", "> ").split("> ")[:2]) == ["<0 torchrun 2", "<1 torchrun 2"]
    assert ended.stderr == ""


def test_a_failing_process_ends_at_once_without_crash_noise(tmp_path):
    processes = start_by_hand(BAD_SCRIPT, tmp_path, 2)
    try:
        texts = [process.communicate(timeout=ENOUGH_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode != 0 for process in processes)
    assert "ValueError: boom" in texts[0]
    assert "barrier of prefetch was interrupted because this rank is leaving the run" in texts[0]
    assert "rank 1, outside a step: barrier failed because a peer ended" in texts[1]
    for text in texts:
        assert "terminate called" not in text
        assert "Fatal Python error" not in text

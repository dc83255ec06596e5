"""The end of a rank: gloo's threads that come late, while the interpreter ends, abort nothing.

Such a thread is one that the machine did not run between reporting a collective and releasing its tensors; here a
preloaded library makes every one of them late.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.comm.test_context import ENOUGH_S, environment
from tests.grids import grid
from tests.toolchain import find_compiler

SCRIPT = """
import os, sys, torch
from fastsample_dist import DistContext
from fastsample_dist.comm.agree import agree

def refuse():
    raise ValueError("refused")

torch.set_num_threads(1)
with DistContext.from_env(timeout_s=100) as ctx:
    assert any("gloo_runloop" in open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task"))
    kept = ctx.comm.process_group  # DistributedDataParallel keeps it too, so that its threads live on
    BODY
"""
ENDS = {
    "all ranks refuse": ("agree(ctx, refuse)", (1, 1)),
    "each refuses after a collective": ('ctx.comm.all_gather_object(0, purpose="test"); refuse()', (1, 1)),
    "one refuses, the other waits": ("refuse() if ctx.rank == 0 else ctx.comm.barrier()", (1, 1)),
    "all return": ('ctx.comm.all_gather_object(0, purpose="test")', (0, 0)),
}


@pytest.fixture(scope="module")
def late_threads(tmp_path_factory):
    """The library that makes gloo's threads late."""
    if not sys.platform.startswith("linux"):
        pytest.skip("libraries are preloaded and threads named as on Linux")
    library = tmp_path_factory.mktemp("late") / "liblate.so"
    source = Path(__file__).with_name("late_threads.cpp")
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("how", grid(list(ENDS), gate=["all ranks refuse"]))
def test_a_late_thread_aborts_nothing(how, late_threads, free_port):
    body, statuses = ENDS[how]
    ranks = [start(SCRIPT.replace("BODY", body), rank, free_port, late_threads) for rank in range(2)]
    try:
        printed = [process.communicate(timeout=ENOUGH_S)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert tuple(process.returncode for process in ranks) == statuses, printed
    assert not any("terminate called" in text for text in printed)


def start(script, rank, port, library):
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LD_PRELOAD": str(library)}
    return subprocess.Popen(
        [sys.executable, "-c", script], env=environment(**place), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


@pytest.fixture
def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]

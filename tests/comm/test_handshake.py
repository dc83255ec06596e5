"""A foreign service at the meeting point, or a store that is stopped later: every rank ends with one line soon after
its deadline, whatever that does."""

import http.server
import itertools
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

from fastsample_dist.comm import handshake
from fastsample_dist.comm.deadline import Deadline
from fastsample_dist.comm.environment import LaunchInfo
from fastsample_dist.comm.handshake import open_store
from fastsample_dist.comm.rendezvous import board_store
from fastsample_dist.testing.jobs import own_environment
from tests.comm.test_context import environment
from tests.forked import ForkedPython
from tests.grids import grid
from tests.waiting import NEVER_S, wait_until

ENOUGH_S = 200.0  # for a process that loads torch on a busy machine; without a deadline the handshake never ends
TIMEOUT_S = 2.0
SCRIPT = f"""
import sys
from fastsample_dist import DistContext
try:
    DistContext.from_env(timeout_s={TIMEOUT_S})
except RuntimeError as error:
    sys.exit(str(error))
"""


@contextmanager
def mute():
    """Accepts every connection and never says a word."""
    held = []

    def accept():
        with suppress(OSError):  # closed
            while True:
                held.append(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


@contextmanager
def web():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


SERVICES = {
    "mute": (mute, f"did not answer within {TIMEOUT_S:g} s: "),
    "http": (web, "another service listens there, an HTTP server"),
}


WAYS = list(itertools.product(SERVICES, ["by hand", "agent"]))


@pytest.mark.parametrize(("service", "way"), grid(WAYS, gate=[WAYS[0], WAYS[3]], several=True))
def test_rank_1_is_refused_at_its_deadline(service, way):
    make, words = SERVICES[service]
    with make() as port:
        status, said = joined(1, port, way == "agent")
    assert status == 1
    assert said.startswith(f"rank 1: cannot join the meeting point at 127.0.0.1:{port} (")
    assert words in said
    assert said.endswith("; choose another MASTER_PORT, or check MASTER_ADDR.\n")


@pytest.mark.parametrize("service", grid(SERVICES, gate=["http"]))
def test_rank_0_whose_port_is_taken_is_refused(service):
    make, words = SERVICES[service]
    with make() as port:
        status, said = joined(0, port, False)
    assert status == 1
    assert said.startswith(f"rank 0: cannot serve the meeting point at 127.0.0.1:{port} (")
    assert (words if service == "http" else "EADDRINUSE") in said


def joined(rank, port, agent):
    """(exit status, stderr without torch's own warnings) of one rank of two that joins at that port."""
    changes = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if agent:
        changes |= {"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        changes |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment(**changes), capture_output=True, text=True, timeout=ENOUGH_S,
        check=False,
    )  # fmt: skip
    lines = [line for line in ended.stderr.splitlines(keepends=True) if not line.startswith("[")]
    return ended.returncode, "".join(lines)


@pytest.mark.parametrize("service", SERVICES)
def test_the_boards_connection_has_a_deadline_too_and_leaves_no_thread_or_descriptor(service):
    make, words = SERVICES[service]
    before = psutil.Process().num_fds()
    with make() as port:
        info = LaunchInfo("torchrun", "torch", rank=1, world_size=2, master_addr="127.0.0.1", master_port=port)
        with pytest.raises(RuntimeError, match=words):
            board_store(info, TIMEOUT_S)
    assert "fastsample-handshake" not in [thread.name for thread in threading.enumerate()]
    # The service here closes its own end of a connection a little later.
    wait_until(lambda: psutil.Process().num_fds() <= before, "that every descriptor is closed")


def test_a_thread_that_runs_only_after_ctrl_c_in_its_start_asks_nothing(monkeypatch):
    info = LaunchInfo("torchrun", "torch", rank=1, world_size=2, master_addr="127.0.0.1", master_port=1)
    asked, late = [], []

    def interrupted(thread):
        late.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    monkeypatch.setattr(handshake.dist, "TCPStore", lambda *arguments, **options: asked.append(arguments))
    with pytest.raises(KeyboardInterrupt):
        open_store(info, Deadline(TIMEOUT_S))
    with pytest.raises(KeyboardInterrupt):
        handshake.RunStore(None, info, set()).call_within(asked.append, TIMEOUT_S)
    monkeypatch.undo()
    for thread in late:
        thread.start()
        thread.join()
    assert len(late) == 2 and not asked


class Trusting:
    """As torch 2.4 connects: it asks nothing before it is used, and then waits without limit."""

    def __init__(self, address, port, *_, **__):
        self._connection = socket.create_connection((address, port))

    def check(self, keys):
        if not self._connection.recv(1):
            raise RuntimeError("closed")
        return False

    def __del__(self):
        self._connection.close()


def test_a_store_that_asked_nothing_while_it_connected_is_asked(monkeypatch):
    monkeypatch.setattr(handshake.dist, "TCPStore", Trusting)
    before = psutil.Process().num_fds()
    with mute() as port, pytest.raises(RuntimeError, match=SERVICES["mute"][1]):
        info = LaunchInfo("torchrun", "torch", rank=1, world_size=2, master_addr="127.0.0.1", master_port=port)
        open_store(info, Deadline(TIMEOUT_S))
    wait_until(lambda: psutil.Process().num_fds() <= before, "that every descriptor is closed")


def test_ctrl_c_is_seen_while_the_service_is_mute():
    with mute() as port:
        changes = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        script = f"{heard}\n{SCRIPT.replace(f'timeout_s={TIMEOUT_S}', 'timeout_s=100000')}"
        process = subprocess.Popen(
            [sys.executable, "-c", script], env=environment(**changes), stderr=subprocess.PIPE, text=True
        )
        try:
            deadline = Deadline(ENOUGH_S)
            while not connected(process.pid, port):
                deadline.check()
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=ENOUGH_S)[1] == "rank 1 was interrupted.\n"
        finally:
            process.kill()


def connected(pid, port):
    """Whether a process holds a connection to that port, and the thread that made it."""
    process = psutil.Process(pid)
    return any(connection.raddr and connection.raddr.port == port for connection in process.net_connections("tcp"))


def test_a_store_that_answers_late_is_waited_for():
    """A proxy holds the first bytes back for a while; what it then passes on is a store."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def pass_on():
        with listener.accept()[0] as client, socket.create_connection(("127.0.0.1", store.port)) as server:
            time.sleep(0.5)
            threading.Thread(target=copy, args=(server, client), daemon=True).start()
            copy(client, server)

    def copy(source, target):
        with suppress(OSError):
            while data := source.recv(4096):
                target.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=pass_on, daemon=True).start()
        port = listener.getsockname()[1]
        info = LaunchInfo("torchrun", "torch", rank=1, world_size=2, master_addr="127.0.0.1", master_port=port)
        client = open_store(info, Deadline(ENOUGH_S))
        client.set("said", "late")
    assert store.get("said") == b"late"


# ---- a store that is stopped once the rank has joined it ----

SERVER = """
import sys, time
from pathlib import Path
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
Path("port.new").write_text(str(store.port))
Path("port.new").rename("port")
time.sleep(3600)
"""
STOPPED = """
import importlib, os, signal, sys, time
from pathlib import Path
import psutil
from fastsample_dist import DistContext
from fastsample_dist.comm import handshake
from tests.waiting import NEVER_S

module, name, server, timeout_s = sys.argv[1], sys.argv[2], psutil.Process(int(sys.argv[3])), float(sys.argv[4])
module = importlib.import_module(module)
call, others = getattr(module, name), [Path(f"there-{rank}") for rank in range(int(os.environ["WORLD_SIZE"]))]

def stopped(*arguments, **named):
    others[int(os.environ["RANK"])].touch()
    while not all(other.exists() for other in others):
        time.sleep(0.02)
    server.suspend()
    while server.status() != psutil.STATUS_STOPPED:
        time.sleep(0.02)
    return call(*arguments, **named)

signal.signal(signal.SIGINT, signal.default_int_handler)
setattr(module, name, stopped)
handshake.LATE_S = 0.5
try:
    with DistContext.from_env(timeout_s=NEVER_S if name == "_new_group" else timeout_s) as ctx:
        ctx.comm.timeout_s = timeout_s  # which a busy machine's joining need not meet
        ctx.comm.duplicate()
except RuntimeError as error:
    sys.exit(str(error))
"""
JOINED = "fastsample_dist.comm.rendezvous _join"
STAGES = {
    "joining": JOINED,
    "reporting": "fastsample_dist.comm.context all_gather_once",
    "connecting": "torch.distributed init_process_group",
    "duplicating": "fastsample_dist.comm.torch_dist _new_group",
}
STOPPED_TIMEOUT_S = 3.0


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start ranks, which stop the process that serves their store as soon as all are at a place; (ranks, port)."""
    monkeypatch.chdir(tmp_path)
    running = []

    def call(place, timeout_s):
        server = ForkedPython(["-c", SERVER], own_environment(), (tmp_path / "server", tmp_path / "server"))
        running.append(server)
        wait_until((tmp_path / "port").exists, "that the store is served")
        port = (tmp_path / "port").read_text()
        environ = environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        environ |= {"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        line = [sys.executable, "-c", STOPPED, *place.split(), str(server.pid), str(timeout_s)]
        for rank in "01":
            own = environ | {"RANK": rank, "LOCAL_RANK": rank}
            running.append(subprocess.Popen(line, env=own, stderr=subprocess.PIPE, text=True))
        return running[1:], port

    yield call
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.parametrize("stage", grid(list(STAGES), gate=["joining", "duplicating"]))
def test_a_store_that_is_stopped_ends_every_rank_at_its_deadline(stage, start):
    ranks, port = start(STAGES[stage], STOPPED_TIMEOUT_S)
    where = ", outside a step: duplicate of communicator" if stage == "duplicating" else ": joining"
    for rank, process in enumerate(ranks):
        lines = process.communicate(timeout=ENOUGH_S)[1].splitlines()
        assert [line for line in lines if "[W" not in line] == [  # torch's own warnings
            f"rank {rank}{where} failed: the store at 127.0.0.1:{port} (torchrun's agent) did not answer within 3 s; "
            "its process is stopped or the link to it is cut: check both, and start again."
        ]
        assert process.returncode == 1


def test_ctrl_c_is_seen_while_the_store_is_stopped(start, tmp_path):
    ranks, _ = start(JOINED, NEVER_S)
    wait_until(lambda: all((tmp_path / f"there-{rank}").exists() for rank in range(2)), "that the ranks are joining")
    time.sleep(0.5)  # both are most likely in the store by then
    for rank, process in enumerate(ranks):
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=ENOUGH_S)[1] == f"rank {rank} was interrupted.\n"

"""The status board: what ranks publish, who is blamed when a deadline passes, and a stopped rank that is named."""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from fastsample_dist.comm import board, context
from fastsample_dist.comm.board import NUM_LANES, FileBoard, Status, StoreBoard
from fastsample_dist.comm.context import _shared_board
from fastsample_dist.comm.deadline import CollectiveError, Deadline, DeadlineError, PeerLostError
from fastsample_dist.comm.environment import LaunchInfo
from fastsample_dist.comm.handshake import RunStore
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.comm.processes import has_ended, own_process
from fastsample_dist.comm.watch import Watch
from fastsample_dist.testing import RankError, mpi_missing_reason, run_distributed, run_mpi
from tests.comm.test_context import environment
from tests.comm.test_failures import free_port
from tests.forked import ForkedPython
from tests.grids import grid
from tests.small_disk import small_files, small_tmpfs
from tests.waiting import ENOUGH_S, wait_until

needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=str(mpi_missing_reason()))
TIMEOUT_S = 3.0


def store_without_connection():
    """A store within this process."""
    return RunStore(dist.PrefixStore("", dist.HashStore()), LaunchInfo("none", "torch", rank=0, world_size=1), set())


@pytest.fixture(params=["store", "file"])
def boards(request):
    """One board per rank of three ranks."""
    if request.param == "store":
        store = store_without_connection()
        return [StoreBoard(store, rank, "rank 0") for rank in range(3)]
    path = FileBoard.create_file(3)
    made = [FileBoard(path, rank, ["a", "a", "a"]) for rank in range(3)]
    Path(path).unlink()
    return made


def test_every_rank_sees_what_each_published_last(boards):
    none = "made none so far"
    boards[0].publish("0", Status(7, "all_reduce of gradients", 3, 100.5))
    boards[0].publish("0", Status(8, "barrier", 4, 101.5))
    boards[2].publish("0.1", Status(-1, "barrier", 1, 99.0))
    assert boards[1].read("0", range(3)) == {0: Status(8, "barrier", 4, 101.5), 1: none, 2: none}
    assert boards[1].read("0.1", range(3)) == {0: none, 1: none, 2: Status(-1, "barrier", 1, 99.0)}
    assert boards[1].read("0.1", [2]) == {2: Status(-1, "barrier", 1, 99.0)}


def test_ranks_with_different_lanes_find_each_other(boards):
    """A rank of two groups and one of the second only: on a FileBoard their records are in different places."""
    boards[0].publish("0.1", Status(1, "a", 1, 1.0))
    boards[0].publish("0.2", Status(2, "b", 1, 2.0))
    boards[1].publish("0.2", Status(3, "c", 1, 3.0))
    assert boards[1].read("0.2", [0, 1]) == {0: Status(2, "b", 1, 2.0), 1: Status(3, "c", 1, 3.0)}
    assert boards[0].read("0.1", [1]) == {1: "made none so far"}


def test_a_closed_board_is_silent(boards):
    boards[1].close()
    boards[1].close()
    boards[1].publish("0", Status(1, "barrier", 1, 1.0))
    assert all(isinstance(status, str) for status in boards[1].read("0", range(3)).values())
    assert boards[0].read("0", range(3)) == dict.fromkeys(range(3), "made none so far")


def test_a_rank_of_another_machine_is_named_as_out_of_sight():
    path = FileBoard.create_file(2)
    own = FileBoard(path, 0, ["alpha", "beta"])
    Path(path).unlink()
    assert own.read("0", [0, 1])[1] == "on beta, not visible from alpha"


def test_lanes_beyond_the_file_are_not_published():
    path = FileBoard.create_file(1)
    own = FileBoard(path, 0, ["alpha"])
    Path(path).unlink()
    for number in range(NUM_LANES + 1):
        own.publish(f"0.{number}", Status(number, "barrier", 1, 1.0))
    assert own.read(f"0.{NUM_LANES - 1}", [0]) == {0: Status(NUM_LANES - 1, "barrier", 1, 1.0)}
    assert own.read(f"0.{NUM_LANES}", [0]) == {0: "not published"}


def test_a_full_shared_memory_is_left_for_the_directory_of_temporary_files(tmp_path, monkeypatch):
    """A file there without its memory would end the process at the first collective."""
    small = tmp_path / "small"
    monkeypatch.setattr(board, "SHARED_MEMORY", str(small))
    with small_tmpfs(small, 4096):
        path = Path(FileBoard.create_file(2))
        assert path.parent != small and not [*small.iterdir()]
        FileBoard(path, 1, ["alpha", "alpha"]).publish("0", Status(1, "barrier", 1, 1.0))
        path.unlink()


def test_without_room_for_the_file_a_warning_says_what_is_missing(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(board, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with small_files(4096):
        assert _shared_board(LocalCommunicator()) is not None  # 2,560 bytes
        assert FileBoard.create_file(2) is None
    assert not [*tmp_path.iterdir()]
    assert "no file of 5120 bytes can be made in " in caplog.text and "make room there" in caplog.text


def test_without_the_file_a_run_has_no_board(monkeypatch):
    monkeypatch.setattr(FileBoard, "create_file", lambda _: None)
    assert _shared_board(LocalCommunicator()) is None


class BoardElsewhere(FileBoard):
    """As in a container that has the host's name but files of its own."""

    def __init__(self, path, rank, hosts):
        super().__init__(f"{path}-elsewhere", rank, hosts)


def board_of_containers(ctx):
    """(whether there is a board, warnings)."""
    said = []
    logging.getLogger("fastsample_dist").addHandler(handler := logging.Handler(logging.WARNING))
    handler.emit = lambda record: said.append(record.getMessage())
    context.FileBoard = BoardElsewhere if ctx.rank == 2 else FileBoard
    return _shared_board(ctx.comm) is not None, said


def test_where_a_rank_cannot_open_the_file_all_have_no_board_and_one_warns():
    (first, [warning]), *others = run_distributed(3, board_of_containers)
    assert not first and others == [(False, [])] * 2
    assert warning.startswith(f"rank 2 on {socket.gethostname()} cannot open the file that rank 0 made at ")


def test_a_lane_whose_name_is_too_long_is_not_published():
    path = FileBoard.create_file(1)
    own = FileBoard(path, 0, ["alpha"])
    Path(path).unlink()
    own.publish("0" + ".1" * 20, Status(1, "barrier", 1, 1.0))
    assert own.read("0" + ".1" * 15, [0]) == {0: "made none so far"}


def published(boards, calls_by_rank: dict[int, list[str]]) -> list[Watch]:
    """Watches of all ranks after each has entered its collectives."""
    watches = [Watch(rank, range(3), own) for rank, own in enumerate(boards)]
    for rank, calls in calls_by_rank.items():
        for what in calls:
            watches[rank].enter(5, what)
    return watches


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ({0: ["a", "b"], 1: ["a"], 2: ["a", "b"]}, "rank 1 did not come: last seen "),
        ({0: ["a", "b", "c"], 1: ["a", "b"], 2: ["a"]}, "ranks 1, 2 did not come: rank 2 was last seen "),
        ({0: ["a"], 1: ["a"]}, "rank 2 did not come (made none so far)"),
        ({0: ["a", "b"], 1: ["a", "c"], 2: ["a", "b"]}, "rank 1 makes another collective instead: c"),
        ({0: ["a"], 1: ["a"], 2: ["a"]}, "all ranks are in it, so it is slow"),
    ],
)
def test_the_blame_falls_on_who_is_behind(boards, calls, said, caplog):
    watch = published(boards, calls)[0]
    assert said in watch.diagnosis(DeadlineError(3.0), Deadline(3.0))
    # on a busy machine a moment of waiting is not 0.0 s
    assert re.search(r"rank 0 has waited \d\.\d s; what each rank entered last:\n  rank      step", caplog.text)


def test_after_a_lost_connection_the_ranks_that_are_behind_are_named(boards):
    lost, deadline = PeerLostError("failed because a peer ended"), Deadline(3.0)
    watch = published(boards, {0: ["a", "b"], 1: ["a"], 2: ["a", "b"]})[0]
    assert watch.diagnosis(lost, deadline).startswith(" (rank 1 did not come: last seen ")
    boards[1].publish("0", Status(5, "b", 2, 1.0))
    assert watch.diagnosis(lost, deadline) == ""


def test_after_a_lost_connection_a_rank_that_is_in_another_collective_is_named(boards):
    """It has left a loop early: it waits for the end of the run, or has already ended."""
    watch = published(boards, {0: ["a", "b"], 1: ["a", "barrier of exit"], 2: ["a", "b"]})[0]
    said = watch.diagnosis(PeerLostError("failed because a peer ended"), Deadline(3.0))
    assert said == " (rank 1 makes another collective instead: barrier of exit)"


def test_after_a_lost_connection_a_rank_that_left_in_the_same_collective_is_named(boards):
    """Ranks that leave because of it are not the first."""
    watches = published(boards, {0: ["a", "b"], 1: ["a", "b"], 2: ["a", "b"]})
    lost, deadline = PeerLostError("failed because a peer ended"), Deadline(3.0)
    watches[2].leave_run()
    said = watches[0].diagnosis(lost, deadline)
    if isinstance(boards[0], FileBoard):  # under MPI the run ends with the rank
        assert said == ""
        return
    assert said.startswith(" (rank 2 has ended: last seen ") and said.endswith(" s ago in or after b of step 5)")
    watches[1].leave_run()
    assert watches[0].diagnosis(lost, deadline).startswith(" (ranks 1, 2 have ended: rank 2 was last seen ")
    assert watches[2].diagnosis(lost, deadline).startswith(" (rank 1 has ended: last seen ")


def test_a_rank_that_has_ended_is_named_before_those_that_are_behind():
    store = store_without_connection()
    boards = [StoreBoard(store, rank, "rank 0") for rank in range(3)]
    watches = published(boards, {0: ["a", "b"], 1: ["a"], 2: ["a", "b"]})
    watches[2].leave_run()
    for error in (PeerLostError("failed because a peer ended"), DeadlineError(3.0)):
        assert watches[0].diagnosis(error, Deadline(3.0)).startswith(" (rank 2 has ended: last seen ")


def test_after_a_lost_connection_a_store_that_is_gone_too_names_its_process():
    own = StoreBoard(store_without_connection(), 1, "rank 0")
    own.close()
    said = Watch(1, range(3), own).diagnosis(PeerLostError("failed because a peer ended"), Deadline(3.0))
    assert said == f" ({LOST})"


def test_a_rank_that_may_start_no_thread_leaves_with_its_own_error(monkeypatch):
    """The thread would tell the others; they see the broken connection."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    board = StoreBoard(store_without_connection(), 0, "rank 0")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    board.leave()
    assert board.ended([1]) == []


def test_a_process_has_ended_when_its_number_is_free_or_anothers_as_far_as_it_can_be_seen():
    own = own_process()
    elsewhere, earlier = f"another kernel {own}", own.rsplit(" ", 1)[0] + " 1"
    assert [has_ended(process) for process in (own, elsewhere, earlier)] == [False, False, True]


def test_other_errors_are_not_diagnosed(boards):
    watch = published(boards, {0: ["a", "b"], 1: ["a"]})[0]
    assert watch.diagnosis(CollectiveError("got 1 rows from rank 1, expected 3"), Deadline(3.0)) == ""
    assert Watch(0, [0]).diagnosis(DeadlineError(3.0), Deadline(3.0)) == ""


def test_what_is_derived_has_a_lane_of_its_own(boards):
    first = Watch(0, range(3), boards[0])
    second, third = first.derived("0.1", range(3)), first.derived("0.2", [0, 2])
    first.enter(1, "a")
    third.enter(2, "b")
    lanes = [boards[1].read(lane, [0])[0] for lane in ("0", "0.1", "0.2")]
    assert [lanes[0].what, lanes[1], lanes[2].what] == ["a", "made none so far", "b"]
    second.close()
    assert boards[0].read("0.2", [0])[0].what == "b"


def test_a_sub_group_is_diagnosed_by_its_members_numbers_in_the_run(boards, caplog):
    watches = [Watch(rank, range(3), own).derived("0.1", [2, 1]) for rank, own in enumerate(boards)]
    watches[2].enter(5, "a")
    watches[1].enter(5, "a")
    watches[2].enter(5, "b")
    assert "(rank 1 did not come: last seen " in watches[2].diagnosis(DeadlineError(3.0), Deadline(3.0))
    table = [line.split()[0] for line in caplog.text.splitlines()[2:]]
    assert table == ["1", "2"]


SCRIPT = """
import os, signal, sys, torch
from fastsample_dist import DistContext
stopped = int(sys.argv[1])
with DistContext.from_env(timeout_s=200) as ctx:  # longer than the start of one takes after another's
    for step in range(20):
        ctx.comm.step = step
        ctx.comm.all_reduce(torch.ones(3), purpose="gradients")
        if step == 11:
            ctx.comm.timeout_s = 3.0
            if ctx.rank == stopped:
                os.kill(os.getpid(), signal.SIGSTOP)
        ctx.comm.all_to_all_rows(torch.ones(ctx.world_size, 3), [1] * ctx.world_size, purpose="feature_rows")
"""


STOPPED = [(1, "rank 1 did not come: last seen "), (0, "the store (rank 0) does not answer")]


@pytest.mark.parametrize(("stopped", "said"), grid(STOPPED, gate=STOPPED[:1], several=True))
def test_a_stopped_rank_is_named_by_all_others(stopped, said, tmp_path):
    """Rank 0 serves the store here, so when it is stopped itself, that it does not answer is the diagnosis."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    files = [tmp_path / f"rank-{rank}" for rank in range(3)]
    processes = [
        ForkedPython([script, stopped], {**os.environ, **launch, "RANK": str(rank)}, (file, file))
        for rank, file in enumerate(files)
    ]
    others = [rank for rank in range(3) if rank != stopped]
    try:
        wait_until(lambda: psutil.Process(processes[stopped].pid).status() == psutil.STATUS_STOPPED)
        assert all(processes[rank].wait(ENOUGH_S) != 0 for rank in others)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    texts = [files[rank].read_text() for rank in others]
    assert said in texts[0] and "step 11: all_to_all of counts did not finish within 3 s" in texts[0]
    assert "what each rank entered last" in texts[0]
    assert all(said in text or "because a peer ended" in text for text in texts)


STOPPED_STORE = """
import os, signal, sys, time, torch.distributed as dist
from fastsample_dist.comm.board import Status, StoreBoard
from fastsample_dist.comm.environment import LaunchInfo
from fastsample_dist.comm.rendezvous import board_store
from tests.last import MOMENT, C, at_the_very_end

(out, into), own = os.pipe(), os.getpid()
server = os.fork()
if server == 0:
    for descriptor in (1, 2): os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    os.write(into, str(store.port).encode())
    while os.getppid() == own: time.sleep(0.05)
    os._exit(0)
port = int(os.read(out, 9))
info = LaunchInfo("none", "torch", rank=1, world_size=2, master_addr="127.0.0.1", master_port=port)
store, name = board_store(info, 60.0)
board = StoreBoard(store, 1, name)
os.kill(server, signal.SIGSTOP)
os.waitpid(server, os.WUNTRACED)  # until it is
at_the_very_end((C.kill, server, signal.SIGCONT), MOMENT, (C.kill, server, signal.SIGKILL))
print(QUESTION)
sys.exit(7)
"""
LOST = "the store (rank 0) was lost: its process has ended, or cannot be reached"
FILL = "[board.publish('0', Status(0, 'all_reduce of gradients', 1, 1.0)) for _ in range(100000)]"
QUESTIONS = {
    "board.read('0', [0])": "{0: 'the store (rank 0) does not answer'}\n",
    "[board.read('0', [0]) for _ in range(2)][1]": "{0: 'the store (rank 0) did not answer an earlier question'}\n",
    "board.ended([0])": "[]\n",
    "board.leave()": "None\n",
    f"len({FILL})": "100000\n",  # more than the buffers of its connection hold
    "os.kill(server, signal.SIGKILL) or os.waitpid(server, 0) and board.read('0', [0])": f"{{0: {LOST!r}}}\n",
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_store_that_answers_while_the_interpreter_ends_does_not_abort_it(question):
    command = [sys.executable, "-c", STOPPED_STORE.replace("QUESTION", question)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=ENOUGH_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, QUESTIONS[question], "")


def stop_in_step(ctx):
    ctx.comm.step = 11
    ctx.comm.all_reduce(torch.ones(3), purpose="gradients")
    ctx.comm.timeout_s = TIMEOUT_S
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    ctx.comm.barrier(purpose="epoch")


@needs_mpi
@pytest.mark.grid
def test_mpi_a_stopped_rank_is_named():
    with pytest.raises(RankError) as failed:
        run_mpi(3, stop_in_step, timeout_s=ENOUGH_S)
    assert "rank 1 did not come: last seen " in str(failed.value)

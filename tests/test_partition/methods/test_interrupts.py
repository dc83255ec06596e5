"""Calls beside the main thread: results, errors, Ctrl-C, and SIGTERM's handler when the function replaces it in C."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fastsample_dist.partition
from fastsample_dist.partition.methods import interrupts
from fastsample_dist.partition.methods.interrupts import call_beside
from tests.waiting import ENOUGH_S, wait_until

HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
REPOSITORY = Path(fastsample_dist.partition.__file__).parents[2]
SIGNAL_IN_BETWEEN = """
import os, signal
from fastsample_dist.partition.methods import interrupts
from tests.test_partition.methods.test_interrupts import replace_handler
from tests.waiting import ENOUGH_S, wait_until

interrupts.START_S = ENOUGH_S

def work():
    seen = replace_handler()
    os.kill(os.getpid(), signal.SIGTERM)
    wait_until(lambda: came or seen)
    return seen

came = []
signal.signal(signal.SIGTERM, lambda number, _: came.append(int(number)))
print("C's handler saw", interrupts.call_beside(work))
print("Python's handler saw", came)
"""

# The core's work is a wait for a byte, which comes while the interpreter ends.
RETURNS_LATE = """
import ctypes, os, signal, sys
from fastsample_dist.ops import library
from fastsample_dist.partition.methods import order, streaming
from tests.last import MOMENT, C, at_the_very_end
from tests.test_partition.methods.requests import drawn

class Core:
    def wait(self, *_):
        os.kill(os.getpid(), signal.SIGINT)
        C.read(out, buffer, 1)

    fs_bfs_order = fs_stream_partition = wait

request, core, buffer, (out, into) = drawn(2), Core(), ctypes.create_string_buffer(1), os.pipe()
library.core = lambda: core
at_the_very_end((C.write, into, b"x", 1), MOMENT)
try:
    CALL
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.fixture
def asleep():
    """A function that works until the test is over."""
    over = threading.Event()
    yield lambda: over.wait(ENOUGH_S)
    over.set()


def replace_handler() -> list[int]:
    """What METIS does: a C handler of SIGTERM. What that handler is called with goes into the list."""
    seen = []
    replace_handler.kept = HANDLER(seen.append)
    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, HANDLER]
    library.signal(int(signal.SIGTERM), replace_handler.kept)
    return seen


def test_the_result_comes_back():
    assert call_beside(lambda: 7) == 7


def test_an_error_comes_back():
    with pytest.raises(ValueError, match="of the function"):
        call_beside(lambda: (_ for _ in ()).throw(ValueError("of the function")))


def test_in_another_thread_the_function_is_called_in_place():
    names = []
    thread = threading.Thread(target=call_beside, args=(lambda: names.append(threading.current_thread().name),))
    thread.start()
    thread.join()
    assert names == [thread.name]


def test_ctrl_c_ends_the_wait(asleep):
    ended = []

    def work() -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        ended.append(asleep())

    with pytest.raises(KeyboardInterrupt):
        call_beside(work)
    assert ended == [], "the wait lasted as long as the function"


@pytest.mark.parametrize("call", ["order.bfs_order(request.rows)", "streaming.assign_ldg(request)"])
def test_an_operator_that_is_interrupted_and_returns_while_the_interpreter_ends_does_not_abort_it(call):
    command = [sys.executable, "-c", RETURNS_LATE.replace("CALL", call)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=ENOUGH_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "", "")


def test_a_handler_that_was_not_replaced_reads_the_same_again():
    before = interrupts._installed_handler()
    thread = threading.Thread(target=len, args=("",))  # leaves its marks on the stack, below what is in use
    thread.start()
    thread.join()
    assert interrupts._installed_handler() == before


@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_a_handler_that_is_replaced_is_put_back(asleep, after_s):
    seen = []

    def send_once_put_back(pythons: bytes) -> None:
        wait_until(lambda: seen and interrupts._installed_handler() == pythons)
        os.kill(os.getpid(), signal.SIGTERM)

    def work() -> None:
        time.sleep(after_s)
        pythons = interrupts._installed_handler()
        seen.append(replace_handler())
        threading.Thread(target=send_once_put_back, args=(pythons,), daemon=True).start()
        asleep()

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            call_beside(work)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [[]]


def test_a_signal_before_the_handler_is_put_back_waits():
    # In a process of its own, without the threads of libraries that do not hold the signal back.
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SIGNAL_IN_BETWEEN]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=alone, capture_output=True, text=True, timeout=ENOUGH_S, check=True
    )
    assert done.stdout == "C's handler saw []\nPython's handler saw [15]\n"


def test_a_function_that_sends_itself_sigterm_has_failed():
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(RuntimeError, match="it failed inside"):
            call_beside(lambda: signal.raise_signal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)

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

import partition
from partition.methods.interrupts import call_beside

HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
LONG_S = 60.0
REPOSITORY = Path(partition.__file__).parents[1]
SIGNAL_IN_BETWEEN = """
import os, signal, time
from partition.methods import interrupts
from tests.test_partition.methods.test_interrupts import replace_handler

def work():
    seen = replace_handler()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.3)
    return seen

came = []
signal.signal(signal.SIGTERM, lambda number, _: came.append(int(number)))
print("C's handler saw", interrupts.call_beside(work))
print("Python's handler saw", came)
"""


@pytest.fixture
def asleep():
    """A function that works until the test is over."""
    over = threading.Event()
    yield lambda: over.wait(LONG_S)
    over.set()


def send(number: signal.Signals, after_s: float) -> None:
    threading.Timer(after_s, os.kill, (os.getpid(), number)).start()


def replace_handler() -> list[int]:
    """What METIS does: a C handler of SIGTERM. What that handler is called with stands in the list."""
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
    begin = time.monotonic()
    send(signal.SIGINT, 0.2)
    with pytest.raises(KeyboardInterrupt):
        call_beside(asleep)
    assert time.monotonic() - begin < LONG_S / 2


@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_a_handler_that_is_replaced_is_put_back(asleep, after_s):
    seen = []

    def work() -> None:
        time.sleep(after_s)
        seen.append(replace_handler())
        asleep()

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        send(signal.SIGTERM, 1.5)
        with pytest.raises(KeyboardInterrupt):
            call_beside(work)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [[]]


def test_a_signal_before_the_handler_is_put_back_waits():
    # In a process of its own, without the threads of libraries that do not hold the signal back.
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SIGNAL_IN_BETWEEN]
    done = subprocess.run(command, cwd=REPOSITORY, env=alone, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "C's handler saw []\nPython's handler saw [15]\n"


def test_a_function_that_sends_itself_sigterm_has_failed():
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(RuntimeError, match="it failed inside"):
            call_beside(lambda: signal.raise_signal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)

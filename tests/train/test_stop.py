"""StopSignal: what a signal does within its block, after it, and on the other ranks."""

import os
import signal
import threading
import time

import pytest

from fastsample_dist.testing import run_distributed
from fastsample_dist.train import stop as stop_module
from fastsample_dist.train.stop import StopSignal
from tests.waiting import NEVER_S, wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_and_nothing_else_happens(monkeypatch, number):
    monkeypatch.setattr(stop_module, "REPEAT_S", NEVER_S)
    with StopSignal() as stop:
        before = stop.requested
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # launchers pass on what the terminal has sent already
        wait_until(lambda: stop.requested)
        assert not before


def test_a_second_signal_after_a_while_ends_it_at_once(monkeypatch):
    monkeypatch.setattr(stop_module, "REPEAT_S", 0.0)
    with pytest.raises(KeyboardInterrupt), StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: stop.requested)
        time.sleep(0.01)  # longer than REPEAT_S
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: False, "the end by the second signal")


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in stop_module.SIGNALS]
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in stop_module.SIGNALS] == before


def test_another_thread_may_use_it_without_handlers():
    found = []

    def use():
        with StopSignal() as stop:
            stop.request()
            found.append(stop.requested)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [True]


def one_signalled(ctx):
    with StopSignal() as stop:
        before = stop.agreed(ctx.comm)
        if ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return before, stop.agreed(ctx.comm), stop.requested, ctx.comm.stats()["stop"]


def test_one_signalled_rank_stops_all_at_the_same_step():
    counts = {"calls": 2, "bytes_sent": 16, "bytes_received": 16}
    expected = [(False, True, rank == 1, counts) for rank in range(3)]
    assert run_distributed(3, one_signalled) == expected

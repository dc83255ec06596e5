"""Prefetcher: makes the next batches in a background thread.

Permission, not a queue length, decides how far ahead the thread goes: it may make batch t only after batch
t - depth was taken. When all ranks stop at the same batch, their threads have therefore been allowed, and finish,
the same collectives, and a loader left early hangs nobody. When the consumer leaves by an exception nothing is
waited for: the other ranks' collectives fail or pass their deadline. The thread is a daemon: it never keeps a
process alive. For a GPU it works on a stream of its own (streams.py).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch

from fastsample_dist.device.streams import Lane

Given = TypeVar("Given")
Made = TypeVar("Made")


class _Raised:
    """An exception on its way from the thread to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Prefetcher(Generic[Given, Made]):
    """Iterator over make(given) for every given, made up to `depth` ahead in order.

    Args:
      make: called in the background thread, one at a time, in the order of `given`.
      given: inputs.
      depth: batches made ahead of the one being used, at least 1.
      timeout_s: how long `close` waits for the batches already permitted.
      lane: where the thread's work goes, and how the consumer receives it; None: to the CPU.
    """

    def __init__(
        self, make: Callable[[Given], Made], given: Iterable[Given], depth: int, timeout_s: float,
        lane: Lane | None = None,
    ) -> None:  # fmt: skip
        self._make, self._given, self._timeout_s = make, list(given), timeout_s
        self._lane = lane or Lane()
        self._permitted, self._stopping = depth, False
        self._changed = threading.Condition()  # guards the two above
        self._made: queue.SimpleQueue[tuple[Made, Any] | _Raised] = queue.SimpleQueue()
        self._num_threads = torch.get_num_threads()  # a new thread would start from OpenMP's default
        self._lane.start()
        self._thread = threading.Thread(target=self._work, name="fastsample-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Made]:
        for _ in self._given:
            made = self._made.get()
            if isinstance(made, _Raised):
                raise made.error
            self._lane.receive(*made)
            with self._changed:
                self._permitted += 1
                self._changed.notify()
            yield made[0]

    def close(self) -> None:
        """Let the thread finish what it was permitted, then end it.

        Raises:
          RuntimeError: it did not end within timeout_s.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(self._timeout_s)
        if self._thread.is_alive():
            raise RuntimeError(f"the prefetch thread did not finish its batches within {self._timeout_s:g} s.")

    def _work(self) -> None:
        torch.set_num_threads(self._num_threads)
        try:
            with self._lane.working():
                self._make_all()
        except BaseException as error:  # the consumer raises it: this thread has nobody to report to
            self._made.put(_Raised(error))

    def _make_all(self) -> None:
        for number, given in enumerate(self._given):
            with self._changed:
                self._changed.wait_for(lambda number=number: number < self._permitted or self._stopping)
                if number >= self._permitted:
                    return
            self._made.put((self._make(given), self._lane.made()))

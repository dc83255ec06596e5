"""Training ends between two steps, at the same step on every rank, where any rank is to stop.

A signal (StopSignal: Ctrl-C and SIGTERM) reaches the ranks at different moments, or only one of them; a user's callback
may end training on one rank alone. After a step the ranks run one small collective and all stop if any is to.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import torch

from fastsample_dist.comm.base import Communicator

SIGNALS = (signal.SIGINT, signal.SIGTERM)
REPEAT_S = 2.0
"""Launchers forward a signal that the terminal has sent already; one that comes later means "at once"."""


def any_rank_stops(comm: Communicator, stop: bool) -> bool:
    """Whether any rank is to stop: the same answer on all. Purpose "stop", 8 bytes.

    Collective: every rank must call this, after the same step.
    """
    asked = torch.tensor([stop], dtype=torch.int64)
    return bool(comm.all_reduce(asked, op="max", purpose="stop").item())


class StopSignal:
    """Within a `with` block, records SIGINT and SIGTERM. A second one, REPEAT_S later, has its usual effect.

    Outside the main thread, where Python allows no handlers, signals keep their effect and only `request` counts.
    """

    def __init__(self) -> None:
        self._noted_s: float | None = None
        self._before: dict[int, object] = {}
        self._calls: Callable[[], object] | None = None

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def requested(self) -> bool:
        """Whether this rank was asked to stop."""
        return self._noted_s is not None

    def request(self) -> None:
        """Stop as if a signal had come."""
        self._noted_s = time.monotonic() if self._noted_s is None else self._noted_s
        if self._calls is not None:
            self._calls()

    def calls(self, function: Callable[[], object]) -> None:
        """Call `function` whenever a stop is requested, such as Run.request_meeting; at once if one was."""
        self._calls = function
        if self.requested:
            function()

    def agreed(self, comm: Communicator) -> bool:
        """Whether any rank was asked to stop: the same answer on all. Collective: as `any_rank_stops`."""
        return any_rank_stops(comm, self.requested)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._noted_s is not None and time.monotonic() - self._noted_s > REPEAT_S:
            self.__exit__()
            signal.raise_signal(number)
        self.request()

"""The deadline of a collective, and the reasons for which one fails."""

from __future__ import annotations

import math
import threading
import time

from fastsample_dist.ops import checks

DEFAULT_TIMEOUT_S = 600.0


class CollectiveError(Exception):
    """Raised by a backend's primitive: its text is the reason; `Communicator` adds rank, step and purpose."""


class PeerLostError(CollectiveError):
    """The connection to another rank broke, usually because its process ended."""


class DeadlineError(CollectiveError):
    """The deadline passed before the collective finished."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"did not finish within {timeout_s:g} s: not every rank took part; find the rank that ended, is "
            "still busy or runs another collective, or raise timeout_s"
        )


class AstrayError(CollectiveError):
    """Another rank has entered another collective than this one."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"failed: rank {rank} is in another one; all ranks must make the same calls in the same order")


class Deadline:
    """The moment until which one collective, with all its rounds, may take.

    Args:
      timeout_s: seconds from now.
      aborted: set by another thread when this rank leaves the run; ends the wait as well.
    """

    def __init__(self, timeout_s: float, aborted: threading.Event | None = None) -> None:
        self.timeout_s = timeout_s
        self._aborted = aborted
        self._start_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the collective began."""
        return time.monotonic() - self._start_s

    @property
    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.timeout_s - self.elapsed_s)

    def check(self) -> None:
        """Raise `DeadlineError` once the time is up, `CollectiveError` once the rank leaves."""
        if self._aborted is not None and self._aborted.is_set():
            raise CollectiveError("was interrupted because this rank is leaving the run")
        if self.remaining_s == 0.0:
            raise DeadlineError(self.timeout_s)


def check_timeout_s(timeout_s: float, name: str = "timeout_s") -> float:
    """`timeout_s` as a float; `name` is that of the argument.

    Raises:
      ValueError: not a finite number above 0.
    """
    timeout_s = checks.plain(timeout_s)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise ValueError(f"{name} is {timeout_s!r}; expected a number of seconds above 0.")
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"{name} is {timeout_s}; expected a finite number of seconds above 0.")
    return float(timeout_s)

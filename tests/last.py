"""Calls into C while the interpreter ends: then Python unwinds a daemon thread that comes back to it from C, which
aborts the process where frames of C++ lie between.
"""

import ctypes
import sys
import types
from collections.abc import Callable

C = ctypes.CDLL(None)
MOMENT = (C.usleep, 300_000)  # for a thread to come back


def at_the_very_end(*calls: tuple[Callable[..., int], ...]) -> None:
    """Make these calls, each a function of C with its arguments, when the exit functions are done and modules go."""
    sys.modules["last"] = types.ModuleType("last")
    sys.modules["last"].calls = _Calls(calls)


class _Calls:
    def __init__(self, calls: tuple[tuple[Callable[..., int], ...], ...]) -> None:
        self._calls = calls

    def __del__(self) -> None:
        for function, *arguments in self._calls:
            function(*arguments)

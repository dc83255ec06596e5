"""An interrupt that Python drops is raised again.

A signal's handler runs between any two instructions of the main thread, also inside of a `__del__` or of a callback of
weakref or gc. A KeyboardInterrupt raised there ends nothing: Python prints "Exception ignored in" and continues, and
Ctrl-C is lost. Training frees tensors of the compiled core by a `__del__` all the time, so that is no rare event.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable

AGAIN_S = 0.001  # until the code that dropped it is left


def raise_dropped_interrupts(forget: Callable[[], object] = lambda: None) -> None:
    """From now on the main thread gets SIGINT again after a KeyboardInterrupt that Python has dropped, without a word.

    A second call does nothing.

    Args:
      forget: called before, for a handler that remembers the first signal.
    """
    usual = sys.unraisablehook
    if getattr(usual, "__module__", None) == __name__:
        return

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt) or sys.is_finalizing():
            usual(dropped)
            return
        forget()
        _thread.start_new_thread(_interrupt, ())  # threading.Thread takes locks, which the interrupted code may hold

    sys.unraisablehook = hook


def _interrupt() -> None:
    time.sleep(AGAIN_S)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

"""How long tests wait: limits that say "it is stuck", never "it is slow".

On a machine that others load all takes ten times as long, so no test compares a clock with a number of seconds, except
from below (it waited at least as long as it was asked to). That something ends by itself, and not at a deadline, is
shown by a deadline (NEVER_S) longer than the test waits.
"""

import time
from collections.abc import Callable

ENOUGH_S = 300.0  # for anything that takes some seconds
BUILD_S = 7200.0  # for compilers, and for test suites within a test
NEVER_S = 3600.0  # what must not be waited for: a deadline, a grace or a sleep of the code under test


def wait_until(condition: Callable[[], object], what: str = "what the test waits for") -> None:
    """Return once the condition holds.

    Raises:
      AssertionError: it did not within ENOUGH_S.
    """
    end_s = time.monotonic() + ENOUGH_S
    while not condition():
        assert time.monotonic() < end_s, f"{what} did not happen within {ENOUGH_S:g} s"
        time.sleep(0.02)

"""Becomes another command that gets SIGTERM when its parent ends (Linux); runs as a file of its own, see supervisor.py.

python -I -S follow.py PARENT_PID COMMAND ...
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set the signal, which the next program keeps, and become it."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(sys.argv[1]):  # it ended before that
            sys.exit(128 + signal.SIGTERM)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"{sys.argv[2]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()

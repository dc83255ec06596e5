"""A module named kaminpar for the process that imports it, whose call works, fails or never ends as a test wants."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import ENOUGH_S

FOREVER = f"time.sleep({ENOUGH_S})"
_MODULE = """
import os, signal, time

class GraphFileFormat:
    PARHIP = 1

class KaMinPar:
    def __init__(self, num_threads, context):
        self.num_threads = num_threads

    def compute_partition(self, num_nodes, num_parts, imbalance):
        {call}
        return [node % num_parts for node in range(num_nodes)]

def load_graph(file, form, compressed):
    return int.from_bytes(open(file, "rb").read(16)[8:], "little")

def reseed(seed):
    pass

def context_by_name(name):
    pass
"""


@contextmanager
def played_kaminpar(folder: Path) -> Iterator[Callable[[str], None]]:
    """A function of what the call does before it returns the parts: a line of Python with os, signal, time and self.

    Args:
      folder: a new directory for the module.
    """
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))

        def play(call: str) -> None:
            (folder / "kaminpar.py").write_text(_MODULE.format(call=call))

        play("pass")
        yield play


def signal_parent(name: str, pid_file: Path) -> str:
    """A call that leaves its process's id in a file, sends its parent a signal and never ends."""
    return f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); os.kill(os.getppid(), signal.{name}); {FOREVER}"


def is_running(pid_file: Path) -> bool:
    """Whether the process whose id is in the file has not ended."""
    try:
        return Path(f"/proc/{pid_file.read_text()}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False

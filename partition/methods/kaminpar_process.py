"""KaMinPar in a process of its own, which its parent may end at any time; runs as a file of its own, see kaminpar.py.

    python -I -S kaminpar_process.py JOB

JOB is JSON, see kaminpar.py. Nothing is imported but the standard library and kaminpar, so that nearly all memory is
KaMinPar's: it maps the graph's file, whose pages are given back while it is read (page_out_file of the core). Linux
kills the process when its parent ends. Exit status: 0 the parts are in their file, 1 a line on standard error says why
not.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PR_SET_PDEATHSIG = 1
CHUNK_NODES = 1 << 20
PAGE_OUT_MS = 50  # a sweep over a file brings in less than 100 MB meanwhile


def main() -> None:
    """Read the graph, cut it, write the parts."""
    job = json.loads(sys.argv[1])
    follow(job["parent"])
    sys.path[:] = job["import_path"]
    try:
        write_parts(cut(job), Path(job["parts"]))
    except Exception as error:  # whatever it is: the parent reports the line
        sys.exit(f"{type(error).__name__}: {error}")


def follow(parent: int) -> None:
    """End this process when its parent ends (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before that
            sys.exit("its parent has ended")


def cut(job: dict) -> list[int]:
    """The part of each node."""
    import kaminpar

    with paged_out(job["core"], job["graph"]):
        graph = kaminpar.load_graph(job["graph"], kaminpar.GraphFileFormat.PARHIP, True)
    kaminpar.reseed(job["seed"])
    solver = kaminpar.KaMinPar(job["num_threads"], kaminpar.context_by_name(job["context"]))
    return solver.compute_partition(graph, job["num_parts"], job["imbalance"])


@contextmanager
def paged_out(core: str, file: str) -> Iterator[None]:
    """Inside the block the pages of this mapped file do not stay; in C, as load_graph keeps Python's lock.

    Args:
      core: the library.
      file: absolute, without links.
    """
    function, stop = ctypes.CDLL(core).fs_page_out_file, ctypes.c_int32(0)
    function.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int32))
    thread = threading.Thread(target=function, args=(os.fsencode(file), PAGE_OUT_MS, ctypes.byref(stop)), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.value = 1
        thread.join()


def write_parts(parts: list[int], path: Path) -> None:
    """Write the parts as 32-bit integers; the file appears when complete."""
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            for begin in range(0, len(parts), CHUNK_NODES):
                file.write(array.array("i", parts[begin : begin + CHUNK_NODES]))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:  # a write does not say which file
        error.filename = error.filename or str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    main()

"""`kaminpar`: multi-threaded multilevel partitioning (Gottesbueren et al., ESA 2021; compressed: TeraPart, 2025) for
graphs too large for METIS.

KaMinPar's Python package reads a graph only from a file, so the graph is written to one (parhip.py) chunk by chunk, and
read back compressed. It takes one weight per node: 1 + in-edges. Balancing in-edges costs more of the cut than
balancing nodes, so the nodes are left for levelling afterwards, which finds enough nodes whose move costs little. The
seed is passed on, but the same seed may give other parts: they depend on how threads interleave.

The call (kaminpar 3.7.3) keeps Python's lock, and its memory depends on how fast the graph shrinks, which is not known
before. So it is made in a process of its own (kaminpar_process.py): Ctrl-C and SIGTERM end it at once, and so does
this process when both together would hold more than `memory_limit`. In the work directory of a graph that is sorted on
disk the file stays until KaMinPar is done: a run that is killed during the call resumes with the call.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from fastsample_dist.files import complete_file, locked_folder, naming_file, remove_stale
from fastsample_dist.memory_sizes import format_size, resident_sizes
from fastsample_dist.ops import library
from fastsample_dist.partition.methods.constraints import InDegrees
from fastsample_dist.partition.methods.parhip import write_parhip
from fastsample_dist.partition.methods.request import (
    MissingPackageError,
    PartitionRequest,
    fill_empty_parts,
    importable,
)
from fastsample_dist.partition.methods.simple import assign_random

IMBALANCE = 0.02
PREFIX = "fastsample-kaminpar-"  # of directories for temporary files
PROGRAM = Path(__file__).with_name("kaminpar_process.py")
WATCH_S = 0.1  # how often the process's memory is looked at
LOG_BYTES = 4096  # held from the start for what the process prints, so that a full disk does not hide why it failed
# Where its label propagation would coarsen a graph with communities beyond the size at which it is cut in num_parts,
# this preset stops in between; "terapart" then copies all edges to cut the finer graph: 1.5 GB in place of 0.2 for 60 M
# entries of planted communities, and twice the time. Cuts are 9 % smaller (debian-files) to 4 % larger.
CONTEXT = "terapart-largek"


def missing_kaminpar() -> str:
    """See Method.missing."""
    return "" if importable("kaminpar") else "pip install 'fastsample_dist[kaminpar]'"


def require_kaminpar() -> None:
    """Refuse where the package is not installed; it is imported by the process alone.

    Raises:
      MissingPackageError: kaminpar is not installed.
    """
    if not importable("kaminpar"):
        raise MissingPackageError("method kaminpar needs kaminpar, which is not there; pip install kaminpar")


def assign_kaminpar(request: PartitionRequest) -> np.ndarray:
    """Cut few edges, balancing nodes and in-edges in one weight.

    Args:
      request: what to cut; `num_threads` threads work. With `work`, what is finished there is used again: the graph's
        file, and the parts.
    Returns:
      int32 [num_nodes]; no part is empty.
    Raises:
      MissingPackageError: kaminpar is not installed.
      ValueError: both processes together would hold more than `memory_limit`.
      RuntimeError: KaMinPar failed or was killed.
      OSError: no room for the temporary file (in `work`, else TMPDIR names its directory).
    """
    require_kaminpar()
    if request.num_parts == 1:
        return np.zeros(request.num_nodes, dtype=np.int32)
    adjacency = request.adjacency
    if len(adjacency.indices) == 0:
        return assign_random(request)
    with _directory(request.work) as directory:
        graph, parts = directory / "kaminpar.graph", directory / "kaminpar.parts"
        if not parts.exists():
            if not graph.exists():
                with complete_file(graph, durable=request.work is not None) as partial:
                    write_parhip(partial, adjacency, InDegrees(request.graph.indptr.numpy()))
            _run(request, graph, parts)
            graph.unlink()
        found = np.fromfile(parts, dtype=np.int32)
    fill_empty_parts(found, request.num_parts, adjacency.indptr)
    return found


@contextmanager
def _directory(work: Path | None) -> Iterator[Path]:
    """`work`, or a directory that is removed at the end, as those of killed runs are."""
    if work is not None:
        yield work
        return
    remove_stale(PREFIX)
    with locked_folder(PREFIX) as directory:
        yield directory


def _run(request: PartitionRequest, graph: Path, parts: Path) -> None:
    """Let a process make the file of parts from the graph's."""
    job = {
        "parent": os.getpid(),
        "import_path": sys.path,
        "core": str(library.LIBRARY_DIR / "libfastsample.so"),
        "graph": str(graph.resolve()),
        "parts": str(parts),
        "num_parts": request.num_parts,
        "imbalance": IMBALANCE,
        "seed": request.seed,
        "num_threads": library.num_threads(request.num_threads),
        "context": CONTEXT,
    }
    command = [sys.executable, "-I", "-S", str(PROGRAM), json.dumps(job)]
    log = graph.with_name("kaminpar.log")
    with naming_file(log):  # closing the file refuses, too
        log.write_bytes(b"\n" * LOG_BYTES)
    with log.open("r+b") as output:
        # In a session of its own: Ctrl-C reaches this process alone, which then ends the other.
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, **streams, start_new_session=True)
        try:
            held = _watch(process, request)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise RuntimeError(_failure(process.returncode, log.read_text(errors="replace"), held))
    log.unlink()


def _watch(process: subprocess.Popen, request: PartitionRequest) -> int:
    """Wait for the process; returns the most memory that it held when it was looked at.

    Pages of the graph's file do not count: the system takes them back when memory is short.

    Raises:
      ValueError: together with this process it holds more than the memory limit.
    """
    most = 0
    while process.poll() is None:
        held, own = resident_sizes(process.pid).get("RssAnon", 0), resident_sizes(os.getpid()).get("VmRSS", 0)
        most = max(most, held)
        request.progress.memory_held(own + held)
        if request.memory_limit is not None and own + held > request.memory_limit:
            raise ValueError(
                f"KaMinPar held {format_size(held)} and this process {format_size(own)} when it was ended, more than "
                f"the memory limit of {format_size(request.memory_limit)}; pass a larger --memory-limit if the "
                f"machine has it, or another --method, see --plan."
            )
        with suppress(subprocess.TimeoutExpired):
            process.wait(WATCH_S)
    return most


def _failure(status: int, log: str, held: int) -> str:
    """One line about a process that ended with another status than 0."""
    lines = log.split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    if status == -signal.SIGKILL:
        return (
            f"KaMinPar was killed when it held {format_size(held)}, as the system does when memory is short; free "
            f"memory, or pass another --method, see --plan."
        )
    if status < 0:
        return f"KaMinPar crashed with {signal.Signals(-status).name} ({said}); try again, or pass another --method."
    return f"KaMinPar failed: {said}"

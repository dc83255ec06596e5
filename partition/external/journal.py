"""What a partitioning has finished, on disk, so that a killed run resumes where it was.

The work directory is beside the output, `.<name>.work`, and has journal.json: a state per step with the digest of
what the step was made from. A step whose digest differs, and all later ones, start again; so does everything when the
file is damaged. Data reach the disk before the journal records them. A lock, which ends with the process, keeps a
second run out.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.files import write_text
from fastsample_dist.graph.inputs.scratch import Scratch
from fastsample_dist.graph.listed_rows import ListedRows
from fastsample_dist.graph.npy_files import CHUNK_BYTES, drop_pages
from fastsample_dist.graph.row_segments import RowSegments

JOURNAL_NAME = "journal.json"
INPUT_FOLDER = "input"  # of the work directory: files made from the input
FORMAT = "fastsample-partition-work-1"
STEPS = ("count", "group", "sort", "link_count", "link_group", "link_sort", "assign", "cluster", "write")
SAMPLED_BLOCKS, BLOCK_BYTES = 64, 4096


def work_directory(output: str | Path) -> Path:
    """Where the unfinished work on an output is kept."""
    target = Path(output).absolute()
    return target.parent / f".{target.name}.work"


@contextmanager
def input_scratch(output: str | Path) -> Iterator[Scratch]:
    """Where reading the input of an output may make files: in the work directory.

    They are kept, as the work directory is, when a run ends early and a later one will resume.
    """
    work = work_directory(output)
    try:
        with Scratch(work / INPUT_FOLDER, keep=(work / JOURNAL_NAME).is_file) as scratch:
            yield scratch
    finally:
        if work.is_dir() and not any(work.iterdir()):
            work.rmdir()


class WorkInUseError(ValueError):
    """Another run is at work on the same output: its work directory is not to be touched."""


class Journal:
    """The work directory of one output; a context manager that holds its lock.

    Leaving the block keeps the directory, unless no step was finished or `remove` was called.

    Args:
      output: the partition's directory.
    Attributes:
      path: the work directory.
    Raises:
      WorkInUseError: another run is at work on the same output. ValueError: the directory cannot be made or locked.
    """

    def __init__(self, output: str | Path) -> None:
        self.path = work_directory(output)
        self._steps: dict[str, dict[str, Any]] = {}
        self._lock: int | None = None

    def __enter__(self) -> Journal:
        try:
            self.path.mkdir(exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ValueError(f"{self.path} cannot be made ({error.strerror}); choose another output.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise WorkInUseError(
                f"{self.path} is in use by another run; wait for it or choose another output."
            ) from None
        except OSError as error:  # Lustre and NFS mounted without locks
            os.close(self._lock)
            if not (self.path / JOURNAL_NAME).exists():
                self.remove()
            raise ValueError(
                f"{self.path} cannot be locked ({error.strerror}), which keeps a second run away; choose an output on "
                "a file system with locks."
            ) from error
        self._steps = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        if not any(self.finished(step) for step in STEPS):
            self.remove()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Delete the work directory."""
        shutil.rmtree(self.path, ignore_errors=True)

    def begin(self, step: str, source: Any) -> dict[str, Any]:
        """State of a step made from `source` (plain values); empty when it has to start again."""
        digest = hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()
        if self._steps.get(step, {}).get("source") != digest:
            self.restart(step)
            self._steps[step] = {"source": digest}
        return dict(self._steps[step].get("state", {}))

    def restart(self, step: str) -> None:
        """Forget the state of a step and of all later ones."""
        for name in STEPS[STEPS.index(step) :]:
            if name in self._steps:
                self._steps[name].pop("state", None)
                if name != step:
                    del self._steps[name]

    def save(self, step: str, **state: Any) -> None:
        """Replace the state of a step that `begin` has opened; durable on return."""
        self._steps[step]["state"] = state
        write_text(self.path / JOURNAL_NAME, json.dumps({"format": FORMAT, "steps": self._steps}), durable=True)

    def finished(self, step: str) -> bool:
        """Whether a step is recorded as done."""
        return bool(self._steps.get(step, {}).get("state", {}).get("done"))

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            document = json.loads((self.path / JOURNAL_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet, or cut short: everything starts again
            return {}
        return document["steps"] if isinstance(document, dict) and document.get("format") == FORMAT else {}


def fingerprint(array: np.ndarray | RowSegments | ListedRows | None) -> Any:
    """Plain values that change when an array's contents do.

    For a mapped file: its size, time of last change and a SHA-256 of blocks spread over it; for memory: a SHA-256 of
    all.
    """
    if array is None:
        return None
    if isinstance(array, RowSegments):
        return [item if isinstance(item, int) else fingerprint(item) for item in array.segments]
    if isinstance(array, ListedRows):
        return [fingerprint(array.indptr), fingerprint(array.sources)]
    shape = [array.dtype.str, list(array.shape)]
    digest = hashlib.sha256()
    if isinstance(array, np.memmap) and array.filename is not None:
        with Path(array.filename).open("rb") as file:
            status = os.fstat(file.fileno())
            for block in range(SAMPLED_BLOCKS):
                file.seek(status.st_size * block // SAMPLED_BLOCKS)
                digest.update(file.read(BLOCK_BYTES))
        return [*shape, status.st_size, status.st_mtime_ns, digest.hexdigest()]
    flat = array.reshape(-1)
    step = max(1, CHUNK_BYTES // max(1, flat.itemsize))
    for lo in range(0, len(flat), step):
        digest.update(np.ascontiguousarray(flat[lo : lo + step]).view(np.uint8).data)
        drop_pages(flat)
    return [*shape, digest.hexdigest()]

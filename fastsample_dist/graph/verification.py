"""Comparing the files of a partition with its manifest, once per copy.

Taking the SHA-256 of a large partition takes minutes, so what was compared is remembered, one small JSON per room
(topology, part-<p>), so that the ranks of a machine write none of them at the same time:

    PARTS/.verified/<room>.json                                           where PARTS can be written
    $XDG_CACHE_HOME (~/.cache)/fastsample_dist/verified/<hash of PARTS>/<room>.json       elsewhere

An entry holds what the system reports of the file (device, inode, size, times of change) and the checksum found.
It counts only while all of that and the manifest's checksum are the same: a file that was copied, replaced or written
to is read again. Among them is the inode's own change time (ctime), which programs cannot set back. A file that
changed too recently for a later change to show in its times is compared, but not remembered. The manifest does not
list the records, and nothing else reads them: deleting them only means that everything is compared again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

from fastsample_dist.files import cache_home
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.graph.npy_files import CHUNK_BYTES
from fastsample_dist.graph.storage import refuse_altered, sized_file

logger = logging.getLogger(__name__)

RECORDS = ".verified"
MAX_THREADS = 8  # a disk or the page cache gives no more than a few readers' worth
_ENTRIES_PER_FILE = 8  # machines that mount one copy see it as different devices; each has its entry
_FINE_TICK_S = 0.1  # time stamps step by the kernel's tick, 10 ms at most
_COARSE_TICK_S = 2.0  # where they hold whole seconds


class FileState(NamedTuple):
    """What the system reports of a file; equal as long as nobody replaced it or wrote to it."""

    device: int
    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        """The state that os.stat or os.fstat reports."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def is_settled(self, now_ns: int) -> bool:
        """Whether a change from `now_ns` on would show in the times."""
        tick_s = _FINE_TICK_S if self.ctime_ns % 10**9 else _COARSE_TICK_S
        return now_ns - self.ctime_ns > tick_s * 1e9


@dataclass(frozen=True)
class VerificationState:
    """How far a verification has got.

    Attributes:
      refusal: what is wrong with the first file found missing, altered or unreadable; None: nothing so far.
      is_done: nothing is left to be compared.
      bytes_done, bytes_total: of the files that are read; those that are remembered do not count.
    """

    refusal: str | None
    is_done: bool
    bytes_done: int
    bytes_total: int


class Verification:
    """Compares files with the manifest in background threads: a context manager, which starts and stops them.

    Args:
      path: the partition's directory.
      manifest: of that directory.
      relpaths: names as in manifest.files.
      full: compare files that are remembered, too.
      num_threads: that read and hash; None: one per processor, at most MAX_THREADS.
    Attributes:
      states: of the files that were found to be what the manifest says, by name; complete when all is compared.
    """

    def __init__(
        self,
        path: str | Path,
        manifest: Manifest,
        relpaths: Iterable[str],
        *,
        full: bool = False,
        num_threads: int | None = None,
    ) -> None:
        self._path, self._manifest, self._records = Path(path), manifest, _Records(Path(path))
        relpaths = list(relpaths)
        self.states = {} if full else known_states(path, manifest, relpaths, self._records)
        names = [name for name in relpaths if name not in self.states]
        self._names = sorted(names, key=lambda name: -manifest.files[name]["bytes"])
        self.bytes_total = sum(manifest.files[name]["bytes"] for name in names)
        self._bytes_done, self._stop, self._lock = 0, threading.Event(), threading.Lock()
        self._results: dict[str, FileState | None] = {}  # None: not sound, forget what was known of it
        threads = num_threads or min(MAX_THREADS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(max(1, min(threads, len(names))), thread_name_prefix="verify")
        self._futures: list[Future[None]] = []

    def __enter__(self) -> Verification:
        self._futures = [self._pool.submit(self._compare, name) for name in self._names]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._records.save({name: (state, self._expected(name)) for name, state in self._results.items()})

    def wait(self, timeout_s: float | None = None) -> VerificationState:
        """Wait until all is compared or something is wrong, at most `timeout_s`."""
        done, _ = wait(self._futures, timeout_s, return_when="FIRST_EXCEPTION")
        errors = [error for error in (future.exception() for future in done) if error is not None]
        for error in errors:
            if not isinstance(error, ValueError):
                raise error
        is_done = bool(errors) or len(done) == len(self._futures)
        return VerificationState(str(errors[0]) if errors else None, is_done, self._bytes_done, self.bytes_total)

    def _expected(self, name: str) -> str:
        return str(self._manifest.files[name]["sha256"])

    def _compare(self, name: str) -> None:
        file = sized_file(self._path, self._manifest, name)
        try:
            found, state, is_settled = self._hash(file)
        except OSError as error:
            raise ValueError(f"{file} cannot be read ({error.strerror}); copy it again.") from error
        if found is None:
            return  # stopped
        is_sound = found == self._expected(name)
        with self._lock:
            if is_sound and state is not None:
                self.states[name] = state
            if (state is not None and is_settled) or not is_sound:
                self._results[name] = state if is_sound else None
        if not is_sound:
            raise refuse_altered(file, found, self._expected(name))

    def _hash(self, file: Path) -> tuple[str | None, FileState | None, bool]:
        """SHA-256, None when stopped; the state that was read, None when the file has changed meanwhile; whether any
        later change would show in it.
        """
        digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
        with file.open("rb", buffering=0) as opened:
            before, start_ns = FileState.of(os.fstat(opened.fileno())), time.time_ns()
            while count := opened.readinto(buffer):
                if self._stop.is_set():
                    return None, None, False
                digest.update(buffer[:count])
                with self._lock:
                    self._bytes_done += count
            is_same = FileState.of(os.fstat(opened.fileno())) == before
        return digest.hexdigest(), before if is_same else None, before.is_settled(start_ns)


def known_states(
    path: str | Path, manifest: Manifest, relpaths: Iterable[str], records: _Records | None = None
) -> dict[str, FileState]:
    """The states of those files that, as they are, were found to be what the manifest says.

    Args:
      path: the partition's directory.
      manifest: of that directory.
      relpaths: names as in manifest.files.
      records: of that directory; None reads them.
    """
    records = records or _Records(Path(path))
    states = {name: records.known_state(name, manifest) for name in relpaths}
    return {name: state for name, state in states.items() if state is not None}


class _Records:
    """What was compared earlier, beside a partition and in the user's cache directory."""

    def __init__(self, path: Path) -> None:
        self._path = resolved = path.resolve()
        self._beside = resolved / RECORDS
        key = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:24]
        self._cached = cache_home() / "fastsample_dist" / "verified" / key
        self._known: dict[str, dict[str, list[dict[str, Any]]]] = {}  # by room, read on first use

    def known_state(self, name: str, manifest: Manifest) -> FileState | None:
        """The state of the file as it is, if it was found to have the manifest's checksum; else None."""
        room = _room(name)
        if room not in self._known:
            self._known[room] = _joined(_read(folder / f"{room}.json") for folder in (self._beside, self._cached))
        try:
            state = FileState.of((self._path / name).stat())
        except OSError:
            return None
        return state if _entry(state, manifest.files[name]["sha256"]) in self._known[room].get(name, []) else None

    def save(self, results: dict[str, tuple[FileState | None, str]]) -> None:
        """Remember files as they are now (state, checksum), or forget them (None, _)."""
        rooms: dict[str, dict[str, tuple[FileState | None, str]]] = {}
        for name, result in results.items():
            rooms.setdefault(_room(name), {})[name] = result
        is_saved = True
        for room, own in sorted(rooms.items()):
            forgets = any(state is None for state, _ in own.values())
            for folder in (self._beside, self._cached):
                record = folder / f"{room}.json"
                if _write(record, _changed(_read(record), own)) and not forgets:
                    break
            else:
                is_saved = is_saved and forgets
        if not is_saved:
            logger.warning(
                "%s will be compared with its checksums at every start: neither %s nor %s can be written",
                self._path, self._beside, self._cached,
            )  # fmt: skip


def _changed(
    files: dict[str, list[dict[str, Any]]], results: dict[str, tuple[FileState | None, str]]
) -> dict[str, list[dict[str, Any]]]:
    """A record with new entries in it, the newest last."""
    for name, (state, sha256) in results.items():
        if state is None:
            files.pop(name, None)
            continue
        others = [old for old in files.get(name, []) if (old.get("device"), old.get("inode")) != state[:2]]
        files[name] = [*others, _entry(state, sha256)][-_ENTRIES_PER_FILE:]
    return files


def _room(name: str) -> str:
    return PurePosixPath(name).parts[0]


def _entry(state: FileState, sha256: str) -> dict[str, Any]:
    return {**state._asdict(), "sha256": sha256}


def _joined(records: Iterable[dict[str, list[dict[str, Any]]]]) -> dict[str, list[dict[str, Any]]]:
    joined: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        for name, entries in record.items():
            joined.setdefault(name, []).extend(entries)
    return joined


def _read(file: Path) -> dict[str, list[dict[str, Any]]]:
    """A record's entries by file name; {} where there is none that can be read."""
    try:
        files = json.loads(file.read_bytes())["files"]
        return {name: [entry for entry in entries if isinstance(entry, dict)] for name, entries in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(file: Path, files: dict[str, list[dict[str, Any]]]) -> bool:
    """Replace a record at once; False where the system does not let us."""
    partial = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.stem}.", delete=False) as opened:
            partial = Path(opened.name)
            json.dump({"files": files}, opened, indent=1, sort_keys=True)
        partial.chmod(0o644)  # others who read this copy need not compare it again
        partial.replace(file)
    except OSError:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink()
        return False
    return True

"""Files that any room writes: an error names its file, and no half-written file keeps its final name.

The standard library only, so that a command can report that torch is missing. Errors of the system while a file is
being written (a full disk, say) lack the file's name; `naming_file` is the one place that adds it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK_NAME = "lock"
NOT_ABOUT_FILES = (ConnectionError, ChildProcessError, InterruptedError, TimeoutError)


@contextmanager
def naming_file(path: str | Path) -> Iterator[None]:
    """An OSError that leaves the block names a file: its own where it has one, else `path`.

    Args:
      path: what the block writes or reads.
    """
    try:
        yield
    except NOT_ABOUT_FILES:
        raise
    except OSError as error:
        if error.filename is not None:
            raise
        if error.errno is None and type(error) is not OSError:  # a damaged .gz, say: not the system's refusal
            raise
        if error.errno is None:  # NumPy's "4096 requested and 0 written"
            raise OSError(errno.EIO, f"writing failed ({error}); is the disk full?", str(path)) from error
        error.filename = str(path)
        raise


@contextmanager
def complete_file(path: str | Path, *, durable: bool = False) -> Iterator[Path]:
    """Another name to write a file under; at the end of the block it becomes `path`, or what a link there leads to.

    Args:
      path: the final name.
      durable: at the end of the block the file is on the disk under that name, whatever happens to the machine.
    Raises:
      OSError: the disk refuses; it names `path`. However the block fails, nothing is left of the file.
    """
    target = Path(path).resolve()
    partial = target.with_name(f".{target.name}.partial")
    try:
        with naming_file(path):
            yield partial
            if durable:
                _sync(partial)
            partial.replace(target)
            if durable:
                sync_directory(target.parent)
    except OSError as error:
        if error.filename == str(partial):  # the user knows the other name
            error.filename = str(path)
            del error.filename2  # None would be shown: "-> None"
        raise
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def cache_home() -> Path:
    """The user's cache directory: XDG_CACHE_HOME where it is absolute, as its specification demands, else ~/.cache."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # a user without a home directory
        return Path("/nonexistent")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable (fsync of the directory itself), where its file system can do that."""
    try:
        _sync(path)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems have no fsync of directories
            raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: str | Path, text: str, *, durable: bool = False) -> None:
    """Write a file that appears complete; see `complete_file`."""
    with complete_file(path, durable=durable) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | Path, results: Mapping[str, object]) -> None:
    """Write results as `json_text`; see `complete_file`."""
    write_text(path, json_text(results, indent=1) + "\n")


def json_text(value: object, *, indent: int | None = None) -> str:
    """A value as JSON, which has no NaN and no infinity: they become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def locked_folder(prefix: str, where: Path | None = None) -> Iterator[Path]:
    """A new folder, removed at the end of the block, or by `remove_stale` after a kill.

    Args:
      prefix: of its name.
      where: it is made; None: the directory for temporary files.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    try:
        with (folder / f"{_LOCK_NAME}.new").open("w") as lock:
            with naming_file(folder):
                fcntl.flock(lock, fcntl.LOCK_EX)
            Path(lock.name).rename(folder / _LOCK_NAME)  # a lock that can be seen is held
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_stale(prefix: str, where: Path | None = None) -> list[Path]:
    """Remove the folders of `locked_folder` whose processes were killed: nobody holds their locks. Returns them."""
    removed = []
    for folder in (where or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        with suppress(OSError), (folder / _LOCK_NAME).open("r+") as lock:  # gone meanwhile, or still in use
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
            removed.append(folder)
    return removed


def free_bytes(directory: Path) -> int | None:
    """Bytes that this user may write to a directory's file system; None where the system does not know."""
    status = os.statvfs(directory)
    blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail  # some are kept for root
    return blocks * status.f_frsize if status.f_blocks else None


def check_writable(option: str, file: Path) -> None:
    """Refuse a file that could not be written, before any work is done.

    Args:
      option: of the command line, for the message.
      file: what it names.
    Raises:
      ValueError: with the option, the file and the reason.
    """
    try:
        if file.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        if file.exists() and not file.is_file():  # it would be replaced by a file
            raise OSError(0, "it is a device or a pipe")
        with tempfile.TemporaryFile(dir=file.resolve().parent):
            return
    except OSError as error:
        raise ValueError(f"{option} {file} cannot be written ({error.strerror}); pass another file name.") from error


def check_separate(files: Iterable[tuple[str, Path]]) -> None:
    """Refuse two options that name one file, which would hold what was written last alone.

    Args:
      files: (option, file that it writes or reads), of options that were given.
    Raises:
      ValueError: with both options and the file.
    """
    options: dict[Path, str] = {}
    for option, file in files:
        earlier = options.setdefault(file.resolve(), option)
        if earlier is not option:
            raise ValueError(f"{earlier} and {option} are both {file}; pass two names.")

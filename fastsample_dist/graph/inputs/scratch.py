"""Files that reading an input makes on the way: text parsed to binary, archives unpacked.

They are kept in one directory. A file appears when complete, with a record of what it was made from, so that a run that
was killed finds it again and does not make it twice.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from fastsample_dist.files import naming_file


class Scratch:
    """A directory for files made from an input; a context manager.

    Leaving the block deletes the directory, unless `keep` returns True.

    Args:
      directory: where; made on first use. None: a new temporary one, which the end of the program deletes too.
      keep: called at the end of the block: whether a later run will use the files.
    """

    def __init__(self, directory: str | Path | None = None, *, keep: Callable[[], bool] = lambda: False) -> None:
        self._directory = None if directory is None else Path(directory)
        self._keep = keep

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._directory is not None and not self._keep():
            shutil.rmtree(self._directory, ignore_errors=True)

    def made(self, name: str, sources: Sequence[str | Path], make: Callable[[Path], None]) -> Path:
        """A file made from others; made again only if they changed since.

        Args:
          name: the file's, unique in the directory.
          sources: files it is made from.
          make: writes it to the path it is given.
        Returns:
          Path of the complete file.
        Raises:
          OSError: the disk refuses (it names the file); nothing is left under the file's name.
        """
        directory = self._made_directory()
        file, record = directory / name, directory / f"{name}.source.json"
        state = [[str(Path(source).absolute()), *_state(Path(source))] for source in sources]
        if file.is_file() and record.is_file() and record.read_text(encoding="utf-8") == json.dumps(state):
            return file
        record.unlink(missing_ok=True)
        partial = directory / f"{name}.{os.getpid()}.partial"  # another run may be making the same file
        try:
            with naming_file(file):
                make(partial)
                partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
        with naming_file(record):
            record.write_text(json.dumps(state), encoding="utf-8")
        return file

    def _made_directory(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="fastsample-input-"))
            atexit.register(_delete_of, os.getpid(), self._directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{self._directory} cannot be made ({error.strerror}); choose another output.") from error
        return self._directory


def _delete_of(pid: int, directory: Path) -> None:
    if os.getpid() == pid:  # not a process that was forked since
        shutil.rmtree(directory, ignore_errors=True)


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns

"""Where the figures of every epoch go besides the screen: a file of JSON lines, TensorBoard.

Only rank 0 writes: make the writers there. Figures are such as {"epoch": 3, "loss": 0.71, "seconds": 4.2}; a group of
them, such as {"cache": {"hit_rate": 0.6}}, is the curves "cache/hit_rate", ... in TensorBoard.
A log must not end the run that it describes: what cannot be written (a full disk, a deleted directory) is kept
in memory and tried again with the next epoch's figures, see `GrowingFile`.
"""

from __future__ import annotations

import io
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastsample_dist.files import json_text, naming_file

Figures = Mapping[str, Any]


class GrowingFile:
    """A file to which whole pieces are added; opened again for each, so that a deleted file is recreated.

    Args:
      path: the file, continued if it exists; its directory must exist.
      head: what a new file begins with.
    Attributes:
      waiting: pieces that could not be written yet.
    Raises:
      OSError: it cannot be opened for writing.
    """

    def __init__(self, path: Path, head: bytes = b"") -> None:
        self.path, self._head = path, head
        self.waiting: list[bytes] = []
        with path.open("ab"):
            pass

    def add(self, piece: bytes) -> None:
        """Add a piece, after those that wait.

        Raises:
          OSError: the disk refuses; names the file, which is unchanged, and all these pieces wait.
        """
        self.waiting.append(piece)
        self.settle()

    def settle(self) -> None:
        """Write what waits. Raises: as `add`."""
        if not self.waiting:
            return
        with naming_file(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                begin = file.seek(0, os.SEEK_END)
                data = memoryview(b"".join([b"" if begin else self._head, *self.waiting]))
                try:
                    while data:
                        data = data[file.write(data) :]
                except OSError:
                    with suppress(OSError):  # no half line; the first error is the one that matters
                        file.truncate(begin)
                    raise
        self.waiting.clear()


class FigureWriter(ABC):
    """Takes the figures of one epoch after the other.

    Args:
      option: of the command line that asks for it, for warnings.
      file: what is written.
    Attributes:
      draws_curves: of numbers; it does not take what is recorded of every rank.
    """

    draws_curves = False

    def __init__(self, option: str, file: GrowingFile) -> None:
        self.option, self.file = option, file

    def write(self, figures: Figures, step: int) -> None:
        """Add one epoch's figures; they are on disk when this returns.

        Args:
          figures: by name; None is left out.
          step: global training step after the epoch.
        Raises:
          OSError: the disk refuses; it names the file. The figures are kept and written by a later call.
        """
        self.file.add(self._encode({name: value for name, value in figures.items() if value is not None}, step))

    @abstractmethod
    def _encode(self, figures: Figures, step: int) -> bytes:
        """The figures in the format of this kind of file."""

    def close(self) -> None:
        """Write what could not be written before. A second call does nothing.

        Raises:
          OSError: as `write`.
        """
        self.file.settle()


class JsonLinesWriter(FigureWriter):
    """One JSON object per line, complete as soon as `write` returns; an existing file is continued. NaN and
    infinite figures are null.

    Args:
      path: the file; its directory must exist.
    Raises:
      OSError: it cannot be opened for writing.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__("--jsonl", GrowingFile(Path(path)))

    def _encode(self, figures: Figures, step: int) -> bytes:
        return (json_text({"step": step, **figures}) + "\n").encode()


class TensorBoardWriter(FigureWriter):
    """TensorBoard event files: one curve per figure over global steps.

    TensorBoard's own SummaryWriter writes in a thread that ends, with a traceback, at the first error of the disk; so
    its events are used, but GrowingFile writes them.

    Args:
      directory: made when it is missing.
    Raises:
      RuntimeError: the package tensorboard is missing. OSError: the directory cannot be written.
    """

    draws_curves = True

    def __init__(self, directory: str | Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
            from torch.utils.tensorboard import summary
        except ImportError as error:
            raise RuntimeError(
                f"TensorBoard's writer cannot be loaded ({error}); install it with "
                "pip install 'fastsample_dist[tensorboard]'."
            ) from error
        self._event, self._record_writer, self._scalar = Event, RecordWriter, summary.scalar
        Path(directory).mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 10**9:010}.{socket.gethostname()}.{os.getpid()}"
        head = self._records([Event(wall_time=time.time(), file_version="brain.Event:2")])
        super().__init__("--tensorboard", GrowingFile(Path(directory) / name, head))

    def _encode(self, figures: Figures, step: int) -> bytes:
        now_s = time.time()
        return self._records(
            self._event(wall_time=now_s, step=step, summary=self._scalar(name, value))
            for name, value in _curves(figures)
            if name != "epoch"
        )

    def _records(self, events: Iterable[Any]) -> bytes:
        buffer = io.BytesIO()
        writer = self._record_writer(buffer)
        for event in events:
            writer.write(event.SerializeToString())
        return buffer.getvalue()


def _curves(figures: Figures) -> Iterator[tuple[str, float]]:
    """Names and numbers, those of groups included."""
    for name, value in figures.items():
        inner = value.items() if isinstance(value, Mapping) else ((None, value),)
        yield from ((name if key is None else f"{name}/{key}", found) for key, found in inner if _is_number(found))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

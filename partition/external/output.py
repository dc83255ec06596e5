"""Writing a partition so that a killed run keeps the files it has finished.

Like storage.PartitionWriter, but the unfinished partition is in the work directory, and the journal has the record
(size and SHA-256) of every finished file. A file that was being written starts again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.graph.manifest import MANIFEST_NAME
from fastsample_dist.graph.npy_files import NpyWriter
from fastsample_dist.graph.storage import PartitionWriter
from fastsample_dist.partition.external.journal import Journal

FOLDER = "parts"


class ResumableWriter(PartitionWriter):
    """A PartitionWriter whose unfinished files outlive the process.

    Args:
      path: the partition's directory.
      journal: the entered work directory.
      source: plain values; files made from others are thrown away.
      overwrite: replace a partition that is there.
    """

    def __init__(self, path: str | Path, journal: Journal, source: Any, *, overwrite: bool = False) -> None:
        super().__init__(path, overwrite=overwrite)
        self._journal, self._source = journal, source

    def __enter__(self) -> ResumableWriter:
        self._partial = self._journal.path / FOLDER
        state = self._journal.begin("write", self._source)
        if not state:
            shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(exist_ok=True)
        self.files = {name: record for name, record in state.get("files", {}).items() if self._intact(name, record)}
        (self._partial / MANIFEST_NAME).unlink(missing_ok=True)
        return self

    def __exit__(self, *rest: object) -> None:
        self._partial = None  # stays, for the next run
        super().__exit__(*rest)

    @contextmanager
    def open(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> Iterator[NpyWriter]:
        """As in the base class; the finished file enters the journal."""
        assert self._partial is not None, "ResumableWriter.open outside the with block"
        (self._partial / name).unlink(missing_ok=True)
        with super().open(name, dtype, shape) as file:
            yield file
        self._journal.save("write", files=self.files)

    def _intact(self, name: str, record: dict[str, Any]) -> bool:
        file = self._journal.path / FOLDER / name
        return file.is_file() and file.stat().st_size == record["bytes"]

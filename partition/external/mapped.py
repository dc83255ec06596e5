"""Columns that stay in their files: mapped, and taken out of this process's memory again while they are used."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fastsample_dist.graph.npy_files import drop_pages, map_array

DROP_INTERVAL_S = 0.1  # a sweep brings in less than 500 MB meanwhile


@contextmanager
def mapped_columns(
    columns: Sequence[tuple[Path | None, np.dtype | None]], length: int
) -> Iterator[list[np.ndarray | None]]:
    """Files as arrays of one length; pages that were read are dropped repeatedly.

    Args:
      columns: (file of plain values, their type); None: no such column.
      length: values in each file.
    Yields:
      The arrays, None where there is no column. They must not be used after the block.
    """
    maps = [None if file is None or not length else map_array(file, dtype, (length,)) for file, dtype in columns]
    arrays = [None if file is None else np.empty(0, dtype=dtype) for file, dtype in columns]
    if length:  # an empty file cannot be mapped
        arrays = [None if each is None else np.asarray(each) for each in maps]
    ended = threading.Event()

    def drop_repeatedly() -> None:
        while not ended.wait(DROP_INTERVAL_S):
            for mapped in maps:
                if mapped is not None:
                    drop_pages(mapped)

    thread = threading.Thread(target=drop_repeatedly, name="fastsample-drop-pages", daemon=True)
    thread.start()
    try:
        yield arrays
    finally:
        ended.set()
        thread.join()

"""Writing a planted graph as an `npy` directory, a block at a time, within a memory limit; a killed run resumes.

The unfinished directory is beside the final one, `.<name>.planted`, with state.json: the recipe and how many rows of
which column are on the disk. Every block is drawn from its own place in the streams (planted.py), so several threads
draw blocks in any order, and they are drawn again after a kill. Memory holds the table of ids, 4 bytes a node (8 with
int64 ids, none where ids are in order), and a block per thread.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.files import free_bytes, naming_file, sync_directory, write_json, write_text
from fastsample_dist.graph.csc import INT32_MAX_NODES
from fastsample_dist.graph.id_order import IdOrder
from fastsample_dist.graph.planted import FEATURES, SPLITS, PlantedGraph
from fastsample_dist.memory_sizes import available_bytes, format_size, process_memory, resident_bytes

FORMAT = "fastsample-planted-1"
DEFAULT_SHARE = 0.8  # of the available memory, as partitioning takes
BLOCK_ROWS = 1 << 14  # edges or nodes: the arrays of a block stay in a core's cache
BLOCK_VALUES = 1 << 18  # of features
THREAD_BYTES = 12 << 20  # arrays of a block, as measured, rounded up
SLACK_BYTES = 24 << 20  # the files' headers, the pool, the law's table
BASE_SPREAD_BYTES = 4 << 20  # by which the program itself differs from run to run
STRETCH_BYTES = 1 << 28  # written between two records of how far it is
NOISE_SCALE = np.float32(12**0.5 / 65536)  # 16 uniform bits with variance 1

OnRows = Callable[[str, int, int], object]


@dataclass(frozen=True, kw_only=True)
class NodeColumns:
    """What the directory has beside the edges.

    Attributes:
      undirected: meaning of the edges: each counts in both directions.
      id_dtype: of edge_index.npy; None: int32 where the ids fit.
      feature_dim: columns of features; 0: none.
      feature_dtype: "float32" or "float16".
      num_classes: labels are community % num_classes; None: the communities, or 64 if they are more.
      signal: length of the centre of a class; the noise around it has variance 1 in each column.
      train_fraction: share of the nodes in "train"; "val" and "test" have half as many each.
    Raises:
      ValueError: one is out of range.
    """

    undirected: bool = False
    id_dtype: str | None = None
    feature_dim: int = 0
    feature_dtype: str = "float32"
    num_classes: int | None = None
    signal: float = 1.0
    train_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.feature_dim < 0:
            raise ValueError(f"features is {self.feature_dim}; expected 0 or more columns.")
        if self.num_classes is not None and self.num_classes < 1:
            raise ValueError(f"classes is {self.num_classes}; expected 1 or more.")
        if not 0 <= self.train_fraction <= 0.5:
            raise ValueError(f"train fraction is {self.train_fraction}; expected 0 to 0.5.")


@dataclass(frozen=True)
class Column:
    """A file of the directory.

    Attributes:
      name: without .npy.
      dtype, shape: of the array.
      draw: (lo, hi) -> rows lo .. hi - 1, one array for each lane.
      block: rows to draw at a time.
      lanes: 2 for the edges: a row of the file is a lane of its own, and an edge has an entry in both.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    draw: Callable[[int, int], tuple[np.ndarray, ...]]
    block: int = BLOCK_ROWS
    lanes: int = 1

    @property
    def rows(self) -> int:
        """Of a lane."""
        return self.shape[-1] if self.lanes > 1 else self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Of a lane."""
        return self.dtype.itemsize * (1 if self.lanes > 1 else math.prod(self.shape[1:]))

    @property
    def file_bytes(self) -> int:
        """Header and array."""
        return len(self.header()) + self.lanes * self.rows * self.row_bytes

    def header(self) -> bytes:
        """What comes before the array in the file."""
        text = io.BytesIO()
        descr = {"descr": self.dtype.newbyteorder("<").str, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(text, descr)
        return text.getvalue()


class PlantedFiles:
    """The columns of a graph's directory.

    Args:
      graph: the graph.
      columns: what it has beside the edges.
      threads: that draw.
    Raises:
      ValueError: the ids do not fit the type.
    """

    def __init__(self, graph: PlantedGraph, columns: NodeColumns, threads: int = 1) -> None:
        self.graph, self.columns, self.threads = graph, columns, threads
        fits = graph.num_nodes <= INT32_MAX_NODES
        if columns.id_dtype == "int32" and not fits:
            raise ValueError(f"{graph.num_nodes} nodes do not fit int32 ids; pass int64.")
        self.dtype = np.dtype(columns.id_dtype or ("int32" if fits else "int64"))
        self.num_classes = columns.num_classes or min(graph.num_communities, 64)
        self._table: np.ndarray | None = None

    def fill_table(self, pool: ThreadPoolExecutor) -> None:
        """Make the table of ids, unless they are in order."""
        if self.graph.order is None:
            return
        self._table = np.empty(self.graph.num_nodes, dtype=self.dtype)

        def fill(lo: int) -> None:
            part = self._table[lo : lo + BLOCK_ROWS]
            part[:] = self.graph.order.places(np.arange(lo, lo + len(part)))

        for _ in pool.map(fill, range(0, self.graph.num_nodes, BLOCK_ROWS)):
            pass

    def memory_bytes(self) -> int:
        """Memory above the program's own at the widest place."""
        table = 0 if self.graph.ordered else self.dtype.itemsize * self.graph.num_nodes
        per_community = 64 * self.graph.num_communities
        return table + per_community + 24 * self._split_size("train") + self.threads * THREAD_BYTES + SLACK_BYTES

    def files(self) -> list[Column]:
        """In the order they are written."""
        nodes, edges = self.graph.num_nodes, self.graph.num_edges
        small, wide = np.dtype(np.int32), np.dtype(np.int64)
        files = [Column("planted", small, (nodes,), lambda lo, hi: (self._communities(lo, hi),))]
        files.append(Column("labels", small, (nodes,), lambda lo, hi: (self._communities(lo, hi) % self.num_classes,)))
        for split in ("train", "val", "test"):
            if count := self._split_size(split):
                # A split is sorted, so that it is drawn as a whole.
                files.append(Column(f"{split}_idx", wide, (count,), self._split(split), block=count))
        if width := self.columns.feature_dim:
            dtype, block = np.dtype(self.columns.feature_dtype), max(1, BLOCK_VALUES // width)
            files.append(Column("features", dtype, (nodes, width), self._features, block))
        return [*files, Column("edge_index", self.dtype, (2, edges), self._edges, lanes=2)]

    def meta(self) -> dict[str, Any]:
        """What meta.json holds."""
        graph = self.graph
        return {
            "name": f"planted-{graph.num_nodes}-{graph.num_edges}-{graph.num_communities}",
            "num_nodes": graph.num_nodes,
            "num_edges": graph.num_edges,
            "undirected": self.columns.undirected,
            "num_classes": self.num_classes,
            "planted": asdict(graph),
        }

    def recipe(self) -> dict[str, Any]:
        """Plain values that change when any byte of any file does."""
        return {"format": FORMAT, "graph": asdict(self.graph), "columns": asdict(self.columns)}

    def _communities(self, lo: int, hi: int) -> np.ndarray:
        return self.graph.communities(lo, hi).astype(np.int32)

    def _split_size(self, split: str) -> int:
        train = round(self.columns.train_fraction * self.graph.num_nodes)
        return train if split == "train" else train // 2

    def _split(self, split: str) -> Callable[[int, int], tuple[np.ndarray, ...]]:
        """Draws the ids of a split: an own random order of the nodes, dealt from its beginning."""
        train, others = self._split_size("train"), self._split_size("val")
        begin = {"train": 0, "val": train, "test": train + others}[split]

        def draw(lo: int, hi: int) -> tuple[np.ndarray, ...]:
            order = IdOrder(self.graph.num_nodes, [self.graph.seed, SPLITS])
            chosen = np.empty(self._split_size(split), dtype=np.int64)
            for at in range(0, len(chosen), BLOCK_ROWS):
                part = chosen[at : at + BLOCK_ROWS]
                part[:] = order.places(np.arange(begin + at, begin + at + len(part)))
            chosen.sort()
            return (chosen[lo:hi],)

        return draw

    def _features(self, lo: int, hi: int) -> tuple[np.ndarray, ...]:
        width = self.columns.feature_dim
        words = -(-width // 4)
        raw = np.random.PCG64([self.graph.seed, FEATURES])
        raw.advance(lo * words)
        noise = raw.random_raw((hi - lo) * words).astype("<u8", copy=False).view("<u2").reshape(hi - lo, -1)[:, :width]
        rows = noise.astype(np.float32)
        rows -= np.float32(32767.5)
        rows *= NOISE_SCALE
        rows += self._centres[self.graph.communities(lo, hi) % self.num_classes]
        return (rows.astype(self.columns.feature_dtype, copy=False),)

    @cached_property
    def _centres(self) -> np.ndarray:
        rng = np.random.default_rng([self.graph.seed, FEATURES])
        centres = rng.standard_normal((self.num_classes, self.columns.feature_dim), dtype=np.float32)
        return centres * (self.columns.signal / np.linalg.norm(centres, axis=1, keepdims=True))

    def _edges(self, lo: int, hi: int) -> tuple[np.ndarray, ...]:
        ends = self.graph.numbers(lo, hi)
        if self._table is None:
            return tuple(end.astype(self.dtype) for end in ends)
        return tuple(self._table.take(end) for end in ends)


def write_planted(files: PlantedFiles, output: Path, limit: int | None, on_rows: OnRows) -> dict[str, int]:
    """Write the directory; it appears complete, and what a killed run has written is used again.

    Args:
      files: what to write.
      output: the new directory; its parent must exist.
      limit: bytes of memory that this process may hold; None: what it holds and DEFAULT_SHARE of what is available.
      on_rows: called with (column, rows done, rows) after each stretch.
    Returns:
      {"predicted_bytes": peak memory as predicted, "disk_bytes": of the files}.
    Raises:
      ValueError: the output exists, or another run is at work on it, or memory or disk do not suffice: said before
        anything is drawn. OSError: the disk refuses; what is there is kept.
    """
    final = output.absolute()
    if final.exists():
        raise ValueError(f"{output} exists; expected a new directory: remove it or pass another name.")
    if not final.parent.is_dir():
        raise ValueError(f"{final.parent} is not a directory; create it first.")
    columns = files.files()
    predicted = _check_memory(files, limit)
    disk = sum(column.file_bytes for column in columns)
    work = work_directory(final)
    _check_disk(output, disk, _used_bytes(work))
    with _locked(work):
        state = _read_state(work, files.recipe())
        with _pool(files.threads) as pool:
            files.fill_table(pool)
            for column in columns:
                _write_column(work, column, pool, state, on_rows)
        write_json(work / "meta.json", files.meta())
        for name in ("state.json", "lock"):
            (work / name).unlink()
        work.rename(final)
        sync_directory(final.parent)
    return {"predicted_bytes": predicted, "disk_bytes": disk}


def work_directory(output: Path) -> Path:
    """Where the unfinished directory is."""
    return output.absolute().with_name(f".{output.absolute().name}.planted")


def _check_memory(files: PlantedFiles, limit: int | None) -> int:
    """The predicted peak, which must be within the limit."""
    base = process_memory()["peak_rss_bytes"]
    needed = base + files.memory_bytes()
    limit = resident_bytes() + int(DEFAULT_SHARE * available_bytes()) if limit is None else limit
    if needed > limit:
        enough = format_size(needed + BASE_SPREAD_BYTES)
        raise ValueError(
            f"the memory limit is {format_size(limit)} but {files.graph.num_nodes} nodes in {files.threads} threads "
            f"take {enough} ({format_size(base)} of it the program itself); pass --memory-limit {enough} or more, "
            "fewer --threads, or --ordered, which needs no table of ids."
        )
    return needed


def _check_disk(output: Path, needed: int, used: int) -> None:
    parent = output.absolute().parent
    free = free_bytes(parent)
    if free is not None and needed - used > free:
        raise ValueError(
            f"{output} takes {format_size(needed - used)} of disk but {format_size(free)} are free in {parent}; make "
            "room or choose another output."
        )


def _used_bytes(work: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in work.glob("*.npy"))


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Hold the work directory; it is removed at the end of the block where nothing in it can be used again."""
    work.mkdir(exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{work} is in use by another run; wait for it or choose another output.") from None
        except OSError as error:  # Lustre and NFS mounted without locks
            _remove_useless(work)
            raise ValueError(
                f"{work} cannot be locked ({error.strerror}), which keeps a second run away; choose an output on a "
                "file system with locks."
            ) from error
        try:
            yield
        finally:
            _remove_useless(work)


def _remove_useless(work: Path) -> None:
    if work.is_dir() and not (work / "state.json").exists():
        shutil.rmtree(work)


@contextmanager
def _pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads; those that have not begun do not, when the block ends early."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _read_state(work: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """{"recipe", "rows": {column: rows on the disk}}; the files of another recipe are removed."""
    recipe = json.loads(json.dumps(recipe))
    try:
        state = json.loads((work / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        state = {}
    if not isinstance(state, dict) or state.get("recipe") != recipe:
        for file in [*work.glob("*.npy"), work / "state.json"]:
            file.unlink(missing_ok=True)
        return {"recipe": recipe, "rows": {}}
    return state


def _write_column(work: Path, column: Column, pool: ThreadPoolExecutor, state: dict[str, Any], on_rows: OnRows) -> None:
    """Write what is missing of a file."""
    done = state["rows"].get(column.name)
    if done == column.rows:
        return
    path, header = work / f"{column.name}.npy", column.header()
    with naming_file(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with naming_file(path):
            os.ftruncate(handle, column.file_bytes)
            _put(handle, header, 0)

        def fill(lo: int, hi: int) -> None:
            for lane, rows in enumerate(column.draw(lo, hi)):
                at = len(header) + (lane * column.rows + lo) * column.row_bytes
                _put(handle, np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data, at)

        stretch = column.block * max(1, STRETCH_BYTES // (column.lanes * column.row_bytes * column.block))
        for begin in range(done or 0, max(1, column.rows), stretch):
            end = min(column.rows, begin + stretch)
            starts = range(begin, end, column.block)
            with naming_file(path):
                for _ in pool.map(fill, starts, (min(end, lo + column.block) for lo in starts)):
                    pass
                os.fsync(handle)
            state["rows"][column.name] = end
            write_text(work / "state.json", json.dumps(state), durable=True)
            on_rows(column.name, end, column.rows)
    finally:
        os.close(handle)


def _put(handle: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while len(view):
        written = os.pwrite(handle, view, at)
        view, at = view[written:], at + written

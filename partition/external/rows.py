"""Rows of the input by original id, read without leaving pages of a file with the process."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
import torch

from fastsample_dist.graph.csc import CSCGraph, row_positions
from fastsample_dist.graph.manifest import SCALED
from fastsample_dist.graph.npy_files import drop_pages
from fastsample_dist.graph.row_segments import RowSegments
from fastsample_dist.graph.storage import BFLOAT16, BFLOAT16_AS, FEATURE_DTYPES, WIDE_DTYPES
from fastsample_dist.partition.external.csc import StoredTopology
from fastsample_dist.partition.external.kernels import read_ranges
from fastsample_dist.partition.external.scaled_rows import SCALE_DTYPE, scaled_rows

FEATURE_CHOICES = ("keep", "float16", BFLOAT16, "float32", SCALED)
MAX_OPEN = 64  # files of segments; a process may often have no more than 1024


class TopologyRows:
    """In-edges of chosen rows; a context manager.

    Args:
      topology: in memory, or in files of the work directory.
    Attributes:
      indptr: int64 [num_nodes + 1].
    """

    def __init__(self, topology: CSCGraph | StoredTopology) -> None:
        self._topology = topology
        stored = isinstance(topology, StoredTopology)
        self.indptr = topology.indptr() if stored else topology.indptr.numpy()
        self._columns = {}
        if stored:
            self._columns["indices"] = (topology.indices, topology.id_dtype)
            if topology.weights is not None:
                self._columns["weights"] = (topology.weights, topology.weight_dtype)
            if topology.edge_map is not None:
                self._columns["edge_map"] = (topology.edge_map, topology.edge_map_dtype)
        self._handles: dict[str, int] = {}

    def __enter__(self) -> TopologyRows:
        for name, (file, _) in self._columns.items():
            self._handles[name] = os.open(file, os.O_RDONLY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles = {}

    def dtype(self, name: str) -> np.dtype:
        """Type of one of `names`."""
        if self._columns:
            return self._columns[name][1]
        return getattr(self._topology, name).numpy().dtype

    @property
    def names(self) -> list[str]:
        """The columns that exist: "indices", and "weights" and "edge_map" where edges have them."""
        return [name for name in ("indices", "weights", "edge_map") if getattr(self._topology, name) is not None]

    def read(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Entries of a column in some rows, row after row.

        Args:
          name: one of `names`.
          rows: int64 [n]; fastest when they ascend.
        """
        if not self._columns:
            return getattr(self._topology, name).numpy()[row_positions(self.indptr, rows)[0]]
        dtype = self._columns[name][1]
        begins = self.indptr[rows]
        sizes = (self.indptr[rows + 1] - begins) * dtype.itemsize
        begins *= dtype.itemsize
        return read_ranges(self._handles[name], begins, sizes, dtype)


def has_scales(given: str, choice: str) -> bool:
    """Whether features of a type (NumPy's name) get scales: int8 was chosen, and they are not int8 already."""
    return choice == SCALED != given


def check_feature_dtype(name: str, given: str, choice: str) -> None:
    """Refuse to store features as they are, where no batch could be made of them.

    Args:
      name: of the graph.
      given: their type (NumPy's name), "" without features.
      choice: one of FEATURE_CHOICES.
    Raises:
      ValueError: integers that are too wide, to be kept.
    """
    if choice == "keep" and given in WIDE_DTYPES:
        raise ValueError(
            f"features of {name} are {given}, of which no batch can be made; pass --feature-dtype float32 "
            f"(feature_dtype='float32'), or convert them to one of {', '.join(FEATURE_DTYPES)}."
        )


class StoredRows(NamedTuple):
    """Rows as they are stored, by the names of their files: features [n, dim], scales [n] or None."""

    features: np.ndarray
    scales: np.ndarray | None


class FeatureRows:
    """Feature rows of chosen nodes in the chosen type; a context manager.

    A mapped file is read as a file; so is every mapped segment of RowSegments. int8 rows have a scale each
    (scaled_rows.py), unless the input is int8: then they are stored as they are.

    Args:
      features: [num_nodes, dim].
      choice: one of FEATURE_CHOICES.
    Attributes:
      dtype: of the rows in memory and on disk; BFLOAT16_AS holds the bits of a bfloat16.
      scaled: rows have scales.
      row_bytes: of a row on disk, its scale included.
      chunk_row_bytes: of a row while it is converted: as given or as stored, whichever is larger.
      stored_as: name of the type for the manifest.
    Raises:
      ValueError: an unknown choice.
    """

    def __init__(self, features: np.ndarray | RowSegments, choice: str = "keep") -> None:
        if choice not in FEATURE_CHOICES:
            raise ValueError(f"feature_dtype is {choice!r}; expected one of {', '.join(FEATURE_CHOICES)}.")
        self.stored_as = features.dtype.name if choice == "keep" else choice
        self.dtype = np.dtype(BFLOAT16_AS if self.stored_as == BFLOAT16 else self.stored_as)
        self.dim = features.shape[1]
        self.scaled = has_scales(features.dtype.name, choice)
        self.row_bytes = self.dim * self.dtype.itemsize + (SCALE_DTYPE.itemsize if self.scaled else 0)
        self.chunk_row_bytes = max(self.row_bytes, self.dim * features.dtype.itemsize if self.scaled else 0)
        self._given = features.dtype
        segmented = isinstance(features, RowSegments)
        self._segments = features.segments if segmented else [features]
        self._offsets = features.offsets if segmented else np.array([0, len(features)])
        self._handles: dict[Path, int] = {}

    def __enter__(self) -> FeatureRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles = {}

    def read(self, nodes: np.ndarray) -> np.ndarray:
        """Rows of nodes, [n, dim]; of rows with scales the numbers. Raises: as `stored`."""
        return self.stored(nodes).features

    def stored(self, nodes: np.ndarray) -> StoredRows:
        """Rows of nodes, with their scales.

        Raises:
          ValueError: a value too large for float16; one that is not finite, or too large for float32, in a row that is
            to have a scale.
        """
        rows = self._given_rows(nodes)
        return StoredRows(*scaled_rows(rows, nodes)) if self.scaled else StoredRows(self._converted(rows, nodes), None)

    def _given_rows(self, nodes: np.ndarray) -> np.ndarray:
        if len(self._segments) == 1:
            return self._rows_of(self._segments[0], nodes)
        rows = np.zeros((len(nodes), self.dim), dtype=self._given)
        owners = np.searchsorted(self._offsets, nodes, side="right") - 1
        for number in np.unique(owners):
            segment, chosen = self._segments[number], owners == number
            if not isinstance(segment, int):
                rows[chosen] = self._rows_of(segment, nodes[chosen] - self._offsets[number])
        return rows

    def _rows_of(self, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
        # The whole of a mapped file, row after row.
        mapped = isinstance(array, np.memmap) and array.base is array._mmap and array.flags.c_contiguous
        if not mapped or array.filename is None:
            chosen = np.asarray(array[rows])
            drop_pages(array)
            return chosen
        row_bytes = self.dim * array.itemsize
        begins = array.offset + rows.astype(np.int64, copy=False) * row_bytes
        sizes = np.full(len(rows), row_bytes, dtype=np.int64)
        return read_ranges(self._handle(Path(array.filename)), begins, sizes, array.dtype).reshape(-1, self.dim)

    def _handle(self, file: Path) -> int:
        """An open descriptor; only the last MAX_OPEN stay open."""
        if file not in self._handles:
            while len(self._handles) >= MAX_OPEN:
                os.close(self._handles.pop(next(iter(self._handles))))
            self._handles[file] = os.open(file, os.O_RDONLY)
        return self._handles[file]

    def _converted(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        if self.stored_as == rows.dtype.name:
            return rows.astype(self.dtype, copy=False)
        native = rows.astype(rows.dtype.newbyteorder("="), copy=False)
        if self.stored_as == BFLOAT16:
            return torch.from_numpy(native).to(torch.bfloat16).view(torch.int16).numpy()
        with np.errstate(over="ignore"):
            out = native.astype(self.dtype)
        if self.dtype.itemsize < native.dtype.itemsize or native.dtype.kind != "f":
            lost = ~np.isfinite(out) & np.isfinite(native)
            if lost.any():
                row, column = (int(place[0]) for place in np.nonzero(lost))
                raise ValueError(
                    f"feature {column} of node {nodes[row]} is {native[row, column]:g}, which {self.stored_as} cannot "
                    "hold; pass --feature-dtype bfloat16, float32 or keep."
                )
        return out

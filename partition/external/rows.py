"""Rows of the input by original id, read without leaving pages of a file with the process."""

from __future__ import annotations

import os
from types import TracebackType

import numpy as np
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.npy_files import drop_pages
from fastsample_dist.graph.storage import BFLOAT16, BFLOAT16_AS
from partition.adjacency import row_positions
from partition.external.csc import StoredTopology
from partition.external.kernels import read_ranges

FEATURE_CHOICES = ("keep", "float16", BFLOAT16, "float32")


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
        """Type of a column, "indices" or "weights"."""
        if self._columns:
            return self._columns[name][1]
        return getattr(self._topology, name).numpy().dtype

    @property
    def has_weights(self) -> bool:
        """Whether edges have weights."""
        return self._topology.weights is not None

    def read(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Entries of a column in some rows, row after row.

        Args:
          name: "indices" or "weights".
          rows: int64 [n]; fastest when they ascend.
        """
        if not self._columns:
            return getattr(self._topology, name).numpy()[row_positions(self.indptr, rows)[0]]
        dtype = self._columns[name][1]
        begins = self.indptr[rows]
        sizes = (self.indptr[rows + 1] - begins) * dtype.itemsize
        begins *= dtype.itemsize
        return read_ranges(self._handles[name], begins, sizes, dtype)


class FeatureRows:
    """Feature rows of chosen nodes in the type asked for; a context manager.

    Args:
      features: [num_nodes, dim].
      choice: one of FEATURE_CHOICES.
    Attributes:
      dtype: of the rows in memory and on disk; BFLOAT16_AS holds the bits of a bfloat16.
      stored_as: name of the type for the manifest.
    Raises:
      ValueError: an unknown choice.
    """

    def __init__(self, features: np.ndarray, choice: str = "keep") -> None:
        if choice not in FEATURE_CHOICES:
            raise ValueError(f"feature_dtype is {choice!r}; expected one of {', '.join(FEATURE_CHOICES)}.")
        self._features = features
        self.stored_as = features.dtype.name if choice == "keep" else choice
        self.dtype = np.dtype(BFLOAT16_AS if self.stored_as == BFLOAT16 else self.stored_as)
        self.dim = features.shape[1]
        self._handle = -1
        # The whole of a mapped file, row after row: read it as a file.
        whole = isinstance(features, np.memmap) and features.base is features._mmap and features.flags.c_contiguous
        self._offset = features.offset if whole and features.filename is not None else None

    def __enter__(self) -> FeatureRows:
        if self._offset is not None:
            self._handle = os.open(self._features.filename, os.O_RDONLY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def read(self, nodes: np.ndarray) -> np.ndarray:
        """Rows of nodes, [n, dim].

        Raises:
          ValueError: a value too large for float16.
        """
        if self._handle >= 0:
            row_bytes = self.dim * self._features.itemsize
            begins = self._offset + nodes * row_bytes
            sizes = np.full(len(nodes), row_bytes, dtype=np.int64)
            rows = read_ranges(self._handle, begins, sizes, self._features.dtype).reshape(-1, self.dim)
        else:
            rows = np.asarray(self._features[nodes])
            drop_pages(self._features)
        return self._converted(rows, nodes)

    def _converted(self, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        if self.stored_as == rows.dtype.name:
            return rows
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

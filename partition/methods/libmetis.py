"""METIS itself, through ctypes: `METIS_PartGraphKway` of the library that the package cmeel-metis installs.

METIS is compiled for 32-bit or 64-bit integers (idx_t) and does not say which. It is found out by calling
METIS_SetDefaultOptions on a block of known values: it overwrites 40 integers of its own width. Floating-point arguments
are avoided altogether (imbalance goes in as an integer option), so their width does not matter.

Ctrl-C and SIGTERM end the call at once, see `interrupts.call_beside`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastsample_dist.partition.methods.interrupts import call_beside

PACKAGES = ("cmeel-gklib", "cmeel-metis")  # in the order in which their libraries are loaded: METIS needs GKlib
NUM_OPTIONS = 40
OPTION_OBJTYPE, OPTION_NITER, OPTION_SEED, OPTION_CONTIG, OPTION_UFACTOR, OPTION_NUMBERING = 1, 7, 9, 13, 18, 19
OBJTYPE_CUT = 0
METIS_OK = 1
ERRORS = {-2: "it found its input wrong", -3: "out of memory", -4: "it was asked to end, or failed inside"}

# METIS draws from the process' one generator: a call that keeps working after Ctrl-C would change the parts of the
# next.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Metis:
    """A loaded libmetis.

    Attributes:
      library: the ctypes library.
      dtype: NumPy type of its integers.
      path: where it was found.
    """

    library: ctypes.CDLL
    dtype: np.dtype
    path: Path

    def part_graph(
        self,
        indptr: np.ndarray,
        indices: np.ndarray,
        node_weights: np.ndarray,
        edge_weights: np.ndarray | None,
        num_parts: int,
        *,
        seed: int,
        imbalance: float,
        iterations: int,
    ) -> np.ndarray:
        """Cut a graph k-way, few edges between parts, every constraint balanced.

        Args:
          indptr: integer [num_nodes + 1]; offsets.
          indices: integer [num_neighbours]; both directions of every pair, no self-loops. Not copied if of `dtype`.
          node_weights: integer [num_nodes, num_constraints], >= 0; each sums to less than `dtype` holds.
          edge_weights: integer [num_neighbours], or None: all equal.
          num_parts: 2 or more.
          seed: of METIS' generator.
          iterations: of refinement on each level.
          imbalance: a part may hold this share above the mean of each constraint; steps of 0.001.
        Returns:
          int32 [num_nodes]; parts may be empty, and the imbalance is exceeded where METIS finds nothing better.
        Raises:
          RuntimeError: METIS reports a failure.
          KeyboardInterrupt: at Ctrl-C, if the main thread called; METIS keeps working, unseen, until it or the process
            ends.
        """
        columns = [np.ascontiguousarray(column, dtype=self.dtype) for column in (indptr, indices, node_weights)]
        xadj, adjncy, vwgt = columns
        adjwgt = None if edge_weights is None else np.ascontiguousarray(edge_weights, dtype=self.dtype)
        options = np.empty(NUM_OPTIONS, dtype=self.dtype)
        self.library.METIS_SetDefaultOptions(_pointer(options))
        options[OPTION_OBJTYPE], options[OPTION_SEED] = OBJTYPE_CUT, seed
        options[OPTION_NITER] = iterations
        options[OPTION_CONTIG], options[OPTION_NUMBERING] = 0, 0
        options[OPTION_UFACTOR] = max(1, round(imbalance * 1000))
        sizes = np.array([len(xadj) - 1, node_weights.shape[1], num_parts, 0], dtype=self.dtype)  # last: the cut
        parts = np.zeros(len(xadj) - 1, dtype=self.dtype)

        def cut() -> int:  # holds on to the arrays for as long as METIS works
            with _one_at_a_time:
                return self.library.METIS_PartGraphKway(
                    _pointer(sizes), _pointer(sizes[1:]), _pointer(xadj), _pointer(adjncy), _pointer(vwgt), None,
                    _pointer(adjwgt), _pointer(sizes[2:]), None, None, _pointer(options), _pointer(sizes[3:]),
                    _pointer(parts),
                )  # fmt: skip

        status = call_beside(cut)
        if status != METIS_OK:
            reason = ERRORS.get(status, "an unknown failure")
            raise RuntimeError(f"status {status}: {reason}")
        return parts.astype(np.int32, copy=False)


@functools.cache
def load() -> Metis | None:
    """libmetis, or None where cmeel-metis, or the cmeel-gklib that it needs, is not installed.

    Raises:
      ImportError: it is installed but cannot be loaded.
    """
    try:
        paths = [_library_of(package) for package in PACKAGES]
    except importlib.metadata.PackageNotFoundError:
        return None
    try:
        ctypes.CDLL(str(paths[0]), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(paths[1]))
        for function in ("METIS_SetDefaultOptions", "METIS_PartGraphKway"):
            getattr(library, function).restype = ctypes.c_int
        library.METIS_SetDefaultOptions.argtypes = [ctypes.c_void_p]
        library.METIS_PartGraphKway.argtypes = [ctypes.c_void_p] * 13
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"{paths[1]} cannot be used ({error}); reinstall cmeel-metis, or uninstall it to use pymetis."
        ) from error
    return Metis(library, _integer_type(library), paths[1])


def _library_of(package: str) -> Path:
    for file in importlib.metadata.files(package) or ():
        if file.name.startswith("lib") and ".so" in file.name:
            return Path(file.locate())
    raise ImportError(f"package {package} is installed without its library; reinstall it.")


def _integer_type(library: ctypes.CDLL) -> np.dtype:
    """int32 or int64, by how much of a block METIS_SetDefaultOptions writes."""
    block = np.full(2 * NUM_OPTIONS, 0x5EED, dtype=np.int32)
    library.METIS_SetDefaultOptions(_pointer(block))
    written = int((block != 0x5EED).sum())
    if written == NUM_OPTIONS:
        return np.dtype(np.int32)
    if written == 2 * NUM_OPTIONS:
        return np.dtype(np.int64)
    raise ImportError(
        f"libmetis wrote {written} words of default options; expected {NUM_OPTIONS} or {2 * NUM_OPTIONS} "
        "(METIS 5); install cmeel-metis 5.2.1."
    )


def _pointer(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data

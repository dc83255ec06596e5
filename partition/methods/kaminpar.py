"""`kaminpar`: multi-threaded multilevel partitioning (Gottesbueren et al., ESA 2021) for graphs too large for METIS.

KaMinPar's Python package reads a graph only from a file, so the graph is written to a temporary one (ParHIP's binary
format: header, byte offsets of the rows, neighbours, node weights, edge weights) chunk by chunk, and read back
compressed. It takes one weight per node: 1 + in-edges. Balancing in-edges costs more of the cut than balancing nodes,
so the nodes are left for levelling afterwards, which finds enough nodes whose move costs little. The seed is passed on,
but the same seed may give other parts: they depend on how threads interleave, and vary even with one thread.

compute_partition (kaminpar 3.7.3) keeps Python's lock, so no Python signal handler runs before it is done: a caller
that needs Ctrl-C to end it must let the signal end the process, as the command does (what it had on disk stays then).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np

from fastsample_dist.files import naming_file
from fastsample_dist.partition.methods.adjacency import CHUNK_EDGES, Adjacency
from fastsample_dist.partition.methods.request import (
    MissingPackageError,
    PartitionRequest,
    fill_empty_parts,
    importable,
)
from fastsample_dist.partition.methods.simple import assign_random

IMBALANCE = 0.02
NO_EDGE_WEIGHTS, NARROW_IDS = 1, 8  # bits of the header's first word: what is left out or 32 bits wide
HEADER_BYTES, OFFSET_BYTES = 24, 8


def missing_kaminpar() -> str:
    """See Method.missing."""
    return "" if importable("kaminpar") else "pip install 'fastsample_dist[kaminpar]'"


def assign_kaminpar(request: PartitionRequest) -> np.ndarray:
    """Cut few edges, balancing nodes and in-edges in one weight.

    Args:
      request: what to cut; `num_threads` threads work.
    Returns:
      int32 [num_nodes]; no part is empty.
    Raises:
      MissingPackageError: kaminpar is not installed.
      OSError: no room for the temporary file (TMPDIR names its directory).
    """
    kaminpar = require_kaminpar()
    if request.num_parts == 1:
        return np.zeros(request.num_nodes, dtype=np.int32)
    adjacency = request.adjacency
    if len(adjacency.indices) == 0:
        return assign_random(request)
    with tempfile.TemporaryDirectory(prefix="fastsample-kaminpar-") as directory:
        file = Path(directory) / "graph.parhip"
        with naming_file(file):
            write_parhip(file, adjacency, 1 + request.in_degrees)
        graph = kaminpar.load_graph(str(file), kaminpar.GraphFileFormat.PARHIP, True)
    kaminpar.reseed(request.seed)
    solver = kaminpar.KaMinPar(request.num_threads or os.cpu_count() or 1, kaminpar.terapart_context())
    parts = np.array(solver.compute_partition(graph, request.num_parts, IMBALANCE), dtype=np.int32)
    fill_empty_parts(parts, request.num_parts, adjacency.indptr)
    return parts


def require_kaminpar() -> ModuleType:
    """The package.

    Raises:
      MissingPackageError: kaminpar is not installed.
    """
    try:
        import kaminpar
    except ImportError as error:
        raise MissingPackageError(
            f"method kaminpar needs kaminpar, which is not there ({error}); pip install kaminpar"
        ) from error
    return kaminpar


def write_parhip(path: Path, adjacency: Adjacency, weights: np.ndarray) -> None:
    """Write a graph in ParHIP's binary format, 64-bit offsets and weights.

    Args:
      path: of the file.
      adjacency: both directions of every pair.
      weights: int64 [num_nodes]; of the nodes, each at least 1.
    """
    narrow = adjacency.indices.dtype == np.int32
    width = adjacency.indices.dtype.itemsize
    first = HEADER_BYTES + OFFSET_BYTES * len(adjacency.indptr)
    version = (NO_EDGE_WEIGHTS if adjacency.weights is None else 0) | (NARROW_IDS if narrow else 0)
    columns = [(adjacency.indices, adjacency.indices.dtype), (weights, np.int64)]
    if adjacency.weights is not None:
        columns.append((adjacency.weights, np.int64))
    with path.open("wb") as file:
        # Not by tofile, which loses the disk's refusal of the last bytes.
        file.write(np.array([version, adjacency.num_nodes, len(adjacency.indices)], dtype=np.uint64).data)
        file.write((adjacency.indptr * width + first).astype(np.uint64).data)
        for column, dtype in columns:
            for begin in range(0, len(column), CHUNK_EDGES):
                file.write(np.ascontiguousarray(column[begin : begin + CHUNK_EDGES], dtype=dtype).data)

"""Methods that do not look at the edges: `random`, `range` and `file`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fastsample_dist.graph.npy_files import drop_pages
from fastsample_dist.partition.methods.constraints import node_chunks, node_dtype
from fastsample_dist.partition.methods.request import PartitionRequest


def random_parts(num_nodes: int, train: np.ndarray, num_parts: int, seed: int) -> np.ndarray:
    """Deal the shuffled train nodes, then the shuffled others, to the parts in turn; the parts are in random order.

    Args:
      num_nodes: number of nodes.
      train: int64 [num_train]; train node ids, unique.
      num_parts: number of parts.
      seed: of NumPy's PCG64.
    Returns:
      int32 [num_nodes]; part of each node. Nodes and train nodes per part both differ by one at most, and each
      node falls to each part with the same probability.
    """
    rng = np.random.default_rng(seed)
    others = np.ones(num_nodes, dtype=bool)
    others[train] = False
    order, filled = np.empty(num_nodes, dtype=node_dtype(num_nodes)), len(train)
    order[:filled] = train
    for chunk in node_chunks(num_nodes):
        found = np.flatnonzero(others[chunk])
        order[filled : filled + len(found)] = found + chunk.start
        filled += len(found)
    del others
    rng.shuffle(order[: len(train)])
    rng.shuffle(order[len(train) :])
    deal = rng.permutation(num_parts)
    parts = np.empty(num_nodes, dtype=np.int32)
    for chunk in node_chunks(num_nodes):
        parts[order[chunk]] = deal[np.arange(chunk.start, chunk.stop) % num_parts]
    return parts


def assign_random(request: PartitionRequest) -> np.ndarray:
    """`random_parts` of a request."""
    return random_parts(request.num_nodes, request.train, request.num_parts, request.seed)


def assign_range(request: PartitionRequest) -> np.ndarray:
    """Cut the ids 0 .. N - 1 into runs whose lengths differ by one at most, longer ones first."""
    lengths = np.full(request.num_parts, request.num_nodes // request.num_parts)
    lengths[: request.num_nodes % request.num_parts] += 1
    return np.repeat(np.arange(request.num_parts, dtype=np.int32), lengths)


def assign_file(request: PartitionRequest) -> np.ndarray:
    """Read the user's own assignment.

    Args:
      request: its `assignment` names a .npy file, integer [num_nodes], or a text file with one part a line.
    Returns:
      int32 [num_nodes].
    Raises:
      ValueError: no file named, or what it holds is not one part per node, 0 .. num_parts - 1, with none empty.
    """
    if request.assignment is None:
        raise ValueError("method file needs the file with the part of each node; pass --assignment FILE.")
    path = Path(request.assignment)
    parts = _read_npy(path) if path.suffix == ".npy" else _read_text(path)
    if len(parts) != request.num_nodes:
        raise ValueError(f"{path} has {len(parts)} entries but the graph has {request.num_nodes} nodes; list one each.")
    found, counts = np.empty(len(parts), dtype=np.int32), np.zeros(request.num_parts, dtype=np.int64)
    for chunk in node_chunks(len(parts)):
        values = np.asarray(parts[chunk])
        wrong = np.flatnonzero((values < 0) | (values >= request.num_parts))
        if len(wrong):
            raise ValueError(
                f"{path}: entry {chunk.start + wrong[0]} is part {values[wrong[0]]}; expected 0 to "
                f"{request.num_parts - 1} (--num-parts {request.num_parts})."
            )
        found[chunk] = values
        counts += np.bincount(found[chunk], minlength=request.num_parts)
        drop_pages(parts)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        raise ValueError(
            f"{path} gives part {empty[0]} no node ({len(empty)} of {request.num_parts} parts are empty); "
            "number the parts from 0 without gaps, or lower --num-parts."
        )
    return found


def _read_npy(path: Path) -> np.ndarray:
    try:
        parts = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as .npy ({error}); write it with numpy.save.") from error
    if not isinstance(parts, np.ndarray) or parts.ndim != 1 or parts.dtype.kind not in "iu":
        found = f"{parts.dtype} of shape {parts.shape}" if isinstance(parts, np.ndarray) else type(parts).__name__
        raise ValueError(f"{path} holds {found}; expected one integer per node.")
    return parts


def _read_text(path: Path) -> np.ndarray:
    try:
        lines = path.read_text(encoding="ascii").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); expected text with one part a line, or .npy.") from error
    if lines[-1] == "":
        lines.pop()
    try:
        return np.array(lines, dtype=object).astype(np.int64)
    except (ValueError, OverflowError):
        number, line = next((at, line) for at, line in enumerate(lines, 1) if not _is_integer(line))
        raise ValueError(f"{path}, line {number}: {line.strip()[:40]!r}; expected the number of a part.") from None


def _is_integer(line: str) -> bool:
    try:
        return abs(int(line)) < 2**63
    except ValueError:
        return False

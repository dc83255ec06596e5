"""What two runs must agree on, to the bit: the content of a mini-batch in original ids, and a hash of each tensor.

    seeds            int64 [num_seeds]
    hop <h> indptr   int64 [num_dst + 1]      hop 0 is at the seeds
    hop <h> indices  int64 [num_edges]        sampled in-neighbours, destination after destination
    input nodes      int64 [num_inputs]
    features         stored values as the loader gave them, [num_inputs, feature_dim]
    labels           int64 [num_seeds], or float32 [num_seeds, columns]
Feature rows are kept as one 64-bit hash each: enough to find the first row that differs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from fastsample_dist.sampling.mfg import MiniBatch

FEATURES = "features"
ROW_HASH_BYTES = 8
SHOWN_IDS = 8


@dataclass(frozen=True, eq=False)
class Content:
    """A mini-batch as it is compared.

    Attributes:
      hashes: SHA-256 of every tensor by name, in the order of comparison.
      arrays: the tensors; of the features their rows' hashes, uint64 [num_inputs].
    """

    hashes: dict[str, str]
    arrays: dict[str, np.ndarray]

    def save(self, file: Path) -> None:
        """Write the arrays."""
        np.savez(file, **self.arrays)

    @staticmethod
    def load_arrays(file: Path) -> dict[str, np.ndarray]:
        """What `save` wrote."""
        with np.load(file) as saved:
            return dict(saved)


def batch_content(batch: MiniBatch, orig_ids: Tensor) -> Content:
    """The content of a batch.

    Args:
      batch: features and labels may be missing; then they are not compared.
      orig_ids: int64 [num_nodes], original id of every node.
    """
    arrays = {"seeds": orig_ids[batch.seeds.long()].numpy()}
    for hop, mfg in enumerate(reversed(batch.mfgs)):
        sources = orig_ids[mfg.src_nodes.long()]
        arrays[indptr_name(hop)] = mfg.indptr.numpy()
        arrays[indices_name(hop)] = sources[mfg.indices.long()].numpy()
    arrays["input nodes"] = orig_ids[batch.input_nodes.long()].numpy()
    hashes = {name: tensor_hash(array) for name, array in arrays.items()}
    if batch.features is not None:
        features = batch.features.numpy()
        hashes[FEATURES], arrays[FEATURES] = tensor_hash(features), row_hashes(features)
    if batch.labels is not None:
        arrays["labels"] = batch.labels.numpy()
        hashes["labels"] = tensor_hash(arrays["labels"])
    return Content(hashes, arrays)


def indptr_name(hop: int) -> str:
    """Name of a hop's offsets."""
    return f"hop {hop} indptr"


def indices_name(hop: int) -> str:
    """Name of a hop's picks."""
    return f"hop {hop} indices"


def tensor_hash(array: np.ndarray) -> str:
    """SHA-256 of type, shape and values."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def row_hashes(matrix: np.ndarray) -> np.ndarray:
    """A 64-bit hash of every row's bytes, uint64 [rows]."""
    rows = np.ascontiguousarray(matrix)
    hashes = (hashlib.blake2b(row.view(np.uint8), digest_size=ROW_HASH_BYTES).digest() for row in rows)
    return np.frombuffer(b"".join(hashes), dtype=np.uint64)


def first_difference(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> tuple[str, int, str] | None:
    """Where two batches' arrays first differ.

    Args:
      found, expected: arrays of a Content.
    Returns:
      (tensor, row of it, what differs, with hop and original node id where there is one), or None when they agree.
    """
    for name in expected:
        if name not in found:
            return name, 0, f"{name} are missing"
        if _equal(found[name], expected[name]):
            continue
        if name.startswith("hop "):
            return _hop_difference(int(name.split()[1]), found, expected)
        row = _first_row(found[name], expected[name])
        if row >= min(len(found[name]), len(expected[name])):
            return name, row, f"{name}: {len(found[name])} rows, expected {len(expected[name])}"
        if name == FEATURES:
            return name, row, f"features of node {expected['input nodes'][row]} (row {row})"
        what = f"label of node {expected['seeds'][row]}" if name == "labels" else f"{name}, position {row}: node"
        return name, row, f"{what} is {found[name][row]}, expected {expected[name][row]}"
    return None


def destinations(arrays: dict[str, np.ndarray], hop: int) -> np.ndarray:
    """Original ids of the nodes whose in-neighbours a hop draws: those known after the hop before it."""
    num_dst = len(arrays[indptr_name(hop)]) - 1
    return arrays["input nodes"][:num_dst]  # seeds first, then in order of first appearance


def _hop_difference(hop: int, found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> tuple[str, int, str]:
    nodes = destinations(expected, hop)
    picks, expected_picks = _picks(found, hop), _picks(expected, hop)
    for row, (here, there) in enumerate(zip(picks, expected_picks, strict=False)):
        if not np.array_equal(here, there):
            what = f"hop {hop}, node {nodes[row]}: sampled in-neighbours {_shown(here)}, expected {_shown(there)}"
            return indices_name(hop), row, what
    row = min(len(picks), len(expected_picks))
    return indptr_name(hop), row, f"hop {hop}: {len(picks)} destination nodes, expected {len(expected_picks)}"


def _picks(arrays: dict[str, np.ndarray], hop: int) -> list[np.ndarray]:
    return (
        np.split(arrays[indices_name(hop)], arrays[indptr_name(hop)][1:-1]) if len(arrays[indptr_name(hop)]) > 1 else []
    )


def _equal(found: np.ndarray, expected: np.ndarray) -> bool:
    """NaN, a label that is not known, equals NaN."""
    return np.array_equal(found, expected, equal_nan=found.dtype.kind == "f" and expected.dtype.kind == "f")


def _first_row(found: np.ndarray, expected: np.ndarray) -> int:
    common = min(len(found), len(expected))
    return next((row for row in range(common) if not _equal(found[row], expected[row])), common)


def _shown(ids: np.ndarray) -> str:
    more = f", ... {len(ids)} in all" if len(ids) > SHOWN_IDS else ""
    return f"[{', '.join(map(str, ids[:SHOWN_IDS]))}{more}]"

"""Names of an input directory's files: one that is almost the name of a column is refused, not skipped.

A directory with feature.npy or features.npz in place of features.npy would be read as a graph without features.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

ARRAY_SUFFIXES = (".npy", ".npz", ".pt", ".pth", ".pkl")
_LIKENESS = 0.85  # of difflib's ratio: train_ids is taken for train_idx, features_old is not taken for features
_OTHER_NAMES = {  # what other libraries call a column
    "edge_index": ("edges", "edge", "edge_list", "edgelist", "edgeindex"),
    "edge_weight": ("weight", "weights", "edge_weights", "edgeweight"),
    "features": ("feat", "feats", "node_feat", "node_feats", "node_feature", "node_features", "x"),
    "labels": ("node_label", "node_labels", "y", "target", "targets"),
    "node_type": ("node_types", "ntype", "ntypes", "nodetype"),
    "train_idx": ("train", "train_mask", "train_nodes", "train_split"),
    "val_idx": ("val", "valid", "val_mask", "valid_mask", "valid_idx", "val_nodes", "val_split"),
    "test_idx": ("test", "test_mask", "test_nodes", "test_split"),
}


def check_names(directory: Path, columns: Sequence[str], *, noted: bool = True) -> None:
    """Refuse a file whose name is almost that of a column that is missing; note the other arrays that are left out.

    Args:
      directory: the input.
      columns: names of the files that would be read, without .npy.
      noted: False where the same directory is read after this, which notes what is left out.
    Raises:
      ValueError: such a file, in one line.
    """
    left_out, names = [], {f"{column}.npy" for column in columns}
    for file in sorted(directory.iterdir()):
        stem, suffix = file.stem, file.suffix.lower()
        if suffix not in ARRAY_SUFFIXES or file.name.startswith(".") or file.name in names:
            continue
        meant = _meant(stem, columns)
        if meant is None or os.path.lexists(directory / f"{meant}.npy"):
            left_out.append(file.name)
            continue
        raise ValueError(
            f"{directory}: found {file.name}, expected {meant}.npy, which is missing; "
            f"{_advice(file, stem, meant)}, or move the file elsewhere if it is something else."
        )
    if left_out and noted:
        logger.info("%s: %s left out: not a column of the npy format", directory, ", ".join(left_out))


def _meant(stem: str, columns: Sequence[str]) -> str | None:
    """The column that a name is meant for; None: none."""
    name = stem.lower().replace("-", "_").replace(" ", "_")
    if name in columns:
        return name
    for column, others in _OTHER_NAMES.items():
        if column in columns and name in others:
            return column
    return next(iter(difflib.get_close_matches(name, columns, n=1, cutoff=_LIKENESS)), None)


def _advice(file: Path, stem: str, meant: str) -> str:
    if file.suffix.lower() != ".npy":
        return f"save the array with numpy.save as {meant}.npy"
    if meant.endswith("_idx") and "mask" in stem.lower():
        return f"save the node ids (numpy.flatnonzero of a mask) as {meant}.npy"
    return "rename it"

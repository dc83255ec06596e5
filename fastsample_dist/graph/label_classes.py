"""How many classes labels stand for, where the input does not state it: the highest label + 1, if that is plausible.

A model has an output per class, so labels that are not numbered from 0 without wide gaps (ids of some other kind, a
mark for "no label" other than -1) would ask for a model that fits nowhere. The rule, which honest class numbers pass:

    highest + 1 <= max(FREE_CLASSES, CLASSES_PER_LABEL * distinct labels)

Whoever has more states num_classes; then nothing is counted. Memory: at most MAX_COUNTED distinct values.
"""

from __future__ import annotations

import numpy as np

from fastsample_dist.graph.npy_files import drop_pages, row_chunks

FREE_CLASSES = 1000  # a model of so many classes costs nothing: no label is read
CLASSES_PER_LABEL = 100  # a sample may show a hundredth of the classes
MAX_COUNTED = 1 << 22


def count_classes(where: str, labels: np.ndarray) -> int:
    """Number of classes, where it is not stated: the highest + 1; 0 without a label.

    Args:
      where: where the labels come from, for messages.
      labels: integer [num_nodes], -1: unlabelled; nothing below.
    Raises:
      ValueError: the labels are too few for the highest of them, by the rule above.
    Cost: one pass for the highest; for more than FREE_CLASSES part of a second one.
    """
    highest = -1
    for lo, hi in row_chunks(len(labels), labels.itemsize):
        highest = max(highest, int(labels[lo:hi].max()))
        drop_pages(labels)
    if highest < FREE_CLASSES:
        return highest + 1
    enough = -(-(highest + 1) // CLASSES_PER_LABEL)
    distinct = _count_distinct(labels, min(enough, MAX_COUNTED))
    if distinct >= enough:
        return highest + 1
    counted = f"{distinct}" if distinct < MAX_COUNTED else f"more than {distinct - 1}"
    raise ValueError(
        f"{where} has {counted} distinct labels but the highest is {highest}, which means {highest + 1} classes and a "
        f"model with as many outputs; expected class numbers 0, 1, 2, ... (-1: unlabelled); renumber the classes "
        "(numpy.unique with return_inverse=True), or state num_classes (in meta.json, or num_classes=...)."
    )


def _count_distinct(labels: np.ndarray, enough: int) -> int:
    """Distinct labels, -1 left out; counting stops at `enough`."""
    seen = np.empty(0, dtype=labels.dtype)
    for lo, hi in row_chunks(len(labels), labels.itemsize):
        chunk = np.unique(labels[lo:hi])
        drop_pages(labels)
        seen = np.union1d(seen, chunk[chunk >= 0])
        if len(seen) >= enough:
            return enough
    return len(seen)

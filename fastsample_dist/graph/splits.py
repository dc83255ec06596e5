"""Checks of integer columns and of splits: node ids inside the graph, each once, in one split, with a label.

Columns may be mapped files; they are read in pieces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from fastsample_dist.graph.labels import has_target
from fastsample_dist.graph.npy_files import drop_pages, row_chunks

logger = logging.getLogger(__name__)


def checked_split(where: str, ids: np.ndarray, num_nodes: int) -> np.ndarray:
    """Check one split and return it as int64, ascending."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"{where} is {ids.dtype} of shape {ids.shape}; expected a one-dimensional list of node ids "
            "(of a mask take numpy.flatnonzero)."
        )
    position = first_outside(ids, 0, num_nodes)
    if position is not None:
        raise ValueError(f"{where}: entry {position} is {ids[position]}; expected node ids 0 to {num_nodes - 1}.")
    ids = np.sort(ids.astype(np.int64))
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if repeated.size:
        raise ValueError(
            f"{where} lists node {repeated[0]} more than once ({repeated.size} repeated entries in all); "
            "expected each node once; remove the repetitions (numpy.unique)."
        )
    return ids


def check_overlaps(splits: dict[str, np.ndarray], locate: Callable[[str], str]) -> None:
    """Refuse a node in two splits."""
    names = list(splits)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            shared = np.intersect1d(splits[first], splits[second], assume_unique=True)
            if shared.size:
                raise ValueError(
                    f"{locate(first + '_idx')} and {locate(second + '_idx')} share {shared.size} nodes, the first is "
                    f"node {shared[0]}; expected no node in two splits; take it out of one."
                )


def check_labelled(splits: dict[str, np.ndarray], label_fields: dict[str, Any], locate: Callable[[str], str]) -> None:
    """Refuse train nodes without a label; warn about others."""
    if not label_fields:
        return
    for split, ids in splits.items():
        if "targets" in label_fields:
            known = has_target(label_fields["targets"], ids, label_fields["task"])
        else:
            known = label_fields["labels"][ids] != -1
            drop_pages(label_fields["labels"])
        unlabelled = ids[~known]
        if unlabelled.size and split == "train":
            raise ValueError(
                f"{locate('train_idx')} lists {unlabelled.size} nodes without a label, the first is node "
                f"{unlabelled[0]}; expected a label for every train node; label them or take them out."
            )
        if unlabelled.size:
            logger.warning("%s lists %d nodes without a label", locate(f"{split}_idx"), unlabelled.size)


def check_integer(where: str, values: np.ndarray) -> None:
    """Refuse another type than integers."""
    if values.dtype.kind not in "iu":
        raise ValueError(f"{where} is {values.dtype}; expected an integer type.")


def first_outside(values: np.ndarray, low: int, end: int) -> int | None:
    """Position of the first value outside low .. end - 1, or None."""
    for first, last in row_chunks(len(values), max(abs(stride) for stride in values.strides)):
        chunk = values[first:last]
        inside = int(chunk.min()) >= low and int(chunk.max()) < end
        if not inside:
            outside = chunk >= end
            if values.dtype.kind == "i":
                outside |= chunk < low
            return first + int(outside.argmax())
        drop_pages(values)
    return None

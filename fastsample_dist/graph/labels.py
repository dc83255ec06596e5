"""Labels of nodes: classes, or targets of other tasks.

    classification   a class per node: integers [N], -1: unlabelled. Floats count as classes (NaN: unlabelled) where the
                     input's format keeps classes that way, as ogb does, or where the task is stated.
    multilabel       targets [N, C] of 0 and 1; NaN or -1: not known
    regression       targets [N, C], finite; NaN: not known

Several columns are targets: of `multilabel` when all values are 0, 1 or not known, else of `regression`, unless the
task is stated. A single column of fractions is refused until the task is stated, as it may be a mistake. Partitions
hold targets as float32, NaN where not known.
"""

from __future__ import annotations

import logging

import numpy as np

from fastsample_dist.graph.npy_files import drop_pages, row_chunks

logger = logging.getLogger(__name__)

CLASSIFICATION, MULTILABEL, REGRESSION = TASKS = ("classification", "multilabel", "regression")
TASK_ADVICE = 'say what they are: --task, "task" in meta.json or task=..., one of ' + ", ".join(TASKS)
_CLASS_LIMIT = 2**31


def check_task(where: str, task: str | None) -> str | None:
    """The task, if it is one of TASKS or None.

    Args:
      where: what states it, for messages.
    Raises:
      ValueError: it is neither.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"{where}: task is {task!r}; expected one of {', '.join(TASKS)}.")
    return task


def agreed_task(where: str, stated: str | None, asked: str | None) -> str | None:
    """The task that an input states or the caller asks for.

    Args:
      where: the input, for messages.
      stated, asked: one of TASKS or None.
    Raises:
      ValueError: they differ.
    """
    if stated is not None and asked not in (None, stated):
        raise ValueError(f"{where} states the task {stated} but {asked} is requested; correct one of them.")
    return stated or asked


def class_labels(where: str, values: np.ndarray, task: str | None = None) -> np.ndarray:
    """Labels of an input whose format keeps classes as numbers of any type, as `checked_graph` takes them.

    Args:
      where: for messages.
      values: integer or float, [num_nodes] or [num_nodes, columns].
      task: one of TASKS, if it is stated.
    Returns:
      A class per node, integer [num_nodes]: a single column is taken out, NaN becomes -1. Or, when there are more
      columns or the task is another, [num_nodes, columns] as it is.
    Raises:
      ValueError: no such shape, or a single column that holds no classes, without a task.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 1 and task in (MULTILABEL, REGRESSION):
        return values.reshape(-1, 1)
    if values.ndim == 2 and values.shape[1] and task != CLASSIFICATION:
        return values
    if values.ndim != 1:
        raise ValueError(
            f"{where} has labels of shape {values.shape}; expected one per node, (num_nodes, 1)"
            f"{' for classification; pass another task' * (task == CLASSIFICATION)}."
        )
    if values.dtype.kind != "f":
        return values
    labels = np.empty(len(values), dtype=np.int32)
    for lo, hi in row_chunks(len(values), values.itemsize):
        chunk = values[lo:hi]
        known = np.nan_to_num(chunk, nan=-1.0)
        labels[lo:hi] = np.where(np.abs(known) < _CLASS_LIMIT, known, -2)
        wrong = np.flatnonzero(labels[lo:hi] != known)
        if wrong.size:
            advice = "" if task else f"; {TASK_ADVICE}"
            raise ValueError(
                f"{where}: the label of node {lo + wrong[0]} is {chunk[wrong[0]]:g}; expected a class number or NaN"
                f"{advice}."
            )
        drop_pages(values)
    return labels


def checked_targets(where: str, values: np.ndarray, num_nodes: int, task: str | None) -> str:
    """Check targets and find their task.

    Args:
      where: for messages.
      values: numbers or bool [num_nodes, columns].
      num_nodes: of the graph.
      task: "multilabel" or "regression" if it is stated.
    Returns:
      The task; when it was not stated, it is logged.
    Raises:
      ValueError: another shape or type, an infinite value or one too large for float32, or one that is not a label of
        the task that is stated.
    """
    if values.shape[0] != num_nodes:
        raise ValueError(f"{where} has shape {values.shape}; expected ({num_nodes}, columns), one row per node.")
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{where} is {values.dtype}; expected numbers.")
    found, rounded = MULTILABEL, False
    for lo, hi in row_chunks(num_nodes, values.shape[1] * max(4, values.itemsize)):
        chunk = np.asarray(values[lo:hi])
        with np.errstate(over="ignore"):
            stored = chunk.astype(np.float32)
        _refuse_any(where, chunk, lo, np.isinf(stored), "a finite number that float32 holds, or NaN (not known)")
        labels = (stored == 0) | (stored == 1) | (stored == -1) | np.isnan(stored)
        if task == MULTILABEL:
            _refuse_any(where, chunk, lo, ~labels, "0 or 1, or -1 or NaN (not known), as the task is multilabel")
        elif found == MULTILABEL and not labels.all():
            found = REGRESSION
        rounded = rounded or (chunk.dtype.kind in "iu" and bool((chunk != stored).any()))
        drop_pages(values)
    if rounded:
        logger.warning("%s has integers that float32 does not hold exactly; they are rounded", where)
    if task is None:
        why = "all are 0, 1 or not known" if found == MULTILABEL else "not all are 0 or 1"
        logger.info("%s: %d labels per node, read as %s (%s)", where, values.shape[1], found, why)
    return task or found


def target_rows(values: np.ndarray, nodes: np.ndarray | slice, task: str) -> np.ndarray:
    """Targets of nodes as a partition holds them: float32 [n, columns], NaN where not known."""
    rows = np.array(values[nodes], dtype=np.float32)
    if task == MULTILABEL:
        rows[rows == -1] = np.nan
    return rows


def has_target(values: np.ndarray, nodes: np.ndarray, task: str) -> np.ndarray:
    """bool [n]: which nodes have at least one target that is known."""
    known = np.empty(len(nodes), dtype=bool)
    for lo, hi in row_chunks(len(nodes), 4 * values.shape[1]):
        known[lo:hi] = ~np.isnan(target_rows(values, nodes[lo:hi], task)).all(axis=1)
        drop_pages(values)
    return known


def _refuse_any(where: str, chunk: np.ndarray, first_row: int, wrong: np.ndarray, expected: str) -> None:
    if wrong.any():
        row, column = (int(place[0]) for place in np.nonzero(wrong))
        value = chunk[row, column]
        raise ValueError(f"{where}: label {column} of node {first_row + row} is {value:g}; expected {expected}.")

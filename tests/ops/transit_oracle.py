"""Individual applications by definition: sample by sample and pick by pick, in plain Python, and the same functions as
callbacks of the compiled core.

A function of an application is next(sample, transit, row, draw), step_transits(sample, index, draw) or
initial(sample, draw). It is called by the definition (`grow`) and, through `kernels`, by the core.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch

from fastsample_dist import ops
from fastsample_dist.ops import reference
from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.transit_sample import IndividualApp

NULL, ALL = -1, -1
NEXT, STEP_TRANSITS, INITIAL = 4, 5, 6  # domains of the streams
KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(layouts.StepTask), ctypes.c_int64, ctypes.c_int64)


class Draw:
    """The stream of one pick."""

    def __init__(self, key: tuple[int, int], sample_id: int, number: int, turn: int = 0) -> None:
        self.turn, self._words = turn, reference.node_words(key, sample_id, number << 32)

    def word(self) -> int:
        return next(self._words)

    def word64(self) -> int:
        return next(self._words) | next(self._words) << 32

    def below(self, n: int) -> int:
        return reference.below(self._words, n)


@dataclass
class SampleSoFar:
    """What a function sees of a sample: `steps` are the picks of all earlier steps, `step` is the number of this."""

    id: int
    roots: list[int]
    steps: list[list[int]]
    state: list[int]
    step: int = 0

    def before(self, steps: int) -> list[int]:
        """Vertices of so many steps before this one; 1: the last ones."""
        at = self.step - steps
        return self.steps[at] if at >= 0 else self.roots if at == -1 else []


@dataclass
class Rows:
    """A graph as lists: ids of each row, and its slots (threshold, own, other), [] where there is nothing to pick."""

    ids: list[list[int]]
    slots: list[list[tuple[int, int, int]]]

    @classmethod
    def of(cls, indptr: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> Rows:
        table = ops.alias_tables(indptr, weights).table.tolist()
        ids, slots = [], []
        for begin, end in pairwise(indptr.tolist()):
            row = indices[begin:end].tolist()
            entries = [(table[begin + i][0] % 2**32, row[i], row[table[begin + i][1]]) for i in range(end - begin)]
            ids.append(row)
            slots.append(entries if weights[begin:end].sum() > 0 else [])
        return cls(ids, slots)


@dataclass(frozen=True)
class PlainApp:
    """An application: what the core takes (`core`), and its functions."""

    core: IndividualApp
    next: Callable
    step_transits: Callable | None = None
    initial: Callable | None = None
    settings: dict = field(default_factory=dict)


class Definition:
    """Grows samples of an application."""

    def __init__(self, rows: Rows, app: PlainApp, rng_seed: int, step: int) -> None:
        self.rows, self.app, self.core, self.seed, self.train_step = rows, app, app.core, rng_seed, step

    def key(self, domain: int, step: int) -> tuple[int, int]:
        return reference.stage_key(self.seed, domain, step, self.train_step)

    def grow(self, roots: list[int], sample_id: int) -> SampleSoFar:
        s = SampleSoFar(sample_id, roots, [], [0] * self.core.state_words)
        if self.app.initial is not None:
            self.app.initial(s, Draw(self.key(INITIAL, 0), sample_id, 0))
        for step, size in enumerate(self.core.sample_sizes):
            s.step = step
            transits = self.transits(s)
            if self.core.until_done and all(transit == NULL for transit in transits):
                return s
            s.steps.append(self.picks(s, transits, size))
        if self.core.until_done and any(node != NULL for node in s.steps[-1]):
            raise RuntimeError(f"sample {sample_id} has not ended after {len(self.core.sample_sizes)} steps")
        return s

    def transits(self, s: SampleSoFar) -> list[int]:
        if self.app.step_transits is None:
            return s.before(1)
        key, count = self.key(STEP_TRANSITS, s.step), self.core.num_transits[s.step]
        return [self.app.step_transits(s, i, Draw(key, s.id, i)) for i in range(count)]

    def picks(self, s: SampleSoFar, transits: list[int], size: int) -> list[int]:
        calls = []  # (transit, turn) by slot
        for transit in transits:
            count = (len(self.rows.ids[transit]) if transit != NULL else 0) if size == ALL else size
            calls += [(transit, turn) for turn in range(count)]
        if self.core.unique is None or not self.core.unique[s.step]:
            return [self.pick(s, transit, turn, n) for n, (transit, turn) in enumerate(calls)]
        picks = {}
        for attempt in range(self.core.max_attempts):
            for n in [n for n in range(len(calls)) if n not in picks]:
                node = self.pick(s, *calls[n], attempt * len(calls) + n)
                if node == NULL or node not in picks.values():
                    picks[n] = node
        return [picks.get(n, NULL) for n in range(len(calls))]

    def pick(self, s: SampleSoFar, transit: int, turn: int, number: int) -> int:
        if transit == NULL:
            return NULL
        return self.app.next(s, transit, self.rows, Draw(self.key(NEXT, s.step), s.id, number, turn))


def vertices(s: SampleSoFar, until_done: bool) -> list[int]:
    """Roots and picks as the core returns them."""
    kept = len(s.steps)
    while until_done and kept > 0 and all(node == NULL for node in s.steps[kept - 1]):
        kept -= 1
    return s.roots + [node for picks in s.steps[:kept] for node in picks]


# ---- the built-in ones ----


def uniform(s: SampleSoFar, transit: int, rows: Rows, draw: Draw) -> int:
    row = rows.ids[transit]
    return row[draw.below(len(row))] if row else NULL


def weighted(s: SampleSoFar, transit: int, rows: Rows, draw: Draw) -> int:
    slots = rows.slots[transit]
    if not slots:
        return NULL
    threshold, own, other = slots[draw.below(len(slots))]
    return own if draw.word() < threshold else other


def every(s: SampleSoFar, transit: int, rows: Rows, draw: Draw) -> int:
    return rows.ids[transit][draw.turn]


def ppr_length(thresholds: Sequence[int]) -> Callable:
    def initial(s: SampleSoFar, draw: Draw) -> None:
        variate = draw.word64() >> 1
        s.state[0] = 1 + sum(variate < threshold for threshold in thresholds)

    return initial


def until_length(pick: Callable) -> Callable:
    return lambda s, transit, rows, draw: NULL if s.step >= s.state[0] else pick(s, transit, rows, draw)


def multi_rw_initial(s: SampleSoFar, draw: Draw) -> None:
    s.state[: len(s.roots)] = s.roots


def multi_rw_next(s: SampleSoFar, transit: int, rows: Rows, draw: Draw) -> int:
    node = uniform(s, transit, rows, draw)
    if node != NULL:
        s.state[s.state[-1]] = node
    return node


def multi_rw_transits(s: SampleSoFar, index: int, draw: Draw) -> int:
    s.state[-1] = draw.below(len(s.roots))
    return s.state[s.state[-1]]


def multi_rw_by_degree(rows: Rows) -> Callable:
    def step_transits(s: SampleSoFar, index: int, draw: Draw) -> int:
        owners = [i for i, root in enumerate(s.state[:-1]) if root != NULL for _ in rows.ids[root]]
        if not owners:
            return NULL
        s.state[-1] = owners[draw.below(len(owners))]
        return s.state[s.state[-1]]

    return step_transits


# ---- the same functions as callbacks ----


def kernels(app: PlainApp, rows: Rows) -> IndividualApp:
    """The application with its functions as callbacks of the core, whatever its kind."""
    made = {
        name: KERNEL(_kernel(getattr(app, name), name, rows)) if getattr(app, name) is not None else None
        for name in ("next", "step_transits", "initial")
    }
    addresses = {name: ctypes.cast(made[name], ctypes.c_void_p).value if made[name] else 0 for name in made}
    return replace(app.core, next_kind=layouts.NextKind.CALLBACK, kept=(app, made), **addresses)


def _words(address: int, count: int) -> np.ndarray:
    return (
        np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int64)), (count,)) if count else np.empty(0)
    )


def _sample(task: layouts.StepTask, sample: int, has_history: bool) -> SampleSoFar:
    def level(number: int) -> list[int]:
        stride, width = _words(task.strides, number + 1)[number], _words(task.widths, number + 1)[number]
        start = _words(task.vertices, number + 1)[number] + 8 * sample * stride
        return _words(int(start), int(width)).tolist()

    state = _words((task.state or 0) + 8 * sample * task.state_words, task.state_words)
    steps = [level(number + 1) for number in range(task.step_index)] if has_history else []
    sample_id = int(_words(task.sample_ids, task.num_samples)[sample])
    return SampleSoFar(sample_id, level(0), steps, state, task.step_index)


def _kernel(function: Callable, name: str, rows: Rows) -> Callable:
    def call(task: layouts.StepTask, s: SampleSoFar, slot: int) -> None:
        sample, n = divmod(slot, task.picks)
        number = task.first_pick + task.attempt * task.picks + n
        draw = Draw((task.key0, task.key1), s.id, number, n % task.sample_size)
        if name == "initial":
            function(s, draw)
            return
        if name == "step_transits":
            node = function(s, n, draw)
        else:
            at = sample * task.transit_stride + n // task.sample_size
            node = function(s, int(_words(task.transits, at + 1)[at]), rows, draw)
        out = ctypes.cast(task.out + 8 * (sample * task.out_stride + n), ctypes.POINTER(ctypes.c_int64))
        out[0] = node

    def kernel(pointer: ctypes._Pointer, begin: int, end: int) -> int:
        task = pointer.contents
        for at in range(begin, end):
            slot = int(_words(task.slots, end)[at]) if task.slots else at
            try:
                call(task, _sample(task, slot // task.picks, name != "initial"), slot)
            except ZeroDivisionError:
                _words(task.failed_slot, 1)[0] = slot
                return 1
        return 0

    return kernel

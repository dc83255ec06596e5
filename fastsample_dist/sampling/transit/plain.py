"""The oracle of all engines: an application run in plain Python, one pick after another, from the definitions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import checks, reference
from fastsample_dist.ops.reference.streams import INITIAL, RACE, STEP_TRANSITS, TRANSIT
from fastsample_dist.ops.transit_layouts import AppFailedError, AppFault
from fastsample_dist.sampling.mfg import MFG, DrawKey
from fastsample_dist.sampling.transit import race
from fastsample_dist.sampling.transit.app import ALL, NULL, App
from fastsample_dist.sampling.transit.binding import HOST, BoundApp, Plan, StepShape, as_count, bind
from fastsample_dist.sampling.transit.record import Recorder
from fastsample_dist.sampling.transit.samples import Samples
from fastsample_dist.sampling.transit.values import CombinedRow, Draw, Row, Sample, Tables, Transits


def sample(
    graph: CSCGraph,
    app: App,
    roots: Any = None,
    rng_seed: int = 0,
    step: int = 0,
    sample_ids: Tensor | None = None,
    *,
    num_samples: int | None = None,
) -> Samples:
    """Samples of an application by definition; slow.

    Args:
      roots, step, sample_ids, num_samples: as of TransitSampler.sample.
      rng_seed: as of TransitSampler.
    Raises:
      RuntimeError: `next` raised, returned something that is no node, or the application never ends.
      TypeError, ValueError: an application, a step, roots or ids that are refused.
    """
    bound, key = bind(app, graph), DrawKey(rng_seed, checks.whole("step", step, 0, checks.LARGEST))
    given, ids = given_roots(bound, roots, key, sample_ids, num_samples)
    return run(bound, given, ids, key)


def given_roots(
    bound: BoundApp,
    roots: Any,
    key: DrawKey,
    sample_ids: Tensor | None,
    num_samples: int | None,
    *,
    check_ids: bool = True,
    device: torch.device = HOST,
) -> tuple[Tensor, Tensor]:
    """(roots int64 [S, R], sample ids int64 [S]), the application's own roots where none are given.

    Args:
      check_ids: see BoundApp.roots.
      device: that samples; see BoundApp.
    Raises:
      ValueError: roots or ids that are refused; neither roots nor a number of samples.
    """
    if roots is not None:
        if num_samples is not None:
            raise ValueError(f"num_samples is {num_samples} beside roots, one row of which is a sample; drop it.")
        given = bound.roots(roots, check_ids=check_ids, device=device)
        return given, bound.ids(sample_ids, given.shape[0], device)
    if num_samples is None and sample_ids is None:
        raise ValueError("there are no roots; pass them, or num_samples for the application's own.")
    ids = bound.ids(sample_ids, None if num_samples is None else as_count("num_samples", num_samples))
    own = bound.app.initial_roots(bound.graph, ids, key.rng_seed, key.step)
    return bound.roots(own, check_ids=check_ids, device=device), ids


def run(bound: BoundApp, roots: Tensor, sample_ids: Tensor, key: DrawKey) -> Samples:
    """Samples of a bound application.

    Args:
      roots: int64 [S, R], checked.
      sample_ids: int64 [S].
    """
    plan, engine = bound.plan(roots.shape[1]), PlainEngine(bound, key)
    grown = _grow_all(engine, plan, roots.tolist(), sample_ids.tolist())
    num_steps = plan.num_steps
    if plan.until_done:  # the last step of a sample may pick nothing
        useful = [k for own in grown for k, picks in enumerate(own) if any(pick != NULL for pick in picks)]
        num_steps = max(useful, default=-1) + 1
    steps = []
    for step in range(num_steps):
        own = [picks[step] if step < len(picks) else [] for picks in grown]
        ragged = plan.shape(step).sample_size == ALL
        width = max(map(len, own), default=0) if ragged else plan.shape(step).picks
        padded = [picks + [NULL] * (width - len(picks)) for picks in own]
        steps.append(torch.tensor(padded, dtype=torch.int64).reshape(len(own), width))
    mfgs = None if bound.app.record is None else engine.mfgs_of_sample
    return Samples.of_steps(roots, steps, sample_ids, key, mfgs)


def explained(error: AppFailedError, bound: BoundApp, roots: Tensor, key: DrawKey) -> RuntimeError:
    """What an application did wrong in a compiled form; an exception is named by running its sample again.

    Args:
      roots: int64 [S, R] of the call.
    """
    if error.fault is not AppFault.RAISED:
        return RuntimeError(str(error))
    try:
        PlainEngine(bound, key).grow(bound.plan(roots.shape[1]), roots[error.sample].tolist(), error.sample_id)
    except RuntimeError as named:
        return named
    return RuntimeError(f"{error}, compiled, but not in plain Python, which is its definition; please report it")


class AppError(RuntimeError):
    """What an application did wrong in a step; `step` is that of the message."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def _grow_all(engine: PlainEngine, plan: Plan, roots: list[list[int]], sample_ids: list[int]) -> list[list[list[int]]]:
    """Picks of all samples. Raises AppError: of several failures that of the first step, and there of the first sample,
    as engines do that take all samples through a step together.
    """
    grown, failures = [], []
    for own, sample_id in zip(roots, sample_ids, strict=True):
        try:
            grown.append(engine.grow(plan, own, sample_id))
        except AppError as error:
            failures.append(error)
    if failures:
        raise min(failures, key=lambda error: error.step)
    return grown


@dataclass(frozen=True)
class _Step:
    """One step of one sample."""

    number: int
    shape: StepShape
    transits: list[int]

    @property
    def distinct(self) -> list[int]:
        """The transits as a set: NULLs left out, in order of first appearance."""
        return list(dict.fromkeys(node for node in self.transits if node != NULL))


@dataclass(frozen=True)
class _Call:
    """What `next` is called with for a slot, besides the sample."""

    transits: Transits
    edges: Row | CombinedRow
    turn: int


class PlainEngine:
    """Grows one sample at a time.

    Attributes:
      mfgs_of_sample: what has been recorded, per sample that is grown.
    """

    def __init__(self, bound: BoundApp, key: DrawKey) -> None:
        self.bound, self.key, self.tables, self.par = bound, key, Tables(bound), bound.par.plain()
        self.mfgs_of_sample: list[list[MFG]] = []
        self._stage_keys: dict[tuple[int, int], tuple[int, int]] = {}

    def grow(self, plan: Plan, roots: list[int], sample_id: int) -> list[list[int]]:
        """Picks of each step of a sample.

        Raises:
          RuntimeError: names the sample and the step.
        """
        s, recorder = Sample(self.tables, sample_id, roots), Recorder(self.bound, self.key)
        self._run_steps(plan, s, recorder)
        if self.bound.app.record == "within":
            recorder.within([node for vertices in (roots, *s.picks) for node in vertices])
        self.mfgs_of_sample.append(recorder.mfgs())
        return s.picks

    def _run_steps(self, plan: Plan, s: Sample, recorder: Recorder) -> None:
        if self.bound.initial is not None:
            self._call(self.bound.initial, s, 0, (s, self._draw(INITIAL, s, 0, 0), self.par), "initial")
        for number in range(plan.num_steps):
            transits = self._transits(s, number, plan.shape(number))
            if recorder.steps and number > 0:
                transits = list(recorder.nodes)
            step = _Step(number, plan.shape(number), transits)
            if plan.until_done and all(node == NULL for node in step.transits):
                return
            s.add(self._picks(s, step))
            if recorder.steps:
                recorder.step(number, step.distinct, s.picks[-1], self._columns(step))
        if plan.until_done and any(node != NULL for node in s.picks[-1]):
            raise AppError(never_ended(s.id, plan.num_steps), plan.num_steps)

    def _transits(self, s: Sample, number: int, shape: StepShape) -> list[int]:
        s.at(number)
        own = self.bound.step_transits
        if own is None:
            return [s.prev_vertex(1, index) for index in range(shape.num_transits)]
        transits = []
        for index in range(shape.num_transits):
            draw = self._draw(STEP_TRANSITS, s, number, index, index)
            transits.append(self._node(own, s, number, (number, s, index, draw, self.par), "step_transits"))
        return transits

    def _picks(self, s: Sample, step: _Step) -> list[int]:
        """All picks of one step."""
        calls = self._collective(s, step) if self.bound.collective else self._individual(step)
        if not step.shape.unique:
            return [self._pick(s, step, slot, slot, call) for slot, call in enumerate(calls)]
        picks: list[int | None] = [None] * len(calls)
        for attempt in range(self.bound.app.max_attempts):
            empty = [slot for slot, pick in enumerate(picks) if pick is None]
            made = {slot: self._pick(s, step, slot, attempt * len(calls) + slot, calls[slot]) for slot in empty}
            taken = {pick for pick in picks if pick is not None}
            for slot, pick in made.items():
                if pick == NULL or pick not in taken:
                    picks[slot] = pick
                    taken.add(pick)
        return [NULL if pick is None else pick for pick in picks]

    def _individual(self, step: _Step) -> list[_Call | None]:
        """What next is called with, per slot; None: no transit."""
        calls: list[_Call | None] = []
        for node in step.transits:
            row = self.tables.row(node)
            picks = len(row) if step.shape.sample_size == ALL else step.shape.sample_size
            calls += [None if node == NULL else _Call(Transits([node]), row, turn) for turn in range(picks)]
        return calls

    def _collective(self, s: Sample, step: _Step) -> list[_Call | None]:
        """What next is called with, per slot; None: no transits."""
        distinct = step.distinct
        ranking = (lambda: self._ranking(s, step)) if self.bound.layout.ranked else None
        row = CombinedRow([self.tables.row(node) for node in distinct], ranking)
        return [_Call(Transits(distinct), row, slot) if distinct else None for slot in range(step.shape.picks)]

    def _columns(self, step: _Step) -> dict[int, float] | None:
        """Weights in the race; None without one."""
        if not self.bound.layout.ranked:
            return None
        return race.column_weights([(node, self.tables.row(node)) for node in step.distinct])

    def _ranking(self, s: Sample, step: _Step) -> list[int]:
        columns, orig_ids = self._columns(step), self.bound.graph.orig_ids
        assert columns is not None
        key = reference.stage_key(self.key.rng_seed, RACE, step.number, self.key.step)
        orig_id = int if orig_ids is None else lambda node: int(orig_ids[node])
        return race.rank(columns, orig_id, key, s.id, step.shape.picks)

    def _pick(self, s: Sample, step: _Step, slot: int, n: int, call: _Call | None) -> int:
        if call is None:
            return NULL
        s.at(step.number, slot)
        draw = self._draw(TRANSIT, s, step.number, n, slot, call.turn)
        arguments = (s, call.transits, call.edges, step.number, draw, self.par)
        return self._node(self.bound.next, s, step.number, arguments, "next")

    def _draw(self, domain: int, s: Sample, stage: int, n: int, index: int = 0, turn: int = 0) -> Draw:
        if (domain, stage) not in self._stage_keys:
            key = reference.stage_key(self.key.rng_seed, domain, stage, self.key.step)
            self._stage_keys[domain, stage] = key
        return Draw(self._stage_keys[domain, stage], s.id, n, index, turn)

    def _node(self, function: Callable, s: Sample, step: int, arguments: tuple, name: str) -> int:
        """The node that a function of the application returns."""
        returned = self._call(function, s, step, arguments, name)
        try:
            node = operator.index(returned)
        except TypeError:
            node = None
        if node is None or not NULL <= node < self.bound.graph.num_nodes:
            raise AppError(no_node(name, returned, s.id, step, self.bound.graph.num_nodes), step)
        return node

    def _call(self, function: Callable, s: Sample, step: int, arguments: tuple, name: str) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            message = f"{name} raised {type(error).__name__} ({error}) in sample {s.id} at step {step}"
            raise AppError(message, step) from error


def no_node(name: str, returned: Any, sample_id: int, step: int, num_nodes: int) -> str:
    """Message about a function that returned no node of the graph."""
    return (
        f"{name} returned node {returned} for sample {sample_id} at step {step}; expected 0 to {num_nodes - 1} or "
        "transit.NULL (-1)"
    )


def never_ended(sample_id: int, max_steps: int) -> str:
    """Message about a sample that goes on for too long."""
    return (
        f"sample {sample_id} has not ended after {max_steps} steps; return transit.NULL in the end, or raise the "
        "application's max_steps"
    )

"""An application checked and put together with a graph: what all engines start from."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist import memory_sizes
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import checks
from fastsample_dist.sampling.transit.app import (
    ALL,
    COLLECTIVE,
    INDIVIDUAL,
    INF,
    NULL,
    ROOTS,
    App,
    Needs,
    by_original_id,
)  # fmt: skip
from fastsample_dist.sampling.transit.params import Params

STEP_RECORDS = ("to_new", "to_union")  # a hop per step, whose sources are the next step's transits
RECORDS = (None, *STEP_RECORDS, "within")
STATE_DTYPES = (np.int32, np.int64)
MAX_STEPS = 5_000_000  # the application is asked about every step before the first is made, unless they are alike
MAX_PICKS = 2**31  # the number of a pick is the high half of a block number (and attempts count on)
LARGE_BYTES = 1 << 30  # of samples: less is not compared with what is free, as in the core (csrc/cpu/room.h)
_ID_BYTES = 8
_INTEGERS = int, np.integer
HOST = torch.device("cpu")
_SAMPLE_NAMES = ("id", "num_roots", "size", "root", "vertex", "prev_vertex", "prev_edges", "row")


@dataclass(frozen=True)
class StateField:
    """One state: its name, np.int32 or np.int64, and its entries (ROOTS: one per root)."""

    name: str
    dtype: type
    count: int


@dataclass(frozen=True)
class Layout:
    """What compiled code must know of an application besides its functions; equal layouts share one compilation.

    A sample's state is one int64 word per entry, field after field (`offsets`).

    Attributes:
      params: (name, kind) in order: "int" and "float" take a word, arrays (kind: the dtype) address and length.
      state: fields in order.
      columns: names in order.
      weighted: edge weights are used; otherwise weight(i) is 1.0 and pick is uniform.
      collective, edge_queries, max_weight, ranked: what rows offer.
    """

    params: tuple[tuple[str, str], ...]
    state: tuple[StateField, ...]
    columns: tuple[str, ...]
    weighted: bool
    collective: bool
    edge_queries: bool
    max_weight: bool
    ranked: bool

    def counts(self, num_roots: int) -> list[int]:
        """Entries of each state field."""
        return [num_roots if field.count == ROOTS else field.count for field in self.state]

    def offsets(self, num_roots: int) -> list[int]:
        """First word of each state field, and the number of words at the end."""
        return np.concatenate([[0], np.cumsum(self.counts(num_roots), dtype=np.int64)]).astype(int).tolist()


@dataclass(frozen=True)
class StepShape:
    """One step of a sample: its transits, sample_size (ALL: one pick per neighbour), picks (ALL: unknown before, 0)."""

    num_transits: int
    sample_size: int
    picks: int
    unique: bool


class Plan:
    """The shapes of all steps for a number of roots, asked of the application as they are wanted. Where its answers are
    the same in every step, two steps that are alike are followed by such steps alone, and no more is asked.
    """

    def __init__(self, bound: BoundApp, num_roots: int) -> None:
        self.num_roots, self._bound, self._shapes, app = num_roots, bound, [], bound.app
        answers = (app.sample_size, app.unique, app.num_transits)
        self._settles = all(getattr(answer, "is_same_every_step", False) for answer in answers)
        steps = app.steps()
        self.until_done = steps == INF
        self.num_steps = app.max_steps if self.until_done else as_count("steps()", steps)
        if self.num_steps > MAX_STEPS:
            name = "max_steps" if self.until_done else "steps()"
            raise ValueError(f"{name} of {type(app).__name__} is {self.num_steps}; expected at most {MAX_STEPS}.")
        if not self.until_done:
            self._ask(self.num_steps)

    def shape(self, step: int) -> StepShape:
        """Shape of a step. Raises ValueError: an answer of the application that is out of range."""
        self._ask(step + 1)
        return self._shapes[min(step, len(self._shapes) - 1)]

    def values(self, name: str) -> np.ndarray:
        """A field of the shapes of all steps, [num_steps]; of steps() == INF of those up to max_steps."""
        self._ask(self.num_steps)
        known = [getattr(shape, name) for shape in self._shapes]
        values = np.array(known, dtype=bool if name == "unique" else np.int64)
        return np.append(values, np.repeat(values[-1:], self.num_steps - len(known)))

    @cached_property
    def widths(self) -> list[int]:
        """Picks of all steps; of ALL neighbours 0."""
        return self.values("picks").tolist()

    @cached_property
    def known_picks(self) -> int:
        """Picks of every sample: 0 where samples end when they are done, or take all neighbours, as lengths differ."""
        if self.until_done or (self.values("sample_size") == ALL).any():
            return 0
        return int(self.values("picks").sum())

    def _ask(self, num_steps: int) -> None:
        """Ask about steps up to num_steps, or to the one from which on all are alike."""
        known = self._shapes
        while len(known) < num_steps and not (self._settles and len(known) > 1 and known[-1] == known[-2]):
            known.append(self._next_shape(len(known)))

    def _next_shape(self, step: int) -> StepShape:
        app, collective = self._bound.app, self._bound.collective
        name = type(app).__name__
        transits = self._num_transits(step)
        size = self._sample_size(step)
        unique = bool(app.unique(step))
        if size == ALL:
            if collective or self.until_done or step != self.num_steps - 1 or unique:
                raise ValueError(
                    f"{name}.sample_size({step}) is transit.ALL; that is for the last step of an individual "
                    "application with a number of steps and without unique: widths differ, so no step can follow."
                )
            if self._bound.layout.state and transits > 0:
                raise ValueError(
                    f"{name} has state and takes all neighbours at step {step}; expected one pick per sample at most, "
                    "because the order of picks would matter; keep no state."
                )
            return StepShape(transits, size, 0, unique)
        as_count(f"{name}.sample_size({step})", size)
        picks = size if collective else transits * size
        if picks * (app.max_attempts if unique else 1) >= MAX_PICKS:
            raise ValueError(
                f"{name} makes {picks} picks per sample at step {step}; expected fewer than 2^31, attempts of unique "
                "picks included; sample fewer steps or fewer picks."
            )
        if self._bound.layout.state and picks > 1:
            raise ValueError(
                f"{name} has state and makes {picks} picks per sample at step {step}; expected one at most, because "
                "the order of picks would matter; keep no state, or give each sample one root."
            )
        return StepShape(transits, size, picks, unique)

    def _sample_size(self, step: int) -> int:
        size = self._bound.app.sample_size(step)
        try:
            return operator.index(size)
        except TypeError:
            name = f"{type(self._bound.app).__name__}.sample_size({step})"
            raise ValueError(f"{name} is {size!r}; expected an integer >= 0, or transit.ALL.") from None

    def _num_transits(self, step: int) -> int:
        bound, name = self._bound, type(self._bound.app).__name__
        last = self._shapes[-1] if step else None
        default = self.num_roots if last is None else last.picks
        if last is not None and bound.collective and bound.app.record in STEP_RECORDS:
            default += last.num_transits  # destinations first, then the new ones
        own = bound.app.num_transits(step, self.num_roots)
        if own is None:
            return default
        as_count(f"{name}.num_transits({step}, {self.num_roots})", own)
        if bound.step_transits is None and own != default:
            raise ValueError(
                f"{name}.num_transits({step}, {self.num_roots}) is {own} but the step before leaves {default}; define "
                "step_transits, which says what the transits are."
            )
        return own


@dataclass(frozen=True, eq=False)
class BoundApp:
    """An application and the graph that it samples, both checked.

    Attributes:
      weighted: edge weights are used.
      par: of `app.prepare`.
      layout: see Layout.
      next, step_transits, initial: the functions; the latter two may be None.
      columns: int64 [num_nodes] each, by node id.
    """

    app: App
    graph: CSCGraph
    weighted: bool
    par: Params
    layout: Layout
    next: Callable[..., int]
    step_transits: Callable[..., int] | None
    initial: Callable[..., None] | None
    columns: dict[str, np.ndarray]

    @property
    def collective(self) -> bool:
        """Whether picks are made from the neighbours of all transits together."""
        return self.app.sampling_type == COLLECTIVE

    @property
    def has_one_width(self) -> bool:
        """Whether samples of as many roots have as many vertices, whatever is picked."""
        steps = self.app.steps()
        return steps != INF and (as_count("steps()", steps) == 0 or self.app.sample_size(steps - 1) != ALL)

    @cached_property
    def _plans(self) -> dict[int, Plan]:
        return {}

    def plan(self, num_roots: int) -> Plan:
        """Shapes of the steps. Raises ValueError: the application answers with something out of range."""
        if num_roots not in self._plans:
            self._plans[num_roots] = Plan(self, num_roots)
        return self._plans[num_roots]

    def check_room(self, num_samples: int, num_roots: int, num_picks: int) -> None:
        """Refuse samples whose vertices do not fit into memory, before one is made.

        Raises:
          ValueError: with the sizes.
        """
        needed = _ID_BYTES * num_samples * (num_roots + num_picks)
        free = memory_sizes.available_bytes() if needed >= LARGE_BYTES else needed
        if needed > free:
            raise ValueError(
                f"{num_samples} samples of {type(self.app).__name__} with {num_roots} roots and {num_picks} picks each "
                f"take at least {memory_sizes.format_size(needed)}, but {memory_sizes.format_size(free)} of memory are "
                "free; make them in several calls, with their sample_ids, or take fewer steps or picks."
            )

    def ids(self, sample_ids: Any, count: int | None, device: torch.device = HOST) -> Tensor:
        """Ids of the samples, int64 [count]; None: their positions, or as many samples as there are ids.

        Args:
          device: where positions are made, and ids stay that are there; others come to the host.
        Raises:
          ValueError: not one per sample, not integers, or negative; more than fit into memory.
        """
        if sample_ids is None:
            self.check_room(count, 1, 0)
            if device.type != "cpu":
                return torch.arange(count, device=device)
            return torch.from_numpy(np.arange(count, dtype=np.int64))  # numpy: see _ends
        ids = _integers("sample_ids", sample_ids, device)
        count = ids.numel() if count is None else count
        low = _ends(ids)[0] if ids.numel() else 0
        if ids.shape != (count,) or low < 0:
            raise ValueError(
                f"sample_ids has shape {tuple(ids.shape)}, smallest {low if ids.numel() else 'none'}; "
                f"expected {count} integers >= 0, one per sample."
            )
        return ids

    def roots(self, roots: Any, *, check_ids: bool = True, device: torch.device = HOST) -> Tensor:
        """Roots of the samples, int64 [S, R] in host memory, or where they are.

        Args:
          roots: integers.
          check_ids: False where what gets them refuses an id outside the graph itself.
          device: roots that are there stay there.
        Raises:
          ValueError: not integers, not [S] or [S, R], or an id outside the graph that is not NULL.
        """
        nodes = _integers("roots", roots, device)
        if nodes.dim() == 1:
            nodes = nodes[:, None]
        if nodes.dim() != 2:
            raise ValueError(f"roots has shape {tuple(nodes.shape)}; expected [samples] or [samples, roots].")
        if check_ids and nodes.numel():
            low, high = _ends(nodes)
            if low < NULL or high >= self.graph.num_nodes:
                raise ValueError(
                    f"roots holds node ids from {low} to {high}; expected 0 to {self.graph.num_nodes - 1}, or "
                    "transit.NULL (-1) behind the last root of a sample."
                )
        return nodes.contiguous()


def bind(app: App, graph: CSCGraph) -> BoundApp:
    """Check an application and put it together with a graph.

    Raises:
      TypeError: no App, or one without `next`, or with a value where a method or a function is expected.
      ValueError: an attribute with a value that is not allowed; weights wanted of a graph without; a column that is not
        one integer per node.
    """
    if not isinstance(app, App):
        hint = "an instance of it, such as app()" if isinstance(app, type) else "an object of a subclass of transit.App"
        raise TypeError(f"app is {app!r}; expected {hint}.")
    name = type(app).__name__
    functions = _functions(app)
    if app.sampling_type not in (INDIVIDUAL, COLLECTIVE):
        raise ValueError(
            f"{name}.sampling_type is {app.sampling_type!r}; expected transit.INDIVIDUAL or transit.COLLECTIVE."
        )
    check_methods(app)
    for limit in ("max_steps", "max_attempts"):
        as_count(f"{name}.{limit}", getattr(app, limit), least=1)
    _check_recorded(app, functions["step_transits"])
    if not isinstance(app.needs, Needs):
        raise TypeError(f"{name}.needs is {app.needs!r}; expected transit.needs(...).")
    if app.needs.race is not None and app.sampling_type != COLLECTIVE:
        raise ValueError(f"{name} needs a race of an individual application; expected transit.COLLECTIVE.")
    if app.needs.weights is True and graph.weights is None:
        raise ValueError(f"{name} needs edge weights but the graph has none; build it with weights, one per edge.")
    weighted = app.weighted(graph)
    par = app.prepare(graph, weighted)
    if not isinstance(par, Params):
        raise TypeError(f"{name}.prepare returned {type(par).__name__}; expected transit.params(...).")
    columns = _columns(app, graph)
    layout = Layout(
        par.kinds, _state(app), tuple(columns), weighted, app.sampling_type == COLLECTIVE,
        app.needs.edge_queries, app.needs.max_weight, app.needs.race is not None,
    )  # fmt: skip
    return BoundApp(app, graph, weighted, par, layout, **functions, columns=columns)


def _functions(app: App) -> dict[str, Any]:
    """Those that are compiled, by name; None where there is none."""
    name, wanted = type(app).__name__, ("next", "step_transits", "initial")
    functions = {function: getattr(type(app), function) for function in wanted}
    if functions["next"] is None:
        raise TypeError(f"{name} has no next; define next(s, transits, edges, step, draw, par), without self.")
    for function, given in functions.items():
        if given is not None and not callable(given):
            raise TypeError(f"{name}.{function} is {given!r}; expected a function, which is compiled.")
    return functions


def check_methods(app: App) -> None:
    """Refuse an application that has a value in place of a method, such as steps = 10.

    Raises:
      TypeError: names the method.
    """
    for method, own in vars(App).items():
        if callable(own) and not method.startswith("_") and not callable(getattr(app, method)):
            raise TypeError(
                f"{type(app).__name__}.{method} is {getattr(app, method)!r}; expected a method, which returns it."
            )


def _check_recorded(app: App, step_transits: Callable[..., int] | None) -> None:
    name = type(app).__name__
    if app.record not in RECORDS:
        raise ValueError(f"{name}.record is {app.record!r}; expected one of {RECORDS}.")
    if app.record is not None and app.sampling_type != COLLECTIVE:
        raise ValueError(
            f"{name}.record is {app.record!r} but it is an individual application; expected None: edges are recorded "
            "of collective ones."
        )
    if app.record in STEP_RECORDS and step_transits is not None:
        raise ValueError(
            f"{name} records edges and defines step_transits; the transits of a recorded step are the "
            "source nodes of the step before; drop one of them."
        )


def _state(app: App) -> tuple[StateField, ...]:
    if not isinstance(app.state, Mapping):
        raise TypeError(
            f'{type(app).__name__}.state is {app.state!r}; expected a dictionary such as {{"count": (np.int64, 1)}}.'
        )
    fields = []
    for name, entry in app.state.items():
        try:
            dtype, count = entry
        except (TypeError, ValueError):
            dtype, count = None, None
        sound = dtype in STATE_DTYPES and isinstance(count, int) and (count >= 1 or count == ROOTS)
        if not sound or not name.isidentifier() or name.startswith("_") or name in _SAMPLE_NAMES:
            raise ValueError(
                f"{type(app).__name__}.state has {name!r}: {entry!r}; expected a name that the sample does not use, "
                "and (np.int32 or np.int64, entries >= 1 or transit.ROOTS)."
            )
        fields.append(StateField(name, np.int32 if dtype == np.int32 else np.int64, count))
    return tuple(fields)


def _columns(app: App, graph: CSCGraph) -> dict[str, np.ndarray]:
    """Columns by node id."""
    columns, order = {}, None
    for name, given in app.needs.columns.items():
        column = torch.as_tensor(given)
        if name in app.state or name in _SAMPLE_NAMES or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"column {name!r} of {type(app).__name__}: choose a name that the sample does not use.")
        if column.shape != (graph.num_nodes,) or column.is_floating_point() or column.is_complex():
            raise ValueError(
                f"column {name} is {column.dtype} of shape {tuple(column.shape)}; expected an integer for each of the "
                f"{graph.num_nodes} nodes."
            )
        order = by_original_id(graph) if order is None else order
        placed = torch.empty(graph.num_nodes, dtype=torch.int64)
        placed[order] = column.to(torch.int64).cpu()
        columns[name] = placed.numpy()
    return columns


def as_count(what: str, value: Any, least: int = 0) -> int:
    """The integer that a value is. Raises ValueError: it is none, or below `least`."""
    if not isinstance(value, _INTEGERS) or isinstance(value, bool) or value < least:
        raise ValueError(f"{what} is {value!r}; expected an integer >= {least}.")
    return int(value)


def _ends(ids: Tensor) -> tuple[int, int]:
    """The smallest and the largest of some ids, of which there is one.

    In host memory by numpy: torch's OpenMP threads wait for their next operator by spinning, for milliseconds, on the
    cores that are to make the samples (docs/samplers.md).
    """
    if not ids.is_cpu:
        low, high = torch.stack(ids.aminmax()).tolist()
        return low, high
    values = ids.numpy()
    return int(values.min()), int(values.max())


def _integers(name: str, values: Any, device: torch.device) -> Tensor:
    """Ids as int64 in host memory, or on the device if they are there; an empty list counts as integers."""
    try:
        ids = checks.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # torch has one for each kind of value
        shown = " ".join(reprlib.repr(values).split())
        raise ValueError(f"{name} is {shown}; expected integers: a tensor, or a list of them.") from error
    if (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool) and ids.numel():
        raise ValueError(f"{name} is {ids.dtype}; expected integers.")
    return ids.to(device if ids.device == device else HOST, torch.int64)

"""check_app: a conformance suite for applications of graph sampling.

First bit for bit: the application's functions as plain Python, which are its definition, against every compiled form
(the built-in kernels, Numba), under every schedule, numbers of threads and block sizes, in one call and in two that
share the samples by their ids, as ranks do; and on a relabelled copy of the graph, by original id. Then its law, if it
states one (`App.law`, and `App.roots_law` of roots that it draws itself): samples of the compiled form are held against
it by exact and chi-square tests (app_laws.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.device.choice import computing
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import checks
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import plain
from fastsample_dist.sampling.transit.app import NULL, App
from fastsample_dist.sampling.transit.binding import BoundApp, bind
from fastsample_dist.sampling.transit.engine import SCHEDULES, Engine, Run
from fastsample_dist.sampling.transit.engines import forms_of, make_device_engine, make_engine
from fastsample_dist.sampling.transit.samples import Samples
from fastsample_dist.testing.app_laws import weigh_roots, weigh_samples
from fastsample_dist.testing.graphs import relabelled
from fastsample_dist.testing.statistics import Evidence

THREADS = (1, 2, 5)
BLOCKS = (1, 2, 7, 64, 4096)
NUM_COMPARED = 24  # samples, without roots given
LAW_ROOTS = 40
MFG_COLUMNS = ("indptr", "indices", "src_nodes", "edge_ids", "edge_weights")
KEY = DrawKey(rng_seed=7, step=3)
FIRST_LAW_ID = 10**6  # their words are others than those of the compared samples


@dataclass(frozen=True)
class AppReport:
    """What `check_app` looked at.

    Attributes:
      forms: compared with plain Python: "built-in", "numba".
      num_samples: compared in each run.
      num_runs: how often: forms x schedules x threads x block sizes, and the others.
      num_law_picks: picks that were held against the stated law; 0: none is stated.
      num_law_roots: samples whose roots, drawn by the application, were held against theirs; 0: none is stated.
      num_statistics: p-values computed.
      smallest_p_value: the smallest of them; below false_alarm / num_statistics the check fails.
      smallest_text: what it belongs to.
    """

    forms: tuple[str, ...]
    num_samples: int
    num_runs: int
    num_law_picks: int
    num_law_roots: int
    num_statistics: int
    smallest_p_value: float
    smallest_text: str


def check_app(
    app: App,
    graph: CSCGraph,
    *,
    roots: Tensor | Sequence[Any] | None = None,
    forms: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    law_samples: int = 4000,
    max_law_picks: int = 100_000,
    false_alarm: float = 1e-6,
) -> AppReport:
    """Put an application through the conformance suite; return a report when nothing was found.

    Args:
      app: a short one is best: plain Python makes some 10,000 picks a second.
      graph: what is sampled; small, with the rows that matter (`conformance_graph()`).
      roots: int [S] or [S, R]; None: what the application's initial_roots gives.
      forms: compiled forms to compare, "built-in" or "numba"; None: all that there are.
      device: a GPU, whose kernels are compared too.
      law_samples: samples that are held against the law, with the roots in turn.
      max_law_picks: of them; the rest is left out.
      false_alarm: probability that a correct application is refused, all statistics together.
    Returns:
      AppReport.
    Raises:
      AssertionError: one line: what was found and what was expected.
      ImportError: an application of one's own without Numba.
      TypeError, ValueError: an application, roots or a device that are refused; law_samples or max_law_picks below 1;
        false_alarm that is no number above 0 and below 1.
      RuntimeError: the application fails (in plain Python; a compiled form must fail in the same words).
    """
    evidence = Evidence(false_alarm)
    law_samples = checks.whole("law_samples", law_samples, 1)
    max_law_picks = checks.whole("max_law_picks", max_law_picks, 1)
    bound = bind(app, graph)
    chosen = tuple(forms_of(bound) if forms is None else forms)
    if not set(chosen) <= set(forms_of(bound)) or not chosen:
        raise ValueError(f"forms is {forms!r}; {type(app).__name__} has the compiled forms {forms_of(bound)}.")
    suite = _Suite(bound, roots)
    for form in chosen:
        suite.compare_form(form)
    engines = {form: partial(make_engine, form=form) for form in chosen}
    if device is not None:
        engines[str(device)] = partial(_device_engine, device=computing(device))
        suite.compare_device(engines[str(device)](bound), str(device))
    suite.compare_relabelled(engines)
    samples = suite.samples_for_law(make_engine(bound, chosen[0]), law_samples)
    drawn_roots = 0 if suite.has_roots else weigh_roots(bound, samples, evidence)
    picks = weigh_samples(bound, samples, evidence, max_law_picks)
    evidence.decide()
    return AppReport(
        chosen, len(suite.expected), suite.num_runs, picks, drawn_roots, evidence.count, evidence.smallest_p_value,
        evidence.text,
    )  # fmt: skip


class _Suite:
    """The samples by definition, and what is compared with them."""

    def __init__(self, bound: BoundApp, roots: Any) -> None:
        self.bound, self.num_runs = bound, 0
        count = NUM_COMPARED if roots is None else None
        self.roots, self.ids = plain.given_roots(bound, roots, KEY, None, count)
        self.has_roots = roots is not None
        self.expected = plain.run(bound, self.roots, self.ids, KEY)

    def compare_form(self, form: str) -> None:
        """A compiled form, however it is run."""
        engine = make_engine(self.bound, form)
        for schedule, threads, block in product(SCHEDULES, THREADS, BLOCKS):
            how = Run(num_threads=threads, schedule=schedule, block_samples=block)
            where = f"{form}, schedule {schedule!r}, {threads} threads, blocks of {block}"
            self._compare(engine.sample(self.roots, self.ids, KEY, how), slice(None), where)
        self._compare_halves(engine, form)

    def compare_device(self, engine: Engine, name: str) -> None:
        """The kernels of a GPU, under every schedule."""
        for schedule in SCHEDULES:
            found = engine.sample(self.roots, self.ids, KEY, Run(schedule=schedule))
            self._compare(found, slice(None), f"{name}, schedule {schedule!r}")
        self._compare_halves(engine, name)

    def _compare_halves(self, engine: Engine, name: str) -> None:
        """Two calls that share the samples."""
        half = len(self.ids) // 2
        for part in (slice(None, half), slice(half, None)):
            found = engine.sample(self.roots[part], self.ids[part], KEY, Run())
            self._compare(found, part, f"{name}, samples {part.start or 0} to {part.stop or len(self.ids)} alone")

    def compare_relabelled(self, engines: Mapping[str, Callable[[BoundApp], Engine]]) -> None:
        """Samples of a relabelled copy, by original id."""
        copy, new_of = relabelled(self.bound.graph, seed=1)
        other = bind(self.bound.app, copy)
        if self.has_roots:
            roots = _renamed(self.roots, new_of)
        else:
            roots = other.roots(other.app.initial_roots(copy, self.ids, KEY.rng_seed, KEY.step))
        old_of = torch.argsort(new_of)
        hint = "; nodes must be told apart by == alone, and tables over nodes ordered by original id"
        found = plain.run(other, roots, self.ids, KEY)
        self._compare(found, slice(None), "plain Python on a relabelled graph", rename=old_of, hint=hint)
        for name, make in engines.items():
            found = make(other).sample(roots, self.ids, KEY, Run())
            self._compare(found, slice(None), f"{name} on a relabelled graph", rename=old_of)

    def samples_for_law(self, engine: Engine, count: int) -> Samples:
        """Samples of other ids, the roots in turn."""
        ids = FIRST_LAW_ID + torch.arange(count)
        if self.has_roots:
            roots = self.roots[:LAW_ROOTS][ids % min(LAW_ROOTS, len(self.roots))] if len(self.roots) else self.roots
            ids = ids[: len(roots)]
        else:
            roots = self.bound.roots(self.bound.app.initial_roots(self.bound.graph, ids, KEY.rng_seed, KEY.step))
        return engine.sample(roots, ids, KEY, Run())

    def _compare(self, found: Samples, part: slice, where: str, rename: Tensor | None = None, hint: str = "") -> None:
        self.num_runs += 1
        expected, got = self.expected.vertices[part], found.vertices.cpu()
        if rename is not None:
            got = _renamed(got, rename)
        width = max(expected.shape[1], got.shape[1])  # of a part of the samples the longest may be shorter
        expected, got = _widened(expected, width), _widened(got, width)
        if not torch.equal(expected, got):
            i, at = (expected != got).nonzero()[0].tolist()
            raise AssertionError(
                f"{where}: vertex {at} of sample {self.ids[part][i].item()} is {got[i, at].item()}; plain Python has "
                f"{expected[i, at].item()}{hint}."
            )
        if self.expected.mfgs_of_sample is not None and rename is None:
            self._compare_edges(found, part, where)

    def _compare_edges(self, found: Samples, part: slice, where: str) -> None:
        """The recorded edges."""
        pairs = zip(self.expected.mfgs_of_sample[part], found.mfgs_of_sample, strict=True)
        for sample_id, (expected, got) in zip(self.ids[part].tolist(), pairs, strict=True):
            for layer, name in product(range(len(expected)), MFG_COLUMNS):
                one, two = getattr(expected[layer], name), _on_host(getattr(got[layer], name))
                if one is not two and (one is None or two is None or not torch.equal(one, two)):
                    raise AssertionError(
                        f"{where}: {name} of MFG {layer} of sample {sample_id} is {_shown(two)}; plain Python has "
                        f"{_shown(one)}."
                    )


def _device_engine(bound: BoundApp, device: torch.device) -> Engine:
    if not arrays.runs_kernels(device):
        raise ValueError(f"the device is {device}; expected a GPU, or None: the CPU is always compared.")
    return make_device_engine(bound, device)


def _on_host(column: Tensor | None) -> Tensor | None:
    return None if column is None else column.cpu()


def _shown(column: Tensor | None) -> str:
    """The first entries, in one line."""
    return "None" if column is None else f"{column[:8].tolist()}{' ...' if column.numel() > 8 else ''}"


def _renamed(nodes: Tensor, name_of: Tensor) -> Tensor:
    """Nodes by other names; NULL stays."""
    return torch.where(nodes == NULL, NULL, name_of[nodes.clamp(min=0)]) if len(name_of) else nodes


def _widened(vertices: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(vertices, (0, width - vertices.shape[1]), value=NULL)

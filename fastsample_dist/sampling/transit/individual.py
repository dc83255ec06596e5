"""IndividualEngine: applications with individual transits, by the core's engine."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fastsample_dist.ops.transit_layouts import AppFailedError, NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, SampledSteps, TransitRequest, transit_sample
from fastsample_dist.ops.transit_tables import TableNeeds, TransitTables
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit.binding import BoundApp, Plan
from fastsample_dist.sampling.transit.compile_cpu import CompiledApp, compile_app
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.plain import explained
from fastsample_dist.sampling.transit.samples import Samples


class IndividualEngine:
    """Samples of an individual application.

    Args:
      bound: the application and its graph.
      kind: of the core's kernel; None: the application's functions are compiled.
      copy_indices: read the neighbours from a copy in huge pages.
    Raises:
      ImportError, ValueError: as of compile_app; ValueError also for tables that do not fit into memory.
    """

    def __init__(self, bound: BoundApp, kind: NextKind | None, copy_indices: bool = False) -> None:
        self._bound, self._kind = bound, NextKind.CALLBACK if kind is None else kind
        self._compiled = compile_app(bound) if kind is None else CompiledApp(0, None, None)
        self._tables = host_tables(bound, copy_indices)
        self._params = bound.par.words()
        self._apps: dict[int, IndividualApp] = {}  # by number of roots

    @property
    def table_bytes(self) -> int:
        """See Engine."""
        return self._tables.num_bytes

    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """See Engine."""
        plan = self._bound.plan(roots.shape[1])
        request = TransitRequest(key.rng_seed, key.step, run.num_threads, run.schedule, run.block_samples)
        try:
            found = transit_sample(self._tables, self._app(plan), roots, sample_ids, request)
        except AppFailedError as error:
            raise explained(error, self._bound, roots, key) from error
        return Samples(found.vertices, found.offsets, plan.num_roots, widths_of(plan, found), sample_ids, key)

    def _app(self, plan: Plan) -> IndividualApp:
        if plan.num_roots not in self._apps:
            app = app_in_numbers(self._bound, plan, self._kind, self._params, self._compiled)
            self._apps[plan.num_roots] = app
        return self._apps[plan.num_roots]


def host_tables(bound: BoundApp, copy_indices: bool = False) -> TransitTables:
    """What an application reads besides the rows of its graph, in host memory."""
    layout, graph = bound.layout, bound.graph
    max_weight = layout.max_weight and layout.weighted
    needs = TableNeeds(layout.weighted, max_weight, layout.edge_queries, copy_indices)
    weights = graph.weights if layout.weighted else None
    return TransitTables(graph.indptr, graph.indices, weights, needs, list(bound.columns.values()))


def app_in_numbers(
    bound: BoundApp, plan: Plan, kind: NextKind, params: np.ndarray | None, compiled: CompiledApp
) -> IndividualApp:
    """An application as the core takes it.

    Args:
      bound: the application.
      plan: of a number of roots.
      kind: who makes its picks.
      params: its words.
      compiled: its functions; addresses of 0 and None for a kind that is built in.
    """
    distinct = plan.values("unique")
    return IndividualApp(
        plan.values("sample_size"), plan.values("num_transits"), plan.num_roots, kind, params,
        unique=distinct if distinct.any() else None,
        max_attempts=bound.app.max_attempts,
        state_words=bound.layout.offsets(plan.num_roots)[-1],
        next=compiled.next,
        step_transits=compiled.step_transits or 0,
        initial=compiled.initial or 0,
        until_done=plan.until_done,
        kept=(bound,),
    )  # fmt: skip


def widths_of(plan: Plan, found: SampledSteps) -> list[int]:
    """Picks of each step, at most."""
    if found.offsets is None:
        return plan.widths
    widths, left, step = [], found.longest - plan.num_roots, 0
    if not plan.until_done:
        *before, _ = plan.widths
        return [*before, max(0, left - sum(before))]  # the last takes ALL; there may be no sample
    while left > 0:
        widths.append(plan.shape(step).picks)
        left, step = left - widths[-1], step + 1
    return widths

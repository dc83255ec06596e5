"""Collective applications on the compiled engine: the built-in ones, and a user's compiled functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastsample_dist.ops.collective_sample import (
    CollectiveApp,
    CollectiveSampler,
    EdgeScale,
    Record,
    RecordedHops,
)
from fastsample_dist.ops.transit_layouts import AppFailedError, NextKind
from fastsample_dist.ops.transit_tables import TableNeeds, TransitTables
from fastsample_dist.sampling.mfg import MFG, DrawKey
from fastsample_dist.sampling.transit.app import App
from fastsample_dist.sampling.transit.binding import BoundApp
from fastsample_dist.sampling.transit.compile_cpu import CompiledApp, compile_app
from fastsample_dist.sampling.transit.layers import LADIES, FastGCN, Layer
from fastsample_dist.sampling.transit.plain import explained
from fastsample_dist.sampling.transit.record import own_weights
from fastsample_dist.sampling.transit.samples import Samples
from fastsample_dist.sampling.transit.subgraphs import ClusterGCN

if TYPE_CHECKING:
    from fastsample_dist.sampling.transit.engine import Run

# By the function `next`: a subclass that defines another one is compiled like any user's.
KINDS = {
    Layer.next: NextKind.LAYER,
    FastGCN.next: NextKind.GLOBAL,
    LADIES.next: NextKind.RANKED,
    ClusterGCN.next: NextKind.LAYER,  # it has no picks
}
EDGE_SCALES = {FastGCN.edge_weights: EdgeScale.SCALED, LADIES.edge_weights: EdgeScale.BY_COLUMN}
RECORDS = {None: Record.NONE, "to_new": Record.TO_NEW, "to_union": Record.TO_UNION, "within": Record.WITHIN}


def collective_kind(bound: BoundApp) -> NextKind | None:
    """The core's kernel for a collective application, by its functions; None: it is a user's own."""
    if bound.step_transits is not None or bound.initial is not None:
        return None
    if bound.next is ClusterGCN.next and type(bound.app).sample_size is not ClusterGCN.sample_size:
        return None  # the kernel would make picks
    return KINDS.get(bound.next)


class CollectiveEngine:
    """Samples a bound collective application.

    Args:
      bound: the application and its graph, on the CPU.
      built_in: picks are made by the core's own kernel; otherwise by Numba's form of the functions.
    Raises:
      ImportError: Numba is wanted and missing.
      ValueError: a function that Numba cannot compile.
    """

    def __init__(self, bound: BoundApp, *, built_in: bool = True) -> None:
        self.bound, self._tables = bound, None
        self._kind, self._functions = collective_kind(bound), CompiledApp(0, None, None)
        if not built_in:
            self._kind, self._functions = NextKind.CALLBACK, compile_app(bound)
            self._tables = _tables(bound)
        self._scale, self._weighs_itself = edge_scale(bound), weighs_itself(bound)
        self._samplers: dict[int, CollectiveSampler] = {}

    @property
    def table_bytes(self) -> int:
        """See Engine."""
        return 0 if self._tables is None else self._tables.num_bytes

    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """See Engine."""
        num_roots = roots.shape[1]
        if num_roots not in self._samplers:
            self._samplers[num_roots] = self._sampler(num_roots)
        threads = torch.get_num_threads() if run.num_threads is None else run.num_threads
        try:
            found = self._samplers[num_roots].sample(roots, sample_ids, key.rng_seed, key.step, threads)
        except AppFailedError as error:
            raise explained(error, self.bound, roots, key) from error
        widths = self.bound.plan(num_roots).widths[: found.num_steps]
        samples = Samples(found.vertices, found.offsets, num_roots, widths, sample_ids, key)
        if self.bound.app.record is not None:
            samples.mfgs_of_sample = [self._mfgs(hops, samples, s) for s, hops in enumerate(found.hops)]
        return samples

    def _sampler(self, num_roots: int) -> CollectiveSampler:
        bound, graph = self.bound, self.bound.graph
        plan, layout = bound.plan(num_roots), bound.layout
        par, functions = bound.par, self._functions
        app = CollectiveApp(
            sample_sizes=plan.widths,
            num_transits=plan.values("num_transits").tolist(),
            unique=plan.values("unique").tolist(),
            num_roots=num_roots, params=par.words(),
            next_kind=self._kind,
            max_attempts=bound.app.max_attempts, state_words=layout.offsets(num_roots)[-1],
            next=functions.next, step_transits=functions.step_transits or 0, initial=functions.initial or 0,
            until_done=plan.until_done, record=RECORDS[bound.app.record], self_edges=bound.app.self_edges,
            edge_scale=self._scale, ranked=layout.ranked,
            scales=(par.row_scale, par.column_scale) if self._scale == EdgeScale.SCALED else None,
            kept=(bound, functions),
        )  # fmt: skip
        return CollectiveSampler(
            graph.indptr, graph.indices, graph.orig_ids, graph.weights if bound.weighted else None, app,
            self._tables,
        )  # fmt: skip

    def _mfgs(self, hops: RecordedHops, samples: Samples, s: int) -> list[MFG]:
        """MFGs of sample number s, input side first."""
        app, graph, draw = self.bound.app, self.bound.graph, samples.draw
        weights = [None] * len(hops.num_dst) if hops.edge_weights is None else hops.edge_weights
        if self._weighs_itself:
            weights = [self._own_weights(hops, samples, s, k, given) for k, given in enumerate(weights)]
        edge_ids = [None] * len(weights) if app.self_edges else hops.edge_ids
        columns = zip(hops.indptrs, hops.indices, hops.src_nodes, hops.num_dst, edge_ids, weights, strict=True)
        mfgs = [
            MFG.of_sampler(
                indptr=indptr, indices=indices, src_nodes=nodes, num_dst=num_dst, orig_ids=graph.orig_ids, draw=draw,
                edge_ids=positions, edge_weights=given, includes_dst=app.self_edges,
            )
            for indptr, indices, nodes, num_dst, positions, given in columns
        ]  # fmt: skip
        return mfgs[::-1]

    def _own_weights(
        self, hops: RecordedHops, samples: Samples, s: int, k: int, columns: Tensor | None
    ) -> Tensor | None:
        """What the application's own edge_weights makes of recorded step k of sample number s."""
        picks = samples.vertices.new_empty(0) if self.bound.app.record == "within" else samples.steps[k][s]
        hop = MFG.of_sampler(
            indptr=hops.indptrs[k], indices=hops.indices[k], src_nodes=hops.src_nodes[k], num_dst=hops.num_dst[k]
        )
        return own_weights(self.bound, k, hop, hops.edge_ids[k], picks, columns)


def _tables(bound: BoundApp) -> TransitTables:
    """What compiled functions read."""
    layout, graph = bound.layout, bound.graph
    needs = TableNeeds(layout.weighted, layout.max_weight and layout.weighted, layout.edge_queries)
    weights = graph.weights if layout.weighted else None
    return TransitTables(graph.indptr, graph.indices, weights, needs, list(bound.columns.values()))


def _weighs_edges(app: App) -> bool:
    """Whether the application says what its edges weigh."""
    return type(app).edge_weights is not App.edge_weights


def weighs_itself(bound: BoundApp) -> bool:
    """Whether the application's own edge_weights says it in Python."""
    return _weighs_edges(bound.app) and edge_scale(bound) not in EDGE_SCALES.values()


def edge_scale(bound: BoundApp) -> EdgeScale:
    """What the core makes of the edges' weights."""
    own = EDGE_SCALES.get(type(bound.app).edge_weights)
    if own is not None:
        return own
    needs_columns = _weighs_edges(bound.app) and bound.layout.ranked and bound.app.record != "within"
    return EdgeScale.COLUMNS if needs_columns else EdgeScale.UNWEIGHTED

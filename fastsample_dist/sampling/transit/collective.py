"""Collective applications on the compiled engine: the built-in ones, and a user's compiled functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.ops.collective_sample import (
    CollectiveApp,
    CollectiveSampler,
    CollectiveSamples,
    EdgeScale,
    Record,
    RecordedHops,
)
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.sampling.mfg import MFG, DrawKey
from fastsample_dist.sampling.transit.app import NULL, App
from fastsample_dist.sampling.transit.binding import BoundApp
from fastsample_dist.sampling.transit.layers import LADIES, FastGCN, Layer
from fastsample_dist.sampling.transit.record import RecordedEdges, edge_values, make_mfg
from fastsample_dist.sampling.transit.samples import Samples
from fastsample_dist.sampling.transit.subgraphs import ClusterGCN

# By the function `next`: a subclass that defines another one is compiled like any user's.
KINDS = {
    Layer.next: NextKind.LAYER,
    FastGCN.next: NextKind.GLOBAL,
    LADIES.next: NextKind.RANKED,
    ClusterGCN.next: NextKind.LAYER,  # it has no picks
}
EDGE_SCALES = {FastGCN.edge_weights: EdgeScale.SCALED, LADIES.edge_weights: EdgeScale.BY_COLUMN}
RECORDS = {None: Record.NONE, "to_new": Record.TO_NEW, "to_union": Record.TO_UNION, "within": Record.WITHIN}


@dataclass(frozen=True)
class Functions:
    """Addresses of an application's compiled functions (FsStepKernel); 0: none. `kept` keeps them loaded."""

    next: int
    step_transits: int = 0
    initial: int = 0
    kept: object = None


def is_built_in(bound: BoundApp) -> bool:
    """Whether the core has kernels of its own for this application, so that nothing needs to be compiled."""
    return bound.next in KINDS and bound.step_transits is None and bound.initial is None


class CollectiveEngine:
    """Samples a bound collective application.

    Args:
      bound: the application and its graph, on the CPU.
      functions: of an application that is not built in.
      tables: further tables that its functions read: FsTransitTables' fields by name, addresses.
      num_threads: of a call; never changes a sample.
    """

    def __init__(
        self,
        bound: BoundApp,
        functions: Functions | None = None,
        *,
        tables: dict[str, int] | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.bound, self._functions, self._tables = bound, functions, tables
        self._threads = torch.get_num_threads() if num_threads is None else num_threads
        self._samplers: dict[int, CollectiveSampler] = {}
        self._scale = _edge_scale(bound)

    def run(self, roots: Tensor, sample_ids: Tensor, key: DrawKey) -> Samples:
        """The samples that plain.run makes.

        Args:
          roots: int64 [S, R], checked.
          sample_ids: int64 [S].
        Raises:
          AppFailedError: `next` raised, returned what is no node, or the application never ends.
        """
        num_roots = roots.shape[1]
        if num_roots not in self._samplers:
            self._samplers[num_roots] = self._sampler(num_roots)
        found = self._samplers[num_roots].sample(roots, sample_ids, key.rng_seed, key.step, self._threads)
        plan = self.bound.plan(num_roots)
        picks = _split(found, [plan.shape(k).picks for k in range(found.num_steps)], num_roots)
        mfgs = None
        if self.bound.app.record is not None:
            mfgs = [self._mfgs(hops, key, [own[s] for own in picks]) for s, hops in enumerate(found.hops)]
        return Samples(roots, picks, sample_ids, key, mfgs)

    def _sampler(self, num_roots: int) -> CollectiveSampler:
        bound, graph = self.bound, self.bound.graph
        plan, layout = bound.plan(num_roots), bound.layout
        shapes = plan.shapes()
        functions = self._functions or Functions(0)
        par = bound.par
        app = CollectiveApp(
            sample_sizes=[shape.picks for shape in shapes],
            num_transits=[shape.num_transits for shape in shapes],
            unique=[shape.unique for shape in shapes],
            num_roots=num_roots, params=par.words(),
            next_kind=KINDS[bound.next] if self._functions is None else NextKind.CALLBACK,
            max_attempts=bound.app.max_attempts, state_words=layout.offsets(num_roots)[-1],
            next=functions.next, step_transits=functions.step_transits, initial=functions.initial,
            until_done=plan.until_done, record=RECORDS[bound.app.record], self_edges=bound.app.self_edges,
            edge_scale=self._scale, ranked=layout.ranked,
            scales=(par.row_scale, par.column_scale) if self._scale == EdgeScale.SCALED else None,
            kept=(bound, functions),
        )  # fmt: skip
        return CollectiveSampler(
            graph.indptr, graph.indices, graph.orig_ids, graph.weights if bound.weighted else None, app,
            list(bound.columns.values()), self._tables,
        )  # fmt: skip

    def _mfgs(self, hops: RecordedHops, key: DrawKey, picks: list[Tensor]) -> list[MFG]:
        """MFGs of one sample, input side first."""
        mfgs = []
        for k, num_dst in enumerate(hops.num_dst):
            weights = hops.edge_weights[k]
            if _weighs_edges(self.bound.app) and self._scale not in EDGE_SCALES.values():
                weights = self._host_weights(hops, k, picks)
            src_nodes = hops.nodes[: hops.num_src[k]]
            columns = (hops.indptrs[k], hops.indices[k], src_nodes, hops.edge_ids[k])
            mfgs.append(make_mfg(self.bound, key, num_dst, columns, weights))
        return mfgs[::-1]

    def _host_weights(self, hops: RecordedHops, k: int, picks: list[Tensor]) -> Tensor | None:
        """What the application's own edge_weights makes of a recorded step."""
        indptr, positions = hops.indptrs[k].numpy(), hops.edge_ids[k].numpy()
        nodes, columns = hops.nodes.long().numpy(), hops.edge_weights[k]
        within = self.bound.app.record == "within"
        edges = RecordedEdges(
            k, indptr, np.repeat(nodes[: hops.num_dst[k]], np.diff(indptr)), nodes[hops.indices[k].numpy()], positions,
            edge_values(self.bound, positions), np.empty(0, np.int64) if within else picks[k].numpy(),
            None if columns is None else columns.numpy(), self.bound.par,
        )  # fmt: skip
        return self.bound.app.edge_weights(edges)


def _weighs_edges(app: App) -> bool:
    """Whether the application says what its edges weigh."""
    return type(app).edge_weights is not App.edge_weights


def _edge_scale(bound: BoundApp) -> EdgeScale:
    own = EDGE_SCALES.get(type(bound.app).edge_weights)
    if own is not None:
        return own
    needs_columns = _weighs_edges(bound.app) and bound.layout.ranked and bound.app.record != "within"
    return EdgeScale.COLUMNS if needs_columns else EdgeScale.UNWEIGHTED


def _split(found: CollectiveSamples, widths: list[int], num_roots: int) -> list[Tensor]:
    """Picks of every step, int64 [S, picks]."""
    if found.offsets is None:
        return list(found.vertices[:, num_roots:].split(widths, dim=1)) if widths else []
    count = found.offsets.numel() - 1
    padded = torch.full((count, num_roots + sum(widths)), NULL, dtype=torch.int64)
    for s, (begin, end) in enumerate(zip(found.offsets[:-1].tolist(), found.offsets[1:].tolist(), strict=True)):
        padded[s, : end - begin] = found.vertices[begin:end]
    return list(padded[:, num_roots:].split(widths, dim=1)) if widths else []

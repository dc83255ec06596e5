"""DeviceCollectiveEngine: applications whose picks are made for all transits together, by a GPU's kernels.

The samples of a call go through a step together. What a sample holds is in a table of all samples' members
(ops/cuda_collective.py); lists of members, sample after sample, are columns of tensors. Everything that is counted is
an integer, weights are products of their own or sums in the order of the rows (ops/cuda_columns.py): no order of
threads enters. A built-in application's picks are made by kernels of their own, a user's by those that call its
functions (ops/cuda_collective_apps.py); what becomes of the picks is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.device.placement import Table, choose_places, measured_room
from fastsample_dist.device.streams import to_device
from fastsample_dist.graph.placed import place_graph, topology_bytes
from fastsample_dist.ops import cuda_collective as kernels
from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.collective_sample import EdgeScale
from fastsample_dist.ops.cuda_collective import (
    OPEN_SLOT,
    DeviceRows,
    MemberEdges,
    Members,
    Neighbourhoods,
    PickRequest,
)
from fastsample_dist.ops.cuda_collective_apps import CollectiveAppRun, kernels_of
from fastsample_dist.ops.cuda_columns import Columns, row_totals
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.sampling.mfg import MFG, DrawKey
from fastsample_dist.sampling.transit.app import INF, NULL
from fastsample_dist.sampling.transit.binding import STEP_RECORDS, BoundApp, Plan, StepShape
from fastsample_dist.sampling.transit.collective import CollectiveEngine, edge_scale, weighs_itself
from fastsample_dist.sampling.transit.device_functions import DeviceFunctions
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.plain import explained
from fastsample_dist.sampling.transit.record import own_weights
from fastsample_dist.sampling.transit.samples import Samples


class NotOnGpusError(ValueError):
    """No kernel of a GPU makes an application's samples."""


def _refuse(bound: BoundApp) -> None:
    """Raise NotOnGpusError where a GPU has nothing for what an application asks."""
    app, scale = bound.app, edge_scale(bound)
    what, records_steps = f"{type(app).__name__} has record {app.record!r}", app.record in STEP_RECORDS
    if records_steps and app.steps() == INF:
        raise NotOnGpusError(
            f"{what} and steps() == INF; GPUs record the edges of a number of steps that is known before: return one, "
            "or leave the device out."
        )
    if scale == EdgeScale.BY_COLUMN and not (records_steps and bound.layout.ranked):
        raise NotOnGpusError(
            f"{what}, needs(race={app.needs.race!r}) and the edge_weights of LADIES, which are those of a race; "
            'expected record "to_new" or "to_union", and race "squared".'
        )
    if scale == EdgeScale.SCALED and not records_steps:
        raise NotOnGpusError(
            f'{what} and the edge_weights of FastGCN, which are those of a step\'s picks; expected record "to_new" or '
            '"to_union".'
        )


class DeviceCollectiveEngine:
    """Samples of a collective application, on a GPU; the same as the CPU's.

    Args:
      bound: the application and its graph, which is in host memory.
      kind: of its picks; CALLBACK: a user's own.
      device: that samples.
    Raises:
      ImportError: a user's own, and a part of the toolchain is missing or too old.
      NotOnGpusError: there are no kernels for what it asks.
      ValueError: it cannot be compiled; the graph fits nowhere.
    """

    def __init__(self, bound: BoundApp, kind: NextKind, device: torch.device) -> None:
        _refuse(bound)
        self.bound, self.kind, self.device = bound, kind, device
        par, arrays = bound.par, ()
        if kind == NextKind.GLOBAL:
            arrays = (par.node, par.threshold.view(np.int32), par.other)
        self.scale, self.weighs_itself = edge_scale(bound), weighs_itself(bound)
        if self.scale == EdgeScale.SCALED:
            arrays += (par.row_scale, par.column_scale)
        self.table_bytes = sum(array.nbytes for array in arrays)
        if bound.layout.ranked:
            self.table_bytes += 2 * torch.float64.itemsize * bound.graph.num_nodes
        self.functions: DeviceFunctions | None = None
        if kind == NextKind.CALLBACK:
            self.functions = DeviceFunctions(bound, device, self.table_bytes)
            place, self.table_bytes = self.functions.place, self.functions.table_bytes
            self.graph = self.functions.placed_graph()
        else:
            wanted = topology_bytes(bound.graph, valued=bound.weighted) + self.table_bytes
            [place] = choose_places([Table("topology and tables", wanted)], measured_room(device))
            self.graph = place_graph(bound.graph, place, valued=bound.weighted)
        self._arrays = [place.put(torch.from_numpy(array)) for array in arrays]
        weights = self.graph.weights if bound.weighted else None
        self.rows = DeviceRows(self.graph.indptr, self.graph.indices, self.graph.orig_ids, weights, device)
        if bound.layout.ranked:
            totals, own = map(place.put, row_totals(self.rows))
            self.totals = totals, own
        self.scales = (self._arrays[-2], self._arrays[-1]) if self.scale == EdgeScale.SCALED else None
        words = bound.par.words()
        if kind == NextKind.GLOBAL:
            words = np.array([word for own in self._arrays[:3] for word in (own.data_ptr(), own.numel())])
        self._words = words
        self.app = layouts.AppArguments(
            params=words.ctypes.data, next_kind=kind, sampling_type=layouts.COLLECTIVE
        )  # fmt: skip

    def sample(self, roots: Tensor, sample_ids: Tensor, key: DrawKey, run: Run) -> Samples:
        """See Engine; nothing of `run` is read."""
        there = to_device(roots, self.device), to_device(sample_ids, self.device)
        call = _Call(self, self.bound.plan(roots.shape[1]), *there, key)
        if not call.run():  # the core says what is wrong, in its words
            engine = CollectiveEngine(self.bound, built_in=self.kind != NextKind.CALLBACK)
            engine.sample(roots.cpu(), sample_ids.cpu(), key, run)
            raise RuntimeError("a GPU met an id that is no node, and the CPU's engine did not; please report it")
        error = None if call.own is None else call.own.failure()
        if error is not None:
            raise explained(error, self.bound, roots, key) from error
        mfgs = None
        if self.bound.app.record is not None:
            mfgs = call.recorded.mfgs(key, call.vertices[1:])
        return Samples.of_steps(call.vertices[0], call.vertices[1:], sample_ids, key, mfgs)

    def own_run(self, plan: Plan, roots: Tensor, sample_ids: Tensor, key: DrawKey) -> CollectiveAppRun | None:
        """What calls the functions of a user's application for these samples; None: it is built in."""
        if self.functions is None:
            return None
        bound, compiled = self.bound, self.functions.compiled
        code = self.functions.code(kernels_of(bound.step_transits is not None, bound.initial is not None))
        app = layouts.AppArguments(
            next=compiled.next or None, step_transits=compiled.step_transits, initial=compiled.initial,
            num_roots=plan.num_roots, state_words=bound.layout.offsets(plan.num_roots)[-1],
            next_kind=self.kind, sampling_type=layouts.COLLECTIVE, until_done=plan.until_done,
        )  # fmt: skip
        request = PickRequest(key.rng_seed, key.step, 0)
        return CollectiveAppRun(self.functions.inputs, app, code, roots, sample_ids, request)


class _Call:
    """The samples of one call, step after step.

    Attributes:
      vertices: roots int64 [S, R], then the picks [S, sample_size] of every step that was run.
      recorded: their edges.
      own: calls the functions of a user's application; None: it is built in.
    """

    def __init__(
        self, engine: DeviceCollectiveEngine, plan: Plan, roots: Tensor, sample_ids: Tensor, key: DrawKey
    ) -> None:
        self._engine, self._plan, self._ids, self._key = engine, plan, sample_ids, key
        self.vertices, self._records_steps = [roots], engine.bound.app.record in STEP_RECORDS
        most = roots.shape[1] + plan.known_picks if self._records_steps else 0
        self.recorded = _Recorded(engine, len(sample_ids), most)
        self.own = engine.own_run(plan, roots, sample_ids, key)
        self._bad = torch.full((1,), -1, dtype=torch.int64, device=roots.device)
        self._columns: Columns | None = None
        self._num_rows = torch.zeros(len(sample_ids), dtype=torch.int64, device=roots.device)  # per sample, in columns

    def run(self) -> bool:
        """Whether the samples are right: they have ended, and no id was met that is no node."""
        plan, bound = self._plan, self._engine.bound
        for k in range(plan.num_steps):
            shape, transits = plan.shape(k), self.vertices[-1]
            if self.own is not None and bound.step_transits is not None:
                transits = self.own.choose_transits(k, shape.num_transits)
            if plan.until_done and not bool((transits >= 0).any()):
                break
            self._run_step(k, shape, transits)
        else:
            if plan.until_done and bool((self.vertices[-1] >= 0).any()):
                return False
        while plan.until_done and len(self.vertices) > 1 and not bool((self.vertices[-1] >= 0).any()):
            self.vertices.pop()
        if bound.app.record == "within":
            vertices = torch.cat(self.vertices, 1)
            self.recorded = _Recorded(self._engine, *vertices.shape)
            self.recorded.within(vertices)
        return int(self._bad) < 0

    def _run_step(self, k: int, shape: StepShape, transits: Tensor) -> None:
        """Step k from transits int64 [S, n]; those of a recorded step behind the first are what is recorded."""
        engine, recorded = self._engine, self.recorded
        if self._records_steps:
            if k == 0:
                recorded.add(transits)
            lists = recorded.lists
        else:
            members = Members(engine.rows, transits.numel())
            lists = _Lists(members, len(transits))
            lists.add(members.enter(transits), _samples_of(transits))
        ranked = self._rank(k, shape, lists) if engine.bound.layout.ranked else None
        picks = ranked if engine.kind == NextKind.RANKED else self._picks(k, shape, lists, ranked)
        self.vertices.append(picks)
        if self.own is not None:
            self.own.add(picks)
        if self._records_steps:
            recorded.step(picks, self._columns, with_destinations=engine.bound.app.record == "to_union")

    def _rank(self, k: int, shape: StepShape, lists: _Lists) -> Tensor:
        """The first vertices of a step by the race, int64 [S, picks]; as picks they are distinct without rounds."""
        if self._columns is None or not self._records_steps:  # recorded lists begin like those of the step before
            self._columns = Columns(self._engine.rows, self._engine.totals)
            self._num_rows.zero_()
        is_new = lists.local[lists.slots] >= self._num_rows[lists.samples]
        self._num_rows = lists.begins.diff()
        request = PickRequest(self._key.rng_seed, self._key.step, k)
        return self._columns.race(
            lists.nodes[is_new], lists.samples[is_new], self._ids, shape.picks, request, self._bad
        )

    def _picks(self, k: int, shape: StepShape, lists: _Lists, ranked: Tensor | None) -> Tensor:
        """The picks of a step, int64 [S, picks]."""
        engine, out = self._engine, torch.full((len(self._ids), shape.picks), OPEN_SLOT, device=self._ids.device)
        filler = self._filler(lists, ranked)
        members = Members(engine.rows, out.numel()) if shape.unique else None
        order = torch.arange(out.numel(), device=out.device)
        first = None if members is None else members.per_slot(2**62)
        for attempt in range(engine.bound.app.max_attempts):
            filler(PickRequest(self._key.rng_seed, self._key.step, k, attempt), out)
            if members is None or first is None:
                return out
            slots = members.enter(out)  # a slot that keeps its pick enters it again
            first.scatter_reduce_(0, slots, order + attempt * out.numel(), "amin")
            repeats = (first[slots] % max(1, out.numel()) != order).view_as(out) & (out >= 0)
            out.masked_fill_(repeats, OPEN_SLOT)
            if not bool(repeats.any()):
                return out
        return out.masked_fill_(out == OPEN_SLOT, NULL)

    def _filler(self, lists: _Lists, ranked: Tensor | None) -> Callable[[PickRequest, Tensor], None]:
        """What makes the open picks of a step from the transits that are in lists."""
        engine, found = self._engine, Neighbourhoods(lists.begins)
        if engine.kind != NextKind.GLOBAL:
            ends = torch.zeros(lists.nodes.numel() + 1, dtype=torch.int64, device=lists.nodes.device)
            torch.cumsum(engine.rows.degrees(lists.nodes), 0, out=ends[1:])
            found = Neighbourhoods(lists.begins, lists.nodes, ends)
        if self.own is not None:
            self.own.look_at(found, ranked)
            return self.own.fill
        filled = sum((own >= 0).sum(1) for own in self.vertices)
        return lambda request, out: kernels.fill_slots(
            engine.rows, engine.app, self._ids, found, filled, request, out, self._bad
        )


class _Lists:
    """Distinct members of samples in order of first appearance, sample after sample.

    Attributes:
      slots, samples, nodes: int64 [n].
      begins: int64 [S + 1].
      local: int64 over slots; number of a member in its sample, -1: not in its list.
    """

    def __init__(self, members: Members, num_samples: int) -> None:
        self.members, self._count = members, num_samples
        self.local = members.per_slot(-1)
        self.slots = self.samples = self.nodes = self.local[:0]
        self.begins = torch.zeros(num_samples + 1, dtype=torch.int64, device=self.local.device)

    def add(self, slots: Tensor, samples: Tensor) -> None:
        """Append those that are new of members int64 [n], which are sorted by sample."""
        first = kernels.first_places(slots, len(self.local))
        is_new = first[slots] == torch.arange(slots.numel(), device=slots.device)
        is_new &= (self.local[slots] < 0) & (slots < self.members.num_slots)
        samples = torch.cat([self.samples, samples[is_new]])
        order = torch.argsort(samples, stable=True)
        self.slots, self.samples = torch.cat([self.slots, slots[is_new]])[order], samples[order]
        torch.cumsum(torch.bincount(self.samples, minlength=self._count), 0, out=self.begins[1:])
        places = torch.arange(order.numel(), device=slots.device)
        self.local[self.slots] = places - self.begins[self.samples]
        self.nodes = self.members.nodes(self.slots, self.samples)


@dataclass(frozen=True, eq=False)
class _Hop:
    """A recorded hop of all samples: its edges, the lists' begins before and behind it, and of every edge the weight of
    its source in the race, where the application reads it.
    """

    edges: MemberEdges
    begins: Tensor
    ends: Tensor
    columns: Tensor | None


class _Recorded:
    """The hops of all samples."""

    def __init__(self, engine: DeviceCollectiveEngine, num_samples: int, count: int) -> None:
        self._engine = engine
        self._members = Members(engine.rows, num_samples * count)
        self.lists = _Lists(self._members, num_samples)
        self._hops: list[_Hop] = []

    def add(self, vertices: Tensor) -> None:
        """Members that are destinations of the next hop; int64 [S, width]."""
        self.lists.add(self._members.enter(vertices), _samples_of(vertices))

    def step(self, picks: Tensor, columns: Columns | None, *, with_destinations: bool) -> None:
        """Record a hop into all members of the lists from picks int64 [S, n]; columns: those of the members."""
        slots, sources = self._members.enter(picks), self._members.per_slot(0)
        sources.index_add_(0, slots, torch.ones_like(slots))
        is_source = sources > 0
        if with_destinations:
            is_source[self.lists.slots] = True
        weights = None
        if columns is not None and self._engine.scale in (EdgeScale.BY_COLUMN, EdgeScale.COLUMNS):
            chosen = torch.nonzero(is_source[:-1]).squeeze(1)
            weights = torch.zeros_like(sources, dtype=torch.float64)
            weights[chosen] = columns.weights(self._members.keys(chosen))
        self._record(sources.masked_fill_(~is_source, -1), picks.shape[1], weights)

    def within(self, vertices: Tensor) -> None:
        """Record the edges among vertices int64 [S, width]."""
        self.add(vertices)
        sources = self._members.per_slot(-1)
        sources[self.lists.slots] = 0
        self._record(sources, 0)

    def _record(self, sources: Tensor, num_picks: int, columns: Tensor | None = None) -> None:
        lists, engine = self.lists, self._engine
        edges = kernels.record_rows(
            engine.rows, self._members, lists.nodes, lists.samples, sources,
            self_edges=engine.bound.app.self_edges, num_picks=num_picks, scales=engine.scales,
            columns=columns if engine.scale == EdgeScale.BY_COLUMN else None,
        )  # fmt: skip
        begins = lists.begins.clone()
        lists.add(edges.slots, lists.samples.repeat_interleave(edges.offsets.diff()))
        of_edges = None
        if columns is not None and engine.scale == EdgeScale.COLUMNS:
            of_edges = columns[edges.slots]
        self._hops.append(_Hop(edges, begins, lists.begins.clone(), of_edges))

    def mfgs(self, draw: DrawKey, steps: Sequence[Tensor]) -> list[list[MFG]]:
        """Per sample its hops, input side first.

        Args:
          steps: the picks of every step.
        """
        nodes = self.lists.nodes.to(self._engine.rows.dtype)
        of_samples = [nodes[begin:end] for begin, end in pairwise(self.lists.begins.tolist())]
        found: list[list[MFG]] = [[] for _ in of_samples]
        for k in reversed(range(len(self._hops))):
            hops = self._split(self._hops[k], of_samples, draw)
            if self._engine.weighs_itself:
                none = self.lists.begins.new_empty((len(of_samples), 0))
                hops = self._weighed(k, hops, none if self._engine.bound.app.record == "within" else steps[k])
            for mfgs, mfg in zip(found, hops, strict=True):
                mfgs.append(mfg)
        return found

    def _split(self, hop: _Hop, of_samples: Sequence[Tensor], draw: DrawKey) -> Iterator[MFG]:
        """A hop of all samples, as one of each; of_samples: the nodes of every sample, those of later hops included."""
        graph, self_edges, edges = self._engine.graph, self._engine.bound.app.self_edges, hop.edges
        local = self.lists.local[edges.slots].to(self._engine.rows.dtype)
        weights = None if edges.weights is None else edges.weights.float()
        rows, places = hop.begins.tolist(), edges.offsets[hop.begins].tolist()
        for s, (nodes, num_src) in enumerate(zip(of_samples, hop.ends.diff().tolist(), strict=True)):
            span = slice(places[s], places[s + 1])
            yield MFG(
                edges.offsets[rows[s] : rows[s + 1] + 1] - places[s], local[span], nodes[:num_src],
                rows[s + 1] - rows[s], graph.orig_ids, draw, None if self_edges else edges.edge_ids[span],
                checked=True, edge_weights=None if weights is None else weights[span], includes_dst=self_edges,
            )  # fmt: skip

    def _weighed(self, k: int, mfgs: Iterator[MFG], picks: Tensor) -> Iterator[MFG]:
        """The MFGs of recorded step k with what the application's own edge_weights, in Python, makes of their edges.

        Args:
          picks: int64 [S, picks], of the step.
        """
        hop, first = self._hops[k], 0
        for mfg, own in zip(mfgs, picks, strict=True):
            span = slice(first, first + mfg.num_edges)
            columns = None if hop.columns is None else hop.columns[span]
            weights = own_weights(self._engine.bound, k, mfg, hop.edges.edge_ids[span], own, columns)
            yield mfg if weights is None else replace(mfg, edge_weights=weights.to(mfg.indptr.device))
            first = span.stop


def _samples_of(vertices: Tensor) -> Tensor:
    """Whose the vertices of int64 [S, width] are, int64 [S * width]."""
    return torch.arange(len(vertices), device=vertices.device).repeat_interleave(vertices.shape[1])

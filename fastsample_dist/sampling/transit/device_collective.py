"""DeviceCollectiveEngine: built-in applications whose picks are made for all transits together, by a GPU's kernels.

The samples of a call go through a step together. What a sample holds is in a table of all samples' members
(ops/cuda_collective.py); lists of members, sample after sample, are columns of tensors. Everything that is counted is
an integer, weights are products of their own or sums in the order of the rows (ops/cuda_columns.py): no order of
threads enters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from fastsample_dist.ops.cuda_collective import DeviceRows, MemberEdges, Members, Neighbourhoods, PickRequest
from fastsample_dist.ops.cuda_columns import Columns, row_totals
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.sampling.mfg import MFG, DrawKey
from fastsample_dist.sampling.transit.app import INF, NULL
from fastsample_dist.sampling.transit.binding import STEP_RECORDS, BoundApp, Plan, StepShape
from fastsample_dist.sampling.transit.collective import CollectiveEngine, edge_scale, weighs_itself
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.sampling.transit.samples import Samples


def serves(bound: BoundApp, kind: NextKind | None) -> bool:
    """Whether there are kernels for a collective application."""
    records_steps, is_ranked = bound.app.record in STEP_RECORDS, kind == NextKind.RANKED
    if kind not in kernels.SERVED or bound.layout.ranked != is_ranked or weighs_itself(bound):
        return False
    if edge_scale(bound) == EdgeScale.BY_COLUMN and not (is_ranked and records_steps):
        return False
    return not records_steps or bound.app.steps() != INF


class DeviceCollectiveEngine:
    """Samples of a collective application that `serves` accepts, on a GPU; the same as the CPU's.

    Args:
      bound: the application and its graph, which is in host memory.
      kind: of its picks.
      device: that samples.
    Raises:
      ValueError: the graph fits nowhere.
    """

    def __init__(self, bound: BoundApp, kind: NextKind, device: torch.device) -> None:
        self.bound, self.kind, self.device = bound, kind, device
        par, arrays = bound.par, ()
        if kind == NextKind.GLOBAL:
            arrays = (par.node, par.threshold.view(np.int32), par.other)
        self.is_scaled = edge_scale(bound) == EdgeScale.SCALED
        if self.is_scaled:
            arrays += (par.row_scale, par.column_scale)
        self.weighs_by_column = edge_scale(bound) == EdgeScale.BY_COLUMN
        self.table_bytes = sum(array.nbytes for array in arrays)
        if kind == NextKind.RANKED:
            self.table_bytes += 2 * torch.float64.itemsize * bound.graph.num_nodes
        wanted = topology_bytes(bound.graph, valued=bound.weighted) + self.table_bytes
        [place] = choose_places([Table("topology and tables", wanted)], measured_room(device))
        self.graph = place_graph(bound.graph, place, valued=bound.weighted)
        self._arrays = [place.put(torch.from_numpy(array)) for array in arrays]
        weights = self.graph.weights if bound.weighted else None
        self.rows = DeviceRows(self.graph.indptr, self.graph.indices, self.graph.orig_ids, weights, device)
        if kind == NextKind.RANKED:
            totals, own = map(place.put, row_totals(self.rows))
            self.totals = totals, own
        self.scales = (self._arrays[-2], self._arrays[-1]) if self.is_scaled else None
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
            CollectiveEngine(self.bound).sample(roots.cpu(), sample_ids.cpu(), key, run)
            raise RuntimeError("a GPU met an id that is no node, and the CPU's engine did not; please report it")
        mfgs = None
        if self.bound.app.record is not None:
            mfgs = call.recorded.mfgs(key)
        return Samples.of_steps(call.vertices[0], call.vertices[1:], sample_ids, key, mfgs)


class _Call:
    """The samples of one call, step after step.

    Attributes:
      vertices: roots int64 [S, R], then the picks [S, sample_size] of every step that was run.
      recorded: their edges.
    """

    def __init__(
        self, engine: DeviceCollectiveEngine, plan: Plan, roots: Tensor, sample_ids: Tensor, key: DrawKey
    ) -> None:
        self._engine, self._plan, self._ids, self._key = engine, plan, sample_ids, key
        self.vertices, self._records_steps = [roots], engine.bound.app.record in STEP_RECORDS
        most = roots.shape[1] + plan.known_picks if self._records_steps else 0
        self.recorded = _Recorded(engine, len(sample_ids), most)
        self._bad = torch.full((1,), -1, dtype=torch.int64, device=roots.device)
        self._columns: Columns | None = None
        self._num_rows = torch.zeros(len(sample_ids), dtype=torch.int64, device=roots.device)  # per sample, in columns

    def run(self) -> bool:
        """Whether the samples are right: they have ended, and no id was met that is no node."""
        plan, bound = self._plan, self._engine.bound
        for k in range(plan.num_steps):
            if plan.until_done and not bool((self.vertices[-1] >= 0).any()):
                break
            self._run_step(k, plan.shape(k))
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

    def _run_step(self, k: int, shape: StepShape) -> None:
        recorded, last = self.recorded, self.vertices[-1]
        if self._records_steps:
            if k == 0:
                recorded.add(last)
            lists = recorded.lists
        else:
            members = Members(self._engine.rows, last.numel())
            lists = _Lists(members, len(last))
            lists.add(members.enter(last), _samples_of(last))
        picks = (self._ranked if self._engine.kind == NextKind.RANKED else self._picks)(k, shape, lists)
        self.vertices.append(picks)
        if self._records_steps:
            recorded.step(picks, self._columns, with_destinations=self._engine.bound.app.record == "to_union")

    def _ranked(self, k: int, shape: StepShape, lists: _Lists) -> Tensor:
        """The picks of a step by the race, int64 [S, picks]: distinct, so there are no rounds."""
        if self._columns is None or not self._records_steps:  # recorded lists begin like those of the step before
            self._columns = Columns(self._engine.rows, self._engine.totals)
            self._num_rows.zero_()
        is_new = lists.local[lists.slots] >= self._num_rows[lists.samples]
        self._num_rows = lists.begins.diff()
        request = PickRequest(self._key.rng_seed, self._key.step, k)
        return self._columns.race(
            lists.nodes[is_new], lists.samples[is_new], self._ids, shape.picks, request, self._bad
        )

    def _picks(self, k: int, shape: StepShape, lists: _Lists) -> Tensor:
        """The picks of a step, int64 [S, picks]."""
        engine, size, count = self._engine, shape.picks, len(self._ids)
        out = torch.full((count, size), kernels.OPEN_SLOT, device=self._ids.device)
        filled = sum((own >= 0).sum(1) for own in self.vertices)
        found = Neighbourhoods(lists.begins)
        if engine.kind == NextKind.LAYER:
            ends = torch.zeros(lists.nodes.numel() + 1, dtype=torch.int64, device=out.device)
            torch.cumsum(engine.rows.degrees(lists.nodes), 0, out=ends[1:])
            found = Neighbourhoods(lists.begins, lists.nodes, ends)
        members = Members(engine.rows, out.numel()) if shape.unique else None
        order = torch.arange(out.numel(), device=out.device)
        first = None if members is None else members.per_slot(2**62)
        for attempt in range(engine.bound.app.max_attempts):
            request = PickRequest(self._key.rng_seed, self._key.step, k, attempt)
            kernels.fill_slots(engine.rows, engine.app, self._ids, found, filled, request, out, self._bad)
            if members is None or first is None:
                return out
            slots = members.enter(out)  # a slot that keeps its pick enters it again
            first.scatter_reduce_(0, slots, order + attempt * out.numel(), "amin")
            repeats = (first[slots] % max(1, out.numel()) != order).view_as(out) & (out >= 0)
            out.masked_fill_(repeats, kernels.OPEN_SLOT)
            if not bool(repeats.any()):
                return out
        return out.masked_fill_(out == kernels.OPEN_SLOT, NULL)


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


class _Recorded:
    """The hops of all samples: per hop the edges of all, and the lists' begins before and behind it."""

    def __init__(self, engine: DeviceCollectiveEngine, num_samples: int, count: int) -> None:
        self._engine = engine
        self._members = Members(engine.rows, num_samples * count)
        self.lists = _Lists(self._members, num_samples)
        self._hops: list[tuple[MemberEdges, Tensor, Tensor]] = []

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
        if columns is not None and self._engine.weighs_by_column:
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
            self_edges=engine.bound.app.self_edges, num_picks=num_picks, scales=engine.scales, columns=columns,
        )  # fmt: skip
        begins = lists.begins.clone()
        lists.add(edges.slots, lists.samples.repeat_interleave(edges.offsets.diff()))
        self._hops.append((edges, begins, lists.begins.clone()))

    def mfgs(self, draw: DrawKey) -> list[list[MFG]]:
        """Per sample its hops, input side first."""
        nodes = self.lists.nodes.to(self._engine.rows.dtype)
        of_samples = [nodes[begin:end] for begin, end in pairwise(self.lists.begins.tolist())]
        found: list[list[MFG]] = [[] for _ in of_samples]
        for hop in reversed(self._hops):
            for mfgs, mfg in zip(found, self._split(*hop, of_samples, draw), strict=True):
                mfgs.append(mfg)
        return found

    def _split(
        self, edges: MemberEdges, begins: Tensor, ends: Tensor, of_samples: Sequence[Tensor], draw: DrawKey
    ) -> Iterator[MFG]:
        """A hop of all samples, as one of each; of_samples: the nodes of every sample, those of later hops included."""
        graph, self_edges = self._engine.graph, self._engine.bound.app.self_edges
        local = self.lists.local[edges.slots].to(self._engine.rows.dtype)
        weights = None if edges.weights is None else edges.weights.float()
        rows, places = begins.tolist(), edges.offsets[begins].tolist()
        for s, (nodes, num_src) in enumerate(zip(of_samples, ends.diff().tolist(), strict=True)):
            span = slice(places[s], places[s + 1])
            yield MFG(
                edges.offsets[rows[s] : rows[s + 1] + 1] - places[s], local[span], nodes[:num_src],
                rows[s + 1] - rows[s], graph.orig_ids, draw, None if self_edges else edges.edge_ids[span],
                checked=True, edge_weights=None if weights is None else weights[span], includes_dst=self_edges,
            )  # fmt: skip


def _samples_of(vertices: Tensor) -> Tensor:
    """Whose the vertices of int64 [S, width] are, int64 [S * width]."""
    return torch.arange(len(vertices), device=vertices.device).repeat_interleave(vertices.shape[1])

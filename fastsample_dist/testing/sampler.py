"""check_sampler: a conformance suite that any neighbour sampler can be put through.

A few batches are compared with each other (the contract: a node's picks depend on the step, the hop and the node
alone), then `trials` batches of the same seeds are sampled, one per step. Every one of them must be well formed
(batches.py). The picks of the seeds, which are destinations in every hop, are counted per step and edge, and the
counts are held against the exact laws (row_picks.py, statistics.py):
- every edge: how often it was taken;
- every row as a whole: chi-square with the exact covariance of its picks;
- every pair of edges of a row: how often both were taken;
- every possible set of picks, where there are few: chi-square;
- the same row in consecutive steps, the same row in consecutive hops, two rows of as many edges: independent;
- a method that shares variates (LABOR): one per source, so a destination that takes a source with a smaller probability
  makes the others take it too.
The laws are those of the methods of `SampleSpec`, or a sampler's own (`law`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampleSpec, checks, reference
from fastsample_dist.ops.reference import RowLaw
from fastsample_dist.sampling.sampler import ids_within
from fastsample_dist.testing.batches import EdgeClasses, HopEdges, LawOfRow, SampleFunction, read_layers
from fastsample_dist.testing.graphs import conformance_graph
from fastsample_dist.testing.row_picks import Row, RowPicks
from fastsample_dist.testing.statistics import MIN_EXPECTED, Evidence

MAX_SEEDS = 40  # chosen when none are given
CONTRACT_STEPS = (0, 1)


@dataclass(frozen=True)
class SamplerReport:
    """What `check_sampler` looked at.

    Attributes:
      num_trials: batches whose picks were counted.
      num_rows: seeds per batch.
      num_edges: edges read, over all counted batches and hops.
      num_statistics: p-values computed.
      smallest_p_value: the smallest of them; below false_alarm / num_statistics the check fails.
      smallest_text: what it belongs to.
    """

    num_trials: int
    num_rows: int
    num_edges: int
    num_statistics: int
    smallest_p_value: float
    smallest_text: str


def check_sampler(
    sample_fn: SampleFunction,
    graph: CSCGraph | None = None,
    *,
    trials: int = 4000,
    false_alarm: float = 1e-6,
    seeds: Tensor | Sequence[int] | None = None,
    keyed: bool = True,
    law: LawOfRow | None = None,
    **draws: Any,
) -> SamplerReport:
    """Put a sampler through the conformance suite; return a report when nothing was found.

    Args:
      sample_fn: called as sample_fn(seeds, step) with int64 seeds [num_seeds]; returns a MiniBatch, or anything whose
        `mfgs` (input side first) have indptr, indices, src_nodes and num_dst, and edge_ids if edge_ids=True.
      graph: what is sampled; None takes `conformance_graph(fanouts[0])`, which sample_fn must then sample.
      trials: batches to count picks in, 2 or more. A probability p that is off by less than about
        6 * sqrt(p / trials) stays unseen.
      false_alarm: probability that a correct sampler is refused, all statistics together (see statistics.py).
      seeds: nodes whose rows are checked, distinct; None chooses up to 40 of degrees as different as possible.
      keyed: False for a sampler outside the contract, whose batches are no function of (seeds, step); leaves out that
        batches repeat and that a node's picks do not depend on the other seeds.
      law: of a sampler that draws otherwise than the methods of SampleSpec: called as law(edges, fanout) with the
        positions of one row's edges in graph.indices, a slice; returns the RowLaw of the row's picks, such as
        testing.Independent(probabilities) or testing.Replaced(shares, draws). Rows are drawn independently.
      draws: what the sampler is to draw: fields of ops.SampleSpec, such as fanouts=[15, 10], replace=True,
        method="weighted" or edge_ids=True; beside `law`, fanouts and edge_ids.
    Returns:
      SamplerReport.
    Raises:
      AssertionError: one line: what was found, what was expected, and the p-value if it is a statistic.
      ValueError: draws that SampleSpec refuses, method="weighted" on a graph without weights, trials that are no
        integer >= 2, false_alarm that is no number above 0 and below 1, a law beside a method, seeds that are
        empty or no nodes of the graph.
    Cost: trials batches, and O(num_edges * log(num_edges)) for the graph.
    """
    spec = SampleSpec(**draws)
    trials, evidence = checks.whole("trials", trials, 2), Evidence(false_alarm)
    if graph is None:
        graph = conformance_graph(max(1, *spec.fanouts[:1]))
    classes = EdgeClasses(graph, spec, _law_of_method(graph, spec) if law is None else _own_law(law, spec))
    chosen = _choose_seeds(classes.degrees) if seeds is None else ids_within(seeds, graph.num_nodes, "seeds")
    if seeds is not None and not chosen.numel():
        raise ValueError("seeds is empty; expected at least one node, or None, which chooses some.")
    if keyed:
        _check_contract(sample_fn, chosen, len(spec.fanouts))
    columns = _Columns(classes, chosen.tolist())
    counts, num_edges = _count_picks(sample_fn, chosen, columns, trials)
    if spec.traits.shares_variates:
        _check_shared_variates(columns, counts)
    _weigh(columns, counts, evidence)
    evidence.decide()
    return SamplerReport(trials, chosen.numel(), num_edges, evidence.count, evidence.smallest_p_value, evidence.text)


def _law_of_method(graph: CSCGraph, spec: SampleSpec) -> LawOfRow:
    """The laws of a method's rows."""
    if spec.traits.weighted and graph.weights is None:
        raise ValueError(f'method is "{spec.method}" but graph.weights is None; pass a graph with weights.')
    weights = graph.weights.double().cpu() if spec.traits.weighted else None
    indices = graph.indices.cpu()

    def law_of(edges: slice, fanout: int) -> RowLaw:
        drawn = [1.0] * (edges.stop - edges.start) if weights is None else weights[edges].tolist()
        sources = indices[edges].tolist()
        return reference.row_law(drawn, fanout, sources, replace=spec.replace, method=spec.method)

    return law_of


def _own_law(law: LawOfRow, spec: SampleSpec) -> LawOfRow:
    """The law of a sampler that draws otherwise."""
    if spec.replace or spec.method != SampleSpec.method:
        raise ValueError(
            f"law is given beside method={spec.method!r} and replace={spec.replace}, which have a law of their own; "
            "pass one of them."
        )
    return law


class _Columns:
    """Where the counts of the seeds' edges are: one column per class of edges, row after row."""

    def __init__(self, classes: EdgeClasses, seeds: list[int]) -> None:
        self.classes, self.spec = classes, classes.spec
        self.column_of_class = np.full(classes.num_classes, -1)
        self.rows: list[Row] = []
        self.spans: list[slice] = []
        self.width = 0
        for node in seeds:
            edges, first, class_of_position, sources = classes.of_row(node)
            laws = tuple(classes.law_of(edges, fanout) for fanout in self.spec.fanouts)
            self.rows.append(Row(node, class_of_position, sources, laws))
            self.spans.append(slice(self.width, self.width + sources.size))
            self.column_of_class[first : first + sources.size] = np.arange(self.width, self.width + sources.size)
            self.width += sources.size

    def count(self, layer: HopEdges) -> np.ndarray:
        """How often the seeds took each class in one hop, int [width]."""
        of_seeds = self.classes.of_layer(layer)[: layer.indptr[len(self.rows)]]
        return np.bincount(self.column_of_class[of_seeds], minlength=self.width)


def _choose_seeds(degrees: np.ndarray) -> Tensor:
    """Up to MAX_SEEDS nodes: one of every degree, evenly thinned out; then more from the largest degree down."""
    by_degree = np.argsort(degrees, kind="stable")
    _, first = np.unique(degrees[by_degree], return_index=True)
    if first.size > MAX_SEEDS:
        first = first[np.linspace(0, first.size - 1, MAX_SEEDS).astype(int)]
    rest = np.setdiff1d(np.arange(by_degree.size), first)[::-1]
    return torch.from_numpy(by_degree[np.concatenate([first, rest])[:MAX_SEEDS]])


def _check_contract(sample_fn: SampleFunction, seeds: Tensor, num_hops: int) -> None:
    """Batches repeat, and a node's picks are the same whatever else is in the batch, if anything."""
    for step in CONTRACT_STEPS:
        layers = read_layers(sample_fn(seeds, step), seeds, step, num_hops)
        again = read_layers(sample_fn(seeds, step), seeds, step, num_hops)
        for one, two in zip(layers, again, strict=True):
            if one.picks() != two.picks() or not np.array_equal(one.src_nodes, two.src_nodes):
                raise AssertionError(f"step {step}, hop {one.hop}: two batches of the same seeds and step differ.")
        for subset in (seeds.flip(0), seeds[::2], seeds[-1:], seeds[:0]):
            for whole, part in zip(layers, read_layers(sample_fn(subset, step), subset, step, num_hops), strict=True):
                _check_common_nodes(whole, part)


def _check_common_nodes(whole: HopEdges, part: HopEdges) -> None:
    expected = whole.picks()
    for node, found in part.picks().items():
        if node in expected and found != expected[node]:
            raise AssertionError(
                f"step {part.step}, hop {part.hop}: node {node} gets {found} in a batch of {part.num_dst} destinations "
                f"and {expected[node]} in one of {whole.num_dst}; its picks must not depend on the other nodes."
            )


def _count_picks(sample_fn: SampleFunction, seeds: Tensor, columns: _Columns, trials: int) -> tuple[np.ndarray, int]:
    """How often the seeds took each class, int32 [num_hops, trials, width], and the number of edges read."""
    num_hops = len(columns.spec.fanouts)
    counts = np.zeros((num_hops, trials, columns.width), dtype=np.int32)
    num_edges = 0
    for step in range(trials):
        for layer in read_layers(sample_fn(seeds, step), seeds, step, num_hops):
            counts[layer.hop, step] = columns.count(layer)
            num_edges += layer.indices.size
    return counts, num_edges


@dataclass(frozen=True, order=True)
class _Claim:
    """An edge out of a source that is taken when the source's variate is below `share`."""

    share: float
    hop: int
    node: int
    column: int

    def __str__(self) -> str:
        return f"node {self.node} in hop {self.hop} (probability {self.share:.4g})"


def _check_shared_variates(columns: _Columns, counts: np.ndarray) -> None:
    """Of the edges out of one source, those of larger inclusion probability are taken with the others."""
    claims: dict[tuple[int, int], list[_Claim]] = defaultdict(list)
    for hop in range(len(columns.spec.fanouts)):
        variates = 0 if columns.spec.layer_dependency else hop
        for row, span in zip(columns.rows, columns.spans, strict=True):
            share_of_class = dict(zip(row.class_of_position.tolist(), row.laws[hop].moments()[0].tolist(), strict=True))
            for number, source in enumerate(row.sources.tolist()):
                claims[variates, source].append(_Claim(share_of_class[number], hop, row.node, span.start + number))
    for (_, source), sharing in claims.items():
        for small, large in pairwise(sorted(sharing)):
            taken, expected = counts[small.hop, :, small.column] > 0, counts[large.hop, :, large.column] > 0
            wrong = taken != expected if small.share == large.share else taken & ~expected
            if wrong.any():
                step = int(np.argmax(wrong))
                got, lacks = (small, large) if taken[step] else (large, small)
                raise AssertionError(
                    f"step {step}: source {source} was taken by {got} and not by {lacks}; expected one variate of the "
                    "source to decide for both."
                )


def _weigh(columns: _Columns, counts: np.ndarray, evidence: Evidence) -> None:
    """All statistics of all seeds and hops."""
    spec = columns.spec
    hops = [
        [
            RowPicks(row, hop, fanout, counts[hop, :, span])
            for row, span in zip(columns.rows, columns.spans, strict=True)
            if row.is_tractable
        ]
        for hop, fanout in enumerate(spec.fanouts)
    ]
    _check_steps_differ([picks for rows in hops for picks in rows])
    for rows in hops:
        for picks in rows:
            if picks.is_random:
                picks.weigh(evidence)
        if not spec.traits.shares_variates:
            rows = sorted(rows, key=lambda picks: picks.row.num_classes)
            for one, two in pairwise(rows):
                if one.row.num_classes == two.row.num_classes:
                    one.weigh_with(two, evidence)
    if not spec.layer_dependency:
        for above, below in pairwise(hops):
            for one, two in zip(above, below, strict=True):
                one.weigh_with(two, evidence)


def _check_steps_differ(picks: list[RowPicks]) -> None:
    """A class that varies enough is constant over all trials with probability below 2 * exp(-MIN_EXPECTED)."""
    random = [one for one in picks if one.trials * one.covariance.diagonal().max() >= MIN_EXPECTED]
    if random and all((one.counts == one.counts[0]).all() for one in random):
        raise AssertionError(
            f"the seeds have the same picks in all {random[0].trials} steps; expected other picks in every step."
        )

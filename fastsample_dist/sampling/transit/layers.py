"""Layer-wise sampling: applications whose picks are made for all transits of a sample together.

Layer takes neighbours uniformly. FastGCN and LADIES draw the nodes of a layer by importance and record the edges of the
normalised adjacency that lead from them to the layer before, with the coefficients that make up for the choice: a batch
of seeds is one sample, its MFGs train a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.graph.csc import row_positions
from fastsample_dist.ops import checks
from fastsample_dist.sampling.transit.app import (
    COLLECTIVE,
    INF,
    NULL,
    App,
    by_original_id,
    needs,
    same_every_step,
    sizes_of,
)  # fmt: skip
from fastsample_dist.sampling.transit.laws import History, Law, normalised, squared_columns
from fastsample_dist.sampling.transit.params import Params, params

if TYPE_CHECKING:
    from fastsample_dist.graph.csc import CSCGraph
    from fastsample_dist.sampling.transit.recorded_edges import RecordedEdges

_EDGES_AT_ONCE = 1 << 22


class Layer(App):
    """Layer sampling: picks uniformly from all edges into the transits, until the sample has final_size vertices.

    A vertex is picked in proportion to the edges that lead from it to a transit. Picks may repeat; roots and repeats
    count. The sample ends earlier if its transits have no neighbours.

    Args:
      final_size: vertices of a sample, its roots among them.
      step_size: picks per step.
    Source: Gao et al., "Large-scale learnable graph convolutional networks", KDD'18, as NextDoor, section 3 has it.
    """

    sampling_type = COLLECTIVE
    needs = needs(weights=False)

    def __init__(self, final_size: int = 2000, step_size: int = 1000) -> None:
        self.final_size = checks.whole("final_size", final_size, 1)
        self.step_size = checks.whole("step_size", step_size, 1)
        self.par = params(final_size=self.final_size)

    def steps(self) -> float:
        """See App."""
        return INF

    @same_every_step
    def sample_size(self, step: int) -> int:
        """See App."""
        return self.step_size

    def next(s, transits, edges, step, draw, par):
        """A source of an edge into the transits."""
        if len(edges) == 0 or s.size >= par.final_size:
            return NULL
        return edges[draw.below(len(edges))]

    def law(self, graph: CSCGraph, history: History) -> Law:
        """Multiplicity in the combined neighbourhood over the sum of degrees; see App."""
        filled = sum(v != NULL for step in history.vertices for v in step) + history.slot
        transits = dict.fromkeys(v for v in history.vertices[-1] if v != NULL)
        edges = [u for v in transits for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()]
        if filled >= self.final_size or not edges:
            return {NULL: 1.0}
        return {u: edges.count(u) / len(edges) for u in dict.fromkeys(edges)}


class _LayerWise(App):
    """What FastGCN and LADIES share: nodes of every layer by importance, edges of A + I.

    Args:
      sizes: nodes drawn per layer, from the seeds outwards; one per model layer.
      weighted: None: entries of A are the edge weights if the graph has some; True: it must; False: ones.
    """

    sampling_type = COLLECTIVE
    self_edges = True

    def __init__(self, sizes: Sequence[int] = (64,) * 5, weighted: bool | None = None) -> None:
        self.sizes = sizes_of(sizes)
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"sizes is {self.sizes}; expected integers >= 1, one per model layer.")
        weighted = checks.plain(weighted)
        if weighted is not None:
            checks.flag("weighted", weighted)
        self.needs = needs(weights="auto" if weighted is None else weighted, race=self._race)

    _race: str | None = None

    def steps(self) -> int:
        """See App."""
        return len(self.sizes)

    def sample_size(self, step: int) -> int:
        """See App."""
        return self.sizes[step]


class FastGCN(_LayerWise):
    """FastGCN: the nodes of every layer are drawn from the whole graph, by the squared column norms of its normalised
    adjacency.

    The adjacency is P = D^-1/2 (A + I) D^-1/2, D the row sums of A + I; q(u) is proportional to the sum over v of
    P(v, u)^2. An edge from a pick u to a destination v has the coefficient P(v, u) / (q(u) sizes[k]), times the number
    of times that u was picked; so the sum over a row's edges estimates that over all of row v. Picks without an edge to
    a destination are in no MFG; a destination may have no edge.

    MFG.includes_dst is True: what is sampled of row v, the entry of v itself among it where v was picked, is all there
    is, and models add no term of their own. The package's models divide a row by its sum, and so estimate the mean of
    row v with the entries of P as weights: 1 / sqrt(D(u)) of neighbour u, which layer-wise inference weighs by 1.

    Args:
      sizes: nodes drawn per layer, from the seeds outwards; one per model layer.
      replace: draw them with replacement, as the paper does; otherwise one by one from those that are left, as the
        authors' variant for mixed layers, with the same coefficients, whose sums are then biased. A pick whose
        max_attempts (64) draws are all of nodes that are taken stays NULL: sizes near the number of nodes give fewer.
      weighted: None: entries of A are the edge weights if the graph has some; True: it must; False: ones.
    Source: Chen et al., "FastGCN", ICLR'18, sections 3.1 and 3.2, algorithm 2. Tables: 36 bytes per node.
    """

    record = "to_new"

    def __init__(self, sizes: Sequence[int] = (64,) * 5, replace: bool = True, weighted: bool | None = None) -> None:
        super().__init__(sizes, weighted)
        self.replace = checks.plain(replace)
        checks.flag("replace", self.replace)

    def unique(self, step: int) -> bool:
        """See App. Distinct ones of independent draws, in their order, are successive draws without replacement."""
        return not self.replace

    def prepare(self, graph: CSCGraph, weighted: bool) -> Params:
        """The alias table of q, and what edges are scaled by; see App."""
        order = by_original_id(graph).numpy()
        totals, norms = _norms(graph, weighted, order)
        q = norms[order]
        q = q / q.sum() if len(q) else q
        table = ops.alias_tables(torch.tensor([0, len(q)]), torch.from_numpy(q)).table.numpy()
        scale = np.empty(len(q))
        scale[order] = q
        return params(
            node=order.astype(np.int64), threshold=table[:, 0].copy().view(np.uint32), other=order[table[:, 1]],
            row_scale=1.0 / np.sqrt(totals), column_scale=1.0 / (np.sqrt(totals) * scale),
        )  # fmt: skip

    def next(s, transits, edges, step, draw, par):
        """A node by q, from the alias table over all nodes in order of original id."""
        slot = draw.below(len(par.node))
        if draw.word() < par.threshold[slot]:
            return par.node[slot]
        return par.other[slot]

    def law(self, graph: CSCGraph, history: History) -> Law:
        """q, whatever the sample holds; see App."""
        return _law_of_columns(graph, self.weighted(graph))

    def edge_weights(self, edges: RecordedEdges) -> Tensor:
        """P(v, u) / (q(u) size), by how often u was picked; see App."""
        scaled = edges.values * edges.par.row_scale[edges.dst] * edges.par.column_scale[edges.src]
        return torch.from_numpy(scaled * edges.times_picked() / len(edges.picks))


class LADIES(_LayerWise):
    """LADIES: the nodes of a layer are drawn from the neighbours of the layer before and itself, without replacement,
    by the squared column norms of their rows.

    P = D^-1 (A + I) is the row-normalised adjacency. With the transits S, p(u) is proportional to the sum over v in
    S of P(v, u)^2; sizes[k] nodes are drawn one by one from those that are left, and S itself is added. An edge from
    one of these nodes u to v in S has the coefficient P(v, u) / p(u), and the coefficients of a row are divided by
    their sum.

    These are the authors' coefficients: 1 / p of one draw, though nodes are drawn without replacement. So a layer that
    holds all nodes is not the mean over all neighbours, with which layer-wise inference computes.

    MFG.includes_dst is True: every row holds the edge from its destination to itself.

    Args:
      sizes: nodes drawn per layer, from the seeds outwards; one per model layer.
      weighted: None: entries of A are the edge weights if the graph has some; True: it must; False: ones.
    Source: Zou et al., "Layer-dependent importance sampling for training deep and large graph convolutional networks",
    NeurIPS'19, algorithm 1.
    """

    record = "to_union"
    _race = "squared"

    def unique(self, step: int) -> bool:
        """See App."""
        return True

    def next(s, transits, edges, step, draw, par):
        """The next to arrive."""
        return edges.ranked(draw.index)

    def law(self, graph: CSCGraph, history: History) -> Law:
        """Squared column norms of the rows of all nodes so far, as shares among those that are left; see App."""
        nodes = {v for vertices in history.vertices for v in vertices} - {NULL}
        columns = squared_columns(graph, nodes, self.weighted(graph))
        left = {u: norm for u, norm in columns.items() if norm > 0.0 and u not in history.picks}
        return normalised(left) if left else {NULL: 1.0}

    def edge_weights(self, edges: RecordedEdges) -> Tensor:
        """P / p as shares of the row: both row sums of P and the sum behind p cancel; see App."""
        assert edges.columns is not None
        shares = np.divide(edges.values, edges.columns, out=np.zeros(len(edges.src)), where=edges.values != 0)
        sums = edges.row_sums(shares)
        return torch.from_numpy(np.divide(shares, sums, out=shares, where=sums > 0))


@lru_cache(maxsize=1)  # check_app asks for it pick by pick
def _law_of_columns(graph: CSCGraph, weighted: bool) -> Law:
    """Squared column norms of D^-1/2 (A + I) D^-1/2 as shares."""
    norms = _norms(graph, weighted, by_original_id(graph).numpy())[1]
    return dict(enumerate((norms / norms.sum()).tolist()))


def _norms(graph: CSCGraph, weighted: bool, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row sums of A + I, squared column norms of D^-1/2 (A + I) D^-1/2), float64 [num_nodes] by node id.

    Rows are added in ascending order of original id, some millions of edges at a time: the same numbers in every
    partition.
    """
    indptr, indices = graph.indptr.numpy(force=True), graph.indices.numpy(force=True)
    weights = graph.weights.numpy(force=True) if weighted and graph.weights is not None else None
    totals, norms = np.ones(graph.num_nodes), np.zeros(graph.num_nodes)
    ends = np.cumsum(np.diff(indptr)[order])
    bounds = np.searchsorted(ends, np.arange(0, max(1, graph.num_edges), _EDGES_AT_ONCE))
    runs = np.unique(np.append(bounds, len(order)))
    for first, last in zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True):
        positions, owner = row_positions(indptr, order[first:last])
        dst, src = order[first:last][owner], indices[positions]
        values = np.ones(len(src)) if weights is None else weights[positions].astype(np.float64)
        totals += np.bincount(dst, values, graph.num_nodes)
        if len(src) == 0:
            norms[order[first:last]] += 1.0
            continue
        begins = np.flatnonzero(np.append(True, (np.diff(dst) != 0) | (np.diff(src) != 0)))
        entries = np.add.reduceat(values, begins)  # parallel edges are one entry
        dst, src = dst[begins], src[begins]
        is_own, rows = dst == src, order[first:last]
        norms += np.bincount(src[~is_own], (entries**2 / totals[dst])[~is_own], graph.num_nodes)
        own = np.bincount(dst[is_own], entries[is_own], graph.num_nodes)[rows]
        norms[rows] += (1.0 + own) ** 2 / totals[rows]
    return totals, norms / totals

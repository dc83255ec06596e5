"""The layers of GraphSAGE, GCN, GAT and PinSAGE: rows of an MFG's sources in, rows of its destinations out.

Coefficients that a sampler sets (`mfg.edge_weights`, 0 or more) count how many edges of the graph a kept one stands
for: an edge with coefficient w acts as w parallel edges would, so coefficients of 1 change nothing. Means become
weighted means, the softmax of GAT gains log w in its scores. Where the sampler says what a row's coefficients add up to
with no edge left out (`mfg.row_sums`), means divide by that in place of the sum of those that are there; a softmax is
over the edges that are there in any case. Rows that a sampler has normalised (LADIES, NeurIPS'19, algorithm 1; visits
of PinSAGE, KDD'18, section 3.1) come out as the plain weighted sum. The layers' docstrings state the formulas, also for
rows that hold their destination already (`mfg.includes_dst`). The graph's stored weights (`mfg.edge_values`) are never
applied.

Cost on a CPU: every pass over memory shows beside the matrix products, so aggregation comes before the product
where the model allows it (fewer rows), and halves of a concatenation are written in place. What depends on the edges
alone is computed once for all layers that share an MFG.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastsample_dist import ops
from fastsample_dist.sampling.mfg import MFG

NEGATIVE_SLOPE = 0.2  # LeakyReLU of the attention scores (Graph Attention Networks, ICLR'18, section 3.3)


class RowNorm(nn.LayerNorm):
    """LayerNorm over the columns of every row by itself, in the rows' dtype (sums in float32 at least), under autocast
    too.

    Source: Layer normalization, 2016, section 3.
    """

    def forward(self, rows: Tensor) -> Tensor:
        """[n, width] -> [n, width]."""
        weight, bias = self.weight.to(rows.dtype), self.bias.to(rows.dtype)
        with torch.autocast(rows.device.type, enabled=False):
            return F.layer_norm(rows, self.normalized_shape, weight, bias, self.eps)


class SAGELayer(nn.Module):
    """W [own row | neighbours] + b; the linear map has 2 * in_width columns, own rows first.

    Neighbours: the mean of their rows; with edge_weights sum of w_e x_u / sum of w_e over the edges e = (u, v), 0 where
    all of them are 0; with row_sums sum of w_e x_u / row_sums. With includes_dst the edges from v itself are left out,
    of row_sums too: the own row stands for them.
    """

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * in_width, out_width)
        _reset(self.linear)

    def forward(self, mfg: MFG, rows: Tensor) -> Tensor:
        """[num_src, in_width] -> [num_dst, out_width]."""
        return self._sage(mfg, rows)

    def hidden(self, mfg: MFG, rows: Tensor, key: ops.DropoutKey, p: float) -> Tensor:
        """The layer, then ReLU and dropout of probability p; see LayeredModel."""
        return self._sage(mfg, rows, node_ids=mfg.dst_orig_ids, key=key, p=p)

    def _sage(self, mfg: MFG, rows: Tensor, **hidden: Any) -> Tensor:
        weight, bias = self.linear.weight.to(rows.dtype), self.linear.bias.to(rows.dtype)
        shares = None
        if not _is_plain(mfg) or mfg.includes_dst:
            shares = _once(mfg, "neighbours", rows.dtype, _neighbour_coefficients)
        return ops.sage_layer(
            mfg.indptr, mfg.indices, rows, weight, bias, checked=mfg.checked, edge_weights=shares, **hidden
        )  # fmt: skip


class GCNLayer(nn.Module):
    """W combined + b, combined being the mean of the own row and the neighbours'.

    With edge_weights: (own row + sum of w_e x_u) / (1 + sum of w_e) over the edges e = (u, v). With includes_dst the
    row's edges alone: their mean, or their weighted mean. With row_sums these stand in the place of the sum of w_e.
    """

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_width, out_width)
        _reset(self.linear)

    def forward(self, mfg: MFG, rows: Tensor) -> Tensor:
        """[num_src, in_width] -> [num_dst, out_width]."""
        if mfg.includes_dst:
            shares = None if _is_plain(mfg) else _once(mfg, "all", rows.dtype, _all_coefficients)
            reduce = "mean" if shares is None else "sum"
            return self.linear(ops.aggregate(mfg.indptr, mfg.indices, rows, shares, reduce=reduce, checked=mfg.checked))
        own, total = _own_and_sum(mfg, rows, None if mfg.edge_weights is None else mfg.edge_weights.to(rows.dtype))
        return self.linear((own + total) / _once(mfg, "one and all", rows.dtype, _one_and_row_sums))


class PinSAGELayer(nn.Module):
    """W [neighbours | own row] + w; the linear map has hidden_width + in_width columns, neighbours first.

    Neighbours: sum of alpha_u ReLU(Q x_u + q) with alpha_u the edge's share of its row, as SAGELayer's: of a
    PinSAGESampler its importance weights, where nothing sets coefficients 1 / the number of edges; 0 where there are no
    edges.
    """

    def __init__(self, in_width: int, hidden_width: int, out_width: int) -> None:
        super().__init__()
        self.message = nn.Linear(in_width, hidden_width)
        self.linear = nn.Linear(hidden_width + in_width, out_width)
        _reset(self.message)
        _reset(self.linear)

    def forward(self, mfg: MFG, rows: Tensor) -> Tensor:
        """[num_src, in_width] -> [num_dst, out_width]."""
        messages = F.relu(self.message(rows))
        shares = _once(mfg, "neighbours", messages.dtype, _neighbour_coefficients)
        total = ops.aggregate(mfg.indptr, mfg.indices, messages, shares, reduce="sum", checked=mfg.checked)
        return self.linear(torch.cat([total, rows[: mfg.num_dst].to(total.dtype)], 1))

    def hidden(self, mfg: MFG, rows: Tensor, key: ops.DropoutKey, p: float) -> Tensor:
        """The layer, ReLU, every row divided by its norm (a row of zeros stays), then dropout of probability p."""
        rows = _unit_rows(F.relu(self(mfg, rows)))
        return ops.act_dropout(rows, mfg.dst_orig_ids, key, p=p)  # its ReLU changes nothing


class GATLayer(nn.Module):
    """Per head: sum of alpha_uv W h_u over the in-neighbours u and v itself, with alpha the softmax of
    LeakyReLU(a_src . W h_u + a_dst . W h_v).

    With edge_weights log w_e is added to the score of an edge, and the own term counts as one edge. With includes_dst
    the softmax and the sum are over the row's edges alone. row_sums change nothing: a softmax has its own denominator.

    The self-edge is a term of its own, so the edge lists stay as sampled. The scores are products with W folded
    into the attention vectors: reading a narrow input again is cheaper than reading the wide output. They and the
    softmax are kept in float32 at least.
    """

    def __init__(self, in_width: int, head_width: int, num_heads: int, *, average: bool = False) -> None:
        super().__init__()
        self.num_heads, self.average = num_heads, average
        self.linear = nn.Linear(in_width, num_heads * head_width, bias=False)
        self.attention = nn.Parameter(torch.empty(2, num_heads, head_width))  # [0]: source, [1]: destination
        self.bias = nn.Parameter(torch.zeros(head_width if average else num_heads * head_width))
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.xavier_uniform_(self.attention)

    def forward(self, mfg: MFG, rows: Tensor) -> Tensor:
        """[num_src, in_width] -> [num_dst, num_heads * head_width], or [num_dst, head_width] averaged."""
        values = self.linear(rows)
        attention, own_attention = self._attention(mfg, self._scores(rows))
        heads = self._sum_heads(mfg, values, attention.to(values.dtype), own_attention)
        return (heads.mean(1) if self.average else heads.flatten(1)) + self.bias.to(heads.dtype)

    def _sum_heads(self, mfg: MFG, values: Tensor, attention: Tensor, own_attention: Tensor | None) -> Tensor:
        """[num_dst, heads, head_width]: the messages of every destination's edges, and of itself where it has a term
        of its own.
        """
        if own_attention is None:
            total = ops.aggregate(mfg.indptr, mfg.indices, values, attention, reduce="sum", checked=mfg.checked)
            return total.unflatten(1, (self.num_heads, -1))
        own, others = (half.unflatten(1, (self.num_heads, -1)) for half in _own_and_sum(mfg, values, attention))
        return own * own_attention.to(values.dtype).unsqueeze(2) + others

    def _scores(self, rows: Tensor) -> Tensor:
        """a_src . W h and a_dst . W h of every source row, [num_src, 2, num_heads]."""
        weight = self.linear.weight.unflatten(0, (self.num_heads, -1))
        attention = self.attention.flatten().view_as(self.attention)  # one head's gradient gets the strides DDP expects
        folded = torch.einsum("khd,hdi->khi", attention, weight)
        scores = F.linear(rows, folded.flatten(0, 1)).unflatten(1, (2, self.num_heads))
        return scores.float() if scores.dtype == torch.bfloat16 else scores

    def _attention(self, mfg: MFG, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """Softmax over each destination's in-edges and its self-edge: ([num_edges, heads], [num_dst, heads]); None in
        place of the second where the rows have their self-edges already.
        """
        degrees = mfg.indptr.diff()
        edge_dst = torch.repeat_interleave(degrees, output_size=mfg.num_edges)
        to_source, to_own = scores[:, 0], scores[: mfg.num_dst, 1]
        edge_scores = F.leaky_relu(_take(mfg, to_source, mfg.indices) + _take(mfg, to_own, edge_dst), NEGATIVE_SLOPE)
        self_scores = None
        if not mfg.includes_dst:
            self_scores = F.leaky_relu(to_source[: mfg.num_dst] + to_own, NEGATIVE_SLOPE)
        edges = torch.arange(mfg.num_edges, device=scores.device)
        with torch.no_grad():  # any shift gives the same softmax; the largest score keeps exp in range
            shift = ops.aggregate(mfg.indptr, edges, edge_scores, reduce="max", checked=mfg.checked)
            if self_scores is not None:
                shift = torch.where(degrees.unsqueeze(1) > 0, torch.maximum(shift, self_scores), self_scores)
        edge_terms = (edge_scores - shift[edge_dst]).exp()
        if mfg.edge_weights is not None:
            edge_terms = edge_terms * mfg.edge_weights.to(edge_terms.dtype).unsqueeze(1)
        total = _row_sums(mfg, edge_terms)
        if self_scores is None:
            return edge_terms / _take(mfg, torch.where(total == 0, 1, total), edge_dst), None
        self_terms = (self_scores - shift).exp()
        total = total + self_terms
        return edge_terms / _take(mfg, total, edge_dst), self_terms / total


def _unit_rows(rows: Tensor) -> Tensor:
    """Rows divided by their norms, which are summed in float32 at least; a row of zeros stays."""
    wide = rows.to(_wide(rows.dtype))
    with torch.autocast(rows.device.type, enabled=False):
        return F.normalize(wide, dim=1).to(rows.dtype)


def _is_plain(mfg: MFG) -> bool:
    """Every edge counts once, and a row's edges are all that it has."""
    return mfg.edge_weights is None and mfg.row_sums is None


def _once(mfg: MFG, name: str, dtype: torch.dtype, make: Callable[[MFG, torch.dtype], Tensor]) -> Tensor:
    """make(mfg, dtype), once for all layers that share the MFG; anew where a gradient goes through its coefficients."""
    has_gradient = any(given is not None and given.requires_grad for given in (mfg.edge_weights, mfg.row_sums))
    if has_gradient or torch.is_inference_mode_enabled():  # a tensor of inference mode must not meet autograd later
        return make(mfg, dtype)
    if (name, dtype) not in mfg.derived:
        mfg.derived[name, dtype] = make(mfg, dtype)
    return mfg.derived[name, dtype]


def _all_coefficients(mfg: MFG, dtype: torch.dtype) -> Tensor:
    """Every edge's share of its row, [num_edges]."""
    return _shares(mfg, _weights(mfg, dtype), mfg.row_sums, dtype)


def _one_and_row_sums(mfg: MFG, dtype: torch.dtype) -> Tensor:
    """1, for the own row, and what the row's coefficients add up to, [num_dst, 1]."""
    sums = mfg.indptr.diff() if _is_plain(mfg) else mfg.row_sums
    if sums is None:
        sums = _row_sums(mfg, _weights(mfg, dtype))
    return (1 + sums).to(dtype).unsqueeze(1)


def _neighbour_coefficients(mfg: MFG, dtype: torch.dtype) -> Tensor:
    """What GraphSAGE and PinSAGE multiply every edge's message by before they sum, [num_edges]: its share of its row; 0
    for a destination's edge from itself where includes_dst says that these stand for its own row.
    """
    weights, row_sums = _weights(mfg, dtype), mfg.row_sums
    if mfg.includes_dst:
        is_own = mfg.indices == torch.repeat_interleave(mfg.indptr.diff(), output_size=mfg.num_edges)
        if row_sums is not None:
            row_sums = row_sums - _row_sums(mfg, weights * is_own)
        weights = weights * ~is_own
    return _shares(mfg, weights, row_sums, dtype)


def _weights(mfg: MFG, dtype: torch.dtype) -> Tensor:
    """The edges' coefficients, ones where there are none, to divide in: the wider of their own dtype and `dtype`, in
    float32 at least.
    """
    if mfg.edge_weights is None:
        return torch.ones(mfg.num_edges, dtype=_wide(dtype), device=mfg.indices.device)
    return mfg.edge_weights.to(_wide(torch.promote_types(mfg.edge_weights.dtype, dtype)))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _shares(mfg: MFG, weights: Tensor, row_sums: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Every edge's weight as a share of its row's sum, [num_edges], which is that of its edges unless `row_sums`,
    [num_dst], are given; 0 in a row whose sum is 0.
    """
    sums = _row_sums(mfg, weights) if row_sums is None else row_sums.to(weights.dtype)
    divisors, degrees = torch.where(sums == 0, 1, sums), mfg.indptr.diff()
    if divisors.requires_grad:
        edge_dst = torch.repeat_interleave(degrees, output_size=mfg.num_edges)
        divisors = _take(mfg, divisors.unsqueeze(1), edge_dst).squeeze(1)
    else:
        divisors = divisors.repeat_interleave(degrees, output_size=mfg.num_edges)
    return (weights / divisors).to(dtype)


def _row_sums(mfg: MFG, values: Tensor) -> Tensor:
    """Sums of the edges' values by destination, [num_edges] or [num_edges, k] -> [num_dst] or [num_dst, k]; 16-bit ones
    are added in float32.
    """
    wide = values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
    edges, columns = torch.arange(mfg.num_edges, device=values.device), wide.unsqueeze(1) if wide.dim() == 1 else wide
    sums = ops.aggregate(mfg.indptr, edges, columns, reduce="sum", checked=mfg.checked)
    return sums.squeeze(1) if wide.dim() == 1 else sums


def _own_and_sum(mfg: MFG, rows: Tensor, edge_weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Destinations' own rows and the sums over their in-neighbours, each [num_dst, width].

    As halves of one concatenation, because the gradient of a slice rows[:num_dst] would pass over all source rows.
    """
    halves = ops.aggregate_concat(mfg.indptr, mfg.indices, rows, edge_weights, reduce="sum", checked=mfg.checked)
    return halves.unflatten(1, (2, -1)).unbind(1)


def _take(mfg: MFG, rows: Tensor, ids: Tensor) -> Tensor:
    """rows[ids], ids of the MFG's nodes, with a gradient that sums in a fixed order, whatever the number of threads."""
    one_each = torch.arange(ids.numel() + 1, device=ids.device)
    return ops.aggregate(one_each, ids, rows, reduce="sum", checked=mfg.checked)


def _reset(linear: nn.Linear) -> None:
    """Glorot's initialisation for a layer before ReLU."""
    nn.init.xavier_uniform_(linear.weight, gain=nn.init.calculate_gain("relu"))
    nn.init.zeros_(linear.bias)

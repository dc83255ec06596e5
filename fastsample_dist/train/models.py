"""GraphSAGE, GCN and GAT on message flow graphs.

All three are stacks of layers, called as model(mb.mfgs, mb.features): layer i reads the rows of the source nodes of
mfgs[i] and returns the rows of its destinations, which are the sources of mfgs[i + 1]. Between layers comes
`ops.act_dropout` (ReLU and dropout in one pass), whose mask is keyed by (rng_seed, step, layer, original node id,
column). A row is computed from its own sampled in-edges alone: no statistics over the batch, no degrees of other
nodes. Therefore k ranks compute what one process computes on the union of their seeds, dropout included.

Coefficients that a sampler sets (`mfg.edge_weights`, 0 or more) count how many edges of the graph a kept one stands
for: an edge with coefficient w acts as w parallel edges would, so coefficients of 1 change nothing. Means become
weighted means, the softmax of GAT gains log w in its scores. Where the sampler says what a row's coefficients add up to
with no edge left out (`mfg.row_sums`), means divide by that in place of the sum of those that are there; a softmax is
over the edges that are there in any case. Rows that a sampler has normalised (LADIES, NeurIPS'19,
algorithm 1; visits of PinSAGE, KDD'18, section 3.1) come out as the plain weighted sum. The layers' docstrings state
the formulas, also for rows that hold their destination already (`mfg.includes_dst`). The graph's stored weights
(`mfg.edge_values`) are never applied.

Cost on a CPU: every pass over memory shows beside the matrix products, so aggregation comes before the product
where the model allows it (fewer rows), and halves of a concatenation are written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastsample_dist import ops
from fastsample_dist.sampling.mfg import MFG
from fastsample_dist.train.protocol import check_call, check_rows

NEGATIVE_SLOPE = 0.2  # LeakyReLU of the attention scores (Graph Attention Networks, ICLR'18, section 3.3)


class LayeredModel(nn.Module):
    """A stack of layers with activation and dropout between them.

    Args:
      layers: called as layer(mfg, rows [num_src, width]) -> rows [num_dst, next width]; mfgs[0] goes to the first.
        They get ReLU and dropout, except one that has hidden(mfg, rows, key, p), which does both itself.
      in_dim: columns of the features.
      dropout: probability that an element of a hidden row drops, 0 <= dropout < 1.
    Raises:
      ValueError: no layer, something that cannot be called as one, or dropout out of range.
    """

    def __init__(self, layers: Sequence[nn.Module], in_dim: int, dropout: float) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; expected a probability of at least 0 and below 1.")
        if not layers:
            raise ValueError("layers is empty; expected at least one layer, and one per fanout.")
        for number, layer in enumerate(layers):
            check_call(f"layer {number}", layer, "mfg", "rows")
        self.layers = nn.ModuleList(layers)
        self.in_dim = in_dim
        self.dropout = dropout

    @property
    def num_layers(self) -> int:
        """Number of layers, and of fanouts that a sampler needs."""
        return len(self.layers)

    def forward(self, mfgs: Sequence[MFG], features: Tensor) -> Tensor:
        """Scores of the seeds' classes.

        Args:
          mfgs: one per layer; mfgs[0] is the input side, mfgs[-1] the seed side. Or a single one that every layer uses,
            as in subgraph training: its destinations are all of its sources.
          features: [num_inputs, in_dim], a floating dtype; row i is that of mfgs[0].src_nodes[i]. Converted
            to the parameters' dtype, or to autocast's where autocast is on.
        Returns:
          [num_seeds, num_classes]; zero rows for an empty batch.
        Raises:
          ValueError: the number of MFGs or the shape of `features` does not fit the model.
        """
        mfgs = mfg_per_layer(mfgs, self.num_layers)
        self._check(mfgs, features)
        rows = features.to(self._compute_dtype(features.device.type))
        drop = self.dropout if self.training else 0.0
        for number, mfg in enumerate(mfgs):
            rows = self.apply_layer(number, mfg, rows, drop)
        return rows

    def apply_layer(self, number: int, mfg: MFG, rows: Tensor, p: float = 0.0) -> Tensor:
        """One layer, with activation and dropout of probability p unless it is the last.

        Args:
          number: of the layer, 0 is next to the features.
          mfg: its edges.
          rows: [mfg.num_src, columns in], the dtype to compute in.
          p: drop probability.
        Returns:
          [mfg.num_dst, columns out].
        """
        layer, is_last = self.layers[number], number + 1 == len(self.layers)
        if not is_last and hasattr(layer, "hidden"):
            result = layer.hidden(mfg, rows, mfg.draw.dropout(number), p)
        else:
            result = layer(mfg, rows)
        check_rows(f"layer {number} ({type(layer).__name__})", result, mfg.num_dst, "destination")
        if is_last or hasattr(layer, "hidden"):
            return result
        return ops.act_dropout(result, mfg.dst_orig_ids, mfg.draw.dropout(number), p=p)

    def _check(self, mfgs: Sequence[MFG], features: Tensor) -> None:
        if features.dim() != 2 or features.shape[1] != self.in_dim:
            raise ValueError(
                f"features has shape {tuple(features.shape)} but the model has in_dim {self.in_dim}; "
                "build the model with in_dim equal to the columns of the features."
            )
        if features.shape[0] != mfgs[0].num_src:
            raise ValueError(
                f"features has {features.shape[0]} rows but mfgs[0] has {mfgs[0].num_src} source nodes; "
                "pass one row per input node of the batch."
            )

    def _compute_dtype(self, device_type: str) -> torch.dtype:
        """What rows are kept in. The operators do not follow autocast by themselves, so the input does, once."""
        own = next(self.parameters()).dtype
        follows_autocast = own == torch.float32 and torch.is_autocast_enabled(device_type)
        return torch.get_autocast_dtype(device_type) if follows_autocast else own


def mfg_per_layer(mfgs: Sequence[MFG], num_layers: int) -> Sequence[MFG]:
    """The MFG of every layer: those given, or a single one for all of them.

    Args:
      mfgs: of a batch.
      num_layers: of the model.
    Raises:
      ValueError: another number than num_layers, or a single one whose destinations are not all of its sources.
    """
    if len(mfgs) != 1 or num_layers == 1:
        check_fanouts(len(mfgs), num_layers)
        return mfgs
    (shared,) = mfgs
    if shared.num_dst != shared.num_src:
        raise ValueError(
            f"the batch has one MFG, of {shared.num_src} source and {shared.num_dst} destination nodes, but the model "
            f"has {num_layers} layers; pass one fanout per layer, or one MFG whose destinations are all of its sources."
        )
    return [shared] * num_layers


def check_fanouts(num_fanouts: int, num_layers: int) -> None:
    """Refuse fanouts that disagree with the layers.

    Raises:
      ValueError: num_fanouts is not num_layers.
    """
    if num_fanouts != num_layers:
        raise ValueError(
            f"fanouts has {num_fanouts} entries but the model has {num_layers} layers; pass one fanout per layer."
        )


class GraphSAGE(LayeredModel):
    """GraphSAGE with mean aggregation: h'_v = W [h_v | mean of the sampled in-neighbours' h_u] + b.

    One matrix product serves both halves. Source: GraphSAGE, NeurIPS'17, algorithm 1 (without its normalisation).

    Args:
      in_dim: columns of the features.
      hidden_dim: columns of a hidden row.
      num_classes: columns of the result.
      num_layers: layers, at least 1.
      dropout: see LayeredModel.
    """

    def __init__(
        self, in_dim: int, hidden_dim: int, num_classes: int, num_layers: int = 3, dropout: float = 0.5
    ) -> None:
        widths = layer_widths(in_dim, hidden_dim, num_classes, num_layers)
        super().__init__([SAGELayer(*pair) for pair in widths], in_dim, dropout)


class GCN(LayeredModel):
    """Graph convolution: h'_v = W mean({h_v} and the sampled in-neighbours' h_u) + b.

    This is the row normalisation D^-1 (A + I) of the sampled graph. The symmetric one of the paper would need the
    degree of every source node among all batches' edges, which no rank knows under sampling; with it, results
    would depend on how seeds are spread over ranks.

    Args: as GraphSAGE.
    Source: Graph convolutional networks, ICLR'17, section 2, with the normalisation above.
    """

    def __init__(
        self, in_dim: int, hidden_dim: int, num_classes: int, num_layers: int = 3, dropout: float = 0.5
    ) -> None:
        widths = layer_widths(in_dim, hidden_dim, num_classes, num_layers)
        super().__init__([GCNLayer(*pair) for pair in widths], in_dim, dropout)


class GAT(LayeredModel):
    """Graph attention with self-edges; hidden layers concatenate their heads, the last one averages them.

    Differs from the paper in its hidden activation (ReLU, fused with dropout, instead of ELU) and in having no
    dropout on attention weights.

    Args:
      in_dim, hidden_dim, num_classes, num_layers, dropout: as GraphSAGE.
      num_heads: attention heads of every layer; divides hidden_dim.
    Raises:
      ValueError: num_heads is below 1 or does not divide hidden_dim.
    Source: Graph Attention Networks, ICLR'18, equations 1 to 6.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_dim: int,
        num_classes: int,
        num_layers: int = 3,
        dropout: float = 0.5,
        num_heads: int = 4,
    ) -> None:
        if num_heads < 1 or hidden_dim % num_heads:
            raise ValueError(
                f"num_heads is {num_heads} and hidden_dim {hidden_dim}; expected at least 1 head, and a hidden_dim "
                "that the heads divide."
            )
        *hidden, last = layer_widths(in_dim, hidden_dim, num_classes, num_layers)
        layers = [GATLayer(width, out_width // num_heads, num_heads) for width, out_width in hidden]
        super().__init__([*layers, GATLayer(*last, num_heads, average=True)], in_dim, dropout)


def layer_widths(in_dim: int, hidden_dim: int, num_classes: int, num_layers: int) -> list[tuple[int, int]]:
    """(columns in, columns out) of every layer.

    Raises:
      ValueError: one of the arguments is below 1.
    """
    sizes = {"in_dim": in_dim, "hidden_dim": hidden_dim, "num_classes": num_classes, "num_layers": num_layers}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; expected at least 1.")
    widths = [in_dim] + [hidden_dim] * (num_layers - 1) + [num_classes]
    return list(pairwise(widths))


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
        """The layer, then ReLU and dropout of probability p; see LayeredModel. In one operator without edge_weights."""
        return self._sage(mfg, rows, node_ids=mfg.dst_orig_ids, key=key, p=p)

    def _sage(self, mfg: MFG, rows: Tensor, **hidden: Any) -> Tensor:
        weight, bias = self.linear.weight.to(rows.dtype), self.linear.bias.to(rows.dtype)
        if mfg.edge_weights is None and mfg.row_sums is None and not mfg.includes_dst:
            return ops.sage_layer(mfg.indptr, mfg.indices, rows, weight, bias, checked=mfg.checked, **hidden)
        coefficients = _neighbour_coefficients(mfg, rows.dtype)
        halves = ops.aggregate_concat(mfg.indptr, mfg.indices, rows, coefficients, reduce="sum", checked=mfg.checked)
        result = F.linear(halves, weight, bias)
        return ops.act_dropout(result, **hidden) if hidden else result


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
        plain = mfg.edge_weights is None and mfg.row_sums is None
        if mfg.includes_dst:
            shares = None if plain else _shares(mfg, _weights(mfg, rows.dtype), mfg.row_sums, rows.dtype)
            reduce = "mean" if plain else "sum"
            return self.linear(ops.aggregate(mfg.indptr, mfg.indices, rows, shares, reduce=reduce, checked=mfg.checked))
        own, total = _own_and_sum(mfg, rows, None if mfg.edge_weights is None else mfg.edge_weights.to(rows.dtype))
        if plain:
            return self.linear((own + total) / (mfg.indptr.diff() + 1).to(rows.dtype).unsqueeze(1))
        sums = mfg.row_sums
        if sums is None:
            sums = _row_sums(mfg, _weights(mfg, rows.dtype).unsqueeze(1)).squeeze(1)
        return self.linear((own + total) / (1 + sums).to(rows.dtype).unsqueeze(1))


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
        folded = torch.einsum("khd,hdi->khi", self.attention, weight)
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


def _neighbour_coefficients(mfg: MFG, dtype: torch.dtype) -> Tensor:
    """What GraphSAGE multiplies every edge's message by before it sums, [num_edges]: its share of its row; 0 for a
    destination's edge from itself where includes_dst says that these stand for its own row.
    """
    weights, row_sums = _weights(mfg, dtype), mfg.row_sums
    if mfg.includes_dst:
        is_own = mfg.indices == torch.repeat_interleave(mfg.indptr.diff(), output_size=mfg.num_edges)
        if row_sums is not None:
            row_sums = row_sums - _row_sums(mfg, (weights * is_own).unsqueeze(1)).squeeze(1)
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
    edge_dst = torch.repeat_interleave(mfg.indptr.diff(), output_size=mfg.num_edges)
    sums = _row_sums(mfg, weights.unsqueeze(1)) if row_sums is None else row_sums.to(weights.dtype).unsqueeze(1)
    return (weights / _take(mfg, torch.where(sums == 0, 1, sums), edge_dst).squeeze(1)).to(dtype)


def _row_sums(mfg: MFG, values: Tensor) -> Tensor:
    """Sums of the edges' values by destination, [num_edges, k] -> [num_dst, k]; 16-bit ones are added in float32."""
    wide = values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
    edges = torch.arange(mfg.num_edges, device=values.device)
    return ops.aggregate(mfg.indptr, edges, wide, reduce="sum", checked=mfg.checked)


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

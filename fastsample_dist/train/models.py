"""GraphSAGE, GCN, GAT and PinSAGE on message flow graphs.

All are stacks of layers, called as model(mb.mfgs, mb.features): layer i reads the rows of the source nodes of
mfgs[i] and returns the rows of its destinations, which are the sources of mfgs[i + 1]. Between layers comes
`ops.act_dropout` (ReLU and dropout in one pass), whose mask is keyed by (rng_seed, step, layer, original node id,
column). A row is computed from its own sampled in-edges alone: no statistics over the batch, no degrees of other
nodes. Therefore k ranks compute what one process computes on the union of their seeds, dropout included.

Deep stacks train with residual=True and norm="layer": a hidden row is then h' = dropout(ReLU(LayerNorm(layer(h)))) + h,
h being the destinations' own rows (the order of ResGCN: DeepGCNs, ICCV'19). Only rows that keep their width have the
sum, so not the first layer where in_dim is not hidden_dim; the last layer gives the scores as they are. LayerNorm is
over the columns of one row.

The layers, and what they make of a sampler's coefficients, are in layers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fastsample_dist import ops
from fastsample_dist.ops import checks
from fastsample_dist.sampling.mfg import MFG
from fastsample_dist.train.layers import GATLayer, GCNLayer, PinSAGELayer, RowNorm, SAGELayer
from fastsample_dist.train.protocol import check_call, check_rows

NORMS: Mapping[str, Callable[[int], nn.Module]] = {"layer": RowNorm}  # by name; called with the columns of a row


class LayeredModel(nn.Module):
    """A stack of layers with activation and dropout between them.

    Args:
      layers: called as layer(mfg, rows [num_src, width]) -> rows [num_dst, next width]; mfgs[0] goes to the first.
        They get ReLU and dropout, except one that has hidden(mfg, rows, key, p), which does both itself where there is
        no norm in between.
      in_dim: columns of the features.
      dropout: probability that an element of a hidden row drops, 0 <= dropout < 1.
      residual: add the destinations' own rows to every hidden layer's result that has as many columns.
      norms: one per hidden layer, called as norm(rows [num_dst, width]) -> the same shape, before the activation. Each
        row must depend on itself alone (LayerNorm, not BatchNorm), or k ranks are not one process. None: none.
    Raises:
      ValueError: no layer, something that cannot be called as one, another number of norms than hidden layers, or
        dropout out of range.
    """

    def __init__(
        self, layers: Sequence[nn.Module], in_dim: int, dropout: float, *, residual: bool = False,
        norms: Sequence[nn.Module] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        dropout, residual = checks.plain(dropout), checks.plain(residual)
        if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout!r}; expected a probability of at least 0 and below 1.")
        checks.flag("residual", residual)
        if not layers:
            raise ValueError("layers is empty; expected at least one layer, and one per fanout.")
        for number, layer in enumerate(layers):
            check_call(f"layer {number}", layer, "mfg", "rows")
        if norms is not None and len(norms) + 1 != len(layers):
            raise ValueError(
                f"norms has {len(norms)} entries for {len(layers)} layers; pass one for every layer but the last."
            )
        self.layers = nn.ModuleList(layers)
        self.norms = None if norms is None else nn.ModuleList(norms)
        self.residual = residual
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
        """One layer, with norm, activation, dropout of probability p and residual unless it is the last.

        Args:
          number: of the layer, 0 is next to the features.
          mfg: its edges.
          rows: [mfg.num_src, columns in], the dtype to compute in.
          p: drop probability.
        Returns:
          [mfg.num_dst, columns out].
        """
        layer, is_last = self.layers[number], number + 1 == len(self.layers)
        key, is_fused = mfg.draw.dropout(number), not is_last and self.norms is None and hasattr(layer, "hidden")
        result = layer.hidden(mfg, rows, key, p) if is_fused else layer(mfg, rows)
        check_rows(f"layer {number} ({type(layer).__name__})", result, mfg.num_dst, "destination")
        if is_last:
            return result
        if not is_fused:
            normed = result if self.norms is None else self.norms[number](result)
            result = ops.act_dropout(normed, mfg.dst_orig_ids, key, p=p)
        if not self.residual or result.shape[1] != rows.shape[1]:
            return result
        return result + (rows if mfg.num_dst == mfg.num_src else rows[: mfg.num_dst])

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
      residual: hidden layers whose rows keep their width add their input to their result.
      norm: "layer": LayerNorm in every hidden layer, before the activation; None: none.
    Raises:
      ValueError: a size below 1, another norm.
    """

    def __init__(
        self, in_dim: int, hidden_dim: int, num_classes: int, num_layers: int = 3, dropout: float = 0.5, *,
        residual: bool = False, norm: str | None = None,
    ) -> None:  # fmt: skip
        widths = layer_widths(in_dim, hidden_dim, num_classes, num_layers)
        layers, norms = [SAGELayer(*pair) for pair in widths], hidden_norms(norm, widths)
        super().__init__(layers, in_dim, dropout, residual=residual, norms=norms)


class GCN(LayeredModel):
    """Graph convolution: h'_v = W mean({h_v} and the sampled in-neighbours' h_u) + b.

    This is the row normalisation D^-1 (A + I) of the sampled graph. The symmetric one of the paper would need the
    degree of every source node among all batches' edges, which no rank knows under sampling; with it, results
    would depend on how seeds are spread over ranks.

    Args: as GraphSAGE.
    Source: Graph convolutional networks, ICLR'17, section 2, with the normalisation above.
    """

    def __init__(
        self, in_dim: int, hidden_dim: int, num_classes: int, num_layers: int = 3, dropout: float = 0.5, *,
        residual: bool = False, norm: str | None = None,
    ) -> None:  # fmt: skip
        widths = layer_widths(in_dim, hidden_dim, num_classes, num_layers)
        layers, norms = [GCNLayer(*pair) for pair in widths], hidden_norms(norm, widths)
        super().__init__(layers, in_dim, dropout, residual=residual, norms=norms)


class GAT(LayeredModel):
    """Graph attention with self-edges; hidden layers concatenate their heads, the last one averages them.

    Differs from the paper in its hidden activation (ReLU, fused with dropout, instead of ELU) and in having no
    dropout on attention weights.

    Args:
      in_dim, hidden_dim, num_classes, num_layers, dropout, residual, norm: as GraphSAGE.
      num_heads: attention heads of every layer; divides hidden_dim.
    Raises:
      ValueError: num_heads is no integer >= 1 or does not divide hidden_dim.
    Source: Graph Attention Networks, ICLR'18, equations 1 to 6.
    """

    def __init__(
        self, in_dim: int, hidden_dim: int, num_classes: int, num_layers: int = 3, dropout: float = 0.5,
        num_heads: int = 4, *, residual: bool = False, norm: str | None = None,
    ) -> None:  # fmt: skip
        *hidden, last = widths = layer_widths(in_dim, hidden_dim, num_classes, num_layers)
        num_heads = checks.whole("num_heads", num_heads, 1)
        if hidden_dim % num_heads:
            raise ValueError(
                f"num_heads is {num_heads} and hidden_dim {hidden_dim}; expected a hidden_dim that the heads divide."
            )
        layers = [GATLayer(width, out_width // num_heads, num_heads) for width, out_width in hidden]
        layers.append(GATLayer(*last, num_heads, average=True))
        super().__init__(layers, in_dim, dropout, residual=residual, norms=hidden_norms(norm, widths))


class PinSAGE(LayeredModel):
    """PinSAGE: h'_v = normalise(ReLU(W [sum of alpha_u ReLU(Q h_u + q) | h_v] + w)), alpha being the importance weights
    of a PinSAGESampler; dropout comes after it, and the last layer is W [...] + w alone.

    The published code of GNNLab has ReLU and the norm in the last layer too, so that its class scores lie in [0, 1].

    Args:
      in_dim, hidden_dim, num_classes, num_layers, dropout, residual: as GraphSAGE; Q has hidden_dim rows.
      norm: None: hidden rows are divided by their norm already.
    Raises:
      ValueError: a size below 1, a norm.
    Source: Ying et al., "Graph convolutional neural networks for web-scale recommender systems", KDD'18, algorithm 1.
    """

    def __init__(
        self, in_dim: int, hidden_dim: int, num_classes: int, num_layers: int = 3, dropout: float = 0.5, *,
        residual: bool = False, norm: str | None = None,
    ) -> None:  # fmt: skip
        if norm is not None:
            raise ValueError(f"norm is {norm!r}, but PinSAGE divides its hidden rows by their norm; leave norm out.")
        widths = layer_widths(in_dim, hidden_dim, num_classes, num_layers)
        layers = [PinSAGELayer(width, hidden_dim, out_width) for width, out_width in widths]
        super().__init__(layers, in_dim, dropout, residual=residual)


def hidden_norms(norm: str | None, widths: Sequence[tuple[int, int]]) -> list[nn.Module] | None:
    """The norms of a stack's hidden layers, None without.

    Args:
      norm: one of NORMS, or None.
      widths: (columns in, columns out) of every layer.
    Raises:
      ValueError: another norm.
    """
    if norm not in (None, *NORMS):
        raise ValueError(f"norm is {norm!r}; expected {' or '.join(map(repr, NORMS))}, or None for none.")
    return None if norm is None else [NORMS[norm](width) for _, width in widths[:-1]]


def layer_widths(in_dim: int, hidden_dim: int, num_classes: int, num_layers: int) -> list[tuple[int, int]]:
    """(columns in, columns out) of every layer.

    Raises:
      ValueError: one of the arguments is no integer >= 1; more layers than a mini-batch can have.
    """
    num_layers = checks.whole("num_layers", num_layers, 1, checks.MOST_LAYERS)
    sizes = {"in_dim": in_dim, "hidden_dim": hidden_dim, "num_classes": num_classes}
    first, hidden, last = (checks.whole(name, size, 1) for name, size in sizes.items())
    return list(pairwise([first, *[hidden] * (num_layers - 1), last]))

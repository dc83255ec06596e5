"""Mini-batches as PyTorch Geometric data, for models that take one subgraph, and its graphs as input. The only module
that imports torch_geometric, and only on use.

PyG's NeighborLoader hands a model one graph that holds the edges of all hops. In an MFG the destinations of a hop
include those of the hops before it, which draw again there. The merged graph is the union: hop by hop from the
seeds outwards, without the (source, target) pairs that an earlier hop already listed. So with fanout -1 it is the
exact neighbourhood, and a sum over it counts no edge twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs import ReadOptions
from fastsample_dist.graph.inputs.pyg_saved import from_mapping
from fastsample_dist.sampling.base import MFG, MiniBatch

if TYPE_CHECKING:
    from torch.nn import Module
    from torch_geometric.data import Data, HeteroData


def _data_class() -> type[Data]:
    try:
        from torch_geometric.data import Data
    except (ImportError, OSError) as error:  # OSError: a compiled extension of PyG does not fit the installed torch
        raise ImportError(
            f"this needs torch_geometric, which cannot be imported ({error}); run `pip install fastsample_dist[pyg]`."
        ) from error
    return Data


def simple_conv(reduce: str) -> Module:
    """PyG's message passing without weights, called as conv((x, None), edge_index, size=(num_src, num_dst)).

    Args:
      reduce: "sum", "mean" or "max".
    Raises:
      ImportError: torch_geometric is missing; the message names the extra to install.
    """
    _data_class()
    from torch_geometric.nn import SimpleConv

    return SimpleConv(aggr=reduce)


def neighbor_loader(
    graph: CSCGraph, seeds: Tensor, *, fanouts: Sequence[int], batch_size: int, workers: int
) -> Iterable[Data]:
    """PyG's NeighborLoader over a graph, sampling on the CPU; its batches hold no features.

    Args:
      graph: in host memory.
      seeds: int64; taken in this order.
      fanouts: in hop order from the seeds outwards.
      batch_size: seeds per batch.
      workers: processes that sample; 0 samples when a batch is asked for.
    Raises:
      ImportError: torch_geometric is missing; or, when the first batch is asked for, what it samples with.
    """
    data_class = _data_class()
    from torch_geometric.loader import NeighborLoader

    dst = torch.arange(graph.num_nodes).repeat_interleave(graph.in_degrees())
    data = data_class(edge_index=torch.stack([graph.indices.long(), dst]), num_nodes=graph.num_nodes)
    return NeighborLoader(
        data, num_neighbors=list(fanouts), input_nodes=seeds, batch_size=batch_size, shuffle=False, is_sorted=True,
        num_workers=workers, persistent_workers=workers > 0,
    )  # fmt: skip


def graph_sage(in_dim: int, hidden_dim: int, num_classes: int, num_layers: int, dropout: float) -> Module:
    """PyG's GraphSAGE, called as model(x, data.edge_index, num_sampled_nodes_per_hop=..., ...).

    Raises:
      ImportError: torch_geometric is missing; the message names the extra to install.
    """
    _data_class()
    from torch_geometric.nn import GraphSAGE

    return GraphSAGE(in_dim, hidden_dim, num_layers, num_classes, dropout=dropout)


def _edges(mfg: MFG) -> Tensor:
    """int64 [2 or 3, num_edges]: local source and destination of every edge, and its id where it is known."""
    dst = torch.arange(mfg.num_dst, device=mfg.indptr.device)
    rows = [mfg.indices.long(), dst.repeat_interleave(mfg.indptr.diff(), output_size=mfg.num_edges)]
    return torch.stack(rows if mfg.edge_ids is None else [*rows, mfg.edge_ids])


def _pair_codes(edges: Tensor, num_nodes: int) -> Tensor:
    """One number per (source, target) pair; distinct while num_nodes < 2**31.5, as local ids are."""
    return edges[0] * num_nodes + edges[1]


def _merge_hops(mfgs: Sequence[MFG], num_nodes: int) -> list[Tensor]:
    """Edges of each hop, seed side first, without the pairs that an earlier hop listed."""
    merged: list[Tensor] = []
    for edges in (_edges(mfg) for mfg in reversed(mfgs)):
        if merged:
            listed = torch.cat([_pair_codes(earlier, num_nodes) for earlier in merged])
            edges = edges[:, ~torch.isin(_pair_codes(edges, num_nodes), listed)]
        merged.append(edges)
    return merged


def to_data(batch: MiniBatch) -> Data:
    """The mini-batch as one graph, as PyG's NeighborLoader would hand it to a model.

    Args:
      batch: a mini-batch; its features and labels may be missing.
    Returns:
      torch_geometric.data.Data over local node ids, with
        edge_index: int64 [2, E], source to target; hop by hop from the seeds outwards.
        n_id: int64 [num_inputs]; node ids of the graph, the seeds first.
        e_id: int64 [E], when the batch has edge ids: position of every edge in the graph's `indices`, so that
          graph.weights[e_id] are the edges' weights.
        x: [num_inputs, feature_dim], when the batch has features.
        y: int64 [num_seeds], when the batch has labels: the seeds' labels, `y[:batch_size]` as ever.
        batch_size: number of seeds; input_id: int64 [num_seeds], their node ids.
        num_sampled_nodes: list of L + 1 counts, the seeds and then the nodes each hop added.
        num_sampled_edges: list of L counts of columns of edge_index per hop, as `trim_to_layer` takes them.
    Raises:
      ImportError: torch_geometric is missing; the message names the extra to install.
    Cost: O(E log E) for L > 1; features are not copied.
    """
    data_class = _data_class()
    num_nodes, num_seeds = batch.input_nodes.numel(), batch.seeds.numel()
    hops = _merge_hops(batch.mfgs, num_nodes)
    merged = torch.cat(hops, dim=1) if hops else batch.input_nodes.new_empty((2, 0), dtype=torch.int64)
    sizes = [num_seeds, *(mfg.num_src for mfg in reversed(batch.mfgs))]
    data = data_class(
        edge_index=merged[:2],
        n_id=batch.input_nodes.long(),
        num_nodes=num_nodes,
        batch_size=num_seeds,
        input_id=batch.seeds.long(),
        num_sampled_nodes=[num_seeds, *(after - before for before, after in pairwise(sizes))],
        num_sampled_edges=[edges.shape[1] for edges in hops],
    )
    if merged.shape[0] == 3:
        data.e_id = merged[2]
    if batch.features is not None:
        data.x = batch.features
    if batch.labels is not None:
        data.y = batch.labels
    return data


def from_data(data: Data | HeteroData, *, name: str = "data", undirected: bool = False) -> RawGraph:
    """A Data or HeteroData as input for partitioning: one id space, node types one after the other.

    Args:
      data: with edge_index and, as far as the graph has them, x, y, train_mask, val_mask, test_mask, and edge_weight
        or an edge_attr of one column; other attributes are left out, with a note.
      name: of the graph, for reports.
      undirected: every edge counts in both directions; reverses are added and duplicates merged.
    Returns:
      RawGraph; arrays share the tensors' memory where they can. bfloat16 features become float32.
    Raises:
      ValueError: attributes that do not fit, or adj_t in place of edge_index: one line.
    """
    return from_mapping(data.to_dict(), ReadOptions(undirected=undirected), name=name)

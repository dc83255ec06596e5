"""Mini-batches as PyTorch Geometric data, for models that take one subgraph, and its graphs as input. The only module
that imports torch_geometric, and only on use.

PyG's NeighborLoader hands a model one graph that holds the edges of all hops, in which every node drew its neighbours
once, at the hop that first reached it. `to_data` gives such a graph by the same law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs import ReadOptions
from fastsample_dist.graph.inputs.pyg_saved import from_mapping
from fastsample_dist.sampling.mfg import MiniBatch, check_batch

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
      ImportError: torch_geometric or what it samples with is missing.
    """
    data_class = _data_class()
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):  # its workers would fail one by one, and be waited for
        raise ImportError("NeighborLoader needs pyg_lib or torch_sparse, and neither can be imported; install one.")

    dst = torch.arange(graph.num_nodes).repeat_interleave(graph.in_degrees())
    data = data_class(edge_index=torch.stack([graph.indices.long(), dst]), num_nodes=graph.num_nodes)
    return NeighborLoader(
        data, num_neighbors=list(fanouts), input_nodes=seeds, batch_size=batch_size, shuffle=False, is_sorted=True,
        num_workers=workers, persistent_workers=workers > 0,
    )  # fmt: skip


def walker(
    graph: CSCGraph, length: int, *, p_q: tuple[float, float] = (1.0, 1.0), device: torch.device | None = None
) -> Callable[[Tensor], Tensor]:
    """PyG's own random walks (pyg_lib or torch_cluster), against the direction of the edges as this library's.

    Args:
      graph: in-neighbour lists; weights are not used.
      length: nodes that a walk adds; a walk without a neighbour to go to stays where it is.
      p_q: node2vec's return and in-out parameters; both 1: uniform walks.
      device: that walks; None: the graph's.
    Returns:
      A function of roots there, int64 [num_walks], that returns int64 [num_walks, length + 1].
    Raises:
      ImportError: neither package can be imported.
    """
    indptr, indices = graph.indptr.to(device=device), graph.indices.to(device=device).long()
    try:
        import pyg_lib  # noqa: F401  # registers its operators
    except (ImportError, OSError):
        try:
            import torch_cluster  # noqa: F401  # registers its operators
        except (ImportError, OSError) as error:
            raise ImportError(
                f"walks of PyG need pyg_lib or torch_cluster, and neither can be imported ({error}); install one."
            ) from error
        walk = torch.ops.torch_cluster.random_walk
        return lambda roots: walk(indptr, indices, roots, length, *p_q)[0]
    return lambda roots: torch.ops.pyg.random_walk(indptr, indices, roots, length, *p_q)


def saint_sampler(graph: CSCGraph, mode: str, budget: int | tuple[int, int]) -> Callable[[], tuple[int, int]]:
    """PyG's GraphSAINT sampler, without its loader and without columns of nodes or edges.

    Args:
      graph: in host memory.
      mode: "node" or "walk". (Its edge sampler makes `budget` numbers per edge of the graph.)
      budget: nodes to draw; roots and length of walks.
    Returns:
      A function that draws one subgraph: (its nodes, its edges).
    Raises:
      ImportError: torch_geometric or torch_sparse, which it samples with, is missing.
    """
    data_class = _data_class()
    from torch_geometric import loader
    from torch_geometric.typing import WITH_TORCH_SPARSE

    if not WITH_TORCH_SPARSE:
        raise ImportError("GraphSAINT samplers of PyG need torch_sparse, which cannot be imported; install it.")

    dst = torch.arange(graph.num_nodes).repeat_interleave(graph.in_degrees())
    data = data_class(edge_index=torch.stack([dst, graph.indices.long()]), num_nodes=graph.num_nodes)
    if mode == "walk":
        sampler = loader.GraphSAINTRandomWalkSampler(data, budget[0], budget[1])
    else:
        sampler = loader.GraphSAINTNodeSampler(data, budget)

    def draw() -> tuple[int, int]:
        nodes, adjacency = sampler[0]
        return nodes.numel(), adjacency.nnz()

    return draw


def graph_sage(in_dim: int, hidden_dim: int, num_classes: int, num_layers: int, dropout: float) -> Module:
    """PyG's GraphSAGE, called as model(x, data.edge_index, num_sampled_nodes_per_hop=..., ...).

    Raises:
      ImportError: torch_geometric is missing; the message names the extra to install.
    """
    _data_class()
    from torch_geometric.nn import GraphSAGE

    return GraphSAGE(in_dim, hidden_dim, num_layers, num_classes, dropout=dropout)


def _take_new(number: Tensor, ids: Tensor, count: int) -> Tensor:
    """Number the ids that have none yet, from `count` on, in the order of their first appearance; returns them."""
    ids = ids[number[ids] < 0]
    distinct, place = ids.unique(return_inverse=True)
    first = torch.full_like(distinct, ids.numel()).scatter_reduce(
        0, place, torch.arange(ids.numel(), device=ids.device), "amin"
    )
    new = distinct[first.argsort()]
    number[new] = torch.arange(count, count + new.numel(), device=ids.device)
    return new


def to_data(batch: MiniBatch) -> Data:
    """The mini-batch as one graph, drawn by the law of PyG's NeighborLoader: every node is expanded once.

    In an MFG the destinations of a hop include those of the hops before it, which draw again there. Of these draws only
    a node's first ones are used: the seeds take fanouts[0] neighbours, the nodes that they reach fanouts[1], and so on;
    nodes that only the other draws reach are left out, with their features. So every node has at most one fanout of
    in-edges, and layers that are trimmed (`trim_to_layer`) give the seeds what untrimmed ones give. A model of L > 1
    layers therefore sees less than on `batch.mfgs`, unless fanouts take all neighbours: then both are exact.

    Args:
      batch: a mini-batch; its features and labels may be missing.
    Returns:
      torch_geometric.data.Data over local node ids, with
        edge_index: int64 [2, E], source to target; hop by hop from the seeds outwards.
        n_id: int64 [num_nodes]; node ids of the graph: the seeds, then the others in order of first appearance.
        e_id: int64 [E], when the batch has edge ids: position of every edge in the graph's `indices`.
        edge_weight: [E], when the batch has the edges' stored weights (`edge_values`).
        edge_coefficient: float [E], when the sampler set coefficients (`edge_weights`); 1 in a hop without any.
        row_sum: float [num_nodes], when every MFG has what a row's weighted sum is divided by (`row_sums`); 0 for nodes
          that the last hop added, which have no in-edges here.
        seed_weight: float [num_seeds], when the batch has factors of the seeds' losses (`seed_weights`).
        x: [num_nodes, feature_dim], when the batch has features.
        y: int64 [num_seeds], when the batch has labels: the seeds' labels, `y[:batch_size]` as ever.
        batch_size: number of seeds; input_id: int64 [num_seeds], their node ids (their places among all nodes).
        num_sampled_nodes: list of L + 1 counts, the seeds and then the nodes each hop added.
        num_sampled_edges: list of L counts of columns of edge_index per hop, as `trim_to_layer` takes them.
    Raises:
      ImportError: torch_geometric is missing; the message names the extra to install.
      ValueError: it is no mini-batch.
    Cost: O(E log E); the features of the nodes that stay are copied.
    """
    data_class = _data_class()
    check_batch(batch)
    device = batch.input_nodes.device
    number = torch.full((batch.input_nodes.numel(),), -1, dtype=torch.int64, device=device)
    local = [_take_new(number, torch.arange(batch.seeds.numel(), device=device), 0)]
    ends, ids, values, factors, sums = [torch.empty((2, 0), dtype=torch.int64, device=device)], [], [], [], []
    has_factors = any(mfg.edge_weights is not None for mfg in batch.mfgs)
    for mfg in reversed(batch.mfgs):  # from the seeds outwards
        edge_index, num_before = mfg.edge_index(), sum(map(len, local[:-1]))
        kept = torch.nonzero(number[edge_index[1]] >= num_before).flatten()  # into the nodes that the last hop added
        edge_index = edge_index[:, kept]
        local.append(_take_new(number, edge_index[0], num_before + len(local[-1])))
        ends.append(number[edge_index])
        ids += [] if mfg.edge_ids is None else [mfg.edge_ids[kept]]
        values += [] if mfg.edge_values is None else [mfg.edge_values[kept]]
        sums += [] if mfg.row_sums is None else [mfg.row_sums[local[-2]]]  # local ids of a hop are those of all sources
        if has_factors:
            factors.append(
                kept.new_ones(kept.shape, dtype=torch.float32) if mfg.edge_weights is None else mfg.edge_weights[kept]
            )
    nodes = torch.cat(local)
    data = data_class(
        edge_index=torch.cat(ends, dim=1),
        n_id=batch.input_nodes[nodes].long(),
        num_nodes=nodes.numel(),
        batch_size=batch.seeds.numel(),
        input_id=batch.seeds.long(),
        num_sampled_nodes=[len(added) for added in local],
        num_sampled_edges=[edges.shape[1] for edges in ends[1:]],
    )
    if ids:
        data.e_id = torch.cat(ids)
    if values:
        data.edge_weight = torch.cat(values)
    if factors:
        data.edge_coefficient = torch.cat(factors)
    if sums and len(sums) == len(batch.mfgs):
        data.row_sum = torch.cat([*sums, sums[0].new_zeros(len(local[-1]))])
    if batch.seed_weights is not None:
        data.seed_weight = batch.seed_weights
    if batch.features is not None:
        data.x = batch.features[nodes]
    if batch.labels is not None:
        data.y = batch.labels
    return data


def from_data(
    data: Data | HeteroData, *, name: str = "data", undirected: bool = False, task: str | None = None
) -> RawGraph:
    """A Data or HeteroData as input for partitioning: one id space, node types one after the other.

    Args:
      data: with edge_index and, where the graph has them, x, y, train_mask, val_mask, test_mask, and edge_weight
        or an edge_attr of one column; other attributes are left out, with a warning, and edge types are joined, with
        one too.
      name: of the graph, for reports.
      undirected: every edge counts in both directions; reverses are added and duplicates merged.
      task: what the labels y are for, one of graph.labels.TASKS; None: inferred from their shape.
    Returns:
      RawGraph; arrays share the tensors' memory where they can. bfloat16 features become float32.
    Raises:
      ValueError: no Data or HeteroData, attributes that do not fit, or adj_t in place of edge_index: one line.
    """
    if not hasattr(data, "to_dict"):
        raise ValueError(f"{name} is a {type(data).__name__}; expected a Data or HeteroData.")
    return from_mapping(data.to_dict(), ReadOptions(undirected=undirected, task=task), name=name)

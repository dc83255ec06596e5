"""Mini-batches as DGL blocks, for models written with dgl.nn, and DGL's graphs as input. The only module that imports
dgl, and only on use.

A block is DGL's bipartite graph of one layer; an MFG has the same node order (destinations first), so a block is
the MFG's CSC arrays under another type. For comparisons the module also hands a graph to DGL and makes DGL's own
samplers, which give such blocks themselves. Graphs come from DGL in memory, or as dgl.save_graphs wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs import ReadOptions, dgl_memory
from fastsample_dist.graph.inputs.heterogeneous import flatten
from fastsample_dist.sampling.arrays import check_graph
from fastsample_dist.sampling.mfg import MFG, MiniBatch, check_batch

if TYPE_CHECKING:
    from dgl import DGLGraph

INT32_MAX = 2**31 - 1
WEIGHTS = "weight"  # name of the edge weights on DGL's graph
COEFFICIENTS = "coefficient"  # name of what a sampler computed for every edge
ROW_SUMS = "row_sum"  # of what it divides a row's sum by
SEED_WEIGHTS = "seed_weight"  # of what it multiplies the seeds' losses by


def require_dgl(user: str) -> ModuleType:
    """The dgl package.

    Args:
      user: what needs it, for the message.
    Raises:
      ImportError: dgl is missing or does not fit the installed torch; the message names the extra to install.
    """
    try:
        import dgl
    except (ImportError, OSError) as error:  # OSError: dgl's own libraries do not fit the installed torch
        raise ImportError(
            f"{user} needs dgl, which cannot be imported ({error}); run `pip install fastsample_dist[dgl]`."
        ) from error
    return dgl


def _block(dgl: ModuleType, mfg: MFG) -> DGLGraph:
    narrow = mfg.indices.dtype == torch.int32 and mfg.num_edges <= INT32_MAX
    id_dtype = torch.int32 if narrow else torch.int64  # DGL wants offsets and ids of one type
    numbers = torch.arange(mfg.num_edges, dtype=id_dtype, device=mfg.indices.device)  # DGL 1.1.3's SpMM reads them
    edges = ("csc", (mfg.indptr.to(id_dtype), mfg.indices.to(id_dtype), numbers))
    block = dgl.create_block(
        edges, num_src_nodes=mfg.num_src, num_dst_nodes=mfg.num_dst, idtype=id_dtype, device=mfg.indices.device
    )
    block.srcdata[dgl.NID] = mfg.src_nodes
    block.dstdata[dgl.NID] = mfg.dst_nodes
    if mfg.edge_ids is not None:
        block.edata[dgl.EID] = mfg.edge_ids
    if mfg.edge_values is not None:
        block.edata[WEIGHTS] = mfg.edge_values
    if mfg.edge_weights is not None:
        block.edata[COEFFICIENTS] = mfg.edge_weights
    if mfg.row_sums is not None:
        block.dstdata[ROW_SUMS] = mfg.row_sums
    return block


def to_blocks(batch: MiniBatch) -> list[DGLGraph]:
    """The MFGs of a mini-batch as DGL blocks, input side first.

    Args:
      batch: a mini-batch; its features and labels may be missing.
    Returns:
      One block per MFG. Edge e of a block is edge e of the MFG; `srcdata[dgl.NID]` and `dstdata[dgl.NID]` are node
      ids of the graph. When the batch has edge ids, they are `edata[dgl.EID]`, int64: positions in the graph's
      `indices`, the edge ids of `to_graph` too. Stored weights of the edges are `edata["weight"]`, when the batch has
      them (`edge_values`); the sampler's coefficients (`edge_weights`) are `edata["coefficient"]` and what it
      divides a row's weighted sum by (`row_sums`) is `dstdata["row_sum"]`. The last block has `dstdata["seed_weight"]`,
      factors of the losses, when the batch has `seed_weights`. The first
      block has `srcdata["feat"]` [num_inputs, feature_dim] when the batch has features, the last one `dstdata["label"]`
      int64 [num_seeds] when it has labels.
    Raises:
      ImportError: dgl is missing or does not fit the installed torch; the message names the extra to install.
      ValueError: it is no mini-batch.
    Cost: O(edges of the batch) for the offsets; features are not copied.
    """
    dgl = require_dgl("to_blocks")
    check_batch(batch)
    blocks = [_block(dgl, mfg) for mfg in batch.mfgs]
    if blocks and batch.features is not None:
        blocks[0].srcdata["feat"] = batch.features
    if blocks and batch.labels is not None:
        blocks[-1].dstdata["label"] = batch.labels
    if blocks and batch.seed_weights is not None:
        blocks[-1].dstdata[SEED_WEIGHTS] = batch.seed_weights
    return blocks


def to_graph(graph: CSCGraph) -> DGLGraph:
    """The topology as DGL's graph, as its samplers want it: int64, in-neighbour lists (CSC) only.

    Args:
      graph: in-neighbour lists; weights become the edge data "weight".
    Raises:
      ImportError: see `to_blocks`.
      ValueError: it is no CSCGraph.
    Cost: int32 ids are copied to int64; offsets, int64 ids and weights are shared.
    """
    dgl = require_dgl("to_graph")
    check_graph(graph)
    edges = ("csc", (graph.indptr, graph.indices.long(), torch.empty(0, dtype=torch.int64)))
    made = dgl.graph(edges, num_nodes=graph.num_nodes).formats("csc")
    if graph.weights is not None:
        made.edata[WEIGHTS] = graph.weights
    return made


def block_sampler(
    graph: DGLGraph, fanouts: Sequence[int], *, fused: bool = True, replace: bool = False, method: str = "uniform"
) -> Callable[[Tensor], list[DGLGraph]]:
    """DGL's own sampler of mini-batches, without its loader.

    Args:
      graph: from `to_graph`.
      fanouts: neighbours per node and hop, in our order, from the seeds outwards; -1 takes all.
      fused: DGL's kernel that samples and relabels in one (NeighborSampler(fused=True)).
      replace: draw with replacement.
      method: "uniform", "weighted" by the edge data "weight", or "labor" (DGL's LaborSampler, which is not fused).
    Returns:
      A function of int64 seeds, unique, that returns one block per hop, input side first. The table of all
      nodes that the fused kernel keeps between calls lives as long as the function.
    Raises:
      ValueError: a combination that DGL does not have.
    """
    dgl = require_dgl("block_sampler")
    inwards = list(reversed(fanouts))  # DGL lists the input side first
    if method == "labor":
        if fused or replace:
            raise ValueError("DGL's LABOR sampler is neither fused nor with replacement; pass fused=replace=False.")
        sampler = dgl.dataloading.LaborSampler(inwards)
    else:
        if method not in ("uniform", "weighted"):
            raise ValueError(f"DGL has no sampler of method {method!r}; pass 'uniform', 'weighted' or 'labor'.")
        weights = {"prob": WEIGHTS} if method == "weighted" else {}
        sampler = dgl.dataloading.NeighborSampler(inwards, replace=replace, fused=fused, **weights)
    return lambda seeds: sampler.sample_blocks(graph, seeds)[2]


def pinsage_neighbours(
    graph: CSCGraph, *, num_walks: int, walk_length: int, num_neighbors: int, end_probability: float
) -> Callable[[Tensor], DGLGraph]:
    """DGL's own sampler of PinSAGE's neighbourhoods of one hop, on a graph of one type.

    Args:
      graph: in-neighbour lists, which DGL gets as the out-edges that it walks along.
      num_walks, walk_length, num_neighbors, end_probability: see PinSAGESampler. DGL counts the visits to the node
        where the walks begin, too.
    Returns:
      A function of int64 seeds, unique, that returns a graph of all nodes with the edges from their neighbours, and
      visits as the edge data "weight".
    Raises:
      ImportError: see `to_blocks`.
    """
    return require_dgl("pinsage_neighbours").sampling.RandomWalkNeighborSampler(
        _along_lists(graph), walk_length, end_probability, num_walks, num_neighbors, weight_column=WEIGHTS
    )


def pinsage_sampler(
    graph: CSCGraph, *, num_walks: int, walk_length: int, num_neighbors: int, num_layers: int, end_probability: float
) -> Callable[[Tensor], list[DGLGraph]]:
    """DGL's own sampler of PinSAGE's neighbourhoods on a graph of one type, without its loader.

    Args:
      graph, num_walks, walk_length, num_neighbors, end_probability: see `pinsage_neighbours`.
      num_layers: hops.
    Returns:
      A function of int64 seeds, unique, that returns one block per hop, input side first, with visits as the edge data
      "weight".
    Raises:
      ImportError: see `to_blocks`.
    """
    dgl = require_dgl("pinsage_sampler")
    neighbours = pinsage_neighbours(
        graph, num_walks=num_walks, walk_length=walk_length, num_neighbors=num_neighbors,
        end_probability=end_probability,
    )  # fmt: skip

    def sample(seeds: Tensor) -> list[DGLGraph]:
        blocks: list[DGLGraph] = []
        for _ in range(num_layers):
            found = neighbours(seeds)
            block = dgl.to_block(found, seeds)
            block.edata[WEIGHTS] = found.edata[WEIGHTS][block.edata[dgl.EID]].float()
            blocks.insert(0, block)
            seeds = block.srcdata[dgl.NID]
        return blocks

    return sample


def weighted_mean(block: DGLGraph, rows: Tensor) -> Tensor:
    """Means of the sources' rows by the edge data "weight", [num_dst, width]: DGL's messages; 0 without edges.

    Args:
      block: of `pinsage_sampler`.
      rows: [num_src, width].
    """
    messages = require_dgl("weighted_mean").function
    with block.local_scope():
        block.srcdata["row"] = rows
        block.update_all(messages.u_mul_e("row", WEIGHTS, "part"), messages.sum("part", "total"))
        block.update_all(messages.copy_e(WEIGHTS, "part"), messages.sum("part", "weights"))
        return block.dstdata["total"] / block.dstdata["weights"].clamp(min=1).unsqueeze(1)


def input_nodes(blocks: Sequence[DGLGraph]) -> Tensor:
    """The nodes whose features a sampler's blocks need, in the order of their rows."""
    return blocks[0].srcdata[require_dgl("input_nodes").NID]


def sage_conv(in_width: int, out_width: int, aggregator: str) -> nn.Module:
    """DGL's layer of GraphSAGE, called with a block and the rows of its sources.

    Args:
      in_width, out_width: columns of a row.
      aggregator: "mean": W_1 own row + W_2 mean of the neighbours' rows + b, or "gcn": W mean of all of these + b.
    """
    return require_dgl("sage_conv").nn.SAGEConv(in_width, out_width, aggregator)


def walker(
    graph: CSCGraph,
    length: int,
    *,
    weighted: bool = False,
    stop: float | None = None,
    p_q: tuple[float, float] | None = None,
    device: torch.device | None = None,
) -> Callable[[Tensor], Tensor]:
    """DGL's own random walks, against the direction of the edges as this library's.

    Args:
      graph: in-neighbour lists, which DGL gets as the out-edges that it walks along.
      length: nodes that a walk adds, at most.
      weighted: by graph.weights.
      stop: probability to end after every step; None: never.
      p_q: node2vec's return and in-out parameters; None: walks of first order.
      device: that walks; None: the graph's.
    Returns:
      A function of roots there, int64 [num_walks], that returns int64 [num_walks, length + 1], -1 behind a walk's end.
    Raises:
      ImportError: see `to_blocks`.
    """
    dgl, made = require_dgl("walker"), _along_lists(graph)
    if weighted:
        made.edata[WEIGHTS] = graph.weights
    if device is not None:
        made = made.to(device)
    prob = WEIGHTS if weighted else None
    if p_q is not None:
        return lambda roots: dgl.sampling.node2vec_random_walk(made, roots, *p_q, length, prob=prob)
    return lambda roots: dgl.sampling.random_walk(made, roots, length=length, prob=prob, restart_prob=stop)[0]


def _along_lists(graph: CSCGraph) -> DGLGraph:
    """DGL's graph whose out-edges are the in-neighbour lists, for walks."""
    edges = ("csr", (graph.indptr, graph.indices.long(), torch.empty(0, dtype=torch.int64)))
    return require_dgl("walks").graph(edges, num_nodes=graph.num_nodes).formats("csr")


def with_all_formats(graph: CSCGraph) -> DGLGraph:
    """The topology as DGL's graph in all of its formats, int64, so that none is made while something is timed.

    Raises:
      ImportError: see `to_blocks`.
    Cost: 48 bytes per edge.
    """
    dgl = require_dgl("with_all_formats")
    dst = torch.arange(graph.num_nodes).repeat_interleave(graph.in_degrees())
    made = dgl.graph((graph.indices.long(), dst), num_nodes=graph.num_nodes)
    made.create_formats_()
    return made


def saint_sampler(graph: DGLGraph, mode: str, budget: int | tuple[int, int]) -> Callable[[], DGLGraph]:
    """DGL's GraphSAINT sampler, without its loader.

    Args:
      graph: from `with_all_formats`.
      mode: "node", "edge" or "walk".
      budget: nodes or edges to draw; roots and length of walks.
    Returns:
      A function that draws one subgraph.
    """
    sampler = require_dgl("saint_sampler").dataloading.SAINTSampler(mode, budget)
    return lambda: sampler.sample(graph, None)


def node_subgraph(graph: DGLGraph, nodes: Tensor) -> DGLGraph:
    """DGL's subgraph induced by nodes, int64 and distinct."""
    return require_dgl("node_subgraph").node_subgraph(graph, nodes)


def set_num_threads(count: int) -> None:
    """Threads that DGL's kernels use from now on in this thread; where DGL shares torch's OpenMP, torch's too."""
    require_dgl("set_num_threads").utils.set_num_threads(count)


def set_rng_seed(rng_seed: int) -> None:
    """Seed of DGL's random choices."""
    require_dgl("set_rng_seed").seed(rng_seed)


def read_saved(path: Path, options: ReadOptions) -> RawGraph:
    """Read a file of dgl.save_graphs that holds one graph; a reader of format `dgl`.

    Args:
      path: the file.
      options: with `undirected` every edge counts in both directions; otherwise edges are as stored.
    Returns:
      RawGraph, see `from_graph`; DGL loads it into memory whole.
    Raises:
      ImportError: see `to_blocks`.
      ValueError: the file is missing, is none of DGL's or holds several graphs; or see `from_graph`.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing; expected a file written by dgl.save_graphs.")
    dgl = require_dgl(f"format dgl ({path})")
    try:
        graphs, _ = dgl.load_graphs(str(path))
    except (dgl.DGLError, RuntimeError, ValueError, EOFError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(f"{path} is not readable by dgl.load_graphs ({reason}); save it again.") from error
    if len(graphs) != 1:
        raise ValueError(f"{path} holds {len(graphs)} graphs; expected one; save that one alone.")
    asked = {"undirected": bool(options.undirected), "task": options.task}
    return from_graph(graphs[0], name=path.stem, where=str(path), **asked)


def from_graph(
    graph: DGLGraph,
    *,
    name: str = "graph",
    undirected: bool = False,
    task: str | None = None,
    where: str | None = None,
) -> RawGraph:
    """A DGL graph as input for partitioning: one id space, node types one after the other as in graph.ntypes.

    Args:
      graph: of one or several types. Of its node data, features ("feat", "x", ...), labels ("label", "y", ...) and
        train_mask, val_mask, test_mask are taken, of its edge data "weight"; other data are left out, with a warning,
        and edge types are joined, with one too.
      name: of the graph, for reports.
      undirected: every edge counts in both directions; reverses are added and duplicates merged.
      task: what the labels are for, one of graph.labels.TASKS; None: inferred from their shape.
      where: where the graph comes from, for messages; its name by default.
    Returns:
      RawGraph; edges of the first type first, each in the order of their ids. bfloat16 features become float32.
    Raises:
      ValueError: no DGLGraph, two names for one thing ("feat" and "x"), or data that do not fit, in one line.
    """
    return flatten(dgl_memory.typed_graph(graph, name=name, undirected=undirected, task=task, where=where), None)

"""Small drawn graphs for the operator tests."""

import torch

from fastsample_dist.graph.csc import CSCGraph


def random_csc(num_nodes: int = 60, num_edges: int = 700, seed: int = 0, dtype: torch.dtype = torch.int32) -> CSCGraph:
    """A multigraph with self-loops, parallel edges and nodes without in-edges; orig_ids are far apart."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(0, num_nodes, (num_edges,), generator=generator)
    dst = torch.randint(0, num_nodes * 3 // 4, (num_edges,), generator=generator)  # a quarter has no in-edge
    graph = CSCGraph.from_edge_index(src, dst, num_nodes)
    orig_ids = torch.randperm(num_nodes, generator=generator) * (2**33 + 1)
    return CSCGraph(graph.indptr, graph.indices.to(dtype), orig_ids=orig_ids)


def random_mfg(num_dst: int, num_src: int, num_edges: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(indptr, indices) of an MFG; some destinations have no in-edge."""
    generator = torch.Generator().manual_seed(seed)
    dst = torch.randint(0, num_dst, (num_edges,), generator=generator)
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(dst, minlength=num_dst).cumsum(0)
    return indptr, torch.randint(0, num_src, (num_edges,), generator=generator).int()

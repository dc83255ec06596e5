"""Induced subgraphs, edge by edge."""

from torch import Tensor, tensor


def induced_subgraph(indptr: Tensor, indices: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets, positions in `nodes`, positions in the graph's indices of all edges between the nodes."""
    local = {node: i for i, node in enumerate(nodes.tolist())}
    offsets, sources, positions = [0], [], []
    for node in nodes.tolist():
        for position in range(int(indptr[node]), int(indptr[node + 1])):
            if int(indices[position]) in local:
                sources.append(local[int(indices[position])])
                positions.append(position)
        offsets.append(len(sources))
    return tensor(offsets), tensor(sources, dtype=indices.dtype), tensor(positions, dtype=indptr.dtype)

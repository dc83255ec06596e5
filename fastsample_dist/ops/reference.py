"""Oracles: every operator once more, slow and obvious, in plain Python and torch.

Written from the definitions (Philox's paper, Floyd's selection, Lemire's bounded draw), not from the kernels, and
free of the compiled core. Tests compare kernels with these by exact equality.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

MASK32, MASK64 = 2**32 - 1, 2**64 - 1
SAMPLING, DROPOUT = 1, 2


def philox(key: tuple[int, int], counter: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC'11): four 32-bit words for a 64-bit key and a 128-bit counter."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def stage_key(rng_seed: int, domain: int, stage: int, step: int) -> tuple[int, int]:
    """Key of one hop's or one layer's streams."""
    words = philox((rng_seed & MASK32, rng_seed >> 32), (domain, stage, step & MASK32, step >> 32))
    return words[0], words[1]


def node_words(key: tuple[int, int], orig_id: int, first_block: int = 0) -> Iterator[int]:
    """The endless stream of 32-bit words of one node."""
    block = first_block
    while True:
        yield from philox(key, (block & MASK32, block >> 32, orig_id & MASK32, orig_id >> 32))
        block += 1


def below(words: Iterator[int], n: int) -> int:
    """Uniform in 0 .. n - 1: multiply by n, keep the high word, reject what would bias it (Lemire, 2019)."""
    bits = 32 if n < 2**32 else 64
    while True:
        word = next(words)
        if bits == 64:
            word |= next(words) << 32
        product = word * n
        if product & (2**bits - 1) >= 2**bits % n:
            return product >> bits


def pick(words: Iterator[int], degree: int, fanout: int, replace: bool) -> list[int]:
    """Positions taken out of 0 .. degree - 1, in the order they are drawn (Floyd's selection)."""
    if fanout == -1 or (not replace and degree <= fanout):
        return list(range(degree))
    if replace:
        return [below(words, degree) for _ in range(fanout)] if degree else []
    taken: list[int] = []
    for last in range(degree - fanout, degree):
        drawn = below(words, last + 1)
        taken.append(last if drawn in taken else drawn)
    return taken


def sample_neighbors(
    graph: tuple[Tensor, Tensor, Tensor | None],
    rows: Tensor,
    fanout: int,
    key: tuple[int, int, int],
    replace: bool = False,
) -> tuple[Tensor, Tensor]:
    """One hop. graph: (indptr, indices, orig_ids or None); key: (rng_seed, step, hop)."""
    indptr, indices, orig_ids = graph
    rng_seed, step, hop = key
    hop_key = stage_key(rng_seed, SAMPLING, hop, step)
    offsets, neighbors = [0], []
    for row in rows.tolist():
        start, end = int(indptr[row]), int(indptr[row + 1])
        words = node_words(hop_key, row if orig_ids is None else int(orig_ids[row]))
        neighbors += [int(indices[start + position]) for position in pick(words, end - start, fanout, replace)]
        offsets.append(len(neighbors))
    return torch.tensor(offsets), torch.tensor(neighbors, dtype=indices.dtype)


def compact(dst_nodes: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor]:
    """Local ids in order of first appearance, destinations first."""
    local = {node: i for i, node in enumerate(dst_nodes.tolist())}
    indices = [local.setdefault(node, len(local)) for node in neighbors.tolist()]
    return torch.tensor(list(local), dtype=dst_nodes.dtype), torch.tensor(indices, dtype=neighbors.dtype)


def sample_mfg(
    graph: tuple[Tensor, Tensor, Tensor | None],
    seeds: Tensor,
    fanouts: Sequence[int],
    key: tuple[int, int],
    replace: bool = False,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """All hops: sample, then relabel. key: (rng_seed, step)."""
    nodes, indptrs, edges = seeds, [], []
    for hop, fanout in enumerate(fanouts):
        indptr, neighbors = sample_neighbors(graph, nodes, fanout, (*key, hop), replace)
        nodes, indices = compact(nodes, neighbors)
        indptrs.append(indptr)
        edges.append(indices)
    return nodes, indptrs, edges


def bucket_by_part(ids: Tensor, part_ranges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Stable sort by owner."""
    ranges = part_ranges.tolist()
    owner = [max(p for p in range(len(ranges) - 1) if ranges[p] <= node) for node in ids.tolist()]
    order = sorted(range(len(owner)), key=owner.__getitem__)
    places = torch.empty(len(order), dtype=torch.int64)
    places[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(order))
    counts = torch.tensor([owner.count(p) for p in range(len(ranges) - 1)])
    return ids[torch.tensor(order, dtype=torch.int64)], counts, places


def gather_rows(rows: Tensor, ids: Tensor) -> Tensor:
    """Row by row."""
    picked = [rows[i] for i in ids.tolist()]
    return torch.stack(picked) if picked else rows[:0].clone()


def merge_rows(own: Tensor, fetched: Tensor, places: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Row by row, converted."""
    dtype = own.dtype if dtype is None else dtype
    picked = [(own[p] if p >= 0 else fetched[-1 - p]).to(dtype) for p in places.tolist()]
    return torch.stack(picked) if picked else own[:0].to(dtype)


def aggregate(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None = None, *, reduce: str = "sum"
) -> Tensor:
    """Edge by edge in stored order; differentiable by autograd. bfloat16 is accumulated in float32."""
    real = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    out = []
    for dst in range(indptr.numel() - 1):
        messages = []
        for edge in range(int(indptr[dst]), int(indptr[dst + 1])):
            row = x[int(indices[edge])].to(real)
            if weights is not None:
                per_head = weights[edge].reshape(-1).to(real)
                row = row * per_head.repeat_interleave(row.numel() // per_head.numel())
            messages.append(row)
        out.append(_reduce_rows(messages, reduce, x.new_zeros(x.shape[1], dtype=real)))
    return torch.stack(out).to(x.dtype) if out else x[:0]


def aggregate_concat(
    indptr: Tensor, indices: Tensor, x: Tensor, weights: Tensor | None = None, *, reduce: str = "mean"
) -> Tensor:
    """Own rows beside the aggregate."""
    aggregated = aggregate(indptr, indices, x, weights, reduce=reduce)
    return torch.cat([x[: aggregated.shape[0]], aggregated], dim=1)


def _reduce_rows(messages: list[Tensor], reduce: str, zeros: Tensor) -> Tensor:
    if not messages:
        return zeros
    if reduce == "max":
        stacked = torch.stack(messages)
        first = stacked.detach().argmax(dim=0)
        for row in range(len(messages) - 1, -1, -1):  # argmax may return any of equals: take the first
            first = torch.where(stacked.detach()[row] == stacked.detach().amax(dim=0), row, first)
        return stacked.gather(0, first.unsqueeze(0)).squeeze(0)
    total = zeros
    for message in messages:
        total = total + message
    return total / len(messages) if reduce == "mean" else total


def dropout_factors(node_ids: Tensor, width: int, p: float, key: tuple[int, int, int]) -> Tensor:
    """float64 [n, width]: 0 where an element drops, else 1 / (1 - p). key: (rng_seed, step, layer).

    Column c of a group of 128 columns, r = c % 128, uses word r // 32, half r // 16 % 2, of block
    16 * (c // 128) + r % 16 of the node's stream.
    """
    rng_seed, step, layer = key
    threshold = round(p * 65536)
    layer_key = stage_key(rng_seed, DROPOUT, layer, step)
    factors = torch.empty(node_ids.numel(), width, dtype=torch.float64)
    for row, node in enumerate(node_ids.tolist()):
        for column in range(width):
            rest = column % 128
            block = 16 * (column // 128) + rest % 16
            counter = (block & MASK32, block >> 32, node & MASK32, node >> 32)
            word = philox(layer_key, counter)[rest // 32]
            variate = word >> 16 if rest // 16 % 2 else word & 0xFFFF
            factors[row, column] = 65536 / (65536 - threshold) if variate >= threshold else 0
    return factors


def act_dropout(
    x: Tensor, node_ids: Tensor, key: tuple[int, int, int], *, p: float, activation: str = "relu"
) -> Tensor:
    """Activation times the factors; differentiable by autograd. bfloat16 is computed in float32."""
    real = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    activated = torch.relu(x.to(real)) if activation == "relu" else x.to(real)
    return (activated * dropout_factors(node_ids, x.shape[1], p, key).to(real)).to(x.dtype)


def sage_layer(indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The layer without activation, in one dtype; differentiable by autograd."""
    own = x[: indptr.numel() - 1]
    y = torch.cat([own, aggregate(indptr, indices, x, reduce="mean")], dim=1) @ weight.t()
    return y if bias is None else y + bias

"""stream_partition: put every node into a part in one pass over the neighbour lists, within capacities."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.ops import checks, library

SCORE_CODES = {"ldg": 0, "fennel": 1}
NUM_LIMITS = 10  # nodes, in-edges, nodes of each of 8 kinds
NO_LIMIT = 2**63 - 1
library.DECLARED.values(FS_LDG=SCORE_CODES["ldg"], FS_FENNEL=SCORE_CODES["fennel"], FS_STREAM_LIMITS=NUM_LIMITS)


@dataclass(frozen=True, kw_only=True)
class StreamRule:
    """How a node chooses its part.

    Attributes:
      score: "ldg" or "fennel".
      num_parts: number of parts, at least 1.
      capacities: 10 integers >= 1: the most nodes, in-edges, and nodes of each of 8 kinds that a part may hold;
        NO_LIMIT where any number may be.
      alpha: weight of Fennel's cost; sqrt(num_parts) * (number of edges) / num_nodes ** 1.5 in the paper.
      rng_seed: decides between parts that are equal in everything else.
    """

    score: str
    num_parts: int
    capacities: tuple[int, ...]
    alpha: float = 0.0
    rng_seed: int = 0


def stream_partition(
    indptr: Tensor,
    indices: Tensor,
    parts: Tensor,
    rule: StreamRule,
    *,
    order: Tensor | None = None,
    in_edges: Tensor | None = None,
    kinds: Tensor | None = None,
    rows_by_turn: bool = False,
) -> Tensor:
    """Let every node leave its part, if it has one, and take the best of those that have room for it.

    With n = neighbours in a part and fill = the part's largest load as a share of the capacity, a part scores
    n * (1 - fill) by "ldg" and n - alpha * 1.5 * sqrt(fill * capacities[0]) by "fennel"; with a limit on nodes alone
    these are the papers' rules. Of equals the least full one, then the first, counting from a part drawn from
    (rng_seed, node). Where no part has room, the node takes the one that is exceeded least.

    Args:
      indptr: int64 [num_nodes + 1]; offsets, non-decreasing.
      indices: int32 | int64 [num_edges]; neighbours of each node.
      parts: int32 [num_nodes]; part of each node so far, -1: none.
      rule: score, number of parts, capacities, seed.
      order: int64 [num_nodes]; the nodes in the order in which they come, each once. None: ascending.
      in_edges: int64 [num_nodes]; what each node counts against capacities[1]. None: its number of neighbours.
      kinds: uint8 [num_nodes]; bit k counts against capacities[2 + k]. None: no node is of any kind.
      rows_by_turn: in indices the rows lie one after the other in the order in which the nodes come, and indptr says
        only how long each is.
    Returns:
      int32 [num_nodes]; part of each node.
    Raises:
      ValueError: an id, a part, a capacity or an offset out of range, a shape or dtype mismatch.
    Source: Stanton & Kliot, KDD 2012; Tsourakakis et al., WSDM 2014; Nishimura & Ugander, KDD 2013 (several passes).
    Cost: O(num_edges + num_nodes * num_parts); memory of O(num_nodes + num_parts), rows are read once, in order.
    Deterministic: yes.
    """
    checks.tensors(indptr=indptr, indices=indices, parts=parts)
    checks.on_host(indptr=indptr, indices=indices, parts=parts, order=order, in_edges=in_edges, kinds=kinds)
    capacities = torch.tensor(rule.capacities, dtype=torch.int64)
    # Not by torch's dispatcher: an interrupt may leave the call at work on a daemon thread. If it returns while the
    # interpreter ends, Python unwinds the thread, and frames of C++ in between would abort the process.
    return _stream_partition_cpu(
        indptr, indices, parts, [order, in_edges, kinds], capacities, rule.num_parts, rule.score, rule.alpha,
        rule.rng_seed, rows_by_turn,
    )  # fmt: skip


def _stream_partition_cpu(
    indptr: Tensor,
    indices: Tensor,
    parts: Tensor,
    columns: list[Tensor | None],
    capacities: Tensor,
    num_parts: int,
    score: str,
    alpha: float,
    rng_seed: int,
    rows_by_turn: bool,
) -> Tensor:
    checks.require(score in SCORE_CODES, f"score is {score!r}; expected {' or '.join(SCORE_CODES)}.")
    num_parts = checks.whole("num_parts", num_parts, 1, 2**31 - 1)
    rng_seed = checks.whole("rng_seed", rng_seed, 0, checks.LARGEST)
    indptr = checks.vector("indptr", indptr, (torch.int64,))
    checks.require(indptr.numel() >= 1, "indptr is empty; expected at least one offset.")
    indices = checks.vector("indices", indices, checks.ID_DTYPES)
    num_nodes = indptr.numel() - 1
    parts = checks.vector("parts", parts, (torch.int32,), num_nodes).clone()
    capacities = checks.vector("capacities", capacities, (torch.int64,), NUM_LIMITS)
    order, in_edges, kinds = (
        None if column is None else checks.vector(name, column, (dtype,), num_nodes)
        for name, column, dtype in zip(
            ("order", "in_edges", "kinds"), columns, (torch.int64, torch.int64, torch.uint8), strict=True
        )
    )
    spec = library.Stream(
        indptr.data_ptr(), indices.data_ptr(), library.address(order), library.address(in_edges),
        library.address(kinds), capacities.data_ptr(), num_nodes, indices.numel(), num_parts,
        library.type_code(indices), SCORE_CODES[score], int(rows_by_turn), alpha, rng_seed,
    )  # fmt: skip
    library.call(library.core().fs_stream_partition, ctypes.byref(spec), parts.data_ptr())
    return parts


SCHEMAS = {
    "stream_partition": (
        "(Tensor indptr, Tensor indices, Tensor parts, Tensor?[] columns, Tensor capacities, int num_parts, str score, "
        "float alpha, int rng_seed, bool rows_by_turn) -> Tensor",
        _stream_partition_cpu,
    )
}

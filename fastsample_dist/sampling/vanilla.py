"""The vanilla scheme: topology is split too, and a rank knows the in-edges of its own nodes only.

The first hop starts from own seeds and is local. In every further hop the rank asks the owners of the frontier's nodes
(comm/owners.py: `sample_ids` out, `sample_reply` back), and every owner draws for the ids that it is asked for:
2 (L - 1) payload exchanges for L hops (FastSample, section 3.3). Because a draw depends on the node alone, the
mini-batches equal those of the hybrid scheme bit for bit, and it does not matter who draws: where ranks share a machine
(comm/machine.py), each samples the rows of all of them and asks the owners on other machines only.

A pick travels as 1 to 3 integers: the source id; where the spec asks for edge ids, the edge's position in the whole
graph; where stored weights are wanted, the weight's bits. With edge ids all of it is int64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.names import rank_names
from fastsample_dist.comm.owners import Lists, ask_owners, join_lists
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.ops import SampleSpec
from fastsample_dist.ops.kernel_choice import COOPERATIVE, PERSISTENT, KernelReport
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.layered import LayeredSampler, LocalHops, Picks
from fastsample_dist.sampling.sampler import integer_ids

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}  # of a weight, as it travels


class OwnerHops:
    """Picks for any nodes, each drawn by its owner, or here where this rank has the node's row.

    Args:
      here: picks for the rows that this rank has.
      book: node ranges of the ranks.
      comm: carries requests and replies.
      ranks: whose nodes' rows `here` has; this rank among them.
      exchanges: whether any rank ever asks another.
    """

    def __init__(
        self, here: LocalHops, book: PartitionBook, comm: Communicator, ranks: Sequence[int], *, exchanges: bool
    ) -> None:
        self.here, self.book, self.comm, self.exchanges = here, book, comm, exchanges
        self._is_near = torch.zeros(book.num_parts, dtype=torch.bool)  # by rank; this rank's nodes are grouped anyway
        self._is_near[[rank for rank in ranks if rank != comm.rank]] = True

    def neighbors(self, nodes: Tensor, hop: int, step: int) -> Picks:
        """See HopSource. Collective below hop 0, whose nodes are this rank's own: two payload exchanges, or none."""
        if hop == 0 or not self.exchanges:
            return self.here.neighbors(nodes, hop, step)
        if not bool(self._is_near.any()):
            return self._unpacked(*self._asked(nodes, hop, step))
        is_near = self._is_near.to(nodes.device)[self.book.nid2part(nodes)]
        far_indptr, far_values = self._asked(nodes[~is_near], hop, step)
        near = self.here.neighbors(nodes[is_near], hop, step)
        order = torch.empty(nodes.numel(), dtype=torch.int64, device=nodes.device)
        num_near = near.indptr.numel() - 1
        order[is_near] = torch.arange(num_near, device=nodes.device)
        order[~is_near] = torch.arange(num_near, nodes.numel(), device=nodes.device)
        near_lists = Lists(near.indptr.diff(), _packed(near))
        return self._unpacked(*join_lists(near_lists, Lists(far_indptr.diff(), far_values), order))

    def _asked(self, nodes: Tensor, hop: int, step: int) -> tuple[Tensor, Tensor]:
        """Packed picks for nodes, each drawn by its owner; two payload exchanges."""
        request = ask_owners(nodes, self.book.part_ranges, self.comm, purpose="sample_ids")
        own = self.here.neighbors(request.own, hop, step)
        answer = self.here.neighbors(request.asked, hop, step)
        received = request.reply_lists(answer.indptr, _packed(answer), purpose="sample_reply")
        return request.lists_in_order(Lists(own.indptr.diff(), _packed(own)), received)

    def _unpacked(self, indptr: Tensor, columns: Tensor) -> Picks:
        edge_ids = columns[1] if len(columns) > 1 else None
        values = None
        if len(columns) > 2:
            dtype = self.here.graph.weights.dtype
            values = columns[2].to(_BITS[dtype]).view(dtype)
        return Picks(indptr, columns[0], edge_ids, values)


def _packed(picks: Picks) -> Tensor:
    """Picks as they travel, [1 to 3, num_picks]."""
    if picks.edge_ids is None:
        return picks.neighbors.unsqueeze(0)
    columns = [picks.neighbors.long(), picks.edge_ids]
    if picks.edge_values is not None:
        columns.append(picks.edge_values.view(_BITS[picks.edge_values.dtype]).long())
    return torch.stack(columns)


class VanillaSampler(LayeredSampler):
    """Samples with the help of the other ranks. `sample` is collective: every rank must call it, with the same step.

    Args:
      own_graph: rows of the nodes of `ranks`, all from the first rank's to the last's (row 0 is the first's first
        node), sources as ids of the whole graph.
      book: node ranges of the ranks.
      comm: carries requests and replies.
      spec: method, fanouts, generator key, threads.
      orig_ids: int64 [num_nodes], original id of every node (the node map that every machine holds).
      kernel: of a GPU, see NeighborSampler; rows are drawn hop by hop, so "persistent" and "cooperative" are not
        for this scheme.
      first_edge: position of own_graph's first edge in the whole graph's `indices`, for edge ids.
      edge_values: return the stored weights of the sampled edges too; needs spec.edge_ids.
      ranks: whose nodes are sampled here, such as those of this machine's ranks; (): this rank's own.
      exchanges: whether any rank ever asks another, the same on all ranks: False where all ranks have all rows.
    Raises:
      ValueError: own_graph does not have one row per node of these ranks; a spec that asks for weights that the graph
        lacks; edge_values without weights or edge ids; a kernel for all hops, or one for the CPU.
    """

    _trusts_source = True

    def __init__(
        self, own_graph: CSCGraph, book: PartitionBook, comm: Communicator, spec: SampleSpec, orig_ids: Tensor,
        *, kernel: str = "auto", first_edge: int = 0, edge_values: bool = False, ranks: Sequence[int] = (),
        exchanges: bool = True,
    ) -> None:  # fmt: skip
        ranks = ranks or (comm.rank,)
        self._lo, self._hi = book.part2range(comm.rank)
        first_node, end_node = book.part2range(min(ranks))[0], book.part2range(max(ranks))[1]
        if own_graph.num_nodes != end_node - first_node:
            raise ValueError(
                f"own_graph has {own_graph.num_nodes} rows but {rank_names(sorted(ranks))} own "
                f"{end_node - first_node} nodes; pass the rows of this rank's range."
            )
        if kernel in (PERSISTENT, COOPERATIVE):
            raise ValueError(
                f"kernel is {kernel!r}, which draws all hops at once, but the vanilla scheme asks other ranks between "
                "two hops; pass kernel='auto', or use scheme 'hybrid'."
            )
        own = LocalHops(
            own_graph, spec, kernel=kernel, edge_values=edge_values, first_node=first_node, first_edge=first_edge,
            src_orig_ids=orig_ids,
        )  # fmt: skip
        hops = OwnerHops(own, book, comm, ranks, exchanges=exchanges)
        super().__init__(hops, len(spec.fanouts), rng_seed=spec.rng_seed, orig_ids=orig_ids)
        self.comm, self._own, self._exchanges = comm, own, exchanges

    def kernel_report(self) -> list[KernelReport]:
        """What kernel "auto" has measured and chosen so far, by kind of batch; empty on the CPU."""
        return arrays.kernel_report(self._own.arrays)

    def num_payload_exchanges(self) -> int:
        """2 for every hop below the first; 0 where all ranks have all rows."""
        return 2 * (self.num_hops - 1) if self._exchanges else 0

    def _node_ids(self, seeds: Tensor | Sequence[int]) -> Tensor:
        """Seeds on the device, all of them own nodes."""
        graph = self._own.graph
        ids = integer_ids(seeds)
        if ids.numel():
            low, high = (int(bound) for bound in torch.aminmax(ids))
            if low < self._lo or high >= self._hi:
                raise ValueError(
                    f"seeds holds node ids from {low} to {high}; in the vanilla scheme rank {self.comm.run_rank} can "
                    f"only start from its own nodes {self._lo} to {self._hi - 1}."
                )
        return ids.to(graph.device, graph.indices.dtype)

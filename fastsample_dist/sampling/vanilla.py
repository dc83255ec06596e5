"""The vanilla scheme: topology is split too, and a rank knows the in-edges of its own nodes only.

The first hop starts from own seeds and is local. In every further hop the rank asks the owners of the frontier's nodes
(comm/owners.py: `sample_ids` out, `sample_reply` back), and every owner draws for the ids that it is asked for:
2 (L - 1) payload exchanges for L hops (FastSample, section 3.3). Because a draw depends on the node alone, the
mini-batches equal those of the hybrid scheme bit for bit.

A pick travels as 1 to 3 integers: the source id; where the spec asks for edge ids, the edge's position in the whole
graph; where stored weights are wanted, the weight's bits. With edge ids all of it is int64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.owners import Lists, ask_owners
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.ops import SampleSpec
from fastsample_dist.ops.kernel_choice import PERSISTENT, KernelReport
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.layered import LayeredSampler, LocalHops, Picks
from fastsample_dist.sampling.sampler import integer_ids

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}  # of a weight, as it travels


class OwnerHops:
    """Picks for any nodes, each drawn by its owner.

    Args:
      own: picks for this rank's nodes.
      book: node ranges of the ranks.
      comm: carries requests and replies.
    """

    def __init__(self, own: LocalHops, book: PartitionBook, comm: Communicator) -> None:
        self.own, self.book, self.comm = own, book, comm

    def neighbors(self, nodes: Tensor, hop: int, step: int) -> Picks:
        """See HopSource. Collective below hop 0, whose nodes are this rank's own: two payload exchanges."""
        if hop == 0:
            return self.own.neighbors(nodes, hop, step)
        request = ask_owners(nodes, self.book.part_ranges, self.comm, purpose="sample_ids")
        own = self.own.neighbors(request.own, hop, step)
        answer = self.own.neighbors(request.asked, hop, step)
        received = request.reply_lists(answer.indptr, _packed(answer), purpose="sample_reply")
        return self._unpacked(*request.lists_in_order(Lists(own.indptr.diff(), _packed(own)), received))

    def _unpacked(self, indptr: Tensor, columns: Tensor) -> Picks:
        edge_ids = columns[1] if len(columns) > 1 else None
        values = None
        if len(columns) > 2:
            dtype = self.own.graph.weights.dtype
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
      own_graph: rows of this rank's nodes only (row i is node lo + i), sources as ids of the whole graph.
      book: node ranges of the ranks.
      comm: carries requests and replies.
      spec: method, fanouts, generator key, threads.
      orig_ids: int64 [num_nodes], original id of every node (the node map that every machine holds).
      kernel: of a GPU, see NeighborSampler; rows are drawn hop by hop, so "persistent" is not for this scheme.
      first_edge: position of own_graph's first edge in the whole graph's `indices`, for edge ids.
      edge_values: return the stored weights of the sampled edges too; needs spec.edge_ids.
    Raises:
      ValueError: own_graph does not have one row per own node; a spec that asks for weights that the graph lacks;
        edge_values without weights or edge ids; kernel "persistent", or one for the CPU.
    """

    _trusts_source = True

    def __init__(
        self, own_graph: CSCGraph, book: PartitionBook, comm: Communicator, spec: SampleSpec, orig_ids: Tensor,
        *, kernel: str = "auto", first_edge: int = 0, edge_values: bool = False,
    ) -> None:  # fmt: skip
        self._lo, self._hi = book.part2range(comm.rank)
        if own_graph.num_nodes != self._hi - self._lo:
            raise ValueError(
                f"own_graph has {own_graph.num_nodes} rows but rank {comm.run_rank} owns {self._hi - self._lo} nodes; "
                "pass the rows of this rank's range."
            )
        if kernel == PERSISTENT:
            raise ValueError(
                "kernel is 'persistent', which draws all hops at once, but the vanilla scheme asks other ranks between "
                "two hops; pass kernel='auto', or use scheme 'hybrid'."
            )
        own = LocalHops(
            own_graph, spec, kernel=kernel, edge_values=edge_values, first_node=self._lo, first_edge=first_edge,
            src_orig_ids=orig_ids,
        )  # fmt: skip
        super().__init__(OwnerHops(own, book, comm), len(spec.fanouts), rng_seed=spec.rng_seed, orig_ids=orig_ids)
        self.comm, self._own = comm, own

    def kernel_report(self) -> list[KernelReport]:
        """What kernel "auto" has measured and chosen so far, by kind of batch; empty on the CPU."""
        return arrays.kernel_report(self._own.arrays)

    def num_payload_exchanges(self) -> int:
        """2 for every hop below the first."""
        return 2 * (self.num_hops - 1)

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

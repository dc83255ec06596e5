"""The vanilla scheme: topology is split too, and a rank knows the in-edges of its own nodes only.

The first hop starts from own seeds and is local. For every further hop the rank groups the frontier by owner, sends
the node ids (`sample_ids`), every owner draws for the ids it was sent, and the picks come back (`sample_reply`):
2 (L - 1) payload exchanges for L hops (FastSample, section 3.3). Because a draw depends on the node alone, the
mini-batches equal those of the hybrid scheme bit for bit.

Encoding of a reply to n ids: n pick counts, then the picked source ids in the order of the ids; where the spec asks for
edge ids, the picks' positions in the whole graph, and where stored weights are wanted, their bits. With edge ids all of
it is int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, starmap

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.comm.base import Communicator, RowPlan
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.ops import SampledHops, SampleSpec
from fastsample_dist.ops.kernel_choice import PERSISTENT, KernelReport
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.mfg import DrawKey, MiniBatch, assemble
from fastsample_dist.sampling.sampler import as_node_ids

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}  # of a weight, as it travels


class VanillaSampler:
    """Samples with the help of the other ranks.

    Args:
      own_graph: rows of this rank's nodes only (row i is node lo + i), sources as ids of the whole graph.
      book: node ranges of the ranks.
      comm: carries requests and replies.
      spec: method, fanouts, generator key, threads.
      orig_ids: int64 [num_nodes], original id of every node (the node map that every machine holds).
      kernel: of a GPU, see NeighborSampler; rows are drawn hop by hop, so "persistent" is not for this scheme.
      first_edge: position of own_graph's first edge in the whole graph's `indices`, for edge ids.
      edge_values: give the stored weights of the sampled edges too; needs spec.edge_ids.
    Raises:
      ValueError: own_graph does not have one row per own node; a spec that asks for weights that the graph lacks;
        edge_values without weights or edge ids; kernel "persistent", or one for the CPU.
    """

    def __init__(
        self, own_graph: CSCGraph, book: PartitionBook, comm: Communicator, spec: SampleSpec, orig_ids: Tensor,
        *, kernel: str = "auto", first_edge: int = 0, edge_values: bool = False,
    ) -> None:  # fmt: skip
        self._lo, self._hi = book.part2range(comm.rank)
        if own_graph.num_nodes != self._hi - self._lo:
            raise ValueError(
                f"own_graph has {own_graph.num_nodes} rows but rank {comm.rank} owns {self._hi - self._lo} nodes; "
                "pass the rows of this rank's range."
            )
        if kernel == PERSISTENT:
            raise ValueError(
                "kernel is 'persistent', which draws all hops at once, but the vanilla scheme asks other ranks between "
                "two hops; pass kernel='auto', or use scheme 'hybrid'."
            )
        self.graph, self.book, self.comm, self.spec = own_graph, book, comm, spec
        self._arrays = arrays.sampling_arrays(own_graph, spec, kernel, orig_ids)
        self._orig_ids, self._first_edge, self._edge_values = orig_ids, first_edge, edge_values
        if edge_values:
            arrays.check_edge_values(own_graph, spec)

    @property
    def device(self) -> torch.device:
        """Where batches are made."""
        return self.graph.device

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Neighbours per node and hop, hop order from the seeds outwards."""
        return self.spec.fanouts

    def kernel_report(self) -> list[KernelReport]:
        """What kernel "auto" has measured and chosen so far, by kind of batch; empty on the CPU."""
        return arrays.kernel_report(self._arrays)

    def num_payload_exchanges(self) -> int:
        """2 for every hop below the first."""
        return 2 * (len(self.fanouts) - 1)

    def sample(self, seeds: Tensor | Sequence[int], step: int = 0) -> MiniBatch:
        """Sample all hops for `seeds`. Collective: every rank must call this, with the same step.

        Args:
          seeds: unique ids of own nodes, any integer type; empty takes part with nothing to ask.
          step: global training step; part of every draw's key.
        Returns:
          MiniBatch without features and labels.
        Raises:
          ValueError: a seed that this rank does not own, duplicate seeds.
          RuntimeError: a collective failed or passed its deadline.
        """
        nodes = as_node_ids(seeds, self.graph.indices.dtype, self.book.num_nodes)
        if nodes.numel() and (int(nodes.min()) < self._lo or int(nodes.max()) >= self._hi):
            raise ValueError(
                f"seeds holds node ids from {int(nodes.min())} to {int(nodes.max())}; in the vanilla scheme rank "
                f"{self.comm.rank} can only start from its own nodes {self._lo} to {self._hi - 1}."
            )
        nodes = nodes.to(self.device)
        hops, values = SampledHops(nodes, [], [], []), []
        for hop in range(len(self.fanouts)):
            ask = self._sample_own if hop == 0 else self._sample_anywhere
            indptr, picks = ask(nodes, hop, step)
            nodes, local = ops.compact(nodes, picks[0].to(nodes.dtype))
            hops.indptrs.append(indptr)
            hops.indices.append(local)
            hops.edge_ids.extend(picks[1:2])
            values.extend(map(self._weights, picks[2:3]))
        draw, looks_up = DrawKey(self.spec.rng_seed, step), arrays.runs_kernels(self.device)
        return assemble(replace(hops, nodes=nodes), self._orig_ids, draw, look_up=looks_up, edge_values=values or None)

    def sample_many(self, seeds: Sequence[Tensor | Sequence[int]], first_step: int = 0) -> list[MiniBatch]:
        """The batches of seeds[i] at step first_step + i, one after another: each needs the other ranks.

        Collective: every rank must call this, with as many batches and the same step.
        """
        return [self.sample(own, first_step + number) for number, own in enumerate(seeds)]

    def _sample_own(self, nodes: Tensor, hop: int, step: int) -> tuple[Tensor, Tensor]:
        """Draw for own nodes: (indptr, picks [1 to 3, num_picks]: source ids, edge ids, bits of weights)."""
        indptr, neighbors, positions = self._arrays.neighbors(nodes - self._lo, self.spec, hop, step)
        if positions is None:
            return indptr, neighbors.unsqueeze(0)
        rows = [neighbors.long(), positions + self._first_edge]
        if self._edge_values:
            weights = arrays.stored_weights(self.graph, positions)
            rows.append(weights.view(_BITS[weights.dtype]).long())
        return indptr, torch.stack(rows)

    def _weights(self, bits: Tensor) -> Tensor:
        """Weights of picks, from their bits."""
        dtype = self.graph.weights.dtype
        return bits.to(_BITS[dtype]).view(dtype)

    def _sample_anywhere(self, nodes: Tensor, hop: int, step: int) -> tuple[Tensor, Tensor]:
        """As `_sample_own` for any nodes, asking their owners. Two payload exchanges."""
        grouped, counts, places = ops.bucket_by_part(nodes, self.book.part_ranges)
        groups = list(grouped.split(counts.tolist()))
        own = groups[self.comm.rank]
        groups[self.comm.rank] = own[:0]
        plan = self.comm.plan_rows([group.numel() for group in groups])
        asked = self.comm.exchange_rows(torch.cat(groups), plan, purpose="sample_ids")
        own_indptr, own_picks = self._sample_own(own, hop, step)
        replies = self._exchange_replies(asked, plan, hop, step)
        replies[self.comm.rank] = (own_indptr.diff(), own_picks)
        pick_counts = torch.cat([group_counts.long() for group_counts, _ in replies])
        picks = torch.cat([group_picks for _, group_picks in replies], dim=1)
        return _take_segments(pick_counts, picks, places)

    def _exchange_replies(self, asked: Tensor, plan: RowPlan, hop: int, step: int) -> list[tuple[Tensor, Tensor]]:
        """Answer what was asked of this rank; returns what every rank answered: (pick counts, picks)."""
        indptr, picks = self._sample_own(asked, hop, step)
        pick_counts = indptr.diff().to(picks.dtype)
        ends = [0, *accumulate(plan.recv_counts)]
        bounds = indptr[torch.tensor(ends, device=indptr.device)].tolist()  # one read-back
        messages = [
            torch.cat([pick_counts[ids], picks[:, edges].flatten()])
            for ids, edges in zip(starmap(slice, pairwise(ends)), starmap(slice, pairwise(bounds)), strict=True)
        ]
        reply_plan = self.comm.plan_rows([message.numel() for message in messages])
        received = self.comm.exchange_rows(torch.cat(messages), reply_plan, purpose="sample_reply")
        replies = received.split(reply_plan.recv_counts)
        return [
            (reply[:num_ids], reply[num_ids:].reshape(len(picks), (reply.numel() - num_ids) // len(picks)))
            for reply, num_ids in zip(replies, plan.send_counts, strict=True)
        ]


def _take_segments(counts: Tensor, values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Ragged gather: row i of the result is segment places[i] of `values`.

    Args:
      counts: int64 [n]; length of each segment.
      values: [any, sum(counts)].
      places: int64 [n]; a permutation.
    Returns:
      (indptr int64 [n + 1], values in the new order).
    """
    starts = counts.cumsum(0) - counts
    taken = counts[places]
    indptr = counts.new_zeros(places.numel() + 1)
    torch.cumsum(taken, 0, out=indptr[1:])
    shift = torch.repeat_interleave(starts[places] - indptr[:-1], taken, output_size=values.shape[1])
    return indptr, values[:, shift + torch.arange(shift.numel(), device=shift.device)]

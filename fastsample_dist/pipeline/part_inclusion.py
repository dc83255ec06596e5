"""PartInclusion: how often the subgraphs of all parts hold the nodes with a loss, where every part has its own.

With locality="own" a node may be in subgraphs of several parts, in one of part p with probability P_p(v). The parts
take turns; in one subgraph of every part v is sum(v) = sum over p of P_p(v) times on average. Loss weights by P_p(v)
alone would favour nodes that many parts reach, and those of parts with few loss nodes. These weights are

    mean of sum over the loss nodes / sum(v) * loss nodes that this step has on average / those of an average step

whichever part's subgraph v is in. The second factor is 1 where every part has as many subgraphs in each step: it makes
up for the loss being divided by the loss nodes of the step.

Sums are of integers: the same in any order, so on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fastsample_dist.comm.agree import agree
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.sampling.subgraph import SubgraphSampler

_PART_BITS = 36  # of a probability that is added up over the loss nodes
_NODE_BITS = 48  # of one that is added up over the parts: 2**15 of them fit


class PartInclusion:
    """Sums over all parts, the same on all ranks.

    Constructing is collective: every rank must do it. Purpose "setup": one all_reduce of 8 bytes per part, and, where
    seeds have weights, per loss node. Of these 4 bytes per loss node are kept.

    Args:
      data: the opened partition.
      samplers: by part, those of this rank's parts.
      loss_nodes: integer [n], ascending; of all ranks.
      weighs: whether `seed_weights` is asked for.
    Raises:
      ValueError: on all ranks, what a sampler refuses.
    """

    def __init__(
        self, data: DistData, samplers: Mapping[int, SubgraphSampler], loss_nodes: Tensor, weighs: bool
    ) -> None:
        self._loss_nodes = loss_nodes
        num_parts, num_loss = data.manifest.num_parts, loss_nodes.numel()

        def add_up() -> Tensor:
            units = torch.zeros(num_parts + 1 + (num_loss if weighs else 0), dtype=torch.int64)
            for part, sampler in samplers.items():
                chances = sampler.inclusion.node_probability(loss_nodes)
                units[part] = (chances * 2.0**_PART_BITS).round_().long().sum()
                units[num_parts] += sampler.needs_counts
                if weighs:
                    units[num_parts + 1 :] += (chances * 2.0**_NODE_BITS).round_().long()
            return units

        units = data.ctx.comm.all_reduce(agree(data.ctx, add_up), purpose="setup")
        self._found: list[int] = units[:num_parts].tolist()  # loss nodes in a subgraph of each part, on average
        self._weights = None
        if weighs:
            counted = next(iter(samplers.values())).spec.count_subgraphs if units[num_parts] else None
            self._weights = self._mean_over(units[num_parts + 1 :], counted)

    def num_subgraphs(self) -> int:
        """Subgraphs of an epoch: as many as it takes for the loss nodes to be in one of them on average.

        Raises:
          ValueError: no subgraph can hold a loss node.
        """
        total, num_loss = sum(self._found), self._loss_nodes.numel()
        if total == 0:
            raise ValueError(
                f"no subgraph can hold any of the {num_loss} loss_nodes; expected roots with in-neighbours, from which "
                "they can be reached."
            )
        return -(-(num_loss * len(self._found) << _PART_BITS) // total)

    def seed_weights(self, seeds: Tensor, first: int, count: int) -> Tensor:
        """Loss weights of a batch's seeds, float32 [n]: on average the loss is that of all loss nodes.

        Args:
          seeds: integer [n], loss nodes.
          first, count: the numbers of the step's subgraphs, on all ranks, are first .. first + count - 1.
        Source: GraphSAINT (ICLR 2020), section 3.2: 1 / lambda_v, whose law is here that of one subgraph per part.
        """
        assert self._weights is not None
        num_parts, total = len(self._found), sum(self._found)
        turns, rest = divmod(count, num_parts)
        in_step = turns * total + sum(self._found[(first + place) % num_parts] for place in range(rest))
        share = in_step * num_parts / (count * total) if total else 1.0
        return self._weights[torch.searchsorted(self._loss_nodes, seeds)] * share

    def _mean_over(self, units: Tensor, counted: int | None) -> Tensor:
        """Mean of the sums / each sum, float32; of counted subgraphs as CountedInclusion.loss_weights."""
        mean = sum(self._found) / 2.0**_PART_BITS / max(1, self._loss_nodes.numel())
        if counted is None:
            return (mean * 2.0**_NODE_BITS / units.clamp(min=1)).float()
        return (mean * (counted + 1) / (units * (counted / 2.0**_NODE_BITS) + 1)).float()

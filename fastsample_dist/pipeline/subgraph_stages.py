"""What a loader of subgraphs adds to the stages of stages.py: loss nodes of all ranks, nodes that a batch holds twice.

sample -> count the loss nodes of all ranks -> (onto the device) -> fetch each row once -> look up labels

The count is a call of its own, or rides on the plan of the exchange where features take one (exchange "paired").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.device.streams import to_device
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.stages import Fetch
from fastsample_dist.sampling.mfg import MiniBatch


@dataclass(frozen=True, eq=False)
class LossNodes:
    """The nodes of a split, of all ranks: any rank's subgraph may hold any of them.

    Attributes:
      nodes: [n] node ids of the partitioned graph, ascending; dtype of the graph's ids.
      labels: as DistData.labels, [n] or [n, num_outputs]; None where the partition has none.
      per_rank: how many are each rank's own.
    """

    nodes: Tensor
    labels: Tensor | None
    per_rank: list[int]

    def labels_of(self, nodes: Tensor) -> Tensor:
        """Labels of some of the nodes, on the device where these lie."""
        assert self.labels is not None
        return self.labels[torch.searchsorted(self.nodes, nodes)]

    def to(self, device: torch.device) -> LossNodes:
        """The same, on a device."""
        labels = None if self.labels is None else to_device(self.labels, device)
        return LossNodes(to_device(self.nodes, device), labels, self.per_rank)


def gather_loss_nodes(data: DistData, own: Tensor) -> LossNodes:
    """The loss nodes of all ranks with their labels: for classes and int32 ids 12 bytes each, on every rank.

    Collective: every rank must call this. Purposes "counts" and "setup".

    Args:
      data: the opened partition.
      own: int64 [n], ascending; this rank's.
    """
    comm = data.ctx.comm
    ids, sizes = _of_all(comm, own.to(data.graph.indices.dtype))
    labels = None if data.labels is None else _of_all(comm, data.labels_of(own))[0]
    return LossNodes(ids, labels, sizes)  # ranks own ascending ranges


def _of_all(comm: Communicator, own: Tensor) -> tuple[Tensor, list[int]]:
    """(the rows of all ranks, by rank; how many each has)."""
    peers = comm.world_size
    return comm.all_to_all_rows(own.repeat(peers, *[1] * (own.dim() - 1)), [len(own)] * peers, purpose="setup")


class CountSeeds:
    """Adds up the loss nodes of a step over all ranks: one number of 8 bytes, purpose "counts".

    A step that has none counts as one of loss 0. Where features take a plan, FetchAndCount does it.

    Args:
      comm: of the stages.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage. Collective."""
        own = torch.tensor([batch.seeds.numel()], dtype=torch.int64)
        batch.num_global_seeds = max(1, int(self._comm.all_reduce(own, purpose="counts")))
        return batch


class FetchAndCount(Fetch):
    """Fetches by two exchanges, whose plan tells all ranks the loss nodes of each: CountSeeds without a call."""

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage. Collective."""
        with self.timed(given, batch):
            located = self.features.locate(batch.input_nodes)
            plan = self.comm.plan_rows(located.counts, note=batch.seeds.numel())
            received = self.features.receive(located, self.dtype, plan)
            batch.features = self.features.complete(located, received, self.dtype)
        batch.num_global_seeds = max(1, sum(plan.notes))
        return batch


@dataclass(eq=False)
class RepeatedInputs(MiniBatch):
    """A batch under way whose input nodes are asked for once each.

    Attributes:
      places: int64 [number of sources of the first MFG]; the place of each among the distinct `input_nodes`.
    """

    places: Tensor | None = None


class OnceEach:
    """Leaves of a batch's input nodes the distinct ones, ascending: before Fetch."""

    def run(self, given: StepInput, batch: MiniBatch) -> RepeatedInputs:
        """See Stage."""
        nodes, places = batch.input_nodes.unique(return_inverse=True)
        return RepeatedInputs(**(vars(batch) | {"input_nodes": nodes, "places": places}))


class RowsBack:
    """Gives every source of the first MFG its feature row again: behind Fetch."""

    def run(self, given: StepInput, batch: RepeatedInputs) -> MiniBatch:
        """See Stage."""
        own = dict(vars(batch))
        places = own.pop("places")
        own["input_nodes"] = batch.mfgs[0].src_nodes
        if batch.features is not None:
            own["features"] = batch.features.index_select(0, places)
        return MiniBatch(**own)


class ToDevice:
    """Puts a batch that was sampled in host memory where batches are made.

    Args:
      device: where that is.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        return batch.to(self._device)


class LabelLossNodes:
    """Looks up the seeds' labels, whoever owns the seeds.

    Args:
      loss: on the device of the batches.
    """

    def __init__(self, loss: LossNodes) -> None:
        self._loss = loss

    def run(self, given: StepInput, batch: MiniBatch) -> MiniBatch:
        """See Stage."""
        batch.labels = self._loss.labels_of(batch.seeds)
        return batch

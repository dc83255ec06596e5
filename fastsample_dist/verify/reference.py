"""One process that computes what k ranks must compute: the oracle of fastsample-verify.

It reads the partition's files itself, cuts the seeds as the loader's documentation says, samples from the whole
graph, and takes the gradient on the union of the ranks' seeds in one piece. No collective takes part.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fastsample_dist.graph import storage
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.pipeline.epoch_plan import epoch_permutation
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.train.metrics import seed_loss
from fastsample_dist.train.models import GAT, GCN, GraphSAGE

MODELS = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """What both sides compute.

    Attributes:
      steps: mini-batches per rank.
      batch_size: seeds per rank and step.
      fanouts: from the seeds outwards.
      split: whose nodes are the seeds.
      rng_seed: of shuffling, sampling, dropout and parameters.
      model: "sage", "gcn" or "gat"; one layer per fanout, float64.
      hidden: columns of a hidden row.
      dropout, heads, residual, norm: of the model, heads of "gat", as `TrainConfig` has them.
    """

    steps: int
    batch_size: int
    fanouts: tuple[int, ...]
    split: str = "train"
    rng_seed: int = 0
    model: str = "sage"
    hidden: int = 32
    dropout: float = 0.5
    heads: int = 4
    residual: bool = False
    norm: str | None = None


def make_model(settings: VerifySettings, in_dim: int, num_outputs: int) -> nn.Module:
    """The model, the same in every process; dropout is on, because its masks are part of the contract."""
    torch.manual_seed(settings.rng_seed)
    more = {"num_heads": settings.heads} if settings.model == "gat" else {}
    model = MODELS[settings.model](
        in_dim, settings.hidden, num_outputs, len(settings.fanouts), settings.dropout, residual=settings.residual,
        norm=settings.norm, **more,
    )  # fmt: skip
    return model.double().train()


def compared_loss(outputs: Tensor, labels: Tensor, num_global_seeds: int) -> Tensor:
    """A rank's share of the loss whose gradients are compared: cross-entropy of classes, of other labels the sum of
    squared differences to those that are known, over the seeds of all ranks."""
    if not labels.is_floating_point():
        return seed_loss(outputs, labels, num_global_seeds)
    known = ~labels.isnan()
    return ((outputs - labels.nan_to_num().to(outputs.dtype)) * known).square().sum() / num_global_seeds


def flat_gradient(model: nn.Module) -> Tensor:
    """All gradients as one vector; zeros for a parameter that has none."""
    return torch.cat([
        (torch.zeros_like(weight) if weight.grad is None else weight.grad).reshape(-1) for weight in model.parameters()
    ])  # fmt: skip


class OneProcess:
    """The whole partition in one process, files mapped.

    Args:
      path: the partition's directory, with all its parts.
      settings: what is compared.
    Raises:
      ValueError: a file is missing or damaged, or a part lacks the split.
    """

    def __init__(self, path: Path, settings: VerifySettings) -> None:
        self.manifest = storage.read_manifest(path)
        self.settings = settings
        self.graph = storage.load_topology(path, self.manifest)
        self._book = PartitionBook(torch.tensor(self.manifest.part_ranges, dtype=torch.int64))
        self._parts = [storage.load_part(path, self.manifest, part) for part in range(self.manifest.num_parts)]
        if not all(settings.split in part.splits for part in self._parts):
            raise ValueError(f"{path} has no split {settings.split!r}; pass --split with one that it has.")
        self.has_features = all(part.features is not None for part in self._parts)
        self.has_labels = all(part.labels is not None for part in self._parts)
        self._sampler = NeighborSampler(self.graph, settings.fanouts, rng_seed=settings.rng_seed)

    def seeds(self, step: int, world_size: int) -> list[Tensor]:
        """Every rank's seeds of one step: its own, permuted by (rng_seed, epoch, rank), cut into batches."""
        per_rank = self.manifest.num_parts // world_size
        size = self.settings.batch_size
        groups = [self._parts[rank * per_rank : (rank + 1) * per_rank] for rank in range(world_size)]
        own = [torch.cat([part.splits[self.settings.split] for part in group]) for group in groups]
        epoch, number = divmod(step, -(-max(ids.numel() for ids in own) // size))
        return [
            ids[epoch_permutation(ids.numel(), self.settings.rng_seed, epoch, rank)][
                number * size : (number + 1) * size
            ]
            for rank, ids in enumerate(own)
        ]

    def batch(self, seeds: Tensor, step: int) -> MiniBatch:
        """The mini-batch of any seeds, with float64 features and labels where the partition has them."""
        batch = self._sampler.sample(seeds, step)
        if self.has_features:
            batch.features = self._rows("features", batch.input_nodes).double()
            if self.manifest.feature_scales:  # the rows that were stored are rounded to float32
                scales = self._rows("scales", batch.input_nodes)[:, None]
                batch.features = (batch.features.float() * scales).double()
        if self.has_labels:
            batch.labels = self._rows("labels", batch.seeds)
        return batch

    def gradient(self, seeds: list[Tensor], step: int) -> Tensor:
        """The gradient on the union of the ranks' seeds, float64 [parameters]."""
        batch = self.batch(torch.cat(seeds), step)
        num_outputs = self.manifest.num_targets or self.manifest.num_classes
        model = make_model(self.settings, int(self.manifest.feature_dim or 0), num_outputs)
        compared_loss(model(batch.mfgs, batch.features), batch.labels, batch.seeds.numel()).backward()
        return flat_gradient(model)

    def _rows(self, kind: str, nodes: Tensor) -> Tensor:
        """Rows of any nodes, read from their parts' files."""
        nodes = nodes.long()
        owners, local = self._book.nid2part(nodes), self._book.nid2local(nodes)
        columns = getattr(self._parts[0], kind)
        rows = columns.new_empty((nodes.numel(), *columns.shape[1:]))
        for part, data in enumerate(self._parts):
            is_own = owners == part
            rows[is_own] = getattr(data, kind)[local[is_own]]
        return rows

"""DGL, training in a process of its own when it is asked: its sampler, its layers, a plain loop.

    python -m fastsample_dist.bench.models.dgl_process FOLDER THREADS

Reads what `peer.write_task` left in FOLDER. A line of standard input is {"begin": case, "batch_size", "hidden",
"dropout", "rng_seed"}, answered by {"steps"}; {"train": true}, one epoch, answered by {"seconds", "sample_s",
"fetch_s", "train_s", "loss"}; or {"evaluate": split}, answered by {"acc"}.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastsample_dist.bench.asked import answer_lines
from fastsample_dist.bench.models.cases import CASES, LR, ModelCase, WalkCase
from fastsample_dist.bench.peers import read_columns
from fastsample_dist.bench.timing import steady
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.interop import dgl
from fastsample_dist.train.models import layer_widths

AGGREGATORS = {"sage": "mean", "gcn": "gcn"}
Sample = Callable[[Tensor], list]


@dataclass(frozen=True, eq=False)
class Task:
    """The graph and what is learnt on it.

    Attributes:
      graph: in-neighbour lists, with weights where a case draws by them.
      features: float32 [num_nodes, feature_dim].
      labels: int64 [num_nodes].
      splits: by name, int64 node ids.
    """

    graph: CSCGraph
    features: Tensor
    labels: Tensor
    splits: dict[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> Task:
        """What `peer.write_task` wrote."""
        arrays = {
            name: torch.from_numpy(np.load(folder / f"{name}.npy"))
            for name in ("features", "labels", "train", "val", "test")
        }
        graph = read_columns(folder, weighted=(folder / "weights.npy").is_file())
        return cls(graph, arrays.pop("features"), arrays.pop("labels"), arrays)

    @property
    def num_classes(self) -> int:
        """Columns of the result."""
        return int(self.labels.max()) + 1

    def sampler(self, case: ModelCase) -> Sample:
        """DGL's sampler of a case: seeds to blocks, input side first."""
        if isinstance(case, WalkCase):
            names = ("num_walks", "walk_length", "num_neighbors", "num_layers", "end_probability")
            return dgl.pinsage_sampler(self.graph, **{name: getattr(case, name) for name in names})
        graph = self.graph if case.is_weighted else replace(self.graph, weights=None)
        return dgl.block_sampler(dgl.to_graph(graph), case.fanouts, method=case.method)


class WalkLayer(nn.Module):
    """PinSAGE's layer by DGL's messages, as DGL's example of PinSAGE has it (WeightedSAGEConv), which dgl.nn lacks."""

    def __init__(self, in_width: int, hidden_width: int, out_width: int) -> None:
        super().__init__()
        self.message, self.linear = nn.Linear(in_width, hidden_width), nn.Linear(hidden_width + in_width, out_width)
        for part in (self.message, self.linear):
            nn.init.xavier_uniform_(part.weight, gain=nn.init.calculate_gain("relu"))
            nn.init.zeros_(part.bias)

    def forward(self, block: Any, rows: Tensor) -> Tensor:
        """[num_src, in_width] -> [num_dst, out_width]."""
        neighbours = dgl.weighted_mean(block, F.relu(self.message(rows)))
        return self.linear(torch.cat([neighbours, rows[: len(neighbours)]], 1))


class Stack(nn.Module):
    """DGL's layers with ReLU and dropout between them, and for PinSAGE's rows the norm 1.

    Args:
      case: says which layers.
      in_dim, hidden, num_classes, dropout: as of our model.
    """

    def __init__(self, case: ModelCase, in_dim: int, hidden: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        widths = layer_widths(in_dim, hidden, num_classes, case.num_layers)
        self._has_walks, self._dropout = isinstance(case, WalkCase), dropout
        if self._has_walks:
            layers = [WalkLayer(width, hidden, out_width) for width, out_width in widths]
        else:
            layers = [dgl.sage_conv(*pair, AGGREGATORS[case.model]) for pair in widths]
        self.layers = nn.ModuleList(layers)

    def forward(self, blocks: list, rows: Tensor) -> Tensor:
        """[num_inputs, in_dim] -> [num_seeds, num_classes]."""
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            rows = layer(block, rows)
            if number + 1 < len(self.layers):
                rows = F.relu(rows)
                rows = F.dropout(F.normalize(rows) if self._has_walks else rows, self._dropout, self.training)
        return rows


class Training:
    """One case, begun.

    Args:
      task: of the folder.
      case: which.
      asked: the line that begins it.
    """

    def __init__(self, task: Task, case: ModelCase, asked: dict) -> None:
        torch.manual_seed(asked["rng_seed"])
        dgl.set_rng_seed(asked["rng_seed"])
        self._task, self._batch_size, self._sample = task, asked["batch_size"], task.sampler(case)
        self._model = Stack(case, task.features.shape[1], asked["hidden"], task.num_classes, asked["dropout"])
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=LR)

    @property
    def num_steps(self) -> int:
        """Of an epoch."""
        return -(-self._task.splits["train"].numel() // self._batch_size)

    def train(self) -> dict[str, float]:
        """One epoch: its seconds, those of its parts, and the mean loss."""
        names, train = ("sample_s", "fetch_s", "train_s"), self._task.splits["train"]
        times, loss_sum = [], 0.0
        self._model.train()
        with steady():
            begin_s = time.perf_counter()
            for seeds in train[torch.randperm(train.numel())].split(self._batch_size):
                marks = [time.perf_counter()]
                blocks = self._sample(seeds)
                marks.append(time.perf_counter())
                rows, labels = self._fetch(blocks, seeds)
                marks.append(time.perf_counter())
                loss_sum += self._step(blocks, rows, labels) * seeds.numel()
                marks.append(time.perf_counter())
                times.append(np.diff(marks))
            seconds = time.perf_counter() - begin_s
        parts = dict(zip(names, np.sum(times, axis=0).tolist(), strict=True))
        return {"seconds": seconds, **parts, "loss": loss_sum / train.numel()}

    @torch.no_grad()
    def accuracy(self, split: str) -> float:
        """Share of a split's nodes whose class has the largest score, with sampled neighbours."""
        nodes, correct = self._task.splits[split], 0
        self._model.eval()
        for seeds in nodes.split(self._batch_size):
            blocks = self._sample(seeds)
            rows, labels = self._fetch(blocks, seeds)
            correct += int((self._model(blocks, rows).argmax(dim=1) == labels).sum())
        return correct / nodes.numel()

    def _fetch(self, blocks: list, seeds: Tensor) -> tuple[Tensor, Tensor]:
        return self._task.features[dgl.input_nodes(blocks)], self._task.labels[seeds]

    def _step(self, blocks: list, rows: Tensor, labels: Tensor) -> float:
        """The optimizer's step; returns the loss."""
        loss = F.cross_entropy(self._model(blocks, rows), labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item()


def main(words: list[str]) -> None:
    """Answer until standard input ends."""
    torch.set_num_threads(int(words[1]))
    dgl.require_dgl("--baseline dgl")
    dgl.set_num_threads(int(words[1]))
    task = Task.read(Path(words[0]))
    begun: list[Training] = []

    def reply(asked: dict) -> dict:
        if "begin" in asked:
            begun[:] = [Training(task, CASES[asked["begin"]], asked)]
            return {"steps": begun[0].num_steps}
        return begun[0].train() if "train" in asked else {"acc": begun[0].accuracy(asked["evaluate"])}

    answer_lines(reply)


if __name__ == "__main__":
    main(sys.argv[1:])

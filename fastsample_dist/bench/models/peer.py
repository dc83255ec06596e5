"""DGL beside ours: what it reads, and the process that it trains in."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fastsample_dist.bench.asked import AskedProcess
from fastsample_dist.bench.models.cases import ModelCase
from fastsample_dist.bench.peers import write_columns
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.testing.supervisor import Supervisor

DGL = "dgl"
MODULE = "fastsample_dist.bench.models.dgl_process"


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """How DGL runs.

    Attributes:
      folder: with what `write_task` wrote.
      threads: of its one process.
      batch_size: seeds per step.
      hidden, dropout, rng_seed: as ours.
      answer_s: longest wait for one epoch.
    """

    folder: Path
    threads: int
    batch_size: int
    hidden: int
    dropout: float
    rng_seed: int
    answer_s: float


def write_task(data: DistData, folder: Path) -> None:
    """Write the graph, its features in float32, labels and splits.

    Args:
      data: of one process, whose graph has the weights to draw by.
      folder: gets indptr.npy, indices.npy, weights.npy, features.npy, labels.npy and a file of node ids per split.
    """
    write_columns(data.graph, folder)
    rows = data.features.fetch(torch.arange(data.num_nodes), torch.float32)
    arrays = {"features": rows, "labels": data.labels} | {name: data.split(name) for name in ("train", "val", "test")}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array.numpy())


class DglPeer:
    """DGL's process, waiting. Ends with the supervisor's block.

    Args:
      supervisor: that it is started by.
      settings: how it runs.
    """

    def __init__(self, supervisor: Supervisor, settings: PeerSettings) -> None:
        self._settings = settings
        words = [sys.executable, "-m", MODULE, str(settings.folder), str(settings.threads)]
        self._process = AskedProcess(
            supervisor, DGL, words, settings.folder, threads=settings.threads, answer_s=settings.answer_s
        )

    def begin(self, case: ModelCase) -> int:
        """Make a case's sampler and model; returns the steps of an epoch.

        Raises:
          RuntimeError: the process ended, or did not answer in time; with its last line. So for the others.
        """
        names = ("batch_size", "hidden", "dropout", "rng_seed")
        asked = {name: getattr(self._settings, name) for name in names}
        return self._process.ask_json({"begin": case.name, **asked})["steps"]

    def train(self) -> dict[str, float]:
        """One epoch: {"seconds", "sample_s", "fetch_s", "train_s", "loss"}."""
        return self._process.ask_json({"train": True})

    def accuracy(self, split: str) -> float:
        """Of the model as it is."""
        return self._process.ask_json({"evaluate": split})["acc"]

"""The settings of one run: what run.py parses, checks and hands to every process as a JSON file.

Names follow the rest of the repository. `fanouts` are in hop order from the seeds outwards; DGL's own
samplers take them the other way round (input layer first), so `dgl_fanouts` is the reversed list.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_MACHINES = 64
GRAPH_NAME = "graph"
PARTITION_REPORT = "partition.json"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run of the benchmark.

    Args:
      graph: directory of the input graph in npy format.
      work: directory for partitions, logs and the exchange of settings and results between processes.
      machines: network namespaces, each with one server; 0 runs one-process DGL instead.
      trainers: on each machine; on one machine at least 2.
      epochs: timed epochs; one warm-up epoch runs before them and one epoch for memory figures after them.
      batch_size: seeds per trainer and step.
      fanouts: neighbours per node and hop, from the seeds outwards; one entry per layer.
      hidden: width of the hidden layers.
      dropout: probability of dropout between layers; 0.0 leaves the operator out.
      lr: Adam's learning rate.
      seed: seeds torch, DGL and NumPy. DGL's METIS stays unrepeatable even so.
      rate: bandwidth of every link in tc's notation ("1gbit"); None leaves links unlimited.
      repartition: partition again even when `work` holds partitions of this graph.
      deadline_s: seconds after which everything is killed.
    Raises:
      ValueError: a value outside its range.
    """

    graph: str
    work: str
    machines: int
    trainers: int
    epochs: int
    batch_size: int
    fanouts: tuple[int, ...]
    hidden: int
    dropout: float
    lr: float
    seed: int
    rate: str | None
    repartition: bool
    deadline_s: float

    def __post_init__(self) -> None:
        if self.trainers < 1:
            raise ValueError(f"--trainers is {self.trainers}, expected a positive number on each machine")
        if not 0 <= self.machines <= MAX_MACHINES or self.machines * self.trainers == 1:
            raise ValueError(
                f"--machines is {self.machines}, expected 1..{MAX_MACHINES}, and 1 with more than one of --trainers; "
                "use --single for one process"
            )
        for name in ("epochs", "batch_size", "hidden", "deadline_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)}, expected a positive number")
        if not self.fanouts or any(fanout < 1 and fanout != -1 for fanout in self.fanouts):
            raise ValueError(f"--fanouts is {list(self.fanouts)}, expected positive numbers or -1 for all neighbours")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"--dropout is {self.dropout}, expected 0 <= dropout < 1")

    @property
    def single(self) -> bool:
        """True for one-process DGL."""
        return self.machines == 0

    @property
    def num_trainers(self) -> int:
        """Of all machines."""
        return self.machines * self.trainers

    @property
    def dgl_fanouts(self) -> list[int]:
        """Fanouts in DGL's order: the input layer's first, the seeds' last."""
        return list(reversed(self.fanouts))

    def write(self, path: Path) -> None:
        """Write the settings as JSON to `path`."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: str | Path) -> Settings:
        """Read what `write` wrote."""
        values = json.loads(Path(path).read_text())
        values["fanouts"] = tuple(values["fanouts"])
        return cls(**values)


class EventWriter:
    """One JSON object per line on an inherited pipe: how a trainer reports to the session that started it."""

    def __init__(self, fd: int) -> None:
        self._pipe = os.fdopen(fd, "w")

    def __call__(self, event: str, **values: object) -> None:
        self._pipe.write(json.dumps({"event": event, **values}) + "\n")
        self._pipe.flush()

"""The graphs that a benchmark runs on: a finished partition, or a generated graph, cut for each number of ranks.

A generated graph is named rmat:SCALE:EDGE_FACTOR; it is drawn, given features and labels, and cut by the library's own
commands, each a process of its own, so that their memory is gone when the measurement begins.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.bench.harness import own_environment
from fastsample_dist.graph.manifest import read_manifest

RMAT = re.compile(r"rmat:(\d+):(\d+)")
# Size of the task on a generated graph: that of ogbn-products (100 features, 47 classes, a tenth for training).
TASK = ("--features", "100", "--classes", "47", "--train-fraction", "0.1", "--seed", "1")


@dataclass(frozen=True)
class GraphSource:
    """Where partitions come from.

    Attributes:
      name: a partition's directory, or rmat:SCALE:EDGE_FACTOR.
      work: directory for what is generated; found there, it is used again.
      method: how a generated graph is cut, as fastsample-partition names it.
    """

    name: str
    work: Path
    method: str = "metis"

    @property
    def is_generated(self) -> bool:
        """Whether the name stands for a graph to be drawn."""
        return self.name.startswith("rmat:")

    def check(self, ranks: tuple[int, ...]) -> None:
        """Refuse a name that is neither, and ranks that a finished partition cannot serve.

        Raises:
          ValueError: with what was expected.
        """
        if self.is_generated:
            if not RMAT.fullmatch(self.name):
                raise ValueError(f"graph is {self.name!r}; expected rmat:SCALE:EDGE_FACTOR such as rmat:19:16.")
            return
        num_parts = read_manifest(self.name).num_parts
        for number in ranks:
            if num_parts % number:
                raise ValueError(
                    f"{self.name} has {num_parts} parts, which {number} ranks cannot share equally; pass --ranks with "
                    f"divisors of {num_parts}."
                )

    def parts(self, num_ranks: int, say: Callable[[str], object]) -> Path:
        """The partition for a number of ranks: one part per rank where the graph is generated.

        Args:
          num_ranks: how many.
          say: told what is being made.
        Raises:
          RuntimeError: the generator or fastsample-partition failed; with its line.
        """
        if not self.is_generated:
            return Path(self.name)
        graph = self.work / self.name.replace(":", "-")
        parts = self.work / f"{graph.name}-{self.method}-{num_ranks}"
        if not graph.exists():
            say(f"drawing {self.name}")
            scale, edge_factor = RMAT.fullmatch(self.name).groups()  # type: ignore[union-attr]  # `check` was called
            shape = ("--scale", scale, "--edge-factor", edge_factor)
            _run("fastsample_dist.graph.generators", "rmat", *shape, *TASK, "--output", str(graph))
        if not parts.exists():
            say(f"cutting it into {num_ranks} part(s) with {self.method}")
            options = ("--num-parts", str(num_ranks), "--method", self.method, "--output", str(parts))
            _run("partition.cli", "--input", str(graph), *options)
        return parts


def _run(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=own_environment())
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise RuntimeError(f"python -m {module} ended with {done.returncode}: {said[-1] if said else 'no message'}")

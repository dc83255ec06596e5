"""The graphs that a benchmark runs on: a finished partition, or a generated graph, cut for each number of ranks.

A generated graph is named rmat:SCALE:EDGE_FACTOR or planted:NODES:EDGES:COMMUNITIES[:MIXING]; it is drawn, given
features and labels, and cut by the library's own commands, each a process of its own, so that their memory is gone when
the measurement begins. "debian" is the example graph of the repository, which is unpacked instead. Where only the
topology is needed, features and cutting are left out. An `npy` input directory serves too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.comm.context import DistContext
from fastsample_dist.files import locked_folder, remove_stale
from fastsample_dist.graph import hotness
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import META_NAME, read_npy_graph
from fastsample_dist.graph.labels import CLASSIFICATION
from fastsample_dist.graph.manifest import MANIFEST_NAME, read_manifest
from fastsample_dist.graph.storage import load_topology
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.testing.jobs import own_environment
from fastsample_dist.testing.supervisor import last_line, run_process
from fastsample_dist.train.saved import check_directory

FOLDER_PREFIX = "fastsample-bench-"  # of temporary work folders
DEBIAN = "debian"
EXAMPLES = Path(__file__).parents[2] / "examples"  # of a checkout
MOST_WEIGHT = 100
WEIGHT_LAW = f"1 to {MOST_WEIGHT}, one for all edges of a source, drawn by its original id"
# Size of the task on a generated graph: that of ogbn-products (100 features, 47 classes, a tenth for training).
TASK = ("--features", "100", "--classes", "47", "--train-fraction", "0.1")
GRAPH_SEED = ("--seed", "1")


@dataclass(frozen=True)
class Drawn:
    """A kind of graph that the generators draw.

    Attributes:
      pattern: of a name; its groups are the values of `options`, the last ones may be missing.
      shape, example: of a name, for messages.
      options: of the command.
    """

    pattern: re.Pattern[str]
    shape: str
    example: str
    options: tuple[str, ...]


DRAWN = {
    "rmat": Drawn(
        re.compile(r"rmat:(\d+):(\d+)"), "rmat:SCALE:EDGE_FACTOR", "rmat:19:16", ("--scale", "--edge-factor")
    ),
    "planted": Drawn(
        re.compile(r"planted:(\d+):(\d+):(\d+)(?::([\d.]+))?"),
        "planted:NODES:EDGES:COMMUNITIES[:MIXING]",
        "planted:100000:1600000:50:0.3",
        ("--nodes", "--edges", "--communities", "--mixing"),
    ),
}


def is_drawn(name: str) -> bool:
    """Whether a name stands for a graph to be drawn."""
    return name.partition(":")[0] in DRAWN and ":" in name


def drawing_options(name: str) -> list[str]:
    """The generators' arguments, output and task aside, for the name of a graph to be drawn.

    Raises:
      ValueError: it only looks like one.
    """
    drawn = DRAWN[name.partition(":")[0]]
    match = drawn.pattern.fullmatch(name)
    if match is None:
        raise ValueError(f"graph is {name!r}; expected {drawn.shape} such as {drawn.example}.")
    given = zip(drawn.options, match.groups(), strict=True)
    return [name.partition(":")[0], *(word for pair in given if pair[1] is not None for word in pair)]


@dataclass(frozen=True)
class GraphSource:
    """Where partitions come from.

    Attributes:
      name: a partition's directory, an npy input directory, the name of a kind in DRAWN, or "debian".
      work: directory for what is generated; found there, it is used again.
      method: how a generated graph is cut, as fastsample-partition names it.
    """

    name: str
    work: Path
    method: str = "metis"

    @property
    def is_generated(self) -> bool:
        """Whether the name stands for a graph to be drawn or unpacked."""
        return self.name == DEBIAN or is_drawn(self.name)

    def check(self, ranks: tuple[int, ...]) -> None:
        """Refuse a name that is none of them, and ranks that a finished partition cannot serve.

        Raises:
          ValueError: with what was expected.
        """
        if self._check_generated() or self._is_input:
            return
        num_parts = read_manifest(self.name).num_parts
        for number in ranks:
            if num_parts % number:
                raise ValueError(
                    f"{self.name} has {num_parts} parts, which {number} ranks cannot share equally; pass --ranks with "
                    f"divisors of {num_parts}."
                )

    def check_topology(self) -> None:
        """Refuse a name that `topology` cannot follow.

        Raises:
          ValueError: with what was expected.
        """
        directory = Path(self.name)
        if not self._check_generated() and not any((directory / name).is_file() for name in (MANIFEST_NAME, META_NAME)):
            raise ValueError(
                f"{self.name} holds neither {MANIFEST_NAME} nor {META_NAME}; expected a partition's directory, an npy "
                f"input directory, {DEBIAN}, or rmat:SCALE:EDGE_FACTOR such as rmat:21:32, or "
                f"{DRAWN['planted'].shape}."
            )

    def parts(self, num_ranks: int, progress: Callable[[str], object], feature_dtype: str | None = None) -> Path:
        """The partition for a number of ranks: one part per rank where the graph is cut here.

        Args:
          num_ranks: how many.
          progress: called with a line about what is made next.
          feature_dtype: in which fastsample-partition stores the features of a graph that is cut here; None: as they
            are.
        Raises:
          RuntimeError: the generator or fastsample-partition failed; with its line.
        """
        if self.is_generated:
            return self._cut(self._draw(TASK, progress), num_ranks, progress, feature_dtype)
        return self._cut(Path(self.name), num_ranks, progress, feature_dtype) if self._is_input else Path(self.name)

    def cut(self, num_parts: int, progress: Callable[[str], object]) -> Path:
        """A partition: the one named, or the named input or generated graph in `num_parts` parts, without features
        where it is generated.

        Raises:
          RuntimeError: the generator or fastsample-partition failed; with its line.
        """
        if not self.is_generated and (Path(self.name) / MANIFEST_NAME).is_file():
            return Path(self.name)
        return self._cut(self._draw((), progress) if self.is_generated else Path(self.name), num_parts, progress)

    def topology(self, progress: Callable[[str], object]) -> CSCGraph:
        """The graph alone, uncut: mapped where it is a partition's, built in memory otherwise.

        Args:
          progress: called with a line about what is made next.
        Raises:
          RuntimeError: the generator failed; with its line.
          ValueError: what is in the directory cannot be read.
        Cost: for E listed edges of an input directory about 25 bytes each at the peak, 4 to 16 afterwards.
        """
        if not self.is_generated and (Path(self.name) / MANIFEST_NAME).is_file():
            return load_topology(self.name, read_manifest(self.name))
        directory = self._draw((), progress) if self.is_generated else Path(self.name)
        progress(f"reading {directory.name}")
        return read_npy_graph(directory).to_csc()

    def _cut(
        self, graph: Path, num_parts: int, progress: Callable[[str], object], feature_dtype: str | None = None
    ) -> Path:
        """The partition of an input directory, in the work directory."""
        stored = () if feature_dtype is None else ("--feature-dtype", feature_dtype)
        parts = self.work / "-".join([graph.name, self.method, str(num_parts), *stored[1:]])
        if not parts.exists():
            progress(f"cutting it into {num_parts} part(s) with {self.method}")
            options = ("--num-parts", str(num_parts), "--method", self.method, "--output", str(parts), *stored)
            _run("fastsample_dist.partition.cli", "--input", str(graph), *options)
        return parts

    def _check_generated(self) -> bool:
        """Whether a graph is to be drawn or unpacked; refuses a name that only looks like one."""
        if is_drawn(self.name):
            drawing_options(self.name)
        if self.name == DEBIAN and not EXAMPLES.is_dir():
            raise ValueError(f"graph is {DEBIAN}, which comes with a checkout of the repository; pass another one.")
        return self.is_generated

    @property
    def _is_input(self) -> bool:
        """Whether it is an input directory, which is cut here."""
        directory = Path(self.name)
        return (directory / META_NAME).is_file() and not (directory / MANIFEST_NAME).is_file()

    def _draw(self, task: tuple[str, ...], progress: Callable[[str], object]) -> Path:
        """The input directory of the generated graph; without a task one that is drawn holds the topology alone."""
        if self.name == DEBIAN:
            return self._unpack(progress)
        graph = self.work / (self.name.replace(":", "-") + ("" if task else "-topology"))
        if not graph.exists():
            progress(f"drawing {self.name}")
            arguments = (*drawing_options(self.name), *task, *GRAPH_SEED, "--output", str(graph))
            _run("fastsample_dist.graph.generators", *arguments)
        return graph

    def _unpack(self, progress: Callable[[str], object]) -> Path:
        """The input directory of the repository's example graph."""
        graph = self.work / DEBIAN
        if not graph.exists():
            progress("unpacking Debian's packages")
            packed = EXAMPLES / "data" / "debian12-packages.tar.xz"
            _run(str(EXAMPLES / "debian_graph.py"), "unpack", str(packed), str(graph))
        return graph


@contextmanager
def work_folder(work: Path | None) -> Iterator[Path]:
    """The directory for what is generated: `work`, made if it is missing, or a temporary one for the block.

    Temporary ones that killed benchmarks have left are removed first.

    Raises:
      ValueError: `work` cannot be made or written.
    """
    if work is None:
        remove_stale(FOLDER_PREFIX)
        with locked_folder(FOLDER_PREFIX) as folder:
            yield folder
        return
    check_directory("--work", work)
    yield work


def draw_seeds(graph: CSCGraph, batch_size: int, count: int, rng_seed: int) -> list[Tensor]:
    """`count` batches of distinct random nodes with in-neighbours, of the graph's id type.

    Raises:
      ValueError: the graph has fewer such nodes than a batch.
    """
    connected = np.flatnonzero(graph.in_degrees().numpy() > 0)
    if len(connected) < batch_size:
        raise ValueError(
            f"--batch-size is {batch_size} but only {len(connected)} nodes have an in-neighbour; pass a smaller one."
        )
    rng = np.random.default_rng(rng_seed)
    return [
        torch.from_numpy(rng.choice(connected, batch_size, replace=False)).to(graph.indices.dtype) for _ in range(count)
    ]


def with_weights(graph: CSCGraph) -> CSCGraph:
    """The graph with edge weights: its own, or those of WEIGHT_LAW.

    GNNLab (section 3) weighs an edge by the year in which its source was registered: a source weighs the same to all.
    """
    if graph.weights is not None:
        return graph
    drawn = hotness.random(hotness.original_ids(graph), rng_seed=1) - 1
    by_node = 1 + (drawn * MOST_WEIGHT >> hotness.SCORE_BITS)
    return replace(graph, weights=by_node.clamp(max=MOST_WEIGHT).float()[graph.indices.long()])


def load_classes(path: str | Path, ctx: DistContext) -> DistData:
    """A partition with what classes of nodes are learnt from. Collective: every rank must call this.

    Raises:
      ValueError: it lacks features or labels, or its labels are no classes; or see `DistData.load`.
    """
    data = DistData.load(path, ctx)
    if data.features is None or data.labels is None:
        raise ValueError(f"{path} lacks features or labels; partition an input with both.")
    if data.task != CLASSIFICATION:
        raise ValueError(f"{path} has labels for {data.task}; the benchmark trains on classes.")
    return data


def _run(program: str, *arguments: str) -> None:
    """Run a module of the package, or a script by its path."""
    words = [program] if program.endswith(".py") else ["-m", program]
    done = run_process([sys.executable, *words, *arguments], env=own_environment())
    if done.returncode != 0:
        raise RuntimeError(f"python {' '.join(words)} ended with {done.returncode}: {last_line(done)}")

"""What a trained node costs by the number of layers: training on subgraphs beside neighbour sampling, one process.

Both train the same GraphSAGE on the same partition, in turns, so many steps at a time. The time of a step is wall clock
from one step's end to the next one's: sampling, fetching rows, forward, backward, optimizer. A trained node is a node
of the loss: a seed of neighbour sampling, a train node of a subgraph.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

import fastsample_dist as fsd
from fastsample_dist.bench.graphs import GraphSource, load_classes
from fastsample_dist.bench.subgraphs.measure import middle
from fastsample_dist.bench.timing import steady
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.sampling.subgraph_spec import SubgraphSpec
from fastsample_dist.train.models import GraphSAGE
from fastsample_dist.train.trainer import Trainer

SUBGRAPHS, NEIGHBOURS = "subgraphs", "neighbours"
DROPOUT, LR = 0.5, 0.006


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """What is run.

    Attributes:
      source: the graph, with features and classes.
      layers: numbers of layers.
      budget, frontier_size: of the subgraphs, one a step.
      fanout: of neighbour sampling, the same in every layer.
      batch_size: its seeds per step.
      hidden: columns of a hidden row.
      steps: timed ones of a turn, after one that is not.
      turns: of each sampler.
      rng_seed: of everything drawn.
    """

    source: GraphSource
    layers: tuple[int, ...]
    budget: int = 8000
    frontier_size: int = 1000
    fanout: int = 10
    batch_size: int = 1000
    hidden: int = 256
    steps: int = 3
    turns: int = 2
    rng_seed: int = 0


def load_data(options: LayerOptions, progress: Callable[[str], object]) -> DistData:
    """The graph on one process; refused as `load_classes` refuses it."""
    return load_classes(options.source.parts(1, progress), fsd.DistContext(LocalCommunicator()))


def measure_layers(data: DistData, options: LayerOptions, progress: Callable[[str], object]) -> list[dict]:
    """Train a few steps with every number of layers.

    Returns:
      [{"layers", "sampler", "trained": nodes of a step, "rows", "edges": per trained node, "node_us": {"median",
      "min"}, "sample_share": of the time}].
    Raises:
      ValueError: an epoch has too few steps for a turn, or its subgraphs have no train nodes.
    """
    found = []
    for layers in options.layers:
        runs = [_Run(data, options, layers, SUBGRAPHS), _Run(data, options, layers, NEIGHBOURS)]
        for turn in range(options.turns):
            for run in runs:
                progress(f"{layers} layers, turn {turn + 1}: {run.sampler}")
                with steady():
                    run.train(options.steps)
        found += [run.figures() for run in runs]
        for run in runs:
            run.loader.close()
    return found


@dataclass
class _Steps:
    """Columns, an entry per step."""

    seconds: list[float] = field(default_factory=list)
    sample_s: list[float] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)


class _Run:
    """One sampler with one number of layers."""

    def __init__(self, data: DistData, options: LayerOptions, layers: int, sampler: str) -> None:
        self.sampler, self._layers, self._steps = sampler, layers, _Steps()
        if sampler == SUBGRAPHS:
            spec = SubgraphSpec(budget=options.budget, frontier_size=options.frontier_size, rng_seed=options.rng_seed)
            self.loader = fsd.SubgraphLoader(data, spec, num_layers=layers, subgraphs_per_step=1)
        else:
            fanouts = [options.fanout] * layers
            self.loader = fsd.DistLoader(data, fanouts, options.batch_size, rng_seed=options.rng_seed)
        if len(self.loader) <= options.steps:
            raise ValueError(
                f"an epoch of {sampler} has {len(self.loader)} step(s), but a turn takes --steps {options.steps} and "
                "one before them; pass a smaller --steps, --batch-size or --budget, or a larger graph."
            )
        torch.manual_seed(options.rng_seed)
        model = GraphSAGE(data.feature_dim, options.hidden, data.num_classes, layers, DROPOUT)
        self._trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=LR), data.ctx)

    def train(self, steps: int) -> None:
        """Time so many steps, after one."""
        noted, begin_s = self._steps, None

        def after_step(batch: MiniBatch) -> bool:
            nonlocal begin_s
            now_s = time.perf_counter()
            if begin_s is not None:
                noted.seconds.append(now_s - begin_s)
                noted.sample_s.append(batch.sampling.seconds)
                noted.trained.append(batch.seeds.numel())
                noted.rows.append(batch.input_nodes.numel())
                noted.edges.append(sum(mfg.num_edges for mfg in batch.mfgs))
                if len(noted.seconds) % steps == 0:
                    return True
            begin_s = time.perf_counter()
            return False

        self._trainer.run_epoch(self.loader, after_step)

    def figures(self) -> dict:
        """Means and medians of all steps."""
        noted = self._steps
        trained = sum(noted.trained)
        if trained == 0:
            raise ValueError(
                f"no train node was drawn by {self.sampler} in {len(noted.trained)} step(s); pass a larger --budget, "
                "or a graph with more train nodes."
            )
        each_us = [1e6 * s / max(count, 1) for s, count in zip(noted.seconds, noted.trained, strict=True)]
        return {
            "layers": self._layers, "sampler": self.sampler, "trained": statistics.mean(noted.trained),
            "rows": sum(noted.rows) / trained, "edges": sum(noted.edges) / trained, "node_us": middle(each_us),
            "sample_share": sum(noted.sample_s) / sum(noted.seconds),
        }  # fmt: skip


def ratios(found: Sequence[dict]) -> dict[int, dict[str, float]]:
    """{layers: {"time", "rows"}}: neighbour sampling's per trained node over the subgraphs'."""
    by = {(one["layers"], one["sampler"]): one for one in found}
    return {
        layers: {
            "time": by[layers, NEIGHBOURS]["node_us"]["median"] / by[layers, SUBGRAPHS]["node_us"]["median"],
            "rows": by[layers, NEIGHBOURS]["rows"] / by[layers, SUBGRAPHS]["rows"],
        }
        for layers in dict.fromkeys(one["layers"] for one in found)
    }

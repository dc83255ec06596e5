"""What training would send between machines, measured by sampling: one machine per part, every seed on its own part.

A number of mini-batches per part is drawn as training draws them: an epoch permutes the part's train nodes and cuts
them into batches, the last one smaller. Where a whole epoch has no more batches than are to be measured, whole epochs
are taken; else batches of one epoch are picked at random, so that the mean over batches estimates the mean over the
epoch's steps without bias either way. Its standard error is the batches' standard deviation over the root of their
number; in whole epochs the smaller last batches occur in their due number, so only the batches of full size vary.
It is too large rather than too small where the batches are most of an epoch, since what one has another lacks.

Remote rows of a batch are its input nodes that the part does not own: each is one id out and one feature row back
(the hybrid scheme's only traffic). The vanilla scheme also asks for the neighbours of every remote node of the hops
below the first: an id out, a count and the picks back.

A cache of share x holds the rows of x * num_nodes remote nodes on every machine. Which ones depends on the policy; the
scores are those of training (graph/hotness.py):
    degree     most out-edges in the graph first (PaGraph)
    hotness    most often an input node of this machine in pre-sampled epochs (GNNLab, section 6.3, PreSC), with vip as
               prior. Counted on other epochs than those that the curves are measured on: else every node would be as
               hot as the very batches that it is judged by.
    vip        most probably an input node of this machine (SALIENT++, section 3.2)
    oracle     most often an input node of the batches that the curves are measured on: what no policy can exceed
Equal scores go by original id. Nodes that a policy gives no score are not cached.

Memory: the mapped topology, about 50 bytes per node (none without the curves), and the remote inputs of the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastsample_dist.graph import hotness
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.storage import Manifest, load_part, load_topology
from fastsample_dist.ops import SampledHops, SampleSpec, SamplingGraph
from fastsample_dist.partition.report.cache_advice import CacheAdvice, SavedRows, advise

POLICIES = ("degree", "hotness", "vip", "oracle")
ADVISED = "vip"  # the policy that training chooses by itself for uniform draws
CACHE_SHARES = (0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, *(step / 20 for step in range(2, 21)))
_MOST_BATCHES = np.iinfo(np.uint16).max


@dataclass(frozen=True, kw_only=True)
class TrafficOptions:
    """What is to be measured.

    Attributes:
      fanouts: neighbours per node and hop, from the seeds outwards; -1 takes all.
      batch_size: seeds per machine and step.
      num_batches: batches measured per part, at least 2 (a standard error needs two).
      presample_batches: at most so many batches per part are drawn for the hotness, from two epochs.
      rng_seed: 0 .. 2**63 - 1; the same seed gives the same figures.
    Raises:
      ValueError: a value outside these.
    """

    fanouts: tuple[int, ...]
    batch_size: int
    num_batches: int = 32
    presample_batches: int = 64
    rng_seed: int = 0

    def __post_init__(self) -> None:
        self.spec()
        if not self.fanouts:
            raise ValueError("fanouts is empty; pass one fanout per model layer, such as 15,10,5.")
        most = _MOST_BATCHES
        for name, least, limit in (("batch_size", 1, 2**63), ("num_batches", 2, 2**31), ("presample_batches", 1, most)):
            if not least <= getattr(self, name) <= limit:
                raise ValueError(f"{name} is {getattr(self, name)}; expected {least} to {limit}.")

    def spec(self) -> SampleSpec:
        """How neighbours are drawn."""
        return SampleSpec(fanouts=self.fanouts, rng_seed=self.rng_seed)


@dataclass(frozen=True, kw_only=True)
class PartTraffic:
    """Means per step over an epoch of one part's machine.

    Attributes:
      part: part index.
      steps: its steps per epoch; 0 without train nodes, and then every figure is 0.
      batches: how many were measured.
      presampled_batches: how many the hotness was counted on.
      input_rows: input nodes.
      remote_rows: those that other parts own.
      remote_rows_error: standard error of `remote_rows`.
      sampling_ids: what the vanilla scheme sends and receives besides, in ids.
    """

    part: int
    steps: int
    batches: int
    presampled_batches: int
    input_rows: float
    remote_rows: float
    remote_rows_error: float
    sampling_ids: float


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Traffic of a partition, one machine per part.

    Attributes:
      options: what was measured.
      parts: one entry per part.
      id_bytes, feature_bytes: of one remote row: the id out, the feature row back (0 without features).
      cached_rows: {policy: [per cache share of CACHE_SHARES, [remote rows per step, per part]]}.
      advice: the size of cache that is worth its memory; None without features or remote rows.
    """

    options: TrafficOptions
    parts: tuple[PartTraffic, ...]
    id_bytes: int
    feature_bytes: int
    cached_rows: dict[str, list[list[float]]]
    advice: CacheAdvice | None = None

    @property
    def steps(self) -> int:
        """Steps per epoch: those of the part with the most train nodes."""
        return max(part.steps for part in self.parts)

    @property
    def remote_rows(self) -> tuple[float, float]:
        """Remote rows per step, mean over the machines, and its standard error."""
        error = sum(part.remote_rows_error**2 for part in self.parts) ** 0.5
        return sum(part.remote_rows for part in self.parts) / len(self.parts), error / len(self.parts)

    def epoch_bytes(self, rows_per_step: list[float]) -> float:
        """Bytes that all machines together send for features in an epoch, given each part's remote rows per step."""
        rows = sum(part.steps * rows for part, rows in zip(self.parts, rows_per_step, strict=True))
        return rows * (self.id_bytes + self.feature_bytes)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        mean, error = self.remote_rows
        row_bytes = self.id_bytes + self.feature_bytes
        hybrid = self.epoch_bytes([part.remote_rows for part in self.parts])
        spread = sum((part.steps * part.remote_rows_error) ** 2 for part in self.parts) ** 0.5
        sampling = sum(part.steps * part.sampling_ids for part in self.parts) * self.id_bytes
        curves = {
            policy: [
                {
                    "share": share,
                    "remote_rows_per_step": sum(rows) / len(rows),
                    "epoch_bytes": self.epoch_bytes(rows),
                }
                for share, rows in zip(CACHE_SHARES, per_share, strict=True)
            ]
            for policy, per_share in self.cached_rows.items()
        }
        return {
            "options": asdict(self.options),
            "steps_per_epoch": self.steps,
            "remote_rows_per_step": {"mean": mean, "standard_error": error},
            "row_bytes": row_bytes,
            "epoch_bytes": {
                "hybrid": hybrid,
                "vanilla": hybrid + sampling,
                "standard_error_of_hybrid": spread * row_bytes,
            },
            "parts": [asdict(part) for part in self.parts],
            "cache": curves,
            "cache_advice": None if self.advice is None else self.advice.to_json(),
        }


def measure_traffic(
    path: str | Path, manifest: Manifest, options: TrafficOptions, *, on_part: Callable[[], None] = lambda: None
) -> Traffic:
    """Sample batches of every part and count what would travel.

    Args:
      path: the partition's directory, with all parts in it.
      manifest: of that directory.
      options: what to measure.
      on_part: called when a part is measured.
    Returns:
      Traffic. Deterministic: yes. Cost: num_batches + presample_batches batches, len(fanouts) passes over the edges
      and three over the nodes per part.
    Raises:
      ValueError: no train nodes; a file is missing, truncated or does not fit (by name).
    """
    graph = load_topology(path, manifest)
    sampler = _Sampler(graph, options)
    degrees = hotness.degree(graph, manifest.undirected)
    parts, curves, saved = [], {policy: [] for policy in POLICIES}, []
    for part, owned, train in _own_nodes(path, manifest):
        measured = sampler.measure(part, owned, train)
        parts.append(measured.traffic)
        for policy, of_batches in sampler.saved(measured, owned, train, degrees).items():
            curves[policy].append(measured.curve(of_batches, graph.num_nodes))
            if policy == ADVISED:
                saved.append(measured.per_epoch(of_batches))
        on_part()
    _check_steps(path, parts)
    feature_bytes = 0
    if manifest.feature_dim is not None:
        feature_bytes = load_part(path, manifest, 0).feature_table.row_bytes
    return Traffic(
        options=options,
        parts=tuple(parts),
        id_bytes=graph.indices.element_size(),
        feature_bytes=feature_bytes,
        cached_rows={policy: np.transpose(rows).tolist() for policy, rows in curves.items()},
        advice=advise(ADVISED, saved, graph.num_nodes, feature_bytes),
    )


def sampled_rows(path: str | Path, manifest: Manifest, options: TrafficOptions) -> tuple[PartTraffic, ...]:
    """What `measure_traffic` says of every part, without the caches: no node is scored.

    Args, Raises: see there.
    """
    sampler = _Sampler(load_topology(path, manifest), options)
    parts = tuple(sampler.draw(part, owned, train)[0] for part, owned, train in _own_nodes(path, manifest))
    _check_steps(path, parts)
    return parts


def assignment_traffic(
    graph: CSCGraph, train: np.ndarray, parts: np.ndarray, num_parts: int, options: TrafficOptions
) -> tuple[PartTraffic, ...]:
    """Sample batches as if the nodes of a graph were owned by parts in this way; caches are left out.

    Args:
      graph: the whole topology.
      train: int64 [num_train]; train nodes, ids of the graph.
      parts: integer [num_nodes]; owner of each node.
      num_parts: number of parts.
      options: what to measure; nothing is pre-sampled.
    Returns:
      One entry per part. Deterministic: yes. Cost: num_batches batches per part.
    """
    sampler = _Sampler(graph, options)
    found = []
    for part in range(num_parts):
        schedule = sampler.schedule(part, train[parts[train] == part])
        batches = schedule.measured(options.num_batches)
        first_step = part * options.num_batches  # no two parts share their draws
        drawn = [_figures(hops, parts[hops.nodes.numpy()] != part) for hops in sampler.batches(batches, first_step)]
        found.append(_part_traffic(part, schedule, batches, drawn, options))
    return tuple(found)


def _own_nodes(path: str | Path, manifest: Manifest) -> Iterator[tuple[int, tuple[int, int], np.ndarray]]:
    """Part index, its range of ids and its train nodes, of every part."""
    for part in range(manifest.num_parts):
        train = load_part(path, manifest, part).splits.get("train", torch.empty(0, dtype=torch.int64))
        yield part, (manifest.part_ranges[part], manifest.part_ranges[part + 1]), train.numpy()


def _check_steps(path: str | Path, parts: Sequence[PartTraffic]) -> None:
    """Raises: ValueError if no part has a train node."""
    if not any(part.steps for part in parts):
        raise ValueError(f"{path} has no train nodes, so no batch can be sampled; report without --fanouts.")


class _Sampler:
    """Draws the batches of one part after another."""

    def __init__(self, graph: CSCGraph, options: TrafficOptions) -> None:
        self._graph, self._options, self._spec = graph, options, options.spec()
        self._arrays = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)

    def draw(self, part: int, owned: tuple[int, int], train: np.ndarray) -> tuple[PartTraffic, list[np.ndarray]]:
        """One part's traffic, and the remote inputs of every batch that it is the mean of."""
        (lo, hi), options = owned, self._options
        schedule = self.schedule(part, train)
        batches, read, figures = schedule.measured(options.num_batches), [], []
        for hops in self.batches(batches, len(schedule.presampled(options.presample_batches))):
            nodes = hops.nodes.numpy()
            remote = (nodes < lo) | (nodes >= hi)
            read.append(nodes[remote])
            figures.append(_figures(hops, remote))
        return _part_traffic(part, schedule, batches, figures, options), read

    def measure(self, part: int, owned: tuple[int, int], train: np.ndarray) -> _Measured:
        """Pre-sample and measure one part."""
        first = self.schedule(part, train).presampled(self._options.presample_batches)
        hot = hotness.counts((hops.nodes for hops in self.batches(first, 0)), self._graph.num_nodes)
        traffic, read = self.draw(part, owned, train)
        seen, visits = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *read]), return_counts=True)
        traffic = replace(traffic, presampled_batches=len(first))
        return _Measured(traffic, hot, torch.from_numpy(seen), torch.from_numpy(visits))

    def saved(
        self, measured: _Measured, owned: tuple[int, int], train: np.ndarray, degrees: torch.Tensor
    ) -> dict[str, SavedRows]:
        """What each policy saves of the batches measured, one policy's scores of all nodes after another's."""
        graph, options = self._graph, self._options
        remote = torch.ones(graph.num_nodes, dtype=torch.bool)
        remote[owned[0] : owned[1]] = False
        orig_ids, nodes, visits = hotness.original_ids(graph), measured.seen, measured.visits
        vip = hotness.vip(graph, torch.from_numpy(train), options.batch_size, options.fanouts)
        presampled = hotness.with_prior(measured.hot, vip, measured.traffic.presampled_batches)
        found = {
            policy: _saved_rows(hotness.places(values, orig_ids, nodes, remote), visits)
            for policy, values in (("degree", degrees), ("hotness", presampled), ("vip", vip))
        }
        # the oracle's list holds the nodes that are read alone
        return {
            **found,
            "oracle": _saved_rows(hotness.places(visits, orig_ids[nodes], torch.arange(len(nodes))), visits),
        }

    def schedule(self, part: int, train: np.ndarray) -> SeedBatches:
        """Which of a part's train nodes form its batches."""
        return SeedBatches(train, self._options.batch_size, (self._options.rng_seed, part))

    def batches(self, seeds: list[np.ndarray], first_step: int) -> Iterator[SampledHops]:
        """The sampled batches, as many at a time as there are threads. Every batch has its own step, so that no two
        share their draws."""
        at_once = max(1, self._spec.threads)
        for lo in range(0, len(seeds), at_once):
            group = [torch.from_numpy(own).to(self._graph.indices.dtype) for own in seeds[lo : lo + at_once]]
            yield from self._arrays.sample_many(group, self._spec, first_step + lo)


class SeedBatches:
    """Which seeds form the batches of one part.

    Args:
      train: int64 [T]; the part's train nodes.
      batch_size: seeds per batch.
      seed: key of the permutations.
    Attributes:
      steps: batches per epoch, 0 without train nodes.
    """

    PRESAMPLED_EPOCHS = 2  # GNNLab, section 6.3: more of them hardly rank the nodes better

    def __init__(self, train: np.ndarray, batch_size: int, seed: tuple[int, ...]) -> None:
        self._train, self._batch_size, self._seed = train, batch_size, seed
        self.steps = -(-len(train) // batch_size)

    def epoch(self, number: int) -> list[np.ndarray]:
        """All batches of one epoch."""
        order = np.random.default_rng((*self._seed, number)).permutation(self._train)
        return [order[lo : lo + self._batch_size] for lo in range(0, len(order), self._batch_size)]

    def presampled(self, most: int) -> list[np.ndarray]:
        """Batches that the hotness is counted on: two epochs, or the first `most` of their batches."""
        return [batch for number in range(self.PRESAMPLED_EPOCHS) for batch in self.epoch(number)][:most]

    def measured(self, count: int) -> list[np.ndarray]:
        """Batches of later epochs: whole epochs while `count` lasts, else `count` of one epoch picked at random."""
        if self.steps == 0:
            return []
        first = self.PRESAMPLED_EPOCHS
        if self.steps > count:
            picks = np.random.default_rng((*self._seed, first, 1)).choice(self.steps, count, replace=False)
            batches = self.epoch(first)
            return [batches[pick] for pick in np.sort(picks)]
        return [batch for number in range(first, first + count // self.steps) for batch in self.epoch(number)]


@dataclass(frozen=True, eq=False)
class _Measured:
    """One part's traffic; how often every node was an input of the pre-sampled batches; the remote inputs of those
    measured, and of how many of them each one was."""

    traffic: PartTraffic
    hot: torch.Tensor
    seen: torch.Tensor
    visits: torch.Tensor

    def curve(self, saved: SavedRows, num_nodes: int) -> list[float]:
        """Remote rows per step that are left for every share of CACHE_SHARES."""
        read, batches = int(self.visits.sum()), max(1, self.traffic.batches)
        return [(read - saved.of_first(int(share * num_nodes))) / batches for share in CACHE_SHARES]

    def per_epoch(self, saved: SavedRows) -> SavedRows:
        """What is saved of an epoch."""
        return SavedRows(saved.places, saved.rows * (self.traffic.steps / max(1, self.traffic.batches)))


def _saved_rows(places: torch.Tensor, visits: torch.Tensor) -> SavedRows:
    """Rows saved by caching nodes in a policy's order; nodes outside its list (place -1) are never cached."""
    order = torch.argsort(places)[int((places < 0).sum()) :]
    return SavedRows(places[order].numpy(), visits[order].double().numpy())


def _figures(hops: SampledHops, remote: np.ndarray) -> tuple[int, int, int]:
    """Input nodes, remote ones and sampling ids of a batch; `remote`: bool, of its nodes."""
    return len(remote), int(remote.sum()), _sampling_ids(hops, remote)


def _part_traffic(
    part: int,
    schedule: SeedBatches,
    batches: list[np.ndarray],
    figures: list[tuple[int, int, int]],
    options: TrafficOptions,
) -> PartTraffic:
    """Means over the batches that were measured; `figures` as of `_figures`."""
    columns = np.array(figures, dtype=np.float64).reshape(-1, 3)
    means = columns.mean(axis=0) if len(columns) else np.zeros(3)
    sizes = np.array([len(own) for own in batches])
    whole_epochs = schedule.steps <= options.num_batches
    alike = columns[sizes == sizes.max(initial=0), 1] if whole_epochs else columns[:, 1]
    return PartTraffic(
        part=part,
        steps=schedule.steps,
        batches=len(batches),
        presampled_batches=0,
        input_rows=float(means[0]),
        remote_rows=float(means[1]),
        remote_rows_error=_spread(alike if len(alike) > 1 else columns[:, 1]) / max(1, len(columns)) ** 0.5,
        sampling_ids=float(means[2]),
    )


def _spread(values: np.ndarray) -> float:
    """Standard deviation of what the values were drawn from; 0 for less than two."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _sampling_ids(hops: SampledHops, remote: np.ndarray) -> int:
    """Ids that the vanilla scheme moves to sample the hops below the first: node out, count and picks back."""
    moved = 0
    for indptr in hops.indptrs[1:]:
        picks = np.diff(indptr.numpy())
        asked = remote[: len(picks)]
        moved += 2 * int(asked.sum()) + int(picks[asked].sum())
    return moved

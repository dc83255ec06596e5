"""SubgraphLoader: mini-batches that are subgraphs, the same on any number of ranks.

Subgraphs are numbered. Global step t has the k = subgraphs_per_step numbers t k .. t k + k - 1; the ranks share them
out, each makes its own, and a rank's batch is their disjoint union. A subgraph is a function of its number alone, so
one process with the same k makes the same ones, and a position is (epoch, step): any number of ranks resumes there.

The topology is on every rank under hybrid, so sampling exchanges nothing. A step communicates one number per rank, how
many nodes of the batch have a loss (with the plan of the exchange, where there is one), and the feature rows of other
ranks, by the stages, transports and caches of every loader (batch_loader.py). A subgraph may hold any rank's nodes, so
ids and labels of those with a loss are gathered once.

With locality="own" the subgraphs take turns over the parts, and those of a part begin at its own nodes (or are its own
clusters), so that fewer rows come from other ranks. The batches then depend on the parts, still not on the ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.device.choice import computing
from fastsample_dist.device.clock import clock_of
from fastsample_dist.features.cache import FeatureCache, MadeCache
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.keeping import KeepingFeatures
from fastsample_dist.features.policies import Workload
from fastsample_dist.graph.hotness import PRESAMPLED_FROM
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.caching import sampled_inputs
from fastsample_dist.pipeline.data import DistData, check_data, own_parts
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.exchange import PAIRED
from fastsample_dist.pipeline.part_inclusion import PartInclusion
from fastsample_dist.pipeline.position import SUBGRAPHS, LoaderPosition, check_position
from fastsample_dist.pipeline.stages import Fetch, Sample, Stage, Transform, result_dtype
from fastsample_dist.pipeline.subgraph_options import OWN_LOCALITY, SubgraphOptions
from fastsample_dist.pipeline.subgraph_stages import (
    CountSeeds,
    FetchAndCount,
    LabelLossNodes,
    OnceEach,
    RowsBack,
    ToDevice,
    gather_loss_nodes,
)
from fastsample_dist.sampling.joined_batch import join_batches
from fastsample_dist.sampling.mfg import DrawKey, MiniBatch
from fastsample_dist.sampling.sampler import ids_within
from fastsample_dist.sampling.subgraph import SubgraphSampler
from fastsample_dist.sampling.subgraph_spec import CLUSTER, EGO, NONE, OF_METHOD, SAINT, SubgraphSpec

PART_KEYS = 0x9E3779B97F4A7C15  # apart by this, modulo 2**63, are the keys of two parts' subgraphs


class SubgraphLoader(BatchLoader):
    """Iterates over batches of subgraphs; one iteration is one epoch, one at a time. Trainer takes it as a DistLoader.

    Constructing and iterating are collective: every rank must do both, with the same arguments.

    Args:
      data: the opened partition.
      spec: how subgraphs are drawn and weighted.
      num_layers: of the model; all layers share a batch's one square MFG.
      subgraphs_per_step: subgraphs of a step over all ranks; None: one for every part of the partition, and 1000 for
        ego networks, which are small.
      steps_per_epoch: None: ceil(num_subgraphs / subgraphs_per_step), where after num_subgraphs the nodes with a loss
        have been in a batch once on average (SubgraphSampler.num_subgraphs; with locality in one of any part's).
      split: whose nodes have a loss: "train", "val" or "test".
      roots: where subgraphs begin, node ids of the partition, the same on all ranks; None: all nodes, and those of the
        split for ego networks, whose root alone has a loss.
      locality: None; "own": a subgraph begins at nodes of one part, or is of its clusters, and the rank that owns the
        part makes it. Other batches than without, and other ones on other numbers of parts; on any number of ranks the
        same. Weights "saint" make every node with a loss count the same on average (part_inclusion.py).
      scheme, prefetch, feature_dtype, transform, device, placement, transport, exchange, rails, cache: see
        SubgraphOptions and BatchOptions.
    Attributes:
      epoch, options, device, places, sharing, exchange, cache: see BatchLoader.
      subgraphs_per_step: as above, found.
    Raises:
      ValueError: an argument out of range; a split that is empty on all ranks; method "cluster" on a partition without
        clusters; what SubgraphSampler refuses.
    """

    def __init__(
        self,
        data: DistData,
        spec: SubgraphSpec,
        num_layers: int = 3,
        *,
        subgraphs_per_step: int | None = None,
        steps_per_epoch: int | None = None,
        split: str = "train",
        roots: Tensor | Sequence[int] | None = None,
        locality: str | None = None,
        scheme: str = "hybrid",
        prefetch: int = 0,
        feature_dtype: torch.dtype | None = None,
        transform: Callable[[MiniBatch], Any] | None = None,
        device: torch.device | str | None = None,
        placement: str = "auto",
        transport: str = "auto",
        exchange: str = "auto",
        rails: bool = True,
        cache: FeatureCache | MadeCache | None = None,
    ) -> None:
        check_data(data)
        ctx = data.ctx

        def check() -> tuple[SubgraphOptions, torch.device, Tensor | None]:
            own = SubgraphOptions(
                spec=spec, num_layers=num_layers, subgraphs_per_step=subgraphs_per_step,
                steps_per_epoch=steps_per_epoch, split=split, locality=locality, scheme=scheme, prefetch=prefetch,
                feature_dtype=feature_dtype, transform=transform, device=device, placement=placement,
                transport=transport, exchange=exchange, rails=rails, cache=cache,
            )  # fmt: skip
            return own, computing(ctx.device if device is None else device), _given_roots(data, own, roots)

        options, made_on, given = agree(ctx, check)
        agree_on(ctx.comm, "SubgraphLoader", options.facts() | {"roots": None if given is None else _digest(given)})
        loss = gather_loss_nodes(data, agree(ctx, lambda: data.split(split)))
        if loss.nodes.numel() == 0:
            raise ValueError(
                f"the {split} split is empty on all {ctx.world_size} rank(s); expected at least one node: add {split} "
                "nodes, or name another split."
            )
        roots_of = "roots"
        if given is None and spec.method == EGO:
            given, roots_of = loss.nodes.long(), f"the {split} split"  # no other root has a loss
        super().__init__(data, options, made_on)
        self._loss_nodes, self.subgraphs_per_step = loss.nodes, options.per_step(data.manifest.num_parts)
        self._resumed_step = 0  # at which `resume` took up its epoch
        samplers = agree(ctx, lambda: self._make_samplers(given, roots_of))
        self._count_inclusion(samplers)
        inclusion = self._add_up_parts(samplers)
        num_subgraphs = self._num_subgraphs(samplers, inclusion) if options.steps_per_epoch is None else 0
        self._steps_per_epoch = options.steps_per_epoch or -(-num_subgraphs // self.subgraphs_per_step)
        tables = agree(ctx, lambda: data.placed_tables(made_on, None, options.placement))
        self.places = tables.places
        sampler = _StepSampler(samplers, options, data.manifest.num_parts, loss.nodes, inclusion)
        source = self._supply(sampler, tables.features, self._workload)
        labels = None if loss.labels is None else LabelLossNodes(loss.to(made_on))
        self._begin(self._make_stages(sampler, source, labels))

    def __str__(self) -> str:
        """One line for a report."""
        spec = self.options.spec
        own = ", ".join(f"{name} {getattr(spec, name)}" for name in OF_METHOD[spec.method])
        return f"subgraphs by {spec.method}: {own}, weights {spec.weights}; {self.subgraphs_per_step} a step"

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks."""
        return self._steps_per_epoch

    def num_steps(self, epoch: int) -> int:
        """Steps that an iteration of this epoch makes: fewer than len(loader) in the epoch that was resumed."""
        return len(self._steps(epoch))

    def position(self, epoch: int, step: int) -> LoaderPosition:
        """See BatchLoader. No collective is run: a position of subgraphs is (epoch, step)."""
        found = LoaderPosition(epoch, step, torch.empty(0, dtype=torch.int64), SUBGRAPHS)
        self._check_step(epoch, step)
        return found

    def resume(self, position: LoaderPosition) -> None:
        """See BatchLoader; on any number of ranks, with the subgraphs_per_step and steps_per_epoch of the run before.

        Raises:
          ValueError: on all ranks, a position of another kind of loader, or a step that is not in its epoch.
        """
        check_position(position, SUBGRAPHS)
        self._check_step(position.epoch, position.step)
        self._resumed_step = position.step
        self.epoch = self._first_epoch = position.epoch

    def _steps(self, epoch: int) -> range:
        first = max(epoch * len(self), self._resumed_step)
        return range(first, max(first, (epoch + 1) * len(self)))

    def _steps_of(self, epoch: int) -> list[StepInput]:
        return self._inputs(self._steps(epoch), epoch)

    def _inputs(self, steps: range, epoch: int) -> list[StepInput]:
        """The steps with this rank's subgraphs by number, where other loaders have seeds."""
        return [StepInput(self._own_numbers(step), step, epoch, 0) for step in steps]

    def _own_numbers(self, step: int) -> Tensor:
        """Numbers of the subgraphs of a step that this rank makes, int64, ascending."""
        first = _first_number(step, self.subgraphs_per_step)
        numbers = torch.arange(first, first + self.subgraphs_per_step)
        ranks, num_parts = self.data.ctx.world_size, self.data.manifest.num_parts
        if self.options.locality == OWN_LOCALITY:
            return numbers[numbers % num_parts // (num_parts // ranks) == self.data.ctx.rank]
        return numbers[numbers % ranks == self.data.ctx.rank]

    def _check_step(self, epoch: int, step: int) -> None:
        first, last = epoch * len(self), (epoch + 1) * len(self)
        if not first <= step <= last:
            raise ValueError(
                f"step is {step}; expected {first} to {last}, the steps of epoch {epoch} and the one after: an epoch "
                f"has {len(self)} steps here; resume with the subgraphs_per_step and steps_per_epoch of the run before."
            )

    def _make_samplers(self, roots: Tensor | None, roots_of: str) -> dict[int, SubgraphSampler]:
        """By part the samplers of its subgraphs; without locality one, under 0.

        Args:
          roots: where subgraphs may begin; None: anywhere.
          roots_of: what has these nodes, for messages.
        Raises:
          ValueError: there are no clusters; with locality a part without roots; what the sampler refuses.
        """
        data, spec = self.data, self.options.spec
        if spec.method == CLUSTER and data.clusters is None:
            raise ValueError(
                f"{data.path} has no clusters, which method 'cluster' is made of; partition with --clusters K, or give "
                "a finished partition some by --repartition."
            )
        if self.options.locality is None:
            clusters = data.clusters if spec.method == CLUSTER else None
            return {0: SubgraphSampler(data.graph, spec, roots, clusters=clusters)}
        made = {}
        for part in own_parts(data.manifest.num_parts, data.ctx):
            begin, end = data.book.part2range(part)
            keyed = replace(spec, rng_seed=(spec.rng_seed + part * PART_KEYS) % 2**63)
            if spec.method == CLUSTER:
                made[part] = SubgraphSampler(data.graph, keyed, clusters=_within(data.clusters, begin, end))
                continue
            own = torch.arange(begin, end) if roots is None else roots[(roots >= begin) & (roots < end)]
            if not own.numel() and (roots is None or roots.numel()):
                nodes = f"nodes {begin} to {end - 1}" if begin < end else "it is empty"
                source = "the graph" if roots is None else roots_of
                raise ValueError(
                    f"{source} has no node in part {part} ({nodes}), but with locality 'own' subgraphs begin in every "
                    "part; pass roots with a node in each, or locality=None."
                )
            made[part] = SubgraphSampler(data.graph, keyed, own)
        return made

    def _count_inclusion(self, samplers: dict[int, SubgraphSampler]) -> None:
        """Share out the subgraphs that have to be counted. Collective: every rank must call this. Purpose "setup".

        With locality a part's subgraphs are its rank's alone, and counted there.
        """
        spec, comm = self.options.spec, self.data.ctx.comm
        sizes_follow = self.options.steps_per_epoch is not None or spec.method in (CLUSTER, EGO)
        if self.options.locality is not None or (spec.weights == NONE and sizes_follow):
            return
        sampler = samplers[0]
        if agree(self.data.ctx, lambda: sampler.needs_counts):
            bits = agree(self.data.ctx, lambda: sampler.count(share=(comm.rank, comm.world_size)))
            sampler.use_counts(comm.all_reduce(bits, purpose="setup"))

    def _add_up_parts(self, samplers: dict[int, SubgraphSampler]) -> PartInclusion | None:
        """With locality what weights of seeds and the length of an epoch need of all parts; None if neither does.

        Collective: every rank must call this. Purpose "setup".
        """
        spec, num_parts = self.options.spec, self.data.manifest.num_parts
        weighs = spec.weights == SAINT and num_parts > 1
        sizes_follow = self.options.steps_per_epoch is not None or spec.method in (CLUSTER, EGO)
        if self.options.locality is None or (sizes_follow and not weighs):
            return None
        return PartInclusion(self.data, samplers, self._loss_nodes, weighs)

    def _num_subgraphs(self, samplers: dict[int, SubgraphSampler], inclusion: PartInclusion | None) -> int:
        """Subgraphs of an epoch, the same on all ranks. Collective with locality. Purpose "setup".

        With locality clusters and ego networks have as many for every part as the one with the most needs.
        """
        ctx = self.data.ctx
        if self.options.locality is None:
            return agree(ctx, lambda: samplers[0].num_subgraphs(self._loss_nodes))
        if self.options.spec.method not in (CLUSTER, EGO):
            assert inclusion is not None
            return inclusion.num_subgraphs()
        most = max(sampler.num_subgraphs() for sampler in samplers.values())
        found = ctx.comm.all_reduce(torch.tensor([most]), op="max", purpose="setup")
        return int(found) * self.data.manifest.num_parts

    def _workload(self) -> Workload:
        """What this rank trains on, for a cache: the rows of its subgraphs."""
        lo, hi = self.data.own_range
        loss, sampler = self._loss_nodes, self._sampler

        def sample(epoch: int, first: int) -> Iterator[Tensor]:
            steps = self._inputs(range(first, first + len(self)), epoch)
            return (nodes.unique() for nodes in sampled_inputs(sampler, steps, torch.device("cpu")))

        return Workload(
            graph=self.data.graph, train_nodes=loss[(loss >= lo) & (loss < hi)], batch_size=self.subgraphs_per_step,
            rng_seed=self.options.spec.rng_seed, spec=None, steps_per_epoch=len(self), sample=sample,
            undirected=self.data.manifest.undirected,
        )  # fmt: skip

    def _make_stages(
        self, sampler: _StepSampler, source: DistFeatures | KeepingFeatures | None, labels: LabelLossNodes | None
    ) -> tuple[Stage, ...]:
        comm, clock, options, plans = self._comm, clock_of(self.device), self.options, self.exchange == PAIRED
        stages: list[Stage] = [Sample(sampler, comm, clock), *([] if plans else [CountSeeds(comm)])]
        repeats = source is not None and self.subgraphs_per_step > self.data.ctx.world_size
        if repeats:
            stages.append(OnceEach())
        if self.device.type != "cpu":
            stages.append(ToDevice(self.device))
        if source is not None:
            fetch = FetchAndCount if plans else Fetch
            stages.append(fetch(source, result_dtype(options, source), comm, clock, checked=False))
        if repeats:
            stages.append(RowsBack())
        if labels is not None:
            stages.append(labels)
        if options.transform is not None:
            stages.append(Transform(options.transform, comm, clock))
        return tuple(stages)


class _StepSampler:
    """A Sampler (sampling/sampler.py) whose seeds are numbers of subgraphs.

    Args:
      samplers: by part, or one under 0.
      options: of the loader.
      num_parts: of the partition.
      loss_nodes: see SubgraphSampler.batch.
      inclusion: of all parts, where seeds of subgraphs of several parts have weights.
    """

    def __init__(
        self, samplers: dict[int, SubgraphSampler], options: SubgraphOptions, num_parts: int, loss_nodes: Tensor,
        inclusion: PartInclusion | None,
    ) -> None:  # fmt: skip
        self._samplers, self._loss_nodes, self._layers = samplers, loss_nodes, options.num_layers
        self._rng_seed, self._per_step = options.spec.rng_seed, options.per_step(num_parts)
        self._turns = 1 if options.locality is None else num_parts
        self._inclusion = inclusion

    def sample(self, seeds: Tensor, step: int = 0) -> MiniBatch:
        """The disjoint union of the subgraphs with these numbers."""
        numbers = seeds.tolist()
        draw = DrawKey(self._rng_seed, step)
        batches = [
            sampler.batch(
                [number // self._turns for number in numbers if number % self._turns == part], self._layers,
                loss_nodes=self._loss_nodes, step=step,
            )
            for part, sampler in self._samplers.items()
        ]  # fmt: skip
        if self._turns == 1:
            return batches[0]
        joined = join_batches(batches, draw)
        if joined.seed_weights is not None:  # by the part's own law
            assert self._inclusion is not None
            first = _first_number(step, self._per_step)
            joined.seed_weights = self._inclusion.seed_weights(joined.seeds, first, self._per_step)
        return joined


def _first_number(step: int, per_step: int) -> int:
    """Number of the first subgraph of a step."""
    base = PRESAMPLED_FROM if step >= PRESAMPLED_FROM else 0
    return base + (step - base) * per_step


def _within(clusters: Tensor, begin: int, end: int) -> Tensor:
    """The clusters of some nodes, -1 for the others."""
    own = torch.full_like(clusters, -1)
    own[begin:end] = clusters[begin:end]
    return own


def _given_roots(data: DistData, options: SubgraphOptions, roots: Tensor | Sequence[int] | None) -> Tensor | None:
    if roots is None:
        return None
    if options.spec.method == CLUSTER:
        raise ValueError("roots is given but method is 'cluster', whose subgraphs begin nowhere; leave roots out.")
    return ids_within(roots, data.graph.num_nodes, "roots").cpu()


def _digest(ids: Tensor) -> str:
    return f"{ids.numel()} nodes, sha256 {hashlib.sha256(ids.numpy().tobytes()).hexdigest()[:8]}"

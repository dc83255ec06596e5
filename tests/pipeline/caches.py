"""What tests of feature caches share: following a loader step by step, and what one process predicts of it."""

import torch

from fastsample_dist import NeighborSampler, SampleSpec
from fastsample_dist.features.policies import Workload, score
from fastsample_dist.graph import hotness, storage
from fastsample_dist.pipeline.epoch_plan import EpochPlan, epoch_permutation
from tests.parts import FEATURE_DIM

NUM_NODES, FANOUTS, BATCH, EPOCHS = 240, [4, 3], 12, 2
PAIRED = {"transport": "exchange", "exchange": "paired"}
ROW, ID = 2 * FEATURE_DIM, 4  # bytes: rows are stored as float16
TENTH = 24 * ROW + 64 * 8  # and 64 pairs of (node, slot) to find 24 rows


def same(one, other):
    """Whether two batches are equal bit for bit."""
    tensors = ("seeds", "input_nodes", "features", "labels")
    mfgs = zip(one.mfgs, other.mfgs, strict=True)
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in tensors) and all(
        torch.equal(a.indices, b.indices) for a, b in mfgs
    )


def rows_of(report):
    return (report.own, report.neighbour, report.cached, report.kept, report.exchanged)


def follow(loader, plain, comm):
    """Per step of an epoch: (rows by where they came from, bytes of ids sent, bytes of rows received)."""
    steps, before = [], (0,) * 5
    batches = iter(loader)
    for expected in plain:
        comm.reset_stats()
        batch = next(batches)
        assert same(batch, expected)
        now, stats = rows_of(loader.cache_report(batch.epoch)), comm.stats()
        steps.append((
            tuple(new - old for new, old in zip(now, before, strict=True)),
            stats.get("feature_ids", {}).get("bytes_sent", 0), stats.get("feature_rows", {}).get("bytes_received", 0),
        ))  # fmt: skip
        before = now
    assert next(batches, None) is None
    return steps


class OneProcess:
    """What every rank of a partition samples, in one process."""

    def __init__(self, path, rank):
        manifest = storage.read_manifest(path)
        self.graph, self.rank = storage.load_topology(path, manifest), rank
        parts = [storage.load_part(path, manifest, part).splits["train"] for part in range(manifest.num_parts)]
        self.seeds, self.counts = parts[rank], [part.numel() for part in parts]
        self.sampler = NeighborSampler(self.graph, FANOUTS)
        self.own = torch.zeros(NUM_NODES, dtype=torch.bool)
        self.own[slice(*manifest.part_ranges[rank : rank + 2])] = True
        self.num_steps = EpochPlan(0, 0, self.counts, BATCH).num_steps

    def inputs(self, epoch, first_step):
        plan = EpochPlan(epoch, first_step, self.counts, BATCH)
        order = self.seeds[epoch_permutation(self.seeds.numel(), 0, epoch, self.rank)]
        return [self.sampler.sample(given.seeds, given.step).input_nodes for given in plan.step_inputs(order)]

    def visits(self):
        """int64 [num_nodes]; in EPOCHS epochs."""
        batches = (nodes for epoch in range(EPOCHS) for nodes in self.inputs(epoch, epoch * self.num_steps))
        return hotness.counts(batches, NUM_NODES)

    def scores(self, policy):
        workload = Workload(
            graph=self.graph, train_nodes=self.seeds, batch_size=BATCH, rng_seed=0,
            spec=SampleSpec(fanouts=tuple(FANOUTS)), steps_per_epoch=self.num_steps, sample=self.inputs,
        )  # fmt: skip
        trained = [(epoch, epoch * self.num_steps) for epoch in range(EPOCHS)]
        return score(policy, workload, presample_epochs=2, trained=trained)

    def cached(self, policy, num_rows):
        """bool [num_nodes]; whose rows a cache of so many holds."""
        held = torch.zeros(NUM_NODES, dtype=torch.bool)
        held[hotness.hottest(self.scores(policy), hotness.original_ids(self.graph), num_rows, ~self.own)] = True
        return held

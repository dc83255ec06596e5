"""EpochPlan: steps from the virtual ranks' numbers of seeds alone, whichever process executes them."""

import pytest
import torch

from fastsample_dist import DistContext, DistData, DistLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.pipeline.epoch_plan import EpochPlan, epoch_permutation
from fastsample_dist.pipeline.options import LoaderOptions
from fastsample_dist.pipeline.schemes import make_sampler
from fastsample_dist.pipeline.stages import make_stages, run_stages
from fastsample_dist.testing import run_distributed
from tests.grids import grid
from tests.parts import draw_partition

FANOUTS, BATCH, SEED, EPOCHS = [3, 2], 11, 2**35 + 1, 2


@pytest.mark.parametrize(
    ("counts", "drop_last", "global_seeds"),
    [
        ([7, 3], False, [7, 3]),
        ([7, 0, 9], False, [8, 7, 1]),  # a virtual rank without seeds
        ([0, 0], False, []),
        ([], False, []),  # nobody trains
        ([9, 8], True, [8, 8]),
        ([9, 3], True, []),
        ([], True, []),
    ],
)
def test_steps_are_those_of_the_most_seeds_or_of_full_batches(counts, drop_last, global_seeds):
    plan = EpochPlan(epoch=3, first_step=40, seeds_per_rank=counts, batch_size=4, drop_last=drop_last)
    assert [plan.num_global_seeds(i) for i in range(plan.num_steps)] == global_seeds
    for count in counts:
        steps = plan.step_inputs(torch.arange(count))
        assert [(one.step, one.epoch, one.num_global_seeds) for one in steps] == [
            (40 + i, 3, total) for i, total in enumerate(global_seeds)
        ]
        used = torch.cat([one.seeds for one in steps]) if steps else torch.arange(0)
        assert used.tolist() == list(range(min(count, len(global_seeds) * 4)))
        assert plan.seeds_from(40, torch.arange(count)).tolist() == used.tolist()


def test_the_seeds_of_all_virtual_ranks_are_added_up_once_for_all_steps():
    """Not anew for every step: with many parts that would take longer than the epoch's first batches."""

    class Counted(list):
        passes = 0

        def __iter__(self):
            Counted.passes += 1
            return super().__iter__()

    counts = [(37 * rank) % 101 for rank in range(50)]
    plan = EpochPlan(epoch=0, first_step=0, seeds_per_rank=Counted(counts), batch_size=3)
    found = [one.num_global_seeds for one in plan.step_inputs(torch.arange(100))]
    assert Counted.passes < 10 < len(found)
    assert found == [sum(min(max(count - 3 * step, 0), 3) for count in counts) for step in range(len(found))]
    assert all(type(total) is int for total in found)


def facts_of(data, batch):
    """All that a batch is; two processes' tensors compare as bytes."""
    edges = [(mfg.indptr.tolist(), mfg.indices.tolist(), data.orig_ids(mfg.src_nodes).tolist()) for mfg in batch.mfgs]
    own = (batch.epoch, batch.step, batch.num_global_seeds, batch.seeds.tolist(), batch.loss_weight)
    return (*own, edges, batch.features.tolist(), batch.labels.tolist())


def run_rank(ctx, path, scheme):
    data = DistData.load(path, ctx)
    loader = DistLoader(data, FANOUTS, BATCH, rng_seed=SEED, scheme=scheme)
    return [facts_of(data, batch) for _ in range(EPOCHS) for batch in loader]


@pytest.mark.parametrize("scheme", grid(["hybrid", "vanilla"], gate=["vanilla"]))
def test_one_process_makes_the_batches_of_two_virtual_ranks_one_after_another(tmp_path, scheme):
    path = draw_partition(tmp_path, 2).path
    expected = run_distributed(2, run_rank, args=(path, scheme))
    options = LoaderOptions(fanouts=FANOUTS, batch_size=BATCH, rng_seed=SEED)
    with DistContext(LocalCommunicator()) as ctx:
        data = DistData.load(path, ctx)
        sampler = make_sampler(data, scheme, options.spec, ctx.comm)
        stages = make_stages(data, options, ctx.comm, sampler, data.features, ctx.device)
        train, (low, middle, high) = data.split("train"), data.book.part_ranges.tolist()
        per_rank = [train[(train >= low) & (train < middle)], train[(train >= middle) & (train < high)]]
        counts = [seeds.numel() for seeds in per_rank]
        assert counts[0] != counts[1], "one virtual rank runs out of seeds first"
        found = []
        for rank, seeds in enumerate(per_rank):
            steps, first_step = [], 0
            for epoch in range(EPOCHS):
                plan = EpochPlan(epoch, first_step, counts, BATCH)
                steps += plan.step_inputs(seeds[epoch_permutation(counts[rank], SEED, epoch, rank)])
                first_step += plan.num_steps
            found.append([facts_of(data, run_stages(stages, ctx.comm, given)) for given in steps])
    assert found == expected

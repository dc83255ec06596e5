"""A loader's position: saved in original ids, resumed by as many ranks or another number, each seed once an epoch."""

import pytest
import torch

from fastsample_dist import DistData, DistLoader
from fastsample_dist.pipeline.epoch_plan import EpochPlan
from fastsample_dist.pipeline.position import LoaderPosition, in_turn, pick_own
from fastsample_dist.testing import run_distributed
from tests.grids import grid
from tests.parts import draw_partition

FANOUTS, BATCH = [3, 2], 10


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("alone"), 1)


@pytest.mark.parametrize("lengths", [(5,), (0,), (3, 3), (2, 0, 5, 5, 1), (0, 0), (0, 4), (7, 3, 3, 1)], ids=str)
def test_in_turn_takes_one_entry_of_each_list_after_the_other(lengths):
    lists = [100 * number + torch.arange(length) for number, length in enumerate(lengths)]
    turns = range(max(lengths))
    expected = [int(entries[turn]) for turn in turns for entries in lists if turn < len(entries)]
    found = in_turn(lists)
    assert found.tolist() == expected and found.dtype == torch.int64


def test_in_turn_of_one_list_copies_nothing():
    (only,) = lists = [torch.arange(5)]
    assert in_turn(lists) is only


def test_in_turn_holds_little_beside_its_result():
    """A place for every entry, and their order, would be several times the result."""
    lists = [torch.arange(100_000 + number) for number in range(8)]
    with torch.profiler.profile(profile_memory=True) as profile:
        found = in_turn(lists)
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert found.nbytes <= peak < 2 * found.nbytes


def facts_of(data, batch):
    """What a batch is, in original ids."""
    inputs = data.orig_ids(batch.input_nodes).tolist()
    return batch.epoch, batch.step, batch.num_global_seeds, data.orig_ids(batch.seeds).tolist(), inputs


def make_loader(ctx, path, batch_size=BATCH, **options):
    data = DistData.load(path, ctx)
    return data, DistLoader(data, FANOUTS, batch_size, rng_seed=7, **options)


def first_steps(ctx, path, steps, batch_size, prefetch):
    """Batches of the first steps, and the position after them as rank 0 has it."""
    data, loader = make_loader(ctx, path, batch_size, prefetch=prefetch)
    batches = []
    while len(batches) < steps:
        for batch in loader:
            batches.append(facts_of(data, batch))
            if len(batches) == steps:
                break
    return batches, loader.position(batches[-1][0], steps)


def further_epochs(ctx, path, position, batch_size, prefetch, epochs):
    """Batches from the position on."""
    data, loader = make_loader(ctx, path, batch_size, prefetch=prefetch)
    loader.resume(position)
    return [facts_of(data, batch) for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("steps", [1, 5, 11, 14, 22])  # 11 steps an epoch
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_resumed_loader_makes_the_batches_that_were_still_to_come(alone, ctx, steps, prefetch):
    data, whole = make_loader(ctx, alone.path)
    expected = [facts_of(data, batch) for _ in range(3) for batch in whole]
    before, position = first_steps(ctx, alone.path, steps, BATCH, prefetch)
    after = further_epochs(ctx, alone.path, position, BATCH, prefetch, epochs=3 - position.epoch)
    assert before + after == expected


def test_on_the_same_number_of_ranks_every_rank_resumes_with_its_own_batches(drawn):
    whole = run_distributed(2, first_steps, args=(drawn.path, 12, BATCH, 0))
    first = run_distributed(2, first_steps, args=(drawn.path, 4, BATCH, 0))
    after = run_distributed(2, further_epochs, args=(drawn.path, first[0][1], BATCH, 0, 2))
    for rank in range(2):
        assert (first[rank][0] + after[rank])[:12] == whole[rank][0]


@pytest.mark.parametrize("ranks", grid([(1, 4), (2, 1), (2, 4), (4, 2), (4, 1)], gate=[(2, 1), (4, 2)]), ids=str)
def test_on_another_number_of_ranks_each_remaining_seed_is_seen_once(drawn, ranks):
    ranks_before, ranks_after = ranks
    before = run_distributed(ranks_before, first_steps, args=(drawn.path, 2, BATCH, 0))
    after = run_distributed(ranks_after, further_epochs, args=(drawn.path, before[0][1], BATCH, 0, 2))
    batches = [batch for rank in before for batch in rank[0]] + [batch for rank in after for batch in rank]
    seeds_of = {epoch: sorted(seed for found, _, _, seeds, _ in batches if found == epoch for seed in seeds)
                for epoch in (0, 1)}  # fmt: skip
    assert seeds_of[0] == seeds_of[1] == drawn.splits["train"].tolist()
    steps = [batch[1] for batch in after[0]]
    assert steps == list(range(2, 2 + len(steps)))
    assert all([batch[1] for batch in rank] == steps for rank in after)


def test_two_changes_within_one_epoch_still_see_each_seed_once(drawn):
    def middle(ctx, path, position):
        data, loader = make_loader(ctx, path, 4)
        loader.resume(position)
        batch = next(iter(loader))
        return facts_of(data, batch)[3], loader.position(0, batch.step + 1)

    first = run_distributed(4, first_steps, args=(drawn.path, 2, 5, 0))
    second = run_distributed(2, middle, args=(drawn.path, first[0][1]))
    last = run_distributed(1, further_epochs, args=(drawn.path, second[0][1], 9, 0, 1))
    seeds = [seed for rank in first for batch in rank[0] for seed in batch[3]]
    seeds += [seed for rank in second for seed in rank[0]] + [seed for batch in last[0] for seed in batch[3]]
    assert sorted(seeds) == drawn.splits["train"].tolist()


def test_half_the_ranks_with_twice_the_batch_size_make_the_same_batches(drawn):
    def union(results, steps):
        return [sorted(seed for rank in results for seed in rank[i][3]) for i in range(steps)]

    whole = [rank[0] for rank in run_distributed(2, first_steps, args=(drawn.path, 4, BATCH, 0))]
    first = run_distributed(2, first_steps, args=(drawn.path, 1, BATCH, 0))
    after = run_distributed(1, further_epochs, args=(drawn.path, first[0][1], 2 * BATCH, 0, 1))
    assert union(after, 3) == union(whole, 4)[1:]


def stop_early(ctx, path):
    data, loader = make_loader(ctx, path, transport="exchange", exchange="paired")
    ctx.comm.reset_stats()
    for batch in loader:
        if batch.step == 1:
            break
    fetched = ctx.comm.stats()["feature_rows"]["calls"]
    position = loader.position(0, 2)
    _, other = make_loader(ctx, path, transport="exchange", exchange="paired")
    rows = len(position.remaining)
    position = ctx.comm.all_gather_object(position, purpose="test")[0]
    other.resume(position)
    ctx.comm.reset_stats()
    rest = len(list(other))
    return fetched, rows, rest, ctx.comm.stats()["feature_rows"]["calls"], len(data.split("train"))


def test_batches_already_used_are_not_fetched_again_and_only_rank_0_holds_the_remaining_seeds(drawn):
    zero, one = run_distributed(2, stop_early, args=(drawn.path,))
    assert zero[0] == one[0] == 2
    assert (zero[1], one[1]) == (zero[4] + one[4] - 4 * BATCH, 0)
    assert zero[2] == zero[3] == one[2] == one[3] == 4


def test_the_end_of_an_epoch_leaves_no_step_and_keeps_the_numbering(alone, ctx):
    _, position = first_steps(ctx, alone.path, 11, BATCH, 0)
    _, loader = make_loader(ctx, alone.path)
    loader.resume(position)
    assert (position.epoch, position.remaining.numel(), loader.num_steps(0), loader.num_steps(1)) == (0, 0, 0, 11)
    assert (list(loader), [batch.step for batch in loader]) == ([], list(range(11, 22)))


def test_an_epoch_before_the_resumed_one_is_refused(alone, ctx):
    _, loader = make_loader(ctx, alone.path)
    loader.resume(LoaderPosition(3, 40, torch.empty(0, dtype=torch.int64)))
    with pytest.raises(ValueError, match="epoch is 2; expected an integer >= 3"):
        loader.set_epoch(2)


def test_seeds_of_another_graph_are_refused(alone, ctx):
    data, loader = make_loader(ctx, alone.path)
    val = data.orig_ids(data.split("val")[:2])
    with pytest.raises(ValueError, match="2 seeds of epoch 0 are still to come but 0 of them are in the train split"):
        loader.resume(LoaderPosition(0, 3, val))


@pytest.mark.parametrize("given", [None, 3, {}])
def test_what_is_no_position_is_refused(alone, ctx, given):
    _, loader = make_loader(ctx, alone.path)
    with pytest.raises(ValueError, match=f"position is {given!r}; expected a LoaderPosition, as loader.position"):
        loader.resume(given)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((None, 0, torch.tensor([1])), "epoch is None; expected an integer >= 0"),
        ((0, -3, torch.tensor([1])), "step is -3; expected an integer >= 0"),
        ((0, 0, [1]), "remaining is a list; expected a tensor"),
        ((0, 0, torch.tensor([1.5])), r"remaining is torch.float32 of shape \(1,\); expected one dimension of int64"),
    ],
)
def test_a_position_of_another_kind_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        LoaderPosition(*values)


def test_a_step_outside_the_epoch_is_refused():
    plan, seeds = EpochPlan(epoch=2, first_step=8, seeds_per_rank=[7], batch_size=2), torch.arange(7)
    assert (plan.seeds_from(9, seeds).tolist(), plan.seeds_from(12, seeds).tolist()) == ([2, 3, 4, 5, 6], [])
    for step in (7, 13):
        with pytest.raises(ValueError, match=f"step is {step}; expected 8 to 12"):
            plan.seeds_from(step, seeds)


def test_own_ids_are_picked_in_the_order_of_the_remaining_ones():
    own = torch.tensor([50, 10, 30])
    assert own[pick_own(torch.tensor([30, 20, 50, 99, 1]), own)].tolist() == [30, 50]
    assert pick_own(torch.tensor([3]), own[:0]).tolist() == []

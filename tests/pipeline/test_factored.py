"""Batches of ranks with roles are those of plain ranks, one per part, whoever samples and whoever trains.

The oracle is a run of as many plain ranks as there are parts. What ranks with roles do when one fails is in
test_roles_failing.py, what loaders with roles refuse in test_roles_options.py.
"""

import numpy as np
import pytest
import torch

from fastsample_dist import DistData, DistLoader, Roles
from fastsample_dist.comm.trace import Trace
from fastsample_dist.pipeline import factored
from fastsample_dist.sampling import transit
from fastsample_dist.testing import run_distributed
from tests.parts import draw_partition
from tests.pipeline.batch_fields import fields_of
from tests.waiting import ENOUGH_S, wait_until

PARTS, BATCH, SEED, NUM_EDGES = 4, 7, 2**35 + 1, 3000
CASES = {
    "uniform": {"fanouts": [4, 3]},
    "weighted, with edge ids": {"fanouts": [4, 3], "method": "weighted", "edge_ids": True},
    "replaced": {"fanouts": [4, 3], "replace": True, "drop_last": True},
    "labor": {"fanouts": [4, 3], "method": "labor", "shuffle": False},
    "ladies": {"app": lambda: transit.LADIES((9, 7))},
    "khop": {"app": lambda: transit.KHop((4, 3))},
}
TIMES = ("sampling", "fetching")
SPLITS = ("1+3", "2+2", "3+1")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    weights = np.random.default_rng(1).random(NUM_EDGES)
    return draw_partition(tmp_path_factory.mktemp("drawn"), PARTS, weights=weights).path


def seen(batch):
    return {name: value for name, value in fields_of(batch).items() if name not in TIMES}


def make_loader(data, case="uniform", **more):
    options = dict(CASES[case]) | more
    if "app" in options:
        options["app"] = options["app"]()
    return DistLoader(data, batch_size=BATCH, rng_seed=SEED, **options)


def of_plain_ranks(loader, rank, epochs=(0,)):
    """{(epoch, virtual rank, step): batch} of this rank."""
    found = {}
    for epoch in epochs:
        loader.set_epoch(epoch)
        found |= {(epoch, rank, batch.step): seen(batch) for batch in loader}
    return found


def of_tasks(loader, epoch, first=0, count=None):
    """{(epoch, virtual rank, step): batch} that this rank trained, [(task, version)], [groups updated]."""
    found, order, updated = {}, [], []

    def train(task, batch, version):
        assert (task.epoch, task.step) == (batch.epoch, batch.step) and task.group not in updated
        found[task.epoch, task.virtual_rank, task.step] = seen(batch)
        order.append((task, version))

    count = loader.num_steps(epoch) - first if count is None else count
    assert loader.executor.run(epoch, first, count, train, updated.append) == first + count
    return found, order, updated


def merged(results):
    """Entries of all ranks' dictionaries; each is in one of them."""
    whole = {key: value for own in results for key, value in own.items()}
    assert len(whole) == sum(map(len, results))
    return whole


def plain_and_factored(ctx, path):
    """Per case the batches of plain ranks and, per split, of tasks."""
    data = DistData.load(path, ctx)
    if ctx.rank == 2:  # an empty split on one rank
        data._splits["train"] = data.split("train")[:0]
    found = {}
    for case in CASES:
        if case == "replaced" and ctx.rank == 2:  # drop_last needs a full batch
            data._splits["train"] = torch.arange(*data.own_range)[:20]
        found[case] = {"plain": of_plain_ranks(make_loader(data, case), ctx.rank)}
        for roles in SPLITS:
            found[case][roles] = of_tasks(make_loader(data, case, roles=roles), 0)[0]
    return found


@pytest.fixture(scope="module")
def four(path):
    return run_distributed(4, plain_and_factored, args=(path,), timeout_s=ENOUGH_S)


@pytest.mark.parametrize("case", CASES)
def test_tasks_have_the_batches_of_plain_ranks(four, case):
    expected = merged([rank[case]["plain"] for rank in four])
    for roles in SPLITS:
        assert merged([rank[case][roles] for rank in four]) == expected
    assert len({step for _, _, step in expected}) >= 2


def several_runs(ctx, path):
    """One loader of plain ranks and several with roles, by what is asked of them."""
    data = DistData.load(path, ctx)
    found, plain = {}, make_loader(data)
    whole = of_plain_ranks(plain, ctx.rank, epochs=(0, 1))
    found["plain"], found["position"] = whole, plain.position(0, 2)

    loader = make_loader(data, roles="2+2", staleness=1)
    first, second = of_tasks(loader, 0, count=2), of_tasks(loader, 0, first=2)
    further = of_tasks(loader, 1)
    found["segments"], found["order"] = first[0] | second[0] | further[0], [first[1:], second[1:], further[1:]]
    found["steps"] = loader.first_step(0), loader.first_step(1), len(loader), loader.num_steps(1)
    found["position with roles"] = loader.position(0, 2)

    whole_position = ctx.comm.all_gather_object(found["position with roles"], purpose="test")[0]
    resumed, plain = make_loader(data, roles=Roles(1, 3)), make_loader(data)
    for one in (resumed, plain):
        one.resume(whole_position)
    found["resumed plain"] = {(0, ctx.rank, batch.step): seen(batch) for batch in plain}
    found["resumed"] = of_tasks(resumed, 0)[0]
    found["resumed steps"] = resumed.first_step(0), resumed.num_steps(0), resumed.epoch, resumed.first_step(1)
    found["resumed position"] = resumed.position(0, 4), plain.position(0, 4)

    late = make_loader(data, roles="auto")
    found["auto"] = late.roles, late.executor, next(iter(late)).step
    late.resume(whole_position)
    late.take_roles(Roles(3, 1))
    found["late"] = of_tasks(late, 0)[0]

    own = torch.arange(*data.own_range).flip(0)[: 9 if ctx.rank else 0]
    given = [DistLoader(data, [3], 4, seeds=own, transform=marked, roles=roles) for roles in ("none", "1+3")]
    found["given plain"] = of_plain_ranks(given[0], ctx.rank)
    found["given"] = of_tasks(given[1], 0)[0]
    return found


def marked(batch):
    batch.mark = int(batch.seeds.sum())
    return batch


@pytest.fixture(scope="module")
def runs(path):
    return run_distributed(4, several_runs, args=(path,), timeout_s=ENOUGH_S)


def of_all(runs, name):
    return merged([rank[name] for rank in runs])


def test_an_epoch_in_segments_and_the_next_one_are_those_of_plain_ranks(runs):
    assert of_all(runs, "segments") == of_all(runs, "plain")
    assert {rank["steps"] for rank in runs} == {(0, 4, 4, 4)}


def test_trainers_train_at_the_version_of_a_constant_delay(runs):
    """Staleness 1: version group - 1, but a segment begins with the parameters that all ranks have."""
    for number, (begin, end) in enumerate([(0, 2), (2, 4), (0, 4)]):
        trained = [pair for rank in runs for pair in rank["order"][number][0]]
        assert sorted(task.number for task, _ in trained) == list(range(PARTS * begin, PARTS * end))
        assert all(version == max(begin, task.group - 1) for task, version in trained)
        assert [rank["order"][number][1] for rank in runs] == [list(range(begin, end)), [], [], []]


def test_samplers_are_the_last_ranks_and_rank_0_updates(runs):
    assert all(rank["order"][0][0] == [] or number < 2 for number, rank in enumerate(runs))


def same_position(one, other):
    return (one.epoch, one.step, one.of) == (other.epoch, other.step, other.of) and torch.equal(
        one.remaining, other.remaining
    )


def test_a_position_is_that_of_plain_ranks(runs):
    assert all(same_position(rank["position"], rank["position with roles"]) for rank in runs)
    assert runs[0]["position"].remaining.numel() > 0 == runs[1]["position"].remaining.numel()


def test_a_run_with_roles_resumes_where_plain_ranks_would(runs):
    expected = of_all(runs, "resumed plain")
    assert of_all(runs, "resumed") == expected == of_all(runs, "late")
    assert expected == {key: value for key, value in of_all(runs, "plain").items() if key[0] == 0 and key[2] >= 2}
    assert {rank["resumed steps"] for rank in runs} == {(2, 2, 0, 4)}
    assert all(same_position(*rank["resumed position"]) for rank in runs)


def test_auto_is_not_chosen_until_it_is_and_iterates_like_plain_ranks(runs):
    assert [rank["auto"] for rank in runs] == [("auto", None, 0)] * 4


def test_given_seeds_and_a_transform_are_those_of_plain_ranks(runs):
    batches = of_all(runs, "given")
    assert batches == of_all(runs, "given plain") and all("mark" in batch for batch in batches.values())


def four_parts_on_two_ranks(ctx, path, position):
    """All that two ranks can differ in from four."""
    data = DistData.load(path, ctx)
    found = {"1+1": of_tasks(make_loader(data, roles="1+1"), 0)[0]}
    resumed = make_loader(data, roles="1+1")
    resumed.resume(position)
    found["resumed"] = of_tasks(resumed, 0)[0]

    factored.switching_of = lambda roles: factored.ALWAYS
    ctx.comm.watch.trace = trace = Trace.start(ctx.comm)
    loader, trained = make_loader(data, roles="1+1"), {}
    others = loader.executor._queue

    def train(task, batch, version):
        if ctx.rank == 0 and task.group < 2:  # somebody else trains a task of every such group first
            wait_until(lambda: others.tasks_done > PARTS * task.group, "a sampler to train")
        trained[0, task.virtual_rank, task.step] = seen(batch)

    assert loader.executor.run(0, 0, len(loader), train, lambda group: None) == len(loader)
    found["switching"], found["tally"] = trained, loader.executor.tally
    found["rows"] = loader.rows.inputs, loader.cache_report(0).neighbour
    found["spans"] = [(event[0], event[5]) for event in trace._events if event[1] == "stage"]
    return found


@pytest.fixture(scope="module")
def two(path, runs):
    return run_distributed(2, four_parts_on_two_ranks, args=(path, runs[0]["position"]), timeout_s=ENOUGH_S)


def test_two_ranks_make_the_batches_of_four(two, runs):
    first = {key: value for key, value in of_all(runs, "plain").items() if key[0] == 0}
    assert of_all(two, "1+1") == first
    assert of_all(two, "resumed") == of_all(runs, "resumed plain")


def test_a_sampler_that_trains_changes_no_batch(two):
    assert of_all(two, "switching") == of_all(two, "1+1")
    trainer, sampler = (rank["tally"] for rank in two)
    assert (trainer.sampled, trainer.stood_by, trainer.sample_s) == (0, 0, 0.0)
    assert sampler.sampled == trainer.trained + sampler.trained == 4 * PARTS
    assert sampler.stood_by == sampler.trained >= 2 and min(sampler.sample_s, sampler.hand_over_s) > 0


def test_a_trace_shows_who_sampled_and_who_switched(two):
    trainer, sampler = (rank["spans"] for rank in two)
    assert {name for name, _ in trainer} == {"fetch"}
    assert {name for name, _ in sampler} == {"sample", "hand over", "standby", "fetch"}
    standing_by = [step for name, step in sampler if name == "standby"]
    assert len(standing_by) == two[1]["tally"].stood_by and {0, 1} <= set(standing_by)


def test_rows_are_counted_by_the_rank_that_fetched_them(two):
    inputs = sum(batch["input_nodes"][1][0] for batch in of_all(two, "switching").values())
    assert sum(rank["rows"][0] for rank in two) == inputs and all(rank["rows"][1] > 0 for rank in two)

"""WalkLoader: every walk once an epoch, the same walks by original id on any parts and ranks, positions, refusals."""

import dataclasses

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph, DistContext, DistData, SkipGram, WalkLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.pipeline import walk_loader
from fastsample_dist.pipeline.epoch_plan import EpochPlan
from fastsample_dist.sampling import transit
from fastsample_dist.testing import run_distributed
from tests.grids import grid
from tests.parts import draw_partition

LENGTH, WALKS, BATCH = 4, 2, 33
NUM_NODES = 240
APP = transit.DeepWalk(LENGTH)


class HalfSteps(transit.DeepWalk):
    def steps(self):
        return 2.5


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("alone"), 1)


@pytest.fixture
def ctx():
    with DistContext(LocalCommunicator()) as context:
        yield context


def original(data, walks):
    """Walks in original ids."""
    return torch.where(walks < 0, walks, data.orig_ids(walks.clamp(min=0)))


def facts_of(data, batch):
    """What a batch is, in original ids."""
    sizes = batch.part_sizes
    return (
        batch.epoch,
        batch.step,
        batch.num_global_walks,
        sizes,
        batch.sample_ids.tolist(),
        original(data, batch.walks).tolist(),
    )


def make_loader(ctx, path, **options):
    data = DistData.load(path, ctx)
    return data, WalkLoader(data, APP, **{"walks_per_node": WALKS, "batch_size": BATCH, "rng_seed": 7, **options})


def walks_by_id(ctx, path, epochs=2, **options):
    """{(epoch, sample id): walk} of some epochs on this rank, and the steps of every epoch."""
    data, loader = make_loader(ctx, path, **options)
    before = data.ctx.comm.stats()
    found = {}
    for _ in range(epochs):
        for batch in loader:
            assert batch.walks.dtype == torch.int64 and batch.walks.shape == (sum(batch.part_sizes), LENGTH + 1)
            for sample, walk in zip(batch.sample_ids.tolist(), original(data, batch.walks).tolist(), strict=True):
                assert (batch.epoch, sample) not in found
                found[batch.epoch, sample] = walk
    assert data.ctx.comm.stats() == before  # nothing was exchanged
    return found


def test_an_epoch_has_every_walk_once_and_it_is_the_application_s(alone, ctx):
    found = walks_by_id(ctx, alone.path)
    ids = torch.arange(NUM_NODES * WALKS)
    for epoch in (0, 1):
        expected = transit.plain.sample(alone.graph, APP, ids % NUM_NODES, 7, epoch, ids).vertices.tolist()
        assert [found.pop((epoch, sample)) for sample in ids.tolist()] == expected
    assert not found


def test_numbers_of_numpy_and_torch_are_pythons(alone, ctx):
    given = {"walks_per_node": np.int64(WALKS), "batch_size": torch.tensor(BATCH), "rng_seed": np.uint32(7)}
    assert walks_by_id(ctx, alone.path, 1, **given) == walks_by_id(ctx, alone.path, 1)


@pytest.mark.parametrize("world_size", grid([1, 2, 4], gate=[1, 2]))
def test_walks_do_not_depend_on_parts_and_ranks(drawn, alone, ctx, world_size):
    expected = walks_by_id(ctx, alone.path)
    found = run_distributed(world_size, walks_by_id, args=(drawn.path,))
    assert sum(map(len, found)) == len(expected)
    assert {key: walk for of_rank in found for key, walk in of_rank.items()} == expected


def batches_of(ctx, path, epochs=2, **options):
    data, loader = make_loader(ctx, path, **options)
    return [facts_of(data, batch) for _ in range(epochs) for batch in loader]


def test_batches_depend_on_parts_alone(drawn):
    (one,), two = run_distributed(1, batches_of, args=(drawn.path,)), run_distributed(2, batches_of, args=(drawn.path,))
    assert len(one) == len(two[0]) == len(two[1])
    for whole, *own in zip(one, *two, strict=True):
        assert all(part[:3] == whole[:3] for part in own)
        assert [sum((part[field] for part in own), type(whole[field])()) for field in (3, 4, 5)] == list(whole[3:])


def test_shuffled_anew_every_epoch_unless_not(alone, ctx):
    orders = [
        [[sample for batch in batches if batch[0] == epoch for sample in batch[4]] for epoch in (0, 1)]
        for batches in (batches_of(ctx, alone.path), batches_of(ctx, alone.path, shuffle=False))
    ]
    assert sorted(orders[0][0]) == sorted(orders[0][1]) == orders[1][0] == orders[1][1]
    assert orders[0][0] != orders[0][1] != orders[1][0]


def test_a_step_s_input_is_made_when_its_turn_comes(drawn, ctx, monkeypatch):
    made, step_input = [], EpochPlan.step_input
    monkeypatch.setattr(EpochPlan, "step_input", lambda *args: made.append(args[1]) or step_input(*args))
    _, loader = make_loader(ctx, drawn.path, batch_size=5)
    batches = iter(loader)
    next(batches)
    assert made == [0] * 4  # one per part
    next(batches)
    assert made == [0] * 4 + [1] * 4


def test_prefetched_batches_are_the_same(alone, ctx):
    assert batches_of(ctx, alone.path, prefetch=3) == batches_of(ctx, alone.path)


def some_steps(ctx, path, position=None, steps=10**6, epochs=2, **options):
    """Batches up to a step, from a position on; the position after them as rank 0 has it."""
    data, loader = make_loader(ctx, path, **options)
    if position is not None:
        loader.resume(position)
    batches = []
    while loader.epoch < epochs:
        for batch in loader:
            batches.append(facts_of(data, batch))
            if batch.step + 1 == steps:
                return batches, loader.position(batch.epoch, steps)
    return batches, None


@pytest.mark.parametrize("steps", [1, 7, 15, 16])  # 15 steps an epoch
def test_a_resumed_loader_makes_the_batches_that_were_still_to_come(alone, ctx, steps):
    before, position = some_steps(ctx, alone.path, steps=steps)
    after, _ = some_steps(ctx, alone.path, position)
    assert before + after == batches_of(ctx, alone.path)


@pytest.mark.parametrize("world_size", [1, 2])
def test_resumed_by_another_number_of_ranks(drawn, world_size):
    before = run_distributed(2, some_steps, args=(drawn.path, None, 2))
    position = before[0][1]
    expected = [batch for batch in run_distributed(1, batches_of, args=(drawn.path,))[0] if batch[1] >= 2]
    after = run_distributed(world_size, some_steps, args=(drawn.path, position))
    for rank, (batches, _) in enumerate(after):
        own = slice(rank * 4 // world_size, (rank + 1) * 4 // world_size)
        assert [batch[:3] for batch in batches] == [batch[:3] for batch in expected]
        assert [batch[3] for batch in batches] == [batch[3][own] for batch in expected]
    for number, whole in enumerate(expected):
        assert [sample for batches, _ in after for sample in batches[number][4]] == whole[4]


def test_resumed_on_other_parts_every_walk_still_comes_once(drawn, alone, ctx):
    before, position = some_steps(ctx, alone.path, steps=5)
    after, _ = some_steps(ctx, drawn.path, position, epochs=1)
    assert sorted(sample for batch in before + after for sample in batch[4]) == list(range(NUM_NODES * WALKS))


def test_walks_on_another_graph(alone, ctx):
    data = DistData.load(alone.path, ctx)
    turned = data.graph.transposed()
    loader = WalkLoader(data, APP, 1, NUM_NODES, shuffle=False, graph=turned)
    (batch,) = loader
    expected = transit.plain.sample(turned, APP, torch.arange(NUM_NODES), 0, 0, batch.sample_ids).vertices
    assert torch.equal(batch.walks, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "vanilla"}, "scheme is 'vanilla', under which every step of a walk would cost 2 exchanges"),
        ({"scheme": "other"}, "scheme is 'other'; expected 'hybrid'"),
        ({"walks_per_node": 0}, "walks_per_node is 0; expected an integer >= 1"),
        ({"batch_size": 1.5}, "batch_size is 1.5; expected an integer >= 1"),
        ({"prefetch": -1}, "prefetch is -1; expected an integer >= 0"),
        ({"app": transit.KHop((3, 2))}, "KHop makes 3 picks in step 0; expected 1 in every step: a walk"),
        ({"app": transit.KHop((1, 5))}, "KHop makes 5 picks in step 1; expected 1 in every step: a walk"),
        ({"app": transit.KHop((1, 0))}, "KHop makes 0 picks in step 1; expected 1 in every step: a walk"),
        ({"app": transit.MVS()}, "MVS is a collective application|MVS makes -1 picks"),
        ({"app": "deepwalk"}, "app is a str; expected an application"),
        ({"app": HalfSteps(2)}, r"steps\(\) of HalfSteps is 2.5; expected an integer >= 0"),
        ({"graph": "parts"}, "graph is a str; expected a CSCGraph, such as data.graph.transposed"),
        ({"graph": CSCGraph(torch.zeros(3).long(), torch.zeros(0).int())}, "graph has 2 nodes, the partition 240"),
    ],
)
def test_refusals(alone, ctx, options, message):
    app = options.pop("app", APP)
    with pytest.raises(ValueError, match=message):
        WalkLoader(DistData.load(alone.path, ctx), app, **options)


def test_numbers_may_be_tensors(alone, ctx):
    data = DistData.load(alone.path, ctx)
    loader = WalkLoader(data, APP, torch.tensor(2), torch.tensor(50), rng_seed=torch.tensor(3))
    assert len(list(loader)) == len(WalkLoader(data, APP, 2, 50, rng_seed=3))


@pytest.mark.parametrize("found", ["no orig_ids", "other orig_ids than data.graph"])
def test_a_graph_of_other_nodes_is_refused(drawn, ctx, found):
    """As one by original ids beside a partition, which numbers nodes anew: walks would begin elsewhere."""
    data = DistData.load(drawn.path, ctx)
    orig_ids = data.graph.orig_ids
    graph = dataclasses.replace(data.graph, orig_ids=None if found.startswith("no") else orig_ids.flip(0))
    message = f"graph has {found}, so its nodes are not numbered as the partition's; pass one that is"
    for make in (lambda: WalkLoader(data, APP, graph=graph), lambda: SkipGram(data, graph=graph)):
        with pytest.raises(ValueError, match=message):
            make()
    assert len(WalkLoader(data, APP, graph=dataclasses.replace(graph, orig_ids=orig_ids.clone()))) > 0


@pytest.mark.parametrize(("app", "steps"), [(APP, "4"), (transit.PPR(0.3), "inf")], ids=["number", "until done"])
def test_ranks_compare_whole_numbers_of_steps(alone, ctx, monkeypatch, app, steps):
    """As the message about ranks that differ will show them."""
    compared = {}
    monkeypatch.setattr(walk_loader, "agree_on", lambda comm, what, facts: compared.update(facts))
    WalkLoader(DistData.load(alone.path, ctx), app)
    assert repr(compared["steps"]) == steps


def test_ranks_compare_the_parameters_of_their_walks(alone, ctx, monkeypatch):
    """Ranks with another p would make an epoch of two kinds of walks."""
    compared = []
    monkeypatch.setattr(walk_loader, "agree_on", lambda comm, what, facts: compared.append(facts))
    for p in (2.0, 3.0):
        WalkLoader(DistData.load(alone.path, ctx), transit.Node2Vec(4, p=p))
    assert [name for name in compared[0] if compared[0][name] != compared[1][name]] == ["Node2Vec.p", "Node2Vec.par"]


def test_a_position_of_other_walks_is_refused(alone, ctx):
    _, position = some_steps(ctx, alone.path, steps=1)
    _, loader = make_loader(ctx, alone.path, walks_per_node=1)
    with pytest.raises(ValueError, match="447 walks of epoch 0 are still to come but .* among the 240 walks here"):
        loader.resume(position)
    with pytest.raises(ValueError, match="epoch is -1; expected an integer >= 0"):
        loader.set_epoch(-1)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_another_iteration_ends_the_one_under_way(alone, ctx, prefetch):
    loader = WalkLoader(DistData.load(alone.path, ctx), APP, WALKS, BATCH, prefetch=prefetch)
    earlier = iter(loader)
    assert next(earlier).epoch == 0
    assert [(batch.epoch, batch.step) for batch in loader] == [(1, len(loader) + step) for step in range(len(loader))]
    with pytest.raises(ValueError, match="this iteration of epoch 0 was ended by a later one of the same WalkLoader;"):
        next(earlier)


@pytest.mark.parametrize("position", [None, 3], ids=str)
def test_what_is_no_position_is_refused(alone, ctx, position):
    loader = WalkLoader(DistData.load(alone.path, ctx), APP, WALKS, BATCH)
    with pytest.raises(ValueError, match=rf"^position is {position}; expected a LoaderPosition, as loader\.position"):
        loader.resume(position)

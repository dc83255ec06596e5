"""DistLoader(data, sampler=...): any object with `sample(seeds, step)`, and what it returns is checked.

The oracle of its batches is the sampler itself, called with the seeds and steps of a plain loader.
"""

import dataclasses
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from fastsample_dist import MFG, DistContext, DistData, DistLoader, FeatureCache, MiniBatch, NeighborSampler, SampleSpec
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.ops import reference
from fastsample_dist.pipeline.schemes import make_sampler
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.testing import RankError, run_distributed
from tests.parts import draw_partition

FANOUTS, BATCH, SEED = [3, 2], 20, 9


class Consecutive:
    """`fanout` consecutive in-neighbours of every node, from a place that moves with the step: `sample` and no more."""

    def __init__(self, graph, fanouts=FANOUTS):
        self.graph, self.fanouts = graph, fanouts

    def sample(self, seeds, step):
        assert seeds.dtype == torch.int64 and seeds.device.type == "cpu"
        nodes, mfgs, draw = seeds, [], DrawKey(SEED, step)
        for fanout in self.fanouts:
            rows = [self.graph.indices[slice(*self.graph.indptr[v : v + 2].tolist())] for v in nodes.tolist()]
            rows = [row.roll(-step)[:fanout] for row in rows]
            indptr = torch.tensor([0, *(row.numel() for row in rows)]).cumsum(0)
            src_nodes, local = reference.compact(nodes, torch.cat(rows).long() if rows else nodes)
            mfgs.insert(0, MFG(indptr, local, src_nodes, nodes.numel(), draw=draw))
            nodes = src_nodes
        return MiniBatch(seeds, mfgs, nodes, draw)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 1).path


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("halves"), 2).path


@pytest.fixture
def data(path):
    with DistContext(LocalCommunicator()) as ctx:
        yield DistData.load(path, ctx)


def facts_of(batch):
    """All that a batch is."""
    edges = [(mfg.indptr.tolist(), mfg.indices.tolist()) for mfg in batch.mfgs]
    own = (batch.epoch, batch.step, batch.num_global_seeds, batch.seeds.tolist(), batch.input_nodes.tolist())
    return (*own, edges, batch.features.tolist(), batch.labels.tolist())


# --- batches


def own_on_rank(ctx, path, prefetch, uneven):
    """(batches of two epochs with an own sampler, what they must be)"""
    data = DistData.load(path, ctx)
    if uneven and ctx.rank == 1:
        data._splits["train"] = data.split("train")[:3]
    sampler = Consecutive(data.graph)
    loader, plain = DistLoader(data, sampler=sampler, batch_size=BATCH, prefetch=prefetch), DistLoader(data, [1], BATCH)
    found, expected = [], []
    for epoch in range(2):
        found += [facts_of(batch) for batch in loader]
        for batch in plain:
            own = sampler.sample(batch.seeds.long(), batch.step)
            own.features, own.labels = data.features.fetch(own.input_nodes), batch.labels
            own.epoch, own.num_global_seeds = epoch, batch.num_global_seeds
            expected.append(facts_of(own))
    loader.close()
    return found, expected


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_object_with_sample_alone_makes_the_batches(halves, prefetch):
    for found, expected in run_distributed(2, own_on_rank, args=(halves, prefetch, False)):
        assert len(found) == 6 and found == expected


def test_a_rank_that_has_run_out_of_seeds_calls_it_with_none(halves):
    first, second = run_distributed(2, own_on_rank, args=(halves, 2, True))
    assert first[0] == first[1] and second[0] == second[1]
    assert [len(batch[3]) for batch in second[0]] == [3, 0, 0] * 2


@pytest.mark.parametrize("prefetch", [0, 3])
def test_the_loaders_own_sampler_given_as_a_sampler_changes_nothing(data, prefetch):
    """It has `sample_many` too, which a prefetching loader calls."""
    sampler = NeighborSampler(data.graph, FANOUTS, rng_seed=SEED)
    usual = DistLoader(data, FANOUTS, BATCH, rng_seed=SEED)
    own = DistLoader(data, sampler=sampler, batch_size=BATCH, rng_seed=SEED, prefetch=prefetch)
    assert [facts_of(batch) for batch in own] == [facts_of(batch) for batch in usual]
    assert own.fanouts is None and own.kernel_report() == []


def test_it_is_resumed_where_it_stood(data):
    whole, part = (DistLoader(data, sampler=Consecutive(data.graph), batch_size=BATCH, prefetch=2) for _ in range(2))
    wanted = [facts_of(batch) for batch in whole]
    part.resume(whole.position(0, 2))
    assert [facts_of(batch) for batch in part] == wanted[2:]


def test_seeds_of_ones_own_and_a_transform_go_with_it(data):
    loader = DistLoader(
        data, sampler=Consecutive(data.graph), seeds=[9, 4, 7], batch_size=2, shuffle=False,
        transform=lambda batch: batch.seeds.tolist(),
    )  # fmt: skip
    assert list(loader) == [[9, 4], [7]]


def vanilla_on_rank(ctx, path, prefetch, duplicated):
    """Batches of a collective sampler over a communicator of its own, or what is said of the loop's."""
    data = DistData.load(path, ctx)
    comm = ctx.comm.duplicate() if duplicated else ctx.comm
    sampler = make_sampler(data, "vanilla", SampleSpec(fanouts=FANOUTS, rng_seed=SEED), comm)
    try:
        loader = DistLoader(data, sampler=sampler, batch_size=BATCH, rng_seed=SEED, prefetch=prefetch)
    except ValueError as error:
        return str(error)
    usual = DistLoader(data, FANOUTS, BATCH, rng_seed=SEED)
    return [facts_of(batch) for batch in loader] == [facts_of(batch) for batch in usual]


def test_a_sampler_may_be_collective(halves):
    assert run_distributed(2, vanilla_on_rank, args=(halves, 0, False)) == [True, True]
    assert run_distributed(2, vanilla_on_rank, args=(halves, 2, True)) == [True, True]


def test_a_prefetch_thread_does_not_share_the_loops_communicator(halves):
    texts = run_distributed(2, vanilla_on_rank, args=(halves, 2, False))
    assert texts[0] == texts[1] and texts[0].startswith("prefetch is 2, but sampler exchanges over ctx.comm, which")


# --- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 4}, "neither fanouts nor sampler is given; pass one fanout per model layer, such as [15, 10,"),
        ({"fanouts": [2], "sampler": True, "batch_size": 4}, "fanouts and sampler are both given; pass one of them"),
        ({"sampler": True}, "batch_size is not given; pass the seeds per rank and step, such as batch_size=1000."),
        ({"fanouts": [2], "batch_size": 2.5}, "batch_size is 2.5; expected an integer >= 1."),
        ({"fanouts": 2, "batch_size": 4}, "fanouts is 2; expected one fanout per model layer, such as [15, 10, 5]."),
        ({"sampler": Consecutive, "batch_size": 4}, "sampler is the class Consecutive; pass an object of it."),
        (
            {"sampler": [2, 2], "batch_size": 4},
            "sampler is a list; expected an object with sample(seeds, step) -> MiniBatch.",
        ),
        (
            {"sampler": SimpleNamespace(sample=lambda seeds: None), "batch_size": 4},
            "SimpleNamespace.sample cannot be called with (seeds, step); expected sample(seeds, step) -> MiniBatch",
        ),
        (
            {"sampler": True, "batch_size": 4, "rng_seed": -1},
            "rng_seed is -1; expected an integer from 0 to 2**63 - 1.",
        ),
    ],
)
def test_what_makes_no_loader_is_refused(data, options, message):
    if options.get("sampler") is True:
        options = options | {"sampler": Consecutive(data.graph)}
    with pytest.raises(ValueError) as refused:
        DistLoader(data, **options)
    assert str(refused.value).startswith(message)


IGNORED = {
    "scheme": "vanilla", "method": "labor", "replace": True, "layer_dependency": True, "edge_ids": True,
    "edge_values": True, "kernel": "per_hop",
}  # fmt: skip


@pytest.mark.parametrize("name", IGNORED)
def test_an_option_that_it_would_ignore_is_refused_by_name(data, name):
    with pytest.raises(ValueError) as refused:
        DistLoader(data, sampler=Consecutive(data.graph), batch_size=4, **{name: IGNORED[name]})
    assert str(refused.value) == (
        f"{name} is {IGNORED[name]!r} beside sampler, which would ignore it; give it to the sampler, or leave {name} "
        "out."
    )


def test_the_other_options_are_taken(data):
    options = {"split": "val", "rng_seed": 3, "prefetch": 1, "shuffle": False, "drop_last": True, "placement": "auto"}
    options |= {"feature_dtype": torch.float64, "transform": lambda batch: batch, "device": "cpu"}
    options |= {"transport": "exchange", "exchange": "paired", "rails": False, "cache": FeatureCache(0)}
    options |= {"roles": "none", "staleness": 0}  # roles: tests/pipeline/test_factored.py
    ignored = {*IGNORED, "fanouts", "batch_size", "sampler", "app"}
    loader = DistLoader(data, sampler=Consecutive(data.graph), batch_size=4, **options)
    assert {field.name for field in dataclasses.fields(loader.options)} == {*options, *ignored}
    assert next(iter(loader)).features.dtype == torch.float64


class Other(Consecutive):
    pass


def differ_on_rank(ctx, path):
    data = DistData.load(path, ctx)
    sampler = (Consecutive, Other)[ctx.rank](data.graph)
    try:
        DistLoader(data, sampler=sampler, batch_size=4)
    except ValueError as error:
        return str(error)
    return None


def test_samplers_of_two_classes_are_refused_on_all_ranks(halves):
    texts = run_distributed(2, differ_on_rank, args=(halves,))
    assert set(texts) == {
        "DistLoader: ranks differ in sampler: 'Consecutive' on rank 0; 'Other' on rank 1; start all ranks with the "
        "same options."
    }


# --- what it returns


class Wrong(Consecutive):
    """From step 2 on it returns what `spoil` makes of a right batch."""

    spoils: ClassVar = {
        "no batch": lambda batch: (batch.seeds, batch.mfgs),
        "nothing": lambda batch: None,
        "fewer seeds": lambda batch: dataclasses.replace(batch, seeds=batch.seeds[:-1]),
        "other order": lambda batch: dataclasses.replace(batch, seeds=batch.seeds.flip(0)),
        "other step": lambda batch: dataclasses.replace(batch, draw=DrawKey(SEED, 0)),
        "an MFG without a key": lambda batch: dataclasses.replace(
            batch, mfgs=[dataclasses.replace(mfg, draw=DrawKey()) for mfg in batch.mfgs]
        ),
        "other inputs": lambda batch: dataclasses.replace(batch, input_nodes=batch.input_nodes[:-2]),
        "node outside": lambda batch: dataclasses.replace(batch, input_nodes=batch.input_nodes + 200),
    }

    def __init__(self, graph, spoil):
        super().__init__(graph)
        self.spoil = self.spoils[spoil]

    def sample(self, seeds, step):
        batch = super().sample(seeds, step)
        return self.spoil(batch) if step >= 2 else batch


KEYED = "the sampler returned a batch or an MFG of step 0; give DrawKey(rng_seed, step) to both, it keys dropout."


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("no batch", "the sampler returned a tuple; expected a MiniBatch."),
        ("nothing", "the sampler returned a NoneType; expected a MiniBatch."),
        ("fewer seeds", "the sampler returned 19 seeds that are not the 20 it was asked for, in order."),
        ("other order", "the sampler returned 20 seeds that are not the 20 it was asked for, in order."),
        ("other step", KEYED),
        ("an MFG without a key", KEYED),
        ("other inputs", "input nodes; expected "),
    ],
)
def test_a_batch_that_cannot_be_the_steps_is_refused(data, spoil, message, prefetch):
    taken = []
    with pytest.raises(ValueError, match=r"^rank 0, step 2: ") as refused:
        for batch in DistLoader(data, sampler=Wrong(data.graph, spoil), batch_size=BATCH, prefetch=prefetch):
            taken.append(batch.step)
    assert taken == [0, 1] and message in str(refused.value)


def test_fewer_batches_than_steps_are_refused(data):
    class Short(NeighborSampler):
        def sample_many(self, seeds, first_step=0):
            return super().sample_many(seeds[:-1], first_step)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(
            ValueError, match=r"^rank 0, step 0: sample_many of the sampler returned 1 batches for 2 steps; expected"
        ):
            list(DistLoader(data, sampler=Short(data.graph, FANOUTS), batch_size=BATCH, prefetch=2))
    finally:
        torch.set_num_threads(before)


def test_an_id_outside_the_graph_is_refused_not_read(data):
    with pytest.raises(ValueError, match=r"expected .*239"):
        list(DistLoader(data, sampler=Wrong(data.graph, "node outside"), batch_size=BATCH))


def outside_on_rank(ctx, path):
    data = DistData.load(path, ctx)
    list(DistLoader(data, sampler=Wrong(data.graph, "node outside"), batch_size=BATCH))


def test_an_id_outside_the_graph_is_refused_among_ranks(halves):
    with pytest.raises(RankError, match=r"ValueError: .*expected 0 to 239"):
        run_distributed(2, outside_on_rank, args=(halves,))

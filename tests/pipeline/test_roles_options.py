"""Roles and staleness as options of a loader: what is refused, and what "auto" comes to where there is no choice."""

import logging
from itertools import product

import pytest

from fastsample_dist import DistData, DistLoader, FeatureCache, Roles
from fastsample_dist.comm.machine import OTHER_MACHINE, Machines
from fastsample_dist.pipeline.factored import task_bytes
from fastsample_dist.pipeline.task_batch import pack
from fastsample_dist.testing import run_distributed
from tests.parts import draw_partition
from tests.waiting import ENOUGH_S


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("alone"), 1).path


APART = "roles are 1+1 on each machine, but ranks read each other's memory in groups of 1 "


class Exchanging:
    def sample(self, seeds, step=0):
        raise AssertionError

    def num_payload_exchanges(self):
        return 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"roles": "1-1"}, r"roles '1-1' is not SAMPLERS\+TRAINERS"),
        ({"roles": 2}, "roles is 2; expected 'none', 'auto', 'S+T'"),
        ({"roles": "1+1"}, r"roles 1\+1 are 2 ranks but world_size is 1; start 2 ranks"),
        ({"roles": "1+1", "scheme": "vanilla"}, r"roles are 1\+1 beside scheme 'vanilla', but ranks with roles sample"),
        ({"roles": "auto", "scheme": "vanilla"}, "roles are auto beside scheme 'vanilla'"),
        ({"roles": "1+1", "fanouts": None, "sampler": Exchanging()}, "beside a sampler that makes 2 exchanges, but"),
        ({"staleness": 1}, "staleness is 1 without roles, which alone delay updates; pass roles"),
        ({"staleness": 1, "roles": "auto"}, "staleness is 1 with roles 'auto', which may choose none, .*; pass roles"),
        ({"staleness": -1, "roles": "1+1"}, "staleness is -1; expected an integer >= 0"),
        ({"staleness": 1.0, "roles": "1+1"}, "staleness is 1.0; expected an integer >= 0"),
        ({"staleness": True, "roles": "1+1"}, "staleness is True; expected an integer >= 0"),
    ],
)
def test_what_cannot_be_is_refused(alone, ctx, given, message):
    with pytest.raises(ValueError, match=message.replace("'S+T'", r"'S\+T'")) as refused:
        DistLoader(DistData.load(alone, ctx), **({"fanouts": [2], "batch_size": 4} | given))
    assert "\n" not in str(refused.value)


def test_auto_is_none_for_one_rank_and_says_why(alone, ctx, caplog):
    with caplog.at_level(logging.WARNING):
        loader = DistLoader(DistData.load(alone, ctx), [2], 40, roles="auto")
    assert loader.roles is loader.executor is None and len(list(loader)) == 3
    assert caplog.messages[-1] == "roles 'auto' are none: there is one rank."


def refused(make):
    try:
        make()
    except ValueError as error:
        return str(error)
    return None


def refusals_of_two_ranks(ctx, path):
    data = DistData.load(path, ctx)
    found = {
        "exchange": refused(lambda: DistLoader(data, [2], 9, roles="1+1", transport="exchange")),
        "ranks": refused(lambda: DistLoader(data, [2], 9, roles="1+2")),
        "differ": refused(lambda: DistLoader(data, [2], 9, roles=Roles(1, 1, queue_bytes=1 << (20 + ctx.rank)))),
    }
    small = DistLoader(data, [-1, -1], 9, roles=Roles(1, 1, queue_bytes=4096))
    try:
        small.executor.run(0, 0, len(small), lambda *_: None, lambda group: None)
    except (ValueError, RuntimeError) as error:
        found["small"] = str(error)
    said = []
    logging.getLogger("fastsample_dist").addHandler(handler := logging.Handler())
    handler.emit = lambda record: said.append(record.getMessage())
    loader = DistLoader(data, [2], 9, roles="1+1", cache=FeatureCache(capacity_bytes=1 << 20), prefetch=2)
    found["prefetch"] = ctx.comm.all_gather_object(said, purpose="test")
    found["for"] = refused(lambda: next(iter(loader)))
    found["twice"] = refused(lambda: loader.take_roles(Roles(1, 1)))
    found["cache"] = str(loader.cache)
    chosen = DistLoader(data, [2], 9, roles="auto")
    chosen.take_roles(None)
    found["none"] = chosen.roles, chosen.executor, len(list(chosen)) == len(chosen)
    ctx._machines = Machines(2, dict.fromkeys(product((0,), (1,)), OTHER_MACHINE))
    found["apart"] = refused(lambda: DistLoader(data, [2], 9, roles="1+1"))
    found["auto apart"] = DistLoader(data, [2], 9, roles="auto").roles
    loader.close()
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = draw_partition(tmp_path_factory.mktemp("two"), 2).path
    zero, one = run_distributed(2, refusals_of_two_ranks, args=(path,), timeout_s=ENOUGH_S)
    assert {name: zero[name] for name in zero if name != "small"} == {
        name: one[name] for name in one if name != "small"
    }
    return one


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("exchange", APART + "(transport is 'exchange'); start 2 ranks on every machine with transport='auto', or"),
        ("apart", APART + "(ranks 0, 1: their boot ids differ, so they are on different machines); start 2 ranks on"),
        ("ranks", "roles 1+2 are 3 ranks but world_size is 2; start 3 ranks or pass"),
        ("differ", "DistLoader: ranks differ in roles: "),
        ("for", "the loader has roles 1+1, so no rank makes all batches of its own; train with Trainer.run_epoch or"),
        ("twice", "the ranks have roles 1+1 already; make another loader to change them."),
        ("small", "task (epoch 0, virtual rank 0, step 0) takes "),
    ],
)
def test_two_ranks_refuse_alike(two, what, message):
    assert two[what].startswith(message) and "\n" not in two[what]


def test_that_prefetch_is_not_read_is_said_once(two):
    [line], others = two["prefetch"]
    assert line.startswith("prefetch is 2, but with roles 1+1 it is not read: samplers work ahead") and others == []


def test_no_roles_can_be_chosen(two):
    assert two["none"] == (None, None, True) and two["auto apart"] is None


def test_a_cache_has_nothing_to_hold_as_without_roles(two):
    assert "every rank reads all rows in place" in two["cache"]


def test_the_estimate_of_a_task_is_of_the_size_of_a_batch(alone, ctx):
    data = DistData.load(alone, ctx)
    loader = DistLoader(data, [4, 3], 20)
    batch = next(iter(DistLoader(data, [4, 3], 20)))
    batch.features = batch.labels = None
    found = sum(map(len, pack(batch, (data.graph.orig_ids,))[1]))
    assert found / 2 < task_bytes(data.graph, loader.fanouts, 20) < 2 * found
    assert task_bytes(data.graph, [-1], 20) > task_bytes(data.graph, [1], 20)

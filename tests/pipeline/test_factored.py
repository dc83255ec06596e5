"""Batches of ranks with roles are those of plain ranks, one per part, whoever samples and whoever trains.

The oracle is a run of as many plain ranks as there are parts.
"""

import numpy as np
import pytest
import torch

from fastsample_dist import DistData, DistLoader
from fastsample_dist.sampling import transit
from fastsample_dist.testing import run_distributed
from tests.parts import draw_partition
from tests.pipeline.batch_fields import fields_of
from tests.waiting import ENOUGH_S

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
        for roles in ("1+3", "2+2", "3+1"):
            found[case][roles] = of_tasks(make_loader(data, case, roles=roles), 0)[0]
    return found


@pytest.fixture(scope="module")
def four(path):
    return run_distributed(4, plain_and_factored, args=(path,), timeout_s=ENOUGH_S)


@pytest.mark.parametrize("case", CASES)
def test_tasks_have_the_batches_of_plain_ranks(four, case):
    expected = merged([rank[case]["plain"] for rank in four])
    for roles in ("1+3", "2+2", "3+1"):
        assert merged([rank[case][roles] for rank in four]) == expected
    assert len({step for _, _, step in expected}) >= 2

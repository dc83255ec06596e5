"""Parts are not ranks: P parts train on R ranks whenever R divides P, a rank owning a run of P / R parts."""

import pytest
import torch

from fastsample_dist import DistData
from fastsample_dist.partition.write.repartition import repartition
from fastsample_dist.testing import run_distributed
from tests.train.task import make_task
from tests.train.test_equality import assert_equal_to_one_process, train_rank


@pytest.mark.parametrize(("num_parts", "world_size", "scheme"), [(4, 2, "vanilla"), (6, 3, "hybrid")])
def test_runs_of_parts_train_as_one_process_does(tmp_path, num_parts, world_size, scheme):
    task = make_task(tmp_path, num_parts)
    assert_equal_to_one_process(task, "sage", run_distributed(world_size, train_rank, args=(task.path, "sage", scheme)))


def test_four_parts_joined_to_two_train_to_the_same_bits(tmp_path):
    task = make_task(tmp_path, 4)
    repartition(task.path, 2, tmp_path / "two")
    runs = [run_distributed(2, train_rank, args=(path, "sage", "hybrid")) for path in (task.path, tmp_path / "two")]
    for four, two in zip(*runs, strict=True):
        assert all(map(torch.equal, four[0], two[0]))
        assert all(map(torch.equal, four[1], two[1]))


def test_two_parts_split_to_four_train_on_four_ranks_as_one_process_does(tmp_path):
    task = make_task(tmp_path, 2)
    repartition(task.path, 4, tmp_path / "four")
    assert_equal_to_one_process(
        task, "sage", run_distributed(4, train_rank, args=(tmp_path / "four", "sage", "vanilla"))
    )


def owned(ctx, path):
    """What this rank owns: original ids, labels, features and splits by original id."""
    data = DistData.load(path, ctx)
    ids = data.orig_ids(torch.arange(*data.own_range))
    rows = data.features.fetch(torch.arange(*data.own_range).to(data.graph.indices.dtype))
    return ids, data.labels, rows, [data.orig_ids(data.split(name)) for name in ("train", "val", "test")]


@pytest.mark.parametrize("world_size", [1, 3])
def test_ranks_own_everything_once(tmp_path, world_size):
    task = make_task(tmp_path, 6)
    ranks = run_distributed(world_size, owned, args=(task.path,))
    ids, labels, rows = (torch.cat([rank[column] for rank in ranks]) for column in range(3))
    assert torch.equal(ids.sort().values, torch.arange(200))
    assert torch.equal(labels, task.labels[ids]) and torch.equal(rows, task.features[ids])
    for column, name in enumerate(("train", "val", "test")):
        nodes = torch.cat([rank[3][column] for rank in ranks]).sort().values
        assert torch.equal(nodes, torch.from_numpy(task.node_task.splits[name]))


def refusal(ctx, path):
    with pytest.raises(ValueError) as caught:
        DistData.load(path, ctx)
    return str(caught.value)


def test_ranks_that_do_not_divide_the_parts_are_refused_on_all_of_them(tmp_path):
    path = make_task(tmp_path, 4).path
    lines = run_distributed(3, refusal, args=(path,))
    assert all(f"{path} has 4 parts but world_size is 3; start " in line and "\n" not in line for line in lines)

"""What the tables of `fastsample-bench roles --device cuda` may take of a GPU, and what that leaves to a cache."""

from types import SimpleNamespace

import pytest
import torch

from fastsample_dist import DistContext, DistData, Roles
from fastsample_dist.bench.roles import gpus
from fastsample_dist.bench.roles.gpus import cache_of, limit_tables
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.device.placement import Room
from fastsample_dist.graph.placed import topology_bytes
from tests.parts import draw_partition

MB = 10**6
GPU = torch.device("cuda", 1)
SPLIT = Roles(1, 1)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 1).path


@pytest.fixture
def data(path, monkeypatch):
    """On the second of two GPUs of 100 MB, 95 of them free, 10 reserved, for four ranks of its machine."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=100 * MB))
    monkeypatch.setattr(gpus, "measured_room", lambda device: Room(device, 95 * MB, 10 * MB))
    with DistContext(LocalCommunicator()) as ctx:
        opened = DistData.load(path, ctx)
        ctx.device, ctx.local_world_size = GPU, 4
        yield opened


def test_a_rank_may_fill_its_share_of_all_but_the_reserve(data):
    limit_tables(data, None)
    assert data.table_bytes == 45 * MB
    limit_tables(data, 45 * MB)
    line = "--gpu-memory is 45000001 but a rank's share of cuda:1 is 45000000; pass at most that."
    with pytest.raises(ValueError, match=f"^{line}$"):
        limit_tables(data, 45 * MB + 1)


def test_memory_without_room_for_a_row_is_refused(data):
    limit_tables(data, 24)
    with pytest.raises(ValueError, match="^--gpu-memory is 23 but one row of features takes 24; pass at least that.$"):
        limit_tables(data, 23)


def test_a_cache_gets_what_the_topology_leaves_where_that_fits(data):
    topology = topology_bytes(data.graph)
    for wanted, beside, alone in (
        (topology + 100, 100, topology + 100),
        (topology + 23, None, topology + 23),
        (topology - 1, topology - 1, topology - 1),  # the topology is read in host memory
        (45 * MB, 45 * MB - topology, 45 * MB),
    ):
        limit_tables(data, wanted)
        found = [cache_of(data, roles) for roles in ("none", SPLIT, "auto")]
        assert [cache and cache.capacity_bytes for cache in found] == [beside, alone, alone]


def test_a_gpu_that_others_fill_has_less_room(data, monkeypatch):
    limit_tables(data, 45 * MB)
    monkeypatch.setattr(gpus, "measured_room", lambda device: Room(device, 30 * MB, 10 * MB))
    assert cache_of(data, SPLIT).capacity_bytes == 20 * MB

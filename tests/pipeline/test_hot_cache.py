"""Ranks with GPUs that read rows in host memory: their batches are the CPU's, whoever samples, trains and holds rows.

The emulator runs the kernels, on CPU tensors; where there is a GPU, both ranks use it. What a fetch does is in
tests/features/test_hot_rows.py.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fastsample_dist import DistContext, DistData, DistLoader, FeatureCache, Roles
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.device import placement
from fastsample_dist.device.placement import Room
from fastsample_dist.features.cache import CacheReport
from fastsample_dist.graph.placed import topology_bytes
from fastsample_dist.pipeline import hot_cache
from fastsample_dist.pipeline.hot_cache import IN_FULL, NEVER, WHAT_FITS, HotUse
from fastsample_dist.pipeline.transport import SHARED
from fastsample_dist.testing import run_distributed
from tests.cuda_devices import kernels_on_the_cpu, require_overrides
from tests.parts import draw_partition
from tests.waiting import ENOUGH_S

BATCH, FANOUTS = 30, [4, 3]
ROWS, FEW = 20, 5  # that a cache has room for, without the topology on the same GPU and beside it


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 2).path


@pytest.fixture(scope="module")
def one_part(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("one"), 1).path


def read(batch):
    """What a model reads."""
    assert len({tensor.device for tensor in batch.tensors()}) == 1
    found = [batch.seeds, batch.features, batch.labels, *(mfg.dst_orig_ids for mfg in batch.mfgs)]
    found += [column for mfg in batch.mfgs for column in (mfg.indptr, mfg.indices, mfg.src_nodes)]
    return [tensor.tolist() for tensor in found]


def of_tasks(loader):
    """By (virtual rank, step), what this rank trained in an epoch."""
    found = {}

    def train(task, batch, version):
        found[task.virtual_rank, task.step] = read(batch)

    loader.executor.run(0, 0, len(loader), train, lambda group: None)
    return found


def capacity(data, rows):
    return rows * data.features.local.row_bytes


def on_kernels(ctx, path, library):
    """(plain batches of this rank, {what: (batches, rows by where they were read, line of the cache)})

    Run by the emulator's library, or where that is None by the first GPU.
    """
    data, found = DistData.load(path, ctx), {}
    device = "cuda:0" if library is None else None
    plain = {(ctx.rank, batch.step): read(batch) for batch in DistLoader(data, FANOUTS, BATCH)}
    some, every = FeatureCache(capacity(data, ROWS), "degree"), FeatureCache(capacity(data, data.num_nodes), "random")
    presampled = FeatureCache(capacity(data, ROWS), "presample", presample_epochs=1)
    with nullcontext() if library is None else kernels_on_the_cpu(library):
        for what, roles, cache in (
            ("bare", Roles(1, 1, switching=False), None),
            ("some", Roles(1, 1, switching=False), some),
            ("every", Roles(1, 1, switching=False), every),
            ("switching", Roles(1, 1), some),
            ("in host memory", Roles(1, 1), FeatureCache(capacity(data, ROWS), device="cpu")),
        ):
            loader = DistLoader(data, FANOUTS, BATCH, roles=roles, cache=cache, device=device)
            found[what] = of_tasks(loader), loader.cache_report(0), str(loader.cache)
            loader.close()
        with pytest.MonkeyPatch.context() as beside_the_topology:
            data.table_bytes = capacity(data, FEW)
            if library is None:
                data.table_bytes += topology_bytes(data.graph)
            else:  # the topology is in host memory
                room = Room(torch.device("cuda", 0), device_bytes=1 << 30, reserve_bytes=1 << 20)
                beside_the_topology.setattr(hot_cache, "measured_room", lambda device, ranks_on_host: room)
            loader = DistLoader(data, FANOUTS, BATCH, roles="auto", cache=presampled, transport=SHARED, device=device)
        found["not chosen yet"] = {}, CacheReport(cache_rows=loader.cache.nodes.numel()), str(loader.cache)
        loader.take_roles(Roles(1, 1))
        found["chosen"] = of_tasks(loader), loader.cache_report(0), str(loader.cache)
        data.table_bytes = None
        for what, prefetch in (("time sharing", 0), ("ahead", 2)):
            shared = {"transport": SHARED, "device": device}
            loader = DistLoader(data, FANOUTS, BATCH, cache=some, prefetch=prefetch, **shared)
            batches = {(ctx.rank, batch.step): read(batch) for batch in loader}
            found[what] = batches, loader.cache_report(0), str(loader.cache)
            again = DistLoader(data, FANOUTS, BATCH, cache=loader.cache, **shared)
            assert {(ctx.rank, batch.step): read(batch) for batch in again} == batches
            assert again.cache_report(0).cached == loader.cache_report(0).cached > 0
    return plain, found


@pytest.fixture(scope="module", params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def two(request, path):
    library = None
    if request.param == "emulated":
        require_overrides()
        library = request.getfixturevalue("emulated_library")
    return run_distributed(2, on_kernels, args=(path, library), timeout_s=ENOUGH_S)


WAYS = ("bare", "some", "every", "switching", "in host memory", "chosen", "time sharing", "ahead")


@pytest.mark.parametrize("what", WAYS)
def test_batches_are_those_of_plain_ranks_on_the_cpu(two, what):
    expected = two[0][0] | two[1][0]
    assert two[0][1][what][0] | two[1][1][what][0] == expected and len(expected) >= 4


def total(two, what):
    return CacheReport.total([two[rank][1][what][1] for rank in (0, 1)])


def test_a_report_says_how_many_rows_were_on_the_device(two):
    inputs = total(two, "bare").inputs
    assert total(two, "bare").cached == 0 and total(two, "every").hit_rate == 1.0
    some = total(two, "some")
    assert some.inputs == inputs == some.cached + some.own + some.neighbour
    assert 0 < some.hit_rate == some.cached / inputs < 1 and some.hit_rate <= some.oracle_hit_rate <= 1
    assert some.cache_rows == ROWS and some.policy == "degree"
    assert total(two, "time sharing").cached == total(two, "ahead").cached == some.cached
    assert total(two, "chosen").policy == "presample"


def test_where_roles_are_chosen_rows_take_the_place_of_the_topology(two):
    assert [rank["not chosen yet"][1].cache_rows for _, rank in two] == [FEW, FEW]
    assert two[0][1]["chosen"][1].cache_rows == ROWS


def test_a_sampler_that_does_not_train_holds_no_row(two):
    sampler = two[1][1]
    assert sampler["some"][1].cache_rows == 0 and sampler["switching"][1].cache_rows == ROWS
    assert "empty, all rows are in host memory" in sampler["in host memory"][2]
    assert f"cache: {ROWS} rows by degree" in two[0][1]["some"][2]


# features as far as the arithmetic of room reads them: 100 rows of 10 bytes
HOST = SimpleNamespace(local=SimpleNamespace(row_bytes=10), book=SimpleNamespace(num_nodes=100))


@pytest.mark.parametrize(
    ("capacity_bytes", "holds", "expected"),
    [
        (500, IN_FULL, (50, 50)),
        (509, WHAT_FITS, (50, 40)),
        (300, WHAT_FITS, (30, 30)),
        (500, NEVER, (50, 0)),
        (5000, WHAT_FITS, (100, 40)),
    ],
)
def test_a_sampler_holds_what_its_topology_leaves(capacity_bytes, holds, expected):
    room = Room(torch.device("cuda", 0), device_bytes=510, reserve_bytes=110, host_bytes=0)
    use = HotUse(room.device, holds)
    assert hot_cache._rows(FeatureCache(capacity_bytes), HOST, use, room) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (FeatureCache(600), "the cache's rows take 600B but 510B are free on cuda:0; choose a smaller capacity."),
        (FeatureCache(9), "the cache's capacity_bytes is 9 but one row takes 10; choose at least that."),
        (FeatureCache(90, lookahead=2), "lookahead is 2 on cuda:0; expected 0 on a GPU."),
    ],
)
def test_a_cache_that_a_gpu_cannot_hold_is_refused(given, said):
    room = Room(torch.device("cuda", 0), device_bytes=510, reserve_bytes=110, host_bytes=0)
    with pytest.raises(ValueError, match=said):
        hot_cache._rows(given, HOST, HotUse(room.device), room)


def rows_in_host_memory(path, ctx):
    data = DistData.load(path, ctx)
    return data, data.features, torch.arange(*data.own_range).flip(0)


@pytest.mark.parametrize("rows_at_once", [1, 7, 1000])
def test_rows_are_loaded_slice_by_slice(one_part, monkeypatch, rows_at_once):
    with DistContext(LocalCommunicator()) as ctx:
        data, features, nodes = rows_in_host_memory(one_part, ctx)
        monkeypatch.setattr(hot_cache, "SLICE_BYTES", rows_at_once * features.local.row_bytes)
        rows = hot_cache._load(features, nodes, torch.device("cpu"))
        assert torch.equal(rows, features.fetch(nodes)) and data.num_nodes == len(rows)


@pytest.mark.gpu
def test_loading_takes_no_more_of_a_gpu_than_the_rows(one_part):
    cuda, device = torch.cuda, torch.device("cuda", 0)
    with DistContext(LocalCommunicator()) as ctx:
        _, features, nodes = rows_in_host_memory(one_part, ctx)
        cuda.init()
        cuda.reset_peak_memory_stats(device)
        before = cuda.memory_allocated(device)
        rows = hot_cache._load(features, nodes, device)
        assert cuda.max_memory_allocated(device) - before == -(-rows.nbytes // 512) * 512
        assert torch.equal(rows.cpu(), features.fetch(nodes))


def test_memory_that_was_taken_meanwhile_is_one_line(one_part, monkeypatch):
    def refuse(*_, **__):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 ...")

    with DistContext(LocalCommunicator()) as ctx:
        _, features, nodes = rows_in_host_memory(one_part, ctx)
        monkeypatch.setattr(torch, "empty", refuse)
        line = "the cache's rows take 5760B, which are not free on cuda:0 in one piece; choose a smaller capacity, or"
        with pytest.raises(ValueError, match=f"^{line}"):
            hot_cache._load(features, nodes, torch.device("cuda", 0))


def test_a_limit_of_the_process_is_all_the_room_that_a_device_has(monkeypatch):
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "mem_get_info", lambda device: (700, 1000))
    monkeypatch.setattr(cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(cuda, "memory_allocated", lambda device: 20)
    for share, expected in ((1.0, (730, 100)), (0.4, (380, 40))):
        monkeypatch.setattr(cuda, "get_per_process_memory_fraction", lambda device, share=share: share, raising=False)
        room = placement.measured_room("cuda:0")
        assert (room.device_bytes, room.reserve_bytes) == expected

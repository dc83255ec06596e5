"""Features on a GPU: own, cached and fetched rows equal the CPU's, on one rank and on several.

Without a GPU the operators' CUDA kernels are run by the emulator in the place of the CPU's.
"""

from contextlib import contextmanager

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.device.placement import Placement
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.source import RowRange
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.ops import cuda
from fastsample_dist.testing import run_distributed

NUM_NODES, DIM = 60, 12
ROWS = torch.randn(NUM_NODES, DIM, generator=torch.Generator().manual_seed(3)).half()
SCALED = ops.RowTable((ROWS * 20).to(torch.int8), torch.rand(NUM_NODES, generator=torch.Generator().manual_seed(4)))
RANGES = torch.tensor([0, 25, 25, 60])  # a rank that owns nothing
NAMES = ("gather_rows", "merge_rows", "locate_rows")


@contextmanager
def cuda_kernels(library):
    """Every call of an operator that features use runs its CUDA kernel, of this library."""
    kept, core = {name: getattr(ops, name) for name in NAMES}, cuda.core

    def gather(rows, ids, cache=None, *, checked=True):
        pair = (None, None) if cache is None else (cache.rows, cache.places)
        return ops.cuda_kernels["gather_rows"](rows, ids, *pair, checked)

    def merge(own, fetched, places, dtype=None, cache=None, *, near=(), checked=True):
        pair = (None, None) if cache is None else (cache.rows, cache.places)
        tables = [ops.RowTable.of(table) for table in (own, *near)]
        own, *near = (table.rows for table in tables)
        scales = [table.scale_bytes() for table in tables if table.is_scaled]
        return ops.cuda_kernels["merge_rows"](own, fetched, places, dtype or own.dtype, *pair, checked, near, scales)

    def locate(nodes, index):
        places, missing, counts = ops.cuda_kernels["locate_rows"](nodes, *index.arguments)
        *by_owner, own, near, cached = counts.tolist()
        return ops.Located(places, missing, by_owner, own, near, cached)

    loaded = cuda.load(library)
    cuda.core = lambda: loaded
    for name, function in zip(NAMES, (gather, merge, locate), strict=True):
        setattr(ops, name, function)
    try:
        yield
    finally:
        cuda.core = core
        for name, function in kept.items():
            setattr(ops, name, function)


def alone(local):
    return DistFeatures(local, PartitionBook(torch.tensor([0, NUM_NODES])), LocalCommunicator())


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("cached", [0, 20, NUM_NODES])
@pytest.mark.parametrize("checked", [True, False])
def test_one_rank_fetches_the_cpus_rows(emulated_library, dtype, id_dtype, cached, checked):
    nodes = torch.randperm(NUM_NODES)[:40].to(id_dtype)
    expected = alone(LocalFeatures(ROWS, 0)).fetch(nodes, dtype)
    with cuda_kernels(emulated_library):
        features = alone(LocalFeatures(ROWS, 0)).with_cache(torch.randperm(NUM_NODES)[:cached])
        assert torch.equal(features.fetch(nodes, dtype, checked=checked), expected)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("cached", [0, 20])
def test_one_rank_fetches_rows_with_scales(emulated_library, dtype, cached):
    nodes = torch.randperm(NUM_NODES)[:40]
    expected = SCALED.values(nodes).to(dtype or torch.float32)
    assert torch.equal(alone(LocalFeatures(SCALED, 0)).fetch(nodes, dtype), expected)
    with cuda_kernels(emulated_library):
        features = alone(LocalFeatures(SCALED, 0)).with_cache(torch.randperm(NUM_NODES)[:cached])
        assert torch.equal(features.fetch(nodes, dtype), expected)
        assert torch.equal(features.serve(nodes, dtype), SCALED.take(nodes))


def test_own_rows_are_counted_from_the_first_node(emulated_library):
    with cuda_kernels(emulated_library):
        local = LocalFeatures(ROWS[30:], 30).with_cache(torch.tensor([59, 31]))
        nodes = torch.tensor([30, 59, 31, 44], dtype=torch.int32)
        assert torch.equal(local.fetch(nodes), ROWS[nodes.long()])
        assert torch.equal(local.fetch(nodes, torch.float32), ROWS[nodes.long()].float())


def test_a_bad_node_is_refused_at_once_or_by_the_next_fetch(emulated_library):
    features, bad = alone(LocalFeatures(ROWS, 0)), torch.tensor([1, NUM_NODES])
    with cuda_kernels(emulated_library):
        with pytest.raises(ValueError, match=f"place {NUM_NODES} at position 1"):
            features.fetch(bad)
        assert torch.equal(features.fetch(bad, checked=False)[1], torch.zeros(DIM).half())
        with pytest.raises(ValueError, match=f"place {NUM_NODES} at position 1.*in an earlier call"):
            features.fetch(bad[:1], checked=False)


def fetch_on_ranks(ctx, library, dtype):
    """(rows by the CPU's kernels, by CUDA's, with a cache, with near rows too; counted bytes of the first three)"""
    lo, hi = PartitionBook(RANGES).part2range(ctx.rank)
    features = DistFeatures(LocalFeatures(ROWS[lo:hi], lo), PartitionBook(RANGES), ctx.comm)
    nodes = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(ctx.rank))[:33].int()
    found, stats = [nodes], []

    def fetch(from_where):
        ctx.comm.reset_stats()
        found.append(from_where.fetch(nodes, dtype))
        stats.append(ctx.comm.stats())

    fetch(features)
    with cuda_kernels(library):
        fetch(features)
        fetch(features.with_cache(torch.arange(lo, hi)[::2]))
        near = [RowRange(first, ROWS[first:end]) for first, end in ((40, 50), (7, 13)) if not lo <= first < hi]
        fetch(features.with_cache(torch.arange(lo, hi)[::2]).reading(near))
    return found, stats[:3]


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
def test_ranks_fetch_the_cpus_rows_and_bytes(emulated_library, dtype):
    for (nodes, on_cpu, on_cuda, cached, near), stats in run_distributed(
        3, fetch_on_ranks, args=(emulated_library, dtype)
    ):
        assert torch.equal(on_cpu, ROWS[nodes.long()].to(dtype or torch.float16))
        assert torch.equal(on_cuda, on_cpu) and torch.equal(cached, on_cpu) and torch.equal(near, on_cpu)
        assert stats[0] == stats[1] == stats[2]


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["device", "pinned"])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_one_rank_with_a_gpu_fetches_the_cpus_rows(where, dtype):
    device = torch.device("cuda", 0)
    placement = Placement("features", where, device, ROWS.nbytes, "asked for")
    nodes = torch.randperm(NUM_NODES)[:40].int()
    expected = alone(LocalFeatures(ROWS, 0)).fetch(nodes, dtype)
    features = alone(LocalFeatures(ROWS, 0)).placed(placement)
    assert features.device == device
    for found in (features, features.with_cache(torch.arange(0, NUM_NODES, 3))):
        rows = found.fetch(nodes.to(device), dtype, checked=False)
        assert rows.device == device and torch.equal(rows.cpu(), expected)

"""Id tables for as many nodes as batches have had: one that needs more is sampled again and is the CPU's, bit for bit.

The emulator takes tables of more than 2 KiB for large ones (id_table.cuh).
"""

import pytest
import torch

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops.captured import CapturedSampler
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.ops.kernel_choice import KERNELS
from fastsample_dist.ops.sampling_graph import SamplingGraph
from fastsample_dist.ops.table_room import TableRoom
from tests.cuda_devices import CallAgain
from tests.grids import grid
from tests.ops.graphs import random_csc
from tests.ops.test_cuda_sampling import refusals
from tests.ops.test_sample_mfg import same

NUM_NODES, SEED, STEP = 9000, 0xA5A5, 7
SMALL, LARGE = ops.SampleSpec(fanouts=(2, 2), rng_seed=SEED), ops.SampleSpec(fanouts=(10, 8), rng_seed=SEED)
FULL = 4  # word of the state, see FsCudaBatch


def both(graph, kernel="per_hop"):
    arrays = (graph.indptr, graph.indices, graph.orig_ids)
    return SamplingGraph(*arrays), CudaSamplingGraph(*arrays, kernel=kernel)


def sparse_graph(dtype=torch.int32):
    return random_csc(num_nodes=NUM_NODES, num_edges=NUM_NODES * 12, dtype=dtype)


def some_seeds(count, dtype=torch.int32):
    return torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(count))[:count].to(dtype)


def room_of(batch):
    return batch.layout.sizes.table_nodes


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("schedule", grid(range(6), gate=[0, 5]))
def test_a_batch_that_overflows_is_sampled_again_and_equals_the_cpus(emulated_device, kernel, schedule, dtype):
    emulated_device.set_schedule(schedule)
    cpu, cuda = both(sparse_graph(dtype), kernel)
    seeds, spec = some_seeds(25, dtype), ops.SampleSpec(fanouts=(10, 8), rng_seed=SEED, edge_ids=True)
    batch = cuda.enqueue(seeds, spec, STEP)
    assert room_of(batch) == 256 < batch.layout.sizes.max_nodes and batch.read_state()()[FULL] == 0
    found = cuda.finish(batch)
    assert found.nodes.numel() > 512 and same(found, cpu.sample(seeds, spec, STEP))
    again = cuda.enqueue(seeds, spec, STEP + 1)  # the table is not much smaller than the direct one
    assert room_of(again) == again.layout.sizes.max_nodes and again.table is not None
    assert same(cuda.finish(again), cpu.sample(seeds, spec, STEP + 1))


@pytest.mark.parametrize("method", ["weighted", "labor"])
def test_other_methods_overflow_as_well(emulated_device, method):
    graph = sparse_graph()
    values = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(1))
    weights = ops.EdgeWeights(values, ops.alias_tables(graph.indptr, values, 1)) if method == "weighted" else None
    spec, seeds = ops.SampleSpec(fanouts=(10, 8), rng_seed=SEED, method=method), some_seeds(25)
    cpu, cuda = (kind(graph.indptr, graph.indices, weights=weights) for kind in (SamplingGraph, CudaSamplingGraph))
    batch = cuda.enqueue(seeds, spec, STEP)
    assert batch.read_state()()[FULL] == 0 and same(cuda.finish(batch), cpu.sample(seeds, spec, STEP))


def test_the_room_follows_what_batches_have_had(emulated_device):
    cpu, cuda = both(sparse_graph())
    seeds = some_seeds(30)  # at most 270 nodes
    first = cuda.enqueue(seeds, SMALL, STEP)
    assert room_of(first) == 256 and first.read_state()()[FULL] == -1
    num_nodes = cuda.finish(first).nodes.numel()
    assert 128 < num_nodes <= 256 and room_of(cuda.enqueue(seeds, SMALL, STEP)) == 256
    few = some_seeds(20)  # of the same kind
    assert same(cuda.sample(few, SMALL, STEP), cpu.sample(few, SMALL, STEP))
    assert room_of(cuda.enqueue(few, SMALL, STEP)) == few.numel() * 9  # all that can come is hardly more


def test_batches_that_were_enqueued_before_one_overflows_are_all_right(emulated_device):
    cpu, cuda = both(sparse_graph())
    lists = [some_seeds(count) for count in (25, 24, 23)]
    batches = cuda.sample_many(lists, LARGE, STEP)
    for number, (batch, seeds) in enumerate(zip(batches, lists, strict=True)):
        assert same(batch, cpu.sample(seeds, LARGE, STEP + number))


def test_a_recorded_batch_has_room_for_all_nodes(emulated_device):
    cpu, cuda = both(sparse_graph())
    captured = CapturedSampler(cuda, LARGE, 25, recorder=CallAgain())
    sizes = captured._batch.layout.sizes
    assert sizes.table_nodes == sizes.max_nodes
    seeds = some_seeds(25)
    assert same(captured.sample(seeds, STEP), cpu.sample(seeds, LARGE, STEP))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seeds", [[*range(25), 7], [*range(25), -1], [*range(25), NUM_NODES]])
def test_what_is_wrong_with_a_batch_that_overflows_is_refused_in_the_cpus_words(emulated_device, kernel, seeds):
    graphs_of_both, ids = both(sparse_graph(), kernel), torch.tensor(seeds, dtype=torch.int32)
    on_host, on_device = refusals(graphs_of_both, emulated_device, ids, lambda graph, ids: graph.sample(ids, LARGE, 0))
    assert on_host == on_device


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_damaged_graph_that_overflows_is_refused_in_the_cpus_words(emulated_device, kernel):
    whole = sparse_graph()
    indices = whole.indices.clone()
    indices[5::97] = NUM_NODES + 3
    graphs_of_both = both(CSCGraph(whole.indptr, indices), kernel)
    ask = lambda graph, ids: graph.sample(ids, LARGE, 0)  # noqa: E731
    on_host, on_device = refusals(graphs_of_both, emulated_device, some_seeds(25), ask)
    assert on_host == on_device


def test_rooms_are_powers_of_two_by_kind():
    room = TableRoom(64 * 1000)
    assert room.expected(LARGE, 8) == 1024 and room.expected(LARGE, 3000) == 8192
    room.note(LARGE, 8, 3000)
    room.note(LARGE, 7, 2000)
    assert (room.expected(LARGE, 5), room.expected(LARGE, 9), room.expected(SMALL, 8)) == (4096, 1024, 1024)

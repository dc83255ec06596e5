"""The cooperative kernel: the batches of the CPU, bit for bit, and barriers that do not hold a launch for ever."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastsample_dist import ops
from fastsample_dist.ops.captured import CapturedSampler
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.ops.persistent import QueueOptions
from fastsample_dist.ops.sampling_graph import SamplingGraph
from tests.cuda_devices import CallAgain, CudaDevice
from tests.grids import grid
from tests.ops.graphs import random_csc
from tests.ops.strategies import WORDS, graphs, some_seeds
from tests.ops.test_cuda_sampling import hub_graph, on_cpu, refusals, same
from tests.ops.test_persistent import layered_graph, uniform_specs

FIXTURE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SEED, STEP = 0xA5A5, 7


def both(device, graph, **options):
    """The CPU's sampling graph, and the device's with the cooperative kernel."""
    orig_ids = None if graph.orig_ids is None else device.put(graph.orig_ids)
    arrays = (device.put(graph.indptr), device.put(graph.indices), orig_ids)
    cpu = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)
    return cpu, CudaSamplingGraph(*arrays, kernel="cooperative", **options)


def assert_same_batch(device, graph, seeds, spec, step=STEP):
    cpu, cuda = both(device, graph)
    assert same(on_cpu(cuda.sample(device.put(seeds), spec, step)), cpu.sample(seeds, spec, step))


DRAWN = {
    "graph": graphs(), "spec": uniform_specs(), "step": WORDS, "data": st.data(), "schedule": st.integers(0, 2**32),
}  # fmt: skip


def assert_equals_the_cpus(device, graph, spec, step, data, schedule):
    device.set_schedule(schedule)
    assert_same_batch(device, graph, some_seeds(data, graph), spec, step)


@settings(FIXTURE, max_examples=30)
@given(**DRAWN)
def test_a_batch_equals_the_cpus_under_any_schedule(emulated_device, **drawn):
    assert_equals_the_cpus(emulated_device, **drawn)


@pytest.mark.grid
@settings(FIXTURE, max_examples=200)
@given(**DRAWN)
def test_two_hundred_batches_equal_the_cpus_under_any_schedule(emulated_device, **drawn):
    assert_equals_the_cpus(emulated_device, **drawn)


@pytest.mark.gpu
@pytest.mark.long
@settings(FIXTURE, max_examples=10_000)
@given(graph=graphs(), spec=uniform_specs(), step=WORDS, data=st.data())
def test_ten_thousand_batches_equal_the_cpus(graph, spec, step, data):
    assert_same_batch(CudaDevice(), graph, some_seeds(data, graph), spec, step)


@pytest.mark.parametrize("schedules", grid([8, 100], gate=[8]))
def test_one_input_again_and_again(cuda_device, schedules):
    graph, seeds = layered_graph(), torch.arange(0, 24, 4).int()
    spec = ops.SampleSpec(fanouts=(4, 3, 3), rng_seed=SEED)
    cpu, cuda = both(cuda_device, graph)
    expected, given_seeds = cpu.sample(seeds, spec, STEP), cuda_device.put(seeds)
    for schedule in range(schedules):
        if cuda_device.is_emulated:
            cuda_device.set_schedule(schedule)
        assert same(on_cpu(cuda.sample(given_seeds, spec, STEP)), expected), schedule


@pytest.mark.parametrize("dtype", grid([torch.int32, torch.int64], gate=[torch.int64]))
@pytest.mark.parametrize("num_nodes", [120, 9000])  # an id table that is addressed directly, and a hashed one
@pytest.mark.parametrize(
    "fanouts", grid([(5,), (10, 0, 4), (40, 3), (33, 32, 31), (-1, 5), (1,) * 16], gate=[(10, 0, 4), (33, 32, 31)])
)
def test_every_width_of_a_row(cuda_device, fanouts, num_nodes, dtype):
    graph = random_csc(num_nodes=num_nodes, num_edges=num_nodes * 20, dtype=dtype)
    seeds = torch.randperm(num_nodes)[:5].to(dtype)
    assert_same_batch(cuda_device, graph, seeds, ops.SampleSpec(fanouts=fanouts, rng_seed=SEED, edge_ids=True))


@pytest.mark.parametrize("fanouts", [(100, 3), (-1, 2)])
def test_hub_nodes(cuda_device, fanouts):
    seeds = torch.tensor([1, 0, 7, 2900], dtype=torch.int32)
    assert_same_batch(cuda_device, hub_graph(3000), seeds, ops.SampleSpec(fanouts=fanouts, rng_seed=SEED))


@pytest.mark.parametrize("fanouts", [(3, 2), ()])
@pytest.mark.parametrize("num_seeds", [0, 4])
def test_without_seeds_or_hops(cuda_device, fanouts, num_seeds):
    assert_same_batch(cuda_device, random_csc(), torch.arange(num_seeds).int(), ops.SampleSpec(fanouts=fanouts))


@pytest.mark.parametrize("num_hops", [0, 1, 3])
def test_a_batch_takes_two_launches_and_one_for_its_sizes_whatever_its_hops(emulated_device, num_hops):
    _, cuda = both(emulated_device, random_csc())
    before = emulated_device.num_launches()
    cuda.sample(torch.arange(9).int(), ops.SampleSpec(fanouts=(4,) * num_hops), 0)
    assert emulated_device.num_launches() - before == 2 + 1


@pytest.mark.parametrize("seeds", [[3, 5, 3], [0] * 50, [60], [-1], [4, 4, -7, 99]])
def test_bad_seeds_are_refused_in_the_cpus_words(cuda_device, seeds):
    spec, ids = ops.SampleSpec(fanouts=(2, 2)), torch.tensor(seeds, dtype=torch.int32)
    graphs_of_both = both(cuda_device, random_csc())
    on_host, on_device = refusals(graphs_of_both, cuda_device, ids, lambda graph, ids: graph.sample(ids, spec, 0))
    assert on_host == on_device


@pytest.mark.parametrize("schedule", [0, 3])
def test_a_barrier_that_is_not_reached_in_time_ends_the_kernel(cuda_device, schedule):
    """Blocks that wait, with no patience at all, while another reads rows of 3,000 and 300 neighbours."""
    if cuda_device.is_emulated:
        cuda_device.set_schedule(schedule)
    _, cuda = both(cuda_device, hub_graph(3000), queue=QueueOptions(timeout_s=0))
    with pytest.raises(
        RuntimeError,
        match=r"^sample_mfg: the cooperative kernel gave up because block \d+ waited too long at barrier \d+, to which "
        r"\d+ of \d+ blocks had come; pass a larger timeout_s, or kernel='per_hop'\.$",
    ):
        cuda.sample(cuda_device.put(torch.tensor([0, 1], dtype=torch.int32)), ops.SampleSpec(fanouts=(40, -1)), 0)
    assert_same_batch(cuda_device, random_csc(), torch.arange(9).int(), ops.SampleSpec(fanouts=(3, 2)))


def test_a_launch_of_more_blocks_than_the_device_holds_is_an_error(emulated_device):
    _, graph = both(emulated_device, random_csc())
    batch = graph.enqueue(torch.arange(9).int(), ops.SampleSpec(fanouts=(3, 2)), 0)
    batch.layout.sizes.grid_blocks = 5
    with pytest.raises(RuntimeError, match="cooperative launch of 5 blocks, of which 4 are resident at once"):
        graph.enqueue_into(batch)


def test_a_recorded_batch_is_that_of_its_seeds_and_step(cuda_device):
    cpu, cuda = both(cuda_device, random_csc())
    spec = ops.SampleSpec(fanouts=(3, 2), rng_seed=SEED)
    recorder = CallAgain() if cuda_device.is_emulated else None
    captured = CapturedSampler(cuda, spec, 9, recorder=recorder)
    for step in (STEP, 0):
        seeds = torch.randperm(60)[:9].int()
        assert same(on_cpu(captured.sample(cuda_device.put(seeds), step)), cpu.sample(seeds, spec, step))


def test_other_methods_are_refused(cuda_device):
    graph = random_csc()
    _, on_device = both(cuda_device, graph)
    with pytest.raises(ValueError, match=r"method 2; expected 0 \(uniform\), which alone the cooperative kernel draws"):
        on_device.sample(cuda_device.put(torch.arange(3).int()), ops.SampleSpec(fanouts=(2,), method="labor"), 0)

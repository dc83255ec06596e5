"""The persistent kernel: the batches of the CPU, bit for bit, however its warps share the tasks."""

import pytest
import torch

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops.captured import CapturedSampler
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.ops.persistent import QueueOptions
from fastsample_dist.ops.sampling_graph import SamplingGraph
from tests.cuda_devices import CallAgain
from tests.grids import grid
from tests.ops.graphs import random_csc
from tests.ops.strategies import FANOUTS, WORDS, graphs, some_seeds
from tests.ops.test_cuda_sampling import hub_graph, on_cpu, refusals, same
from tests.optional import HealthCheck, given, settings, st

FIXTURE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SEED, STEP = 0xA5A5, 7
TAIL, FINISHED, RECORDED = -80 + 16, -80 + 32, -80 + 48  # words of the state, task_queue.cuh
RECORD_CHUNK = 64  # of the emulator, persistent_tasks.cuh


@st.composite
def uniform_specs(draw):
    """Any SampleSpec that the kernel samples."""
    replace = draw(st.booleans())
    fanouts = draw(st.lists(FANOUTS if replace else FANOUTS | st.just(-1), min_size=1, max_size=4))
    return ops.SampleSpec(fanouts=tuple(fanouts), replace=replace, rng_seed=draw(WORDS), edge_ids=draw(st.booleans()))


@st.composite
def queues(draw):
    """Any way to share the tasks."""
    least, more = draw(st.integers(1, 32)), draw(st.integers(0, 32))
    return QueueOptions(least_fetch=least, most_fetch=least + more)


def both(device, graph, queue=None):
    """The CPU's sampling graph, and the device's with the persistent kernel."""
    orig_ids = None if graph.orig_ids is None else device.put(graph.orig_ids)
    arrays = (device.put(graph.indptr), device.put(graph.indices), orig_ids)
    cpu = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)
    return cpu, CudaSamplingGraph(*arrays, kernel="persistent", queue=queue)


def assert_same_batch(device, graph, seeds, spec, queue=None):
    cpu, cuda = both(device, graph, queue)
    assert same(on_cpu(cuda.sample(device.put(seeds), spec, STEP)), cpu.sample(seeds, spec, STEP))


def layered_graph(width=12, layers=6):
    """Every node of a layer has all nodes of the next two as in-neighbours: what hop 1 finds, hop 0 finds too."""
    layer, place = torch.arange(layers * width) // width, torch.arange(layers * width)
    src, dst = torch.cartesian_prod(place, place).T
    near = (layer[src] - layer[dst] == 1) | (layer[src] - layer[dst] == 2)
    return CSCGraph.from_edge_index(src[near], dst[near], layers * width)


DRAWN = {
    "graph": graphs(), "spec": uniform_specs(), "step": WORDS, "queue": queues(), "data": st.data(),
    "schedule": st.integers(0, 2**32),
}  # fmt: skip


def assert_equals_the_cpus(device, graph, spec, step, queue, data, schedule):
    seeds = some_seeds(data, graph)
    cpu, cuda = both(device, graph, queue)
    device.set_schedule(schedule)
    assert same(cuda.sample(seeds, spec, step), cpu.sample(seeds, spec, step))


@settings(FIXTURE, max_examples=50)
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
@given(graph=graphs(), spec=uniform_specs(), step=WORDS, queue=queues(), data=st.data())
def test_ten_thousand_batches_equal_the_cpus(graph, spec, step, queue, data):
    from tests.cuda_devices import CudaDevice

    seeds = some_seeds(data, graph)
    cpu, cuda = both(CudaDevice(), graph, queue)
    assert same(on_cpu(cuda.sample(seeds.cuda(), spec, step)), cpu.sample(seeds, spec, step))


@pytest.mark.parametrize("schedules", grid([10, 100], gate=[10]))
def test_one_input_again_and_again(cuda_device, schedules):
    """Of seeds that find one another, and nodes that two hops find."""
    graph, seeds = layered_graph(), torch.arange(0, 24, 4).int()
    spec = ops.SampleSpec(fanouts=(4, 3, 3), rng_seed=SEED)
    cpu, cuda = both(cuda_device, graph)
    expected, given_seeds = cpu.sample(seeds, spec, STEP), cuda_device.put(seeds)
    for schedule in range(schedules):
        if cuda_device.is_emulated:
            cuda_device.set_schedule(schedule)
        assert same(on_cpu(cuda.sample(given_seeds, spec, STEP)), expected), schedule


@pytest.mark.parametrize("schedule", grid(range(8), gate=[0, 7]))
@pytest.mark.parametrize("fanouts", [(4, 4, 4, 4), (-1, -1, -1), (2, 9)])
def test_every_node_has_one_task_per_hop_whoever_finds_it_first(emulated_device, fanouts, schedule):
    emulated_device.set_schedule(schedule)
    graph, seeds = layered_graph(), torch.arange(12).int()
    _, cuda = both(emulated_device, graph)
    batch = cuda.enqueue(seeds, ops.SampleSpec(fanouts=fanouts, rng_seed=SEED), STEP)
    num_tasks = sum(indptr.numel() - 1 for indptr in cuda.finish(batch).indptrs)  # destinations of all hops
    assert batch.read_state()()[FINISHED] + 1 == num_tasks
    assert batch.read_state()()[TAIL] + 1 == num_tasks - 12 * len(fanouts)


@pytest.mark.parametrize("schedule", grid(range(6), gate=[0, 5]))
def test_warps_take_records_by_the_chunk_and_long_rows_their_own_run(emulated_device, schedule):
    emulated_device.set_schedule(schedule)
    _, cuda = both(emulated_device, hub_graph(3000))
    seeds = torch.arange(40).int()
    narrow = cuda.enqueue(seeds, ops.SampleSpec(fanouts=(30, 20), rng_seed=SEED), STEP)
    picks = sum(indices.numel() for indices in cuda.finish(narrow).indices)
    chunks, rest = divmod(narrow.read_state()()[RECORDED] + 1, RECORD_CHUNK)
    warps = 2 * narrow.layout.sizes.grid_blocks
    assert rest == 0 and picks / RECORD_CHUNK <= chunks <= picks / (RECORD_CHUNK - 31) + warps
    wide = cuda.enqueue(seeds[:1], ops.SampleSpec(fanouts=(-1,)), STEP)  # node 0 alone
    assert cuda.finish(wide).indices[0].numel() == 3000 == wide.read_state()()[RECORDED] + 1


@pytest.mark.parametrize("dtype", grid([torch.int32, torch.int64], gate=[torch.int64]))
@pytest.mark.parametrize("num_nodes", [120, 9000])  # an id table that is addressed directly, and a hashed one
@pytest.mark.parametrize(
    "fanouts",
    grid(
        [(5,), (10, 0, 4), (40, 3), (3, 64), (33, 32, 31), (1, 1, 1, 1), (-1, 5), (5, -1)],
        gate=[(10, 0, 4), (33, 32, 31), (-1, 5)],
    ),
)
def test_every_width_of_a_row(cuda_device, fanouts, num_nodes, dtype):
    graph = random_csc(num_nodes=num_nodes, num_edges=num_nodes * 20, dtype=dtype)
    seeds = torch.randperm(num_nodes)[:5].to(dtype)
    assert_same_batch(cuda_device, graph, seeds, ops.SampleSpec(fanouts=fanouts, rng_seed=SEED, edge_ids=True))


@pytest.mark.parametrize("fetch_size", grid([1, 2, 5, 32, 100], gate=[1, 32]))
@pytest.mark.parametrize("fanouts", [(1, 1, 1), (2, 2), (40, 2)])
def test_any_fetch_size_below_and_above_the_fanout(cuda_device, fanouts, fetch_size):
    queue = QueueOptions(least_fetch=fetch_size, most_fetch=fetch_size)
    spec = ops.SampleSpec(fanouts=fanouts, rng_seed=SEED)
    assert_same_batch(cuda_device, random_csc(), torch.arange(10).int(), spec, queue)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [(7, 5), (100, 3), (2, 100)])
def test_hub_nodes(cuda_device, fanouts, replace):
    spec = ops.SampleSpec(fanouts=fanouts, rng_seed=SEED, replace=replace)
    assert_same_batch(cuda_device, hub_graph(3000), torch.tensor([1, 0, 7, 2900], dtype=torch.int32), spec)


def test_a_fanout_above_every_degree_takes_whole_rows(cuda_device):
    graph = random_csc(num_nodes=80, num_edges=200)
    spec = ops.SampleSpec(fanouts=(31, 500), rng_seed=SEED, edge_ids=True)
    assert_same_batch(cuda_device, graph, torch.arange(0, 80, 9).int(), spec)


@pytest.mark.parametrize("fanouts", [(3, 2), ()])
@pytest.mark.parametrize("num_seeds", [0, 4])
def test_without_seeds_or_hops_there_are_no_tasks(cuda_device, fanouts, num_seeds):
    assert_same_batch(cuda_device, random_csc(), torch.arange(num_seeds).int(), ops.SampleSpec(fanouts=fanouts))


def test_a_graph_without_edges(cuda_device):
    graph = CSCGraph(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    assert_same_batch(cuda_device, graph, torch.tensor([2, 0]), ops.SampleSpec(fanouts=(5, -1)))


@pytest.mark.parametrize("seeds", [[3, 5, 3], [0] * 50, [9] * 200, [60], [-1], [4, 4, -7, 99]])
def test_bad_seeds_are_refused_in_the_cpus_words(cuda_device, seeds):
    spec, ids = ops.SampleSpec(fanouts=(2, 2)), torch.tensor(seeds, dtype=torch.int32)
    graphs_of_both = both(cuda_device, random_csc())
    on_host, on_device = refusals(graphs_of_both, cuda_device, ids, lambda graph, ids: graph.sample(ids, spec, 0))
    assert on_host == on_device


@pytest.mark.parametrize("edge_ids", [False, True])
@pytest.mark.parametrize("bad", [77, -4])
def test_a_damaged_graph_is_refused_in_the_cpus_words(cuda_device, bad, edge_ids):
    whole = random_csc(num_edges=900)
    indices = whole.indices.clone()
    indices[::7], indices[3::11] = bad, bad + 1
    spec, ids = ops.SampleSpec(fanouts=(2, 3), edge_ids=edge_ids), torch.arange(30, dtype=torch.int32)
    graphs_of_both = both(cuda_device, CSCGraph(whole.indptr, indices))
    on_host, on_device = refusals(graphs_of_both, cuda_device, ids, lambda graph, ids: graph.sample(ids, spec, 0))
    assert on_host == on_device


@pytest.mark.parametrize("schedule", range(5))
def test_the_watchdog_ends_the_kernel_and_tells_the_queues_state(cuda_device, schedule):
    """A warp that waits, with no patience at all, while another reads a row of 3,000 neighbours."""
    if cuda_device.is_emulated:
        cuda_device.set_schedule(schedule)
    _, cuda = both(cuda_device, hub_graph(3000), QueueOptions(timeout_s=0))
    with pytest.raises(
        RuntimeError,
        match=r"^sample_mfg: the persistent kernel gave up because nothing was done for too long: "
        r"0 of 1 tasks are finished, \d+ tickets handed out, and warp \d+ of block \d+ waits for task \d+; "
        r"pass a larger timeout_s, or kernel='per_hop'\.$",
    ):
        cuda.sample(cuda_device.put(torch.tensor([0], dtype=torch.int32)), ops.SampleSpec(fanouts=(-1,)), 0)
    assert_same_batch(cuda_device, random_csc(), torch.arange(9).int(), ops.SampleSpec(fanouts=(3, 2)))


def test_a_recorded_batch_is_that_of_its_seeds_and_step(cuda_device):
    cpu, cuda = both(cuda_device, random_csc())
    spec = ops.SampleSpec(fanouts=(3, 2), rng_seed=SEED)
    recorder = CallAgain() if cuda_device.is_emulated else None
    captured = CapturedSampler(cuda, spec, 9, recorder=recorder)
    for step in (STEP, 0):
        seeds = torch.randperm(60)[:9].int()
        assert same(on_cpu(captured.sample(cuda_device.put(seeds), step)), cpu.sample(seeds, spec, step))


@pytest.mark.parametrize("method", ["weighted", "labor"])
def test_other_methods_are_refused(cuda_device, method):
    graph = random_csc()
    weights = ops.EdgeWeights(
        torch.ones(graph.num_edges), ops.alias_tables(graph.indptr, torch.ones(graph.num_edges), 1)
    )
    put = cuda_device.put
    weights = ops.EdgeWeights(put(weights.weights), ops.AliasTables(put(weights.tables.table), None))
    cuda = CudaSamplingGraph(put(graph.indptr), put(graph.indices), weights=weights, kernel="persistent")
    with pytest.raises(ValueError, match=r"sample_mfg: method [12]; expected 0 \(uniform\)"):
        cuda.sample(put(torch.arange(3).int()), ops.SampleSpec(fanouts=(2,), method=method), 0)


def test_an_unknown_kernel_is_refused(cuda_device):
    graph = random_csc()
    with pytest.raises(ValueError, match="kernel is 'fast'; expected 'auto', 'per_hop', 'persistent' or 'cooperative'"):
        CudaSamplingGraph(cuda_device.put(graph.indptr), cuda_device.put(graph.indices), kernel="fast")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"least_fetch": 0}, "least_fetch is 0 and most_fetch 32; expected 1 or more, ascending"),
        ({"least_fetch": 9, "most_fetch": 8}, "least_fetch is 9 and most_fetch 8; expected"),
        ({"timeout_s": -1.0}, r"timeout_s is -1\.0; expected 0 to"),
    ],
)
def test_bad_options_are_refused(options, line):
    with pytest.raises(ValueError, match=line):
        QueueOptions(**options)

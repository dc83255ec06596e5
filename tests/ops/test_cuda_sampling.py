"""CudaSamplingGraph against SamplingGraph: the same batches in the same order, refusals in the same words."""

import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops import SamplingGraph
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.ops.read_back import HostWords
from tests.cuda_devices import CudaDevice
from tests.grids import grid
from tests.ops.graphs import random_csc
from tests.ops.strategies import WORDS, graphs, some_seeds, specs
from tests.ops.test_sample_mfg import same
from tests.optional import HealthCheck, given, settings, st, stats

SEED, STEP = 2**40 + 7, 2**33 + 5  # both beyond 32 bits
FIXTURE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def on(device, graph, weights=None, kernel="per_hop"):
    """The graph on a CUDA device."""
    if weights is not None:
        tables = weights.tables
        counts = None if tables.num_positive is None else device.put(tables.num_positive)
        weights = ops.EdgeWeights(device.put(weights.weights), ops.AliasTables(device.put(tables.table), counts))
    orig_ids = None if graph.orig_ids is None else device.put(graph.orig_ids)
    return CudaSamplingGraph(
        device.put(graph.indptr), device.put(graph.indices), orig_ids, weights=weights, kernel=kernel
    )


def both(device, graph, spec, kernel="per_hop"):
    """The CPU's sampling graph and the device's."""
    weights = graph.edge_weights if spec.method == "weighted" else None
    cpu = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids, weights=weights)
    return cpu, on(device, graph, weights, kernel)


def on_cpu(hops):
    lists = (hops.indptrs, hops.indices, hops.edge_ids)
    return ops.SampledHops(hops.nodes.cpu(), *([tensor.cpu() for tensor in tensors] for tensors in lists))


def refusals(graphs_of_both, device, ids, ask):
    """What the CPU's graph and the device's say about the same ids."""
    said = []
    for graph, given_ids in zip(graphs_of_both, (ids, device.put(ids)), strict=True):
        with pytest.raises(ValueError) as refusal:
            ask(graph, given_ids)
        said.append(str(refusal.value))
    return said


def hub_graph(degree, dtype=torch.int32):
    """Node 0 has `degree` in-edges, node 1 a tenth of them, the others one each."""
    num_nodes = degree + 2
    degrees = torch.ones(num_nodes, dtype=torch.int64)
    degrees[0], degrees[1] = degree, degree // 10
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    generator = torch.Generator().manual_seed(degree)
    return CSCGraph(indptr, torch.randint(0, num_nodes, (int(indptr[-1]),), generator=generator).to(dtype))


DRAWN = {
    "graph": graphs(), "spec": specs(), "step": WORDS, "data": st.data(), "schedule": st.integers(0, 2**32),
}  # fmt: skip


def assert_equals_the_cpus(device, graph, spec, step, data, schedule):
    seeds = some_seeds(data, graph)
    cpu, cuda = both(device, graph, spec)
    device.set_schedule(schedule)
    assert same(cuda.sample(seeds, spec, step), cpu.sample(seeds, spec, step))


@settings(FIXTURE, max_examples=100)
@given(**DRAWN)
def test_a_batch_equals_the_cpus_under_any_schedule(emulated_device, **drawn):
    assert_equals_the_cpus(emulated_device, **drawn)


@pytest.mark.grid
@settings(FIXTURE, max_examples=400)
@given(**DRAWN)
def test_four_hundred_batches_equal_the_cpus_under_any_schedule(emulated_device, **drawn):
    assert_equals_the_cpus(emulated_device, **drawn)


@pytest.mark.gpu
@pytest.mark.long
@settings(FIXTURE, max_examples=10_000)
@given(graph=graphs(), spec=specs(), step=WORDS, data=st.data())
def test_ten_thousand_batches_equal_the_cpus(graph, spec, step, data):
    seeds = some_seeds(data, graph)
    cpu, cuda = both(CudaDevice(), graph, spec)
    assert same(on_cpu(cuda.sample(seeds.cuda(), spec, step)), cpu.sample(seeds, spec, step))


@settings(FIXTURE, max_examples=150)
@given(graph=graphs(), spec=specs(), step=WORDS, data=st.data(), schedule=st.integers(0, 2**32))
def test_neighbors_equal_the_cpus_for_rows_that_repeat(emulated_device, graph, spec, step, data, schedule):
    rows = some_seeds(data, graph).repeat_interleave(2)
    hop = data.draw(st.integers(0, len(spec.fanouts) - 1), label="hop")
    cpu, cuda = both(emulated_device, graph, spec)
    emulated_device.set_schedule(schedule)
    for ours, theirs in zip(cuda.neighbors(rows, spec, hop, step), cpu.neighbors(rows, spec, hop, step), strict=True):
        assert ours is theirs if theirs is None else torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    "fanouts", grid([(3,), (3, 5, 2), (10, 0, 4), (40, 40), (64, 2), (33, 32, 31)], gate=[(10, 0, 4), (33, 32, 31)])
)
def test_every_width_of_a_group_of_lanes(cuda_device, dtype, replace, fanouts):
    graph = random_csc(num_nodes=120, num_edges=9000, dtype=dtype)
    seeds = torch.randperm(120)[:15].to(dtype)
    spec = ops.SampleSpec(fanouts=fanouts, rng_seed=SEED, replace=replace, edge_ids=True)
    cpu, cuda = both(cuda_device, graph, spec)
    assert same(on_cpu(cuda.sample(cuda_device.put(seeds), spec, STEP)), cpu.sample(seeds, spec, STEP))


@pytest.mark.parametrize("method", ["uniform", "weighted", "labor"])
@pytest.mark.parametrize(
    "fanouts", grid([(7, 5), (100, 3), (-1, 2), (1000, 4), (5000, 1)], gate=[(7, 5), (-1, 2), (5000, 1)])
)
def test_hub_nodes(cuda_device, method, fanouts):
    graph = hub_graph(3000)
    weights = torch.ones(graph.num_edges).index_fill_(0, torch.tensor([5, 17]), 1e9)  # two edges have nearly all
    graph = CSCGraph(graph.indptr, graph.indices, weights)
    seeds = torch.tensor([1, 0, 7, 2900], dtype=torch.int32)
    spec = ops.SampleSpec(fanouts=fanouts, rng_seed=SEED, method=method)
    cpu, cuda = both(cuda_device, graph, spec)
    assert same(on_cpu(cuda.sample(cuda_device.put(seeds), spec, STEP)), cpu.sample(seeds, spec, STEP))


@pytest.mark.parametrize(("degree", "fanout"), [(3 * 2**30, 16), (3 * 2**30, 100), (2**32 + 5, 16), (2**32 + 5, 40)])
@pytest.mark.parametrize("replace", [False, True])
def test_draws_that_are_rejected_are_drawn_again_in_order(emulated_device, degree, fanout, replace):
    """A row of 3 * 2**30 edges, over untouched zero pages, rejects every fourth word: draws are not numbered by words.
    From 2**32 edges on a draw takes two words."""
    indptr, indices = torch.tensor([0, degree]), torch.frombuffer(mmap.mmap(-1, 4 * degree), dtype=torch.int32)
    spec = ops.SampleSpec(fanouts=(fanout,), rng_seed=SEED, replace=replace, edge_ids=True)
    rows = torch.zeros(1, dtype=torch.int32)
    for step in range(10):
        expected = SamplingGraph(indptr, indices).neighbors(rows, spec, 0, step)[2]
        assert torch.equal(CudaSamplingGraph(indptr, indices).neighbors(rows, spec, 0, step)[2], expected)


@pytest.mark.parametrize("schedules", grid([20, 100], gate=[20]))
def test_one_input_again_and_again(cuda_device, schedules):
    graph = random_csc(num_edges=2500)
    seeds = torch.randperm(60)[:20].int()
    spec = ops.SampleSpec(fanouts=(6, 5, 4), rng_seed=SEED)
    cpu, cuda = both(cuda_device, graph, spec)
    expected, given_seeds = cpu.sample(seeds, spec, STEP), cuda_device.put(seeds)
    for schedule in range(schedules):
        if cuda_device.is_emulated:
            cuda_device.set_schedule(schedule)
        assert same(on_cpu(cuda.sample(given_seeds, spec, STEP)), expected)


def test_many_batches_are_those_of_their_steps(cuda_device):
    graph = random_csc()
    lists = [torch.randperm(60)[:n].int() for n in (9, 0, 4)]
    spec = ops.SampleSpec(fanouts=(4, 3), rng_seed=SEED)
    cpu, cuda = both(cuda_device, graph, spec)
    batches = cuda.sample_many([cuda_device.put(seeds) for seeds in lists], spec, STEP)
    for number, (batch, seeds) in enumerate(zip(batches, lists, strict=True)):
        assert same(on_cpu(batch), cpu.sample(seeds, spec, STEP + number))


def test_seeds_and_step_may_be_said_by_words_of_the_host(cuda_device):
    graph, spec = random_csc(), ops.SampleSpec(fanouts=(4, 3), rng_seed=SEED)
    cpu, cuda = both(cuda_device, graph, spec)
    seeds = torch.randperm(60)[:9].int()
    first_rows, asked = (cuda_device.put(ids) for ids in (torch.arange(9).int(), seeds))
    replay = torch.tensor([STEP, asked.data_ptr(), 0])
    replay = replay if cuda_device.is_emulated else replay.pin_memory()
    batch = cuda.enqueue(first_rows, spec, 0, replay=replay)
    assert same(on_cpu(cuda.finish(batch)), cpu.sample(seeds, spec, STEP))


@pytest.mark.parametrize("fanouts", [(3, 2), ()])
def test_empty_seeds_give_an_empty_batch(cuda_device, fanouts):
    spec = ops.SampleSpec(fanouts=fanouts)
    cpu, cuda = both(cuda_device, random_csc(), spec)
    seeds = torch.empty(0, dtype=torch.int32)
    assert same(on_cpu(cuda.sample(cuda_device.put(seeds), spec, 0)), cpu.sample(seeds, spec, 0))


def test_a_graph_without_edges(cuda_device):
    graph = CSCGraph(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    spec = ops.SampleSpec(fanouts=(5, -1))
    cpu, cuda = both(cuda_device, graph, spec)
    seeds = torch.tensor([2, 0])
    assert same(on_cpu(cuda.sample(cuda_device.put(seeds), spec, 0)), cpu.sample(seeds, spec, 0))


@pytest.mark.parametrize("seeds", [[3, 5, 3], [0] * 50, [9] * 200, [60], [-1], [4, 4, -7, 99], [2**31 - 1]])
def test_bad_seeds_are_refused_in_the_cpus_words(cuda_device, seeds):
    spec = ops.SampleSpec(fanouts=(2, 2))
    ids, graphs_of_both = torch.tensor(seeds, dtype=torch.int32), both(cuda_device, random_csc(), spec)
    on_host, on_device = refusals(graphs_of_both, cuda_device, ids, lambda graph, ids: graph.sample(ids, spec, 0))
    assert on_host == on_device


@pytest.mark.parametrize("rows", [[60], [-1], [3, 61, 99]])
def test_bad_rows_are_refused_in_the_cpus_words(cuda_device, rows):
    spec = ops.SampleSpec(fanouts=(2,))
    ids, graphs_of_both = torch.tensor(rows, dtype=torch.int32), both(cuda_device, random_csc(), spec)
    on_host, on_device = refusals(graphs_of_both, cuda_device, ids, lambda graph, ids: graph.neighbors(ids, spec, 0, 0))
    assert on_host == on_device


@pytest.mark.parametrize("edge_ids", [False, True])
@pytest.mark.parametrize(("method", "fanouts"), [("uniform", (2, 3)), ("uniform", (-1, 3)), ("labor", (2, 3))])
@pytest.mark.parametrize("bad", [77, -4])
def test_a_damaged_graph_is_refused_in_the_cpus_words(cuda_device, bad, method, fanouts, edge_ids):
    whole = random_csc(num_edges=900)
    indices = whole.indices.clone()
    indices[::7], indices[3::11] = bad, bad + 1
    spec = ops.SampleSpec(fanouts=fanouts, method=method, edge_ids=edge_ids)
    ids = torch.arange(30, dtype=torch.int32)
    graphs_of_both = both(cuda_device, CSCGraph(whole.indptr, indices, orig_ids=whole.orig_ids), spec)
    on_host, on_device = refusals(graphs_of_both, cuda_device, ids, lambda graph, ids: graph.sample(ids, spec, 0))
    assert on_host == on_device


@pytest.mark.parametrize(
    ("method", "kernel"), [("uniform", "per_hop"), ("uniform", "persistent"), ("labor", "per_hop")]
)
def test_a_source_outside_of_a_slices_rows_is_refused_in_the_cpus_words(cuda_device, method, kernel):
    arrays = (torch.tensor([0, 3, 3, 3]), torch.tensor([1, 9, 2], dtype=torch.int32), torch.arange(3), torch.arange(10))
    cuda = CudaSamplingGraph(*(cuda_device.put(array) for array in arrays), kernel=kernel)
    spec, ids = ops.SampleSpec(fanouts=(-1,), method=method), torch.zeros(1, dtype=torch.int32)
    graphs_of_both = (SamplingGraph(*arrays), cuda)
    on_host, on_device = refusals(graphs_of_both, cuda_device, ids, lambda graph, ids: graph.sample(ids, spec, 0))
    assert on_host == on_device


def test_decreasing_offsets_are_refused_when_the_graph_is_made(cuda_device):
    indptr, indices = torch.tensor([0, 9, 4]), torch.zeros(4, dtype=torch.int32)
    with pytest.raises(ValueError, match="indptr of node 0 runs from 0 to 9; expected non-decreasing offsets up to 4"):
        CudaSamplingGraph(cuda_device.put(indptr), cuda_device.put(indices))


def test_more_hops_than_the_kernels_take_are_refused(cuda_device):
    with pytest.raises(ValueError, match="sample_mfg: 17 hops; expected at most 16 on CUDA"):
        on(cuda_device, random_csc()).sample(
            cuda_device.put(torch.arange(3).int()), ops.SampleSpec(fanouts=(1,) * 17), 0
        )


def test_weighted_draws_without_weights_are_refused(cuda_device):
    spec = ops.SampleSpec(fanouts=(2,), method="weighted")
    with pytest.raises(ValueError, match="method is 'weighted' but the graph has no weights"):
        on(cuda_device, random_csc()).sample(cuda_device.put(torch.arange(3).int()), spec, 0)


class CallNames(TorchFunctionMode):
    """Names of the torch functions that are called inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


def test_all_hops_are_enqueued_before_anything_is_read_back(cuda_device, monkeypatch):
    spec = ops.SampleSpec(fanouts=(5, 4, 3), rng_seed=SEED)
    graph, seeds = on(cuda_device, random_csc()), cuda_device.put(torch.arange(9).int())
    waiting = {"item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__index__"}
    reads, read = [], HostWords.read
    monkeypatch.setattr(HostWords, "read", lambda words: reads.append(words) or read(words))
    with CallNames() as calls:
        batch = graph.enqueue(seeds, spec, 0)
        assert not reads
        graph.finish(batch)
    assert len(reads) == 1 and not waiting & set(calls.names)


def test_the_arrays_of_a_batch_are_cut_at_their_bounds_at_once_and_shortened_one_by_one(cuda_device):
    spec = ops.SampleSpec(fanouts=(5, 4, 3), rng_seed=SEED)
    graph, seeds = on(cuda_device, random_csc()), cuda_device.put(torch.arange(9).int())
    batch = graph.enqueue(seeds, spec, 0)
    with CallNames() as finishing:
        graph.finish(batch)
    assert finishing.names.count("unsafe_split_with_sizes") == 2 and finishing.names.count("view") == 1
    assert finishing.names.count("resize_") == 7 and "as_strided" not in finishing.names


STAMPS = 2**20 - 1


@pytest.mark.parametrize("kernel", ["per_hop", "persistent"])
@pytest.mark.parametrize("left", [STAMPS - 1, 2, 1, 0])
def test_a_table_is_emptied_only_when_its_stamps_are_used_up(cuda_device, kernel, left):
    """`left`: what the table says that its last batch had; every later batch has one less, and after 0 the most."""
    graph, spec = random_csc(), ops.SampleSpec(fanouts=(5, 4), rng_seed=SEED)
    put = cuda_device.put
    on_device = CudaSamplingGraph(put(graph.indptr), put(graph.indices), put(graph.orig_ids), kernel=kernel)
    on_cpu_graph = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)
    seeds = [torch.randperm(60, generator=torch.Generator().manual_seed(step))[:9].int() for step in range(6)]
    table = on_device.enqueue(put(seeds[5]), spec, 5).table
    assert table.numel() == 1 + 60
    table[0] = left
    for step in range(4):
        batch = on_device.enqueue(put(seeds[step]), spec, step)
        assert batch.table is table
        assert same(on_cpu(on_device.finish(batch)), on_cpu_graph.sample(seeds[step], spec, step))
        assert int(table[0]) == (left - step - 1) % STAMPS


def test_every_thread_has_a_table_of_its_own(cuda_device):
    graph, spec = on(cuda_device, random_csc()), ops.SampleSpec(fanouts=(5, 4), rng_seed=SEED)
    seeds = cuda_device.put(torch.arange(9).int())
    with ThreadPoolExecutor(1) as other:
        tables = [graph.enqueue(seeds, spec, 0).table, other.submit(graph.enqueue, seeds, spec, 0).result().table]
    assert tables[0] is not tables[1] and graph.enqueue(seeds, spec, 0).table is tables[0]


def test_a_batch_that_reaches_few_of_many_nodes_keeps_no_table(cuda_device):
    graph = on(cuda_device, random_csc(num_nodes=1000, num_edges=5000))
    batch = graph.enqueue(cuda_device.put(torch.arange(2).int()), ops.SampleSpec(fanouts=(2,)), 0)
    assert batch.table is None and graph.new_table(2, ops.SampleSpec(fanouts=(2,))) is None


@pytest.mark.parametrize("num_hops", [1, 2, 3])
def test_a_hop_takes_three_launches(emulated_device, num_hops):
    graph, spec = on(emulated_device, random_csc()), ops.SampleSpec(fanouts=(4,) * num_hops)
    before = emulated_device.num_launches()
    graph.sample(torch.arange(9).int(), spec, 0)
    assert emulated_device.num_launches() - before == 3 + 3 * num_hops + 1  # the last leaves the sizes to the host


@pytest.mark.parametrize("kernel", ["per_hop", "persistent"])
def test_few_rows_of_many_edges_are_relabelled_by_a_grid_for_the_edges(emulated_device, kernel):
    graph, seeds = random_csc(num_nodes=20, num_edges=2000), torch.arange(20).int()
    spec = ops.SampleSpec(fanouts=(100, 3, 50), rng_seed=SEED)
    on_device = CudaSamplingGraph(graph.indptr, graph.indices, graph.orig_ids, kernel=kernel)
    grids = emulated_device.grids(lambda: on_device.sample(seeds, spec, STEP))
    # clear_batch, add_seeds, (sample_tasks,) place_rows; per hop its draws, assign_new, relabel_and_place; copy_words
    hops = np.array(grids[3 + (kernel == "persistent") : -1]).reshape(3, -1)
    assert hops[:, -1].tolist() == [8, 1, 8]  # 8: all that the device holds
    expected = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids).sample(seeds, spec, STEP)
    for schedule in range(4):
        emulated_device.set_schedule(schedule)
        assert same(on_device.sample(seeds, spec, STEP), expected)


@pytest.mark.gpu
def test_out_of_memory_is_torchs_error_and_the_next_batch_is_right():
    device, greedy = CudaDevice(), ops.SampleSpec(fanouts=(2**31,), replace=True)  # 60 * 2**31 picks: 480 GiB
    spec, seeds = ops.SampleSpec(fanouts=(5, 4), rng_seed=SEED), torch.arange(60).int()
    cpu, cuda = both(device, random_csc(), spec)
    with pytest.raises(RuntimeError, match="out of memory"):  # of a class of its own if torch caches memory
        cuda.sample(device.put(seeds), greedy, 0)
    assert same(on_cpu(cuda.sample(device.put(seeds), spec, STEP)), cpu.sample(seeds, spec, STEP))


def test_memory_is_bounded_by_the_fanouts_and_by_the_graph(emulated_device):
    graph = on(emulated_device, random_csc(num_nodes=1000, num_edges=50_000))
    few = graph.enqueue(torch.arange(3).int(), ops.SampleSpec(fanouts=(2, 2)), 0)
    sizes = few.layout.sizes
    assert (sizes.max_nodes, sizes.max_edges[0], sizes.max_edges[1]) == (27, 6, 18)
    assert few.memory.nbytes < 4 * (27 + 6 + 18) + 8 * (4 + 10) + 5 * 256
    all_of_it = graph.enqueue(torch.arange(900).int(), ops.SampleSpec(fanouts=(-1, -1)), 0)
    assert all_of_it.layout.sizes.max_nodes == 1000 and all_of_it.layout.sizes.max_edges[1] == 50_000
    assert graph.enqueue(torch.arange(3).int(), ops.SampleSpec(fanouts=(2, 2)), 9).layout is few.layout


def test_operators_run_the_cuda_kernels_on_cuda_tensors(cuda_device):
    graph = random_csc()
    seeds = torch.randperm(60)[:9].int()
    arguments = [[3, 2], [0, 0, 0, 1], [SEED, STEP], 1]
    put, kernel = cuda_device.put, cuda_device.kernel("sample_mfg")
    ours = kernel(put(graph.indptr), put(graph.indices), put(graph.orig_ids), [], put(seeds), *arguments)
    theirs = torch.ops.fastsample.sample_mfg(graph.indptr, graph.indices, graph.orig_ids, [], seeds, *arguments)
    assert same(on_cpu(ops.SampledHops(*ours)), ops.SampledHops(*theirs))


def test_inclusion_is_uniform(cuda_device):
    """Fanout 3 of 10 neighbours in 4,000 steps: chi-square over the neighbours, false-alarm rate 1e-6."""
    graph = CSCGraph(torch.tensor([0, 10] + [10] * 10), torch.arange(1, 11, dtype=torch.int32))
    cuda = on(cuda_device, graph)
    rows = cuda_device.put(torch.zeros(400, dtype=torch.int32))
    spec, counts = ops.SampleSpec(fanouts=(3,), rng_seed=SEED), torch.zeros(11)
    for step in range(400):
        picks = cuda.neighbors(rows[:1], spec, 0, step)[1].cpu()
        counts += torch.bincount(picks, minlength=11)
    expected = 400 * 3 / 10
    assert stats.chi2.sf(float(((counts[1:] - expected) ** 2 / expected).sum() / 0.7), 9) > 1e-6

"""CapturedSampler: what a replay writes is the batch of its own seeds and step."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import CapturedSampler
from fastsample_dist.ops.captured import CudaGraphRecorder
from tests.cuda_devices import CallAgain, CudaDevice
from tests.ops.graphs import random_csc
from tests.ops.test_cuda_sampling import SEED, STEP, both, on_cpu
from tests.ops.test_sample_mfg import same

SPEC = ops.SampleSpec(fanouts=(5, 4, 3), rng_seed=SEED, edge_ids=True)


def make(cuda_device, num_seeds=9, **options):
    cpu, cuda = both(cuda_device, random_csc(), SPEC)
    recorder = CallAgain() if cuda_device.is_emulated else None
    return cpu, CapturedSampler(cuda, SPEC, num_seeds, recorder=recorder, **options)


def test_every_replay_is_the_batch_of_its_seeds_and_step(cuda_device):
    cpu, captured = make(cuda_device)
    kept = []
    for step in (STEP, 0, 3):
        seeds = torch.randperm(60)[:9].int()
        kept.append((captured.sample(cuda_device.put(seeds), step), cpu.sample(seeds, SPEC, step)))
    for batch, expected in kept:  # an earlier batch outlives the next
        assert same(on_cpu(batch), expected)


@pytest.mark.parametrize(
    ("kernel", "method"),
    [*product(["per_hop"], ["uniform", "weighted", "labor"]), *product(["persistent", "cooperative"], ["uniform"])],
)
@pytest.mark.parametrize("edge_ids", [False, True])
def test_every_kernel_hands_out_what_it_made(cuda_device, kernel, method, edge_ids):
    graph = random_csc()
    graph = CSCGraph(graph.indptr, graph.indices, torch.rand(graph.num_edges), orig_ids=graph.orig_ids)
    spec = ops.SampleSpec(fanouts=(5, 40, 3), rng_seed=SEED, edge_ids=edge_ids, method=method)
    cpu, cuda = both(cuda_device, graph, spec, kernel)
    captured = CapturedSampler(cuda, spec, 7, recorder=CallAgain() if cuda_device.is_emulated else None)
    for step in (0, STEP):
        seeds = torch.randperm(60)[:7].int()
        assert same(on_cpu(captured.sample(cuda_device.put(seeds), step)), cpu.sample(seeds, spec, step))


def test_a_batch_copies_no_more_than_it_has_become(emulated_device):
    """Its memory is the allocator's, so what lies behind an array's end may be anything."""
    _, captured = make(emulated_device)
    memory = torch.full_like(captured._batch.memory, 0x7777777777777777)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty_like", lambda like: memory)
        batch = captured.sample(torch.arange(9).int())
    for array in (batch.nodes, *batch.indptrs, *batch.indices, *batch.edge_ids):
        behind = (array.data_ptr() - memory.data_ptr()) // array.itemsize + array.numel()
        assert hex(memory.view(array.dtype)[behind]).strip("0x7") == ""


def test_an_interrupt_leaves_nothing_in_flight(emulated_device, monkeypatch):
    cpu, captured = make(emulated_device)
    waited, read = [], captured._state.read
    monkeypatch.setattr(captured._state, "read", lambda: waited.append(True) or read())

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(captured._recorder, "replay", interrupted)
        captured.sample(torch.arange(9).int())
    assert waited
    seeds = torch.randperm(60)[:9].int()
    assert same(on_cpu(captured.sample(seeds, STEP)), cpu.sample(seeds, SPEC, STEP))


def stand_in_for_torch_cuda(monkeypatch, graph):
    def stream_of(device):
        return SimpleNamespace(device=device, wait_stream=lambda other: None)

    for name, stands_in in (("Stream", stream_of), ("current_stream", stream_of), ("CUDAGraph", object),
                            ("stream", nullcontext), ("device", nullcontext), ("graph", graph)):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stands_in)


def test_one_thread_records_at_a_time(monkeypatch):
    """torch.cuda.graph waits for the device first, which is an error while another thread's stream is captured."""
    recording, most = [], []

    @contextmanager
    def graph(recorded, **options):
        recording.append(recorded)
        most.append(len(recording))
        time.sleep(0.05)
        yield
        recording.pop()

    stand_in_for_torch_cuda(monkeypatch, graph)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: CudaGraphRecorder(torch.device("cuda", 0)).record(lambda: None), range(3)))
    assert most == [1] * 3


def test_work_is_recorded_on_a_stream_of_its_device_and_other_threads_are_left_alone(monkeypatch):
    given = {}

    def graph(recorded, **options):
        given.update(options)
        return nullcontext()

    stand_in_for_torch_cuda(monkeypatch, graph)
    second = torch.device("cuda", 1)
    CudaGraphRecorder(second).record(lambda: None)
    assert given["stream"].device == second and given["capture_error_mode"] == "thread_local"


@pytest.mark.gpu
def test_the_second_gpu_records_its_own():
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    seeds = torch.randperm(60)[:9].int()
    for number in (0, 1):
        with torch.cuda.device(number):
            cpu, captured = make(CudaDevice())
            assert same(on_cpu(captured.sample(seeds.cuda(), STEP)), cpu.sample(seeds, SPEC, STEP))


@pytest.mark.gpu
def test_batches_of_two_streams_do_not_meet():
    cpu, captured = make(CudaDevice())
    streams, kept = [torch.cuda.Stream() for _ in range(2)], []
    for step in range(40):
        seeds = torch.randperm(60)[:9].int()
        with torch.cuda.stream(streams[step % 2]):
            kept.append((captured.sample(seeds.cuda(), step), cpu.sample(seeds, SPEC, step)))
    torch.cuda.synchronize()
    for batch, expected in kept:
        assert same(on_cpu(batch), expected)


def test_bad_seeds_are_refused_and_the_next_batch_is_right(cuda_device):
    cpu, captured = make(cuda_device, num_seeds=2)
    with pytest.raises(ValueError, match="holds node 4 at positions 0 and 1"):
        captured.sample(cuda_device.put(torch.tensor([4, 4], dtype=torch.int32)))
    seeds = torch.tensor([4, 5], dtype=torch.int32)
    assert same(on_cpu(captured.sample(cuda_device.put(seeds), 1)), cpu.sample(seeds, SPEC, 1))


def test_another_number_of_seeds_is_refused(cuda_device):
    _, captured = make(cuda_device)
    with pytest.raises(ValueError, match="seeds has 3 entries, but 9 were recorded"):
        captured.sample(cuda_device.put(torch.arange(3).int()))


@pytest.mark.parametrize("step", [-1, 2**63, 2**64 + 3, True, 1.5, "3"])
def test_a_step_out_of_range_is_refused_as_by_the_graph(cuda_device, step):
    _, captured = make(cuda_device)
    seeds = cuda_device.put(torch.arange(9).int())
    for sample in (captured.sample, lambda seeds, step: captured.graph.sample(seeds, SPEC, step)):
        with pytest.raises(ValueError, match=r"step is .*; expected an integer from 0 to 2\*\*63 - 1\."):
            sample(seeds, step)


@pytest.mark.parametrize("num_seeds", [-1, 1.5, True])
def test_a_number_of_seeds_that_is_none_is_refused(cuda_device, num_seeds):
    with pytest.raises(ValueError, match=f"num_seeds is {num_seeds}; expected an integer >= 0."):
        make(cuda_device, num_seeds)


def test_a_batch_that_may_grow_too_large_is_refused(cuda_device):
    with pytest.raises(ValueError, match="a batch of 9 seeds may take .* but max_bytes is 1000"):
        make(cuda_device, max_bytes=1000)

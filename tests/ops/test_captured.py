"""CapturedSampler: what a replay writes is the batch of its own seeds and step."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from fastsample_dist import ops
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


class Order(TorchFunctionMode):
    """What a sampler enqueues, in order: its recorder's calls, writes into its arrays and copies out of them."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in ("copy_", "fill_", "clone"):
            self.calls.append(function.__name__)
        return function(*args, **(kwargs or {}))

    def watch(self, recorder, monkeypatch):
        """Note the calls of a recorder."""
        for name in ("replay", "follow"):
            monkeypatch.setattr(recorder, name, self._noted(name, getattr(recorder, name)))

    def _noted(self, name, call):
        def noted():
            self.calls.append(name)
            call()

        return noted


def test_a_batch_is_written_after_the_copies_of_the_one_before(emulated_device, monkeypatch):
    _, captured = make(emulated_device)
    with Order() as order:
        order.watch(captured._recorder, monkeypatch)
        captured.sample(torch.arange(9).int())
    assert order.calls == [
        "follow",
        "copy_",
        "replay",
        "copy_",
        "clone",
    ]  # the second copy is the recorded one, of the step


def test_work_is_recorded_on_a_stream_of_its_device_and_other_threads_are_left_alone(monkeypatch):
    given = {}

    def stream_of(device):
        return SimpleNamespace(device=device, wait_stream=lambda other: None)

    def graph(recorded, **options):
        given.update(options)
        return nullcontext()

    for name, stands_in in (("Stream", stream_of), ("current_stream", stream_of), ("CUDAGraph", object),
                            ("stream", nullcontext), ("device", nullcontext), ("graph", graph)):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stands_in)
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


def test_a_batch_that_may_grow_too_large_is_refused(cuda_device):
    with pytest.raises(ValueError, match="a batch of 9 seeds may take .* but max_bytes is 1000"):
        make(cuda_device, max_bytes=1000)

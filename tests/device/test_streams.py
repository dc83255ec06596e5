"""Handing batches from a background thread's stream to the consumer's; on a GPU where there is one."""

import dataclasses
import threading
from contextlib import contextmanager

import pytest
import torch

from fastsample_dist import DistData, DistLoader
from fastsample_dist.device.streams import Lane, StreamLane, lane_of, to_device
from fastsample_dist.pipeline.lookahead import Prefetcher
from fastsample_dist.sampling.mfg import MFG
from tests.train.task import make_task

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 1, dtype="float32").path


class TracedLane(Lane):
    """A lane that notes who calls it, and when."""

    def __init__(self):
        self.calls = []

    def note(self, *what):
        self.calls.append((threading.current_thread().name, *what))

    def start(self):
        self.note("start")

    @contextmanager
    def working(self):
        self.note("enter")
        yield
        self.note("leave")

    def made(self):
        self.note("made")
        return len(self.calls)

    def receive(self, batch, made):
        self.note("receive", batch, self.calls[made - 1])


def test_the_thread_works_in_the_lane_and_the_consumer_receives_from_it():
    lane, background = TracedLane(), "fastsample-prefetch"
    prefetcher = Prefetcher(lambda number: lane.note("make", number) or number, range(3), 2, 10, lane)
    assert list(prefetcher) == [0, 1, 2]
    prefetcher.close()
    main = threading.current_thread().name
    assert lane.calls[0] == (main, "start")
    in_thread = [call[1:] for call in lane.calls if call[0] == background]
    each = [call for number in range(3) for call in (("make", number), ("made",))]
    assert in_thread == [("enter",), *each, ("leave",)]
    received = [call for call in lane.calls if call[1:2] == ("receive",)]
    assert received == [(main, "receive", number, (background, "made")) for number in range(3)]


def test_a_lane_that_fails_is_reported_to_the_consumer():
    class Broken(Lane):
        def working(self):
            raise RuntimeError("no stream")

    with pytest.raises(RuntimeError, match="no stream"):
        list(Prefetcher(lambda number: number, range(3), 1, 10, Broken()))


def test_a_loader_keeps_its_lane_from_epoch_to_epoch(path, ctx, monkeypatch):
    made = []
    lane_of = "fastsample_dist.pipeline.batch_loader.lane_of"
    monkeypatch.setattr(lane_of, lambda device: made.append(TracedLane()) or made[-1])
    loader = DistLoader(DistData.load(path, ctx), [3, 3], 40, prefetch=2)
    for _ in range(2):
        assert len(list(loader)) == 3
    assert len(made) == 1 and [call[1] for call in made[0].calls].count("start") == 2


def test_a_batch_names_every_tensor_that_it_does_not_share(path, ctx):
    """What is not named would be given to another batch while it is still read."""
    data = DistData.load(path, ctx)
    batch = next(iter(DistLoader(data, [3, 3], 40)))
    shared = {data.graph.orig_ids.data_ptr()}
    fields = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    for mfg in batch.mfgs:
        fields += [getattr(mfg, field.name) for field in dataclasses.fields(mfg)]
    pointers = {field.data_ptr() for field in fields if isinstance(field, torch.Tensor)} - shared
    assert pointers == {tensor.data_ptr() for tensor in batch.tensors()}


def test_the_cpu_has_no_lane_of_its_own_and_its_tensors_stay():
    tensor = torch.arange(3)
    assert type(lane_of(CPU)) is Lane and to_device(tensor, CPU) is tensor


def test_an_mfg_on_its_device_is_the_same():
    mfg = MFG(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([0]), 1)
    assert mfg.to(CPU) is mfg


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0, 3), (70_000,), (5, 7)], ids=str)
def test_a_host_tensor_may_change_behind_its_copy(shape, dtype):
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    expected, there = tensor.clone(), to_device(tensor.t() if len(shape) == 2 else tensor, torch.device("cuda", 0))
    tensor.zero_()
    assert there.is_cuda and torch.equal(there.cpu(), expected.t() if len(shape) == 2 else expected)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 1])
def test_a_column_of_a_row_at_most_is_copied(rows):
    column = torch.arange(6.0).reshape(1, 6)[:rows, 1]
    assert to_device(column, torch.device("cuda", 0)).tolist() == [1.0] * rows


@pytest.mark.gpu
def test_memory_of_a_batch_is_not_reused_while_the_consumer_reads_it():
    """The consumer's stream is kept busy while the thread makes batch after batch of the same size."""
    device = torch.device("cuda", torch.cuda.current_device())

    class Batch:
        def __init__(self, number):
            self.rows = torch.full((1 << 20,), float(number), device=device)

        def tensors(self):
            return [self.rows]

    much, sums = torch.rand(2048, 2048, device=device), []
    prefetcher = Prefetcher(Batch, range(20), 3, 60, StreamLane(device))
    for batch in prefetcher:
        for _ in range(10):
            much = much @ much / 2048
        sums.append(batch.rows.double().sum())
        del batch
    prefetcher.close()
    assert [total.item() for total in sums] == [float(number << 20) for number in range(20)]


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["device", "pinned"])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_batches_on_a_gpu_are_those_of_the_cpu(path, ctx, scheme, prefetch, placement):
    data = DistData.load(path, ctx)
    options = {"scheme": scheme, "rng_seed": 4}
    on_gpu = DistLoader(data, [3, -1], 40, device="cuda", prefetch=prefetch, placement=placement, **options)
    assert [place.where for place in on_gpu.places] == [placement] * 2
    for there, here in zip(on_gpu, DistLoader(data, [3, -1], 40, **options), strict=True):
        found = [*there.tensors(), *(mfg.dst_orig_ids for mfg in there.mfgs)]
        assert all(tensor.is_cuda for tensor in found)
        named = ("seeds", "input_nodes", "features", "labels")
        assert all(torch.equal(getattr(there, name).cpu(), getattr(here, name)) for name in named)
        for one, other in zip(there.mfgs, here.mfgs, strict=True):
            arrays = ("indptr", "indices", "src_nodes", "dst_orig_ids")
            assert all(torch.equal(getattr(one, name).cpu(), getattr(other, name)) for name in arrays)
        assert there.sample_s > 0 and there.fetch_s > 0

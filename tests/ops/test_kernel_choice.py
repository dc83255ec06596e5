"""kernel="auto": the kernel that was faster, by a timer that the tests hold."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.ops.kernel_choice import KERNELS, KernelChoice, kind_of
from fastsample_dist.ops.sampling_graph import SamplingGraph
from tests.ops.graphs import random_csc
from tests.ops.test_cuda_sampling import on_cpu, same

SPEC = ops.SampleSpec(fanouts=(3, 2))
KIND = kind_of(SPEC, 100)


class FakeDevice:
    """Work takes as long as the test says; marks are passed `lag` marks later."""

    def __init__(self, milliseconds, lag=0):
        self.milliseconds, self.lag, self.now, self.marks, self.ran = milliseconds, lag, 0.0, 0, []

    def mark(self):
        self.marks += 1
        return self.marks, self.now

    def elapsed_ms(self, start, stop):
        return stop[1] - start[1] if self.marks - stop[0] >= self.lag else None

    def run(self, kernel):
        self.ran.append(kernel)
        self.now += self.milliseconds(kernel, self.ran.count(kernel))
        return kernel


def choose(device, batches, spec=SPEC, num_seeds=100, **options):
    choice = KernelChoice(device, **options)
    for _ in range(batches):
        choice.run(kind_of(spec, num_seeds), lambda: KERNELS, device.run)
    return choice


@pytest.mark.parametrize(
    ("times", "fastest"),
    [((3.0, 1.0, 2.0), "persistent"), ((3.0, 2.0, 1.0), "cooperative"), ((1.0, 3.0, 2.0), "per_hop"),
     ((2.0, 2.0, 2.0), "per_hop")],
)  # fmt: skip
def test_the_fastest_kernel_samples_the_rest(times, fastest):
    medians = dict(zip(KERNELS, times, strict=True))
    device = FakeDevice(lambda kernel, _: medians[kernel])
    (report,) = choose(device, 40, warm_up=1, trials=3).report()
    assert device.ran[:12] == list(KERNELS) * 4
    assert set(device.ran[12:]) == {fastest} == {report.kernel}
    assert report.medians_ms == medians
    assert report.num_batches == dict.fromkeys(KERNELS, 3)


def test_the_first_batches_do_not_count():
    device = FakeDevice(lambda kernel, n: 100.0 if kernel == "persistent" and n <= 2 else 1.0 + (kernel == "per_hop"))
    medians = {"per_hop": 2.0, "persistent": 1.0, "cooperative": 1.0}
    assert choose(device, 20, warm_up=2, trials=3).report()[0].medians_ms == medians


def test_one_slow_batch_does_not_decide():
    device = FakeDevice(lambda kernel, n: 500.0 if kernel == "persistent" and n == 3 else 1.0 + (kernel == "per_hop"))
    assert choose(device, 20, warm_up=1, trials=3).report()[0].kernel == "persistent"


def test_nothing_is_waited_for_while_the_device_is_behind():
    device = FakeDevice(lambda kernel, _: 1.0, lag=10**6)
    choice = choose(device, 20, warm_up=0, trials=2)
    assert device.ran == list(KERNELS) * 2 + ["per_hop"] * 14
    assert choice.report()[0].kernel is None and choice.report()[0].medians_ms == {}
    device.lag = 0
    choice.run(KIND, lambda: KERNELS, device.run)
    assert choice.report()[0].num_batches == dict.fromkeys(KERNELS, 2)


@pytest.mark.parametrize(
    ("too_large", "ran"),
    [({"persistent", "cooperative"}, ["per_hop"] * 5),
     ({"persistent"}, ["per_hop", "per_hop", "cooperative", "cooperative", "cooperative"])],
)  # fmt: skip
def test_a_kernel_whose_scratch_does_not_fit_is_dropped(too_large, ran):
    device = FakeDevice(lambda kernel, _: 2.0 if kernel == "per_hop" else 1.0)

    def enqueue(kernel):
        if kernel in too_large:
            raise torch.cuda.OutOfMemoryError
        return device.run(kernel)

    choice = KernelChoice(device, warm_up=0, trials=1)
    assert [choice.run(KIND, lambda: KERNELS, enqueue) for _ in range(5)] == ran
    assert choice.report()[0].kernel == ran[-1] and not too_large & choice.report()[0].medians_ms.keys()


def test_a_refused_batch_is_not_a_trial():
    device = FakeDevice(lambda kernel, _: 1.0)
    choice = KernelChoice(device, warm_up=0, trials=1)

    def refuse(kernel):
        raise ValueError(kernel)

    for _ in range(3):
        with pytest.raises(ValueError, match="per_hop"):
            choice.run(KIND, lambda: KERNELS, refuse)
    assert choice.report()[0].num_batches == dict.fromkeys(KERNELS, 0)


def test_kinds_are_told_apart_by_spec_and_power_of_two():
    other_key = ops.SampleSpec(fanouts=(3, 2), rng_seed=9, num_threads=3)
    assert kind_of(SPEC, 1025) == kind_of(other_key, 2048) != kind_of(SPEC, 1024)
    assert kind_of(SPEC, 2048) != kind_of(ops.SampleSpec(fanouts=(3, 3)), 2048)
    assert [kind_of(SPEC, n).most_seeds for n in (0, 1, 2, 3, 4, 5)] == [1, 1, 2, 4, 4, 8]


def test_every_kind_is_decided_by_itself():
    device = FakeDevice(lambda kernel, _: 1.0)
    choice = KernelChoice(device, warm_up=0, trials=1)
    for num_seeds in (10, 1000, 10, 1000, 10, 1000):
        choice.run(kind_of(SPEC, num_seeds), lambda: KERNELS, device.run)
    assert device.ran == [kernel for kernel in KERNELS for _ in range(2)]
    assert [report.kind.most_seeds for report in choice.report()] == [16, 1024]


def test_of_kernels_of_its_own_a_kind_prefers_the_first():
    device, asked = FakeDevice(lambda kernel, _: 1.0), []

    def kernels():
        asked.append("b")
        return "b", "a"

    choice = KernelChoice(device, warm_up=0, trials=1)
    for _ in range(4):
        choice.run("kind", kernels, device.run)
    assert device.ran == ["b", "a", "b", "b"] and asked == ["b"]
    assert choice.report()[0].kind == "kind" and choice.report()[0].kernel == "b"


@pytest.mark.parametrize("options", [{"warm_up": -1}, {"trials": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        KernelChoice(FakeDevice(None), **options)


def graph_on(device, graph):
    return CudaSamplingGraph(device.put(graph.indptr), device.put(graph.indices), kernel="auto")


def test_auto_gives_the_cpus_batches_while_it_tries_and_after(cuda_device):
    graph = random_csc()
    cpu, cuda = SamplingGraph(graph.indptr, graph.indices), graph_on(cuda_device, graph)
    for step in range(30):
        seeds = torch.randperm(60)[:12].int()
        assert same(on_cpu(cuda.sample(cuda_device.put(seeds), SPEC, step)), cpu.sample(seeds, SPEC, step))
    (report,) = cuda.kernel_report()
    assert report.kernel == min(report.medians_ms, key=report.medians_ms.get)
    assert report.num_batches == dict.fromkeys(KERNELS, 7)


def test_auto_samples_per_hop_what_the_others_do_not_serve(cuda_device):
    graph = random_csc()
    cpu, cuda = SamplingGraph(graph.indptr, graph.indices), graph_on(cuda_device, graph)
    spec, seeds = ops.SampleSpec(fanouts=(3, 2), method="labor"), torch.arange(9).int()
    for step in range(4):
        assert same(on_cpu(cuda.sample(cuda_device.put(seeds), spec, step)), cpu.sample(seeds, spec, step))
    assert cuda.kernel_report() == []


def test_auto_records_per_hop(cuda_device):
    cuda = graph_on(cuda_device, random_csc())
    seeds = cuda_device.put(torch.arange(9).int())
    replay = torch.tensor([5, seeds.data_ptr(), 0])
    replay = replay if cuda_device.is_emulated else replay.pin_memory()
    batch = cuda.enqueue(seeds, SPEC, 0, replay=replay)
    assert batch.request.kernel == "per_hop" and cuda.kernel_report() == []

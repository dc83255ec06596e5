"""Samplers on a GPU: the emulator's batches are the CPU's, whatever the kernel; and what is refused."""

import pytest
import torch

from fastsample_dist import CSCGraph, LaborSampler, NeighborSampler, SampleSpec
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.ops.kernel_choice import KERNELS
from fastsample_dist.sampling.mfg import MFG, orig_ids_of
from fastsample_dist.sampling.vanilla import VanillaSampler
from tests.cuda_devices import kernels_on_the_cpu
from tests.ops.graphs import random_csc

SEEDS = torch.tensor([5, 1, 30, 22])


@pytest.fixture
def graph():
    """With ids that are not the original ones."""
    plain = random_csc()
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(plain.num_edges, generator=generator)
    return CSCGraph(plain.indptr, plain.indices, weights, torch.randperm(plain.num_nodes, generator=generator) * 7)


def assert_same_batches(found, expected):
    for name in ("seeds", "input_nodes"):
        assert torch.equal(getattr(found, name).cpu(), getattr(expected, name))
    for one, other in zip(found.mfgs, expected.mfgs, strict=True):
        assert one.num_dst == other.num_dst
        for name in ("indptr", "indices", "src_nodes", "dst_orig_ids"):
            assert torch.equal(getattr(one, name).cpu(), getattr(other, name)), name


def make(graph, method, **how):
    if method == "labor":
        return LaborSampler(graph, [4, 3], rng_seed=9)
    return NeighborSampler(graph, [4, 3], weighted=method == "weighted", rng_seed=9, **how)


@pytest.mark.parametrize(
    ("method", "kernel"),
    [
        ("uniform", "auto"), ("uniform", "per_hop"), ("uniform", "persistent"), ("uniform", "cooperative"),
        ("weighted", "auto"), ("weighted", "per_hop"), ("labor", "auto"),
    ],
)  # fmt: skip
def test_a_gpus_batches_are_those_of_the_cpu(graph, emulated_library, method, kernel):
    expected = [make(graph, method).sample(SEEDS, step) for step in range(3)]
    with kernels_on_the_cpu(emulated_library):
        sampler = make(graph, method, **({} if method == "labor" else {"kernel": kernel}))
        found = [sampler.sample(SEEDS, step) for step in range(3)]
        together = sampler.sample_many([SEEDS] * 3)
    for batches in (found, together):
        for one, other in zip(batches, expected, strict=True):
            assert_same_batches(one, other)


def test_a_gpus_batch_knows_the_original_ids_of_all_its_destinations(graph, emulated_library):
    """Looked up once, while sampling; the layers take their share of them."""
    with kernels_on_the_cpu(emulated_library):
        batch = NeighborSampler(graph, [4, 3]).sample(SEEDS)
    assert batch.mfgs[0].known_orig_ids is batch.mfgs[1].known_orig_ids
    assert batch.mfgs[0].known_orig_ids.numel() == batch.mfgs[0].num_dst > batch.mfgs[1].num_dst
    assert torch.equal(batch.mfgs[1].dst_orig_ids, graph.orig_ids[SEEDS])


def test_what_auto_measures_can_be_read(graph, emulated_library):
    with kernels_on_the_cpu(emulated_library):
        sampler = NeighborSampler(graph, [2], kernel="auto")
        for step in range(30):
            sampler.sample(SEEDS, step)
        [report] = sampler.kernel_report()
    assert report.kernel in KERNELS and report.kind.most_seeds == 4
    assert NeighborSampler(graph, [2]).kernel_report() == []


def test_original_ids_that_are_the_ids_need_no_table():
    assert torch.equal(orig_ids_of(torch.tensor([3, 1], dtype=torch.int32), None), torch.tensor([3, 1]))


def test_an_mfg_moves_with_the_ids_that_it_needs(graph):
    batch = NeighborSampler.from_spec(graph, SampleSpec(fanouts=(4,), edge_ids=True)).sample(SEEDS)
    moved = batch.mfgs[0].to(torch.device("meta"))
    assert isinstance(moved, MFG) and moved.orig_ids is None
    tensors = (moved.indptr, moved.indices, moved.src_nodes, moved.edge_ids, moved.dst_orig_ids)
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert moved.dst_orig_ids.shape == (4,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "fast"}, "kernel is 'fast'; expected 'auto', 'per_hop', 'persistent' or 'cooperative'."),
        ({"kernel": "per_hop"}, "kernel is 'per_hop' but the device is cpu: kernels are those of GPUs"),
        ({"kernel": "persistent", "weighted": True}, "method is 'weighted', but kernel 'persistent' draws uniformly"),
    ],
)
def test_kernels_that_do_not_fit_are_refused(graph, options, message):
    with pytest.raises(ValueError, match=message):
        NeighborSampler(graph, [2], **options)


@pytest.mark.parametrize("kernel", ["persistent", "cooperative"])
def test_the_vanilla_scheme_refuses_a_kernel_for_all_hops(graph, kernel):
    book = PartitionBook(torch.tensor([0, graph.num_nodes]))
    with pytest.raises(ValueError, match="vanilla scheme asks other ranks between two hops; pass kernel='auto'"):
        VanillaSampler(graph, book, LocalCommunicator(), SampleSpec(fanouts=(2,)), graph.orig_ids, kernel=kernel)


@pytest.mark.gpu
@pytest.mark.parametrize("layer_dependency", [False, True])
def test_layer_neighbours_are_drawn_on_a_gpu(graph, layer_dependency):
    on_gpu, on_cpu = (LaborSampler(graph, [4, 3], 9, None, layer_dependency, device=name) for name in ("cuda", "cpu"))
    assert_same_batches(on_gpu.sample(SEEDS, 2), on_cpu.sample(SEEDS, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
def test_a_graph_in_host_memory_is_sampled_on_a_gpu(graph, kernel):
    sampler = NeighborSampler(graph, [4, 3], rng_seed=9, device="cuda", kernel=kernel)
    found = sampler.sample(SEEDS, 2)
    assert sampler.device.type == "cuda" and all(tensor.is_cuda for tensor in found.tensors())
    assert_same_batches(found, NeighborSampler(graph, [4, 3], rng_seed=9).sample(SEEDS, 2))

"""The kernels that only fastsample-bench gpu uses: the reservoir baseline, and reads that show a memory's limits."""

import dataclasses

import numpy as np
import pytest
import torch

from fastsample_dist.bench.gpu.baseline import ReservoirSampler
from fastsample_dist.bench.gpu.limits import random_sectors, read_in_order
from fastsample_dist.ops import SampleSpec
from fastsample_dist.testing.statistics import Evidence, quadratic_p
from tests.ops.graphs import random_csc

FALSE_ALARM = 1e-6  # of a whole test, under correct draws; the seeds are fixed


def sampler_of(device, graph):
    return ReservoirSampler(device.put(graph.indptr), device.put(graph.indices))


def first_appearances(rows, sources):
    """(distinct nodes in order, local id of each source)."""
    local = {}
    for node in [*rows.tolist(), *sources.tolist()]:
        local.setdefault(node, len(local))
    return list(local), [local[node] for node in sources.tolist()]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("fanouts", [(3, 5), (1,), (40, 2, 2)])
def test_the_baseline_takes_distinct_edges_of_each_row(cuda_device, dtype, fanouts):
    graph = random_csc(dtype=dtype)
    seeds = torch.tensor([7, 0, 59, 12], dtype=dtype)
    hops = sampler_of(cuda_device, graph).sample(cuda_device.put(seeds), SampleSpec(fanouts=fanouts), step=3)
    degrees = graph.in_degrees()
    for fanout, indptr, edge_ids in zip(fanouts, hops.indptrs, hops.edge_ids, strict=True):
        rows = hops.nodes[: indptr.numel() - 1].long().cpu()
        counts, edge_ids = indptr.cpu().diff(), edge_ids.cpu()
        assert torch.equal(counts, degrees[rows].clamp(max=fanout))
        owners = rows.repeat_interleave(counts)
        assert bool(((graph.indptr[owners] <= edge_ids) & (edge_ids < graph.indptr[owners + 1])).all())
        assert edge_ids.unique().numel() == edge_ids.numel()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("num_nodes", [60, 3_000_000])  # a slot per id; a hashed table
def test_the_baseline_relabels_in_order_of_first_appearance(cuda_device, dtype, num_nodes):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randperm(num_nodes, generator=generator)[:60].to(dtype)
    rows, sources = ids[:9], ids[torch.randint(0, 60, (300,), generator=generator)]
    sampler = ReservoirSampler(torch.zeros(num_nodes + 1, dtype=torch.int64), torch.empty(0, dtype=dtype))
    nodes, indices = sampler.relabel(cuda_device.put(rows), cuda_device.put(sources))
    assert (nodes.tolist(), indices.tolist()) == first_appearances(rows, sources)


def test_the_baselines_sources_are_those_of_its_edges(cuda_device):
    graph = random_csc()
    sampler = sampler_of(cuda_device, graph)
    _, sources, edge_ids = sampler.draw(cuda_device.put(torch.arange(60).int()), SampleSpec(fanouts=(4,)), 0, 0)
    assert torch.equal(sources.cpu(), graph.indices[edge_ids.cpu()])


@pytest.mark.parametrize("schedule", [1, 2, 3])
def test_a_baseline_batch_does_not_depend_on_the_order_of_threads(emulated_device, schedule):
    graph, spec = random_csc(), SampleSpec(fanouts=(3, 5))
    seeds = torch.tensor([7, 0, 59, 12], dtype=torch.int32)
    expected = sampler_of(emulated_device, graph).sample(seeds, spec, step=1)
    emulated_device.set_schedule(schedule)
    found = sampler_of(emulated_device, graph).sample(seeds, spec, step=1)
    for field in dataclasses.fields(expected):
        one, other = getattr(expected, field.name), getattr(found, field.name)
        assert all(map(torch.equal, one, other)) if isinstance(one, list) else torch.equal(one, other)


@pytest.mark.parametrize(("degree", "fanout"), [(150, 10), (11, 10), (20, 1)])
def test_baseline_draws_are_uniform_without_replacement(cuda_device, degree, fanout):
    """2000 draws of one row: how often each edge is taken, with the exact covariance; and that rows are independent."""
    trials = 2000 if degree < 100 else 400
    trials *= 1 if cuda_device.is_emulated else 10
    indptr, indices = torch.tensor([0, degree]), torch.arange(degree, dtype=torch.int32)
    sampler = ReservoirSampler(cuda_device.put(indptr), cuda_device.put(indices))
    rows = torch.zeros(trials, dtype=torch.int32)
    _, _, edges = sampler.draw(cuda_device.put(rows), SampleSpec(fanouts=(fanout,), rng_seed=5), 0, 0)
    picks = np.zeros((trials, degree))
    np.put_along_axis(picks, edges.cpu().numpy().reshape(trials, fanout), 1.0, axis=1)
    share = fanout / degree
    covariance = share * (degree - fanout) / (degree - 1) * (np.eye(degree) - 1 / degree)
    evidence = Evidence(FALSE_ALARM)
    evidence.add(quadratic_p(picks.sum(0), trials, np.full(degree, share), covariance), lambda: "edges")
    both = (picks[:-1] * picks[1:]).sum(0)  # the same edge in consecutive rows
    evidence.add(
        quadratic_p(
            np.array([both.sum()]), trials - 1, np.array([share * fanout]), np.array([[hypergeometric(degree, fanout)]])
        ),
        lambda: "consecutive rows",
    )
    evidence.decide()
    assert evidence.count > 0


def hypergeometric(degree, fanout):
    """Variance of the number of edges that two independent draws share."""
    share = fanout / degree
    return fanout * share * (1 - share) * (degree - fanout) / (degree - 1)


def test_steps_and_hops_of_the_baseline_draw_differently(cuda_device):
    sampler = ReservoirSampler(
        cuda_device.put(torch.tensor([0, 1000])), cuda_device.put(torch.arange(1000, dtype=torch.int32))
    )
    rows, spec = cuda_device.put(torch.zeros(1, dtype=torch.int32)), SampleSpec(fanouts=(20, 20))
    picks = [sampler.draw(rows, spec, hop, step)[2].tolist() for hop, step in ((0, 0), (1, 0), (0, 1))]
    assert picks[0] != picks[1] and picks[0] != picks[2]


def test_the_baseline_of_no_seeds_is_empty(cuda_device):
    hops = sampler_of(cuda_device, random_csc()).sample(
        cuda_device.put(torch.empty(0, dtype=torch.int32)), SampleSpec(fanouts=(3, 3)), step=0
    )
    assert hops.nodes.numel() == 0 and [indptr.tolist() for indptr in hops.indptrs] == [[0], [0]]


def test_the_baseline_refuses_what_reservoirs_do_not_draw(cuda_device):
    sampler = sampler_of(cuda_device, random_csc())
    with pytest.raises(ValueError, match="draws uniformly without replacement, fanouts from 1 on"):
        sampler.sample(cuda_device.put(torch.zeros(1, dtype=torch.int32)), SampleSpec(fanouts=(-1,)), step=0)


def mixed(counters):
    """The kernel's mix of counters, as Python integers."""
    for counter in counters:
        word = counter * 0x9E3779B97F4A7C15 % 2**64
        yield (word ^ word >> 32) * 0xD6E8FEB86659FD93 % 2**64


@pytest.mark.parametrize("num_reads", [0, 1, 63, 2000])
def test_random_sectors_sum_what_the_counters_name(cuda_device, num_reads):
    sectors, seed = 777, 12345
    array = torch.randint(-(2**63), 2**63 - 1, (sectors * 4,))
    total = random_sectors(cuda_device.put(array), num_reads, seed)
    expected = sum(int(array[4 * (word * sectors >> 64)]) for word in mixed(range(seed, seed + num_reads)))
    assert int(total) % 2**64 == expected % 2**64


@pytest.mark.parametrize("num_words", [0, 4, 4 * 63, 20_000])
def test_reading_in_order_sums_every_word(cuda_device, num_words):
    array = torch.randint(-(2**31), 2**31 - 1, (num_words,), dtype=torch.int32)
    total = read_in_order(cuda_device.put(array))
    assert int(total) % 2**64 == sum(word % 2**32 for word in array.tolist()) % 2**64


def test_reads_refuse_what_they_cannot_read(cuda_device):
    with pytest.raises(ValueError, match="12 bytes; expected a multiple of 16"):
        read_in_order(cuda_device.put(torch.zeros(3, dtype=torch.int32)))
    with pytest.raises(ValueError, match="0 sectors, 5 reads; expected 1 and 0 or more"):
        random_sectors(cuda_device.put(torch.zeros(3, dtype=torch.int64)), 5, 0)

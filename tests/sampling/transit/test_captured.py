"""CapturedTransit: a replay is the call of its own roots, ids, step and seed; what is recorded reads nothing back."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fastsample_dist as fsd
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit.engine import SCHEDULES
from tests.cuda_devices import CallAgain
from tests.sampling.transit.apps import small_graph

APPS = {
    "DeepWalk": transit.DeepWalk(6),
    "Node2Vec": transit.Node2Vec(4),
    "MultiRW": transit.MultiRW(5),
    "KHop": transit.KHop((4, 3)),
}
DISTINCT = transit.KHop((3, 2), unique=True)
DISTINCT.max_attempts = 3
CASES = [(app, schedule) for app in APPS.values() for schedule in SCHEDULES] + [(DISTINCT, "transit")]


class OnlyFills(TorchDispatchMode):
    """While it is open torch may fill arrays: whatever else it is asked for, a read-back above all, fails."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is torch.ops.aten.fill_.Scalar, function
        return function(*args, **(kwargs or {}))


class Watched(CallAgain):
    """Looks at what is recorded."""

    def record(self, enqueue):
        with OnlyFills():
            super().record(enqueue)


def captured(device, sampler, *shape):
    """By a CUDA graph, or by what stands for it on the emulator."""
    return sampler.captured(*shape, recorder=None if device.type == "cuda" else Watched())


@pytest.mark.parametrize(("app", "schedule"), CASES, ids=lambda own: own if own in SCHEDULES else type(own).__name__)
def test_every_replay_is_the_call_of_its_own_draws(device, app, schedule):
    graph, generator = small_graph(), torch.Generator().manual_seed(4)
    sampler = fsd.TransitSampler(graph, app, rng_seed=3, device=device, schedule=schedule)
    replays, kept = captured(device, sampler, 9, 2), []
    for seed, step in ((3, 0), (3, 2**40), (9, 1)):
        roots = torch.randint(-1, graph.num_nodes, (9, 2), generator=generator)
        ids = torch.randint(0, 2**50, (9,), generator=generator)
        plain = fsd.TransitSampler(graph, app, rng_seed=seed, device=device, schedule=schedule)
        expected = plain.sample(roots, step, ids)
        found = replays.sample(roots, step, ids, None if seed == 3 else seed)
        assert (found.draw.rng_seed, found.draw.step) == (seed, step) and torch.equal(found.sample_ids, ids)
        kept.append((found, expected))
    for found, expected in kept:  # samples outlive the next call
        assert torch.equal(found.vertices, expected.vertices)
        assert len(found.steps) == len(expected.steps)


def test_an_id_that_is_no_node_is_reported_by_its_own_call(device):
    graph = small_graph(weighted=False)
    wrong = fsd.CSCGraph(graph.indptr, torch.where(torch.arange(graph.num_edges) < 2, 99, graph.indices).int())
    row = int(torch.searchsorted(graph.indptr, 1) - 1)  # of the first edges, which alone are wrong
    good = next(node for node in range(12) if node != row and graph.in_degrees()[node] > 0)
    sampler = fsd.TransitSampler(wrong, transit.DeepWalk(1, weighted=False), 3, device=device)
    replays = captured(device, sampler, 2)
    with pytest.raises(RuntimeError, match="returned node 99 for sample 7 at step 0"):
        replays.sample([good, row], 1, [5, 7])
    expected = sampler.sample([good, good], 1, [5, 7])
    assert torch.equal(replays.sample([good, good], 1, [5, 7]).vertices, expected.vertices)


def test_other_shapes_are_refused(device):
    sampler = fsd.TransitSampler(small_graph(), transit.DeepWalk(2), device=device)
    replays = captured(device, sampler, 3)
    with pytest.raises(ValueError, match=r"roots are \[2, 1\], but \[3, 1\] were recorded; sample others by Tran"):
        replays.sample([1, 2])
    with pytest.raises(ValueError, match="rng_seed is -1"):
        replays.sample([1, 2, 3], rng_seed=-1)
    with pytest.raises(ValueError, match="num_samples is -1"):
        sampler.captured(-1)


@pytest.mark.parametrize("app", [transit.PPR(0.3), transit.MVS(), transit.LADIES((2,))], ids=["PPR", "MVS", "LADIES"])
def test_what_is_not_recorded_is_refused(device, app):
    sampler = fsd.TransitSampler(small_graph(), app, device=device)
    with pytest.raises(ValueError, match=f"the kernels of {type(app).__name__} on .* are not recorded; expected"):
        sampler.captured(3)


def test_the_cpu_records_nothing():
    sampler = fsd.TransitSampler(small_graph(), transit.DeepWalk(2))
    with pytest.raises(ValueError, match="the kernels of DeepWalk on cpu are not recorded"):
        sampler.captured(3)

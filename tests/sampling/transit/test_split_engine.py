"""Several devices: the samples of one, by contiguous ranges; here the same device twice or three times."""

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.ops.cuda import OutOfMemory
from fastsample_dist.sampling import transit
from tests.grids import grid
from tests.sampling.transit.apps import small_graph
from tests.sampling.transit.test_device_collective import assert_same_edges
from tests.sampling.transit.test_device_engine import assert_equal

APPS = {
    "DeepWalk": transit.DeepWalk(5), "PPR": transit.PPR(0.3), "MultiRW": transit.MultiRW(4),
    "KHop": transit.KHop((3, 2)), "MVS": transit.MVS(), "Layer": transit.Layer(20, 6),
    "FastGCN": transit.FastGCN((3, 2)), "LADIES": transit.LADIES((3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("app", grid(APPS, gate=["PPR", "KHop", "LADIES"]))
def test_samples_are_those_of_one_device(device, on_cpu, app):
    app = APPS[app]
    graph, width = small_graph(), 1 if isinstance(app, transit.PPR) else 3
    roots = torch.randint(-1, graph.num_nodes, (11, width), generator=torch.Generator().manual_seed(6))
    roots[:4] = 0  # a node without neighbours: the first device's samples end early
    ids = torch.arange(11) * 10**12
    for count, rows in ((2, 11), (3, 11), (3, 2), (2, 0)):
        sampler = fsd.TransitSampler(graph, app, rng_seed=3, device=[device] * count)
        found = sampler.sample(roots[:rows], 2**40, ids[:rows])
        expected = on_cpu(graph, app, roots[:rows], step=2**40, sample_ids=ids[:rows])
        assert found.vertices.device.type == device.type and torch.equal(found.sample_ids, ids[:rows])
        assert_equal(found, expected)
        if app.record is not None:
            assert_same_edges(found.mfgs_of_sample, expected.mfgs_of_sample)


def test_every_device_has_a_contiguous_range(device, monkeypatch):
    sampler = fsd.TransitSampler(small_graph(), transit.DeepWalk(2), device=[device] * 3)
    asked = [[] for _ in range(3)]
    for own, engine in zip(asked, sampler._engine._engines, strict=True):
        real = engine.sample
        monkeypatch.setattr(
            engine, "sample",
            lambda roots, ids, *how, own=own, real=real: own.append(ids.tolist()) or real(roots, ids, *how),
        )  # fmt: skip
    sampler.sample(torch.zeros(7).long())
    assert asked == [[[0, 1]], [[2, 3]], [[4, 5, 6]]]


def test_the_failure_is_that_of_one_device(device):
    """The last sample fails at an earlier step than the first."""
    graph = fsd.CSCGraph(torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 99], dtype=torch.int32))
    lines, app = [], transit.DeepWalk(4, weighted=False)
    for devices in (device, [device] * 2):
        with pytest.raises(RuntimeError) as raised:
            fsd.TransitSampler(graph, app, device=devices).sample([0, 1, 2])
        lines.append(str(raised.value))
    assert lines[0] == lines[1] and "returned node 99 for sample 2 at step 0" in lines[0]


def test_a_device_without_memory_is_not_made_up_for(device, monkeypatch):
    sampler = fsd.TransitSampler(small_graph(), transit.DeepWalk(2), device=[device] * 2)

    def fail(*_):
        raise OutOfMemory("no memory")

    monkeypatch.setattr(sampler._engine._engines[1], "sample", fail)
    with pytest.raises(OutOfMemory):
        sampler.sample([1, 2, 3])


def test_what_is_known_is_that_of_all_devices(device):
    one, both = (fsd.TransitSampler(small_graph(), transit.DeepWalk(2), device=own) for own in (device, [device] * 2))
    assert both.table_bytes == 2 * one.table_bytes > 0
    both.sample([1, 2, 3])
    assert [report.kernel for report in both.schedule_report()] == [None, None]


@pytest.mark.parametrize("devices", [[], ["cpu", "cpu"]])
def test_lists_without_gpus_are_refused(devices):
    with pytest.raises(ValueError, match="expected one device, or a list of GPUs such as"):
        fsd.TransitSampler(small_graph(), transit.DeepWalk(2), device=devices)

"""CapturedTransit of a user's own applications: a replay is plain Python's call of its own roots, ids, step and seed;
what went wrong in one is not seen in the next.
"""

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.sampling import arrays, transit
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import plain
from tests.grids import grid

from .apps import Own, small_graph
from .test_captured import captured
from .test_device_apps import Failing, assert_equal, bound_case
from .test_device_apps import device as device  # a fixture

pytest.importorskip("numba")
# A walk; states, chosen transits and a start; distinct picks in several steps.
USUAL = [(name, schedule) for name in ("own", "stateful", "distinct") for schedule in ("sample", "transit")]
OTHERS = [(name, schedule) for name in ("every", "draws", "counting") for schedule in ("auto", "transit_flat")]


def small_case(name):
    """Some samples of bound_case; of a walk one root each."""
    bound, roots, ids = bound_case(name, torch.int32)
    return bound, roots[:20, : 1 if name == "own" else None], ids[:20]


@pytest.mark.parametrize(("name", "schedule"), grid([*USUAL, *OTHERS], gate=USUAL, several=True))
def test_every_replay_is_the_oracles_call_of_its_own_draws(device, name, schedule):
    bound, roots, ids = small_case(name)
    sampler, kept = fsd.TransitSampler(bound.graph, bound.app, 3, device=device, schedule=schedule), []
    replays = captured(device, sampler, *roots.shape)
    for seed, step in ((3, 0), (3, 2**40), (9, 1)):
        found = replays.sample(roots, step, ids, None if seed == 3 else seed)
        kept.append((found, plain.run(bound, roots, ids, DrawKey(seed, step))))
        roots, ids = roots.roll(1, 0), ids + 1
    for found, expected in kept:  # samples outlive the next call
        assert_equal(found, expected)


@pytest.mark.parametrize("schedule", ["sample", "transit"])
def test_what_an_application_does_wrong_is_reported_by_its_own_replay(device, schedule):
    sampler = fsd.TransitSampler(small_graph(), Failing(), device=device, schedule=schedule)
    replays, roots = captured(device, sampler, 3), [6, 6, 6]
    for ids, place in (([8, 7, 9], "sample 7 at step 1"), ([9, 1, 2], "sample 9 at step 2")):
        with pytest.raises(RuntimeError, match=rf"next raised ZeroDivisionError .* in {place}"):
            replays.sample(roots, 1, ids)
        expected = plain.sample(small_graph(), Failing(), roots, step=1, sample_ids=[1, 2, 3])
        assert_equal(replays.sample(roots, 1, [1, 2, 3]), expected)


def test_what_a_gpu_does_not_start_is_reported_by_its_own_replay(emulated_device, monkeypatch):
    monkeypatch.setattr(arrays, "runs_kernels", lambda device: True)
    bound, roots, ids = small_case("distinct")
    replays = captured(torch.device("cpu"), fsd.TransitSampler(bound.graph, bound.app, schedule="transit"), 20)
    lines = emulated_device.failures(lambda: replays.sample(roots, 1, ids))
    assert set(lines) == {"app_steps: out of memory", "publish_words: out of memory"}
    assert_equal(replays.sample(roots, 1, ids), plain.run(bound, roots, ids, DrawKey(0, 1)))


ENDLESS = type("Endless", (Own,), {"steps": lambda self: transit.INF})
SURROUNDINGS = type("Surroundings", (Own,), {"num_steps": 1, "picks": transit.ALL})


@pytest.mark.parametrize("app", [ENDLESS(), SURROUNDINGS()], ids=lambda app: type(app).__name__)
def test_what_is_not_recorded_is_refused(device, app):
    sampler = fsd.TransitSampler(small_graph(), app, device=device)
    assert not sampler.can_capture
    with pytest.raises(ValueError, match=f"{type(app).__name__} .* not recorded; .*neither .* nor sample_size ALL"):
        sampler.captured(3)

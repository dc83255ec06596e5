"""The way of the seeds from DistLoader to the compiled core: how many of our functions, how many checks of their range.

Every call of the core is stopped at its door, where the stack is read: functions of fastsample_dist from the loader (or
its thread) down to the call that leaves Python, by ctypes or by torch.ops.
"""

import sys
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode, resolve_name

import fastsample_dist
from fastsample_dist import DistContext, DistData, DistLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.ops import library
from fastsample_dist.pipeline.seeds import given_seeds
from tests.parts import draw_partition

PACKAGE = str(Path(fastsample_dist.__file__).parent)
MOST = 8
READS = {"aminmax", "min", "max", "amin", "amax", "any", "all", "lt", "le", "gt", "ge", "bucketize", "searchsorted"}
READS |= {"__lt__", "__le__", "__gt__", "__ge__"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 1).path


@pytest.fixture
def data(path):
    with DistContext(LocalCommunicator()) as ctx:
        yield DistData.load(path, ctx)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def stacks(monkeypatch):
    """(name of the core's function, our functions above it, outermost first) of every call."""
    found, call = [], library.call

    def stopped(function, *arguments):
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            frames.append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
        leaves = [i for i, (file, _) in enumerate(frames) if file.endswith("torch/_ops.py")]
        ours = [name for file, name in frames[max(leaves, default=-1) + 1 :] if file.startswith(PACKAGE)]
        ours = [name for name in ours if not name.endswith("comp>")]  # comprehensions are functions until Python 3.12
        found.append((function.__name__, ours[::-1] + ([] if leaves else ["call"])))
        return call(function, *arguments)

    monkeypatch.setattr(library, "call", stopped)
    return found


@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_at_most_eight_functions_lead_to_the_core(data, stacks, two_threads, scheme, prefetch):
    loader = DistLoader(data, [3], 51, scheme=scheme, prefetch=prefetch)
    stacks.clear()
    batches = list(loader)
    assert len(batches) == 2
    calls = dict(stacks)
    core = "fs_sample_neighbors" if scheme == "vanilla" else "fs_sample_many" if prefetch else "fs_sample_mfg"
    assert {core, "fs_merge_rows"} <= set(calls)
    for name in (core, "fs_merge_rows"):
        assert calls[name][0] == ("_work" if prefetch else "__iter__"), calls[name]
        assert len(calls[name]) <= MOST, (name, calls[name])


class Reads(TorchFunctionMode):
    """Operations on tensors that look at values to compare them."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, arguments=(), options=None):
        name = (resolve_name(function) or getattr(function, "__name__", "")).rsplit(".", 1)[-1]
        if name in READS:
            self.names.append(name)
        return function(*arguments, **(options or {}))


def test_the_recorder_of_reads_sees_them():
    with Reads() as reads:
        ids = torch.arange(3)
        torch.aminmax(ids), ids.max(), (ids < 3).all()
    assert len(reads.names) == 4


def test_on_the_way_to_the_core_nothing_reads_the_seeds(data, stacks):
    """The core checks them, and it alone: see below."""
    data.features = data.labels = None
    batches = iter(DistLoader(data, [3, 2], 20))
    next(batches)
    stacks.clear()
    with Reads() as reads:
        next(batches)
    assert [name for name, _ in stacks] == ["fs_sample_mfg"] and reads.names == []


def test_the_core_checks_them(data):
    loader = DistLoader(data, [3, 2], 200, shuffle=False)
    loader._seeds[5] = data.num_nodes
    with pytest.raises(ValueError, match=r"^sample_mfg: .*240.*239"):
        next(iter(loader))


def test_given_seeds_are_compared_with_the_ranks_range_once(data):
    with Reads() as reads:
        given_seeds(data, torch.tensor([5, 9, 2]))
    ordered = [name.strip("_") for name in reads.names]
    assert ordered == ["lt", "ge"]

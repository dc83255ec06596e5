"""A prefetching loader samples several steps at once, one per thread: its batches are those that are made one by one.

The oracle is the plain loader of the same seeds.
"""

import itertools
import subprocess
import sys
import threading

import pytest
import torch

from fastsample_dist import DistData, DistLoader, SampleSpec
from fastsample_dist.pipeline.lookahead import Prefetcher, group_size
from fastsample_dist.pipeline.position import LoaderPosition
from fastsample_dist.pipeline.schemes import make_sampler
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.testing import run_distributed
from tests.grids import grid
from tests.parts import draw_partition

FANOUTS, BATCH = [3, 2], 10


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 1).path


@pytest.fixture(autouse=True)
def threads():
    """Sets torch's number of threads, which is back as it was after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def groups(monkeypatch):
    """How many steps each call of sample_many had."""
    sizes, sample_many = [], NeighborSampler.sample_many

    def spy(self, seeds, first_step=0):
        sizes.append(len(seeds))
        return sample_many(self, seeds, first_step)

    monkeypatch.setattr(NeighborSampler, "sample_many", spy)
    return sizes


def make_loader(ctx, path, **options):
    return DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, rng_seed=7, **options)


def facts_of(batch):
    """All that a batch is."""
    edges = [(mfg.indptr.tolist(), mfg.indices.tolist()) for mfg in batch.mfgs]
    own = (batch.epoch, batch.step, batch.num_global_seeds, batch.seeds.tolist(), batch.input_nodes.tolist())
    return (*own, edges, batch.features.tolist(), batch.labels.tolist())


def epochs_of(loader, count):
    return [[facts_of(batch) for batch in loader] for _ in range(count)]


@pytest.mark.parametrize(
    ("num_threads", "prefetch", "sizes"),
    [
        (2, 2, [2, 2, 2, 2, 2]),  # the eleventh step is alone
        (2, 4, [2, 2, 2, 2, 2]),
        (3, 4, [3, 3, 3, 2]),
        (8, 4, [4, 4, 3]),
        (4, 3, [3, 3, 3, 2]),
        (4, 1, []),
        (1, 4, []),
    ],
)
def test_steps_are_sampled_at_once_and_the_batches_stay(ctx, path, threads, groups, num_threads, prefetch, sizes):
    threads(num_threads)
    expected = epochs_of(make_loader(ctx, path), 2)
    assert groups == []
    assert epochs_of(make_loader(ctx, path, prefetch=prefetch), 2) == expected
    assert groups == sizes * 2


@pytest.mark.parametrize(
    "options", [{"replace": True}, {"method": "labor"}, {"method": "labor", "layer_dependency": True}]
)
def test_other_methods_too(ctx, path, threads, groups, options):
    threads(3)
    expected = epochs_of(make_loader(ctx, path, **options), 1)
    assert epochs_of(make_loader(ctx, path, prefetch=3, **options), 1) == expected
    assert groups == [3, 3, 3, 2]


@pytest.mark.parametrize("taken", [1, 2, 4, 7])
@pytest.mark.parametrize("prefetch", [2, 4])
def test_an_epoch_left_early_leaves_nothing_to_the_next(ctx, path, threads, groups, taken, prefetch):
    threads(4)
    first, second = epochs_of(make_loader(ctx, path), 2)
    loader = make_loader(ctx, path, prefetch=prefetch)
    found = []
    for batch in loader:
        found.append(facts_of(batch))
        if len(found) == taken:
            break
    assert found == first[:taken]
    assert epochs_of(loader, 1) == [second]
    assert max(groups) == prefetch


def test_steps_sampled_ahead_are_not_taken_for_those_of_another_plan(ctx, path, threads, groups):
    """Resumed with other seeds under the same step numbers, which the loader had sampled ahead before it was left."""
    threads(4)
    plain, loader = make_loader(ctx, path), make_loader(ctx, path, prefetch=4)
    next(iter(loader))
    seeds = loader.data.orig_ids(loader.data.split("train"))
    position = LoaderPosition(0, 2, seeds.flip(0)[20:])
    for one in (plain, loader):
        one.resume(position)
    assert epochs_of(loader, 2) == epochs_of(plain, 2)
    assert max(groups) == 4


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_a_resumed_loader_makes_the_batches_that_were_still_to_come(ctx, path, threads, groups, steps):
    threads(3)
    plain = make_loader(ctx, path)
    whole = epochs_of(plain, 2)
    loader = make_loader(ctx, path, prefetch=3)
    loader.resume(plain.position(0, steps))
    assert epochs_of(loader, 2) == [whole[0][steps:], whole[1]]
    assert groups[-4:] == [3, 3, 3, 2]


@pytest.mark.parametrize(
    ("scheme", "num_threads", "prefetch", "size"),
    [
        ("hybrid", 4, 3, 3),
        ("hybrid", 2, 3, 2),
        ("hybrid", 1, 3, 1),
        ("hybrid", 4, 1, 1),
        ("vanilla", 4, 3, 1),
    ],
)
def test_group_sizes(ctx, path, scheme, num_threads, prefetch, size):
    sampler = make_sampler(DistData.load(path, ctx), scheme, SampleSpec(fanouts=FANOUTS), ctx.comm)
    assert group_size(sampler, torch.device("cpu"), prefetch, num_threads) == size
    assert group_size(sampler, torch.device("cuda"), prefetch, num_threads) == 1


def test_a_sampler_that_has_sample_alone_is_called_step_by_step():
    class OnlySample:
        def sample(self, seeds, step):
            raise AssertionError("not called")

    assert group_size(OnlySample(), torch.device("cpu"), 4, 4) == 1


def rank_with_own_threads(ctx, path, scheme, prefetch):
    """Batches of an epoch left early and of the next; every rank has another number of threads, so other groups."""
    torch.set_num_threads(1 + ctx.rank)
    loader = make_loader(ctx, path, scheme=scheme, prefetch=prefetch)
    found = []
    for batch in loader:
        found.append(facts_of(batch))
        if len(found) == 3:
            break
    return found + [facts_of(batch) for batch in loader]


@pytest.mark.parametrize("scheme", grid(["hybrid", "vanilla"], gate=["vanilla"]))
def test_ranks_may_group_differently(tmp_path, scheme):
    drawn = draw_partition(tmp_path, 3)
    expected = run_distributed(3, rank_with_own_threads, args=(drawn.path, scheme, 0))
    assert run_distributed(3, rank_with_own_threads, args=(drawn.path, scheme, 3)) == expected


AT_WORK = """
import os, signal, sys, threading, torch
from fastsample_dist import ops
from fastsample_dist.pipeline import lookahead

def make(number):
    for _ in range(LENGTH if number > 0 else 1):
        ops.aggregate(torch.arange(3), torch.zeros(2, dtype=torch.int64), torch.ones(1, 4))

prefetcher = lookahead.Prefetcher(make, range(100_000), 100_000, 60)
next(iter(prefetcher))
"""
ENDINGS = {
    "left": "sys.exit(7)",
    "interrupted while it was joined": """
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    prefetcher.close()
except KeyboardInterrupt:
    sys.exit(7)
""",
}


LENGTHS = {"a batch": 200, "a batch that takes hours": 10**9}  # calls


@pytest.mark.parametrize(
    ("length", "ending"),
    grid(itertools.product(LENGTHS, ENDINGS), gate=[*zip(LENGTHS, reversed(ENDINGS), strict=True)], several=True),
)
def test_a_thread_at_work_when_the_interpreter_ends_does_not_abort_it(length, ending):
    """One in three such processes aborted, and nearly all in the middle of a long batch."""
    code = AT_WORK.replace("LENGTH", str(LENGTHS[length])) + ENDINGS[ending]
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (7, "")


def test_a_call_that_takes_longer_than_its_batch_may_is_waited_for():
    """As on a machine that stalls: it aborted the process when it returned while the interpreter ended."""
    code = AT_WORK.replace("LENGTH", str(10**9)) + "lookahead.EXIT_S = 0.0\nsys.exit(7)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (7, "")


FREED_LATE = """
import ctypes, os, signal, sys, threading, time, torch
from fastsample_dist.pipeline import lookahead

class Owner:
    def __del__(self):
        until = time.monotonic() + 1
        while time.monotonic() < until:
            time.sleep(0.0001)  # without the interpreter's lock, as where the core frees its memory

class LateEvent(threading.Event):
    def set(self):
        super().set()
        time.sleep(0.3)

class LatePrefetcher(lookahead.Prefetcher):
    def _work(self):
        self._ended = LateEvent()
        super()._work()

def make(number):
    memory = (ctypes.c_char * 8)()
    memory.owner = Owner()
    return torch.frombuffer(memory, dtype=torch.int64)

prefetcher = LatePrefetcher(make, range(2), 2, 60)
while not prefetcher._ended.is_set():
    time.sleep(0.01)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    prefetcher.close()
except KeyboardInterrupt:
    pass
del prefetcher
time.sleep(0.5)
sys.exit(7)
"""


def test_a_thread_whose_join_was_interrupted_frees_no_batch_while_the_interpreter_ends():
    """It held them last, freed them on its way out, and aborted the process."""
    ended = subprocess.run([sys.executable, "-c", FREED_LATE], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (7, "")


def test_a_thread_that_runs_only_after_it_was_abandoned_touches_nothing_of_torch(monkeypatch):
    """Ctrl-C came while it was being started; the interpreter that ended then aborted it inside of torch."""
    start, touched = threading.Thread.start, []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(torch, "set_num_threads", touched.append)
    prefetcher = Prefetcher(touched.append, [1, 2, 3], 2, 60.0)
    assert prefetcher.abandon()
    start(prefetcher._thread)
    prefetcher._thread.join(60)
    assert not prefetcher._thread.is_alive() and touched == []

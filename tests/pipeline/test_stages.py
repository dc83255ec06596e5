"""Stages: what each does to a batch, which spans and times it leaves, and that looking ahead changes none of it."""

from contextlib import nullcontext

import pytest
import torch

from fastsample_dist import DistData, DistLoader
from fastsample_dist.comm.watch import Watch
from fastsample_dist.pipeline import schemes
from fastsample_dist.pipeline.lookahead import CheckHandOver, GroupedSample
from fastsample_dist.pipeline.placed import WHOLE
from fastsample_dist.pipeline.schemes import Scheme
from fastsample_dist.pipeline.stages import (
    CheckSampled,
    Fetch,
    Label,
    Move,
    Sample,
    Transform,
    completing_stages,
    run_stages,
)
from tests.parts import draw_partition

FANOUTS, BATCH = [3, 2], 26  # 101 train seeds: 4 steps


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 1).path


@pytest.fixture
def data(path, ctx):
    return DistData.load(path, ctx)


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def unchanged(batch):
    return batch


def test_a_loader_has_the_stages_that_it_needs(data):
    def kinds(**options):
        return [type(stage) for stage in DistLoader(data, batch_size=BATCH, **options)._stages]

    assert kinds(fanouts=FANOUTS) == [Sample, Fetch, Label]
    assert kinds(fanouts=FANOUTS, transform=unchanged) == [Sample, Fetch, Label, Transform]
    sampler = DistLoader(data, FANOUTS, BATCH)._sampler
    data.features = data.labels = None
    assert kinds(sampler=sampler) == [Sample, CheckSampled]


def test_one_stage_after_another_completes_the_batch(data):
    loader = DistLoader(data, FANOUTS, BATCH, transform=lambda batch: [batch])
    given, batch = loader._steps_of(0)[1], None
    sample, fetch, label, transform = loader._stages
    batch = sample.run(given, batch)
    assert (batch.step, batch.epoch, batch.num_global_seeds) == (1, 0, BATCH) and batch.features is batch.labels is None
    assert fetch.run(given, batch) is batch and batch.features.shape[0] == batch.input_nodes.numel()
    assert batch.labels is None
    assert label.run(given, batch) is batch and torch.equal(batch.labels, data.labels_of(given.seeds))
    assert transform.run(given, batch) == [batch]
    [whole] = run_stages(loader._stages, data.ctx.comm, given)
    assert torch.equal(whole.features, batch.features) and torch.equal(whole.input_nodes, batch.input_nodes)


def test_a_batch_is_moved_between_its_labels_and_the_transform(data):
    loader, elsewhere = DistLoader(data, FANOUTS, BATCH, transform=unchanged), torch.device("meta")
    stages = completing_stages(
        loader.options, loader._comm, loader._features, data.labels_of, torch.device("cpu"), elsewhere
    )
    assert [type(stage) for stage in stages] == [Fetch, Label, Move, Transform]
    given = loader._steps_of(0)[0]
    batch = run_stages(stages, data.ctx.comm, given, loader._stages[0].run(given, None))
    assert {tensor.device for tensor in batch.tensors()} == {elsewhere}


def spans_of(loader, monkeypatch):
    """(stage, its step, step that an error of a collective would name) of every span of an epoch, and its batches."""
    found, comm = [], loader._comm

    def span(watch, name, step=-1, clock=None):
        found.append((name, step, comm.step))
        return nullcontext()

    monkeypatch.setattr(Watch, "span", span)
    return list(loader), found


def test_every_stage_has_its_span_under_the_number_of_its_step(data, monkeypatch):
    batches, spans = spans_of(DistLoader(data, FANOUTS, BATCH, transform=unchanged), monkeypatch)
    assert spans == [(name, step, step) for step in range(4) for name in ("sample", "fetch", "transform")]
    assert {batch.sampling.share for batch in batches} == {1}


def test_sampling_at_once_has_one_span_and_its_time_is_shared(data, monkeypatch, three_threads):
    loader = DistLoader(data, FANOUTS, BATCH, transform=unchanged, prefetch=3)
    batches, spans = spans_of(loader, monkeypatch)
    rest = {step: [(name, step, step) for name in ("fetch", "transform")] for step in range(4)}
    assert spans == [("sample", 0, 0), *rest[0], *rest[1], *rest[2], ("sample", 3, 3), *rest[3]]
    assert [batch.sampling.share for batch in batches] == [3, 3, 3, 1]
    assert batches[0].sampling is batches[2].sampling and len({id(batch.fetching) for batch in batches}) == 4


def test_the_stages_of_a_loader_know_nothing_of_looking_ahead(data, three_threads):
    loader = DistLoader(data, FANOUTS, BATCH, prefetch=3)
    before = loader._stages
    list(loader)
    assert loader._stages is before and not any(isinstance(stage, GroupedSample) for stage in before)


def test_a_batch_that_cannot_be_handed_to_another_stream_is_refused(data):
    given = DistLoader(data, FANOUTS, BATCH)._steps_of(0)[0]
    batch = next(iter(DistLoader(data, FANOUTS, BATCH)))
    assert CheckHandOver().run(given, batch) is batch
    with pytest.raises(ValueError, match=r"^step 0: transform returned a dict; with prefetch on a GPU it must return"):
        CheckHandOver().run(given, {})


def test_a_scheme_is_one_line_of_the_registry(data, monkeypatch):
    """A scheme that nothing else knows of makes batches as soon as it is entered."""
    made = []

    def mirrored(given):
        made.append(schemes.REGISTRY["hybrid"].make(given))
        return made[0]

    monkeypatch.setitem(schemes.REGISTRY, "mirrored", Scheme(WHOLE, mirrored))
    loader = DistLoader(data, FANOUTS, BATCH, scheme="mirrored")
    assert len(list(loader)) == 4 and made == [loader._sampler]

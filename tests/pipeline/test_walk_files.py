"""write_walks: the loader's walks by original id, from a graph and from ranks alike; progress; what is refused."""

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph, DistContext, DistData, WalkLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.pipeline import walk_files
from fastsample_dist.pipeline.walk_files import write_walks
from fastsample_dist.sampling import transit
from fastsample_dist.testing import RankError, run_distributed
from tests.parts import draw_partition

APP = transit.DeepWalk(4)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 2)


@pytest.fixture(scope="module")
def expected(drawn, tmp_path_factory):
    """The file of the graph over original ids, in one process."""
    path = tmp_path_factory.mktemp("walks") / "walks.npy"
    write_walks(drawn.graph, APP, path, 3, rng_seed=4, epoch=2, progress=False)
    return np.load(path)


def test_rows_are_the_loader_s_walks_by_sample_id(drawn, expected):
    with DistContext(LocalCommunicator()) as ctx:
        data = DistData.load(drawn.path, ctx)
        loader = WalkLoader(data, APP, 3, 100, rng_seed=4)
        loader.set_epoch(2)
        seen = 0
        for batch in loader:
            walks = torch.where(batch.walks < 0, -1, data.orig_ids(batch.walks.clamp(min=0)))
            assert np.array_equal(expected[batch.sample_ids.numpy()], walks.numpy())
            seen += len(walks)
    assert expected.shape == (seen, 5) and expected.dtype == np.int32


def write_here(ctx, parts, path, chunk_nodes):
    walk_files.CHUNK_NODES = chunk_nodes
    write_walks(DistData.load(parts, ctx), APP, path, 3, rng_seed=4, epoch=2, progress=False)
    return ctx.comm.stats()["walk_file"]["bytes_sent"]


@pytest.mark.parametrize("chunk_nodes", [37, 1 << 14])
def test_ranks_write_the_file_of_one_process(drawn, expected, tmp_path, chunk_nodes):
    sent = run_distributed(2, write_here, args=(drawn.path, tmp_path / "walks.npy", chunk_nodes))
    assert np.array_equal(np.load(tmp_path / "walks.npy"), expected)
    assert [name.name for name in tmp_path.iterdir()] == ["walks.npy"]
    assert sent[0] == 0 < sent[1]


def write_until(ctx, parts, path, rank, failing, error):
    """What rank `rank` raises in its third chunk: where it makes walks, or where rank 0 has written some."""
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == 3:
            raise error

    if ctx.rank == rank and failing == "walks":
        sample = walk_files.TransitSampler.sample
        walk_files.TransitSampler.sample = lambda *args, **options: fail() or sample(*args, **options)
    if ctx.rank == rank and failing == "progress":
        append = walk_files.NpyWriter.append
        walk_files.NpyWriter.append = lambda *args: append(*args) or fail()
    write_here(ctx, parts, path, 37)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_make_its_walks_says_why(drawn, tmp_path, rank):
    refusal = ValueError("samples take 9 GB, but 1 GB of memory are free")
    with pytest.raises(RankError) as raised:
        run_distributed(2, write_until, args=(drawn.path, tmp_path / "walks.npy", rank, "walks", refusal))
    assert f"rank {rank}: walk_file cannot be made: samples take 9 GB" in str(raised.value)
    assert f"(rank {rank} has ended" in str(raised.value) and "no traceback" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_writer_does_not_wait_for_what_is_left(drawn, tmp_path):
    with pytest.raises(RankError, match="(?s)KeyboardInterrupt.*rank 1, outside a step: all_to_all of"):
        run_distributed(2, write_until, args=(drawn.path, tmp_path / "walks.npy", 0, "progress", KeyboardInterrupt()))
    assert list(tmp_path.iterdir()) == []


def test_ranks_compare_what_they_are_asked_for(drawn, tmp_path, monkeypatch):
    """A file of two seeds would be nobody's."""
    compared = []
    monkeypatch.setattr(walk_files, "agree_on", lambda comm, what, facts: compared.append(facts))
    with DistContext(LocalCommunicator()) as ctx:
        for app, seed in ((APP, 4), (transit.DeepWalk(4, weighted=False), 5)):
            write_walks(DistData.load(drawn.path, ctx), app, tmp_path / "walks.npy", rng_seed=seed, progress=False)
    assert {name for name in compared[0] if compared[0][name] != compared[1][name]} == {"DeepWalk.needs", "rng_seed"}


def test_lines_in_a_log(drawn, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(walk_files, "CHUNK_NODES", 60)
    write_walks(drawn.graph, APP, tmp_path / "walks.npy", 1)
    lines = capfd.readouterr().err.splitlines()
    assert lines == [f"walks: {done} of 240 ({10 * (done * 10 // 240)} %)" for done in (60, 120, 180, 240)]


@pytest.mark.parametrize(("numbered", "sorts"), [("by orig_ids", 1), ("by itself", 0)])
def test_nodes_are_sorted_once_and_only_where_they_have_other_ids(
    drawn, expected, tmp_path, monkeypatch, numbered, sorts
):
    """Their order takes 33 bytes per node while it is made."""
    orig_ids = torch.arange(drawn.graph.num_nodes) if numbered == "by orig_ids" else None
    graph = CSCGraph(drawn.graph.indptr, drawn.graph.indices, orig_ids=orig_ids)
    made, argsort = [], torch.Tensor.argsort
    monkeypatch.setattr(torch.Tensor, "argsort", lambda *args, **options: made.append(1) or argsort(*args, **options))
    monkeypatch.setattr(walk_files, "CHUNK_NODES", 37)
    write_walks(graph, APP, tmp_path / "walks.npy", 3, rng_seed=4, epoch=2, progress=False)
    assert len(made) == sorts
    assert np.array_equal(np.load(tmp_path / "walks.npy"), expected)


def test_no_half_file_stays(tmp_path, monkeypatch):
    graph = CSCGraph(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32))
    monkeypatch.setattr(walk_files.NpyWriter, "append", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_walks(graph, APP, tmp_path / "walks.npy", progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("app", "options", "message"),
    [
        (transit.PPR(), {}, "PPR has walks of any length; expected a fixed number of steps"),
        (APP, {"walks_per_node": 0}, "walks_per_node is 0"),
        (APP, {"epoch": -1}, "epoch is -1"),
    ],
)
def test_refusals(drawn, tmp_path, app, options, message):
    with pytest.raises(ValueError, match=message):
        write_walks(drawn.graph, app, tmp_path / "walks.npy", **options)


def test_a_source_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"source is a str; expected fsd.DistData.load\(path, ctx\), or a CSCGraph"):
        write_walks("parts", transit.DeepWalk(3), tmp_path / "walks.npy")

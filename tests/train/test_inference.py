"""Layer-wise inference equals a forward pass over the whole graph in one process."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist import DistContext, DistData, NeighborSampler
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.pipeline.data import own_parts
from fastsample_dist.testing import run_distributed
from fastsample_dist.train import inference
from tests.grids import grid
from tests.small_disk import small_files, small_tmpfs
from tests.train.task import FEATURE_DIM, make_model, make_task

TOLERANCE = 1e-5  # float32 sums in another order


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 4, dtype="float32")


def whole_graph_scores(task, kind: str, num_layers: int) -> torch.Tensor:
    """By original id: all nodes as the seeds of one batch with all neighbours."""
    model = make_model(kind, num_layers=num_layers).float().eval()
    batch = NeighborSampler(task.graph, [-1] * num_layers).sample(torch.arange(200, dtype=torch.int32))
    with torch.no_grad():
        return model(batch.mfgs, task.features.float()[batch.input_nodes.long()])


def rank_scores(ctx, path, kind, num_layers, batch_size, output):
    data = DistData.load(path, ctx)
    model = make_model(kind, num_layers=num_layers).float()
    scores = inference.layerwise(model, data, batch_size, output=output)
    own = torch.arange(*data.own_range)
    return data.orig_ids(own), scores.clone(), inference.accuracy(scores, data, "test"), model.training


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
@pytest.mark.parametrize("ranks_and_batch_size", grid([(1, 1000), (2, 7), (4, 64)], gate=[(2, 7)]), ids=str)
def test_equals_the_whole_graph_in_one_process(task, kind, ranks_and_batch_size):
    ranks, batch_size = ranks_and_batch_size
    expected = whole_graph_scores(task, kind, 3)
    results = run_distributed(ranks, rank_scores, args=(task.path, kind, 3, batch_size, None))
    found = torch.empty_like(expected)
    for orig_ids, scores, _, _ in results:
        found[orig_ids] = scores
    assert torch.allclose(found, expected, rtol=0, atol=TOLERANCE)
    assert sum(len(orig_ids) for orig_ids, *_ in results) == 200
    test_nodes = torch.from_numpy(task.node_task.splits["test"])
    exact = float((expected[test_nodes].argmax(1) == task.labels[test_nodes]).float().mean())
    assert [accuracy for *_, accuracy, _ in results] == [pytest.approx(exact)] * ranks
    assert all(training for *_, training in results)  # the model's mode is as it was


def test_writes_one_file_per_part_and_leaves_nothing_else(task, tmp_path):
    expected = whole_graph_scores(task, "sage", 2)
    results = run_distributed(2, rank_scores, args=(task.path, "sage", 2, 30, tmp_path / "out"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"part-{part}.npy" for part in range(4)]
    orig_ids = torch.cat([orig_ids for orig_ids, *_ in results])
    written = torch.from_numpy(np.concatenate([np.load(tmp_path / "out" / f"part-{part}.npy") for part in range(4)]))
    assert torch.allclose(written, expected[orig_ids], rtol=0, atol=TOLERANCE)


def mapped_file(tensor: torch.Tensor) -> str:
    """Name of the file that a tensor is a mapping of; "" where it is memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, _, *name = line.split(maxsplit=5)
        begin, end = (int(bound, 16) for bound in span.split("-"))
        if begin <= tensor.data_ptr() < end:
            return name[0] if name else ""
    raise AssertionError("no mapping has the tensor")


def files_behind(ctx, path, output):
    """What the result is a mapping of, and whether it is the files' rows in their order."""
    data = DistData.load(path, ctx)
    scores = inference.layerwise(make_model("sage").float(), data, 30, output=output)
    parts = own_parts(4, ctx)
    written = np.concatenate([np.load(output / f"part-{part}.npy") for part in parts])
    return mapped_file(scores), np.array_equal(scores.numpy(), written)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_result_beside_an_output_is_a_mapped_file(task, tmp_path, ranks):
    """Of several parts, too: all scores need not fit into memory."""
    output = tmp_path / "out"
    for name, is_same in run_distributed(ranks, files_behind, args=(task.path, output)):
        assert is_same and name.startswith(f"{output}/")
    assert sorted(path.name for path in output.iterdir()) == [f"part-{part}.npy" for part in range(4)]


def one_process(task) -> DistData:
    return DistData.load(task.path, DistContext(LocalCommunicator()))


def test_a_batch_ends_early_at_nodes_of_many_edges(task, monkeypatch):
    data = one_process(task)
    monkeypatch.setattr(inference, "EDGES_PER_NODE", 2)
    bounds = inference._batch_bounds(data, 10)
    degrees = data.graph.in_degrees()
    assert bounds[0] == 0 and bounds[-1] == 200
    for first, last in itertools.pairwise(bounds):
        assert last - first == 1 or int(degrees[first:last].sum()) <= 20
        assert 1 <= last - first <= 10


def test_reports_its_progress_and_calls_the_same_collectives_on_every_rank(task):
    seen = []
    fsd.train.inference.layerwise(
        make_model("sage").float(), one_process(task), 50, on_batch=lambda done, total: seen.append((done, total))
    )
    assert seen == [(done, seen[0][1]) for done in range(1, seen[0][1] + 1)]


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_a_model_in_bfloat16_gives_its_scores_as_float32(task, tmp_path, kind):
    model = make_model(kind).bfloat16().eval()
    scores = inference.layerwise(model, one_process(task), 1000, output=tmp_path)
    batch = NeighborSampler(one_process(task).graph, [-1, -1]).sample(torch.arange(200))
    with torch.no_grad():
        expected = model(batch.mfgs, one_process(task).features.fetch(batch.input_nodes, torch.bfloat16))
    assert scores.dtype == torch.float32 and torch.equal(scores, scores.bfloat16().float())
    assert torch.allclose(scores, expected.float(), rtol=0, atol=0.05)
    assert np.array_equal(np.load(tmp_path / "part-1.npy"), scores[slice(*one_process(task).book.part2range(1))])


class OwnRows(torch.nn.Module):
    """One layer, of the node's own row, in float16."""

    num_layers = 1

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(FEATURE_DIM, 3).half()

    def apply_layer(self, number, mfg, rows):
        return self.linear(rows[: mfg.num_dst])


def test_a_model_in_the_features_type_is_taken(tmp_path):
    data, model = one_process(make_task(tmp_path, 1, dtype="float16")), OwnRows()
    assert torch.equal(inference.layerwise(model, data, 1000), model.linear(data.features.fetch(torch.arange(200))))


@pytest.mark.parametrize(
    ("columns", "batch_size", "dtype", "message"),
    [
        (8, 0, torch.float32, "^batch_size is 0; expected an integer >= 1"),
        (8, 2.5, torch.float32, "^batch_size is 2.5; expected an integer >= 1"),
        (8, "7", torch.float32, "^batch_size is '7'; expected an integer >= 1"),
        (9, 10, torch.float32, "features of 8 columns but the model has in_dim 9"),
        (8, 10, torch.float16, "^GraphSAGE has parameters of torch.float16 but features are torch.float32"),
    ],
    ids=str,
)
def test_refuses_what_does_not_fit(task, columns, batch_size, dtype, message):
    model = fsd.train.models.GraphSAGE(columns, 4, 4, 2).to(dtype)
    with pytest.raises(ValueError, match=message):
        inference.layerwise(model, one_process(task), batch_size)


# ---- a disk that is full


def test_a_disk_that_is_full_is_named_and_does_not_kill_the_process(task, tmp_path):
    """Without room for a layer's rows: a write to a map of blocks that are not there would be a SIGBUS."""
    with small_tmpfs(tmp_path / "small", 8 << 10), pytest.raises(ValueError) as raised:
        inference.layerwise(make_model("sage").float(), one_process(task), output=tmp_path / "small" / "out")
    assert "/small/out/.layerwise-" in str(raised.value)
    with small_files(100), pytest.raises(ValueError) as raised:
        inference.layerwise(make_model("sage").float(), one_process(task), output=tmp_path / "out")
    assert f"{tmp_path}/out/.layerwise-" in str(raised.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_predictions_that_do_not_fit_are_named_and_none_is_left_half(task, tmp_path, monkeypatch):
    write_parts = inference._write_parts

    def with_little_room(*arguments):
        with small_files(200):
            return write_parts(*arguments)

    monkeypatch.setattr(inference, "_write_parts", with_little_room)
    with pytest.raises(ValueError, match=f"File too large: '{tmp_path}/out/part-0.npy'"):
        inference.layerwise(make_model("sage").float(), one_process(task), output=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []

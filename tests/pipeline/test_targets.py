"""Labels for multilabel and regression in DistData and in the batches of its loader; fastsample-verify on them."""

import json

import numpy as np
import pytest
import torch

from fastsample_dist import DistContext, DistData, DistLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.testing import run_distributed
from fastsample_dist.verify import cli as verify
from tests.parts import draw_partition
from tests.test_partition.test_targets import draw


@pytest.fixture(scope="module", params=["multilabel", "regression"])
def drawn(request, tmp_path_factory):
    """(graph, path of four parts)."""
    raw, path = draw(request.param), tmp_path_factory.mktemp("drawn") / "parts"
    build_partition(raw, PartitionOptions(num_parts=4, method="random"), path)
    return raw, path


def labels_on_rank(ctx, path, scheme, prefetch):
    """What this rank sees: facts, and (original id, label) of every seed of an epoch and of all own nodes."""
    data = DistData.load(path, ctx)
    batches = list(DistLoader(data, [2, 2], 4, scheme=scheme, prefetch=prefetch))
    assert all(batch.labels.dtype == torch.float32 for batch in batches)
    seeds = torch.cat([data.orig_ids(batch.seeds) for batch in batches])
    own = torch.arange(*data.own_range)
    assert torch.equal(data.labels_of(own).nan_to_num(9), data.labels.nan_to_num(9))
    facts = (data.task, data.num_outputs, data.num_classes)
    return facts, seeds, torch.cat([batch.labels for batch in batches]), data.orig_ids(own), data.labels


def foreign_labels(ctx, path):
    """(what a node of another rank, and one of none, is refused with; labels of a list)."""
    data, said = DistData.load(path, ctx), []
    lo, hi = data.own_range
    for wrong in ([lo, hi % data.num_nodes], [lo, data.num_nodes], [0.5]):
        with pytest.raises(ValueError) as refused:
            data.labels_of(wrong)
        said.append(str(refused.value))
    assert torch.equal(data.labels_of([hi - 1, lo]), data.labels[[-1, 0]])
    assert len(data.labels_of([])) == 0
    return data.own_range, said


def test_labels_of_other_ranks_nodes_are_refused(tmp_path):
    path = draw_partition(tmp_path, 4).path
    found = run_distributed(4, foreign_labels, args=(path,))
    for rank, ((lo, hi), said) in enumerate(found):
        node = hi % 240
        assert said == [
            f"nodes of rank {rank} holds node {node}, which is rank {(rank + 1) % 4}'s; expected its own nodes {lo} to "
            f"{hi - 1} (data.own_range).",
            f"node ids run from {lo} to 240; expected 0 to 239.",
            "node ids are torch.float32; expected an integer type.",
        ]


@pytest.mark.parametrize(("scheme", "prefetch"), [("hybrid", 0), ("hybrid", 2), ("vanilla", 0)])
def test_ranks_see_the_labels_of_their_nodes(drawn, scheme, prefetch):
    raw, path = drawn
    wanted = raw.targets.astype(np.float32)
    results = run_distributed(2, labels_on_rank, args=(path, scheme, prefetch))
    for facts, seeds, of_seeds, own, of_own in results:
        assert facts == (raw.task, raw.targets.shape[1], 0)
        np.testing.assert_array_equal(of_seeds.numpy(), wanted[seeds.numpy()])
        np.testing.assert_array_equal(of_own.numpy(), wanted[own.numpy()])
    assert sorted(torch.cat([result[1] for result in results]).tolist()) == raw.splits["train"].tolist()


def test_classes_and_no_labels_are_for_classification(tmp_path):
    with DistContext(LocalCommunicator()) as ctx:
        data = DistData.load(draw_partition(tmp_path, 1).path, ctx)
        assert data.task == "classification" and data.labels.dtype == torch.int64
        assert data.num_outputs == data.num_classes > 0


def test_verification_passes_and_compares_gradients(forked_ranks, drawn, tmp_path, capsys):
    file = tmp_path / "out.json"
    small = ("--steps", "2", "--batch-size", "5", "--fanouts", "3,2", "--hidden", "4")
    status = verify.main([str(drawn[1]), "--ranks", "2", *small, "--json", str(file)])
    assert status == 0, capsys.readouterr()
    (run,) = json.loads(file.read_text())["runs"]
    assert 0 <= run["gradient_error"] < 1e-12
    assert "gradients within" in capsys.readouterr().out

"""Modules that know nothing of this library but the fields of an MFG, and batches with one MFG for all layers: both
train, go through layer-wise inference and are resumed from a checkpoint.
"""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastsample_dist import DistData, DistLoader, NeighborSampler
from fastsample_dist.testing import run_distributed
from fastsample_dist.train import Checkpointer, CheckpointSettings, Trainer, load_checkpoint
from fastsample_dist.train.inference import accuracy, layerwise
from tests.train.task import FEATURE_DIM, NUM_CLASSES, make_model, make_task

EPOCHS = 8


class Mean(nn.Module):
    """Two torch.nn.Linear over sums of rows by index_add, called as model(mfgs, features)."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURE_DIM, 16), nn.Linear(16, NUM_CLASSES)

    def combine(self, mfg, rows):
        src, dst = mfg.edge_index()
        total = rows[: mfg.num_dst].index_add(0, dst, rows[src])
        return total / (mfg.indptr.diff() + 1).unsqueeze(1)

    def forward(self, mfgs, features):
        hidden = self.first(self.combine(mfgs[0], features)).relu()
        return self.second(self.combine(mfgs[1], hidden))


class LayerByLayer(Mean):
    """The same with what lets layerwise compute every node once per layer."""

    num_layers = 2

    def apply_layer(self, number, mfg, rows):
        rows = self.combine(mfg, rows)
        return self.second(rows) if number else self.first(rows).relu()


MODULES = {"whole": Mean, "layer by layer": LayerByLayer}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 2, dtype="float32")


def start(ctx, path, make, directory, *, transform=None, resume=False):
    """(trainer, loader, checkpoints)"""
    torch.manual_seed(5)
    model = make()
    fanouts = (4, 4) if transform is None else (-1,)
    loader = DistLoader(DistData.load(path, ctx), fanouts, 30, transform=transform)
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.02), ctx)
    checkpoints = Checkpointer(trainer, loader, CheckpointSettings(directory=directory))
    checkpoints.begin(resume=resume)
    return trainer, loader, checkpoints


def resumed(ctx, path, make, directory, **options):
    """(parameters of a run that was stopped and resumed, those of one that was not, the resumed run's model)"""
    trainer, loader, checkpoints = start(ctx, path, make, directory / "whole", **options)
    trainer.fit(loader, EPOCHS, [checkpoints])
    first, loader, checkpoints = start(ctx, path, make, directory / "parts", **options)
    first.fit(loader, EPOCHS // 2, [checkpoints])
    second, loader, checkpoints = start(ctx, path, make, directory / "parts", resume=True, **options)
    second.fit(loader, EPOCHS, [checkpoints])
    return second.model, trainer.model


def everything(task, model):
    """Scores of all nodes, by original id: one batch with all neighbours."""
    batch = NeighborSampler(task.graph, [-1, -1]).sample(torch.arange(200, dtype=torch.int32))
    with torch.no_grad():
        return model.eval()(batch.mfgs, task.features.float()[batch.input_nodes.long()])


@pytest.mark.parametrize("kind", MODULES)
def test_a_plain_module_trains_is_resumed_and_goes_through_layerwise(task, ctx, tmp_path, kind):
    model, whole = resumed(ctx, task.path, MODULES[kind], tmp_path)
    assert all(map(torch.equal, model.parameters(), whole.parameters()))
    data = DistData.load(task.path, ctx)
    scores = layerwise(model, data, 30, num_layers=2 if kind == "whole" else None)
    torch.testing.assert_close(scores, everything(task, model)[data.orig_ids(torch.arange(200))], rtol=0, atol=1e-5)
    assert accuracy(scores, data, "test") > 2 / NUM_CLASSES
    found = MODULES[kind]()
    assert load_checkpoint(tmp_path / "parts", found)["epoch"] == EPOCHS
    assert all(map(torch.equal, found.parameters(), model.parameters()))


def scores_of_rank(ctx, path):
    data = DistData.load(path, ctx)
    torch.manual_seed(5)
    found = layerwise(Mean(), data, 30, num_layers=2)
    return data.orig_ids(torch.arange(*data.own_range)), found


def test_two_ranks_compute_what_one_process_does(task):
    torch.manual_seed(5)
    expected = everything(task, Mean())
    for orig_ids, found in run_distributed(2, scores_of_rank, args=(task.path,)):
        torch.testing.assert_close(found, expected[orig_ids], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "num_layers", "message"),
    [
        (Mean(), 0, "^num_layers is 0; expected an integer >= 1"),
        (LayerByLayer(), 3, "^num_layers is 3 but LayerByLayer.num_layers is 2; leave the argument out"),
        (nn.Linear(2, 2), 1, r"^model is called as model\(mfgs, features\) but Linear has forward\("),
        (len, 1, "^builtin_function_or_method has no parameters; layerwise expects a torch.nn.Module"),
    ],
    ids=["none", "another", "signature", "no module"],
)
def test_what_layerwise_cannot_compute_is_refused(task, ctx, model, num_layers, message):
    with pytest.raises(ValueError, match=message):
        layerwise(model, DistData.load(task.path, ctx), num_layers=num_layers)


# ---- one MFG for all layers


def induced(batch):
    """The subgraph among a batch's seeds, as one MFG: edges from other nodes are left out, the others weigh more."""
    (mfg,) = batch.mfgs
    dst = mfg.edge_index()[1]
    kept = mfg.indices < mfg.num_dst
    counts = torch.bincount(dst[kept], minlength=mfg.num_dst)
    weights = (1 / counts.clamp(min=1))[dst[kept]]
    batch.mfgs = [
        dataclasses.replace(
            mfg, indptr=F.pad(counts.cumsum(0), (1, 0)), indices=mfg.indices[kept], src_nodes=mfg.dst_nodes,
            edge_ids=None, edge_weights=weights,
        )
    ]  # fmt: skip
    batch.input_nodes, batch.features = mfg.dst_nodes, batch.features[: mfg.num_dst]
    return batch


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_subgraph_batches_train_are_resumed_and_go_through_layerwise(task, ctx, tmp_path, kind):
    model, whole = resumed(ctx, task.path, lambda: make_model(kind).float(), tmp_path, transform=induced)
    assert all(map(torch.equal, model.parameters(), whole.parameters()))
    data = DistData.load(task.path, ctx)
    assert accuracy(layerwise(model, data, 30), data, "test") > 2 / NUM_CLASSES

"""Models and layers of one's own: what is stated works, what does not fit is one clear line."""

import pytest
import torch
from torch import nn

import fastsample_dist as fsd
from fastsample_dist import DistContext, DistData, DistLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.ops import aggregate
from fastsample_dist.train.inference import layerwise
from fastsample_dist.train.models import GraphSAGE, LayeredModel
from fastsample_dist.train.trainer import Trainer
from tests.train.task import FEATURE_DIM, NUM_CLASSES, make_task


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = make_task(tmp_path_factory.mktemp("task"), 1, dtype="float32").path
    return DistData.load(path, DistContext(LocalCommunicator()))


class MeanLayer(nn.Module):
    """A layer with nothing but forward(mfg, rows)."""

    def __init__(self, in_width, out_width):
        super().__init__()
        self.linear = nn.Linear(2 * in_width, out_width)

    def forward(self, mfg, rows):
        mean = aggregate(mfg.indptr, mfg.indices, rows, reduce="mean")
        return self.linear(torch.cat([rows[: mfg.num_dst], mean], dim=1))


class Plain(nn.Module):
    """A model with nothing but forward(mfgs, features)."""

    def __init__(self, num_layers=2, columns=NUM_CLASSES):
        super().__init__()
        widths = [FEATURE_DIM] + [8] * (num_layers - 1) + [columns]
        self.layers = nn.ModuleList(map(MeanLayer, widths[:-1], widths[1:]))

    def forward(self, mfgs, features):
        for layer, mfg in zip(self.layers, mfgs, strict=False):
            features = layer(mfg, features).relu()
        return features


class Layerwise(Plain):
    """The same with what layerwise needs."""

    in_dim, num_layers = FEATURE_DIM, 2

    def apply_layer(self, number, mfg, rows):
        return self.layers[number](mfg, rows).relu()


def train(model, data, fanouts=(3, 3), **options):
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), data.ctx, **options)
    return trainer.run_epoch(DistLoader(data, fanouts, 50))


# ---- what is stated works


def test_any_module_of_two_arguments_trains(data):
    assert train(Plain(), data).loss > 0


def test_layers_with_forward_alone_make_a_layered_model_with_activation_and_dropout(data):
    layers = [MeanLayer(FEATURE_DIM, 16), MeanLayer(16, NUM_CLASSES)]
    model = LayeredModel(layers, FEATURE_DIM, dropout=0.5)
    seen = []
    layers[1].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[1].detach()))
    assert train(model, data).loss > 0
    zeros = torch.cat(seen).eq(0).float().mean()
    assert (torch.cat(seen) >= 0).all() and zeros > 0.5  # ReLU leaves about half, dropout half of that
    assert layerwise(model, data).shape == (data.num_nodes, NUM_CLASSES)


def test_layers_of_ones_own_stand_beside_those_of_the_package(data):
    sage = GraphSAGE(FEATURE_DIM, 16, NUM_CLASSES, num_layers=2, dropout=0.0)
    model = LayeredModel([MeanLayer(FEATURE_DIM, 16), sage.layers[1]], FEATURE_DIM, dropout=0.0)
    assert train(model, data).loss > 0


def test_a_model_of_ones_own_goes_through_layerwise(data):
    model = Layerwise()
    everything = fsd.NeighborSampler(data.graph, [-1, -1]).sample(torch.arange(data.num_nodes, dtype=torch.int32))
    with torch.no_grad():
        expected = model(everything.mfgs, data.features.fetch(everything.input_nodes))
    torch.testing.assert_close(layerwise(model, data, 30), expected, rtol=0, atol=1e-5)


# ---- what does not fit is refused


def wrong(forward):
    return type("Wrong", (Plain,), {"forward": forward})()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (wrong(lambda self, x: x), r"^model is called as model\(mfgs, features\) but Wrong has forward\(x\)"),
        (
            wrong(lambda self, x, edge_index, weight: x),
            r"^model is called as model\(mfgs, features\) but Wrong has forward\(x, edge_index, weight\); give it that",
        ),
    ],
)
def test_a_forward_of_other_arguments_is_refused_by_the_trainer(data, model, message):
    with pytest.raises(ValueError, match=message):
        train(model, data)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            wrong(lambda self, mfgs, x: [x]),
            r"^Wrong returned list; expected \[50, columns\], one row per seed; return a",
        ),
        (
            Plain(num_layers=1),
            r"^Plain returned shape \(\d+, 4\); expected \[50, columns\], one row per seed; every MFG takes one layer",
        ),
        (
            Plain(columns=3),
            r"^Plain returned shape \(50, 3\) but the partition has 4 classes; build it with 4 columns or more",
        ),
    ],
)
def test_outputs_of_another_shape_are_refused_by_the_trainer(data, model, message):
    with pytest.raises(ValueError, match=message):
        train(model, data)
    if model.layers[-1].linear.out_features == NUM_CLASSES:
        trainer = Trainer(model, torch.optim.Adam(model.parameters()), data.ctx)
        with pytest.raises(ValueError, match=message.split("50")[0]):
            trainer.evaluate(DistLoader(data, [3, 3], 50, split="val"))


def test_a_loss_of_ones_own_may_have_other_columns(data):
    def loss(outputs, labels):
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    assert train(Plain(columns=7), data, loss_fn=loss).loss > 0


def test_a_number_of_layers_that_is_not_that_of_the_fanouts_is_refused(data):
    with pytest.raises(ValueError, match="fanouts has 3 entries but the model has 2 layers; pass one fanout per layer"):
        train(GraphSAGE(FEATURE_DIM, 16, NUM_CLASSES, num_layers=2), data, fanouts=(3, 3, 3))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "^layers is empty; expected at least one layer"),
        ([nn.Linear(8, 4)], r"^layer 0 is called as layer\(mfg, rows\) but Linear"),
        ([MeanLayer(8, 8), torch.relu], "^layer 1 is builtin_function_or_method; expected a torch.nn.Module called as"),
    ],
)
def test_layers_that_cannot_be_called_are_refused(layers, message):
    with pytest.raises(ValueError, match=message):
        LayeredModel(layers, FEATURE_DIM, dropout=0.0)


class AllRows(MeanLayer):
    def forward(self, mfg, rows):
        return self.linear(torch.cat([rows, rows], dim=1))


def test_a_layer_that_returns_rows_of_the_sources_is_refused(data):
    model = LayeredModel([AllRows(FEATURE_DIM, 8), MeanLayer(8, NUM_CLASSES)], FEATURE_DIM, dropout=0.0)
    message = r"layer 0 \(AllRows\) returned shape \(\d+, 8\); expected \[\d+, columns\], one row per destination"
    with pytest.raises(ValueError, match=message):
        train(model, data)
    with pytest.raises(ValueError, match=message):
        layerwise(model, data, 30)


class ManyRows(Layerwise):
    def apply_layer(self, number, mfg, rows):
        return torch.zeros(mfg.num_dst + 1, NUM_CLASSES)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Plain(), r"^Plain has no num_layers, the number of its MFGs; add it, or pass num_layers to layerwise"),
        (type("Two", (Layerwise,), {"num_layers": 0})(), r"Two.num_layers is 0; expected an integer >= 1"),
        (
            type("Swapped", (Layerwise,), {"apply_layer": lambda self, rows: rows})(),
            r"layerwise calls model.apply_layer\(number, mfg, rows\) but Swapped has apply_layer\(rows\); give it that",
        ),
        (type("Wide", (Layerwise,), {"in_dim": 9})(), "features of 8 columns but the model has in_dim 9"),
        (
            ManyRows(),
            r"ManyRows.apply_layer\(0, ...\) returned shape \(201, 4\); expected \[200, columns\], one row per",
        ),
    ],
)
def test_models_that_layerwise_cannot_use_are_refused(data, model, message):
    with pytest.raises(ValueError, match=message):
        layerwise(model, data)

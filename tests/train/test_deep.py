"""Residual connections and LayerNorm: the formula with its gradients, layer-wise inference, and 8 layers that train."""

import pytest
import torch
import torch.nn.functional as F

from fastsample_dist import MFG, DistContext, DistData, NeighborSampler
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.ops import reference
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.train.inference import layerwise
from fastsample_dist.train.models import GraphSAGE, LayeredModel, PinSAGE
from tests.train.task import FEATURE_DIM, KINDS, NUM_CLASSES, make_model, make_task
from tests.train.test_edge_weights import gradients, weighted_batch
from tests.train.test_models import SEED, STEP, make_batch

NORMED = [kind for kind in KINDS if kind != "pinsage"]  # PinSAGE has a norm of its own and refuses others
OPTIONS = [(kind, *chosen) for kind in NORMED for chosen in ((True, None), (False, "layer"), (True, "layer"))]
OPTIONS.append(("pinsage", True, None))
DEEP = {"residual": True, "norm": "layer"}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 1)


def deep(kind):
    """The options that the kind takes."""
    return DEEP if kind in NORMED else {"residual": True}


def oracle(model, mfgs, rows, norm, residual):
    """The formula, layer by layer."""
    for number, (layer, mfg) in enumerate(zip(model.layers, mfgs, strict=True)):
        own, rows = rows[: mfg.num_dst], layer(mfg, rows)
        if number + 1 == len(model.layers):
            return rows
        if norm is not None:
            of_layer = model.norms[number]
            centred = rows - rows.mean(1, keepdim=True)
            rows = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * of_layer.weight + of_layer.bias
        if isinstance(model, PinSAGE):
            rows = rows.relu() / torch.linalg.vector_norm(rows.relu(), dim=1, keepdim=True).clamp(min=1e-12)
        rows = reference.act_dropout(rows, mfg.dst_orig_ids, (SEED, STEP, number), p=model.dropout)
        if residual and own.shape == rows.shape:
            rows = rows + own
    raise AssertionError("a model has a last layer")


@pytest.mark.parametrize(("kind", "residual", "norm"), OPTIONS)
def test_the_formula_with_its_gradients(kind, residual, norm):
    batch = make_batch(fanouts=(3, 3, 2))
    torch.manual_seed(0)
    model = KINDS[kind](FEATURE_DIM, NUM_CLASSES, NUM_CLASSES, 3, residual=residual, norm=norm).double()
    for own in model.norms or []:
        torch.nn.init.normal_(own.weight)
        torch.nn.init.normal_(own.bias)
    batch.features.requires_grad_()
    found, expected = (
        model(batch.mfgs, batch.features),
        oracle(model, batch.mfgs, batch.features, norm, residual),
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found, expected = (gradients(model, logits, batch.features) for logits in (found, expected))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("row_sums", [False, True], ids=["own sums", "row sums"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_of_a_deep_model(kind, row_sums):
    """Weighted edges, three layers, features and all parameters."""
    batch = weighted_batch(False, row_sums=row_sums, seeds=(30, 33), fanouts=(2, 2, 1))
    model = KINDS[kind](FEATURE_DIM, 4, 2, 3, 0.3, **deep(kind)).double()
    for name, parameter in model.named_parameters():
        if kind == "pinsage" and name.endswith("bias"):  # rows of zeros lie at a kink of the ReLU of messages without
            torch.nn.init.normal_(parameter)
    names = [name for name, _ in model.named_parameters()]

    def forward(rows, *parameters):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (batch.mfgs, rows))

    leaves = [tensor.detach().clone().requires_grad_() for tensor in (batch.features, *model.parameters())]
    assert torch.autograd.gradcheck(forward, leaves, fast_mode=True)


def test_the_options_draw_no_parameters():
    plain, deep = (make_model("gat", num_layers=3, **options).state_dict() for options in ({}, DEEP))
    assert all(torch.equal(deep[name], tensor) for name, tensor in plain.items())
    assert [name for name in deep if name not in plain] == [
        f"norms.{number}.{of}" for number in range(2) for of in ("weight", "bias")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_gives_zero_gradients(kind):
    batch, model = make_batch(seeds=[], fanouts=(3, 3, 2)), make_model(kind, num_layers=3, **deep(kind))
    assert all(gradient.count_nonzero() == 0 for gradient in gradients(model, model(batch.mfgs, batch.features)))


def test_autocast_keeps_rows_in_16_bits():
    batch = make_batch(fanouts=(3, 3, 2), dtype=torch.float32)
    model = make_model("sage", num_layers=3, dropout=0.0, **DEEP).float()
    exact, widths = model(batch.mfgs, batch.features), []
    model.norms[1].register_forward_hook(lambda *found: widths.append(found[2].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        found = model(batch.mfgs, batch.features)
    assert widths == [torch.bfloat16] and (found - exact).norm() <= 0.05 * exact.norm()


def test_layerwise_inference_equals_a_batch_of_all_nodes(task):
    model = make_model("sage", num_layers=4, **DEEP)
    data = DistData.load(task.path, DistContext(LocalCommunicator()))
    found = torch.empty(200, NUM_CLASSES, dtype=torch.float64)
    found[data.orig_ids(torch.arange(200))] = layerwise(model, data, 64)
    batch = NeighborSampler(task.graph, [-1] * 4).sample(torch.arange(200, dtype=torch.int32))
    with torch.no_grad():
        expected = model.eval()(batch.mfgs, task.features[batch.input_nodes.long()])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def last_loss(task, **options):
    """Of 30 steps of 8 layers of GraphSAGE on the whole graph as one square MFG; asserts finite gradients."""
    torch.manual_seed(0)
    graph, model = task.graph, GraphSAGE(FEATURE_DIM, 16, NUM_CLASSES, 8, 0.5, **options)
    optimizer, nodes = torch.optim.Adam(model.parameters(), lr=0.02), torch.arange(200, dtype=torch.int32)
    for step in range(30):
        mfg = MFG(graph.indptr, graph.indices, nodes, 200, draw=DrawKey(SEED, step))
        loss = F.cross_entropy(model([mfg], task.features.float()), task.labels)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    return loss.item()


def test_eight_layers_train_with_residual_and_norm_alone(task):
    """Plain layers end at the loss of a guess among 4 classes, 1.39."""
    assert last_loss(task) > 1.3
    assert last_loss(task, **DEEP) < 0.3


@pytest.mark.parametrize("kind", NORMED)
def test_another_norm_is_refused(kind):
    with pytest.raises(ValueError, match=r"^norm is 'batch'; expected 'layer', or None for none\.$"):
        make_model(kind, norm="batch")


def test_pinsage_refuses_a_norm():
    with pytest.raises(ValueError, match=r"^norm is 'layer', but PinSAGE divides its hidden rows by their norm; leave"):
        make_model("pinsage", norm="layer")


def test_another_number_of_norms_is_refused():
    layers = make_model("sage", num_layers=3).layers
    with pytest.raises(ValueError, match=r"^norms has 3 entries for 3 layers; pass one for every layer but the last"):
        LayeredModel(list(layers), FEATURE_DIM, 0.5, norms=[torch.nn.LayerNorm(16)] * 3)

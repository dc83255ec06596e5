"""Coefficients of a sampler (MFG.edge_weights, row_sums), rows that hold their destination, one MFG for all layers.

The oracle is dense: a matrix [num_dst, num_src] of coefficients, multiplied with the source rows in float64.
"""

import dataclasses
import itertools
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from fastsample_dist import MFG, MiniBatch
from fastsample_dist.ops import reference
from fastsample_dist.sampling.mfg import DrawKey
from tests.grids import grid
from tests.train.task import FEATURE_DIM, KINDS, NUM_CLASSES, make_model
from tests.train.test_models import SEED, STEP, make_batch

FLAGS = pytest.mark.parametrize("includes_dst", [False, True], ids=["apart", "included"])
FLAG_PAIRS = list(itertools.product([False, True], repeat=2))
SUMS = pytest.mark.parametrize("row_sums", [False, True], ids=["own sums", "row sums"])


def with_destinations(mfg):
    """The MFG with one more edge in every row, in front: from the destination to itself."""
    ends = mfg.indptr.tolist()
    rows = [torch.cat([torch.tensor([v]), mfg.indices[ends[v] : ends[v + 1]]]) for v in range(mfg.num_dst)]
    indptr = mfg.indptr + torch.arange(mfg.num_dst + 1)
    return dataclasses.replace(mfg, indptr=indptr, indices=torch.cat(rows).to(mfg.indices.dtype), includes_dst=True)


def weighted_batch(includes_dst, weighted=True, row_sums=False, **options):
    """A batch of a multigraph, some of its rows without an in-edge, with drawn coefficients and sums of rows."""
    batch = make_batch(**options)
    torch.manual_seed(2)
    if includes_dst:
        batch.mfgs = list(map(with_destinations, batch.mfgs))
    if weighted:
        batch.mfgs = [dataclasses.replace(m, edge_weights=torch.rand(m.num_edges).double() + 0.1) for m in batch.mfgs]
    if row_sums:
        batch.mfgs = [dataclasses.replace(m, row_sums=torch.rand(m.num_dst).double() * 3 + 4) for m in batch.mfgs]
    return batch


def square_batch(weighted=True):
    """A subgraph: one MFG whose destinations are all of its sources."""
    torch.manual_seed(3)
    indptr = torch.tensor([0, 2, 2, 5, 6, 9])
    indices = torch.tensor([1, 2, 0, 3, 3, 3, 4, 0, 1], dtype=torch.int32)
    nodes = torch.tensor([40, 7, 12, 3, 9], dtype=torch.int32)
    weights = torch.rand(9).double() if weighted else None
    mfg = MFG(indptr, indices, nodes, 5, draw=DrawKey(SEED, STEP), edge_weights=weights)
    batch = MiniBatch(seeds=nodes, mfgs=[mfg], input_nodes=nodes, draw=mfg.draw)
    batch.features = torch.randn(5, FEATURE_DIM, dtype=torch.float64)
    return batch


def scatter(mfg, values):
    """[num_dst, num_src] sums of the edges' values; parallel edges add up."""
    src, dst = mfg.edge_index()
    return torch.zeros(mfg.num_dst, mfg.num_src, dtype=torch.float64).index_put((dst, src), values, accumulate=True)


def own(mfg):
    return torch.eye(mfg.num_dst, mfg.num_src, dtype=torch.float64)


def coefficients_of(mfg):
    return torch.ones(mfg.num_edges, dtype=torch.float64) if mfg.edge_weights is None else mfg.edge_weights


def neighbour_shares(mfg):
    """Without the edges of destinations from themselves; rows that are empty stay 0."""
    matrix = scatter(mfg, coefficients_of(mfg))
    left_out = matrix * own(mfg) if mfg.includes_dst else torch.zeros_like(matrix)
    sums = matrix.sum(1, keepdim=True) if mfg.row_sums is None else mfg.row_sums.unsqueeze(1)
    matrix, sums = matrix - left_out, sums - left_out.sum(1, keepdim=True)
    return matrix / torch.where(matrix.sum(1, keepdim=True) == 0, 1, sums)


def sage_oracle(layer, mfg, x):
    matrix = neighbour_shares(mfg)
    return F.linear(torch.cat([own(mfg) @ x, matrix @ x], 1), layer.linear.weight, layer.linear.bias)


def gcn_oracle(layer, mfg, x):
    matrix = scatter(mfg, coefficients_of(mfg)) + (0 if mfg.includes_dst else own(mfg))
    sums = matrix.sum(1, keepdim=True)
    if mfg.row_sums is not None:
        sums = (mfg.row_sums + (0 if mfg.includes_dst else 1)).unsqueeze(1)
    matrix = matrix / torch.where(sums == 0, 1, sums)
    return F.linear(matrix @ x, layer.linear.weight, layer.linear.bias)


def gat_oracle(layer, mfg, x):
    h = F.linear(x, layer.linear.weight).unflatten(1, (layer.num_heads, -1))
    (src, dst), heads = mfg.edge_index(), []
    for head in range(layer.num_heads):
        to_source, to_own = h[:, head] @ layer.attention[0, head], h[:, head] @ layer.attention[1, head]
        terms = coefficients_of(mfg) * F.leaky_relu(to_source[src] + to_own[dst], 0.2).exp()
        own_terms = F.leaky_relu(to_source + to_own, 0.2).exp().diag()[: mfg.num_dst] * (0 if mfg.includes_dst else 1)
        total = (scatter(mfg, terms) + own_terms).sum(1, keepdim=True)
        heads.append((scatter(mfg, terms) + own_terms) / torch.where(total == 0, 1, total) @ h[:, head])
    return (torch.stack(heads).mean(0) if layer.average else torch.cat(heads, 1)) + layer.bias


def pinsage_oracle(layer, mfg, x):
    matrix = neighbour_shares(mfg)
    messages = F.relu(F.linear(x, layer.message.weight, layer.message.bias))
    return F.linear(torch.cat([matrix @ messages, own(mfg) @ x], 1), layer.linear.weight, layer.linear.bias)


ORACLES = {"sage": sage_oracle, "gcn": gcn_oracle, "gat": gat_oracle, "pinsage": pinsage_oracle}


def oracle(kind, model, mfgs, x, layer_of=lambda number: number):
    """The model's logits; `layer_of` gives the number in the key of a layer's dropout."""
    for number, (layer, mfg) in enumerate(zip(model.layers, mfgs, strict=True)):
        x = ORACLES[kind](layer, mfg, x)
        if number + 1 < len(model.layers):
            x = F.normalize(F.relu(x), dim=1) if kind == "pinsage" else x
            x = reference.act_dropout(x, mfg.dst_orig_ids, (SEED, STEP, layer_of(number)), p=model.dropout)
    return x


def gradients(model, logits, *more):
    """Of the parameters and of `more`, for a loss in which every logit counts differently."""
    loss = (logits * torch.linspace(-1, 2, logits.numel(), dtype=torch.float64).view_as(logits)).sum()
    return torch.autograd.grad(loss, [*model.parameters(), *more])


@FLAGS
@SUMS
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "plain"])
@pytest.mark.parametrize("kind", KINDS)
def test_models_equal_the_dense_oracle(kind, weighted, row_sums, includes_dst):
    batch, model = weighted_batch(includes_dst, weighted, row_sums), make_model(kind)
    batch.features.requires_grad_()
    found, expected = model(batch.mfgs, batch.features), oracle(kind, model, batch.mfgs, batch.features)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found, expected = (gradients(model, logits, batch.features) for logits in (found, expected))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("row_sums", "includes_dst"), grid(FLAG_PAIRS, gate=[(False, False), (True, True)], several=True)
)
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_of_rows_coefficients_and_parameters(kind, row_sums, includes_dst):
    batch = weighted_batch(includes_dst, row_sums=row_sums, seeds=range(30, 42, 3), fanouts=(3,))
    (mfg,), layer = batch.mfgs, make_model(kind, num_layers=1).layers[0]
    names = [name for name, _ in layer.named_parameters()]

    def forward(rows, weights, *parameters):
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, named, (dataclasses.replace(mfg, edge_weights=weights), rows))

    arguments = (batch.features, mfg.edge_weights, *layer.parameters())
    assert torch.autograd.gradcheck(forward, [tensor.detach().clone().requires_grad_() for tensor in arguments])


@FLAGS
@pytest.mark.parametrize("kind", KINDS)
def test_row_sums_of_what_is_there_change_nothing(kind, includes_dst):
    batch, model = weighted_batch(includes_dst), make_model(kind)
    summed = [dataclasses.replace(mfg, row_sums=scatter(mfg, mfg.edge_weights).sum(1)) for mfg in batch.mfgs]
    expected = model(batch.mfgs, batch.features)
    torch.testing.assert_close(model(summed, batch.features), expected, rtol=1e-12, atol=1e-12)


def test_a_softmax_does_not_read_row_sums():
    batch, model = weighted_batch(False, row_sums=True), make_model("gat")
    without = [dataclasses.replace(mfg, row_sums=None) for mfg in batch.mfgs]
    assert torch.equal(model(batch.mfgs, batch.features), model(without, batch.features))


@pytest.mark.parametrize("kind", KINDS)
def test_an_edge_acts_as_many_times_as_its_coefficient_says(kind):
    """Whole coefficients equal parallel edges, one of 0 equals no edge, and 1 everywhere changes nothing."""
    batch, model = make_batch(), make_model(kind, num_layers=1)
    (mfg, _) = batch.mfgs
    times = torch.arange(mfg.num_edges) % 3
    rows = [mfg.indices[first:end].repeat_interleave(times[first:end]) for first, end in pairwise(mfg.indptr.tolist())]
    indptr = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    repeated = dataclasses.replace(mfg, indptr=indptr, indices=torch.cat(rows), edge_ids=None)
    found = model([dataclasses.replace(mfg, edge_weights=times.double())], batch.features)
    torch.testing.assert_close(found, model([repeated], batch.features), rtol=1e-12, atol=1e-12)
    ones = dataclasses.replace(mfg, edge_weights=torch.ones(mfg.num_edges))
    torch.testing.assert_close(model([ones], batch.features), model([mfg], batch.features), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_stored_values_are_not_applied(kind):
    batch, model = make_batch(), make_model(kind)
    valued = [dataclasses.replace(mfg, edge_values=torch.rand(mfg.num_edges)) for mfg in batch.mfgs]
    assert torch.equal(model(valued, batch.features), model(batch.mfgs, batch.features))


def test_a_ladies_batch_is_the_product_of_its_matrices():
    """Rows with their destination and row-normalised coefficients: the plain product, no degree anywhere."""
    batch, model = weighted_batch(True), make_model("gcn", num_layers=1)
    (mfg, _) = batch.mfgs
    sums = scatter(mfg, mfg.edge_weights).sum(1)
    mfg = dataclasses.replace(mfg, edge_weights=mfg.edge_weights / sums[mfg.edge_index()[1]])
    expected = F.linear(
        scatter(mfg, mfg.edge_weights) @ batch.features, model.layers[0].linear.weight, model.layers[0].linear.bias
    )
    torch.testing.assert_close(model([mfg], batch.features), expected, rtol=1e-12, atol=1e-12)


@FLAGS
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_gives_zero_gradients(kind, includes_dst):
    batch, model = weighted_batch(False, seeds=[]), make_model(kind)
    batch.mfgs = [dataclasses.replace(mfg, includes_dst=includes_dst) for mfg in batch.mfgs]
    found = gradients(model, model(batch.mfgs, batch.features))
    assert all(gradient.count_nonzero() == 0 for gradient in found)


@FLAGS
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_stays_close_to_float32(kind, includes_dst):
    batch, model = weighted_batch(includes_dst, dtype=torch.float32), make_model(kind, dropout=0.0).float()
    exact = model(batch.mfgs, batch.features)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(batch.mfgs, batch.features)
    assert found.dtype == torch.bfloat16
    assert (found - exact).norm() <= 0.05 * exact.norm()


# ---- one MFG for all layers


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "plain"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_square_mfg_serves_every_layer(kind, weighted, num_layers):
    batch, model = square_batch(weighted), make_model(kind, num_layers=num_layers)
    found = model(batch.mfgs, batch.features)
    expected = oracle(kind, model, batch.mfgs * num_layers, batch.features)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found, expected = gradients(model, found), gradients(model, expected)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["sage", "gcn"])
def test_layers_that_share_an_mfg_share_what_follows_from_its_edges(kind):
    batch, model = square_batch(), make_model(kind, num_layers=3)
    (mfg,) = batch.mfgs
    with torch.inference_mode():
        model(batch.mfgs, batch.features)
    assert mfg.derived == {}  # a tensor of inference mode could not be saved for a gradient
    gradients(model, model(batch.mfgs, batch.features))
    ((key, kept),) = mfg.derived.items()
    model(batch.mfgs, batch.features)
    assert mfg.derived[key] is kept
    learnt = dataclasses.replace(mfg, edge_weights=mfg.edge_weights.clone().requires_grad_())
    for _ in range(2):  # the gradient of the first pass has freed what it went through
        gradients(model, model([learnt], batch.features), learnt.edge_weights)
    assert learnt.derived == {}


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_of_a_shared_mfg_is_keyed_by_layer(kind):
    """The oracle draws a mask per layer; with a single key for all layers the logits would differ."""
    batch, model = square_batch(), make_model(kind, num_layers=3)
    found = model(batch.mfgs, batch.features)
    torch.testing.assert_close(found, oracle(kind, model, batch.mfgs * 3, batch.features), rtol=1e-12, atol=1e-12)
    wrong = oracle(kind, model, batch.mfgs * 3, batch.features, layer_of=lambda number: 0)
    assert not torch.allclose(found, wrong)


@pytest.mark.parametrize(
    ("fanouts", "num_layers", "message"),
    [
        (
            (4,),
            2,
            r"^the batch has one MFG, of \d+ source and 15 destination nodes, but the model has 2 layers; pass one",
        ),
        ((4, 3), 3, "^fanouts has 2 entries but the model has 3 layers; pass one fanout per layer"),
        ((4, 3), 1, "^fanouts has 2 entries but the model has 1 layers; pass one fanout per layer"),
    ],
)
def test_another_number_of_mfgs_is_refused(fanouts, num_layers, message):
    batch, model = make_batch(fanouts=fanouts), make_model("sage", num_layers=num_layers)
    with pytest.raises(ValueError, match=message):
        model(batch.mfgs, batch.features)


def test_no_mfg_is_refused():
    batch = square_batch()
    with pytest.raises(ValueError, match="^fanouts has 0 entries but the model has 2 layers"):
        make_model("sage")([], batch.features)


def test_the_number_of_classes_is_that_of_the_seeds():
    batch, model = square_batch(), make_model("sage", num_layers=3)
    assert model(batch.mfgs, batch.features).shape == (batch.seeds.numel(), NUM_CLASSES)

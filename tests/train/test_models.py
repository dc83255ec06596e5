"""GraphSAGE, GCN, GAT and PinSAGE against slow oracles: loops over nodes, edges and heads in plain torch, float64."""

import pytest
import torch
import torch.nn.functional as F

from fastsample_dist.ops import SampleSpec, reference
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.train.metrics import seed_loss
from fastsample_dist.train.models import GAT, GCN, GraphSAGE, PinSAGE
from tests.ops.graphs import random_csc
from tests.train.task import FEATURE_DIM, KINDS, NUM_CLASSES, make_model

SEED, STEP = 11, 5


def make_batch(seeds=range(30, 60, 2), fanouts=(4, 3), dtype=torch.float64, **options):
    """A sampled batch of a multigraph in which a quarter of the nodes, and some seeds, have no in-edge."""
    graph = random_csc(num_edges=400)
    spec = SampleSpec(fanouts=fanouts, rng_seed=SEED, **options)
    batch = NeighborSampler.from_spec(graph, spec).sample(list(seeds), STEP)
    torch.manual_seed(1)
    batch.features = torch.randn(60, FEATURE_DIM, dtype=dtype)[batch.input_nodes.long()]
    batch.labels = batch.seeds.long() % NUM_CLASSES
    return batch


def neighbors(mfg, v):
    return mfg.indices[int(mfg.indptr[v]) : int(mfg.indptr[v + 1])].long().tolist()


def sage_oracle(layer, mfg, x):
    return F.linear(
        reference.aggregate_concat(mfg.indptr, mfg.indices, x, reduce="mean"), layer.linear.weight, layer.linear.bias
    )


def gcn_oracle(layer, mfg, x):
    means = [torch.stack([x[v], *(x[u] for u in neighbors(mfg, v))]).mean(0) for v in range(mfg.num_dst)]
    return F.linear(torch.stack(means), layer.linear.weight, layer.linear.bias)


def gat_oracle(layer, mfg, x):
    h = F.linear(x, layer.linear.weight).unflatten(1, (layer.num_heads, -1))
    out = []
    for v in range(mfg.num_dst):
        heads = []
        for head in range(layer.num_heads):
            sources = [*neighbors(mfg, v), v]
            to_source, to_own = layer.attention[0, head], layer.attention[1, head]
            scores = torch.stack([h[u, head] @ to_source + h[v, head] @ to_own for u in sources])
            alpha = F.leaky_relu(scores, 0.2).softmax(0)
            heads.append(sum(a * h[u, head] for a, u in zip(alpha, sources, strict=True)))
        out.append(torch.stack(heads).mean(0) if layer.average else torch.cat(heads))
    return torch.stack(out) + layer.bias


def pinsage_oracle(layer, mfg, x):
    messages = F.relu(F.linear(x, layer.message.weight, layer.message.bias))
    out = []
    for v in range(mfg.num_dst):
        edges = slice(int(mfg.indptr[v]), int(mfg.indptr[v + 1]))
        visits = torch.ones(mfg.num_edges).double() if mfg.edge_weights is None else mfg.edge_weights.double()
        alpha = visits[edges] / visits[edges].sum()
        total = sum((a * messages[u] for a, u in zip(alpha, neighbors(mfg, v), strict=True)), torch.zeros(16).double())
        out.append(torch.cat([total, x[v]]))
    return F.linear(torch.stack(out), layer.linear.weight, layer.linear.bias)


ORACLES = {"sage": sage_oracle, "gcn": gcn_oracle, "gat": gat_oracle, "pinsage": pinsage_oracle}


def oracle(kind, model, batch):
    x = batch.features
    for number, (layer, mfg) in enumerate(zip(model.layers, batch.mfgs, strict=True)):
        x = ORACLES[kind](layer, mfg, x)
        if number + 1 < len(model.layers):
            p = model.dropout if model.training else 0.0
            if kind == "pinsage":
                x = torch.stack([row / row.norm().clamp_min(1e-12) for row in F.relu(x)])
            x = reference.act_dropout(x, mfg.dst_orig_ids, (SEED, STEP, number), p=p)
    return x


def loss_and_gradients(model, batch, logits):
    model.zero_grad()
    loss = seed_loss(logits, batch.labels, batch.seeds.numel())
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_equal_the_oracle(kind, training):
    batch, model = make_batch(), make_model(kind).train(training)
    logits, expected = model(batch.mfgs, batch.features), oracle(kind, model, batch)
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    found = loss_and_gradients(model, batch, logits)
    torch.testing.assert_close(found, loss_and_gradients(model, batch, expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_layers", [1, 3])
def test_other_depths_equal_the_oracle(kind, num_layers):
    batch, model = make_batch(fanouts=(3, 2, 2)[:num_layers]), make_model(kind, num_layers=num_layers)
    torch.testing.assert_close(model(batch.mfgs, batch.features), oracle(kind, model, batch), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"replace": True}, {"method": "labor"}], ids=["replaced", "labor"])
def test_batches_of_other_methods_equal_the_oracle(kind, options):
    """Edges that come twice; rows that have in-edges in the graph but none in the batch."""
    batch, model = make_batch(fanouts=(2, 1), **options), make_model(kind)
    if "method" in options:
        degrees = random_csc(num_edges=400).in_degrees()
        assert all(((mfg.indptr.diff() == 0) & (degrees[mfg.dst_nodes.long()] > 0)).any() for mfg in batch.mfgs)
    logits, expected = model(batch.mfgs, batch.features), oracle(kind, model, batch)
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    found = loss_and_gradients(model, batch, logits)
    torch.testing.assert_close(found, loss_and_gradients(model, batch, expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_features_receive_the_oracles_gradient(kind):
    batch, model = make_batch(), make_model(kind)
    gradients = []
    for forward in (lambda: model(batch.mfgs, batch.features), lambda: oracle(kind, model, batch)):
        batch.features = batch.features.detach().requires_grad_()
        seed_loss(forward(), batch.labels, batch.seeds.numel()).backward()
        gradients.append(batch.features.grad)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_changes_the_logits_in_training_only(kind):
    batch = make_batch()
    wet, dry = make_model(kind, dropout=0.5), make_model(kind, dropout=0.0)
    assert not torch.equal(wet(batch.mfgs, batch.features), dry(batch.mfgs, batch.features))
    assert torch.equal(wet.eval()(batch.mfgs, batch.features), dry.eval()(batch.mfgs, batch.features))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_empty_batch_gives_zero_gradients(kind, dtype):
    batch, model = make_batch(seeds=[], dtype=dtype), make_model(kind).to(dtype)
    logits = model(batch.mfgs, batch.features)
    seed_loss(logits, batch.labels, 7).backward()
    assert logits.shape == (0, NUM_CLASSES)
    assert all(parameter.grad.count_nonzero() == 0 for parameter in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_gives_zero_gradients_under_autocast(kind):
    batch, model = make_batch(seeds=[], dtype=torch.float32), make_model(kind).float()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch.mfgs, batch.features)
    seed_loss(logits, batch.labels, 7).backward()
    assert all(parameter.grad.count_nonzero() == 0 for parameter in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_keeps_rows_in_bfloat16_and_stays_close_to_float32(kind):
    """Of these parameters rounding turns no unit of PinSAGE on or off, at which gradients would jump."""
    batch, model = make_batch(dtype=torch.float32), make_model(kind, seed=1).float()
    exact = loss_and_gradients(model, batch, model(batch.mfgs, batch.features))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch.mfgs, batch.features)
        from_bfloat16 = model(batch.mfgs, batch.features.bfloat16())
    assert logits.dtype == torch.bfloat16 and torch.equal(logits, from_bfloat16)
    found = loss_and_gradients(model, batch, logits)
    for close, reference_value in zip(found, exact, strict=True):  # bfloat16 has 8 bits: 0.4 % per rounding
        assert (close - reference_value).norm() <= 0.05 * reference_value.norm()


def test_attention_survives_scores_beyond_the_range_of_exp():
    batch, model = make_batch(), make_model("gat", num_layers=2)
    with torch.no_grad():
        for layer in model.layers:
            layer.attention *= 1e4
    assert model(batch.mfgs, batch.features).isfinite().all()


@pytest.mark.parametrize("num_heads", [1, 2])
def test_gradients_of_attention_have_the_strides_of_its_vectors(num_heads):
    """Of others, which mean the same where there is one head, DDP warns on every rank."""
    model, batch = make_model("gat", num_heads=num_heads), make_batch()
    loss_and_gradients(model, batch, model(batch.mfgs, batch.features))
    assert all(p.grad.stride() == p.stride() for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_fanouts_are_refused(kind):
    batch, model = make_batch(), make_model(kind, num_layers=3)
    message = "fanouts has 2 entries but the model has 3 layers; pass one fanout per layer."
    with pytest.raises(ValueError, match=message):
        model(batch.mfgs, batch.features)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (lambda x: x[:, :5], r"features has shape \(\d+, 5\) but the model has in_dim 8"),
        (lambda x: x[:-1], r"features has \d+ rows but mfgs\[0\] has \d+ source nodes"),
    ],
)
def test_features_that_do_not_fit_are_refused(features, message):
    batch, model = make_batch(), make_model("sage")
    with pytest.raises(ValueError, match=message):
        model(batch.mfgs, features(batch.features))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GraphSAGE(8, 16, 4, 0), "num_layers is 0; expected an integer from 1 to 65536"),
        (lambda: GCN(0, 16, 4), "in_dim is 0; expected an integer >= 1"),
        (lambda: GraphSAGE(8, 16, 4, dropout=1.0), "dropout is 1.0; expected a probability"),
        (lambda: GAT(8, 18, 4, num_heads=4), "num_heads is 4 and hidden_dim 18"),
        (lambda: GAT(8, 16, 4, num_heads=0), "num_heads is 0; expected an integer >= 1"),
        (lambda: GAT(8, 16, 4, num_heads=2.0), "num_heads is 2.0; expected an integer >= 1"),
        (lambda: GAT(8, "16", 4), "hidden_dim is '16'; expected an integer >= 1"),
        (lambda: GCN(8, 32 / 2, 4), "hidden_dim is 16.0; expected an integer >= 1"),
        (lambda: PinSAGE(None, 16, 4), "in_dim is None; expected an integer >= 1"),
        (lambda: GraphSAGE(8, 16, 4, True), "num_layers is True; expected an integer from 1 to"),
        (lambda: GraphSAGE(8, 16, 4, dropout="0.5"), "dropout is '0.5'; expected a probability"),
        (lambda: GraphSAGE(8, 16, 4, residual="no"), "residual is 'no'; expected True or False"),
    ],
)
def test_wrong_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

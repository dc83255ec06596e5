"""The operators of embedding training against their oracles: exactly where the order of sums is the oracle's."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops.reference import embedding as oracle
from fastsample_dist.testing.statistics import pearson_p

SEED = 2**40 + 7


def _table(weights):
    return ops.alias_tables(torch.tensor([0, len(weights)]), torch.tensor(weights, dtype=torch.float64)).table


def _pairs(num_rows=23, num_pairs=60, contexts=3, width=37, dtype=torch.float64, shared=True):
    """Rows and pairs; the last row is in none. With `shared` a row may be centre and context."""
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn(num_rows, width, generator=generator, dtype=torch.float64).to(dtype)
    split = num_rows - 1 if shared else num_rows // 2
    centers = torch.randint(split, (num_pairs,), generator=generator, dtype=torch.int32)
    first = 0 if shared else split
    ids = torch.randint(first, num_rows - 1, (num_pairs, contexts), generator=generator, dtype=torch.int32)
    return rows, centers, ids


@pytest.mark.parametrize("draws", [0, 1, 2, 5])
@pytest.mark.parametrize("num_slots", [1, 2, 13, 1000])
def test_alias_draws_equals_the_oracle(num_slots, draws):
    table = _table([1.0 + (7 * i) % 11 for i in range(num_slots)])
    ids = torch.tensor([0, 1, 2**31, 2**62, 5])
    numbers = torch.tensor([0, 1, 2**32 - 1, 3, 0])
    found = ops.alias_draws(table, ids, numbers, draws, rng_seed=SEED, step=2**33)
    assert torch.equal(found, oracle.alias_draws(table, ids, numbers, draws, rng_seed=SEED, step=2**33))


def test_alias_draws_have_the_law_of_the_weights():
    """False-alarm rate: 1e-4 (one chi-square test, fixed seed)."""
    weights, count = [1.0, 2.0, 0.0, 4.0, 0.5], 40_000
    drawn = ops.alias_draws(_table(weights), torch.arange(count), torch.zeros(count).long(), 2, rng_seed=3, step=0)
    found = torch.bincount(drawn.flatten(), minlength=len(weights)).tolist()
    expected = [2 * count * weight / sum(weights) for weight in weights]
    assert found[2] == 0
    kept = [i for i, weight in enumerate(weights) if weight > 0]
    assert pearson_p([found[i] for i in kept], [expected[i] for i in kept]) > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 4, 37])
def test_random_rows_equals_the_oracle(width, dtype):
    ids = torch.tensor([0, 5, 2**50, 5])
    found = ops.random_rows(ids, width, rng_seed=SEED, bound=0.5 / width, dtype=dtype)
    assert torch.equal(found, oracle.random_rows(ids, width, rng_seed=SEED, bound=0.5 / width, dtype=dtype))
    assert torch.equal(found[1], found[3]) and found.abs().max() <= 0.5 / width


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("contexts", [1, 2, 3, 20])
@pytest.mark.parametrize("width", [1, 31, 32, 64, 128, 531])
def test_skipgram_gradients_are_those_of_autograd(width, contexts, shared):
    rows, centers, ids = _pairs(contexts=contexts, width=width, shared=shared)
    rows = (rows * width**-0.5).requires_grad_()
    expected = oracle.skipgram_loss(rows, centers, ids)
    expected.backward()
    grads, loss = ops.skipgram_gradients(rows.detach(), centers, ids, 1.0)
    assert torch.allclose(grads, rows.grad, rtol=1e-11, atol=1e-11)
    assert torch.allclose(loss, expected.detach(), rtol=1e-8)
    assert grads[-1].eq(0).all()


def test_skipgram_gradients_are_scaled():
    rows, centers, ids = _pairs()
    once, loss = ops.skipgram_gradients(rows, centers, ids)
    quarter, same = ops.skipgram_gradients(rows, centers, ids, 0.25)
    assert torch.equal(quarter, once / 4) and torch.equal(loss, same)


@pytest.mark.parametrize("x", [-800.0, -700.5, -40.0, -1e-9, 0.0, 3.0, 40.0, 800.0])
def test_skipgram_at_large_and_small_products(x):
    rows = torch.tensor([[x], [1.0]], dtype=torch.float64)
    for contexts in ([[1]], [[1, 1]]):
        given = rows.clone().requires_grad_()
        ids = torch.tensor(contexts, dtype=torch.int32)
        expected = oracle.skipgram_loss(given, torch.zeros(1, dtype=torch.int32), ids)
        expected.backward()
        grads, loss = ops.skipgram_gradients(rows, torch.zeros(1, dtype=torch.int32), ids)
        assert torch.allclose(grads, given.grad, rtol=1e-12, atol=1e-300)
        assert torch.allclose(loss, expected.detach(), rtol=1e-8, atol=1e-300)


def test_skipgram_passes_nan_on():
    rows, centers, ids = _pairs(dtype=torch.float32)
    rows[3, 5] = torch.nan
    grads, loss = ops.skipgram_gradients(rows, centers, ids)
    assert loss.isnan() and grads.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [16, 100, 600])
def test_skipgram_is_the_same_on_every_instruction_set_and_thread_count(width, dtype, each_isa):
    rows, centers, ids = _pairs(700, 3000, 6, width, dtype)
    results = []
    for isa in each_isa:
        ops.set_isa(isa)
        results += [ops.skipgram_gradients(rows, centers, ids, 0.1, threads) for threads in (1, 2, 5)]
    assert all(torch.equal(found[i], results[0][i]) for found in results for i in (0, 1))


@pytest.fixture
def each_isa():
    """Instruction sets of this machine; the one in use is set again afterwards."""
    before, found = ops.isa(), []
    for name in ("baseline", "avx2", "avx512"):
        try:
            ops.set_isa(name)
        except ValueError:
            continue
        found.append(name)
    ops.set_isa(before)
    yield found
    ops.set_isa(before)


def test_skipgram_without_pairs():
    grads, loss = ops.skipgram_gradients(
        torch.rand(3, 4), torch.empty(0, dtype=torch.int32), torch.empty(0, 2, dtype=torch.int32)
    )
    assert grads.eq(0).all() and loss == 0


@pytest.mark.parametrize(
    ("centers", "contexts", "message"),
    [
        ([7], [[0]], "skipgram_gradients: .*7"),
        ([0], [[-1]], "skipgram_gradients: .*-1"),
        ([0, 1], [[1]], "contexts has 1 rows; expected 2"),
        ([0], [[]], "0 contexts per pair; expected at least 1"),
    ],
)
def test_skipgram_refuses(centers, contexts, message):
    ids = torch.tensor(contexts, dtype=torch.int32).reshape(len(contexts), -1)
    with pytest.raises(ValueError, match=message):
        ops.skipgram_gradients(torch.rand(3, 4), torch.tensor(centers, dtype=torch.int32), ids)


def _gradients(dtype, width, num_grads=40):
    generator = torch.Generator().manual_seed(2)
    rows = torch.randperm(50, generator=generator)[:12]
    return ops.RowGradients(
        rows,
        torch.randint(11, (num_grads,), generator=generator, dtype=torch.int32),  # the last row has none
        torch.randint(-5, 7, (num_grads,), generator=generator),
        torch.randn(7, width, generator=generator).to(dtype),
        torch.randn(5, width, generator=generator).to(dtype),
    )


ADAM = ops.RowRule.adam(0.01, (0.9, 0.999), 1e-8, 3)


@pytest.mark.parametrize("rule", [ADAM, ops.RowRule(step_size=0.025)], ids=["adam", "sgd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 19, 700])
def test_update_rows_equals_the_oracle(width, dtype, rule, each_isa):
    table = torch.rand(50, width, dtype=dtype)
    moments = (torch.rand(50, width, dtype=dtype), torch.rand(50, width, dtype=dtype)) if rule is ADAM else None
    gradients = _gradients(dtype, width)
    expected = table.clone(), moments and tuple(moment.clone() for moment in moments)
    oracle.update_rows(*expected, gradients, rule)
    for isa in each_isa:
        ops.set_isa(isa)
        found = table.clone(), moments and tuple(moment.clone() for moment in moments)
        ops.update_rows(*found, gradients, rule)
        assert torch.equal(found[0], expected[0])
        assert all(torch.equal(*pair) for pair in zip(found[1] or (), expected[1] or (), strict=True))


def test_update_rows_is_sparse_adam():
    table = torch.rand(9, 5, dtype=torch.float64)
    weight = torch.nn.Parameter(table.clone())
    optimizer = torch.optim.SparseAdam([weight], lr=0.05)
    moments = torch.zeros_like(table), torch.zeros_like(table)
    generator = torch.Generator().manual_seed(6)
    for step in range(1, 6):
        rows = torch.randperm(9, generator=generator)[:4]
        own = torch.randn(4, 5, generator=generator, dtype=torch.float64)
        weight.grad = torch.sparse_coo_tensor(rows.unsqueeze(0), own, (9, 5), check_invariants=True)
        optimizer.step()
        gradients = ops.RowGradients(rows, torch.arange(4, dtype=torch.int32), torch.arange(4), own, own[:0])
        ops.update_rows(table, moments, gradients, ops.RowRule.adam(0.05, (0.9, 0.999), 1e-8, step))
    assert torch.allclose(table, weight.detach(), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": torch.tensor([50])}, "update_rows: .*50"),
        ({"places": torch.tensor([7])}, "update_rows: .*7"),
        ({"places": torch.tensor([-6])}, "update_rows: .*-6"),
        ({"slots": torch.tensor([1], dtype=torch.int32)}, "update_rows: .*1"),
        ({"own": torch.rand(7, 2)}, "own has 2 columns, received 3, the table 3"),
    ],
)
def test_update_rows_refuses(change, message):
    sound = {
        "rows": torch.tensor([4]), "slots": torch.zeros(1, dtype=torch.int32), "places": torch.tensor([0]),
        "own": torch.rand(7, 3), "received": torch.rand(5, 3),
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        ops.update_rows(torch.rand(50, 3), None, ops.RowGradients(**sound | change), ADAM)

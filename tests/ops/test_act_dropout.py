"""act_dropout against the oracle, its statistics, and the contract: the mask belongs to the node."""

import itertools
import weakref

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import library, reference
from fastsample_dist.ops.act_dropout import arguments, drop_threshold
from fastsample_dist.ops.layer_cores import CPU

KEY = (2**41 + 3, 2**32 + 9, 1)


def act_dropout(x, node_ids, p=0.5, activation="relu", key=KEY):
    dropout_key = ops.DropoutKey(rng_seed=key[0], step=key[1], layer=key[2])
    return ops.act_dropout(x, node_ids, dropout_key, p=p, activation=activation)


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("width", "p"), [(1, 0.5), (130, 0.1), (16, 0.0), (300, 0.9)])
def test_act_dropout_equals_the_oracle(isa, activation, dtype, width, p, use_isa):
    use_isa(isa)
    x, node_ids = torch.randn(6, width).to(dtype), torch.randint(0, 2**60, (6,))
    expected = reference.act_dropout(x, node_ids, KEY, p=p, activation=activation)
    assert torch.equal(act_dropout(x, node_ids, p, activation), expected)


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_equals_autograd_through_the_oracle(activation, dtype):
    node_ids, grad = torch.arange(7), torch.randn(7, 140).to(dtype)
    grads = []
    for function in (act_dropout, lambda *a: reference.act_dropout(a[0], a[1], KEY, p=a[2], activation=a[3])):
        torch.manual_seed(0)
        x = torch.randn(7, 140).to(dtype).requires_grad_()
        function(x, node_ids, 0.3, activation).backward(grad)
        grads.append(x.grad)
    assert torch.equal(*grads)


def backward_with_sums(y, grad, node_ids, activation, sums):
    """grad_x; `sums` gets the sum of its rows."""
    spec, grad_x = arguments(y, node_ids, drop_threshold(0.3), activation, list(KEY)), torch.empty_like(y)
    CPU.act_dropout_backward(spec, y, grad, grad_x, sums)
    return grad_x


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_of_the_gradient_are_those_of_its_rows_in_blocks(isa, activation, dtype, use_isa, monkeypatch):
    """With any number of threads, and in runs of whole blocks as in one."""
    use_isa(isa)
    num_rows, width = 256 * 5 + 17, 70
    grad, node_ids = torch.randn(num_rows, width).to(dtype), torch.arange(num_rows)
    y = act_dropout(torch.randn(num_rows, width).to(dtype), node_ids, 0.3, activation)
    plain = backward_with_sums(y, grad, node_ids, activation, None)
    expected = reference.row_sums(plain)
    for threads, run in itertools.product((1, 2, 5), (512, num_rows)):
        monkeypatch.setattr(library, "num_threads", lambda count=threads: count)
        found = torch.zeros_like(expected)
        runs = [tensor.split(run) for tensor in (y, grad, node_ids)]
        rows = [backward_with_sums(*of_run, activation, found) for of_run in zip(*runs, strict=True)]
        assert torch.equal(torch.cat(rows), plain) and torch.equal(found, expected)


def test_no_rows_add_nothing_to_the_sums():
    found = torch.ones(9)
    backward_with_sums(torch.empty(0, 9), torch.empty(0, 9), torch.arange(0), "relu", found)
    assert torch.equal(found, torch.ones(9))


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_gradcheck(activation, p):
    x = torch.randn(4, 20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: act_dropout(x, torch.arange(4), p, activation), (x,))


def test_a_row_keeps_its_mask_in_any_batch():
    x, node_ids = torch.randn(9, 70), torch.arange(100, 109)
    order = torch.randperm(9)
    assert torch.equal(act_dropout(x[order], node_ids[order]), act_dropout(x, node_ids)[order])


def test_masks_differ_by_seed_step_layer_node_and_column():
    ones = torch.ones(1, 256)
    masks = [
        act_dropout(ones, torch.tensor([node]), key=key)
        for node, key in [
            (5, KEY),
            (6, KEY),
            (5 + 2**32, KEY),
            (5, (1, KEY[1], 1)),
            (5, (KEY[0], 2, 1)),
            (5, (*KEY[:2], 2)),
        ]
    ]
    halves = [masks[0][:, :128], masks[0][:, 128:]]
    assert len({tuple(m.flatten().tolist()) for m in masks}) == 6 and not torch.equal(*halves)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_dropped_fraction(p):
    """Binomial over 2,560,000 elements; six standard deviations: false-alarm rate 2e-9."""
    kept = act_dropout(torch.ones(10_000, 256), torch.arange(10_000), p, "identity") > 0
    sigma = (p * (1 - p) / kept.numel()) ** 0.5
    assert abs(float(1 - kept.double().mean()) - p) < 6 * sigma


def test_dropped_elements_are_independent_of_their_neighbours():
    """Correlation with the next column, next row and half a group away; six standard deviations."""
    kept = (act_dropout(torch.ones(4000, 256), torch.arange(4000), 0.5, "identity") > 0).double() * 2 - 1
    pairs = [
        (kept[:, :-1], kept[:, 1:]),
        (kept[:-1], kept[1:]),
        (kept[:, :-16], kept[:, 16:]),
        (kept[:, :128], kept[:, 128:]),
    ]
    assert all(abs(float((a * b).mean())) < 6 / a.numel() ** 0.5 for a, b in pairs)


def test_a_dropped_infinity_is_zero():
    y = act_dropout(torch.full((1, 128), float("inf")), torch.tensor([3]))
    assert not y.isnan().any() and (y == 0).any() and y.isinf().any()


def test_no_rows():
    assert act_dropout(torch.empty(0, 8), torch.empty(0, dtype=torch.int64)).shape == (0, 8)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_a_probability_out_of_range_is_refused(p):
    with pytest.raises(ValueError, match="expected a dropout probability of at least 0 and below 1"):
        act_dropout(torch.rand(2, 2), torch.arange(2), p)


def test_one_id_per_row_is_required():
    with pytest.raises(ValueError, match="node_ids has 3 entries; expected 2"):
        act_dropout(torch.rand(2, 2), torch.arange(3))


def test_the_description_of_a_call_keeps_the_tensors_that_it_addresses():
    node_ids, bias = torch.arange(5), torch.ones(3)
    kept = [weakref.ref(node_ids), weakref.ref(bias)]
    spec = arguments(torch.ones(5, 3), node_ids, 0, "relu", list(KEY), bias)
    del node_ids, bias
    assert all(tensor() is not None for tensor in kept) and spec.node_ids == kept[0]().data_ptr()

"""sage_layer against the operators it stands for: exactly where sums are exact, by gradcheck, and by shape."""

import sys

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import reference
from fastsample_dist.ops.sage_layer import padded_size
from tests.ops.graphs import random_mfg

KEY = ops.DropoutKey(rng_seed=2**41 + 3, step=9, layer=1)


def whole_numbers(*shape, dtype=torch.float32, low=-3, high=4):
    """Small multiples of 4 for every shape: sums of a few products of them are exact in any order."""
    return torch.randint(low, high, shape).to(dtype) * 4


def layer_inputs(dtype, num_dst=40, num_src=70, width=6, out_width=9):
    """In-degrees are 0, 1, 2 and 4, so that means of whole numbers are exact too."""
    degrees = torch.tensor([0, 1, 2, 4]).repeat(num_dst // 4)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    indices = torch.randint(0, num_src, (int(degrees.sum()),), dtype=torch.int32)
    x, weight = (
        whole_numbers(num_src, width, dtype=dtype),
        whole_numbers(out_width, 2 * width, dtype=dtype, low=-1, high=2),
    )
    return indptr, indices, x, weight, whole_numbers(out_width, dtype=dtype)


@pytest.fixture(params=[7, 1024])
def run_rows(request, monkeypatch):
    """Rows per run on the way back: several runs, and one."""
    monkeypatch.setattr(sys.modules["fastsample_dist.ops.sage_layer"], "RUN_ROWS", request.param)


def separate_operators(indptr, indices, x, weight, bias, node_ids, p, edge_weights=None):
    y = reference.sage_layer(indptr, indices, x, weight, bias, edge_weights)
    return y if node_ids is None else ops.act_dropout(y, node_ids, KEY, p=p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("hidden", "p"), [(False, 0.0), (True, 0.0), (True, 0.5)])
@pytest.mark.usefixtures("run_rows")
def test_equals_the_separate_operators_with_gradients(dtype, with_bias, hidden, p):
    indptr, indices, x, weight, bias = layer_inputs(dtype)
    node_ids = torch.randperm(40) + 2**33 if hidden else None
    results = []
    for function in (
        lambda x, w, b: ops.sage_layer(indptr, indices, x, w, b, node_ids=node_ids, key=KEY if hidden else None, p=p),
        lambda x, w, b: separate_operators(indptr, indices, x, w, b, node_ids, p),
    ):
        leaves = [t.clone().requires_grad_() for t in ((x, weight, bias) if with_bias else (x, weight))]
        y = function(leaves[0], leaves[1], leaves[2] if with_bias else None)
        y.backward(whole_numbers(*y.shape, dtype=dtype) * 0 + 8)
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("hidden", "p"), [(False, 0.0), (True, 0.5)])
@pytest.mark.usefixtures("run_rows")
def test_coefficients_equal_the_separate_operators_with_gradients(dtype, hidden, p):
    indptr, indices, x, weight, bias = layer_inputs(dtype)
    coefficients = torch.randint(-2, 3, indices.shape).to(dtype) / 2
    node_ids = torch.randperm(40) + 2**33 if hidden else None
    more = {"node_ids": node_ids, "key": KEY if hidden else None, "p": p}
    results = []
    for function in (
        lambda x, w, b, e: ops.sage_layer(indptr, indices, x, w, b, edge_weights=e, **more),
        lambda x, w, b, e: separate_operators(indptr, indices, x, w, b, node_ids, p, e),
    ):
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias, coefficients)]
        y = function(*leaves)
        y.backward(torch.full_like(y, 8))
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_coefficients_of_bfloat16_are_close_to_those_of_float64():
    indptr, indices, x, weight, _ = layer_inputs(torch.bfloat16)
    coefficients = torch.rand(indices.numel()).bfloat16()
    leaves = [t.requires_grad_() for t in (x, weight, coefficients)]
    wide = [t.detach().double().requires_grad_() for t in leaves]
    for (rows, by, each), layer in ((leaves, ops.sage_layer), (wide, reference.sage_layer)):
        layer(indptr, indices, rows, by, edge_weights=each).sum().backward()
    for one, other in zip(leaves, wide, strict=True):
        assert (one.grad.double() - other.grad).norm() <= 1e-2 * other.grad.norm()


@pytest.mark.parametrize("num_dst", [0, 4, 40, 1000])
@pytest.mark.parametrize("by", ["the processor", "torch"])
def test_bfloat16_equals_float64_rounded(num_dst, by, monkeypatch):
    """The products are exact in the accumulator; what is rounded is the product, then the sum with the bias."""
    if by == "torch":
        for module in ("layer_cores", "sage_layer"):
            monkeypatch.setattr(sys.modules[f"fastsample_dist.ops.{module}"], "on_matrix_units", lambda rows: False)
    indptr, indices, x, weight, bias = layer_inputs(torch.bfloat16, num_dst=num_dst, num_src=max(num_dst, 1) * 2)
    wide = reference.sage_layer(indptr, indices, x.double(), weight.double())
    expected = (wide.bfloat16().float() + bias.float()).bfloat16()
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    y = ops.sage_layer(indptr, indices, *leaves)
    assert torch.equal(y, expected)
    y.backward(torch.ones_like(y))
    assert torch.equal(bias.grad, torch.full_like(bias, num_dst))
    own_and_mean = torch.cat([x[:num_dst], ops.aggregate(indptr, indices, x, reduce="mean")], 1).double().sum(0)
    assert torch.equal(weight.grad, own_and_mean.bfloat16().expand_as(weight))


@pytest.mark.parametrize("hidden", [False, True])
def test_gradcheck(hidden):
    indptr, indices = random_mfg(6, 11, 25)
    leaves = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((11, 3), (4, 6), (4,))]
    more = {"node_ids": torch.arange(6), "key": KEY, "p": 0.4} if hidden else {}
    assert torch.autograd.gradcheck(lambda *t: ops.sage_layer(indptr, indices, *t, **more), leaves)
    leaves.append(torch.randn(25, dtype=torch.float64, requires_grad=True))
    assert torch.autograd.gradcheck(
        lambda *t: ops.sage_layer(indptr, indices, *t[:3], edge_weights=t[3], **more), leaves
    )


@pytest.mark.parametrize("needed", range(4))
def test_gives_only_the_gradients_that_are_asked_for(needed):
    indptr, indices, *tensors = layer_inputs(torch.float32)
    tensors.append(torch.rand(indices.numel()))
    for number, tensor in enumerate(tensors):
        tensor.requires_grad_(number == needed)
    ops.sage_layer(indptr, indices, *tensors[:3], edge_weights=tensors[3]).sum().backward()
    assert [tensor.grad is not None for tensor in tensors] == [number == needed for number in range(4)]


def test_padded_sizes_are_few_and_near():
    sizes = range(1, 5000)
    assert all(n <= padded_size(n, torch.bfloat16) <= n * 1.0625 + 1 for n in sizes)
    assert len({padded_size(n, torch.bfloat16) for n in range(2**14, 2**15)}) <= 17
    assert padded_size(31107, torch.float32) == 31107


def test_refuses_what_does_not_fit():
    indptr, indices, x, weight, bias = layer_inputs(torch.float32)
    with pytest.raises(
        ValueError, match="weight is torch.float32 of shape .9, 11.; expected torch.float32 with 12 col"
    ):
        ops.sage_layer(indptr, indices, x, weight[:, :-1])
    with pytest.raises(ValueError, match="bias does not fit"):
        ops.sage_layer(indptr, indices, x, weight, bias[:3])
    with pytest.raises(ValueError, match="node_ids and key belong together"):
        ops.sage_layer(indptr, indices, x, weight, node_ids=torch.arange(40))
    with pytest.raises(ValueError, match="node_ids has 3 entries; expected 40"):
        ops.sage_layer(indptr, indices, x, weight, node_ids=torch.arange(3), key=KEY)
    with pytest.raises(ValueError, match="x has 20 rows; expected one for each of the 40 destinations"):
        ops.sage_layer(indptr, indices, x[:20], weight)
    with pytest.raises(ValueError, match="edge_weights has more than one dimension; expected one coefficient per edge"):
        ops.sage_layer(indptr, indices, x, weight, edge_weights=torch.ones(indices.numel(), 2))
    with pytest.raises(ValueError, match=f"weights has shape .3,.; expected {indices.numel()} rows, one per edge"):
        ops.sage_layer(indptr, indices, x, weight, edge_weights=torch.ones(3))
    with pytest.raises(ValueError, match="weights is torch.float64 but x is torch.float32; they must agree"):
        ops.sage_layer(indptr, indices, x, weight, edge_weights=torch.ones(indices.numel(), dtype=torch.float64))

"""weight_gradient on matrix units: the operators that it stands for, and exact products of whole numbers."""

import pytest
import torch

from fastsample_dist.ops import library
from fastsample_dist.ops.act_dropout import arguments
from fastsample_dist.ops.layer_cores import CPU, weight_product

KEY = [2**41 + 3, 9, 1]
SHAPES = [(0, 5, 3), (1, 1, 1), (31, 33, 15), (512, 32, 64), (700, 47, 94), (4096 * 2 + 300, 70, 40)]
needs_units = pytest.mark.skipif(
    not library.core().fs_has_matrix_units(), reason="this processor has no matrix units for bfloat16"
)


def whole_numbers(*shape):
    """Sums of their products are exact in float32, in any order."""
    return torch.randint(-4, 5, shape).bfloat16()


def run(y, grad, inputs, activation, *, writes_rows=True, with_sums=True):
    """(out, grad_x, sums), those that are asked for."""
    num_rows, width = y.shape
    spec = arguments(y, torch.arange(num_rows), 30000, activation, KEY)
    grad_x = torch.empty_like(y) if writes_rows else None
    sums = torch.ones(width) if with_sums else None
    out = torch.full((width, inputs.shape[1]), 7.0).bfloat16()
    CPU.weight_gradient(spec, y, grad, grad_x, sums, inputs, out)
    return [tensor for tensor in (out, grad_x, sums) if tensor is not None]


@needs_units
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_equals_the_gradient_of_the_activation_and_a_product(shape, activation):
    num_rows, width, columns = shape
    y, grad, inputs = whole_numbers(num_rows, width), whole_numbers(num_rows, width), whole_numbers(num_rows, columns)
    spec = arguments(y, torch.arange(num_rows), 32768, activation, KEY)  # the scale is 2
    rows, sums, out = torch.empty_like(y), torch.ones(width), torch.empty(width, columns).bfloat16()
    CPU.act_dropout_backward(spec, y, grad, rows, sums)
    grad_x, found = torch.empty_like(y), torch.ones(width)
    CPU.weight_gradient(spec, y, grad, grad_x, found, inputs, out)
    assert torch.equal(grad_x, rows) and torch.equal(found, sums)
    assert torch.equal(out, (rows.double().t() @ inputs.double()).bfloat16())


@needs_units
def test_sums_are_the_same_for_any_threads_and_whatever_else_is_asked_for(monkeypatch):
    y, grad, inputs = (torch.randn(4096 * 3 + 17, columns).bfloat16() for columns in (40, 40, 70))
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(library, "num_threads", lambda count=threads: count)
        results.append(run(y, grad, inputs, "relu"))
    out, grad_x, _ = results[0]
    assert all(torch.equal(*pair) for other in results[1:] for pair in zip(results[0], other, strict=True))
    assert torch.equal(run(y, grad, inputs, "relu", writes_rows=False, with_sums=False)[0], out)
    product = torch.empty_like(out)
    weight_product(grad_x, inputs, product)
    assert torch.equal(product, out)
    exact = grad_x.double().t() @ inputs.double()
    assert (out.double() - exact).norm() <= 2**-8 * exact.norm()  # rounded once


@needs_units
def test_a_nan_stays_in_its_row_and_column():
    rows, inputs = whole_numbers(600, 40), whole_numbers(600, 50)
    rows[599, 3], inputs[0, 49] = float("nan"), float("inf")
    out = torch.empty(40, 50).bfloat16()
    weight_product(rows, inputs, out)
    assert out[3].isnan().all() and not out[:3, :49].isnan().any() and not out[4:, :49].isnan().any()


def test_without_matrix_units_the_product_is_torchs(monkeypatch):
    monkeypatch.setattr("fastsample_dist.ops.layer_cores.on_matrix_units", lambda rows: False)
    y, grad, inputs = whole_numbers(300, 20), whole_numbers(300, 20), whole_numbers(300, 9)
    out, grad_x, _ = run(y, grad, inputs, "relu")
    assert torch.equal(out, torch.mm(grad_x.t(), inputs))


def test_other_types_are_refused():
    rows = torch.rand(3, 4)
    spec = arguments(rows, torch.arange(3), 0, "identity", KEY)
    out = torch.empty(4, 4)
    with pytest.raises(ValueError, match=r"weight_gradient: element type 2; expected bfloat16 \(4\)"):
        CPU.weight_gradient(spec, rows, rows, None, None, rows, out)

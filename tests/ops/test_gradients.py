"""gradients.register: what an operator's functions are given, and when a gradient is kept at all."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import gradients


@pytest.fixture
def scaled():
    """scaled(x, by, bias, power): an operator with defaults, and what its gradient's functions have been given."""
    seen = {}

    def setup_context(ctx, inputs, output):
        seen["inputs"], ctx.by = inputs, inputs[1]
        ctx.save_for_backward(output)

    def backward(ctx, grad):
        [output] = ctx.saved_tensors
        seen["needs"], seen["output"] = ctx.needs_input_grad, output
        return grad * ctx.by, None, grad if ctx.needs_input_grad[2] else None, None

    definitions = torch.library.Library("fastsample_gradient_test", "DEF")
    definitions.define("scaled(Tensor x, int by, Tensor? bias=None, int power=3) -> Tensor")
    definitions.impl("scaled", lambda x, by, bias=None, power=3: x * by + (0 if bias is None else bias), "CPU")
    torch.library.register_fake("fastsample_gradient_test::scaled", lambda x, *_: torch.empty_like(x), lib=definitions)
    operator = torch.ops.fastsample_gradient_test.scaled.default
    gradients.register(definitions, operator, backward, setup_context)
    yield operator, seen
    definitions._destroy()


def test_arguments_are_all_there_and_needs_go_by_them(scaled):
    operator, seen = scaled
    x, bias = torch.ones(3, requires_grad=True), torch.zeros(3)
    out = operator(x, 2)
    out.sum().backward()
    assert seen["inputs"][1:] == [2, None, 3] and seen["needs"][:4] == (True, False, False, False)
    assert x.grad.tolist() == [2, 2, 2] and torch.equal(seen["output"], out)
    operator(x.detach(), 2, bias.requires_grad_(), 5).sum().backward()
    assert seen["inputs"][3] == 5 and seen["needs"][:4] == (False, False, True, False)
    assert bias.grad.tolist() == [1, 1, 1]


def test_nothing_is_kept_where_no_gradient_is_wanted(scaled):
    operator, seen = scaled
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not operator(x, 2).requires_grad
    assert not operator(x.detach(), 2, torch.zeros(3)).requires_grad and not seen


def test_torch_finds_nothing_amiss_with_the_registration(scaled):
    operator, _ = scaled
    torch.library.opcheck(operator, (torch.ones(3, requires_grad=True), 2))
    torch.library.opcheck(operator, (torch.ones(3), 2, torch.zeros(3, requires_grad=True), 4))


EDGES = torch.tensor([0, 2]), torch.tensor([0, 1])
KEY = ops.DropoutKey(rng_seed=0, step=0, layer=0)
WEIGHT = torch.ones(1, 4, requires_grad=True)
ONCE = {
    "aggregate": lambda x: ops.aggregate(*EDGES, x),
    "act_dropout": lambda x: ops.act_dropout(x, torch.arange(2), KEY, p=0.0),
    "sage_layer": lambda x: ops.sage_layer(*EDGES, x, WEIGHT),
}


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("power", [1, 2])
def test_a_second_derivative_is_refused(name, power):
    """With power 1 the gradient that comes in is a constant; that of sage_layer's x still depends on the weight."""
    x = torch.ones(2, 2, requires_grad=True)
    [grad] = torch.autograd.grad(ONCE[name](x).pow(power).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=f"{name} is differentiated twice, but it is differentiable once; use"):
        grad.pow(2).sum().backward()


def test_the_first_derivative_is_the_same_in_a_graph_that_is_kept(scaled):
    operator, _ = scaled
    x = torch.ones(3, requires_grad=True)
    [grad] = torch.autograd.grad(operator(x, 2).sum() + x.pow(2).sum(), x, create_graph=True)
    assert grad.tolist() == [4, 4, 4]

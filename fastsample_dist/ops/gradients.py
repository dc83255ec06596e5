"""Gradients of operators: what torch.library.register_autograd registers, without what that repeats in every call.

An operator's kernel under the dispatcher's Autograd key is asked first. Where no gradient is wanted it goes on to the
kernel of the device; else an autograd.Function does, and keeps what the way back needs. That is torch.library's own
design, from the same parts (torch/_library/autograd.py); but it reads the operator's schema anew in every call, which
takes longer than a small batch's aggregation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def register(
    definitions: torch.library.Library, operator: torch._ops.OpOverload, backward: Callable[..., tuple],
    setup_context: Callable[..., None],
) -> None:  # fmt: skip
    """Make an operator differentiable, once: differentiating its gradient raises RuntimeError.

    Args:
      definitions: that the registration lasts as long as.
      operator: without lists of tensors, and without arguments that go by name alone.
      backward: (ctx, *grads) to a gradient, or None, per argument.
      setup_context: (ctx, inputs, output), with all arguments, defaults too; fills ctx for `backward`.
    """
    arguments = operator._schema.arguments
    defaults = tuple(argument.default_value for argument in arguments)
    tensors = [place for place, argument in enumerate(arguments) if "Tensor" in str(argument.type)]

    def run(keyset: torch._C.DispatchKeySet, given: tuple[Any, ...]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *given)

    class Gradient(torch.autograd.Function):
        """What is kept between the two ways."""

        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            *inputs, keyset = given  # last, so that ctx.needs_input_grad goes by the operator's arguments
            output = run(keyset, inputs)
            setup_context(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple:
            if not torch.is_grad_enabled():
                return *backward(ctx, *grads), None
            with torch.no_grad():
                found = backward(ctx, *grads)
            return *_refuse_twice(operator.name().split("::")[1], found), None

    Gradient.__name__ = Gradient.__qualname__ = f"GradientOf_{operator.name().replace('::', '_')}"

    def kernel(keyset: torch._C.DispatchKeySet, *given: Any) -> Any:
        if torch.is_grad_enabled():
            inputs = given + defaults[len(given) :]  # the dispatcher leaves out what equals its default
            for place in tensors:
                if inputs[place] is not None and inputs[place].requires_grad:
                    return Gradient.apply(*inputs, keyset)
        return run(keyset, given)

    definitions.impl(operator.name().split("::")[1], kernel, "Autograd", with_keyset=True)


def _refuse_twice(name: str, grads: tuple) -> tuple:
    """The gradients, in a graph that is kept, as torch's once_differentiable marks them.

    All of them, whichever gradient came in: a gradient of x depends on the weights too.
    """
    message = f"{name} is differentiated twice, but it is differentiable once; use operators of torch in its place."
    refuse = torch._C._functions.DelayedError(message.encode(), len(grads))
    return refuse(*(None if grad is None else grad.detach().requires_grad_() for grad in grads))

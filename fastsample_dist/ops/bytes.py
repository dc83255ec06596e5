"""Tensors as bytes."""

import torch
from torch import Tensor


def byte_view(tensor: Tensor) -> Tensor:
    """uint8 [nbytes] over the same memory; the tensor must be contiguous.

    A tensor of 0 or 1 elements counts as contiguous whatever its strides are, so `contiguous` leaves them and `view`
    to a smaller type refuses them: the strides are set here.
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)

"""Everything that a mini-batch carries, for tests that compare two of them field by field."""

import torch

from fastsample_dist.device.clock import Lap


def fields_of(value):
    """A batch, or what it holds, as nested lists and dicts; tensors as (dtype, shape, values)."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, list):
        return [fields_of(one) for one in value]
    if isinstance(value, Lap):
        return value.seconds
    if hasattr(value, "__dict__"):
        return {name: fields_of(own) for name, own in sorted(vars(value).items()) if name != "derived"}
    return value

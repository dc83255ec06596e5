"""torch's own generators of random numbers: this library does not draw from them, but a model may."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """States by kind of device: "cpu", and "cuda" where the rank computes there."""
    states = {"cpu": torch.get_rng_state()}
    return states | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def set_generator_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Continue from `generator_states`."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def seed_generators(seed: int, device: torch.device) -> None:
    """Begin anew with a seed, 0 .. 2**63 - 1."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """Leave the generators as they are, whatever is drawn in the block."""
    states = generator_states(device)
    try:
        yield
    finally:
        set_generator_states(states, device)

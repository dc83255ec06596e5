"""Fixtures of the operator tests."""

import pytest

from fastsample_dist import ops


@pytest.fixture
def use_isa():
    """Choose an instruction set for one test; skips where the processor lacks it."""
    before = ops.isa()

    def choose(name):
        try:
            ops.set_isa(name)
        except ValueError as error:
            pytest.skip(f"this processor has no {name}: {error}")

    yield choose
    ops.set_isa(before)

"""Which cases of a grid the gate runs: `make test` leaves out what is marked `grid`, `make test-all` does not."""

from collections.abc import Iterable

import pytest


def grid(
    values: Iterable[object], gate: Iterable[object], *, several: bool = False, long: bool = False
) -> list:  # fmt: skip
    """Parameters for `pytest.mark.parametrize`, all but the representatives in `gate` marked `grid`.

    With several such axes the gate runs the product of their representatives.

    Args:
      values: of one argument, or with `several` tuples of the values of several.
      gate: the representatives.
      several: each value is a tuple with one entry per argument.
      long: the others are too many for compute-sanitizer as well.
    Raises:
      ValueError: a representative that is none of the values.
    """
    values, gate = list(values), list(gate)
    strange = [value for value in gate if value not in values]
    if strange or not gate:
        raise ValueError(f"gate has {strange or 'nothing'}; expected some of {values}.")
    marks = [pytest.mark.grid, pytest.mark.long] if long else [pytest.mark.grid]
    return [
        value if value in gate else pytest.param(*(value if several else (value,)), marks=marks) for value in values
    ]

"""Hypothesis and SciPy for tests; where one is missing, the tests that use it skip one by one, with its name.

A machine with a GPU has often nothing but torch and pytest, and the tests of kernels stand beside such tests.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

__all__ = ["HealthCheck", "assume", "given", "settings", "st", "stats"]


class _Anything:
    """In place of Hypothesis's strategies and settings, which files combine as they are imported."""

    def __getattr__(self, name: str) -> "_Anything":
        if name.startswith("_") or name == "pytestmark":  # which pytest asks everything for
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> "_Anything":
        return self

    def __or__(self, other: Any) -> "_Anything":
        return self


class _Missing:
    """In place of a module: a test that reads a name of it is skipped."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or name == "pytestmark":  # which pytest asks everything for
            raise AttributeError(name)
        pytest.skip(f"{self._name} is not installed")


try:
    from hypothesis import HealthCheck, assume, given, settings
    from hypothesis import strategies as st
except ImportError:
    HealthCheck = assume = st = _Anything()

    def given(*_: Any, **__: Any) -> Callable:
        """A decorator that has the test skipped."""
        return pytest.mark.skip(reason="hypothesis is not installed")

    def settings(*_: Any, **__: Any) -> Callable:
        """A decorator that does nothing."""
        return lambda function: function


try:
    from scipy import stats
except ImportError:
    stats = _Missing("scipy")

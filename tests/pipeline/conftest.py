"""Fixtures of this room."""

from tests.one_process import ctx  # noqa: F401

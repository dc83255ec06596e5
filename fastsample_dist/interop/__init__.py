"""Conversions to other libraries; `dgl` and `pyg` are imported only by the functions that need them."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # see fastsample_dist/__init__.py
    from fastsample_dist.interop import dgl as dgl
    from fastsample_dist.interop import pyg as pyg
else:

    def __getattr__(name: str) -> object:
        if name in ("dgl", "pyg"):
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

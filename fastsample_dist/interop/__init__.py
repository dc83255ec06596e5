"""Conversions to other libraries; `dgl` and `pyg` are imported only by the functions that need them."""

import importlib


def __getattr__(name: str) -> object:
    if name in ("dgl", "pyg"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Samplers: seeds in, message flow graphs (MFGs) out; one process, hybrid and vanilla schemes."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # see fastsample_dist/__init__.py
    from fastsample_dist.sampling import transit as transit
else:

    def __getattr__(name: str) -> object:
        if name == "transit":
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

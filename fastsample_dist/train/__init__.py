"""Models, the training step, gradients, metrics, checkpoints and inference.

Its modules are loaded on first use: `fastsample_dist.train.models`, `.trainer`, `.inference` and so on.
"""

import importlib
import pkgutil

_MODULES = frozenset(module.name for module in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")

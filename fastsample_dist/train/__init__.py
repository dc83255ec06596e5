"""Models, the training step, gradients, metrics, checkpoints and inference.

`run(TrainConfig(data="parts", ...), ctx)` is the command `fastsample-train` as a function. Modules and the names below
are loaded on first use: `fastsample_dist.train.models`, `.trainer`, `.inference` and so on.
"""

import importlib
import pkgutil

_MODULES = frozenset(module.name for module in pkgutil.iter_modules(__path__))
_PUBLIC = {
    "TrainConfig": "config",
    "RunResult": "session",
    "run": "session",
    "Trainer": "trainer",
    "Callback": "callbacks",
    "EpochReport": "callbacks",
    "Checkpointer": "checkpoint",
    "CheckpointSettings": "checkpoint",
    "NonFiniteError": "finite",
    "SumMetric": "objectives",
    "save_model": "saved",
    "load_model": "saved",
    "load_checkpoint": "saved",
    "write_predictions": "saved",
}


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")

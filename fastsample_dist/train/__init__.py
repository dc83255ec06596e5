"""Models, the training step, gradients, metrics, checkpoints and inference.

`run(TrainConfig(data="parts", ...), ctx)` is the command `fastsample-train` as a function. Modules and the names below
are loaded on first use: `fastsample_dist.train.models`, `.trainer`, `.inference` and so on.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:  # see fastsample_dist/__init__.py
    from fastsample_dist.train import agreement as agreement
    from fastsample_dist.train import callbacks as callbacks
    from fastsample_dist.train import checkpoint as checkpoint
    from fastsample_dist.train import checkpoint_files as checkpoint_files
    from fastsample_dist.train import cli as cli
    from fastsample_dist.train import config as config
    from fastsample_dist.train import epoch_records as epoch_records
    from fastsample_dist.train import evaluation as evaluation
    from fastsample_dist.train import factored_epoch as factored_epoch
    from fastsample_dist.train import finite as finite
    from fastsample_dist.train import generators as generators
    from fastsample_dist.train import gradients as gradients
    from fastsample_dist.train import group_updates as group_updates
    from fastsample_dist.train import inference as inference
    from fastsample_dist.train import layers as layers
    from fastsample_dist.train import machine_sums as machine_sums
    from fastsample_dist.train import metrics as metrics
    from fastsample_dist.train import models as models
    from fastsample_dist.train import objectives as objectives
    from fastsample_dist.train import pinsage_config as pinsage_config
    from fastsample_dist.train import protocol as protocol
    from fastsample_dist.train import rehearsal as rehearsal
    from fastsample_dist.train import report as report
    from fastsample_dist.train import report_page as report_page
    from fastsample_dist.train import report_plots as report_plots
    from fastsample_dist.train import report_sums as report_sums
    from fastsample_dist.train import saved as saved
    from fastsample_dist.train import schedules as schedules
    from fastsample_dist.train import session as session
    from fastsample_dist.train import shared_state as shared_state
    from fastsample_dist.train import skipgram as skipgram
    from fastsample_dist.train import skipgram_checkpoint as skipgram_checkpoint
    from fastsample_dist.train import stop as stop
    from fastsample_dist.train import subgraph_config as subgraph_config
    from fastsample_dist.train import trainer as trainer
    from fastsample_dist.train import unshared as unshared
    from fastsample_dist.train import writers as writers
    from fastsample_dist.train.callbacks import Callback as Callback
    from fastsample_dist.train.callbacks import EpochReport as EpochReport
    from fastsample_dist.train.checkpoint import Checkpointer as Checkpointer
    from fastsample_dist.train.checkpoint import CheckpointSettings as CheckpointSettings
    from fastsample_dist.train.config import TrainConfig as TrainConfig
    from fastsample_dist.train.finite import NonFiniteError as NonFiniteError
    from fastsample_dist.train.objectives import SumMetric as SumMetric
    from fastsample_dist.train.saved import load_checkpoint as load_checkpoint
    from fastsample_dist.train.saved import load_model as load_model
    from fastsample_dist.train.saved import save_model as save_model
    from fastsample_dist.train.saved import write_predictions as write_predictions
    from fastsample_dist.train.session import RunResult as RunResult
    from fastsample_dist.train.session import run as run
    from fastsample_dist.train.trainer import Trainer as Trainer
else:

    def __getattr__(name: str) -> object:
        if name in _PUBLIC:
            return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(f"{__name__}.{name}")

"""Trained models outside of a run: files that hold one, checkpoints read into a model, predictions of all nodes.

A saved model is two files: FILE, what torch.save makes of the state dict (parameters under the model's own names, on
the CPU), so that `torch.load(FILE, weights_only=True)` reads it anywhere; and FILE.json, how the model was built.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastsample_dist.comm.agree import agree
from fastsample_dist.files import complete_file, write_json
from fastsample_dist.graph.npy_files import NpyWriter
from fastsample_dist.ops.checks import plain
from fastsample_dist.pipeline.data import DistData, own_parts
from fastsample_dist.sampling.sampler import HopwiseSampler
from fastsample_dist.train.checkpoint_files import CheckpointFiles, DamagedCheckpointError, decode
from fastsample_dist.train.inference import layerwise
from fastsample_dist.train.models import GAT, GCN, GraphSAGE, LayeredModel, PinSAGE
from fastsample_dist.train.protocol import check_same_model

MODELS = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT, "pinsage": PinSAGE}
BUILT_FROM = ("model", "feature_dim", "hidden", "num_outputs", "layers", "dropout", "heads")
BUILT_WITH = ("residual", "norm")
"""Options that descriptions of earlier releases lack; their models had neither."""


def build_model(
    *, model: str, feature_dim: int, hidden: int, num_outputs: int, layers: int, dropout: float, heads: int,
    residual: bool = False, norm: str | None = None,
) -> LayeredModel:  # fmt: skip
    """A model of the command, with parameters drawn from torch's generator.

    Raises:
      ValueError: an unknown model, or a size that does not fit.
    """
    if model not in MODELS:
        raise ValueError(f"the model is {model!r}; expected one of {', '.join(MODELS)}.")
    more = {"num_heads": heads} if model == "gat" else {}
    return MODELS[model](feature_dim, hidden, num_outputs, layers, dropout, residual=residual, norm=norm, **more)


def description_of(file: str | Path) -> Path:
    """FILE.json beside a saved model."""
    return Path(f"{file}.json")


def save_model(file: str | Path, model: nn.Module, built: Mapping[str, Any]) -> None:
    """Write a model as FILE and FILE.json; each appears complete.

    Args:
      file: where.
      model: on any device.
      built: how it was built, as JSON values, numbers NumPy's or torch's too; with BUILT_FROM and BUILT_WITH
        `load_model` builds it again.
    Raises:
      ValueError: built holds what JSON does not; no file is touched. OSError: a file cannot be written; names it.
    """
    built = {name: plain(value) for name, value in built.items()}
    try:
        json.dumps(built)  # before a file is replaced
    except TypeError as error:
        raise ValueError(f"built cannot be written as JSON ({error}); pass numbers, text and lists.") from None
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    buffer = io.BytesIO()
    torch.save(state, buffer)  # to a file it would lose the disk's refusal
    with complete_file(file) as partial:
        partial.write_bytes(buffer.getbuffer())
    write_json(description_of(file), built)


def load_model(file: str | Path) -> LayeredModel:
    """The model that `--save-model FILE` wrote, on the CPU, with dropout off (`.train()` turns it on).

    Raises:
      ValueError: FILE or FILE.json is missing, damaged or was not written by this library, or the two do not belong
        together.
    """
    built = _read_description(description_of(file))
    model = build_model(**{name: built[name] for name in (*BUILT_FROM, *BUILT_WITH) if name in built})
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises errors of many classes
        raise ValueError(f"{file} cannot be read as a model ({type(error).__name__}); save it again.") from error
    check_same_model(model.state_dict(), state)
    model.load_state_dict(state)
    return model.eval()


def load_checkpoint(path: str | Path, model: nn.Module) -> dict[str, Any]:
    """Give a model the parameters of a checkpoint, outside of the run that made it.

    Args:
      path: a checkpoint file, or a directory of them, whose newest valid one is taken.
      model: of the same architecture; its parameters are overwritten in place, on their device.
    Returns:
      What the checkpoint says of its run: {"path", "epoch", "step", "world_size", "graph", "options"}; step is the
      number of steps done.
    Raises:
      ValueError: no valid checkpoint there, or one of another model.
      OSError: it cannot be read.
    """
    found, content = _read_checkpoint(Path(path))
    state = content["state"]["model"]
    try:
        check_same_model(model.state_dict(), state)
    except ValueError as error:
        raise ValueError(f"{found} does not fit: {error}") from error
    model.load_state_dict(state)
    names = ("epoch", "step", "world_size", "graph", "options")
    return {"path": str(found), **{name: content[name] for name in names}}


def check_directory(option: str, directory: Path) -> None:
    """Make a directory for results and refuse it if it cannot be written, before any work is done.

    Raises:
      ValueError: with the option, the directory and the reason.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return
    except OSError as error:
        raise ValueError(
            f"{option} {directory} cannot be written ({error.strerror}); pass another directory."
        ) from error


def write_predictions(
    model: nn.Module,
    data: DistData,
    directory: str | Path,
    batch_size: int = 1000,
    *,
    num_layers: int | None = None,
    sampler: HopwiseSampler | None = None,
) -> None:
    """Write scores of all nodes, computed with all their neighbours, and the ids of these nodes.

    Every rank writes, for each of its parts p, part-<p>.npy [nodes of p, outputs] and part-<p>-orig_ids.npy, int64:
    row i is the scores of the node with that original id. Scores are what the model returns, before softmax or sigmoid;
    the argmax of a row is the class.

    Collective: every rank must call this, with the same arguments, which are those of `layerwise`.

    Raises:
      ValueError: as `layerwise`; a file that cannot be written.
    """
    if not isinstance(directory, str | os.PathLike):
        raise ValueError(f"directory is {directory!r}; expected a path, such as 'predictions'.")
    layerwise(model, data, batch_size, num_layers=num_layers, output=directory, sampler=sampler)
    agree(data.ctx, lambda: _write_orig_ids(data, Path(directory)))


def _write_orig_ids(data: DistData, directory: Path) -> None:
    for part in own_parts(data.manifest.num_parts, data.ctx):
        first, last = data.book.part2range(part)
        ids = data.orig_ids(torch.arange(first, last)).numpy()
        with (
            complete_file(directory / f"part-{part}-orig_ids.npy") as partial,
            NpyWriter(partial, ids.dtype, ids.shape) as file,
        ):
            file.append(ids)


def _read_description(file: Path) -> dict[str, Any]:
    try:
        built = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{file} cannot be read ({error.strerror}); it is written beside the model by --save-model, copy both."
        ) from error
    except ValueError as error:
        raise ValueError(f"{file} is not JSON; save the model again.") from error
    missing = [name for name in BUILT_FROM if not isinstance(built, dict) or name not in built]
    if missing:
        raise ValueError(f"{file} lacks {', '.join(missing)}; it is not a description that --save-model wrote.")
    return built


def _read_checkpoint(path: Path) -> tuple[Path, dict[str, Any]]:
    if not path.is_dir():
        try:
            return path, decode(path)
        except FileNotFoundError as error:
            raise ValueError(f"{path} is not there; pass a checkpoint or the directory that holds it.") from error
        except DamagedCheckpointError as error:
            raise ValueError(f"{path} is not a valid checkpoint: {error}.") from error
    found = CheckpointFiles(path, 1).newest()
    if found is None:
        raise ValueError(f"{path} holds no checkpoint; pass the directory that --checkpoint-dir named.")
    return found

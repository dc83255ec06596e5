"""Checkpoint files: one directory, one file per checkpoint, either complete or absent.

A file is one line of JSON (format, version, size and SHA-256 of what follows) and then what torch.save wrote. It is
written under another name, synced to the disk and renamed, so that neither a full disk nor a kill at any moment leaves
half a checkpoint under a checkpoint's name or harms an earlier one. Old ones are deleted only after that. Reading
executes nothing: torch.load accepts only tensors and plain values.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import pickle
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fastsample_dist.files import complete_file

logger = logging.getLogger(__name__)

FORMAT_NAME = "fastsample-checkpoint"
FORMAT_VERSION = 1
MAX_HEADER_BYTES = 4096
_NAME = re.compile(r"step-(\d{9,})\.ckpt")
_PARTIAL = re.compile(r"\.step-\d{9,}\.ckpt\.partial")


class DamagedCheckpointError(ValueError):
    """The file is not what was once written, or was never a checkpoint."""


class CheckpointFiles:
    """The checkpoints of one run in one directory. Used by one rank.

    Args:
      directory: made by `prepare` if it is missing.
      keep: how many of the newest stay, at least 1. While one is being written, one more file needs room. None: all,
        until `delete_before`.
    Raises:
      ValueError: keep is below 1.
    """

    def __init__(self, directory: Path, keep: int | None) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep is {keep}; expected at least 1 checkpoint.")
        self.directory, self._keep = directory, keep

    def prepare(self) -> None:
        """Make the directory, check that it can be written, and clear away what killed writers left (`complete_file`).

        Raises:
          ValueError: it cannot be made or written.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise ValueError(
                f"checkpoint directory {self.directory} cannot be written ({error.strerror}); choose another."
            ) from error
        for path in self.directory.iterdir():
            if _PARTIAL.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """All checkpoints, whether valid or not, by ascending step; none where the directory is gone."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted((path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)), key=_step_of)
        return []

    def write(self, step: int, content: dict[str, Any]) -> Path:
        """Write the checkpoint of a step, then delete those that are too old.

        A directory that was deleted since `prepare` is made again, with a warning; one that is too old and cannot be
        deleted is a warning too.

        Args:
          step: global step of the next batch; names the file.
          content: tensors and plain values in dictionaries and lists.
        Returns:
          The file's path; it is durable.
        Raises:
          RuntimeError: it could not be written; the earlier ones are as they were, and no other file is left.
        """
        path = self.directory / f"step-{step:09}.ckpt"
        try:
            if not self.directory.is_dir():
                self.directory.mkdir(parents=True, exist_ok=True)
                logger.warning(
                    "checkpoint directory %s was deleted with its contents; it has been made again.", self.directory
                )
            with complete_file(path, durable=True) as partial:
                partial.write_bytes(encode(content))
        except OSError as error:
            survivors = [earlier.name for earlier in self.paths() if earlier != path]
            kept = f"{survivors[-1]} before it is untouched" if survivors else "there is no earlier one"
            if path.exists():  # an epoch's last step is saved again with its figures
                kept = "the earlier one of that name is untouched"
            raise RuntimeError(
                f"checkpoint {path} could not be written ({error.strerror}); {kept}; make room or choose another "
                "directory."
            ) from error
        if self._keep is not None:  # later ones are damaged, and left for the user to inspect
            old = [earlier for earlier in self.paths() if _step_of(earlier) < step]
            self._delete(old[: max(0, len(old) - (self._keep - 1))])
        return path

    def delete_before(self, step: int, *, keep: int) -> None:
        """Delete the checkpoints of earlier steps but that of `keep`; one that cannot be deleted is a warning."""
        self._delete([path for path in self.paths() if _step_of(path) < step and _step_of(path) != keep])

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that is valid, and its content; None when there are no checkpoints.

        Damaged files are skipped with a warning.

        Raises:
          ValueError: there are checkpoints but none is valid, or a newer release wrote the one in question.
        """
        paths = self.paths()
        for path in reversed(paths):
            try:
                return path, decode(path)
            except DamagedCheckpointError as error:
                logger.warning("skipped checkpoint %s: %s.", path, error)
        if paths:
            raise ValueError(
                f"none of the {len(paths)} checkpoints in {self.directory} is valid; move them away to start afresh."
            )
        return None

    def _delete(self, paths: Sequence[Path]) -> None:
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("old checkpoint %s could not be deleted (%s).", path, error.strerror)


def encode(content: dict[str, Any]) -> bytes:
    """The bytes of a checkpoint file."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getbuffer()
    header = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return json.dumps(header).encode() + b"\n" + payload


def decode(path: Path) -> dict[str, Any]:
    """What a checkpoint file holds; tensors on the CPU.

    Raises:
      DamagedCheckpointError: truncated, altered or not a checkpoint.
      ValueError: written by a newer release, or made by someone else to run code.
      OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = _header(file.readline(MAX_HEADER_BYTES))
        payload = file.read()
    if len(payload) != header["bytes"]:
        raise DamagedCheckpointError(f"it holds {len(payload)} bytes, expected {header['bytes']}")
    if hashlib.sha256(payload).hexdigest() != header["sha256"]:
        raise DamagedCheckpointError("its content does not have the SHA-256 that it states")
    if header["version"] > FORMAT_VERSION:
        raise ValueError(
            f"{path} has checkpoint version {header['version']}; this release reads version {FORMAT_VERSION}; "
            "upgrade fastsample_dist."
        )
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than tensors and plain values, so this library did not write it; move it away."
        ) from error


def _header(line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT_NAME:
        raise DamagedCheckpointError("it does not begin like a checkpoint")
    version = header.get("version")
    if not isinstance(version, int) or version < 1 or not {"bytes", "sha256"} <= header.keys():
        raise DamagedCheckpointError("its first line lacks version, bytes or sha256")
    return header


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None  # paths() lists no others
    return int(match[1])

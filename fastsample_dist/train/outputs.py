"""Result files of commands: refused before the work when they cannot be written, complete when they appear.

Needs no torch, so that a command can report that torch is missing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path


def check_writable(option: str, file: Path) -> None:
    """Refuse a file that could not be written, before any work is done.

    Args:
      option: of the command line, for the message.
      file: what it names.
    Raises:
      ValueError: with the reason.
    """
    try:
        if file.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        if file.exists() and not file.is_file():  # it would be replaced by a file
            raise OSError(0, "it is a device or a pipe")
        with tempfile.TemporaryFile(dir=file.absolute().parent):
            return
    except OSError as error:
        raise ValueError(f"{option} {file} cannot be written ({error.strerror}); pass another file name.") from error


def write_json(file: Path, results: Mapping[str, object]) -> None:
    """Write results; the file, or what a link leads to, appears complete."""
    target = file.resolve()
    unfinished = target.with_name(f".{target.name}.unfinished")
    unfinished.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(target)

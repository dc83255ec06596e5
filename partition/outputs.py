"""Files that the command writes beside a partition: reports and pages."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any


def check_writable(option: str, path: Path) -> None:
    """Refuse a file that could not be written, before any work is done.

    Raises:
      ValueError: with the option, the file and the reason.
    """
    if path.is_dir():
        raise ValueError(f"{option} {path} is a directory; pass a file name.")
    if path.exists() and not path.is_file():  # a device or a pipe would be replaced by a file
        raise ValueError(f"{option} {path} is a device or a pipe; pass the name of a file.")
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            return
    except OSError as error:
        raise ValueError(f"{option} {path} cannot be written ({error.strerror}); pass another file name.") from error


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Write a report; see `write_text`."""
    write_text(path, json.dumps(report, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file that appears complete; of a symbolic link, the file that it leads to.

    Raises:
      OSError: the disk refuses; nothing is left then.
    """
    target = path.resolve()
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)

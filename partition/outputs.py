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
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            return
    except OSError as error:
        raise ValueError(f"{option} {path} cannot be written ({error.strerror}); pass another file name.") from error


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Write a report; the file appears complete."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)

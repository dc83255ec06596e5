"""Rewriting a partition's files so that nothing but the content tells: size and checksum are brought up to date."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fastsample_dist.graph.manifest import MANIFEST_NAME, read_manifest
from fastsample_dist.graph.npy_files import sha256_file


def rewrite(parts: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replace one file of a partition by `change` of its array, and its record in the manifest."""
    array = change(np.load(parts / name))
    (parts / name).unlink()  # the file may be a link that another partition shares
    np.save(parts / name, array)
    record = {"bytes": (parts / name).stat().st_size, "sha256": sha256_file(parts / name)}
    rewrite_manifest(parts, files={**read_manifest(parts).files, name: record})


def rewrite_manifest(parts: Path, **fields: object) -> None:
    """Replace fields of the manifest."""
    (parts / MANIFEST_NAME).write_text(replace(read_manifest(parts), **fields).to_json())


def entry(index: int | slice, value: int | np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Set one entry, or a run of them."""

    def change(array: np.ndarray) -> np.ndarray:
        array[index] = value
        return array

    return change

"""int8 features with scales on disk: format version 2, and what is refused."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.graph.storage import load_part, read_manifest, verify_files
from tests.graph.test_storage import FILES, load_everything, write_parts

NUMBERS = {name: array.astype(np.int8) for name, array in FILES.items() if name.endswith("features.npy")}
SCALES = {"part-0/scales.npy": np.array([0.5, 0, 2], np.float32), "part-1/scales.npy": np.ones(2, np.float32)}


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    return write_parts(tmp_path / "scaled", {**FILES, **NUMBERS, **SCALES}, feature_dtype="int8", feature_scales=True)


def test_features_come_with_their_scales(scaled):
    part = load_part(scaled, read_manifest(scaled), 0)
    assert (part.features.dtype, part.scales.tolist()) == (torch.int8, [0.5, 0, 2])
    assert part.feature_table.values(torch.arange(3)).tolist() == [[0, 0.5], [0, 0], [8, 10]]


def test_a_release_that_knows_no_scales_refuses_them(scaled, tmp_path):
    parts = write_parts(tmp_path / "parts")
    document, plain = (json.loads((path / "manifest.json").read_text()) for path in (scaled, parts))
    assert (document["version"], document["feature_dtype"], document["feature_scales"]) == (2, "int8", True)
    assert plain["version"] == 1 and "feature_scales" not in plain


def test_int8_features_without_scales_are_plain_integers_of_version_1(tmp_path):
    path = write_parts(tmp_path / "plain", {**FILES, **NUMBERS}, feature_dtype="int8")
    manifest = read_manifest(path)
    part = load_part(path, manifest, 0)
    assert manifest.version == 1 and part.scales is None and not part.feature_table.is_scaled


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), "part-0/scales.npy is missing; expected 140 bytes"),
        (
            lambda file: os.truncate(file, 139),
            "part-0/scales.npy is truncated: it has 139 bytes, the manifest says 140",
        ),
        (lambda file: np.save(file, np.ones(3, np.int32)), "part-0/scales.npy holds int32 of shape .*expects float32"),
    ],
    ids=["missing", "truncated", "foreign"],
)
def test_damaged_scales_are_refused_by_name(scaled, damage, message):
    damage(scaled / "part-0/scales.npy")
    with pytest.raises(ValueError, match=message):
        load_everything(scaled)


def test_altered_scales_are_refused_by_their_checksum(scaled):
    np.save(scaled / "part-0/scales.npy", np.array([0.5, 0, 4], np.float32))
    with pytest.raises(ValueError, match="part-0/scales.npy is altered: its SHA-256 is"):
        verify_files(scaled, read_manifest(scaled), ["part-0/scales.npy"])


def test_scales_that_the_manifest_lists_not_are_refused(tmp_path):
    path = write_parts(tmp_path / "parts", {**FILES, **NUMBERS}, feature_dtype="int8", feature_scales=True)
    with pytest.raises(ValueError, match="manifest.json does not list part-0/scales.npy; partition the graph again"):
        load_everything(path)


@pytest.mark.parametrize("fields", [{"feature_dtype": "float16"}, {"feature_dtype": None, "feature_dim": None}])
def test_scales_of_other_features_are_refused(tmp_path, fields):
    path = write_parts(tmp_path / "parts", **{**fields, "feature_scales": True})
    with pytest.raises(ValueError, match="manifest.json is damaged: its version is 2, its feature_dtype .* True"):
        read_manifest(path)

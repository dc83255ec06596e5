"""Node types in manifest.json: read as written, refused when they cannot be, absent for a graph without types."""

import json
from pathlib import Path

import pytest

from fastsample_dist.graph.manifest import MANIFEST_NAME, Manifest, read_manifest

FIELDS = {
    "name": "tiny",
    "num_nodes": 9,
    "num_edges": 0,
    "num_parts": 2,
    "part_ranges": (0, 4, 9),
    "feature_dim": None,
    "feature_dtype": None,
    "num_classes": 0,
    "method": "random",
    "seed": 0,
    "undirected": False,
    "files": {},
}
TYPES = {"node_types": ("paper", "author"), "type_ranges": ((0, 1, 4), (4, 9, 9))}


def write(path: Path, **fields: object) -> Path:
    (path / MANIFEST_NAME).write_text(Manifest(**{**FIELDS, **fields}).to_json())
    return path


def test_types_come_back_as_written(tmp_path):
    manifest = read_manifest(write(tmp_path, **TYPES))
    assert (manifest.node_types, manifest.type_ranges) == (TYPES["node_types"], TYPES["type_ranges"])
    assert manifest.version == 1


def test_a_part_may_hold_several_runs(tmp_path):
    runs = ((0, 1, 2), (2, 3, 4), (4, 9, 9))
    assert read_manifest(write(tmp_path, **{**TYPES, "type_ranges": runs})).type_ranges == runs


def test_graph_without_types_has_none_and_its_manifest_no_key(tmp_path):
    manifest = read_manifest(write(tmp_path))
    assert (manifest.node_types, manifest.type_ranges) == ((), ())
    assert not {"node_types", "type_ranges"} & json.loads((tmp_path / MANIFEST_NAME).read_text()).keys()


def test_version_of_scales_without_scales_is_damage(tmp_path):
    with pytest.raises(ValueError, match=r"manifest.json is damaged: its version is 2, .* its feature_scales False"):
        read_manifest(write(tmp_path, version=2))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"node_types": ["a", "a"]}, r"its node_types is \['a', 'a'\], not a list of different names"),
        ({"node_types": ["a", 1]}, "not a list of different names"),
        ({"type_ranges": []}, "its type_ranges do not fit its 2 node types"),
        ({"type_ranges": [[0, 1, 4]]}, "its type_ranges do not end where its parts do"),
        ({"type_ranges": [[0, 1, 5], [5, 9, 9]]}, "its type_ranges do not end where its parts do"),
        ({"type_ranges": [[0, 4], [4, 9, 9]]}, r"its type_ranges\[0\] do not continue from 0 in 2 steps"),
        ({"type_ranges": [[0, 1, 4], [4, 10, 9]]}, r"its type_ranges\[1\] do not continue from 4 in 2 steps"),
        ({"type_ranges": [[0, 1, 3], [4, 5, 9]]}, r"its type_ranges\[1\] do not continue from 3 in 2 steps"),
        ({"type_ranges": [[0, 1.5, 4], [4, 5, 9]]}, r"its type_ranges\[0\] do not continue from 0 in 2 steps"),
    ],
)
def test_impossible_types_are_refused(tmp_path, fields, message):
    with pytest.raises(ValueError, match=f"manifest.json is damaged: .*{message}"):
        read_manifest(write(tmp_path, **{**TYPES, **fields}))

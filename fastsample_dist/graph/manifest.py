"""manifest.json of a partition: what the partition holds, and the size and SHA-256 of every file.

The manifest is written last, so a directory that has one is complete. It is JSON with sorted keys and no time
stamp (the same partition gives the same bytes) and carries the SHA-256 of its own other fields, so that damage to it
is found as surely as damage to the files it lists. Keys that this release does not know are ignored; node_types and
type_ranges appear only for a graph whose nodes have types, task and num_targets only for labels that are not
classes (graph/labels.py): an older release finds no labels in such a partition. int8 features with scales would be
misread, as plain integers, by a release that does not know scales: a manifest with feature_scales has version 2, which
such a release refuses. Version 2 is version 1 and nothing but that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from fastsample_dist.graph.labels import CLASSIFICATION, TASKS

FORMAT_VERSION, SCALED_VERSION = 1, 2  # without and with scales
SCALED = "int8"  # type of features that have scales
FORMAT_NAME = "fastsample-partition"
MANIFEST_NAME = "manifest.json"
_SELF_HASH = "manifest_sha256"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of manifest.json.

    Attributes:
      name: name of the graph.
      num_nodes, num_edges: of the whole graph; edges are directed and counted as stored.
      num_parts: number of parts.
      part_ranges: num_parts + 1 offsets; part p owns the ids part_ranges[p] .. part_ranges[p + 1] - 1.
      feature_dim, feature_dtype: of features.npy (NumPy's name of the type); None without features.
      feature_scales: rows of features are int8 numbers with a scale each, in scales.npy.
      num_classes: labels run from 0 to num_classes - 1 (-1: unlabelled); 0 without labels and for other tasks.
      method, seed: how the nodes were assigned.
      undirected: every edge is stored in both directions.
      files: {relative path: {"bytes": int, "sha256": str}}, manifest.json itself left out.
      stats: further facts about the making of the partition, for reports only.
      node_types: names of the node types; () when all nodes are of one kind.
      type_ranges: () without types, else runs of consecutive ids, in order: len(node_types) + 1 offsets each. Nodes of
        type t in run r are type_ranges[r][t] .. type_ranges[r][t + 1] - 1, by ascending original id. A run is a part;
        parts that were joined keep their runs.
      task: what the labels are for, one of labels.TASKS; "classification" without labels.
      num_targets: columns of targets.npy; 0 for classification.
      version: format version.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_parts: int
    part_ranges: tuple[int, ...]
    feature_dim: int | None
    feature_dtype: str | None
    num_classes: int
    method: str
    seed: int
    undirected: bool
    files: Mapping[str, Mapping[str, Any]]
    stats: Mapping[str, Any] = field(default_factory=dict)
    version: int = FORMAT_VERSION
    node_types: tuple[str, ...] = ()
    type_ranges: tuple[tuple[int, ...], ...] = ()
    task: str = CLASSIFICATION
    num_targets: int = 0
    feature_scales: bool = False

    @cached_property
    def files_by_room(self) -> dict[str, list[str]]:
        """Names of the files of every room ("topology", "part-0", ...), in the order of `files`."""
        rooms: dict[str, list[str]] = {}
        for name in self.files:
            rooms.setdefault(PurePosixPath(name).parts[0], []).append(name)
        return rooms

    def to_json(self) -> str:
        """The text of manifest.json."""
        fields = {"format": FORMAT_NAME, **asdict(self)}
        if not self.node_types:
            del fields["node_types"], fields["type_ranges"]
        if not self.num_targets:
            del fields["task"], fields["num_targets"]
        if not self.feature_scales:
            del fields["feature_scales"]
        return json.dumps({**fields, _SELF_HASH: _hash_of(fields)}, indent=1, sort_keys=True) + "\n"


_FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "num_nodes": int,
    "num_edges": int,
    "num_parts": int,
    "part_ranges": list,
    "feature_dim": (int, type(None)),
    "feature_dtype": (str, type(None)),
    "num_classes": int,
    "method": str,
    "seed": int,
    "undirected": bool,
    "files": dict,
    "stats": dict,
}


def read_manifest(path: str | Path) -> Manifest:
    """Read and check PARTS/manifest.json; the files it lists are not opened.

    Args:
      path: the partition's directory.
    Returns:
      Manifest of format version 1, or 2 with scales.
    Raises:
      ValueError: no such directory, no manifest (not a finished partition), a damaged or foreign one, or a
        newer format version.
    """
    directory = Path(path)
    file = directory / MANIFEST_NAME
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; pass the output directory of fastsample-partition.")
    if not file.is_file():
        raise ValueError(f"{file} is missing, so {directory} is not a finished partition; run fastsample-partition.")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(file, f"it is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
        raise ValueError(
            f'{file} does not have "format": "{FORMAT_NAME}", so {directory} is not a partition of this '
            "framework; run fastsample-partition."
        )
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise _damaged(file, f"its version is {version!r}")
    if version not in (FORMAT_VERSION, SCALED_VERSION):
        raise ValueError(
            f"{file}: this is format version {version}; this release reads versions {FORMAT_VERSION} and "
            f"{SCALED_VERSION}; upgrade fastsample_dist or partition the graph again."
        )
    claimed = document.pop(_SELF_HASH, None)
    if claimed != _hash_of(document):
        raise _damaged(file, f"its fields do not have the SHA-256 that its {_SELF_HASH} states")
    return _checked(file, document)


def _checked(file: Path, document: dict[str, Any]) -> Manifest:
    for key, kind in _FIELD_TYPES.items():
        if key not in document or not isinstance(document[key], kind):
            raise _damaged(file, f"its {key} is {document.get(key)!r}")
    ranges = document["part_ranges"]
    ends_fit = len(ranges) == document["num_parts"] + 1 >= 2 and (ranges[0], ranges[-1]) == (0, document["num_nodes"])
    if not ends_fit or any(lo > hi for lo, hi in pairwise(ranges)):
        raise _damaged(file, "its part_ranges do not run from 0 to num_nodes in num_parts steps")
    for name, record in document["files"].items():
        pure = PurePosixPath(name)
        inside = not pure.is_absolute() and ".." not in pure.parts
        if not inside or not isinstance(record, dict) or not {"bytes", "sha256"} <= record.keys():
            raise _damaged(file, f"its entry for {name!r} is not a path inside the partition with bytes and sha256")
    values = {key: document[key] for key in _FIELD_TYPES}
    values |= {"part_ranges": tuple(ranges), "version": document["version"]}
    types, task = _checked_types(file, document), _checked_task(file, document)
    return Manifest(**values, **types, **task, feature_scales=_checked_scales(file, document))


def version_of(feature_scales: bool) -> int:
    """Format version of a partition with or without scales."""
    return SCALED_VERSION if feature_scales else FORMAT_VERSION


def _checked_scales(file: Path, document: dict[str, Any]) -> bool:
    """The field feature_scales, which goes with one type of features and one version."""
    scales, dtype, version = document.get("feature_scales", False), document["feature_dtype"], document["version"]
    if type(scales) is not bool or version != version_of(scales) or (scales and dtype != SCALED):
        raise _damaged(file, f"its version is {version}, its feature_dtype {dtype} and its feature_scales {scales!r}")
    return scales


def _checked_task(file: Path, document: dict[str, Any]) -> dict[str, Any]:
    """The fields task and num_targets; a task of a later release is refused, as its labels are not known."""
    task, count = document.get("task", CLASSIFICATION), document.get("num_targets", 0)
    if type(count) is not int or count < 0:
        raise _damaged(file, f"its num_targets is {count!r}")
    if task not in TASKS:
        raise ValueError(
            f"{file}: its labels are for the task {task!r}; this release knows {', '.join(TASKS)}; upgrade "
            "fastsample_dist or partition the graph again."
        )
    if (task == CLASSIFICATION) != (count == 0):
        raise _damaged(file, f"its task is {task} but its num_targets is {count}")
    return {"task": task, "num_targets": count}


def _checked_types(file: Path, document: dict[str, Any]) -> dict[str, Any]:
    """The fields node_types and type_ranges; none where the graph has no types."""
    names, runs = document.get("node_types", []), document.get("type_ranges", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise _damaged(file, f"its node_types is {names!r}, not a list of different names")
    if not isinstance(runs, list) or bool(runs) != bool(names):
        raise _damaged(file, f"its type_ranges do not fit its {len(names)} node types")
    end = 0
    for number, run in enumerate(runs):
        integers = isinstance(run, list) and len(run) == len(names) + 1 and all(type(offset) is int for offset in run)
        if not integers or run[0] != end or any(lo > hi for lo, hi in pairwise(run)):
            raise _damaged(file, f"its type_ranges[{number}] do not continue from {end} in {len(names)} steps")
        end = run[-1]
    bounds = {0, *(run[-1] for run in runs)}
    if names and (end != document["num_nodes"] or not bounds.issuperset(document["part_ranges"])):
        raise _damaged(file, "its type_ranges do not end where its parts do")
    return {"node_types": tuple(names), "type_ranges": tuple(map(tuple, runs))}


def _damaged(file: Path, what: str) -> ValueError:
    return ValueError(f"{file} is damaged: {what}; copy it again or partition the graph again.")


def _hash_of(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

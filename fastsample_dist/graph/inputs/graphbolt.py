"""GraphBolt's OnDiskDataset: metadata.yaml and the files it names. DGL itself is not needed.

    dataset_name: ...
    graph:
      nodes: [{type, num}]
      edges: [{type: "src:rel:dst", format: csv | numpy, path}]      csv: "source,destination"; numpy: [2, num_edges]
      feature_data: [{domain: node | edge, type, name, format: numpy | torch, path}]
    feature_data: [...]
    tasks: [{name, num_classes, train_set: [{type, data: [{name: seeds}, {name: labels}]}], validation_set, test_set}]
Types may be left out of a graph that has one. With several, they are in alphabetical order, as GraphBolt numbers them.
Labels and splits are those of the first task over nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.heterogeneous import (
    FEATURE_NAMES,
    WEIGHT_NAMES,
    EdgeType,
    NodeType,
    TypedGraph,
    first_of,
    flatten,
    note_left_out,
)
from fastsample_dist.graph.inputs.pickles import as_array, load_saved
from fastsample_dist.graph.inputs.read_options import ReadOptions
from fastsample_dist.graph.inputs.text_tables import announce, read_table
from fastsample_dist.graph.labels import class_labels
from fastsample_dist.graph.npy_files import open_npy

logger = logging.getLogger(__name__)

METADATA_NAME = "metadata.yaml"
_SETS = {"train": "train_set", "val": "validation_set", "test": "test_set"}
_SEED_NAMES, _LABEL_NAMES = ("seeds", "seed_nodes"), ("labels", "label")


def read_graphbolt(path: Path, options: ReadOptions) -> RawGraph:
    """Read a data set as its author wrote it; a reader of format `graphbolt`.

    Args:
      path: metadata.yaml or its directory. Relative names of files are resolved from there.
      options: with `undirected` every edge counts in both directions; otherwise edges are as listed.
    Returns:
      RawGraph.
    Raises:
      ImportError: PyYAML is missing.
      ValueError: a file is missing or not sound, or does not hold what the metadata state, by name.
    """
    return _OnDiskDataset(path / METADATA_NAME if path.is_dir() else path, options).read()


def count_graphbolt(path: Path) -> tuple[int, int]:
    """(nodes, edges at least) of a data set, as metadata.yaml states them; it does not count edges.

    Raises:
      ValueError, ImportError: as `read_graphbolt`, as far as that file goes.
    """
    return _OnDiskDataset(path / METADATA_NAME if path.is_dir() else path, ReadOptions()).num_nodes, 0


class _OnDiskDataset:
    def __init__(self, file: Path, options: ReadOptions) -> None:
        self._file, self._options = file, options
        self._meta = _read_yaml(file)
        if not isinstance(self._meta.get("graph"), Mapping):
            made = "; it is what GraphBolt made of a data set" if "graph_topology" in self._meta else ""
            raise ValueError(f"{file} has no graph{made}; expected the data set as its author wrote it; pass that one.")
        graph = self._meta["graph"]
        self._nodes = sorted(self._entries(graph, "nodes", "num"), key=lambda item: _type_of(item))
        self._edges = sorted(self._entries(graph, "edges", "path"), key=lambda item: _type_of(item))
        self._data = [
            *self._entries(graph, "feature_data", "path", needed=False),
            *self._entries(self._meta, "feature_data", "path", needed=False),
        ]

    def read(self) -> RawGraph:
        announce([self._place(item) for item in self._edges if item.get("format") == "csv"], self._options)
        task = self._node_task()
        classes = task.get("num_classes") if task else None
        graph = TypedGraph(
            name=str(self._meta.get("dataset_name") or self._file.absolute().parent.name),
            nodes=[self._node_type(item, task) for item in self._nodes],
            edges=[self._edge_type(item) for item in self._edges],
            undirected=bool(self._options.undirected),
            num_classes=classes if isinstance(classes, int) else None,
            task=self._options.task,
            sources=[self._file, *(self._place(item) for item in self._edges)],
            where=str(self._file),
        )
        return flatten(graph, self._options.scratch)

    @property
    def num_nodes(self) -> int:
        """Nodes of all types, as stated."""
        return sum(item["num"] for item in self._nodes if isinstance(item["num"], int))

    def _entries(self, place: Mapping[str, Any], key: str, value: str, *, needed: bool = True) -> list[dict[str, Any]]:
        """A list of objects that have at least `value`."""
        entries = place.get(key) or []
        sound = isinstance(entries, list) and all(isinstance(item, dict) and value in item for item in entries)
        if not sound or (needed and not entries):
            raise ValueError(f"{self._file}: {key} is {str(entries)[:60]}; expected a list of entries with {value}.")
        return entries

    def _node_task(self) -> dict[str, Any] | None:
        """The first task whose sets list nodes."""
        tasks = self._meta.get("tasks") or []
        over_nodes = [task for task in tasks if isinstance(task, dict) and self._is_over_nodes(task)]
        if len(tasks) > 1 or (tasks and not over_nodes):
            chosen = f"{over_nodes[0].get('name') or 'the first'} is taken" if over_nodes else "none is over nodes"
            logger.info("%s has the tasks %s: %s", self._file, ", ".join(str(t.get("name")) for t in tasks), chosen)
        return over_nodes[0] if over_nodes else None

    def _is_over_nodes(self, task: dict[str, Any]) -> bool:
        """Whether the seeds of the task are single ids; those of links and edges are pairs."""
        for key in _SETS.values():
            for group in task.get(key) or []:
                return self._array(self._seeds_and_labels(group)[0]).ndim == 1
        return False

    def _node_type(self, item: dict[str, Any], task: dict[str, Any] | None) -> NodeType:
        name, count = _type_of(item), item["num"]
        if not isinstance(count, int) or count < 0:
            raise ValueError(f"{self._file}: num of nodes of type {name or '(one)'} is {count!r}; expected a number.")
        feature = self._datum("node", name, FEATURE_NAMES)
        features = self._array(feature) if feature else None
        if features is not None and features.ndim == 1:  # as GraphBolt takes it
            features = features.reshape(-1, 1)
        labels, splits, places = self._task_columns(task, name, count)
        if feature:
            places["features"] = str(self._place(feature))
        return NodeType(
            name=name,
            num_nodes=count,
            features=features,
            labels=labels,
            splits=splits,
            where=lambda column: places.get(column, str(self._file)),
        )

    def _task_columns(
        self, task: dict[str, Any] | None, name: str, count: int
    ) -> tuple[np.ndarray | None, dict[str, np.ndarray], dict[str, str]]:
        """Labels and splits of one node type, and where they come from."""
        labels, splits, places = None, {}, {}
        for split, key in _SETS.items():
            for group in (task or {}).get(key) or []:
                if _type_of(group) != name:
                    continue
                seed_file, label_file = self._seeds_and_labels(group)
                where, seeds = str(self._place(seed_file)), self._array(seed_file)
                if seeds.size and not (seeds.min() >= 0 and seeds.max() < count):
                    wrong = int(np.argmax((seeds < 0) | (seeds >= count)))
                    raise ValueError(
                        f"{where}: entry {wrong} is {seeds[wrong]}; expected node ids 0 to {count - 1}; correct it."
                    )
                splits[split], places[split] = seeds, where
                if label_file is None:
                    continue
                values = class_labels(str(self._place(label_file)), self._array(label_file), self._options.task)
                if len(values) != len(seeds):
                    raise ValueError(f"{where} has {len(seeds)} seeds but {len(values)} labels; expected one for each.")
                labels = _unlabelled(count, values) if labels is None else labels
                if values.shape[1:] != labels.shape[1:]:
                    raise ValueError(
                        f"{self._place(label_file)} has labels of shape {values.shape}; expected as many columns as in "
                        "the other sets; correct it."
                    )
                labels[seeds] = values
        return labels, splits, places

    def _seeds_and_labels(self, group: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Entries of one set: by name, or in older files by position."""
        data = self._entries(group, "data", "path")
        named = {item.get("name"): item for item in data}
        seed, label = first_of(named, _SEED_NAMES), first_of(named, _LABEL_NAMES)
        by_position = data[1] if len(data) > 1 and None in named else None
        return named[seed] if seed else data[0], named[label] if label else by_position

    def _edge_type(self, item: dict[str, Any]) -> EdgeType:
        name, file = _type_of(item), self._place(item)
        ends = name.split(":") if name else ["", "", ""]
        if len(ends) != 3:
            raise ValueError(f"{self._file}: edges of type {name!r}; expected 'source type:relation:target type'.")
        if item.get("format") == "csv":
            edges = read_table(file, self._options, np.int64, width=2).T
        else:
            edges = self._array(item)
            if edges.ndim != 2 or edges.shape[0] != 2:
                raise ValueError(f"{file} has shape {edges.shape}; expected (2, num_edges).")
        weight = self._datum("edge", name, WEIGHT_NAMES)
        return EdgeType(
            source=ends[0],
            relation=ends[1],
            target=ends[2],
            pieces=[(str(file), edges)],
            weights=[self._array(weight).reshape(-1)] if weight else None,
        )

    def _datum(self, domain: str, name: str, usual: Sequence[str]) -> dict[str, Any] | None:
        """The first entry of feature_data under one of some usual names, of one type of nodes or edges."""
        data = {
            entry.get("name"): entry
            for entry in self._data
            if entry.get("domain") == domain and _type_of(entry) == name
        }
        taken = first_of(data, usual)
        others = sorted(map(str, set(data) - {taken}))
        note_left_out(f"{self._file}: {domain} data{f' of type {name}' * bool(name)}", others)
        return data[taken] if taken else None

    def _array(self, item: dict[str, Any]) -> np.ndarray:
        file, kind = self._place(item), item.get("format")
        if kind == "numpy":
            return open_npy(file)
        if kind == "torch":
            loaded = load_saved(file)
            if not isinstance(loaded, torch.Tensor):
                raise ValueError(f"{file} holds a {type(loaded).__name__}; expected a tensor; save it again.")
            return as_array(loaded, file, self._options.scratch)
        raise ValueError(f"{self._file}: {file.name} has format {kind!r}; expected numpy or torch, or csv for edges.")

    def _place(self, item: dict[str, Any]) -> Path:
        return self._file.parent / str(item["path"])


def _unlabelled(count: int, values: np.ndarray) -> np.ndarray:
    """Labels of `count` nodes of which none is known, of the kind of `values`: classes, or targets."""
    if values.ndim == 1:
        return np.full(count, -1, dtype=np.int64)
    return np.full((count, *values.shape[1:]), np.nan, dtype=np.result_type(np.float32, values))


def _type_of(item: Mapping[str, Any]) -> str:
    """Name of the type; "" where there is only one."""
    return str(item.get("type") or "")


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            f"format graphbolt needs PyYAML, which is not there ({error}); pip install fastsample_dist[formats]."
        ) from error
    if not file.is_file():
        raise ValueError(f"{file} is missing; expected the metadata of a GraphBolt data set.")
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{file} is not YAML ({' '.join(str(error).split())}); write it again.") from error
    if not isinstance(document, dict):
        raise ValueError(f"{file} holds a {type(document).__name__}; expected a mapping with graph; write it again.")
    return document

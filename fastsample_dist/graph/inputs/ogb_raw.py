"""Node-property graphs of the Open Graph Benchmark from their raw files, without the ogb package.

    raw/edge.csv.gz num-node-list.csv.gz num-edge-list.csv.gz [node-feat.csv.gz] node-label.csv.gz      one node type
    raw/data.npz (edge_index, num_nodes_list, num_edges_list, [node_feat]) node-label.npz               papers100M
    raw/num-node-dict.csv.gz triplet-type-list.csv.gz relations/<a>___<r>___<b>/edge.csv.gz             several types
        nodetype-has-label.csv.gz node-feat/<type>/node-feat.csv.gz node-label/<type>/node-label.csv.gz
    split/<scheme>/{train,valid,test}.csv.gz or split_dict.pt; with types <scheme>/<type>/...csv.gz
Text is parsed into the scratch directory, arrays of .npz archives are mapped in place or unpacked there. NaN labels,
the mark of unlabelled nodes in some sets, become -1; several labels per node, as ogbn-proteins has, are targets
(graph/labels.py). Types are in alphabetical order, as ogb has them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.archives import Archive
from fastsample_dist.graph.inputs.heterogeneous import (
    EdgeType,
    NodeType,
    TypedGraph,
    flatten,
    note_left_out,
)
from fastsample_dist.graph.inputs.pickles import as_array, load_saved
from fastsample_dist.graph.inputs.read_options import ReadOptions
from fastsample_dist.graph.inputs.text_tables import announce, read_lines, read_table
from fastsample_dist.graph.labels import class_labels

logger = logging.getLogger(__name__)

_SPLIT_FILES = {"train": "train", "val": "valid", "test": "test"}

_TAKEN = {
    *("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz", "num-node-list.csv.gz", "num-edge-list.csv.gz"),
    *("num-node-dict.csv.gz", "triplet-type-list.csv.gz", "nodetype-has-label.csv.gz"),
    *("edge_index", "node_feat", "num_nodes_list", "num_edges_list"),
}


@dataclass(frozen=True)
class KnownSet:
    """What ogb's table of data sets (ogb/nodeproppred/master.csv, version 1.3.6) says about one.

    Attributes:
      num_classes: labels are below it.
      scheme: name of its standard split.
      add_inverse_edge: ogb lists every raw edge in both directions.
    """

    num_classes: int
    scheme: str
    add_inverse_edge: bool = False


KNOWN_SETS = {
    "ogbn-arxiv": KnownSet(40, "time"),
    "ogbn-mag": KnownSet(349, "time"),
    "ogbn-papers100M": KnownSet(172, "time"),
    "ogbn-products": KnownSet(47, "sales_ranking", add_inverse_edge=True),
    "ogbn-proteins": KnownSet(2, "species", add_inverse_edge=True),
}


def set_name(directory: Path) -> str:
    """ogb's name for a data set's directory: "ogbn-arxiv" for ogbn_arxiv, ogbn_arxiv_pyg or the archive's arxiv."""
    bare = directory.absolute().name.replace("_", "-").removeprefix("ogbn-")
    for suffix in ("-pyg", "-dgl", "-bin"):
        bare = bare.removesuffix(suffix)
    return next((name for name in KNOWN_SETS if name.lower() == f"ogbn-{bare}".lower()), f"ogbn-{bare}")


def read_raw(directory: Path, options: ReadOptions) -> RawGraph:
    """Read a data set from its raw files.

    Args:
      directory: the data set's; it holds raw/ and split/.
      options: with `undirected` every edge counts in both directions; it always does in the sets for which ogb adds
        the inverse edges.
    Returns:
      RawGraph with ogb's standard split.
    Raises:
      ValueError: a file is missing or not sound, by name; several graphs.
    """
    return _RawSet(directory, options).read()


class _RawSet:
    def __init__(self, directory: Path, options: ReadOptions) -> None:
        self._directory, self._raw, self._options = directory, directory / "raw", options
        self._name = set_name(directory)
        self._known = KNOWN_SETS.get(self._name)
        if self._known is None:
            logger.info("%s is not a known data set: its edges count as they are listed", self._name)
        self._scheme = self._split_directory()

    def read(self) -> RawGraph:
        found = {file.name for file in self._raw.rglob("*.csv.gz")} if self._raw.is_dir() else set()
        note_left_out(str(self._raw), sorted(found - _TAKEN))
        if (self._raw / "triplet-type-list.csv.gz").is_file():
            nodes, edges = self._typed_text()
        elif (self._raw / "data.npz").is_file():
            nodes, edges = self._binary()
        elif (self._raw / "edge.csv.gz").is_file():
            nodes, edges = self._text()
        else:
            raise ValueError(
                f"{self._raw} has no edge.csv.gz, data.npz or triplet-type-list.csv.gz; expected the raw files of an "
                "OGB node-property data set; download it again."
            )
        return flatten(
            TypedGraph(
                name=self._name,
                nodes=nodes,
                edges=edges,
                undirected=bool(self._options.undirected or (self._known and self._known.add_inverse_edge)),
                num_classes=self._known.num_classes if self._known else None,
                task=self._options.task,
                sources=list(self._raw.rglob("edge.csv.gz")),
                where=str(self._directory),
            ),
            self._options.scratch,
        )

    def _text(self) -> tuple[list[NodeType], list[EdgeType]]:
        announce([*self._raw.glob("*.csv.gz"), *self._scheme.glob("*.csv.gz")], self._options)
        num_nodes = only_count(self._raw / "num-node-list.csv.gz")
        num_edges = only_count(self._raw / "num-edge-list.csv.gz")
        file = self._raw / "edge.csv.gz"
        edges = self._edges(file, num_edges)
        features = self._raw / "node-feat.csv.gz"
        label_file = self._raw / "node-label.csv.gz"
        nodes = NodeType(
            name="",
            num_nodes=num_nodes,
            features=read_table(features, self._options, np.float32) if features.is_file() else None,
            labels=self._labels(label_file),
            splits=self._splits(""),
            where=lambda column: str({"features": features, "labels": label_file}.get(column, self._scheme / column)),
        )
        return [nodes], [EdgeType(source="", relation="", target="", pieces=[(str(file), edges)])]

    def _binary(self) -> tuple[list[NodeType], list[EdgeType]]:
        archive = Archive(self._raw / "data.npz", self._options)
        label_archive = Archive(self._raw / "node-label.npz", self._options)
        packed = [archive.packed_bytes(name) for name in ("edge_index", "node_feat")]
        if total := sum(packed) + label_archive.packed_bytes("node_label"):
            self._options.on_total(total)
        note_left_out(str(archive.file), sorted(set(archive.members) - _TAKEN))
        counts = {name: archive.open(f"num_{name}_list").reshape(-1) for name in ("nodes", "edges")}
        for name, values in counts.items():
            if values.shape != (1,):
                raise ValueError(f"{archive.file}: num_{name}_list has {len(values)} entries; expected one graph.")
        edges = archive.open("edge_index", aligned=True)
        where = f"{archive.file}: edge_index"
        if edges.shape != (2, int(counts["edges"][0])):
            raise ValueError(f"{where} has shape {edges.shape}; expected (2, {counts['edges'][0]}) by num_edges_list.")
        label_where = f"{label_archive.file}: node_label"
        nodes = NodeType(
            name="",
            num_nodes=int(counts["nodes"][0]),
            features=archive.open("node_feat") if "node_feat" in archive.members else None,
            labels=class_labels(label_where, label_archive.open("node_label"), self._options.task),
            splits=self._splits(""),
            where=lambda column: (
                {"features": f"{archive.file}: node_feat", "labels": label_where}.get(column)
                or f"{self._scheme / column}"
            ),
        )
        return [nodes], [EdgeType(source="", relation="", target="", pieces=[(where, edges)])]

    def _typed_text(self) -> tuple[list[NodeType], list[EdgeType]]:
        announce([*self._raw.rglob("*.csv.gz"), *self._scheme.rglob("*.csv.gz")], self._options)
        counts = _flags(self._raw / "num-node-dict.csv.gz")
        labelled = _flags(self._raw / "nodetype-has-label.csv.gz")
        nodes = []
        for name, count in sorted(counts.items()):
            features = self._raw / "node-feat" / name / "node-feat.csv.gz"
            label_file = self._raw / "node-label" / name / "node-label.csv.gz"
            places = {"features": features, "labels": label_file}
            labels = None
            if labelled.get(name) == "True":
                labels = self._labels(label_file)
            nodes.append(
                NodeType(
                    name=name,
                    num_nodes=_count(self._raw / "num-node-dict.csv.gz", count),
                    features=read_table(features, self._options, np.float32) if features.is_file() else None,
                    labels=labels,
                    splits=self._splits(name),
                    where=lambda column, name=name, places=places: str(
                        places.get(column, self._scheme / name / column)
                    ),
                )
            )
        triplet_file = self._raw / "triplet-type-list.csv.gz"
        edges = []
        for fields in sorted(read_lines(triplet_file)):
            if len(fields) != 3:
                raise ValueError(
                    f"{triplet_file} has {','.join(fields)!r}; expected 'source type,relation,target type'."
                )
            directory = self._raw / "relations" / "___".join(fields)
            listed = self._edges(directory / "edge.csv.gz", only_count(directory / "num-edge-list.csv.gz"))
            pieces = [(str(directory / "edge.csv.gz"), listed)]
            edges.append(EdgeType(source=fields[0], relation=fields[1], target=fields[2], pieces=pieces))
        return nodes, edges

    def _labels(self, file: Path) -> np.ndarray:
        return class_labels(str(file), read_table(file, self._options, np.float32), self._options.task)

    def _edges(self, file: Path, num_edges: int) -> np.ndarray:
        edges = read_table(file, self._options, np.int64, width=2).T
        if edges.shape[1] != num_edges:
            stated = file.with_name("num-edge-list.csv.gz")
            raise ValueError(f"{file} has {edges.shape[1]} edges; expected {num_edges} as {stated} says.")
        return edges

    def _split_directory(self) -> Path:
        """Directory of the standard split."""
        directory = self._directory / "split"
        found = sorted(item for item in directory.iterdir() if item.is_dir()) if directory.is_dir() else []
        if self._known is not None and directory / self._known.scheme in found:
            return directory / self._known.scheme
        if len(found) != 1:
            names = ", ".join(item.name for item in found) or "none"
            raise ValueError(f"{directory} holds {len(found)} splits ({names}); expected one directory; keep that one.")
        return found[0]

    def _splits(self, type_name: str) -> dict[str, np.ndarray]:
        """Node ids of the splits of one type; "" where there are no types."""
        saved = self._scheme / "split_dict.pt"
        if saved.is_file():
            return _saved_split(saved, type_name)
        if type_name and _flags(self._scheme / "nodetype-has-split.csv.gz").get(type_name) != "True":
            return {}
        directory = self._scheme / type_name
        return {
            split: read_table(directory / f"{name}.csv.gz", self._options, np.int64, width=1)[:, 0]
            for split, name in _SPLIT_FILES.items()
        }


def _saved_split(file: Path, type_name: str) -> dict[str, np.ndarray]:
    """The splits of one type from split_dict.pt: {"train": ids} or {"train": {type: ids}}."""
    saved: Any = load_saved(file)
    if not isinstance(saved, Mapping) or not all(name in saved for name in _SPLIT_FILES.values()):
        raise ValueError(f"{file} holds no splits; expected a dict with train, valid and test; download it again.")
    splits = {}
    for split, name in _SPLIT_FILES.items():
        ids = saved[name]
        if isinstance(ids, Mapping) != bool(type_name):
            raise ValueError(
                f"{file}: {name} is a {type(ids).__name__}; expected node ids{' by type' * bool(type_name)}."
            )
        ids = ids.get(type_name) if type_name else ids
        if ids is not None:
            splits[split] = as_array(ids) if isinstance(ids, torch.Tensor) else np.asarray(ids)
    return splits


def _flags(file: Path) -> dict[str, str]:
    """A table of one line under a header of type names."""
    lines = read_lines(file)
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        raise ValueError(f"{file} has {len(lines)} lines; expected names of node types and one line of values below.")
    return dict(zip(*lines, strict=True))


def only_count(file: Path) -> int:
    """The number in a file that has one per graph.

    Raises:
      ValueError: the file is missing, is not a sound gzip file, or has something else.
    """
    lines = read_lines(file)
    if len(lines) != 1 or len(lines[0]) != 1:
        raise ValueError(f"{file} has {len(lines)} lines; expected one number, as the data set is one graph.")
    return _count(file, lines[0][0])


def _count(file: Path, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{file} has {text!r}; expected a number.") from None

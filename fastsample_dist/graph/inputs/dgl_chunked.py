"""DGL's chunked graph format: metadata.json and files of chunks. DGL itself is not needed.

    {"graph_name": ..., "node_type": [...], "num_nodes_per_type": [...],
     "edge_type": ["src:rel:dst"], "num_edges_per_type": [...],
     "edges": {"src:rel:dst": {"format": {"name": "csv", "delimiter": " "}, "data": [files]}},
     "node_data": {type: {name: {"format": {"name": "numpy"}, "data": [files]}}}, "edge_data": {...}}
Older files have num_nodes_per_chunk and num_edges_per_chunk, a list per type. A line or row of edges is "source
destination"; edges may be .parquet files too. Of the node data, those under the usual names of features, labels and
masks are taken; feature chunks that are .npy files stay mapped where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.graph.datasets import RawGraph, read_object
from fastsample_dist.graph.inputs.edge_store import write_edges
from fastsample_dist.graph.inputs.heterogeneous import (
    FEATURE_NAMES,
    LABEL_NAMES,
    MASK_NAMES,
    WEIGHT_NAMES,
    EdgeType,
    NodeType,
    TypedGraph,
    first_of,
    flatten,
    mask_ids,
    note_left_out,
)
from fastsample_dist.graph.inputs.parquet_edges import ParquetEdges
from fastsample_dist.graph.inputs.read_options import ReadOptions
from fastsample_dist.graph.inputs.text_tables import announce, made_name, read_table
from fastsample_dist.graph.labels import MULTILABEL, REGRESSION, class_labels
from fastsample_dist.graph.npy_files import open_npy
from fastsample_dist.graph.row_segments import RowSegments

METADATA_NAME = "metadata.json"
_KEYS = ("node_type", "edge_type", "edges")


def read_chunked(path: Path, options: ReadOptions) -> RawGraph:
    """Read a chunked graph; a reader of format `dgl-chunked`.

    Args:
      path: metadata.json or its directory. Relative names of chunks are resolved from there.
      options: with `undirected` every edge counts in both directions; otherwise edges are as listed.
    Returns:
      RawGraph; node types in the order of the file.
    Raises:
      ValueError: a file is missing or not sound, or does not hold what the metadata state, by name.
    """
    return _ChunkedGraph(path / METADATA_NAME if path.is_dir() else path, options).read()


def count_chunked(path: Path) -> tuple[int, int]:
    """(nodes, edges) of a chunked graph, as metadata.json states them.

    Raises:
      ValueError: as `read_chunked`, as far as that file goes.
    """
    graph = _ChunkedGraph(path / METADATA_NAME if path.is_dir() else path, ReadOptions())
    return graph.count("node"), graph.count("edge")


class _ChunkedGraph:
    def __init__(self, file: Path, options: ReadOptions) -> None:
        self._file, self._options = file, options
        self._meta = read_object(file, _KEYS)
        missing = [key for key in _KEYS if key not in self._meta]
        if missing:
            raise ValueError(f"{file} has no {', '.join(missing)}; expected an object with {', '.join(_KEYS)}.")

    def read(self) -> RawGraph:
        node_counts, edge_counts = (self._counts(kind) for kind in ("node", "edge"))
        described = [self._meta["edges"], *self._meta.get("node_data", {}).values()]
        files = [self._place(name) for table in described for entry in table.values() for name in entry["data"]]
        announce([file for file in files if file.suffix != ".npy"], self._options)
        graph = TypedGraph(
            name=str(self._meta.get("graph_name") or self._file.absolute().parent.name),
            nodes=[self._nodes(name, count) for name, count in node_counts.items()],
            edges=[self._edges(name, count) for name, count in edge_counts.items()],
            undirected=bool(self._options.undirected),
            task=self._options.task,
            sources=[self._file, *(file for file in files if file.is_file())],
            where=str(self._file),
        )
        return flatten(graph, self._options.scratch)

    def count(self, kind: str) -> int:
        """All nodes or all edges."""
        return sum(self._counts(kind).values())

    def _counts(self, kind: str) -> dict[str, int]:
        """Nodes or edges of each type."""
        names, totals = self._meta[f"{kind}_type"], self._meta.get(f"num_{kind}s_per_type")
        if totals is None:
            totals = self._meta.get(f"num_{kind}s_per_chunk")
        whole = isinstance(totals, list) and isinstance(names, list) and len(totals) == len(names)
        if whole:
            totals = [item if isinstance(item, list) else [item] for item in totals]
        if not whole or not all(isinstance(count, int) for item in totals for count in item):
            raise ValueError(
                f"{self._file}: num_{kind}s_per_type is {str(totals)[:60]}; expected a number for each of "
                f"{kind}_type, {names}."
            )
        return dict(zip(names, map(sum, totals), strict=True))

    def _nodes(self, name: str, count: int) -> NodeType:
        data = self._meta.get("node_data", {}).get(name, {})
        feature, label = first_of(data, FEATURE_NAMES), first_of(data, LABEL_NAMES)
        masks = {split: first_of(data, names) for split, names in MASK_NAMES.items()}
        used = {"features": feature, "labels": label, **masks}
        note_left_out(f"node data of type {name}", sorted(set(data) - set(used.values())))
        columns = {column: self._column(data[key], column) for column, key in used.items() if key is not None}
        places = {column: self._place(data[key]["data"][0]) for column, key in used.items() if key is not None}
        features = RowSegments(columns["features"]) if feature else None
        joined = {column: np.concatenate(parts) for column, parts in columns.items() if column != "features"}
        return NodeType(
            name=name,
            num_nodes=count,
            features=features.segments[0] if features and len(features.segments) == 1 else features,
            labels=class_labels(str(places["labels"]), joined["labels"], self._options.task) if label else None,
            splits={split: mask_ids(str(places[split]), joined[split], count) for split, key in masks.items() if key},
            where=lambda column: str(places.get(column, self._file)),
        )

    def _column(self, described: Mapping[str, Any], column: str) -> list[np.ndarray]:
        """The chunks of one kind of node data."""
        fractions = column == "features" or (column == "labels" and self._options.task in (MULTILABEL, REGRESSION))
        chunks = [self._chunk(described, name, np.float32 if fractions else np.int64) for name in described["data"]]
        for name, chunk in zip(described["data"], chunks, strict=True):
            if chunk.shape[1:] != chunks[0].shape[1:] or chunk.dtype != chunks[0].dtype:
                raise ValueError(
                    f"{self._place(name)} is {chunk.dtype} of shape {chunk.shape}, {self._place(described['data'][0])} "
                    f"{chunks[0].dtype} of shape {chunks[0].shape}; expected chunks of one type and width."
                )
        if column == "features" and chunks[0].ndim != 2:
            raise ValueError(f"{self._place(described['data'][0])} has shape {chunks[0].shape}; expected (rows, dim).")
        return chunks

    def _edges(self, name: str, count: int) -> EdgeType:
        ends = name.split(":")
        if len(ends) != 3:
            raise ValueError(f"{self._file}: edge_type {name!r}; expected 'source type:relation:target type'.")
        described = self._meta["edges"].get(name)
        if described is None:
            raise ValueError(f"{self._file}: edges has no {name!r}; expected one entry per edge_type.")
        pieces = []
        for chunk_name in described["data"]:
            if described.get("format", {}).get("name") == "parquet":
                pieces.append((str(self._place(chunk_name)), self._parquet_edges(self._place(chunk_name))))
                continue
            rows = self._chunk(described, chunk_name, np.int64, width=2)
            if rows.ndim != 2 or rows.shape[1] != 2:
                raise ValueError(f"{self._place(chunk_name)} has shape {rows.shape}; expected (num_edges, 2).")
            pieces.append((str(self._place(chunk_name)), rows.T))
        found = sum(edges.shape[1] for _, edges in pieces)
        if found != count:
            raise ValueError(
                f"{self._file}: the files of {name} list {found} edges; expected {count}; copy them again."
            )
        data = self._meta.get("edge_data", {}).get(name, {})
        weight = first_of(data, WEIGHT_NAMES)
        note_left_out(f"edge data of type {name}", sorted(set(data) - {weight}))
        weights = None
        if weight is not None:
            chunks = [self._chunk(data[weight], item, np.float32).reshape(-1) for item in data[weight]["data"]]
            weights = _cut_like(chunks, pieces)
        return EdgeType(source=ends[0], relation=ends[1], target=ends[2], pieces=pieces, weights=weights)

    def _parquet_edges(self, file: Path) -> np.ndarray:
        """Edges of a .parquet file, [2, n]."""
        if not file.is_file():
            raise ValueError(f"{file} is missing; expected a .parquet file there.")

        def make(path: Path) -> None:
            write_edges(path, ParquetEdges([file], np.iinfo(np.int64).max, self._options.on_bytes).chunks())

        return open_npy(self._options.scratch.made(made_name(file), [file], make))

    def _chunk(
        self, described: Mapping[str, Any], name: str, dtype: type[np.number], width: int | None = None
    ) -> np.ndarray:
        """One file; of a text file the fields are `dtype`."""
        file, kind = self._place(name), described.get("format", {}).get("name")
        if kind == "numpy":
            return open_npy(file)
        if kind == "csv":
            delimiter = described["format"].get("delimiter", ",")
            return read_table(file, self._options, dtype, delimiter=delimiter, width=width)
        raise ValueError(f"{self._file}: {file.name} has format {kind!r}; expected csv or numpy; convert it.")

    def _place(self, name: str) -> Path:
        return self._file.parent / name  # an absolute name stays as it is


def _cut_like(weights: list[np.ndarray], pieces: list[tuple[str, np.ndarray]]) -> list[np.ndarray]:
    """The weights of each piece of edges; any excess or shortfall is in the last."""
    counts = [edges.shape[1] for _, edges in pieces]
    if [len(part) for part in weights] == counts:
        return weights
    return np.split(np.concatenate(weights), np.cumsum(counts)[:-1])

"""How large an input graph is, seen from headers and sizes of files without reading the data.

npy: headers. A raw OGB directory: its lists of counts, or the headers inside its .npz archives. Text: the size of the
file over the mean length of the lines in a few sampled blocks, and the highest id among them: estimates, said to be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastsample_dist.graph.datasets import META_NAME, RawGraph, read_meta
from fastsample_dist.graph.npy_files import NpyHeader, npy_header
from fastsample_dist.graph.storage import SPLITS

SAMPLED_BLOCKS, BLOCK_BYTES = 16, 1 << 16  # of a text file
_COLUMNS = ("edge_weight", "features", "labels", *(f"{split}_idx" for split in SPLITS))


@dataclass(frozen=True, kw_only=True)
class GraphSizes:
    """Sizes of a graph.

    Attributes:
      name: of the graph.
      num_nodes: N.
      num_listed: edges as listed.
      undirected: every listed edge counts in both directions.
      id_dtype: NumPy's name of the type that edges are listed in.
      weight_dtype: of the edges' weights; None without.
      feature_dim: columns of the features; 0 without.
      feature_dtype: their type, "" without.
      has_labels: there is a label per node.
      splits: nodes in "train", "val" and "test", as far as known.
      num_classes: None: unknown.
      estimated: what is estimated rather than read, in words; "" if nothing is.
    Raises:
      ValueError: sizes that no graph has.
    """

    name: str
    num_nodes: int
    num_listed: int
    undirected: bool = False
    id_dtype: str = "int64"
    weight_dtype: str | None = None
    feature_dim: int = 0
    feature_dtype: str = ""
    has_labels: bool = True
    splits: Mapping[str, int] = field(default_factory=dict)
    num_classes: int | None = None
    estimated: str = ""

    def __post_init__(self) -> None:
        for name, least in (("num_nodes", 1), ("num_listed", 0), ("feature_dim", 0)):
            if getattr(self, name) < least:
                shown = "num_edges" if name == "num_listed" else name
                raise ValueError(f"{shown} is {getattr(self, name)}; expected at least {least}.")
        if self.splits.get("train", 1) < 1:
            raise ValueError(f"the number of train nodes is {self.splits['train']}; expected at least 1.")
        if self.splits.get("train", 0) > self.num_nodes:
            raise ValueError(
                f"the number of train nodes is {self.splits['train']} but the graph has {self.num_nodes} nodes; "
                "expected at most as many."
            )

    @property
    def num_edges(self) -> int:
        """Stored edges, at most: duplicates and self-loops of an undirected list are counted."""
        return self.num_listed * (2 if self.undirected else 1)

    @property
    def node_id_bytes(self) -> int:
        """Of a node id in the topology."""
        return 4 if self.num_nodes < 2**31 else 8

    @property
    def weight_bytes(self) -> int:
        """Of an edge's weight in the topology; 0 without."""
        return 0 if self.weight_dtype is None else np.result_type(self.weight_dtype, np.float32).itemsize


def sizes_of(raw: RawGraph) -> GraphSizes:
    """Sizes of a graph that has been read."""
    return GraphSizes(
        name=raw.name,
        num_nodes=raw.num_nodes,
        num_listed=raw.edge_index.shape[1],
        undirected=raw.undirected,
        id_dtype=raw.edge_index.dtype.name,
        weight_dtype=None if raw.edge_weight is None else raw.edge_weight.dtype.name,
        feature_dim=0 if raw.features is None else raw.features.shape[1],
        feature_dtype="" if raw.features is None else raw.features.dtype.name,
        has_labels=raw.labels is not None,
        splits={split: len(ids) for split, ids in raw.splits.items() if len(ids)},
        num_classes=raw.num_classes,
    )


def npy_sizes(path: Path, undirected: bool | None) -> GraphSizes:
    """Sizes of an `npy` directory, from meta.json and the headers of its files.

    Raises:
      ValueError: a file is missing, unreadable or of a wrong shape (by name).
    """
    assert undirected is None, "the format states its direction"
    meta = read_meta(path)
    edges = npy_header(path / "edge_index.npy")
    if len(edges.shape) != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise ValueError(
            f"{path / 'edge_index.npy'} is {edges.dtype} of shape {edges.shape}; expected integers (2, E)."
        )
    columns = _headers(path)
    return GraphSizes(
        **{key: meta[key] for key in ("name", "num_nodes", "undirected", "num_classes")},
        num_listed=edges.shape[1],
        id_dtype=edges.dtype.name,
        **_described(path, columns),
    )


def ogb_sizes(path: Path, undirected: bool | None) -> GraphSizes:
    """Sizes of a raw OGB node-property directory: csv.gz with lists of counts, or the binary layout (raw/data.npz).

    Raises:
      ValueError: no such directory, or one without raw/.
    """
    # loaded with their format only
    from fastsample_dist.graph.inputs import ReadOptions
    from fastsample_dist.graph.inputs.archives import Archive
    from fastsample_dist.graph.inputs.ogb_raw import KNOWN_SETS, only_count, set_name

    raw, name = path / "raw", set_name(path)
    both = bool(undirected) or (name in KNOWN_SETS and KNOWN_SETS[name].add_inverse_edge)
    common = {"name": name, "undirected": both, "id_dtype": "int64"}
    if (raw / "data.npz").is_file():
        archive = Archive(raw / "data.npz", ReadOptions())
        features = archive.header("node_feat")
        return GraphSizes(
            num_nodes=features.shape[0],
            num_listed=archive.header("edge_index").shape[1],
            feature_dim=features.shape[1],
            feature_dtype=features.dtype.name,
            **common,
        )
    counts = [raw / f"num-{what}-list.csv.gz" for what in ("node", "edge")]
    if not all(file.is_file() for file in counts):
        raise ValueError(
            f"{raw} does not have {counts[0].name} and {counts[1].name}; pass --num-nodes and --num-edges."
        )
    dim = 0
    if (raw / "node-feat.csv.gz").is_file():
        block, _ = _first_block(raw / "node-feat.csv.gz")
        dim = block.split(b"\n", 1)[0].count(b",") + 1
    return GraphSizes(
        num_nodes=only_count(counts[0]),
        num_listed=only_count(counts[1]),
        feature_dim=dim,
        feature_dtype="float32" if dim else "",
        **common,
    )


def edgelist_sizes(path: Path, undirected: bool | None) -> GraphSizes:
    """Sizes of an edge list, or of a directory with one and .npy columns beside it.

    Raises:
      ValueError: no or several lists, one that is no text, or one without edges in what was sampled.
    """
    from fastsample_dist.graph.inputs.edgelist import find_files  # loaded with its format only

    files = find_files(path)
    beside = _headers(path) if path.is_dir() else {}
    meta = read_meta(path) if (path / META_NAME).is_file() else None
    if files[0].suffix == ".parquet":
        if meta is None:
            raise ValueError(
                f"{path} does not tell the number of nodes; pass --num-nodes and --num-edges, not --input."
            )
        return replace(_parquet_sizes(meta, files), **_described(path, beside))
    samples = [_sample_text(file) for file in files]
    lines, sampled = (sum(sample[item] for sample in samples) for item in (0, 2))
    highest = max(sample[1] for sample in samples)
    if not sampled:
        raise ValueError(f"{path}: no line 'source destination' in what was sampled; pass --num-nodes and --num-edges.")
    # Of n ids drawn from 0 .. N - 1, the highest is about N n / (n + 1).
    sizes = GraphSizes(
        name=path.name.split(".")[0],
        num_nodes=round((highest + 1) * (1 + 1 / sampled)),
        num_listed=lines,
        undirected=bool(undirected),
        id_dtype=_read_as(highest),
        estimated=f"edges and nodes of {path} by {sampled // 2} of its lines",
    )
    if meta is not None:
        known = {key: meta[key] for key in ("name", "num_nodes", "undirected", "num_classes")}
        sizes = replace(sizes, **known, estimated=f"edges of {path} by {sampled // 2} of its lines")
    return replace(sizes, **_described(path, beside))


def _parquet_sizes(meta: Mapping[str, Any], tables: list[Path]) -> GraphSizes:
    """Of .parquet files, whose metadata have the number of edges, and meta.json, which has that of nodes."""
    from fastsample_dist.graph.inputs.parquet_edges import ParquetEdges  # it needs pyarrow

    edges = ParquetEdges(tables, meta["num_nodes"], lambda count: None)
    return GraphSizes(
        **{key: meta[key] for key in ("name", "num_nodes", "undirected", "num_classes")},
        num_listed=edges.num_edges,
        id_dtype=_read_as(meta["num_nodes"]),
    )


def _read_as(highest: int) -> str:
    """Type that the reader of edge lists keeps ids in."""
    return "int32" if highest < 2**31 else "int64"


def _headers(directory: Path) -> dict[str, NpyHeader]:
    """Headers of a directory's optional columns."""
    files = {name: directory / f"{name}.npy" for name in _COLUMNS}
    return {name: npy_header(file) for name, file in files.items() if os.path.lexists(file)}


def _described(directory: Path, columns: Mapping[str, NpyHeader]) -> dict:
    """Fields of GraphSizes that the optional columns tell."""
    features, weights = columns.get("features"), columns.get("edge_weight")
    if features is not None and len(features.shape) != 2:
        raise ValueError(f"{directory / 'features.npy'} has shape {features.shape}; expected (num_nodes, dim).")
    splits = {split: columns[f"{split}_idx"].shape[0] for split in SPLITS if f"{split}_idx" in columns}
    return {
        "weight_dtype": None if weights is None else weights.dtype.name,
        "feature_dim": 0 if features is None else features.shape[1],
        "feature_dtype": "" if features is None else features.dtype.name,
        "has_labels": "labels" in columns,
        "splits": {split: count for split, count in splits.items() if count},
    }


def _sample_text(file: Path) -> tuple[int, int, int]:
    """(lines, highest id, ids seen) of an edge list, from blocks spread over it; of .gz from its beginning."""
    size = file.stat().st_size
    ids: list[int] = []
    text_bytes = num_lines = 0
    if file.name.endswith(".gz"):
        block, taken = _first_block(file)
        blocks, size = [block], round(size * len(block) / max(1, taken))
    elif size <= SAMPLED_BLOCKS * BLOCK_BYTES:
        blocks = [file.read_bytes()]
    else:
        with file.open("rb") as plain:
            blocks = [_block(plain, size * at // SAMPLED_BLOCKS, at > 0) for at in range(SAMPLED_BLOCKS)]
    for block in blocks:
        whole = block if size <= len(block) else block[: block.rfind(b"\n") + 1]
        for line in whole.splitlines():
            fields = line.split(b"#")[0].replace(b",", b" ").split()
            if len(fields) >= 2 and fields[0].isdigit() and fields[1].isdigit():
                ids += int(fields[0]), int(fields[1])
                num_lines += 1
        text_bytes += len(whole)
    return round(size * num_lines / max(1, text_bytes)), max(ids, default=0), len(ids)


def _first_block(file: Path) -> tuple[bytes, int]:
    """The first lines of a text file that may be packed, and how many of the file's bytes they took.

    Raises:
      ValueError: it is no sound gzip.
    """
    from fastsample_dist.graph.inputs.text_edges import Lines

    taken: list[int] = []
    with Lines(file, taken.append) as lines:
        block = next(lines.blocks(), b"")
    return block, sum(taken)


def _block(file: BinaryIO, begin: int, cut: bool) -> bytes:
    """A block of text from the first line that begins in it."""
    file.seek(begin)
    block = file.read(BLOCK_BYTES)
    return block[block.find(b"\n") + 1 :] if cut else block

"""How large an input graph is, seen from headers and sizes of files without reading the data.

npy: headers. A raw OGB directory: its lists of counts, or the headers inside its .npz archives. Text: the size of the
file over the mean length of the lines in a few sampled blocks, and the highest id among them: marked as estimates.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastsample_dist.graph.datasets import INT32_MAX_EDGES, META_NAME, RawGraph, check_npy_names, read_meta
from fastsample_dist.graph.inputs.edge_options import EdgeListOptions
from fastsample_dist.graph.inputs.packed import packing_of
from fastsample_dist.graph.labels import MULTILABEL, REGRESSION
from fastsample_dist.graph.listed_rows import ListedRows
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
      has_labels: there is a label per node, or several.
      num_targets: columns of the labels where they are stored as targets (graph/labels.py); 0: classes.
      splits: nodes in "train", "val" and "test", as far as known.
      num_classes: None: unknown.
      edge_map: the place of every stored edge in the list is to be stored too.
      given_rows: the edges are the rows of a graph, which are not sorted.
      estimated: what is estimated rather than read, in words; "" if nothing is.
      least_nodes: where num_nodes is estimated: how many there are for certain; None: num_nodes is known.
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
    num_targets: int = 0
    splits: Mapping[str, int] = field(default_factory=dict)
    num_classes: int | None = None
    estimated: str = ""
    least_nodes: int | None = None
    edge_map: bool = False
    given_rows: bool = False

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

    @property
    def edge_map_bytes(self) -> int:
        """Of an edge's entry in the edge map; 0 without."""
        return 0 if not self.edge_map else 4 if self.num_listed <= INT32_MAX_EDGES else 8

    @property
    def edge_bytes(self) -> int:
        """Of an edge in the topology's files."""
        return self.node_id_bytes + self.weight_bytes + self.edge_map_bytes

    @property
    def label_row_bytes(self) -> int:
        """Of a node's stored labels; 0 without."""
        return 4 * self.num_targets or 8 * self.has_labels


def sizes_of(raw: RawGraph, *, edge_map: bool = False) -> GraphSizes:
    """Sizes of a graph that has been read, to be cut with an edge map or without."""
    return GraphSizes(
        name=raw.name,
        num_nodes=raw.num_nodes,
        num_listed=raw.edge_index.shape[1],
        undirected=raw.undirected,
        id_dtype=raw.edge_index.dtype.name,
        weight_dtype=None if raw.edge_weight is None else raw.edge_weight.dtype.name,
        feature_dim=0 if raw.features is None else raw.features.shape[1],
        feature_dtype="" if raw.features is None else raw.features.dtype.name,
        has_labels=raw.labels is not None or raw.targets is not None,
        num_targets=0 if raw.targets is None else raw.targets.shape[1],
        splits={split: len(ids) for split, ids in raw.splits.items() if len(ids)},
        num_classes=raw.num_classes,
        edge_map=edge_map,
        given_rows=isinstance(raw.edge_index, ListedRows),
    )


def least_of(sizes: GraphSizes) -> GraphSizes:
    """Lower bounds on a graph's sizes, where some are estimated: what these refuse, the true sizes refuse too.

    Of estimated edges, half are counted, as lines that were not sampled may be longer.
    """
    if not sizes.estimated:
        return sizes
    return replace(sizes, num_nodes=sizes.least_nodes or sizes.num_nodes, num_listed=sizes.num_listed // 2)


UNKNOWN = GraphSizes(name="graph", num_nodes=1, num_listed=0, has_labels=False, estimated="all", least_nodes=1)


def npy_sizes(path: Path, undirected: bool | None) -> GraphSizes:
    """Sizes of an `npy` directory, from meta.json and the headers of its files.

    Raises:
      ValueError: a file is missing, unreadable or of a wrong shape (by name).
    """
    assert undirected is None, "the format states its direction"
    meta = read_meta(path)
    check_npy_names(path)
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
        **_described(path, columns, meta["task"]),
    )


def ogb_sizes(path: Path, undirected: bool | None) -> GraphSizes:
    """Sizes of a raw OGB node-property directory: csv.gz with lists of counts, or the binary layout (raw/data.npz).

    Raises:
      ValueError: no such directory, or one without raw/.
    """
    # loaded with their format only
    from fastsample_dist.graph.inputs.archives import Archive
    from fastsample_dist.graph.inputs.ogb_raw import KNOWN_SETS, only_count, set_name
    from fastsample_dist.graph.inputs.read_options import ReadOptions

    raw, name = path / "raw", set_name(path)
    both = bool(undirected) or (name in KNOWN_SETS and KNOWN_SETS[name].add_inverse_edge)
    common = {"name": name, "undirected": both, "id_dtype": "int64"}
    if (raw / "data.npz").is_file():
        archive = Archive(raw / "data.npz", ReadOptions())
        features, labels = archive.header("node_feat"), raw / "node-label.npz"
        label_shape = Archive(labels, ReadOptions()).header("node_label").shape if labels.is_file() else ()
        return GraphSizes(
            num_nodes=features.shape[0],
            num_listed=archive.header("edge_index").shape[1],
            feature_dim=features.shape[1],
            feature_dtype=features.dtype.name,
            num_targets=num_targets(label_shape, None),
            **common,
        )
    counts = [raw / f"num-{what}-list.csv.gz" for what in ("node", "edge")]
    if not all(file.is_file() for file in counts):
        raise ValueError(
            f"{raw} does not have {counts[0].name} and {counts[1].name}; pass --num-nodes and --num-edges."
        )
    dim, columns = (_table_width(raw / f"node-{what}.csv.gz") for what in ("feat", "label"))
    return GraphSizes(
        num_nodes=only_count(counts[0]),
        num_listed=only_count(counts[1]),
        feature_dim=dim,
        feature_dtype="float32" if dim else "",
        num_targets=num_targets((1, columns), None),
        **common,
    )


def _table_width(file: Path) -> int:
    """Fields of the first line of a table; 0 without the file."""
    if not file.is_file():
        return 0
    block, _ = _first_block(file)
    return block.split(b"\n", 1)[0].count(b",") + 1


def edgelist_sizes(path: Path, undirected: bool | None, options: EdgeListOptions | None = None) -> GraphSizes:
    """Sizes of an edge list, or of a directory with one and .npy columns beside it.

    Args:
      path, undirected, options: as ReadOptions has them.
    Raises:
      ValueError: no or several lists, one that is not text, one without edges in what was sampled, or names instead of
        ids, whose number is known only after reading.
    """
    from fastsample_dist.graph.inputs.edgelist import find_files  # loaded with its format only

    options = options or EdgeListOptions()
    if options.relabel:
        raise ValueError(
            f"the number of nodes in {path} is unknown before it is read; pass --num-nodes and --num-edges."
        )
    files = find_files(path)
    if path.is_dir():
        check_npy_names(path, edges=False)
    beside = _headers(path) if path.is_dir() else {}
    meta = read_meta(path) if (path / META_NAME).is_file() else None
    if files[0].suffix == ".parquet":
        if meta is None:
            raise ValueError(
                f"{path} does not state the number of nodes; pass --num-nodes and --num-edges, not --input."
            )
        sizes = _parquet_sizes(meta, files, options)
        return _weighted(replace(sizes, **_described(path, beside, meta["task"])), options)
    samples = [_sample_text(file, options) for file in files]
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
        least_nodes=highest + 1,
    )
    if meta is not None:
        known = {key: meta[key] for key in ("name", "num_nodes", "undirected", "num_classes")}
        read = f"edges of {path} by {sampled // 2} of its lines"
        sizes = replace(sizes, **known, estimated=read, least_nodes=None)
    return _weighted(replace(sizes, **_described(path, beside, meta and meta["task"])), options)


def _weighted(sizes: GraphSizes, options: EdgeListOptions) -> GraphSizes:
    """With the weights of a column that the options name."""
    return replace(sizes, weight_dtype="float64") if options.weight_column is not None else sizes


def _parquet_sizes(meta: Mapping[str, Any], tables: list[Path], options: EdgeListOptions) -> GraphSizes:
    """Of .parquet files, whose metadata have the number of edges, and meta.json, which has that of nodes."""
    from fastsample_dist.graph.inputs.parquet_edges import ParquetEdges  # it needs pyarrow

    edges = ParquetEdges(tables, meta["num_nodes"], lambda count: None, options)
    return GraphSizes(
        **{key: meta[key] for key in ("name", "num_nodes", "undirected", "num_classes")},
        num_listed=edges.num_edges,
        id_dtype=_read_as(meta["num_nodes"]),
    )


def _read_as(highest: int) -> str:
    """Type that the reader of edge lists keeps ids in."""
    return "int32" if highest < 2**31 else "int64"


def num_targets(shape: tuple[int, ...], task: str | None) -> int:
    """Columns that labels of a shape are stored in as targets (graph/labels.py); 0: they are classes."""
    columns = shape[1] if len(shape) == 2 else 1
    return columns if columns > 1 or task in (MULTILABEL, REGRESSION) else 0


def _headers(directory: Path) -> dict[str, NpyHeader]:
    """Headers of a directory's optional columns."""
    files = {name: directory / f"{name}.npy" for name in _COLUMNS}
    return {name: npy_header(file) for name, file in files.items() if os.path.lexists(file)}


def _described(directory: Path, columns: Mapping[str, NpyHeader], task: str | None) -> dict:
    """Fields of GraphSizes that the optional columns give; `task` is that of meta.json."""
    features, weights = columns.get("features"), columns.get("edge_weight")
    if features is not None and len(features.shape) != 2:
        raise ValueError(f"{directory / 'features.npy'} has shape {features.shape}; expected (num_nodes, dim).")
    splits = {split: columns[f"{split}_idx"].shape[0] for split in SPLITS if f"{split}_idx" in columns}
    return {
        "weight_dtype": None if weights is None else weights.dtype.name,
        "feature_dim": 0 if features is None else features.shape[1],
        "feature_dtype": "" if features is None else features.dtype.name,
        "has_labels": "labels" in columns,
        "num_targets": num_targets(columns["labels"].shape, task) if "labels" in columns else 0,
        "splits": {split: count for split, count in splits.items() if count},
    }


def _sample_text(file: Path, options: EdgeListOptions) -> tuple[int, int, int]:
    """(lines, highest id, ids seen) of an edge list, from blocks spread over it; of a packed one its beginning."""
    from fastsample_dist.graph.inputs.parquet_edges import load  # the home of pyarrow
    from fastsample_dist.graph.inputs.text_edges import parses_fast
    from fastsample_dist.graph.inputs.text_rows import find_layout

    if parses_fast([file]):
        load()  # so that the memory of the process is known before it is limited
    layout = None
    size = file.stat().st_size
    ids: list[int] = []
    text_bytes = num_lines = 0
    if packing_of(file) is not None:
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
            text = line.split(b"#")[0].strip()
            if not text:
                continue
            layout = layout or find_layout(str(file), text, options)
            fields = layout.split(text)
            ends = [fields[end] for end in layout.ends] if len(fields) > max(layout.ends) else [b""]
            if all(end.isdigit() for end in ends):  # else a header, or a fault that reading will report
                ids += map(int, ends)
                num_lines += 1
        text_bytes += len(whole)
    return round(size * num_lines / max(1, text_bytes)), max(ids, default=0), len(ids)


def _first_block(file: Path) -> tuple[bytes, int]:
    """The first lines of a text file that may be packed, and how many of the file's bytes they took.

    Raises:
      ValueError: it is not a sound gzip file.
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

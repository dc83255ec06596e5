"""How large an input graph is, seen from headers and sizes of files without reading the data.

npy: headers. A raw OGB directory: its lists of counts, or the headers inside its .npz archives. Text: the size of the
file over the mean length of the lines in a few sampled blocks, and the highest id among them: marked as estimates.
Where only a reading counts the nodes, as of names that are relabelled, what is certain is in NodesUnknownError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from fastsample_dist.graph.datasets import (
    INT32_MAX_EDGES,
    MAX_NODES,
    META_NAME,
    RawGraph,
    check_npy_names,
    read_meta,
)
from fastsample_dist.graph.inputs.edge_options import EdgeListOptions, nearly_all_gaps
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
      feature_scales: they are int8 with a scale per row.
      has_labels: there is a label per node, or several.
      num_targets: columns of the labels where they are stored as targets (graph/labels.py); 0: classes.
      splits: nodes in "train", "val" and "test", as far as known.
      num_classes: None: unknown.
      edge_map: the place of every stored edge in the list is to be stored too.
      clusters: the cluster of every node is to be stored too.
      given_rows: the edges are the rows of a graph, which are not sorted.
      estimated: what is estimated rather than read, in words; "" if nothing is.
      least_nodes: where num_nodes is estimated: how many there are for certain; None: num_nodes is known.
      name_bytes: of a node's name while a list is relabelled, at least; 0: unknown, or ids are none.
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
    feature_scales: bool = False
    has_labels: bool = True
    num_targets: int = 0
    splits: Mapping[str, int] = field(default_factory=dict)
    num_classes: int | None = None
    estimated: str = ""
    least_nodes: int | None = None
    name_bytes: int = 0
    edge_map: bool = False
    clusters: bool = False
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


def sizes_of(raw: RawGraph, *, edge_map: bool = False, clusters: bool = False) -> GraphSizes:
    """Sizes of a graph that has been read, to be cut with an edge map, with clusters, or without."""
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
        clusters=clusters,
        given_rows=isinstance(raw.edge_index, ListedRows),
    )


def least_of(sizes: GraphSizes) -> GraphSizes:
    """Lower bounds on a graph's sizes, where some are estimated: what these refuse, the true sizes refuse too.

    Of estimated edges, half are counted, as lines that were not sampled may be longer.
    """
    if not sizes.estimated:
        return sizes
    return replace(sizes, num_nodes=sizes.least_nodes or sizes.num_nodes, num_listed=sizes.num_listed // 2)


class NodesUnknownError(ValueError):
    """Only reading an input counts its nodes.

    Attributes:
      least: sizes that it has at least (`least_of`).
    """

    def __init__(self, message: str, least: GraphSizes) -> None:
        super().__init__(message)
        self.least = least


UNKNOWN = GraphSizes(name="graph", num_nodes=1, num_listed=0, has_labels=False, estimated="all", least_nodes=1)


def certain_sizes(find: Callable[[], GraphSizes]) -> GraphSizes:
    """What a function that finds sizes is certain of; UNKNOWN where it meets a fault, which reading will report."""
    try:
        return least_of(find())
    except NodesUnknownError as error:
        return error.least
    except (ValueError, ImportError, OSError):
        return UNKNOWN


def npy_sizes(path: Path, undirected: bool | None) -> GraphSizes:
    """Sizes of an `npy` directory, from meta.json and the headers of its files.

    Raises:
      ValueError: a file is missing, unreadable or of a wrong shape (by name).
    """
    assert undirected is None, "the format states its direction"
    meta = read_meta(path)
    check_npy_names(path, noted=False)
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
      ValueError: no or several lists, one that is not text, one without edges in what was sampled.
      NodesUnknownError: names instead of ids, or .parquet, without a meta.json that states the number of nodes.
    """
    from fastsample_dist.graph.inputs.edgelist import find_files  # loaded with its format only

    options = options or EdgeListOptions()
    files = find_files(path)
    if path.is_dir():
        check_npy_names(path, edges=False, noted=False)
    beside = _headers(path) if path.is_dir() else {}
    meta = read_meta(path) if (path / META_NAME).is_file() else None
    is_table = files[0].suffix == ".parquet"
    sizes = (_parquet_sizes if is_table else _text_sizes)(path, files, options)
    described = _described(path, beside, meta and meta["task"])
    described["weight_dtype"] = described["weight_dtype"] or sizes.weight_dtype
    only_edges = sizes.estimated.replace("edges and nodes", "edges")
    if meta is not None:
        described |= {key: meta[key] for key in ("name", "num_nodes", "undirected", "num_classes")}
        id_dtype = _read_as(meta["num_nodes"]) if is_table or options.relabel else sizes.id_dtype
        return replace(sizes, **described, id_dtype=id_dtype, estimated=only_edges, least_nodes=None)
    described["undirected"] = bool(undirected)
    by_node = [columns.shape[0] for name, columns in beside.items() if name in ("features", "labels") and columns.shape]
    stated = by_node[0] if by_node else max(described["splits"].values(), default=1)
    known = max(stated, sizes.least_nodes)  # other columns than there are nodes are refused
    if not is_table and not options.relabel:
        if by_node:
            return replace(sizes, **described, num_nodes=known, estimated=only_edges, least_nodes=None)
        return replace(sizes, **described, num_nodes=max(known, sizes.num_nodes), least_nodes=known)
    sizes = least_of(sizes)
    message = (
        f"{path} does not state the number of nodes; pass --num-nodes and --num-edges, not --input."
        if is_table
        else f"the number of nodes in {path} is unknown before it is read; pass --num-nodes and --num-edges."
    )
    raise NodesUnknownError(message, replace(sizes, **described, num_nodes=known, estimated="", least_nodes=known))


def _text_sizes(path: Path, files: list[Path], options: EdgeListOptions) -> GraphSizes:
    """Of text, estimated by a sample; relabelled, the nodes are the names in it, which are the least there are."""
    samples = [_sample_text(file, options) for file in files]
    sampled = sum(sample.num_ids for sample in samples)
    if not sampled:
        raise ValueError(f"{path}: no line 'source destination' in what was sampled; pass --num-nodes and --num-edges.")
    highest = max(sample.highest for sample in samples)
    least = max(sample.num_names for sample in samples) if options.relabel else highest + 1
    num_listed = sum(sample.num_lines for sample in samples)
    # Of n ids drawn from 0 .. N - 1, the highest is about N n / (n + 1).
    return GraphSizes(
        name=path.name.split(".")[0],
        num_nodes=least if options.relabel else round(least * (1 + 1 / sampled)),
        num_listed=num_listed,
        id_dtype=_read_as(highest),
        weight_dtype=None if options.weight_column is None else "float64",
        estimated=f"edges and nodes of {path} by {sampled // 2} of its lines",
        least_nodes=_certain_nodes(least, num_listed),
        name_bytes=max(sample.name_bytes for sample in samples),
    )


def _parquet_sizes(path: Path, tables: list[Path], options: EdgeListOptions) -> GraphSizes:
    """Of .parquet files, whose metadata have the number of edges and, as a rule, the highest id."""
    from fastsample_dist.graph.inputs.parquet_edges import ParquetEdges  # it needs pyarrow

    edges = ParquetEdges(tables, MAX_NODES, lambda count: None, options)
    least = _certain_nodes(1 if options.relabel else max(1, edges.least_highest_id() + 1), edges.num_edges)
    return GraphSizes(
        name=path.name.split(".")[0],
        num_nodes=least,
        num_listed=edges.num_edges,
        id_dtype=_read_as(least),
        weight_dtype=edges.weight_dtype and edges.weight_dtype.name,
        least_nodes=least,
    )


def _certain_nodes(least: int, num_listed: int) -> int:
    """How many nodes there are, by ids that were seen; 1 where reading will refuse such ids, with advice about them."""
    return 1 if least > MAX_NODES or nearly_all_gaps(least, num_listed) else least


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
    for name in ("features", "edge_weight"):
        if name in columns and columns[name].dtype.kind not in "biufc":
            raise ValueError(f"{directory / name}.npy is {columns[name].dtype}; expected numbers; convert it.")
    for name in (f"{split}_idx" for split in SPLITS):
        if name in columns and not columns[name].shape:
            raise ValueError(f"{directory / name}.npy is a single number; expected a list of node ids.")
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


class _Sample(NamedTuple):
    """What some blocks of an edge list show.

    Attributes:
      num_lines: of the file, by the length of those seen.
      highest: id among them; 0 where ids are relabelled.
      num_ids: that were seen.
      num_names: different ones among them, at least, where they are relabelled; 0 otherwise.
      name_bytes: that each takes in memory then, at least: of text as many as the longest, of integers 8.
    """

    num_lines: int
    highest: int
    num_ids: int
    num_names: int
    name_bytes: int


def _sample_text(file: Path, options: EdgeListOptions) -> _Sample:
    """A sample of an edge list, from blocks spread over it; of a packed one its beginning."""
    from fastsample_dist.graph.inputs.parquet_edges import load  # the home of pyarrow
    from fastsample_dist.graph.inputs.text_edges import UTF8_MARK, parses_fast
    from fastsample_dist.graph.inputs.text_rows import data_lines, find_layout

    if parses_fast([file]):
        load()  # so that the memory of the process is known before it is limited
    layout = None
    size = file.stat().st_size
    ids: list[bytes] = []
    text_bytes = num_lines = 0
    if packing_of(file) is not None:
        block, taken = _first_block(file)
        blocks, size = [block], round(size * len(block) / max(1, taken))
    elif size <= SAMPLED_BLOCKS * BLOCK_BYTES:
        blocks = [file.read_bytes()]
    else:
        with file.open("rb") as plain:
            blocks = [_block(plain, size * at // SAMPLED_BLOCKS, at > 0) for at in range(SAMPLED_BLOCKS)]
    if blocks[0].startswith(UTF8_MARK):
        blocks[0], size = blocks[0].removeprefix(UTF8_MARK), size - len(UTF8_MARK)
    for block in blocks:
        whole = block if size <= len(block) else block[: block.rfind(b"\n") + 1]
        for _, text in data_lines(whole, 1, whole=options.relabel):
            if layout is None:
                layout = find_layout(str(file), text, options)
                if options.header:
                    continue
            fields = layout.split(text)
            ends = [fields[end] for end in layout.ends] if len(fields) > max(layout.ends) else [b""]
            if all(ends) if options.relabel else all(end.isdigit() for end in ends):
                ids += ends
                num_lines += 1  # others are a header, or a fault that reading will report
        text_bytes += len(whole)
    names = {_least_name(name) for name in ids} if options.relabel else ()
    widest = max((len(name.strip(b'"')) for name in ids), default=0) if options.relabel else 0
    name_bytes = widest if any(isinstance(name, bytes) for name in names) else min(8, widest)
    highest = 0 if options.relabel else max(map(int, ids), default=0)
    return _Sample(round(size * num_lines / max(1, text_bytes)), highest, len(ids), len(names), name_bytes)


def _least_name(name: bytes) -> int | bytes:
    """What names may have in common that are one name: 007 and 7 where all are integers, "a" and a."""
    name = name.strip(b'"')
    try:
        return int(name)
    except ValueError:
        return name


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

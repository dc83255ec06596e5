"""Input graphs as text: one edge "source destination" per line.

The two ids are separated by a comma (when the first edge has one) or by blanks or tabs; empty lines and what follows a
"#" are skipped. NumPy's reader does the work; only when it refuses, or an id is out of range, the file is read
a second time line by line to name the line.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fastsample_dist.graph.datasets import META_NAME, RawGraph, checked_graph, read_columns, read_meta
from fastsample_dist.graph.inputs import ReadOptions

SUFFIXES = (".csv", ".tsv", ".txt")


def read_edgelist(path: Path, options: ReadOptions) -> RawGraph:
    """Read an edge list; a reader of format `edgelist`.

    Args:
      path: the .csv, .tsv or .txt file; or a directory that holds exactly one of them and, as far as the graph has
        them, meta.json and the .npy columns of the `npy` format except edge_index.npy.
      options: `undirected` does not go with meta.json, which states it itself.
    Returns:
      RawGraph. Without meta.json it has as many nodes as its highest id + 1 and is named after the file.
    Raises:
      ValueError: no such file, several, a line that is no edge, an id that is out of range (with the line
        number), or what `checked_graph` refuses.
    """
    given = path
    file = _find_file(given)
    directory = given if given.is_dir() else None
    meta = read_meta(directory) if directory and (directory / META_NAME).is_file() else None
    if meta and options.undirected is not None:
        raise ValueError(f'{given / META_NAME} states "undirected" itself; correct it there, without --undirected.')
    edges = _read_edges(file)
    limit = meta["num_nodes"] if meta else np.iinfo(np.int64).max
    if edges.size and not (edges.min() >= 0 and edges.max() < limit):
        raise ValueError(_explain(file, limit))
    if meta is None:
        if not edges.size:
            raise ValueError(f"{file} lists no edge; expected at least one line 'source destination'.")
        meta = {"name": file.stem, "num_nodes": int(edges.max()) + 1, "undirected": bool(options.undirected)}

    def locate(column: str) -> str:
        return str(file if column == "edge_index" else given / f"{column}.npy")

    return checked_graph(meta, edges.T, read_columns(directory) if directory else {}, locate=locate)


def _find_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(f"{path} does not exist; pass an edge list ({', '.join(SUFFIXES)}) or its directory.")
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise ValueError(f"{path} holds {len(found)} edge lists ({names}); expected one; pass the file itself.")
    return found[0]


def _read_edges(file: Path) -> np.ndarray:
    """All edges, int64 [num_edges, 2]."""
    delimiter = _delimiter(file)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input contained no data.*")
            warnings.filterwarnings("error", category=DeprecationWarning)  # older NumPy: 1.5 read as 1
            edges = np.loadtxt(file, dtype=np.int64, comments="#", delimiter=delimiter, ndmin=2, encoding="utf-8")
    except (ValueError, OverflowError, DeprecationWarning) as error:
        raise ValueError(_explain(file, np.iinfo(np.int64).max)) from error
    if edges.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if edges.shape[1] != 2:
        raise ValueError(_explain(file, np.iinfo(np.int64).max))
    return edges


def _delimiter(file: Path) -> str | None:
    """A comma when the first edge has one, else None: blanks or tabs."""
    _, text = next(_data_lines(file), (0, ""))
    return "," if "," in text else None


def _data_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Number and text of every line that is neither empty nor a comment."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.split("#")[0].strip()
            if text:
                yield number, text


def _explain(file: Path, limit: int) -> str:
    """The message for the first line that is no edge between ids 0 .. limit - 1."""
    delimiter = _delimiter(file)
    for number, text in _data_lines(file):
        fields = [item.strip() for item in text.split(delimiter)]
        if len(fields) != 2 or not all(item.lstrip("+-").isdecimal() for item in fields):
            return (
                f"{file}, line {number}: found {text[:60]!r}; expected two integers 'source destination' "
                "separated like the first edge; correct the line, or put # before a header."
            )
        for value in map(int, fields):
            if not 0 <= value < limit:
                return f"{file}, line {number}: node id {value}; expected 0 to {limit - 1}; correct it or num_nodes."
    return f"{file} cannot be read as an edge list; expected two integers per line."

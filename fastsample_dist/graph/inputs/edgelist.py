"""Edge lists: text files (.csv, .tsv, .txt, each also .gz, .xz, .zst) and .parquet, alone or in a directory.

Text has one edge "source destination" per line (text_edges.py), .parquet two columns (parquet_edges.py). Both are read
in pieces: a short list into memory, a long one into a binary file of the scratch directory that is mapped from there
and that the next run finds again if this one is killed. Ids that are names are relabelled on the way (relabel.py).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.graph.datasets import (
    COLUMNS,
    MAX_NODES,
    META_NAME,
    RawGraph,
    check_npy_names,
    checked_graph,
    read_columns,
    read_meta,
)
from fastsample_dist.graph.inputs.edge_options import TEXT_SUFFIXES
from fastsample_dist.graph.inputs.edge_store import gather_edges, highest_id, write_edges
from fastsample_dist.graph.inputs.parquet_edges import ParquetEdges
from fastsample_dist.graph.inputs.read_options import ReadOptions
from fastsample_dist.graph.inputs.relabel import distinct_names, numbered
from fastsample_dist.graph.inputs.text_edges import TextEdges
from fastsample_dist.graph.labels import agreed_task
from fastsample_dist.graph.npy_files import NpyWriter, open_npy

logger = logging.getLogger(__name__)

SMALL_BYTES = 1 << 26  # of text: shorter lists stay in memory, where they take up to four times as much
_PART = re.compile(r"part(?:-[mr])?[-._]?(\d+)")


def read_edgelist(path: Path, options: ReadOptions) -> RawGraph:
    """Read an edge list; a reader of format `edgelist`.

    Args:
      path: the file, text unless its name ends in .parquet, which is read alone: a warning names columns and meta.json
        beside it; or a directory that holds exactly one, with a suffix in TEXT_SUFFIXES, and, where the graph has them,
        meta.json and the .npy columns of the `npy` format except edge_index.npy. Instead of one file it may hold the
        list in several parts of one suffix, as Spark writes them: part-00000.csv, part-00001.csv, ...; they are read in
        the order of their numbers, and no other list may be there.
      options: `edges` defines how the rows are read; `undirected` does not go with meta.json, which states it
        itself.
    Returns:
      RawGraph. Without meta.json it has as many nodes as its highest id + 1 (relabelled: as it has distinct ids) and is
      named after the file, or after the directory of parts. Edges are int32 when all ids fit, else int64; weights come
      from edge_weight.npy, a column of the text, or a .parquet file's column `weight`.
    Raises:
      ValueError: no such file, several, a line or row that is not an edge or has an id out of range (by its number), a
        damaged file, names that take too much memory, or what `checked_graph` refuses.
      ImportError: a .parquet or .zst file without pyarrow.
    """
    files = find_files(path)
    directory = path if path.is_dir() else None
    meta = read_meta(directory) if directory and (directory / META_NAME).is_file() else None
    if meta and options.undirected is not None:
        raise ValueError(f'{path / META_NAME} states "undirected" itself; correct it there, without --undirected.')
    if directory:
        check_npy_names(directory, edges=False)
    else:
        _say_unread(path)
    made_from = [*files, directory / META_NAME] if meta else files
    listed = _List(files, made_from, options, meta["num_nodes"] if meta else MAX_NODES)
    shown = path if path.is_dir() and _PART.match(files[0].name) else files[0]
    task = agreed_task(str(path), meta and meta.get("task"), options.task)
    columns = read_columns(directory) if directory else {}
    if listed.source.has_weights and "edge_weight" in columns:
        raise ValueError(f"{path} has edge_weight.npy and a column weight in {shown.name}; expected one of them.")
    if meta and options.edges.relabel and meta["num_nodes"] != len(listed.names):
        raise ValueError(
            f"{path / META_NAME} states {meta['num_nodes']} nodes but {shown.name} has {len(listed.names)} distinct "
            "ids; expected as many when they are relabelled; correct it, or leave --relabel out."
        )
    edges = listed.edges()
    if meta is None:
        if not edges.size:
            raise ValueError(f"{shown} lists no edge; expected at least one, 'source destination'.")
        name = shown.absolute().name.removesuffix(_suffix(shown) or ("" if shown.is_dir() else shown.suffix))
        num_nodes = len(listed.names) if options.edges.relabel else highest_id(edges) + 1
        meta = {"name": name, "num_nodes": num_nodes, "undirected": bool(options.undirected)}
        meta["counted_by_ids"] = not options.edges.relabel
    meta["task"] = task
    places = {"edge_index": str(shown)}
    if listed.source.has_weights:
        columns["edge_weight"] = listed.weights()
        places["edge_weight"] = f"{shown}: column {options.edges.weight_column or 'weight'}"
    if options.edges.relabel:
        columns["input_ids"] = listed.names
    return checked_graph(meta, edges, columns, locate=lambda column: places.get(column, str(path / f"{column}.npy")))


def find_files(path: Path) -> list[Path]:
    """The files of an edge list, as `read_edgelist` takes them.

    Raises:
      ValueError: no such file, or several lists.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"{path} does not exist; pass an edge list ({', '.join(TEXT_SUFFIXES)}) or its directory.")
    found = sorted(file for file in path.iterdir() if _suffix(file) and file.is_file() and file.name[0] != ".")
    if len(found) == 1:
        return found
    numbers = [_PART.match(file.name) for file in found]
    if found and all(numbers) and len({_suffix(file) for file in found}) == 1:
        return [file for _, file in sorted((int(number[1]), file) for number, file in zip(numbers, found, strict=True))]
    names = ", ".join(file.name for file in found[:5]) or "none"
    raise ValueError(
        f"{path} holds {len(found)} edge lists ({names}{', ...' if len(found) > 5 else ''}); expected one, or parts of "
        "one under names such as part-00000.csv; pass the file itself."
    )


def _suffix(file: Path) -> str | None:
    """The longest of TEXT_SUFFIXES that a name ends in."""
    return max((suffix for suffix in TEXT_SUFFIXES if file.name.endswith(suffix)), key=len, default=None)


def _say_unread(file: Path) -> None:
    """Warn of the columns and meta.json beside a list that was passed as a file."""
    folder = file.parent
    if (folder / "edge_index.npy").exists():  # they belong to that graph
        return
    unread = [name for name in (META_NAME, *(f"{column}.npy" for column in COLUMNS)) if (folder / name).is_file()]
    if not unread:
        return
    try:
        find_files(folder)
        advice = f"pass the directory: --input {folder}"
    except ValueError:
        advice = "pass a directory that holds them and no other list"
    logger.warning("%s beside %s are not read; %s", ", ".join(unread), file.name, advice)


class _List:
    """The arrays of a list: in memory or, for a long one, mapped from the scratch directory.

    Args:
      files: of the list.
      made_from: the same, and whatever else changes the arrays.
      options: how to read.
      limit: ids are below it.
    Attributes:
      source: what reads the files.
    """

    def __init__(self, files: list[Path], made_from: list[Path], options: ReadOptions, limit: int) -> None:
        kind = ParquetEdges if files[0].suffix == ".parquet" else TextEdges
        self.source = kind(files, limit, options.on_bytes, options.edges)
        self._options, self._made_from = options, made_from
        self._small = self.source.text_bytes() < SMALL_BYTES

    @cached_property
    def names(self) -> np.ndarray:
        """What the nodes are called in the list, ascending; new id v is that of names[v]."""
        self._announce()
        room = self._options.room_bytes
        if self._small:
            return distinct_names(self.source, room)

        def make(file: Path) -> None:
            with file.open("wb") as out:  # numpy.save would add .npy to a name
                np.save(out, distinct_names(self.source, room))

        return self._mapped("input_ids", make)

    def edges(self) -> np.ndarray:
        """All edges, int32 | int64 [2, E]."""
        if self._small:
            return gather_edges(self._chunks())
        return self._mapped("edges", lambda file: write_edges(file, self._chunks()))

    def weights(self) -> np.ndarray:
        """Their weights, [E]."""
        if self._small:
            return np.concatenate([np.empty(0, self.source.weight_dtype), *self.source.weights()])

        def make(file: Path) -> None:
            file.unlink(missing_ok=True)  # of a run that was killed
            with NpyWriter(file, self.source.weight_dtype, (self._num_edges,)) as writer:
                for values in self.source.weights():
                    writer.append(values)

        return self._mapped("edge_weight", make)

    @cached_property
    def _num_edges(self) -> int:
        return self.edges().shape[1]

    def _chunks(self) -> Iterator[np.ndarray]:
        names = self.names if self._options.edges.relabel else None
        self._announce()
        return self.source.chunks() if names is None else numbered(self.source, names)

    def _announce(self) -> None:
        """Every pass over the files adds to what is to be read."""
        self._passes = getattr(self, "_passes", 0) + 1
        self._options.on_total(self._passes * self.source.total_bytes)

    def _mapped(self, name: str, make: Any) -> np.ndarray:
        """An array of the scratch directory, under a name that depends on how the list was read."""
        stated = repr(self._options.edges) if self._options.edges.given else ""
        suffix = "-" + hashlib.sha256(stated.encode()).hexdigest()[:8] if stated else ""
        return open_npy(self._options.scratch.made(f"{name}{suffix}.npy", self._made_from, make))

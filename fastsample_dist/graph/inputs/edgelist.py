"""Edge lists: text files (.csv, .tsv, .txt, each also .gz) and .parquet, alone or in a directory.

Text has one edge "source destination" per line (text_edges.py), .parquet two columns (parquet_edges.py). Both are read
in pieces: a short list into memory, a long one into a binary file of the scratch directory that is mapped from there
and that a run finds again if the one before was killed.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fastsample_dist.graph.datasets import MAX_NODES, META_NAME, RawGraph, checked_graph, read_columns, read_meta
from fastsample_dist.graph.inputs import TEXT_SUFFIXES, ReadOptions
from fastsample_dist.graph.inputs.edge_store import gather_edges, highest_id, write_edges
from fastsample_dist.graph.inputs.parquet_edges import ParquetEdges
from fastsample_dist.graph.inputs.text_edges import TextEdges
from fastsample_dist.graph.npy_files import NpyWriter, open_npy

SMALL_BYTES = 1 << 26  # of text: shorter lists stay in memory, where they take up to four times as much
_PART = re.compile(r"part(?:-[mr])?[-._]?(\d+)")


def read_edgelist(path: Path, options: ReadOptions) -> RawGraph:
    """Read an edge list; a reader of format `edgelist`.

    Args:
      path: the file, text unless its name ends in .parquet; or a directory that holds exactly one, of a suffix in
        TEXT_SUFFIXES, and, as far as the graph has them, meta.json and the .npy columns of the `npy` format except
        edge_index.npy. Instead of one file it may hold the list in several parts of one suffix, as Spark writes them:
        part-00000.csv, part-00001.csv, ...; they are read in the order of their numbers, and no other list may be
        there.
      options: `undirected` does not go with meta.json, which states it itself.
    Returns:
      RawGraph. Without meta.json it has as many nodes as its highest id + 1 and is named after the file, or after the
      directory of parts. Edges are int32 when all ids fit, else int64; weights come from edge_weight.npy or a
      .parquet file's column `weight`.
    Raises:
      ValueError: no such file, several, a line or row that is no edge, an id that is out of range (with the number of
        the line or row), a damaged file, or what `checked_graph` refuses.
      ImportError: a .parquet file without pyarrow.
    """
    files = find_files(path)
    directory = path if path.is_dir() else None
    meta = read_meta(directory) if directory and (directory / META_NAME).is_file() else None
    if meta and options.undirected is not None:
        raise ValueError(f'{path / META_NAME} states "undirected" itself; correct it there, without --undirected.')
    kind = ParquetEdges if files[0].suffix == ".parquet" else TextEdges
    source = kind(files, meta["num_nodes"] if meta else MAX_NODES, options.on_bytes)
    made_from = [*files, directory / META_NAME] if meta else files
    edges = _read_edges(source, made_from, options)
    shown = path if path.is_dir() and _PART.match(files[0].name) else files[0]
    if meta is None:
        if not edges.size:
            raise ValueError(f"{shown} lists no edge; expected at least one, 'source destination'.")
        name = shown.absolute().name.removesuffix(_suffix(shown) or ("" if shown.is_dir() else shown.suffix))
        meta = {"name": name, "num_nodes": highest_id(edges) + 1, "undirected": bool(options.undirected)}
    columns = read_columns(directory) if directory else {}
    places = {"edge_index": str(shown)}
    if source.has_weights:
        if "edge_weight" in columns:
            raise ValueError(f"{path} has edge_weight.npy and a column weight in {shown.name}; expected one of them.")
        columns["edge_weight"] = _read_weights(source, made_from, options)
        places["edge_weight"] = f"{shown}: column weight"
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


def _read_edges(source: TextEdges | ParquetEdges, made_from: list[Path], options: ReadOptions) -> np.ndarray:
    """All edges, int32 | int64 [2, E]; a long list is mapped."""
    if source.text_bytes() < SMALL_BYTES:
        options.on_total(source.total_bytes)
        return gather_edges(source.chunks())

    def make(file: Path) -> None:
        options.on_total(source.total_bytes)
        write_edges(file, source.chunks())

    return open_npy(options.scratch.made("edges.npy", made_from, make))


def _read_weights(source: ParquetEdges, made_from: list[Path], options: ReadOptions) -> np.ndarray:
    if source.text_bytes() < SMALL_BYTES:
        return np.concatenate([np.empty(0, source.weight_dtype), *source.weights()])

    def make(file: Path) -> None:
        file.unlink(missing_ok=True)  # of a run that was killed
        with NpyWriter(file, source.weight_dtype, (source.num_edges,)) as writer:
            for values in source.weights():
                writer.append(values)

    return open_npy(options.scratch.made("edge_weight.npy", made_from, make))

"""Formats of input graphs: what each is called, how it is recognised, and which function reads it.

    with Scratch() as scratch:
        raw = read_graph("data/web")  # the format is recognised from the files
        raw = read_graph("edges.csv.gz", "edgelist", ReadOptions(undirected=True, scratch=scratch))

A reader takes (path, ReadOptions) and returns a checked RawGraph. It is loaded when its format is used, as some
need packages of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.graph.datasets import META_NAME, RawGraph, read_npy_graph
from fastsample_dist.graph.inputs.edge_options import TEXT_SUFFIXES, EdgeListOptions
from fastsample_dist.graph.inputs.read_options import ReadOptions
from fastsample_dist.graph.inputs.scratch import Scratch
from fastsample_dist.graph.inputs.sizes import GraphSizes, certain_sizes

__all__ = [
    "FORMATS",
    "TEXT_SUFFIXES",
    "EdgeListOptions",
    "GraphSizes",
    "InputFormat",
    "ReadOptions",
    "Scratch",
    "detect_format",
    "input_sizes",
    "least_sizes",
    "read_graph",
]


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """A format.

    Attributes:
      name: as --format takes it.
      summary: one line for --help.
      reader: "module:function" that reads it.
      recognises: whether a path is of this format, by the names of its files only.
      states_direction: the input says itself whether it is undirected, so that the option does not go with it.
      sizes: "module:function" that returns its sizes (sizes.GraphSizes) without reading the data; None: there is none.
      counts: "module:function" that returns (nodes, edges at least) alone, from a small file beside the data; or None.
    """

    name: str
    summary: str
    reader: str
    recognises: Callable[[Path], bool]
    states_direction: bool = False
    sizes: str | None = None
    counts: str | None = None

    def read(self, path: str | Path, options: ReadOptions) -> RawGraph:
        """Read and check a graph.

        Raises:
          ValueError: what is there is not of this format, or not sound. ImportError: a package it needs is missing.
        """
        return _loaded(self.reader)(Path(path), options)


def _loaded(place: str) -> Callable:
    """The function at "module:function"."""
    module, function = place.split(":")
    return getattr(importlib.import_module(module), function)


def _is_text(path: Path) -> bool:
    if path.is_dir():
        return any(file.name.endswith(TEXT_SUFFIXES) for file in path.iterdir())
    return path.name.endswith(TEXT_SUFFIXES)


def _has(path: Path, *names: str) -> bool:
    return all((path / name).exists() for name in names)


def read_npy(path: Path, options: ReadOptions) -> RawGraph:
    """Read a directory of format `npy`; meta.json says whether it is undirected."""
    assert options.undirected is None, "read_graph refuses the option"
    return read_npy_graph(path, options.task)


_HERE = "fastsample_dist.graph.inputs"
_FORMATS = (
    InputFormat(
        name="npy",
        summary="a directory with meta.json and edge_index.npy",
        reader=f"{_HERE}:read_npy",
        sizes=f"{_HERE}.sizes:npy_sizes",
        recognises=lambda path: (
            (path / "edge_index.npy").is_file() or ((path / META_NAME).is_file() and not _is_text(path))
        ),
        states_direction=True,
    ),
    InputFormat(
        name="ogb",
        summary="a data set of the Open Graph Benchmark: its directory, or its name such as ogbn-arxiv",
        reader=f"{_HERE}.ogb:read_ogb",
        sizes=f"{_HERE}.sizes:ogb_sizes",
        recognises=lambda path: (
            path.is_dir() and (path.absolute().name.startswith(("ogbn_", "ogbn-")) or _has(path, "raw", "split"))
        ),
    ),
    InputFormat(
        name="dgl",
        summary="one graph written by dgl.save_graphs (.bin, .dgl)",
        reader="fastsample_dist.interop.dgl:read_saved",
        sizes=f"{_HERE}.dgl_saved:saved_sizes",
        recognises=lambda path: path.suffix in (".bin", ".dgl"),
    ),
    InputFormat(
        name="dgl-chunked",
        summary="DGL's chunked graph format: metadata.json or its directory",
        reader=f"{_HERE}.dgl_chunked:read_chunked",
        counts=f"{_HERE}.dgl_chunked:count_chunked",
        recognises=lambda path: path.name == "metadata.json" or _has(path, "metadata.json"),
    ),
    InputFormat(
        name="graphbolt",
        summary="a GraphBolt OnDiskDataset: metadata.yaml or its directory",
        reader=f"{_HERE}.graphbolt:read_graphbolt",
        counts=f"{_HERE}.graphbolt:count_graphbolt",
        recognises=lambda path: path.name == "metadata.yaml" or _has(path, "metadata.yaml"),
    ),
    InputFormat(
        name="pyg",
        summary="a PyTorch Geometric Data or HeteroData saved by torch.save (.pt), or a data set of one",
        reader=f"{_HERE}.pyg_saved:read_pyg",
        sizes=f"{_HERE}.pyg_saved:pyg_sizes",
        recognises=lambda path: (
            path.suffix in (".pt", ".pth") or (not _has(path, "split") and any((path / "processed").glob("*.pt")))
        ),
    ),
    InputFormat(
        name="edgelist",
        summary="lines 'source destination' (.csv, .tsv, .txt, also .gz, .xz, .zst) or .parquet, or a directory of one",
        reader=f"{_HERE}.edgelist:read_edgelist",
        sizes=f"{_HERE}.sizes:edgelist_sizes",
        recognises=_is_text,
    ),
)
FORMATS = {item.name: item for item in _FORMATS}


def detect_format(path: str | Path) -> str:
    """Name of the format that a path is of, by the names of its files.

    Raises:
      ValueError: nothing is there, or no format or several fit.
    """
    place = Path(path)
    if not place.exists():
        raise ValueError(f"{place} does not exist; pass a graph's file or directory.")
    names = [item.name for item in _FORMATS if item.recognises(place)]
    if "npy" in names:  # its files are unmistakable; others may lie beside them
        return "npy"
    if len(names) > 1 and "edgelist" in names:  # many a data set has some text beside its own files
        names.remove("edgelist")
    if len(names) != 1:
        found = f"looks like {' and '.join(names)}" if names else "has no file of a known format"
        raise ValueError(f"{place} {found}; pass --format {'|'.join(names or FORMATS)}.")
    return names[0]


def read_graph(path: str | Path, format_name: str | None = None, options: ReadOptions | None = None) -> RawGraph:
    """Read and check an input graph.

    Args:
      path: file or directory.
      format_name: one of FORMATS; None: recognised from the files.
      options: how to read.
    Returns:
      RawGraph; large arrays are memory-mapped.
    Raises:
      ValueError: no such format or input, or an input that is not sound: one line. ImportError: a package is missing.
    """
    options = options or ReadOptions()
    return _format_of(path, format_name, options.undirected, options.edges).read(path, options)


def input_sizes(
    path: str | Path,
    format_name: str | None = None,
    undirected: bool | None = None,
    edges: EdgeListOptions | None = None,
) -> GraphSizes:
    """Sizes of an input graph, from headers and file sizes; the data are not read.

    Args:
      path, format_name, undirected, edges: as of `read_graph` and ReadOptions.
    Raises:
      ValueError: as `read_graph`, as far as headers show; or a format whose sizes are unknown before it is read.
    """
    edges = edges or EdgeListOptions()
    chosen = _format_of(path, format_name, undirected, edges)
    if chosen.sizes is None:
        raise ValueError(
            f"{path} is of format {chosen.name}, whose sizes are unknown before it is read; "
            "pass --num-nodes and --num-edges instead of --input."
        )
    more = {"options": edges} if chosen.name == "edgelist" else {}
    return _loaded(chosen.sizes)(Path(path), undirected, **more)


def least_sizes(path: str | Path, format_name: str | None = None, options: ReadOptions | None = None) -> GraphSizes:
    """Lower bounds on the sizes of an input graph, as far as headers and file sizes show; the data are not read.

    Args:
      path, format_name, options: as of `read_graph`.
    Returns:
      GraphSizes; UNKNOWN where nothing is known, for example because of a fault that reading will report.
    """
    reading = options or ReadOptions()

    def find() -> GraphSizes:
        chosen = _format_of(path, format_name, reading.undirected, reading.edges)
        if chosen.counts is not None:
            num_nodes, num_edges = _loaded(chosen.counts)(Path(path))
            return GraphSizes(name=Path(path).name, num_nodes=num_nodes, num_listed=num_edges, has_labels=False)
        return input_sizes(path, format_name, reading.undirected, reading.edges)

    return certain_sizes(find)


def _format_of(
    path: str | Path, format_name: str | None, undirected: bool | None, edges: EdgeListOptions
) -> InputFormat:
    format_name = detect_format(path) if format_name is None else format_name
    if format_name not in FORMATS:
        raise ValueError(f"format is {format_name!r}; expected one of {', '.join(FORMATS)}.")
    chosen = FORMATS[format_name]
    if undirected is not None and chosen.states_direction:
        raise ValueError(f"--undirected does not go with --format {chosen.name}; the input states it itself.")
    if edges.given and chosen.name != "edgelist":
        option = edges.given[0].replace("_", "-")
        raise ValueError(
            f"--{option} goes with --format edgelist, and {path} is of format {chosen.name}; leave it out."
        )
    return chosen

"""The command line of the planted generator: `python -m fastsample_dist.graph.generators planted`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fastsample_dist.command import count, integer_from, usable_cores
from fastsample_dist.graph.planted import DEGREE_EXPONENT, SIZE_RATIO, PlantedGraph
from fastsample_dist.graph.planted_files import NodeColumns, OnRows, PlantedFiles, work_directory, write_planted
from fastsample_dist.memory_sizes import format_size, parse_bytes, process_memory
from fastsample_dist.progress import OnChunk, reporting


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a planted graph."""
    add = parser.add_argument
    add("--nodes", type=count, required=True, help="number of nodes")
    add("--edges", type=integer_from(0), required=True, help="number of listed edges")
    add("--communities", type=count, required=True, help="number of communities")
    add("--mixing", type=float, default=0.2, help="share of the edges between communities (default %(default)s)")
    add("--degree-exponent", type=float, default=DEGREE_EXPONENT, help="of the degrees' density (default %(default)s)")
    add("--max-degree", type=float, help="where the law of out-degrees ends (default: by the communities' sizes)")
    add("--size-ratio", type=float, default=SIZE_RATIO, help="largest community over the mean (default %(default)s)")
    add("--ordered", action="store_true", help="ids ascend with the communities (default: in random order)")
    add("--undirected", action="store_true", help="every edge, listed once, counts in both directions")
    add("--id-dtype", choices=("int32", "int64"), help="of the edges (default: int32 where the ids fit)")
    add("--features", type=int, default=0, help="feature columns, which tell the class; 0: none (default)")
    add("--feature-dtype", choices=("float32", "float16"), default="float32", help="default %(default)s")
    add("--classes", type=count, help="labels are community %% classes (default: the communities, at most 64)")
    add("--train-fraction", type=float, default=0.1, help="of the nodes; val and test get half each (default 0.1)")
    add("--seed", type=int, default=1, help="names the graph (default %(default)s)")
    add("--threads", type=count, default=usable_cores(), help="that draw; the graph does not depend on it")
    limit_help = "such as 2GB (default: the program itself and four fifths of what is available)"
    add("--memory-limit", metavar="SIZE", help=limit_help)
    add("--output", type=Path, required=True, help="new directory; a killed run resumes with the same command")


def write(args: argparse.Namespace) -> str:
    """Write the graph that the options name; returns a line about it.

    Raises:
      ValueError, OSError: see `write_planted`.
    """
    begin = time.perf_counter()
    graph = PlantedGraph(
        num_nodes=args.nodes,
        num_edges=args.edges,
        num_communities=args.communities,
        mixing=args.mixing,
        degree_exponent=args.degree_exponent,
        max_degree=args.max_degree,
        size_ratio=args.size_ratio,
        ordered=args.ordered,
        seed=args.seed,
    )
    columns = NodeColumns(
        undirected=args.undirected,
        id_dtype=args.id_dtype,
        feature_dim=args.features,
        feature_dtype=args.feature_dtype,
        num_classes=args.classes,
        train_fraction=args.train_fraction,
    )
    limit = None if args.memory_limit is None else _limit(args.memory_limit)
    with _columns_shown() as on_rows:
        made = write_planted(PlantedFiles(graph, columns, args.threads), args.output, limit, on_rows)
    peak = process_memory()["peak_rss_bytes"]
    return (
        f"{args.output}: {graph.num_nodes:,} nodes, {graph.num_edges:,} listed edges in {graph.num_communities:,} "
        f"communities, {format_size(made['disk_bytes'])}, {time.perf_counter() - begin:.1f} s, peak memory "
        f"{format_size(peak)} ({format_size(made['predicted_bytes'])} predicted)"
    )


def remains(output: Path) -> str:
    """Where the unfinished work on an output is kept, as a sentence; nothing when there is none."""
    work = work_directory(output)
    if not work.is_dir():
        return ""
    return f"unfinished work is kept in {work}: the same command resumes from it, or delete it."


@contextmanager
def _columns_shown() -> Iterator[OnRows]:
    """What `write_planted` calls: a bar on a terminal, or lines, for one column after the other."""
    with ExitStack() as opened:
        shown: dict[str, OnChunk] = {}

        def on_rows(column: str, done: int, rows: int) -> None:
            if column not in shown:
                opened.close()  # a terminal has one bar at a time
                shown[column] = opened.enter_context(reporting(column, shown=True, stderr=False))
            shown[column](done, rows)

        yield on_rows


def _limit(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"--memory-limit {error}") from error

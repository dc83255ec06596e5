"""The options of `fastsample-partition` that define how the rows of an edge list are read."""

from __future__ import annotations

import argparse

from fastsample_dist.graph.inputs import EdgeListOptions
from fastsample_dist.graph.inputs.edge_options import parse_columns

EDGE_LIST_OPTIONS = ("header", "delimiter", "columns", "weight_column", "relabel")


def add_edge_list_options(parser: argparse.ArgumentParser) -> None:
    """Add them as a group of their own."""
    group = parser.add_argument_group("edge lists", "how the rows of an input of format edgelist are to be read")
    group.add_argument(
        "--header",
        action="store_true",
        default=None,
        help="the first line of a text names the columns; it is not an edge",
    )
    group.add_argument(
        "--delimiter",
        metavar="D",
        help="between the fields of a text: one character, or comma, tab, semicolon, pipe, space (blanks and tabs); "
        "default: a comma if the first line has one, else blanks",
    )
    group.add_argument(
        "--columns",
        metavar="SRC,DST",
        help="source and destination, by number from 1, or by name with --header or in .parquet; others are left out",
    )
    group.add_argument(
        "--weight-column", metavar="W", help="column of the edges' weights, as --columns names them (0 or more each)"
    )
    group.add_argument(
        "--relabel",
        action="store_true",
        default=None,
        help="ids are names (text, or integers with gaps): they become 0, 1, 2, ... in sorted order, and "
        "PARTS/topology/input_ids.npy has the names",
    )


def edge_list_options(args: argparse.Namespace) -> EdgeListOptions:
    """What the options say.

    Raises:
      ValueError: an invalid value.
    """
    return EdgeListOptions(
        header=bool(args.header),
        delimiter=args.delimiter,
        columns=None if args.columns is None else parse_columns(args.columns),
        weight_column=args.weight_column,
        relabel=bool(args.relabel),
    )

"""The options that several benchmarks have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastsample_dist import command as cl
from fastsample_dist.train.trainer import PRECISIONS


def add_graph(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add --graph, required unless it has a default."""
    text = (
        "a partition's directory, an npy input directory, rmat:SCALE:EDGE_FACTOR, "
        "planted:NODES:EDGES:COMMUNITIES[:MIXING], or debian, the example graph"
    )
    more = "" if default is None else " (default: %(default)s)"
    parser.add_argument("--graph", required=default is None, default=default, help=f"{text}{more}")


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add --verify."""
    parser.add_argument(
        "--verify", action="store_true", help="compare with the oracles first; exit 1 where anything differs"
    )


def add_drawing(parser: argparse.ArgumentParser) -> None:
    """Add the seed, and where generated graphs are kept."""
    parser.add_argument("--seed", type=int, default=0, help="of everything drawn (default: %(default)s)")
    parser.add_argument(
        "--work", metavar="DIR", type=Path, help="keeps generated graphs (default: a temporary directory)"
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add what is trained beside the layers, how often, and how the graph is cut."""
    add = parser.add_argument
    add("--epochs", type=cl.count, default=3, help="timed ones, after one warm-up epoch (default: %(default)s)")
    add("--hidden", type=cl.count, default=256, help="columns of a hidden row (default: %(default)s)")
    add("--dropout", type=cl.share, default=0.5, help="(default: %(default)s)")
    add("--method", default="metis", help="how a generated graph is cut (default: %(default)s)")


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add all that GraphSAGE is trained with."""
    add = parser.add_argument
    add_model(parser)
    add("--batch-size", type=cl.count, default=1000, help="seeds per rank and step (default: %(default)s)")
    add("--fanouts", type=cl.fanout_list, default=(15, 10, 5), help="one per layer (default: 15,10,5)")
    add("--precision", choices=PRECISIONS, default="fp32", help="(default: %(default)s)")
    add_drawing(parser)

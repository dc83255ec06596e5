"""The options that benchmarks which train have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastsample_dist import command as cl
from fastsample_dist.train.trainer import PRECISIONS


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add what is trained, how often, and where generated graphs are kept."""
    add = parser.add_argument
    add("--epochs", type=cl.count, default=3, help="timed ones, after one warm-up epoch (default: %(default)s)")
    add("--batch-size", type=cl.count, default=1000, help="seeds per rank and step (default: %(default)s)")
    add("--fanouts", type=cl.fanout_list, default=(15, 10, 5), help="one per layer (default: 15,10,5)")
    add("--hidden", type=cl.count, default=256, help="columns of a hidden row (default: %(default)s)")
    add("--dropout", type=cl.share, default=0.5, help="(default: %(default)s)")
    add("--precision", choices=PRECISIONS, default="fp32", help="(default: %(default)s)")
    add("--seed", type=int, default=0, help="of everything drawn (default: %(default)s)")
    add("--method", default="metis", help="how a generated graph is cut (default: %(default)s)")
    add("--work", metavar="DIR", type=Path, help="keeps generated graphs (default: a temporary directory)")

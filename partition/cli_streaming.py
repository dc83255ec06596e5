"""The options of `fastsample-partition` for methods that stream."""

from __future__ import annotations

import argparse
from typing import Any

from fastsample_dist.memory_sizes import parse_bytes
from fastsample_dist.partition.methods import METHODS
from fastsample_dist.partition.methods.options import ORDERS

STREAM_OPTIONS = ("passes", "order", "buffer")


def add_stream_options(parser: argparse.ArgumentParser) -> None:
    """Add them as a group of their own."""
    group = parser.add_argument_group("streaming methods", "for the methods named in brackets")
    group.add_argument(
        "--passes",
        metavar="N",
        type=int,
        help=f"how often they go over the nodes; each pass improves {_readers('passes')}",
    )
    group.add_argument(
        "--order",
        choices=ORDERS,
        help=f"in which the nodes come: given, by ascending id (default), or bfs, breadth first {_readers('order')}",
    )
    group.add_argument(
        "--buffer",
        metavar="SIZE",
        help=f"memory for the part of the graph that is worked on, such as 256MB {_readers('buffer')}",
    )


def _readers(option: str) -> str:
    return f"[{', '.join(name for name, method in METHODS.items() if option in method.reads)}]"


def stream_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the options say, as fields of StreamOptions; those that are not given are left out.

    Raises:
      ValueError: --buffer is not a size.
    """
    found = {name: getattr(args, name) for name in STREAM_OPTIONS if getattr(args, name) is not None}
    if "buffer" in found:
        try:
            found["buffer"] = parse_bytes(found["buffer"])
        except ValueError as error:
            raise ValueError(f"--buffer {error}") from error
    return found

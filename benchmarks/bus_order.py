"""Rows of pinned host memory that a GPU reads: in any order, and by row; by size of the table and number of rows.

    python benchmarks/bus_order.py [--gigabytes 0.5 2.1 8.6 17.2] [--rows 40000 400000] [--json FILE]

Rows of 512 bytes, which start and end with a line of the bus. Both ways run the same kernel, on ids as they were drawn
and sorted; ops.gather_rows does not sort here. The last column is what sorting takes alone. Medians of 9 calls by CUDA
events. Needs an NVIDIA GPU, and host memory twice as large as the largest table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

import torch

from fastsample_dist import ops
from fastsample_dist.bench.gpu.device import missing_reason
from fastsample_dist.command import Parser, add_json, run_command
from fastsample_dist.device.pinned import pinned_copy
from fastsample_dist.ops import bus_order

WIDTH, ROW_BYTES, WARM_UPS, CALLS = 128, 512, 2, 9


def seconds(call: Callable[[], object]) -> float:
    """Of a call and what it enqueues."""
    found = []
    for _ in range(WARM_UPS + CALLS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(found[WARM_UPS:])


def make_parser() -> argparse.ArgumentParser:
    """Command line."""
    parser = Parser(prog="bus_order.py", description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.5, 2.1, 8.6, 17.2], help="of the tables")
    parser.add_argument("--rows", type=int, nargs="+", default=[40_000, 400_000], help="of a call")
    add_json(parser, "write the figures here too")
    return parser


def measure(arguments: argparse.Namespace) -> tuple[int, dict]:
    """Run everything and print the table; returns (exit status, figures for --json)."""
    reason = missing_reason()
    if reason is not None:
        raise ValueError(reason)
    device, generator = torch.device("cuda", 0), torch.Generator().manual_seed(1)
    bus_order.LEAST_ROWS = sys.maxsize
    sizes = [round(own * 1e9) // ROW_BYTES for own in arguments.gigabytes]
    table = pinned_copy(torch.full((max(sizes), WIDTH), 1.0), device)
    print("| table | rows | in any order, us | GB/s | by row, us | GB/s | sorting, us |\n|---|---|---|---|---|---|---|")
    found = []
    for num_rows in sizes:
        for count in arguments.rows:
            ids = torch.randint(num_rows, (count,), generator=generator).to(device)
            ways = [
                seconds(lambda own=own: ops.gather_rows(table, own, checked=False)) for own in (ids, ids.sort().values)
            ]
            sorting = seconds(ids.sort)
            shown = [f"{way * 1e6:,.0f} | {count * ROW_BYTES / way / 1e9:.1f}" for way in ways]
            size = num_rows * ROW_BYTES
            print(f"| {size / 1e9:.1f} GB | {count:,} | {' | '.join(shown)} | {sorting * 1e6:.0f} |", flush=True)
            found.append({"bytes": size, "rows": count, "any_s": ways[0], "by_row_s": ways[1], "sort_s": sorting})
    return 0, {"device": torch.cuda.get_device_name(device), "cases": found}


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))

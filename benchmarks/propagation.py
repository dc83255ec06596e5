"""Propagation by feature partitions on sampled subgraphs (Zeng et al., IPDPS'19, theorem 2 and algorithm 6).

    OMP_NUM_THREADS=1 python benchmarks/propagation.py --graph debian-packages=DIR --graph amazon-computers=DIR

A graph is a directory of the npy input format. The mean over in-neighbours on its first frontier subgraph (1000 roots,
8000 visits) is taken by tiles of so many columns: row by row (all tiles of a row, then the next row), tile by tile (the
paper's order), tile by tile with rows on huge pages, tile by tile with one source for all edges (what is left where
every read hits the first-level cache), and on tiles that lie packed, with what packing costs. Below: the operator as it
is called by default, the theorem's tile, DGL, torch's sparse product, and the layer's dense product. Results are
compared with the default bit for bit. Times are processor time of the calling thread, minima over --repeats rounds,
each of which runs every variant once.
"""

from __future__ import annotations

import argparse
import mmap
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fastsample_dist as fsd
from fastsample_dist import ops
from fastsample_dist.bench.conditions import busy_warning, conditions
from fastsample_dist.command import Parser, add_json, integer_from, run_command
from fastsample_dist.device.allocator import reuse_freed_memory
from fastsample_dist.graph.datasets import read_npy_graph
from fastsample_dist.ops import library
from fastsample_dist.ops.column_tiles import theorem_columns
from fastsample_dist.ops.layer_cores import CPU

COLUMNS = (512, 256, 128, 64, 32, 16)
ORDERS = (
    "row by row", "tile by tile", "tile by tile, huge pages", "tile by tile, one source", "packed tiles",
    "cost of packing",
)  # fmt: skip
OTHER_RESULTS = ("tile by tile, one source", "cost of packing")
BESIDE = ("default", "theorem", "DGL", "torch CSR", "dense product")
Timed = Callable[[], Tensor]
Edges = tuple[Tensor, Tensor]


def on_huge_pages(x: Tensor) -> Tensor:
    """A copy of x in memory for which the kernel is asked for huge pages."""
    size = -(-x.numel() * x.element_size() // 2**21) * 2**21
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=x.dtype, count=x.numel()).view(x.shape).copy_(x)


def packed_variants(edges: Edges, x: Tensor, columns: int) -> dict[str, Timed]:
    """Aggregation of tiles that lie packed, one call of the core a tile, and making them."""
    tiles = [(at, min(at + columns, x.shape[1])) for at in range(0, x.shape[1], columns)]
    packed = [x[:, begin:end].contiguous() for begin, end in tiles]
    out, none = torch.empty_like(x), edges[0].new_empty((0, 0))

    def add_up() -> Tensor:
        for rows, (begin, end) in zip(packed, tiles, strict=True):
            CPU.aggregate(description(edges, rows), rows, out[:, begin:end], none)
        return out

    def pack() -> Tensor:
        for rows, (begin, end) in zip(packed, tiles, strict=True):
            rows.copy_(x[:, begin:end])
        return x

    return {"packed tiles": add_up, "cost of packing": pack}


def description(edges: Edges, rows: Tensor) -> library.Aggregation:
    """The mean over `edges` of these rows, as the core takes it."""
    indptr, indices = edges
    return library.Aggregation(
        indptr.data_ptr(), indices.data_ptr(), indptr.numel() - 1, rows.shape[0], indices.numel(),
        library.type_code(indices), library.REDUCE_CODES["mean"], None, 1, rows.shape[1], library.type_code(rows), 1,
    )  # fmt: skip


def tile_variants(edges: Edges, x: Tensor) -> dict[tuple[str, int], Timed]:
    """{(order, columns): call} of the table."""
    huge, found = on_huge_pages(x), {}
    from_one = (edges[0], torch.zeros_like(edges[1]))

    def tiled(edges: Edges, rows: Tensor, columns: int, outer: bool) -> Timed:
        return lambda: ops.aggregate(*edges, rows, reduce="mean", tile=columns, tiles_outer=outer)

    for columns in (columns for columns in COLUMNS if columns <= x.shape[1]):
        found["row by row", columns] = tiled(edges, x, columns, False)
        found["tile by tile", columns] = tiled(edges, x, columns, True)
        found["tile by tile, huge pages", columns] = tiled(edges, huge, columns, True)
        found["tile by tile, one source", columns] = tiled(from_one, x, columns, True)
        for order, call in packed_variants(edges, x, columns).items():
            found[order, columns] = call
    return found


def beside_variants(edges: Edges, x: Tensor) -> dict[str, Timed]:
    """{name: call}: the operator, the theorem's tile and what others have."""
    indptr, indices = edges
    (num_nodes, width), degrees = x.shape, indptr.diff()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR tensors beta
        import dgl

        values = torch.repeat_interleave(1.0 / degrees.clamp(min=1), degrees)
        matrix = torch.sparse_csr_tensor(indptr.to(indices.dtype), indices, values, (num_nodes, num_nodes))
    dsts = torch.repeat_interleave(torch.arange(num_nodes, dtype=indices.dtype), degrees)
    graph = dgl.graph((indices, dsts), num_nodes=num_nodes).formats("csc")
    halves, weight = torch.randn(num_nodes, 2 * width), torch.randn(2 * width, width)
    return {
        "default": lambda: ops.aggregate(*edges, x, reduce="mean"),
        "theorem": lambda: ops.aggregate(*edges, x, reduce="mean", tile="theorem"),
        "DGL": lambda: dgl.ops.copy_u_mean(graph, x),
        "torch CSR": lambda: matrix @ x,
        "dense product": lambda: torch.mm(halves, weight),
    }


def milliseconds(variants: dict[Any, Timed], repeats: int) -> dict[Any, float]:
    """Least processor time of each."""
    best = dict.fromkeys(variants, float("inf"))
    for call in variants.values():
        call()
    for _ in range(repeats):
        for name, call in variants.items():
            begin_s = time.thread_time()
            call()
            best[name] = min(best[name], 1e3 * (time.thread_time() - begin_s))
    return best


def measure_width(edges: Edges, num_nodes: int, width: int, repeats: int) -> dict[str, Any]:
    """{"tiles": {order: {columns: ms}}, "beside": {name: ms}, "theorem_columns": n}."""
    x = torch.randn(num_nodes, width, generator=torch.Generator().manual_seed(0))
    tiles, beside = tile_variants(edges, x), beside_variants(edges, x)
    expected = beside["default"]()
    for (order, columns), call in tiles.items():
        if order not in OTHER_RESULTS and not torch.equal(call(), expected):
            raise RuntimeError(f"{order} by {columns} columns gives other sums than the default.")
    no_columns, none = x.new_empty((num_nodes, 0)), edges[0].new_empty((0, 0))
    empty_call = partial(CPU.aggregate, description(edges, no_columns), no_columns, no_columns, none)
    ms = milliseconds({**tiles, **beside, "empty call": empty_call}, repeats)
    table = {order: {c: ms[order, c] for c in COLUMNS if (order, c) in ms} for order in ORDERS}
    for columns in table["packed tiles"]:  # what a call costs besides its columns is not the tiles' own
        table["packed tiles"][columns] -= ms["empty call"] * -(-width // columns)
    return {
        "tiles": table, "beside": {name: ms[name] for name in BESIDE},
        "theorem_columns": theorem_columns(num_nodes, width, x.element_size()),
    }  # fmt: skip


def lines_of(width: int, found: dict[str, Any]) -> list[str]:
    """Markdown rows of one width."""
    rows = []
    for order, by_columns in found["tiles"].items():
        cells = [f"{by_columns[columns]:.1f}" if columns in by_columns else "" for columns in COLUMNS]
        rows.append(f"| {width} | {order} | " + " | ".join(cells) + " |")
    beside = ", ".join(f"{name} {ms:.1f}" for name, ms in found["beside"].items())
    return [*rows, f"| {width} | beside: {beside}; the theorem's tile: {found['theorem_columns']} columns" + " |" * 7]


def measure(args: argparse.Namespace) -> tuple[int, dict]:
    """Print a table per graph; returns (exit status, figures for --json)."""
    torch.set_num_threads(1)
    reuse_freed_memory()
    known, results = conditions(1), {}
    print(f"commit {known['commit']}, torch {known['torch']}, {known['processor']}, load {known['load_before']:.1f}")
    print(*busy_warning(known), sep="\n")
    for name, _, directory in (text.partition("=") for text in args.graph):
        graph = read_npy_graph(Path(directory)).to_csc()
        subgraph = fsd.SubgraphSampler(graph, fsd.SubgraphSpec(weights="none")).sample(0)
        edges, num_nodes = (subgraph.indptr, subgraph.indices), subgraph.nodes.numel()
        print(f"\n{name}: {num_nodes} nodes, {edges[1].numel()} edges; ms\n")
        print("| width | order | " + " | ".join(map(str, COLUMNS)) + " |\n" + "|---" * (len(COLUMNS) + 2) + "|")
        results[name] = {}
        for width in args.widths:
            results[name][width] = measure_width(edges, num_nodes, width, args.repeats)
            print(*lines_of(width, results[name][width]), sep="\n", flush=True)
    return 0, {"conditions": known, "graphs": results}


def make_parser() -> argparse.ArgumentParser:
    """Command line."""
    parser = Parser(prog="propagation.py", description=__doc__.splitlines()[0])
    parser.add_argument("--graph", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--widths", type=integer_from(1), nargs="+", default=[256, 512, 1024])
    parser.add_argument("--repeats", type=integer_from(1), default=10)
    add_json(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))

"""Time and peak memory of cutting large graphs with --memory-limit, each run a process of its own.

    python benchmarks/partition_memory.py --work DIR [--edges 500000000] [--nodes 16000000] [--memory-limit 4GB]
        [--graph NPY_DIR] [--num-parts 8] [--method random] [--keep] [--json FILE]

Without --graph an npy input directory of --edges edges is drawn to disk in chunks: sources and destinations are the
square and the cube of uniform numbers times the number of nodes, scattered over the ids, so that degrees are skewed as
in a web graph (the largest in-degree of 500 million edges is some millions). With --features D it gets D float32
features per node. The peak is what the kernel counted for the finished process (ru_maxrss): mapped pages are in it.
Results: benchmarks/partitioning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastsample_dist.command import Parser, add_json, run_command
from fastsample_dist.files import write_json
from fastsample_dist.testing.supervisor import run_process

ROOT = Path(__file__).resolve().parents[1]
CHUNK = 1 << 22


@contextmanager
def npy_file(path: Path, dtype: str, shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """An .npy file to append rows to. Not a mapping: its pages would count in the peak of the process started next."""
    with path.open("xb") as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        yield file


def draw_graph(path: Path, num_nodes: int, num_edges: int, feature_dim: int) -> None:
    """Write an npy input directory, a chunk at a time."""
    path.mkdir(parents=True)
    rng = np.random.default_rng(0)
    stride = 0x9E3779B1  # prime, so that it scatters the ids over any smaller number of nodes
    with npy_file(path / "edge_index.npy", "<i4", (2, num_edges)) as file:
        for power in (2, 3):
            for lo in range(0, num_edges, CHUNK):
                skewed = (rng.random(min(CHUNK, num_edges - lo)) ** power * num_nodes).astype(np.int64)
                file.write((skewed * stride % num_nodes).astype("<i4").data)
    if feature_dim:
        rows = max(1, CHUNK // feature_dim)
        with npy_file(path / "features.npy", "<f4", (num_nodes, feature_dim)) as file:
            for lo in range(0, num_nodes, rows):
                shape = (min(rows, num_nodes - lo), feature_dim)
                file.write(rng.standard_normal(shape, dtype=np.float32).data)
    meta = {"name": f"skewed-{num_edges}", "num_nodes": num_nodes, "undirected": False}
    write_json(path / "meta.json", meta)


def run_measured(command: list[str]) -> tuple[float, int]:
    """Run a command, the only one of this process: seconds, and the largest resident set of its process in bytes."""
    begin = time.perf_counter()
    done = run_process(command, captured=False, cwd=ROOT)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}; expected 0.")
    return time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def cut(args: argparse.Namespace) -> dict[str, Any]:
    """Cut the graph once and report."""
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    graph = Path(args.graph) if args.graph else work / "graph"
    if not graph.is_dir():
        draw_graph(graph, args.nodes, args.edges, args.features)
    parts = work / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "fastsample_dist.partition.cli",
        "--input",
        str(graph),
        "--num-parts",
        str(args.num_parts),
    ]
    command += ["--method", args.method, "--memory-limit", args.memory_limit, "--output", str(parts)]
    seconds, peak = run_measured(command)
    manifest = json.loads((parts / "manifest.json").read_text())
    if not args.keep:
        shutil.rmtree(parts)
        if not args.graph:
            shutil.rmtree(graph)
    return {
        "graph": manifest["name"],
        "num_nodes": manifest["num_nodes"],
        "num_edges": manifest["num_edges"],
        "num_parts": args.num_parts,
        "method": args.method,
        "memory_limit": args.memory_limit,
        "seconds": seconds,
        "max_resident_bytes": peak,
        "processors": len(os.sched_getaffinity(0)),
        "machine": platform.platform(),
    }


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(
        prog="partition_memory.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", required=True, help="directory for the drawn graph and the parts")
    parser.add_argument("--graph", help="an npy input directory; by default one is drawn")
    parser.add_argument("--edges", type=int, default=500_000_000)
    parser.add_argument("--nodes", type=int, default=16_000_000)
    parser.add_argument("--features", type=int, default=0, help="features per node of a drawn graph")
    parser.add_argument("--num-parts", type=int, default=8)
    parser.add_argument("--method", default="random")
    parser.add_argument("--memory-limit", default="4GB")
    parser.add_argument("--keep", action="store_true", help="leave the drawn graph and the parts where they are")
    add_json(parser)
    return parser


def measure(args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Cut and print; returns (exit status, figures for --json)."""
    report = cut(args)
    print(
        f"{report['num_edges']:,} edges, {report['num_nodes']:,} nodes, {report['num_parts']} parts by "
        f"{report['method']} within {report['memory_limit']}: {report['seconds']:.1f} s, largest resident set "
        f"{report['max_resident_bytes'] / 1e9:.2f} GB, {report['processors']} processors"
    )
    return 0, report


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))

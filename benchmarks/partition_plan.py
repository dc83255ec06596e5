"""What `fastsample-partition --plan` predicts beside what runs take: peak memory by method, on drawn graphs.

    python benchmarks/partition_plan.py --work DIR [--graphs 16:16:u,18:16:d:int64:64] [--methods random,ldg,metis]
        [--ways memory,disk,limit=500MB] [--num-parts 8] [--markdown FILE] [--json FILE]

A graph is RMAT scale:edge factor, u: listed once and undirected, d: directed without reverses; then the type of the
ids (int32) and columns of float32 features (0). Every prediction and every run is a process of its own; the measured
peak is the kernel's (VmHWM, mapped pages in it). "above" compares what is above the program's own memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.command import Parser, add_json, run_command
from fastsample_dist.files import write_text
from fastsample_dist.graph.generators import rmat, synthetic_task, write_npy_graph
from fastsample_dist.testing.supervisor import last_line, run_process

ROOT = Path(__file__).resolve().parents[1]
GRAPHS = "16:16:u,17:16:u:int64:32,17:32:u,18:16:u,18:16:d:int64:64,19:8:d,20:16:u"
WAYS = {"memory": [], "disk": ["--on-disk"]}


def draw(work: Path, spec: str) -> Path:
    """Write the graph of a spec as an npy directory, unless it is there."""
    scale, factor, kind, dtype, dim = (*spec.split(":"), *("int32", "0")[len(spec.split(":")) - 3 :])
    path = work / spec.replace(":", "-")
    if path.exists():
        return path
    graph = rmat(int(scale), int(factor), seed=1, symmetrize=kind == "u")
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degrees().numpy())
    src = graph.indices.numpy()
    once = src < dst if kind == "u" else slice(None)
    edges = np.stack([src[once], dst[once]]).astype(dtype)
    task = synthetic_task(graph, max(1, int(dim)), 16, 0.1, 0)
    features = task.features if int(dim) else None
    write_npy_graph(
        path,
        (edges, graph.num_nodes),
        name=spec,
        features=features,
        labels=task.labels,
        splits=task.splits,
        undirected=kind == "u",
    )
    return path


def run_partition(work: Path, *options: object) -> dict[str, Any]:
    """Run fastsample-partition and return its --json."""
    report = work / "report.json"
    argv = [sys.executable, "-m", "fastsample_dist.partition.cli", *map(str, options), "--json", str(report)]
    done = run_process(argv, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {last_line(done)}")
    return json.loads(report.read_text())


def compare(work: Path, graph: Path, method: str, way: str, num_parts: int) -> dict[str, Any]:
    """One prediction and one run."""
    limit = ["--memory-limit", way.removeprefix("limit=")] if way.startswith("limit=") else []
    common = ["--input", graph, "--num-parts", num_parts, *limit]
    made = run_partition(work, "--plan", *common)["partitioning"]
    parts = work / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    run = run_partition(work, *common, *WAYS.get(way, []), "--method", method, "--output", parts)
    shutil.rmtree(parts)
    kind = {"memory": "in_memory", "disk": "on_disk"}.get(way, made["chosen"])
    predicted, measured, base = made["methods"][method][kind], run["peak_resident_bytes"], made["base_bytes"]
    return {
        "graph": graph.name,
        "nodes": run["num_nodes"],
        "edges": run["num_edges"],
        "method": method,
        "way": f"{way}, {kind}" if limit else kind,
        "step": predicted["step"],
        "predicted": predicted["peak_bytes"],
        "measured": measured,
        "ratio": predicted["peak_bytes"] / measured,
        "above": (predicted["peak_bytes"] - base) / (measured - base),
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown."""
    yield "| graph | nodes | edges | method | edges sorted | widest step | predicted | measured | ratio | above |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        sizes = f"{row['predicted'] / 1e6:,.0f} MB | {row['measured'] / 1e6:,.0f} MB"
        yield (
            f"| {row['graph']} | {row['nodes']:,} | {row['edges']:,} | {row['method']} | {row['way']} | {row['step']} "
            f"| {sizes} | {row['ratio']:.2f} | {row['above']:.2f} |"
        )


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(prog="partition_plan.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, type=Path, help="directory for the drawn graphs and the parts")
    parser.add_argument("--graphs", default=GRAPHS)
    parser.add_argument("--methods", default="random,ldg,metis,kaminpar")
    parser.add_argument("--ways", default="memory,limit=600MB")
    parser.add_argument("--num-parts", type=int, default=8)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    add_json(parser)
    return parser


def measure(args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Compare and print; returns (exit status, rows for --json)."""
    args.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for spec in args.graphs.split(","):
        graph = draw(args.work, spec)
        for method in args.methods.split(","):
            for way in args.ways.split(","):
                if way.startswith("limit=") and method in ("metis", "kaminpar"):
                    continue  # they hold the whole graph: such a limit would be refused
                rows.append(compare(args.work, graph, method, way, args.num_parts))
                print(rows[-1], flush=True)
    lines = list(table(rows))
    print("\n".join(lines))
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    if args.markdown:
        write_text(args.markdown, "\n".join(lines) + "\n")
    return 0, {"rows": rows}


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))

"""What `fastsample-partition --plan` predicts beside what runs take: peak memory by method, on drawn graphs.

    python benchmarks/partition_plan.py --work DIR [--graphs 16:16:u,18:16:d:int64:64] [--methods random,ldg,metis]
        [--ways memory,disk,limit=500MB] [--num-parts 8] [--markdown FILE] [--json FILE]

A graph is RMAT scale:edge factor, u: listed once and undirected, d: directed without reverses; then the type of the
ids (int32) and columns of float32 features (0). Others are planted:NODES:EDGES:COMMUNITIES:MIXING (directed, without
hubs, see graph/planted.py) and uniform:NODES:EDGES. Every prediction and every run is a process of its own; the
measured peak is the kernel's (VmHWM, mapped pages in it), of kaminpar the most that both processes held together.
"above" compares what is above the program's own memory. Of kaminpar with the edges on disk a second table has what it
is found to take at least before the edges are sorted (write/checks.py), and what it took beyond that.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.command import Parser, add_json, count, run_command
from fastsample_dist.files import write_text
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.generators import random_graph, rmat, synthetic_task, write_npy_graph
from fastsample_dist.graph.inputs import input_sizes
from fastsample_dist.graph.npy_files import open_npy
from fastsample_dist.partition.external.sampled_rows import SampledRows
from fastsample_dist.partition.plan.memory import compressed_needs, memory_budget, num_neighbours
from fastsample_dist.testing.supervisor import last_line, run_process

RATIOS = ("ratio", "above")
ROOT = Path(__file__).resolve().parents[1]
PIECE_EDGES = 1 << 21
GRAPHS = "16:16:u,17:16:u:int64:32,17:32:u,18:16:u,18:16:d:int64:64,19:8:d,20:16:u"
WAYS = {"memory": [], "disk": ["--on-disk"]}


def draw(work: Path, spec: str) -> Path:
    """Write the graph of a spec as an npy directory, unless it is there."""
    path, words = work / spec.replace(":", "-"), spec.split(":")
    if path.exists():
        return path
    if words[0] == "planted":
        options = zip(("nodes", "edges", "communities", "mixing"), words[1:], strict=True)
        command = [word for name, value in options for word in (f"--{name}", value)]
        run([sys.executable, "-m", "fastsample_dist.graph.generators", "planted", *command, "--output", str(path)])
    elif words[0] == "uniform":
        write(path, random_graph(int(words[1]), int(words[2]), seed=1), "d")
    else:
        scale, factor, kind = words[:3]
        dtype, dim = (*words[3:], *("int32", "0")[len(words) - 3 :])
        write(path, rmat(int(scale), int(factor), seed=1, symmetrize=kind == "u"), kind, dtype, int(dim))
    return path


def write(path: Path, graph: CSCGraph, kind: str, dtype: str = "int32", dim: int = 0) -> None:
    """Write a graph as an npy directory; kind "u" lists every edge of a symmetric one once."""
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degrees().numpy())
    src = graph.indices.numpy()
    once = src < dst if kind == "u" else slice(None)
    edges = np.stack([src[once], dst[once]]).astype(dtype)
    task = synthetic_task(graph, max(1, dim), 16, 0.1, 0)
    write_npy_graph(
        path,
        (edges, graph.num_nodes),
        name=path.name,
        features=task.features if dim else None,
        labels=task.labels,
        splits=task.splits,
        undirected=kind == "u",
    )


def run(argv: list[str]) -> None:
    """Run a command.

    Raises:
      RuntimeError: it failed; with its last line.
    """
    done = run_process(argv, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {last_line(done)}")


def run_partition(work: Path, *options: object) -> dict[str, Any]:
    """Run fastsample-partition and return its --json."""
    report = work / "report.json"
    run([sys.executable, "-m", "fastsample_dist.partition.cli", *map(str, options), "--json", str(report)])
    return json.loads(report.read_text())


def at_least(graph: Path, base: int) -> int:
    """What kaminpar is found to take at least in the pass that counts the edges."""
    sizes, edges = input_sizes(graph), open_npy(graph / "edge_index.npy")
    rows = SampledRows(sizes.num_listed, undirected=sizes.undirected)
    for lo in range(0, sizes.num_listed, PIECE_EDGES):
        rows.add(*edges[:, lo : lo + PIECE_EDGES])
    budget = memory_budget(None, base, sizes, "kaminpar")
    return compressed_needs(sizes, "kaminpar", budget, rows.compressed_bytes())


def compare(work: Path, graph: Path, way: str, num_parts: int, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One prediction, and a run of each method."""
    limit = ["--memory-limit", way.removeprefix("limit=")] if way.startswith("limit=") else []
    common = ["--input", graph, "--num-parts", num_parts, *limit]
    made = run_partition(work, "--plan", *common)["partitioning"]
    kind = {"memory": "in_memory", "disk": "on_disk"}.get(way, made["chosen"])
    least = at_least(graph, made["base_bytes"]) if "kaminpar" in methods else None
    for method in methods:
        if limit and method in ("metis", "kaminpar"):
            continue  # they hold the whole graph: such a limit would be refused
        parts = work / "parts"
        shutil.rmtree(parts, ignore_errors=True)
        cut = run_partition(work, *common, *WAYS.get(way, []), "--method", method, "--output", parts)
        shutil.rmtree(parts)
        predicted, measured, base = made["methods"][method][kind], cut["peak_resident_bytes"], made["base_bytes"]
        yield {
            "graph": graph.name,
            "parts": num_parts,
            "nodes": cut["num_nodes"],
            "edges": cut["num_edges"],
            "entries": num_neighbours(input_sizes(graph)),
            "method": method,
            "way": f"{way}, {kind}" if limit else kind,
            "step": predicted["step"],
            "predicted": predicted["peak_bytes"],
            "measured": measured,
            "ratio": predicted["peak_bytes"] / measured,
            "above": (predicted["peak_bytes"] - base) / (measured - base),
            "least": least,
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


def least_table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Markdown: kaminpar with the edges on disk, beside what it was found to take at least."""
    yield "| graph | parts | at least | measured | beyond, bytes an entry of the adjacency |"
    yield "|---|---|---|---|---|"
    for row in rows:
        beyond = (row["measured"] - row["least"]) / row["entries"]
        sizes = f"{row['least'] / 1e6:,.0f} MB | {row['measured'] / 1e6:,.0f} MB"
        yield f"| {row['graph']} | {row['parts']} | {sizes} | {beyond:.1f} |"


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line per method: its smallest and largest ratios."""
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        ranges = [f"{min(row[key] for row in own):.2f} to {max(row[key] for row in own):.2f}" for key in RATIOS]
        outside = sum(not 0.85 <= row["above"] <= 1.15 for row in own)
        yield f"{method}: {len(own)} runs, ratio {ranges[0]}, above {ranges[1]}, {outside} outside 0.85 to 1.15"


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(prog="partition_plan.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, type=Path, help="directory for the drawn graphs and the parts")
    parser.add_argument("--graphs", default=GRAPHS)
    parser.add_argument("--methods", default="random,ldg,stream,metis,kaminpar")
    parser.add_argument("--ways", default="memory,disk")
    parser.add_argument("--num-parts", type=count, default=8)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    add_json(parser)
    return parser


def measure(args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Compare and print; returns (exit status, rows for --json)."""
    args.work.mkdir(parents=True, exist_ok=True)
    commit = run_process(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT).stdout.strip()
    rows = []
    for spec in args.graphs.split(","):
        graph = draw(args.work, spec)
        for way in args.ways.split(","):
            for row in compare(args.work, graph, way, args.num_parts, args.methods.split(",")):
                rows.append(row)
                print(*list(table([row]))[2:], flush=True)
    lines = list(table(rows))
    stored = [row for row in rows if row["method"] == "kaminpar" and row["way"].endswith("on_disk")]
    lines += ["", *least_table(stored)] if stored else []
    lines += ["", *summary(rows)]
    print("\n".join(lines))
    print(f"commit {commit}, {platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    if args.markdown:
        write_text(args.markdown, "\n".join(lines) + "\n")
    return 0, {"rows": rows}


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))

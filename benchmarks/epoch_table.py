"""Seconds per epoch of this library and of DistDGL in one table, split into the parts of a training step.

Runs `examples/train_sage.py` under torchrun on a generated RMAT graph for both schemes, both precisions, with and
without dropout; and, where --distdgl-python names an interpreter that has DGL 1.1.3, benchmarks/distdgl/run.py on the
same graph, alternating with ours. One thread per process. Prints one Markdown table and writes all figures to --json.

    python benchmarks/epoch_table.py --work DIR [--distdgl-python PYTHON] [--epochs 6] [--json FILE]

The first epoch of every run is a warm-up. Memory is the proportional set size (PSS) summed over all processes of the
run, sampled twice a second; the peak is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import torch

REPOSITORY = Path(__file__).resolve().parent.parent
GRAPH = ["--scale", "19", "--edge-factor", "16", "--features", "100", "--classes", "47", "--train-fraction", "0.1"]
MODEL = ["--model", "sage", "--hidden", "256", "--layers", "3", "--batch-size", "1000", "--fanouts", "15,10,5"]
OURS = [  # (scheme, precision, dropout)
    ("hybrid", "fp32", 0.5),
    ("vanilla", "fp32", 0.5),
    ("hybrid", "bf16", 0.5),
    ("vanilla", "bf16", 0.5),
    ("hybrid", "fp32", 0.0),
]
PEER_DROPOUTS = (0.5, 0.0)
COLUMNS = ("epoch", "sample", "fetch", "compute", "gradients", "other", "PSS")


class PeakMemory(threading.Thread):
    """Highest PSS, in bytes, summed over a process and all that it starts."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root, self._done, self.peak_bytes = psutil.Process(pid), threading.Event(), 0

    def run(self) -> None:
        while not self._done.wait(0.5):
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss, self._family())))

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.peak_bytes

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def prepare(work: Path, ranks: int) -> tuple[Path, Path]:
    """The graph and its partition, made on first use: (npy directory, parts directory)."""
    work.mkdir(parents=True, exist_ok=True)
    graph, parts = work / "rmat19", work / f"parts-{ranks}"
    if not graph.exists():
        generate = [sys.executable, "-m", "fastsample_dist.graph.generators", "rmat", *GRAPH, "--seed", "1"]
        subprocess.run([*generate, "--output", str(graph)], check=True, cwd=REPOSITORY)
    if not parts.exists():
        cut = [sys.executable, "-m", "partition.cli", "--input", str(graph), "--num-parts", str(ranks)]
        subprocess.run([*cut, "--output", str(parts)], check=True, cwd=REPOSITORY)
    return graph, parts


def run_ours(parts: Path, case: tuple[str, str, float], ranks: int, epochs: int, work: Path) -> dict[str, float]:
    """Medians over the timed epochs of one run of train_sage.py."""
    scheme, precision, dropout = case
    result = work / f"ours-{scheme}-{precision}-{dropout}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["examples/train_sage.py", "--data", str(parts), "--scheme", scheme, "--precision", precision, *MODEL]
    command += ["--dropout", str(dropout), "--epochs", str(epochs), "--eval-every", "0", "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--json", str(result)], cwd=REPOSITORY, env=environment)
    memory = PeakMemory(process.pid)
    memory.start()
    status = process.wait()
    peak_bytes = memory.stop()
    if status != 0:
        raise SystemExit(f"epoch_table.py: {' '.join(command)} ended with status {status}.")
    timed = json.loads(result.read_text())["epochs"][1:]
    parts_s = {key: statistics.median(epoch[key] for epoch in timed) for key in timed[0] if key.endswith("_s")}
    seconds = statistics.median(epoch["seconds"] for epoch in timed)
    known = {name: parts_s[f"{name}_s"] for name in ("sample", "fetch", "compute", "gradients")}
    return {"epoch": seconds, **known, "other": seconds - sum(known.values()), "PSS": peak_bytes / 1e9}


def run_distdgl(python: str, graph: Path, dropout: float, ranks: int, epochs: int, work: Path) -> dict[str, float]:
    """Medians of one run of benchmarks/distdgl/run.py; its backward contains the all_reduce."""
    result = work / f"distdgl-{dropout}.json"
    command = [python, "benchmarks/distdgl/run.py", "--graph", str(graph), "--machines", str(ranks)]
    command += ["--epochs", str(epochs - 1), "--dropout", str(dropout), "--work", str(work / "distdgl")]
    subprocess.run([*command, "--json", str(result)], check=True, cwd=REPOSITORY)
    report = json.loads(result.read_text())
    found = {name: figures["median"] for name, figures in report["summary"].items()}
    compute = found["forward_s"] + found["backward_s"] + found["optimizer_s"]
    return {
        "epoch": found["epoch_s"],
        "sample": found["sample_s"],
        "fetch": found["copy_s"],
        "compute": compute,
        "gradients": float("nan"),
        "other": found["other_s"],
        "PSS": report["pss_bytes"]["peak"] / 1e9,
    }


def table(rows: dict[str, dict[str, float]], peers: dict[float, str], dropouts: dict[str, float]) -> str:
    """Markdown, with the ratio to DistDGL's row of the same dropout."""
    lines = [
        "| run | " + " | ".join(COLUMNS) + " | DistDGL / this | sample + fetch |",
        "|---" * (len(COLUMNS) + 3) + "|",
    ]
    for name, row in rows.items():
        peer = rows.get(peers.get(dropouts[name], ""))
        ratio = f"{peer['epoch'] / row['epoch']:.2f}x" if peer else "-"
        moving = f"{(peer['sample'] + peer['fetch']) / (row['sample'] + row['fetch']):.2f}x" if peer else "-"
        figures = [("in compute" if row[key] != row[key] else f"{row[key]:.2f}") for key in COLUMNS]
        lines.append(f"| {name} | " + " | ".join(figures) + f" | {ratio} | {moving} |")
    return "\n".join(lines)


def conditions(ranks: int, epochs: int) -> str:
    """What a reader needs to repeat the figures."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
    return (
        f"commit {commit.stdout.strip()}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, {ranks} ranks with one thread each; RMAT scale 19, edge factor 16, seed 1; "
        f"medians of {epochs - 1} epochs after one warm-up epoch; seconds, PSS in GB"
    )


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="directory for the graph, partitions and results")
    parser.add_argument("--distdgl-python", help="interpreter that has dgl 1.1.3 (see benchmarks/distdgl/README.md)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6, help="the first one is a warm-up")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def main() -> None:
    """Run everything and print the table."""
    arguments = parse_arguments()
    graph, parts = prepare(arguments.work.resolve(), arguments.ranks)
    rows, dropouts, peers = {}, {}, {}
    for case in OURS:
        name = "{} {}, dropout {}".format(*case)
        rows[name] = run_ours(parts, case, arguments.ranks, arguments.epochs, arguments.work.resolve())
        dropouts[name] = case[2]
    for dropout in PEER_DROPOUTS if arguments.distdgl_python else ():
        name = f"DistDGL 1.1.3 fp32, dropout {dropout}"
        work = arguments.work.resolve()
        rows[name] = run_distdgl(arguments.distdgl_python, graph, dropout, arguments.ranks, arguments.epochs, work)
        dropouts[name], peers[dropout] = dropout, name
    print(f"\n{conditions(arguments.ranks, arguments.epochs)}\n\n{table(rows, peers, dropouts)}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"conditions": conditions(arguments.ranks, arguments.epochs), "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()

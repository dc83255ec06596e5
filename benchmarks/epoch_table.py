"""Seconds per epoch of this library, DistDGL, PyG and GraphLearn in one table, split into the parts of a step.

Runs `examples/train_sage.py` on a generated RMAT graph for both schemes, both precisions, with and without dropout,
under torchrun and mpirun, whose ranks read each other's rows in place, and by `fastsample-bench epoch --namespaces` on
hosts made of network namespaces, whose ranks exchange them (root, Linux). Where --distdgl-python names an interpreter
that has DGL 1.1.3, benchmarks/distdgl/run.py measures it on the same graph between our runs, on such hosts and with all
trainers on one machine. With --pyg benchmarks/pyg_epoch.py measures PyTorch Geometric on the same graph, the whole of
which every rank reads; it needs torch_geometric and pyg-lib beside this library. With --graphlearn, the directory that
graphlearn_torch was installed in, the same model is trained on batches of GraphLearn-for-PyTorch's distributed loader,
whose ranks hold the topology and one part of the features each as ours do. One thread per process.
After the first run of a launcher and a precision comes `fastsample-bench epoch` on the same parts under the same
launcher, for the floor: the matrix products of the epoch's own batches alone, and the gradients' all_reduce alone.
Prints one Markdown table and writes all figures to --json.

    python benchmarks/epoch_table.py --work DIR [--distdgl-python PYTHON] [--pyg] [--graphlearn DIR] [--json FILE]

The first epoch of every run is a warm-up. Memory is the proportional set size (PSS) summed over the ranks (DistDGL:
trainers and servers), sampled twice a second; the peak is reported. The launcher's own process is not in it;
DistDGL's processes are started without one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import psutil
import torch

from fastsample_dist.bench.epoch.namespaces import namespace_hosts
from fastsample_dist.command import Parser, add_json, run_command
from fastsample_dist.testing.jobs import meeting_point
from fastsample_dist.testing.supervisor import COMMAND_END_S, Supervisor, run_process

REPOSITORY = Path(__file__).resolve().parent.parent
GRAPH = ["--scale", "19", "--edge-factor", "16", "--features", "100", "--classes", "47", "--train-fraction", "0.1"]
MODEL = ["--model", "sage", "--hidden", "256", "--layers", "3", "--batch-size", "1000", "--fanouts", "15,10,5"]
HOSTS, ONE_MACHINE, DISTDGL, PYG, GRAPHLEARN = "hosts", "one machine", "DistDGL 1.1.3", "PyG", "GraphLearn"
RUNS = [  # (scheme, or a peer's name; precision; dropout; launcher, HOSTS, or ONE_MACHINE of the peers)
    ("hybrid", "fp32", 0.5, "torchrun"),
    ("hybrid", "fp32", 0.5, "mpirun"),
    (DISTDGL, "fp32", 0.5, ONE_MACHINE),
    (PYG, "fp32", 0.5, ONE_MACHINE),
    (GRAPHLEARN, "fp32", 0.5, ONE_MACHINE),
    ("hybrid", "fp32", 0.5, HOSTS),
    (DISTDGL, "fp32", 0.5, HOSTS),
    (GRAPHLEARN, "fp32", 0.5, HOSTS),
    ("hybrid", "bf16", 0.5, "torchrun"),
    ("hybrid", "bf16", 0.5, "mpirun"),
    ("hybrid", "bf16", 0.5, HOSTS),
    ("vanilla", "fp32", 0.5, "torchrun"),
    ("vanilla", "fp32", 0.5, HOSTS),
    ("hybrid", "fp32", 0.0, "torchrun"),
    (DISTDGL, "fp32", 0.0, ONE_MACHINE),
    (PYG, "fp32", 0.0, ONE_MACHINE),
]
PEERS = {  # what epochs are compared with, in columns where it was measured
    "DistDGL on one machine": (DISTDGL, ONE_MACHINE),
    "DistDGL on hosts": (DISTDGL, HOSTS),
    "PyG": (PYG, ONE_MACHINE),
    "GraphLearn on one machine": (GRAPHLEARN, ONE_MACHINE),
    "GraphLearn on hosts": (GRAPHLEARN, HOSTS),
}
COLUMNS = ("epoch", "sample", "fetch", "compute", "gradients", "other", "PSS", "floor", "all_reduce", "epoch / both")


class PeakPss(threading.Thread):
    """Highest PSS, in bytes, summed over all that a launcher starts."""

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
            return self._root.children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def _pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def prepare(work: Path, num_parts: int) -> tuple[Path, Path]:
    """The graph and its partition, made on first use: (npy directory, parts directory)."""
    work.mkdir(parents=True, exist_ok=True)
    graph, parts = work / "rmat19", work / f"parts-{num_parts}"
    if not graph.exists():
        generate = [sys.executable, "-m", "fastsample_dist.graph.generators", "rmat", *GRAPH, "--seed", "1"]
        run_shown([*generate, "--output", str(graph)])
    if not parts.exists():
        cut = [sys.executable, "-m", "fastsample_dist.partition.cli", "--input", str(graph), "--output", str(parts)]
        run_shown([*cut, "--num-parts", str(num_parts)])
    return graph, parts


def run_shown(command: list[str]) -> None:
    """Run a command whose output is shown.

    Raises:
      RuntimeError: it failed.
    """
    status = run_process(command, captured=False, cwd=REPOSITORY).returncode
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}; expected 0.")


def start_command(launcher: str, ranks: int) -> list[str]:
    """What starts a Python script on `ranks` ranks of this machine."""
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    beside = Path(sys.executable).with_name("mpirun")  # where pip puts it
    mpirun = [str(beside) if beside.exists() else "mpirun", "--bind-to", "none", "-n", str(ranks)]
    return [*mpirun, *(["--allow-run-as-root"] if os.geteuid() == 0 else []), sys.executable]


def run_ours(parts: Path, case: tuple[str, str, float, str], ranks: int, epochs: int, work: Path) -> dict[str, float]:
    """Medians over the timed epochs of one run of train_sage.py."""
    scheme, precision, dropout, launcher = case
    result = work / f"ours-{launcher}-{scheme}-{precision}-{dropout}.json"
    command = start_command(launcher, ranks)
    command += ["examples/train_sage.py", "--data", str(parts), "--scheme", scheme, "--precision", precision, *MODEL]
    command += ["--dropout", str(dropout), "--epochs", str(epochs), "--eval-every", "0", "--threads", "1"]
    peak_bytes = run_watched([*command, "--json", str(result)])
    timed = json.loads(result.read_text())["epochs"][1:]
    parts_s = {key: statistics.median(epoch[key] for epoch in timed) for key in timed[0] if key.endswith("_s")}
    seconds = statistics.median(epoch["seconds"] for epoch in timed)
    known = {name: parts_s[f"{name}_s"] for name in ("sample", "fetch", "compute", "gradients")}
    return {"epoch": seconds, **known, "other": seconds - sum(known.values()), "PSS": peak_bytes / 1e9}


def run_watched(command: list[str], variables: Mapping[str, str] | None = None) -> int:
    """Run what a launcher starts, with these environment variables too; the peak of its PSS in bytes.

    Raises:
      RuntimeError: it failed.
    """
    with Supervisor(COMMAND_END_S) as supervisor:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})}
        process = supervisor.start("ranks", command, cwd=REPOSITORY, env=environ)
        memory = PeakPss(process.pid)
        memory.start()
        status = supervisor.watch(math.inf)["ranks"]
        peak_bytes = memory.stop()
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}; expected 0.")
    return peak_bytes


def run_pyg(parts: Path, dropout: float, ranks: int, epochs: int, work: Path) -> dict[str, float]:
    """Medians of one run of benchmarks/pyg_epoch.py with PyG's own loader; its compute contains the all_reduce."""
    result = work / f"pyg-{dropout}.json"
    peak_bytes = run_watched([*start_command("torchrun", ranks), *pyg_script(parts, dropout, epochs, result)])
    return pyg_figures(result) | {"PSS": peak_bytes / 1e9}


def run_graphlearn(
    installed: Path, parts: Path, dropout: float, where: str, ranks: int, epochs: int, work: Path
) -> dict[str, float]:
    """Medians of one run of benchmarks/pyg_epoch.py with GraphLearn's loader, whose sample contains the fetch."""
    result = work / f"graphlearn-{where.replace(' ', '-')}-{dropout}.json"
    path = {"PYTHONPATH": os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH"))))}
    if where == ONE_MACHINE:
        command = [*start_command("torchrun", ranks), *pyg_script(parts, dropout, epochs, result)]
        peak_bytes = run_watched([*command, "--loader", "graphlearn"], path)
        return pyg_figures(result) | {"PSS": peak_bytes / 1e9}
    with (
        namespace_hosts(parts, ranks, work=work) as made,
        meeting_point(ranks, made.hosts) as variables_of,
        Supervisor(COMMAND_END_S) as supervisor,
    ):
        script = [sys.executable, *pyg_script(made.data, dropout, epochs, result), "--loader", "graphlearn"]
        links = {"GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"}
        for rank, host in enumerate(made.hosts):
            own = os.environ | path | {"OMP_NUM_THREADS": "1"} | links | variables_of(rank)
            supervisor.start(f"rank {rank}", [*host.prefix, *script], cwd=REPOSITORY, env=own)
        statuses = supervisor.watch(math.inf, grace_s=10)
    if any(statuses.values()) or None in statuses.values():
        raise RuntimeError(f"{' '.join(script)} on hosts ended with {statuses}; expected 0 of all.")
    return pyg_figures(result)


def pyg_script(parts: Path, dropout: float, epochs: int, result: Path) -> list[str]:
    """The words that run benchmarks/pyg_epoch.py, after the interpreter's."""
    script = REPOSITORY / "benchmarks/pyg_epoch.py"  # on a host the working directory is another one
    words = ["--data", parts, "--epochs", epochs, "--dropout", dropout, "--json", result]
    return [str(script), *map(str, words)]


def pyg_figures(result: Path) -> dict[str, float]:
    """A row of the table from what benchmarks/pyg_epoch.py wrote."""
    found = json.loads(result.read_text())["medians"]
    known = {name: found[name] for name in ("epoch", "sample", "fetch", "compute")}
    return {**known, "gradients": float("nan"), "other": 0.0}


def run_epochs(parts: Path, case: tuple[str, str, float, str], ranks: int, epochs: int, work: Path) -> dict[str, float]:
    """Medians of `fastsample-bench epoch`, and seconds of an epoch's matrix products and all_reduce calls alone."""
    scheme, precision, dropout, launcher = case
    result = work / f"bench-{launcher}-{scheme}-{precision}-{dropout}.json"
    start = [sys.executable] if launcher == HOSTS else start_command(launcher, ranks)
    command = [*start, "-m", "fastsample_dist.bench.cli", "epoch", str(parts), "--schemes", scheme, "--prefetch", "0"]
    command += ["--epochs", str(epochs - 1), "--precision", precision, "--dropout", str(dropout), "--threads", "1"]
    if launcher == HOSTS:
        command += ["--namespaces", "--ranks", str(ranks)]
    status = run_process(
        [*command, "--json", str(result)], captured=False, cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ).returncode
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}; expected 0.")
    (run,) = json.loads(result.read_text())["runs"]
    (found,) = run["configurations"]
    seconds = {"epoch": found["epoch_s"]}
    seconds |= {name: found[f"{name}_s"] for name in ("sample", "fetch", "compute", "gradients")}
    seconds["other"] = found["idle_s"]
    return {**seconds, "floor": run["floor_s"], "all_reduce": run["all_reduce_s"]}


def run_distdgl(
    python: str, graph: Path, dropout: float, where: str, ranks: int, epochs: int, work: Path
) -> dict[str, float]:
    """Medians of one run of benchmarks/distdgl/run.py; its backward contains the all_reduce."""
    result = work / f"distdgl-{where.replace(' ', '-')}-{dropout}.json"
    machines, trainers = (ranks, 1) if where == HOSTS else (1, ranks)
    command = [python, "benchmarks/distdgl/run.py", "--graph", str(graph)]
    command += ["--machines", str(machines), "--trainers", str(trainers)]
    command += ["--epochs", str(epochs - 1), "--dropout", str(dropout), "--work", str(work / "distdgl")]
    run_shown([*command, "--json", str(result)])
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


def table(rows: dict[str, dict[str, float]], cases: dict[str, tuple[str, str, float, str]]) -> str:
    """Markdown, with the ratios to the peers' rows of the same dropout: of an epoch, of sample + fetch."""
    peers_there = {name: peer for name, peer in PEERS.items() if any((c[0], c[3]) == peer for c in cases.values())}
    titles = [f"{what} of {name} / this" for what in ("epoch", "sample + fetch") for name in peers_there]
    lines = ["| run | " + " | ".join([*COLUMNS, *titles]) + " |", "|---" * (len(COLUMNS) + len(titles) + 1) + "|"]
    for name, row in rows.items():
        peers = [rows.get(title((peer, "fp32", cases[name][2], where))) for peer, where in peers_there.values()]
        ratios = [_ratio(peer, row, parts) for parts in (("epoch",), ("sample", "fetch")) for peer in peers]
        lines.append(f"| {name} | " + " | ".join([*(_shown(row, key) for key in COLUMNS), *ratios]) + " |")
    return "\n".join(lines)


def title(case: tuple[str, str, float, str]) -> str:
    """What a case is called."""
    return "{} {}, dropout {}, {}".format(*case)


def _ratio(peer: dict[str, float] | None, row: dict[str, float], parts: tuple[str, ...]) -> str:
    return "-" if peer is None else f"{sum(peer[part] for part in parts) / sum(row[part] for part in parts):.2f}x"


def _shown(row: dict[str, float], key: str) -> str:
    if key == "epoch / both":
        return f"{row['epoch'] / (row['floor'] + row['all_reduce']):.2f}x" if "floor" in row else "-"
    if key not in row:
        return "-"
    return "in compute" if math.isnan(row[key]) else f"{row[key]:.2f}"


def conditions(ranks: int, epochs: int) -> str:
    """What a reader needs to repeat the figures."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
    return (
        f"commit {commit.stdout.strip()}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, {ranks} ranks with one thread each; RMAT scale 19, edge factor 16, seed 1; "
        f"medians of {epochs - 1} epochs after one warm-up epoch; seconds, PSS in GB"
    )


def make_parser() -> argparse.ArgumentParser:
    """Command line."""
    parser = Parser(prog="epoch_table.py", description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="directory for the graph, partitions and results")
    parser.add_argument("--distdgl-python", help="interpreter that has dgl 1.1.3 (see benchmarks/distdgl/README.md)")
    parser.add_argument("--pyg", action="store_true", help="measure torch_geometric with pyg-lib, installed here, too")
    parser.add_argument(
        "--graphlearn", type=Path, help="directory that graphlearn_torch is installed in: measure it too"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6, help="the first one is a warm-up")
    parser.add_argument(
        "--precision", nargs="+", choices=("fp32", "bf16"), default=("fp32", "bf16"),
        help="runs of these; a processor without instructions for bf16 takes many times as long in it",
    )  # fmt: skip
    add_json(parser, "write all figures here")
    return parser


def measure(arguments: argparse.Namespace) -> tuple[int, dict]:
    """Run everything and print the table; returns (exit status, figures for --json)."""
    ranks, epochs, work = arguments.ranks, arguments.epochs, arguments.work.resolve()
    graph, parts = prepare(work, ranks)
    rows, cases, floors = {}, {}, {}
    for case in (case for case in RUNS if case[1] in arguments.precision):
        scheme, precision, dropout, launcher = case
        if scheme == DISTDGL:
            if not arguments.distdgl_python:
                continue
            row = run_distdgl(arguments.distdgl_python, graph, dropout, launcher, ranks, epochs, work)
        elif scheme == PYG:
            if not arguments.pyg:
                continue
            row = run_pyg(prepare(work, 1)[1], dropout, ranks, epochs, work)
        elif scheme == GRAPHLEARN:
            if not arguments.graphlearn:
                continue
            row = run_graphlearn(arguments.graphlearn.resolve(), parts, dropout, launcher, ranks, epochs, work)
        elif launcher == HOSTS:
            row = run_epochs(parts, case, ranks, epochs, work)
        else:
            if (precision, launcher) not in floors:
                found = run_epochs(parts, ("hybrid", precision, 0.5, launcher), ranks, epochs, work)
                floors[precision, launcher] = {name: found[name] for name in ("floor", "all_reduce")}
            row = run_ours(parts, case, ranks, epochs, work) | floors[precision, launcher]
        rows[title(case)], cases[title(case)] = row, case
    print(f"\n{conditions(ranks, epochs)}\n\n{table(rows, cases)}")
    return 0, {"conditions": conditions(ranks, epochs), "rows": rows}


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))

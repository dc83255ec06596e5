"""The whole way of a graph that memory cannot hold, on one machine: generate, cut, check, train, resume.

    python benchmarks/billion_edges.py --work DIR --edges 1.6e9 --memory 20GB [--methods kaminpar,stream,ldg,random]
        [--parts 8] [--mixing 0.3] [--compare] [--threads 2] [--disk 60GB] [--json FILE] [--markdown FILE]

The graph is planted (fastsample_dist/graph/planted.py), of papers100M's shape unless --nodes says otherwise, with 128
float32 features where the disk has room for them and for the parts, 16 float16 ones otherwise. The first of --methods
that works cuts it; 2 ranks train on its parts from mapped files, once they are checked: one epoch of --steps steps,
ended at the checkpoint of half of them and resumed. With --compare every method cuts, and each cut is trained on by a
rank per part that exchange their rows: remote rows and bytes per step beside what --plan and --inspect say of that
partition, and its cut beside the planted one. Each phase is a process of its own; a finished one is not repeated when
the command is run again, and one that was killed resumes where its own command does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measured_phases import Phase, PhaseError, Phases, phase_table

from fastsample_dist.command import Parser, add_json, count, fanout_list, run_command, usable_cores
from fastsample_dist.files import free_bytes, write_json, write_text
from fastsample_dist.graph.npy_files import CHUNK_BYTES, drop_pages, open_npy
from fastsample_dist.graph.planted import PlantedGraph, planted_parts
from fastsample_dist.graph.planted_files import NodeColumns, PlantedFiles
from fastsample_dist.memory_sizes import format_size, parse_bytes
from fastsample_dist.partition.methods import METHODS
from fastsample_dist.testing.supervisor import last_line, run_process

PARTITION, TRAIN = "fastsample_dist.partition.cli", "fastsample_dist.train.cli"
LAUNCH, GENERATORS = "fastsample_dist.launch.cli", "fastsample_dist.graph.generators"
PAPERS_NODES, PAPERS_EDGES = 111_059_956, 1_615_685_872
WIDE, NARROW = (128, "float32"), (16, "float16")
MEAN_COMMUNITY = 100_000  # nodes
TRAIN_RANKS = 2
NUM_BATCHES = 10  # that --inspect samples of each part


@dataclass(frozen=True)
class Run:
    """A run's sizes and places."""

    args: argparse.Namespace

    @property
    def graph(self) -> Path:
        """The input directory."""
        return self.args.work / "graph"

    def parts(self, method: str) -> Path:
        """A partition's directory."""
        return self.args.work / f"parts-{method.replace(':', '-')}"

    def report(self, name: str) -> Path:
        """Where a phase writes its --json."""
        return self.args.work / f"{name.replace(':', '-')}.json"

    @property
    def num_nodes(self) -> int:
        """Of the graph."""
        return self.args.nodes or max(1000, round(self.args.edges * PAPERS_NODES / PAPERS_EDGES))

    @property
    def planted(self) -> PlantedGraph:
        """What is drawn."""
        communities = self.args.communities or max(4 * self.args.parts, self.num_nodes // MEAN_COMMUNITY)
        return PlantedGraph(
            num_nodes=self.num_nodes, num_edges=self.args.edges, num_communities=communities, mixing=self.args.mixing
        )

    def columns(self, features: tuple[int, str]) -> NodeColumns:
        """Beside the edges; an epoch of the ranks that train has the steps asked for."""
        train = TRAIN_RANKS * self.args.steps * self.args.batch_size
        if train > self.num_nodes // 2:
            raise ValueError(
                f"{self.args.steps} steps of {TRAIN_RANKS} x {self.args.batch_size} train nodes need {train} of them "
                f"but the graph has {self.num_nodes} nodes; pass fewer --steps or a smaller --batch-size."
            )
        width, dtype = features
        return NodeColumns(feature_dim=width, feature_dtype=dtype, train_fraction=train / self.num_nodes)


def plan(run: Run, name: str, *words: object) -> dict[str, Any]:
    """What --plan says, once: it reads sizes only, so that it is no phase."""
    command = ["-m", PARTITION, "--plan", *map(str, words), "--json", str(run.report(name))]
    kept = run.report(f"{name}-words")
    if not kept.is_file() or json.loads(kept.read_text()) != {"command": command}:
        done = run_process([sys.executable, *command])
        if done.returncode:
            raise RuntimeError(last_line(done))
        write_json(kept, {"command": command})
    return json.loads(run.report(name).read_text())


def choose_features(run: Run) -> tuple[int, str]:
    """The widest features for which the disk has room: graph and parts, with what cutting takes beside them."""
    given = run.report("features")
    if given.is_file():
        width, dtype = json.loads(given.read_text())["features"]
        return width, dtype
    free = free_bytes(run.args.work) if run.args.disk is None else parse_bytes(run.args.disk)
    for features in (WIDE, NARROW):
        made = PlantedFiles(run.planted, run.columns(features)).files()
        graph_bytes = sum(column.file_bytes for column in made)
        sizes = ("--num-nodes", run.num_nodes, "--num-edges", run.args.edges, "--feature-dim", features[0])
        planned = plan(run, "plan-disk", *sizes, "--feature-dtype", features[1], *_cut_options(run))["partitioning"]
        each = [graph_bytes + _disk_bytes(planned, method) for method in run.args.methods.split(",")]
        if free is None or max(each) <= free:
            break
    else:
        if min(each) > free:  # of narrow features; a method that takes more than there is refuses by itself
            raise ValueError(
                f"{run.args.work} has {format_size(free)} free but the graph and its parts take "
                f"{format_size(min(each))}; make room, or pass fewer --edges."
            )
    write_json(given, {"features": features, "needed_bytes": max(each), "free_bytes": free})
    return features


def _method_options(method: str) -> list[str]:
    """Options of fastsample-partition: "ldg:order=bfs" is --method ldg --order bfs."""
    name, *more = method.split(":")
    return [
        "--method",
        name,
        *(word for option in more for word in (f"--{option.split('=')[0]}", option.split("=")[1])),
    ]


def _disk_bytes(partitioning: dict[str, Any], method: str) -> int:
    """Bytes on disk at the widest place of a method's work, the input aside."""
    if partitioning["chosen"] == "in_memory":
        return partitioning["disk"]["output_bytes"]
    return partitioning["methods"][method.split(":")[0]]["work_bytes"]


def _cut_options(run: Run) -> tuple[object, ...]:
    return ("--num-parts", run.args.parts, "--memory-limit", run.args.memory)


def generate(run: Run, phases: Phases) -> Phase:
    """Phase: the input directory."""
    features = choose_features(run)
    graph, columns = run.planted, run.columns(features)
    files = PlantedFiles(graph, columns, run.args.threads)
    base = json.loads(run.report("plan-disk").read_text())["partitioning"]["base_bytes"]
    words = ["-m", GENERATORS, "planted", "--nodes", graph.num_nodes, "--edges", graph.num_edges]
    words += ["--communities", graph.num_communities, "--mixing", graph.mixing, "--features", columns.feature_dim]
    words += ["--feature-dtype", columns.feature_dtype, "--train-fraction", columns.train_fraction]
    words += ["--threads", run.args.threads, "--memory-limit", run.args.memory, "--output", run.graph]
    return phases.run("generate", words, predicted_bytes=base + files.memory_bytes())


def planted_cut(graph: Path, num_parts: int) -> dict[str, float]:
    """Share of the edges that the communities, packed into the parts, cut: a pass over the edges."""
    edges, dtype = open_npy(graph / "edge_index.npy"), np.min_scalar_type(num_parts)
    parts = planted_parts(np.load(graph / "planted.npy"), num_parts).astype(dtype)
    step, cut = CHUNK_BYTES // 8, 0
    for lo in range(0, edges.shape[1], step):
        src, dst = (parts[edges[end, lo : lo + step]] for end in (0, 1))
        cut += int(np.count_nonzero(src != dst))
        drop_pages(edges)
    return {"cut": cut / max(1, edges.shape[1])}


def cut(run: Run, phases: Phases, method: str) -> Phase:
    """Phase: a partition."""
    name, parts = f"cut-{method}", run.parts(method)
    if name in phases.done and not parts.is_dir():
        phases.forget(name)
    options = _method_options(method)
    pairs = zip(options[2::2], options[3::2], strict=True)
    sized = [word for pair in pairs if pair[0] != "--seed" for word in pair]  # a seed changes no size
    made = plan(run, f"plan-{method}", "--input", run.graph, *_cut_options(run), *sized)["partitioning"]
    words = ["-m", PARTITION, "--input", run.graph, *_cut_options(run), *options, "--output", parts]

    def figures() -> dict[str, Any]:
        report = json.loads(run.report(name).read_text())
        return {
            "cut": report["edge_cut"]["fraction"],
            "balance": report["balance"],
            "train": sorted(part["splits"].get("train", 0) for part in report["parts"]),
            "step_seconds": report["seconds"],
            "predicted_disk_bytes": _disk_bytes(made, method),
        }

    predicted = made["methods"][options[1]][made["chosen"]]["peak_bytes"]
    return phases.run(name, [*words, "--json", run.report(name)], predicted_bytes=predicted, figures=figures)


def train_words(run: Run, method: str, ranks: int, *more: object) -> list[object]:
    """Words that train one epoch on a partition."""
    args = run.args
    words = ["-m", LAUNCH, "--nproc", ranks, "--", "-m", TRAIN, "--data", run.parts(method), "--epochs", 1]
    words += ["--batch-size", args.batch_size, "--fanouts", ",".join(map(str, args.fanouts)), "--hidden", args.hidden]
    return [*words, "--eval-every", 0, "--threads", max(1, args.threads // ranks), *more]


def train(run: Run, phases: Phases, method: str) -> None:
    """Phases: the first half of an epoch by two ranks, which are ended at its checkpoint, and the second half."""
    half, saved = max(1, run.args.steps // 2), run.args.work / "checkpoints"
    predicted = None
    if run.args.parts % TRAIN_RANKS == 0:
        made = plan(run, "plan-train", "--input", run.graph, "--num-parts", TRAIN_RANKS)
        predicted = made["training"]["schemes"]["hybrid"]["memory"]["total"]
    options = ("--checkpoint-dir", saved, "--checkpoint-every", half)
    first = train_words(run, method, TRAIN_RANKS, *options)
    if phases.done.get("train") is None:
        shutil.rmtree(saved, ignore_errors=True)  # of a run that was killed: it begins again
    is_there = (saved / f"step-{half:09d}.ckpt").is_file
    phases.run("train", first, predicted_bytes=predicted, stop=is_there, figures=lambda: {"steps": half})

    def figures() -> dict[str, Any]:
        report = json.loads(run.report("resume").read_text())
        epoch = report["epochs"][-1]
        ranks = [{key: rank[key] for key in ("peak_rss_bytes", "private_bytes")} for rank in epoch["ranks"]]
        return {"resumed_at": report["resumed"]["step"], "steps": epoch["steps"], "loss": epoch["loss"], "ranks": ranks}

    phases.run(
        "resume", [*first, "--resume", "--json", run.report("resume")], predicted_bytes=predicted, figures=figures
    )


def value(run: Run, phases: Phases, method: str) -> None:
    """Phases: what training on a cut exchanges, said by --inspect and --plan of the partition, and counted."""
    args, parts, name = run.args, run.parts(method), f"worth-{method}"
    sampling = ("--fanouts", ",".join(map(str, args.fanouts)), "--batch-size", args.batch_size)
    sampling += ("--num-batches", NUM_BATCHES)

    def inspected() -> dict[str, Any]:
        found = json.loads(run.report(f"inspect-{method}").read_text())["traffic"]["remote_rows_per_step"]
        return {"remote_rows": found["mean"], "error": found["standard_error"]}

    def predicted() -> dict[str, Any]:
        training = json.loads(run.report(f"plan-{name}").read_text())["training"]
        step = training["schemes"]["hybrid"]["step"]
        return {"remote_rows": training["traffic"]["remote_rows"], "feature_bytes": step["feature_bytes"]}

    if "inspect" not in args.skip:
        words = ["-m", PARTITION, "--inspect", parts, *sampling, "--json", run.report(f"inspect-{method}")]
        phases.run(f"inspect-{method}", words, figures=inspected)
    if "plan" not in args.skip:
        words = ["-m", PARTITION, "--plan", "--input", parts, *sampling, "--json", run.report(f"plan-{name}")]
        phases.run(f"plan-{method}", words, figures=predicted)

    def counted() -> dict[str, Any]:
        report = json.loads(run.report(name).read_text())
        ranks = report["epochs"][-1]["ranks"]
        received = {key: sum(rank["comm"].get(key, {}).get("bytes_received", 0) for rank in ranks) for key in
                    ("feature_rows", "feature_ids")}  # fmt: skip
        total = sum(rank["steps"] for rank in ranks)
        row_bytes = _row_bytes(parts)
        return {
            "steps": report["steps"],
            "seconds_per_step": report["epochs"][-1]["seconds"] / report["steps"],
            "remote_rows": received["feature_rows"] / row_bytes / total,
            "feature_bytes": sum(received.values()) / total,
        }

    words = train_words(run, method, args.parts, "--transport", "exchange", "--json", run.report(name))
    phases.run(name, words, figures=counted)


def _row_bytes(parts: Path) -> int:
    manifest = json.loads((parts / "manifest.json").read_text())
    return manifest["feature_dim"] * np.dtype(manifest["feature_dtype"]).itemsize


def worth_table(phases: Phases, methods: list[str]) -> list[str]:
    """Markdown: a row per method that cut."""
    columns = "| method | edges cut | nodes, in-edges, train max/mean | cut s | memory | remote rows/step: --plan "
    columns += "| --inspect | counted | feature bytes/step: --plan | counted | s/step |"
    lines = [columns, "|---" * (columns.count("|") - 1) + "|"]
    if "planted-cut" in phases.done:
        lines.append(f"| planted | {phases.done['planted-cut'].figures['cut']:.2%} |" + " - |" * 9)
    for method in methods:
        made = phases.done.get(f"cut-{method}")
        if made is None:
            continue
        balance = ", ".join(f"{made.figures['balance'][key]:.3f}" for key in ("nodes", "in_edges", "train"))
        row = f"| {method} | {made.figures['cut']:.2%} | {balance} | {made.seconds:,.0f} "
        row += f"| {made.together_bytes / 1e9:.2f} GB |"
        kinds = ("plan", "inspect", "worth")
        found = {kind: phases.done[f"{kind}-{method}"].figures for kind in kinds if f"{kind}-{method}" in phases.done}
        cells = [_cell(found, kind, "remote_rows", 1, ",.0f") for kind in kinds]
        cells += [_cell(found, kind, "feature_bytes", 1e6, ".2f", " MB") for kind in ("plan", "worth")]
        lines.append(f"{row} {' | '.join([*cells, _cell(found, 'worth', 'seconds_per_step', 1, '.2f')])} |")
    return lines


def _cell(found: dict[str, dict[str, Any]], kind: str, key: str, unit: float, form: str, name: str = "") -> str:
    """A figure of a phase; "-" where there is no such phase."""
    return f"{found[kind][key] / unit:{form}}{name}" if kind in found else "-"


def carry_out(run: Run, phases: Phases) -> list[str]:
    """Run every phase; returns what methods could not cut, a line each.

    Raises:
      PhaseError: a phase failed, or no method could cut.
    """
    methods, refused, chosen = run.args.methods.split(","), [], None
    generate(run, phases)
    worker = [__file__, "--planted-cut", run.graph, "--parts", run.args.parts, "--work", run.args.work]
    phases.run("planted-cut", worker, figures=lambda: json.loads(run.report("planted-cut").read_text()))
    for method in methods:
        if chosen is not None and (not run.args.compare or f"worth-{method}" in phases.done):
            continue
        try:
            cut(run, phases, method)
        except PhaseError as error:
            refused.append(str(error))
            print(error, flush=True)
            continue
        if chosen is None:
            chosen = method
            check = ["-m", PARTITION, "--check", run.parts(method)]
            phases.run("check", check)
            train(run, phases, method)
        if run.args.compare:
            value(run, phases, method)
        if method != chosen and not run.args.keep:
            shutil.rmtree(run.parts(method))
    if chosen is None:
        raise PhaseError("; ".join(refused))
    return refused


def conditions(run: Run) -> str:
    """What a reader needs to repeat the figures."""
    graph = run.planted
    width, dtype = choose_features(run)
    commit = run_process(["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent).stdout.strip()
    return (
        f"{graph.num_edges:,} directed edges, {graph.num_nodes:,} nodes, {graph.num_communities:,} communities, "
        f"mixing {graph.mixing:g}, {width} {dtype} features; {run.args.parts} parts, memory limit {run.args.memory}, "
        f"{run.args.threads} threads; commit {commit}, {os.cpu_count()} cores, {platform.machine()}, "
        f"numpy {np.__version__}"
    )


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(prog="billion_edges.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--work", type=Path, required=True, help="directory for the graph, the parts and the records of the phases")
    add("--edges", type=_whole, default=PAPERS_EDGES, help="listed edges, such as 1.6e9")
    add("--nodes", type=_whole, help="default: as many per edge as papers100M has")
    add("--communities", type=count, help=f"default: of {MEAN_COMMUNITY:,} nodes on average, at least 4 a part")
    add("--mixing", type=float, default=0.3, help="share of edges between communities (default %(default)s)")
    add("--memory", default="20GB", help="limit for every process that has one (default %(default)s)")
    add("--disk", metavar="SIZE", help="disk that may be used (default: what is free)")
    add(
        "--methods",
        default="kaminpar",
        help="in order of preference, such as kaminpar,ldg:order=bfs; the first that works is trained on",
    )
    add("--parts", type=count, default=8, help="default %(default)s")
    add("--compare", action="store_true", help="cut by all methods, and count what training on each cut exchanges")
    add("--skip", default="", help="of --compare: inspect, plan or both; the first takes 50 bytes a node")
    add("--steps", type=count, default=200, help="of training on two ranks (default %(default)s)")
    add("--batch-size", type=count, default=1000, help="train nodes of a rank and step (default %(default)s)")
    add("--fanouts", type=fanout_list, default=(10, 5), help="default 10,5")
    add("--hidden", type=count, default=64, help="columns of a hidden row (default %(default)s)")
    add("--threads", type=count, default=usable_cores(), help="of generating, and of all ranks that train")
    add("--keep", action="store_true", help="leave the partitions of the methods that are compared")
    add("--markdown", type=Path, metavar="FILE", help="write the tables there too")
    add("--planted-cut", type=Path, metavar="GRAPH", help=argparse.SUPPRESS)  # the phase of that name
    add_json(parser)
    return parser


def _whole(text: str) -> int:
    value = float(text)
    if value != int(value) or value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1 such as 1.6e9, not {text!r}")
    return int(value)


def measure(args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Run and print; returns (exit status, figures for --json)."""
    if args.planted_cut:
        write_json(args.work / "planted-cut.json", planted_cut(args.planted_cut, args.parts))
        return 0, {}
    parse_bytes(args.memory)
    for method in args.methods.split(","):
        if method.split(":")[0] not in METHODS:
            raise ValueError(f"--methods has {method!r}; expected some of {', '.join(METHODS)}, with :option=value.")
    args.work = args.work.absolute()
    args.work.mkdir(parents=True, exist_ok=True)
    run, phases = Run(args), Phases(args.work)
    refused = carry_out(run, phases)
    lines = [conditions(run), "", *phase_table(list(phases.done.values())), ""]
    lines += [*worth_table(phases, args.methods.split(",")), "", *(f"{line}\n" for line in refused)]
    print("\n" + "\n".join(lines))
    if args.markdown:
        write_text(args.markdown, "\n".join(lines) + "\n")
    return 0, {
        "conditions": conditions(run),
        "phases": [vars(phase) for phase in phases.done.values()],
        "refused": refused,
    }


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), measure, None))

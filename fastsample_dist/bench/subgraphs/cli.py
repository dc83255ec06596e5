"""The subcommand `fastsample-bench subgraphs`: its options, and what it prints in which order."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch

from fastsample_dist import command as cl
from fastsample_dist.bench.conditions import busy_warning, conditions, first_results
from fastsample_dist.bench.graphs import GraphSource, work_folder
from fastsample_dist.bench.options import add_drawing, add_graph, add_verify
from fastsample_dist.bench.peers import Baseline
from fastsample_dist.bench.screen import Screen
from fastsample_dist.bench.subgraphs import report
from fastsample_dist.bench.subgraphs.cases import METHODS, SubgraphCase
from fastsample_dist.bench.subgraphs.layers import LayerOptions, load_data, measure_layers
from fastsample_dist.bench.subgraphs.measure import SubgraphOptions, measure, without_isolated_nodes
from fastsample_dist.bench.subgraphs.peers import IPDPS19, check_packages, program
from fastsample_dist.bench.subgraphs.verify import verify
from fastsample_dist.sampling.subgraph_spec import DASHBOARD, SubgraphSpec

NO_CLIP = -1
EXAMPLES = """examples:
  fastsample-bench subgraphs --graph rmat:18:16 --verify --baseline dgl --baseline pyg --baseline ipdps19=DIR
  fastsample-bench subgraphs --graph parts --method frontier --eta 2 --clip 30 --json subgraphs.json
  fastsample-bench subgraphs --graph parts --layers 2,4,6,8
"""


def _clips(text: str) -> tuple[int, ...]:
    """Argument type: "-1,30" -> (-1, 30): degrees, or -1."""
    try:
        clips = tuple(int(item) for item in text.split(","))
    except ValueError:
        clips = (0,)
    if not all(clip == NO_CLIP or clip >= 1 for clip in clips):
        raise argparse.ArgumentTypeError(f"must be a list of degrees >= 1, or -1, such as -1,30, not {text!r}")
    return clips


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add the subcommand."""
    sub = commands.add_parser(
        "subgraphs", help="milliseconds per subgraph, beside the paper's own code, DGL and PyG; deep models",
        epilog=EXAMPLES, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Draw and induce subgraphs with this library and its peers, in turns; the walk and the induction\n"
        "apart; prefix sums beside dashboards; pools over threads. With --layers: train on subgraphs and on sampled\n"
        "neighbours in turns, and report what a trained node costs.\n"
        "Exit status: 0 only when everything ran and --verify found nothing.",
    )  # fmt: skip
    add_graph(sub)
    add = sub.add_argument
    add("--method", choices=METHODS, action="append", default=[], help="may be repeated (default: all)")
    add("--budget", type=cl.count, default=8000, help="visits of a subgraph (default: %(default)s)")
    add("--frontier-size", type=cl.count, default=1000, help="walkers of a frontier (default: %(default)s)")
    add("--eta", type=float, action="append", default=[], help="of dashboards; may be repeated (default: 1.5, 2, 3)")
    add(
        "--clip", type=_clips, default=(NO_CLIP, 30), metavar="D,D,...",
        help="degrees count as at most D for dashboards and sums, -1: no clip (default: --clip=-1,30)",
    )  # fmt: skip
    add("--threads", type=cl.counts, default=(1, 2), help="of the pools (default: 1,2)")
    add("--trials", type=cl.count, default=20, help="subgraphs of every contestant (default: %(default)s)")
    add(
        "--baseline", action="append", default=[], metavar="PEER",
        help="dgl, pyg, or ipdps19=DIR with the paper's sampler, see bench/subgraphs/peers.py; may be repeated",
    )  # fmt: skip
    add_verify(sub)
    add("--layers", type=cl.counts, metavar="L,L,...", help="train models of so many layers instead")
    add("--fanout", type=cl.count, default=10, help="of neighbour sampling beside them (default: %(default)s)")
    add("--batch-size", type=cl.count, default=1000, help="its seeds per step (default: %(default)s)")
    add("--hidden", type=cl.count, default=256, help="columns of a hidden row (default: %(default)s)")
    add("--steps", type=cl.count, default=3, help="timed ones of a turn (default: %(default)s)")
    add_drawing(sub)
    cl.add_json(sub)


def run(args: argparse.Namespace) -> tuple[int, dict]:
    """Verify, measure, print; returns (exit status, results for --json)."""
    screen, load_before = Screen(), os.getloadavg()[0]
    torch.set_num_threads(1)
    found = conditions(max(args.threads)) | {"load_before": load_before}
    with work_folder(args.work) as work, tempfile.TemporaryDirectory(dir=work, prefix="peers-") as folder:
        source = GraphSource(args.graph, work)
        source.check_topology()
        if args.layers is not None:
            return _run_layers(args, source, found, screen)
        options = _options(args, source)
        graph = without_isolated_nodes(source.topology(screen.progress))
        screen.lines([*busy_warning(found), *report.conditions_lines(found, graph, options)])
        results = first_results("subgraphs", found, args, source.name, graph)
        if args.verify:
            results["verify"] = verify(graph, options, screen.progress)
            screen.lines(report.verify_lines(results["verify"]))
            if results["verify"]["failures"]:
                return 1, results
        measured = measure(graph, options, Path(folder), screen.progress)
    screen.table(report.contestants_table(measured["contestants"]))
    screen.table(report.parts_table(measured["parts"]))
    screen.table(report.structures_table(measured["structures"]))
    screen.lines(report.summary_lines(measured))
    return 0, {**results, **measured}


def _run_layers(args: argparse.Namespace, source: GraphSource, found: dict, screen: Screen) -> tuple[int, dict]:
    options = LayerOptions(
        source=source, layers=tuple(dict.fromkeys(args.layers)), budget=args.budget, frontier_size=args.frontier_size,
        fanout=args.fanout, batch_size=args.batch_size, hidden=args.hidden, steps=args.steps, rng_seed=args.seed,
    )  # fmt: skip
    data = load_data(options, screen.progress)
    screen.lines([*busy_warning(found), *report.layers_lines(found, data, options)])
    measured = measure_layers(data, options, screen.progress)
    screen.table(report.layers_table(measured))
    return 0, {**first_results("subgraphs", found, args, source.name, data.manifest), "layers": measured}


def _options(args: argparse.Namespace, source: GraphSource) -> SubgraphOptions:
    sizes = {"budget": args.budget, "frontier_size": args.frontier_size}
    options = SubgraphOptions(
        source=source,
        cases=tuple(SubgraphCase(method=name, **sizes) for name in dict.fromkeys(args.method or METHODS)),
        etas=tuple(dict.fromkeys(args.eta or (1.5, 2.0, 3.0))),
        clips=tuple(None if clip == NO_CLIP else clip for clip in dict.fromkeys(args.clip)),
        threads=tuple(dict.fromkeys(args.threads)), trials=args.trials, rng_seed=args.seed,
        baselines=tuple(dict.fromkeys(Baseline.parse(text, IPDPS19) for text in args.baseline)),
    )  # fmt: skip
    for eta in options.etas:  # the spec refuses what does not go together
        SubgraphSpec(budget=args.budget, frontier_size=args.frontier_size, structure=DASHBOARD, eta=eta)
    for baseline in options.baselines:
        if baseline.directory is not None:
            program(baseline)
    check_packages(options.baselines, options.cases)
    return options

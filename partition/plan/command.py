"""The options of `fastsample-partition --plan`, and its plan in words and columns."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from fastsample_dist.graph.inputs.sizes import GraphSizes
from fastsample_dist.graph.manifest import SCALED
from fastsample_dist.graph.network import Network, parse_bandwidth, parse_latency
from fastsample_dist.memory_sizes import parse_bytes
from fastsample_dist.partition.cli_edges import edge_list_options
from fastsample_dist.partition.cli_streaming import stream_options
from fastsample_dist.partition.external.adjacency import MOST_IN_BYTES
from fastsample_dist.partition.methods.options import StreamOptions
from fastsample_dist.partition.plan.prediction import DEFAULT_NETWORK, PlanInput, PlanOptions, open_input
from fastsample_dist.partition.plan.training import DEFAULT_HIDDEN
from fastsample_dist.partition.report.inspection import traffic_options

SIZE_OPTIONS = ("num_nodes", "num_edges", "feature_dim", "num_train_nodes")
PLAN_OPTIONS = (*SIZE_OPTIONS, "hosts_memory", "bandwidth", "latency", "hidden")


def add_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --plan and the options that go with it alone."""
    parser.add_argument(
        "--plan",
        action="store_true",
        default=None,
        help="cut nothing, but predict memory, disk and traffic, from sizes: of --input (a graph, or a finished "
        "partition), or --num-nodes and --num-edges; with --fanouts the traffic of training too",
    )
    parser.add_argument("--num-nodes", metavar="N", type=int, help="plan without --input: nodes of the graph")
    parser.add_argument("--num-edges", metavar="E", type=int, help="plan without --input: edges as listed")
    parser.add_argument("--feature-dim", metavar="D", type=int, help="plan without --input: columns of the features")
    parser.add_argument("--num-train-nodes", metavar="T", type=int, help="plan without --input: nodes to train on")
    parser.add_argument("--hosts-memory", metavar="SIZE", help="plan: memory of a training machine, such as 64GB")
    parser.add_argument("--bandwidth", metavar="B", help="plan: of a link (default: 25Gb/s)")
    parser.add_argument("--latency", metavar="T", help="plan: of a message (default: 20us)")
    parser.add_argument(
        "--hidden", metavar="H", type=int, help=f"plan: hidden columns of GraphSAGE (default: {DEFAULT_HIDDEN})"
    )


def plan_input(args: argparse.Namespace) -> PlanInput:
    """The graph that the options name.

    Raises:
      ValueError: sizes and an input together, or neither; what `open_input` refuses.
    """
    given = [f"--{name.replace('_', '-')}" for name in SIZE_OPTIONS if getattr(args, name) is not None]
    if args.input is not None:
        if given:
            raise ValueError(f"{given[0]} does not go with --input, whose sizes are read from it; leave one out.")
        return open_input(args.input, args.format, args.undirected, args.task, edge_list_options(args))
    if args.num_nodes is None or args.num_edges is None:
        raise ValueError("--plan needs --input, or --num-nodes and --num-edges; pass the one or the others.")
    given = [name for name in ("format", "task") if getattr(args, name) is not None]
    for option in given + edge_list_options(args).given:
        raise ValueError(f"--{option.replace('_', '-')} goes with --input; leave it out, or pass the input.")
    dtype = "float32" if args.feature_dtype in (None, "keep", SCALED) else args.feature_dtype
    return PlanInput(
        sizes=GraphSizes(
            name="graph",
            num_nodes=args.num_nodes,
            num_listed=args.num_edges,
            undirected=bool(args.undirected),
            feature_dim=args.feature_dim or 0,
            feature_dtype=dtype if args.feature_dim else "",
            splits={} if args.num_train_nodes is None else {"train": args.num_train_nodes},
        )
    )


def plan_options(args: argparse.Namespace) -> PlanOptions:
    """What is planned for, from the options.

    Raises:
      ValueError: text that is not a size, bandwidth or latency; a value out of range.
    """
    network = Network(
        DEFAULT_NETWORK.alpha_s if args.latency is None else _read("latency", parse_latency, args.latency),
        DEFAULT_NETWORK.beta_bytes_s if args.bandwidth is None else _read("bandwidth", parse_bandwidth, args.bandwidth),
    )
    sizes = {
        name: None if getattr(args, name) is None else _read(name, parse_bytes, getattr(args, name))
        for name in ("memory_limit", "hosts_memory")
    }
    return PlanOptions(
        num_parts=args.num_parts,
        traffic=traffic_options(args),
        streaming=StreamOptions(**stream_options(args)),
        feature_dtype=args.feature_dtype or "keep",
        edge_map=bool(args.edge_map),
        clusters=args.clusters,
        network=network,
        hidden=DEFAULT_HIDDEN if args.hidden is None else args.hidden,
        **sizes,
    )


def _read(option: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"--{option.replace('_', '-')} {error}") from error


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """A plan for the terminal; the dict is that of `plan.make_plan`."""
    from fastsample_dist.partition.report.display import format_bytes

    graph = plan["graph"]
    kind = "undirected, both directions stored" if graph["undirected"] else "directed"
    yield f"plan for {graph['name']}: {plan['num_parts']} parts, one machine each"
    yield f"  nodes     {graph['num_nodes']:,}"
    yield f"  edges     {graph['num_listed']:,} listed, at most {graph['num_edges']:,} stored ({kind})"
    features = f"{graph['feature_dim']} x {graph['feature_dtype']}" if graph["feature_dim"] else "none"
    train = graph["splits"].get("train")
    yield f"  features  {features}; train nodes {'unknown' if train is None else format(train, ',')}"
    if graph["estimated"]:
        yield f"  estimated: {graph['estimated']}"
    yield from _partitioning_lines(plan, format_bytes)
    yield from _memory_lines(plan["training"], format_bytes)
    if "traffic" in plan["training"]:
        yield from _traffic_lines(plan["training"], format_bytes)
    else:
        yield "traffic and time: not planned; pass --fanouts 15,10,5"


def _partitioning_lines(plan: Mapping[str, Any], show: Any) -> Iterator[str]:
    made, disk = plan["partitioning"], plan["partitioning"]["disk"]
    yield f"partitioning on this machine, within {show(made['memory_limit'])} (program {show(made['base_bytes'])})"
    yield "  method    peak in memory  at step   peak on disk  at step"
    for name, method in made["methods"].items():
        ways = method["in_memory"], method["on_disk"]
        columns = "  ".join(f"{show(way['peak_bytes']):>14}  {way['step']:<8}" for way in ways)
        yield f"  {name:<8}{columns}{'  ' + method['obstacle'] if method['obstacle'] else ''}".rstrip()
    where = "on disk" if made["chosen"] == "on_disk" else "in memory"
    yield f"  edges would be sorted {where}"
    if not plan["graph"]["undirected"]:
        yield "  metis, kaminpar: as if no edge's reverse were listed; if all are, about half of it"
    yield "  metis: as a graph with hubs takes; one of communities without hubs takes about a third less"
    yield (
        "  kaminpar: with its process, as a graph with hubs and without communities takes; with communities "
        f"{show(made['methods']['kaminpar']['least_bytes'])} for the step assign, with neither "
        f"{show(made['methods']['kaminpar']['most_bytes'])}"
    )
    yield f"  disk      {show(disk['output_bytes'])} the parts, {show(disk['peak_bytes'])} at most during the work"
    phases = ", ".join(f"{phase} {show(count)}" for phase, count in disk["work_bytes"].items())
    yield f"  work directory when sorted on disk, after each phase: {phases}"
    most = max(disk["work_bytes"].values())
    for name, each in made["methods"].items():
        at_most, narrow = each["work_bytes"], each["narrow_work_bytes"]
        if at_most > most:
            often = f", {show(narrow)} if no edge is listed more than {MOST_IN_BYTES} times" if narrow < at_most else ""
            yield f"  {name}: the rows that it reads are made in the work directory too, {show(at_most)} at most{often}"


def _memory_lines(training: Mapping[str, Any], show: Any) -> Iterator[str]:
    yield "training: resident memory per machine, without the model's own"
    yield "  scheme      program    topology    features       batch       total"
    for scheme, entry in training["schemes"].items():
        memory = entry["memory"]
        columns = "".join(f"{show(memory[key]):>12}" for key in ("topology", "rows", "batch", "total"))
        yield f"  {scheme:<8}{show(memory['program']):>11}{columns}{_verdict(training, entry)}"
    if training["hosts_memory"] is not None:
        fitting = [scheme for scheme, entry in training["schemes"].items() if entry["fits"]]
        yield f"  fits into machines of {show(training['hosts_memory'])}: {' and '.join(fitting) or 'neither scheme'}"


def _verdict(training: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    if training["hosts_memory"] is None:
        return ""
    least = entry["least_machines"]
    needs = "on no number of machines" if least is None else f"from {least:,} machine{'s' if least > 1 else ''} on"
    return f"  {'fits' if entry['fits'] else 'DOES NOT FIT'}, {needs}"


def _traffic_lines(training: Mapping[str, Any], show: Any) -> Iterator[str]:
    traffic, options, network = training["traffic"], training["options"], training["network"]
    fanouts = ",".join(map(str, options["fanouts"]))
    yield f"training: traffic, fanouts {fanouts}, {options['batch_size']:,} seeds per machine and step"
    yield f"  {traffic['source']}"
    error = f" (standard error {traffic['remote_rows_error']:,.0f})" if traffic["sampled"] else ""
    yield f"  input rows per step {traffic['input_rows']:,.0f}, remote {traffic['remote_rows']:,.0f}{error}"
    model = training["model"]
    yield (
        f"  network {network['beta_bytes_s'] * 8 / 1e9:g} Gb/s, {network['alpha_s'] * 1e6:g} us; gradients of "
        f"{model['name']}, hidden {model['hidden']}, {model['num_classes']} classes"
    )
    yield "  scheme   exchanges    features    sampling   gradients   ms/step   s/epoch"
    for scheme, entry in training["schemes"].items():
        step, epoch = entry["step"], entry["epoch_s"]
        columns = "".join(
            f"{show(round(step[key])):>12}" for key in ("feature_bytes", "sampling_bytes", "gradient_bytes")
        )
        shown = "?" if epoch is None else f"{epoch:.3g}"
        yield f"  {scheme:<8}{step['exchanges']:>10}{columns}{1e3 * step['seconds']:>10.3g}{shown:>10}"
    if traffic["steps_per_epoch"] is None:
        yield "  an epoch's steps are unknown: no train nodes are known; pass --num-train-nodes"
    else:
        yield f"  steps per epoch {traffic['steps_per_epoch']:,}"
    if len({entry["step"]["seconds"] for entry in training["schemes"].values()}) > 1:
        yield f"  less communication: {training['quicker']}"

"""`fastsample-partition --plan`: what cutting a graph and training on the parts would take, before either is begun.

From sizes (`fastsample_dist.graph.inputs.input_sizes`, a finished partition's manifest, or numbers given) it predicts
peak memory of every method (memory.py) and disk (disk.py); and what a machine holds and sends in training
under both schemes (training.py). Batches are sampled only where there is a topology.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fastsample_dist.graph.inputs import EdgeListOptions, detect_format, input_sizes
from fastsample_dist.graph.inputs.edge_options import nearly_all_gaps
from fastsample_dist.graph.inputs.sizes import GraphSizes, num_targets
from fastsample_dist.graph.manifest import MANIFEST_NAME
from fastsample_dist.graph.network import Network
from fastsample_dist.graph.storage import CLUSTERS, SPLITS, Manifest, load_part, read_manifest
from fastsample_dist.memory_sizes import format_size
from fastsample_dist.partition.external.budget import MemoryBudget
from fastsample_dist.partition.external.rows import FEATURE_CHOICES, check_feature_dtype
from fastsample_dist.partition.methods import METHODS, AssignMemory
from fastsample_dist.partition.methods.options import StreamOptions
from fastsample_dist.partition.methods.request import check_num_clusters
from fastsample_dist.partition.methods.stream import filled_bytes
from fastsample_dist.partition.plan.buffer import buffer_within
from fastsample_dist.partition.plan.disk import NARROW_LINK_BYTES, feature_row_bytes, output_bytes, work_bytes
from fastsample_dist.partition.plan.memory import (
    Taken,
    in_memory_peak,
    memory_budget,
    method_needs,
    num_neighbours,
    on_disk_peak,
    sorted_on_disk,
    whole_graph_bytes,
    with_order,
)
from fastsample_dist.partition.plan.training import (
    DEFAULT_CLASSES,
    DEFAULT_HIDDEN,
    SCHEMES,
    StepShape,
    StepTraffic,
    estimate_traffic,
    graphsage_bytes,
    least_machines,
    machine_memory,
    sample_input,
    sample_partition,
    step_cost,
)
from fastsample_dist.partition.report.traffic import TrafficOptions

DEFAULT_NETWORK = Network(20e-6, 25e9 / 8)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is planned for.

    Attributes:
      num_parts: P, one machine each; None: as many as the finished partition has.
      traffic: how training samples; None leaves traffic and time out.
      memory_limit: bytes that partitioning may hold; None: as `build.PartitionOptions`.
      streaming: options of the methods that read them.
      feature_dtype: one of FEATURE_CHOICES.
      edge_map: the edge map is to be stored; a finished partition has it or not.
      clusters: so many are asked for; None: none. A finished partition has them or not.
      hosts_memory: bytes of a training machine; None: not compared.
      network: between them.
      hidden: columns of GraphSAGE's hidden rows, for the gradients.
    Raises:
      ValueError: a value outside these.
    """

    num_parts: int | None = None
    traffic: TrafficOptions | None = None
    memory_limit: int | None = None
    streaming: StreamOptions = field(default_factory=StreamOptions)
    feature_dtype: str = "keep"
    edge_map: bool = False
    clusters: int | None = None
    hosts_memory: int | None = None
    network: Network = DEFAULT_NETWORK
    hidden: int = DEFAULT_HIDDEN

    def __post_init__(self) -> None:
        for name in ("num_parts", "memory_limit", "hosts_memory", "hidden"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1.")
        self.streaming.check()
        if self.feature_dtype not in FEATURE_CHOICES:
            raise ValueError(f"feature_dtype is {self.feature_dtype!r}; expected one of {', '.join(FEATURE_CHOICES)}.")


@dataclass(frozen=True, kw_only=True)
class PlanInput:
    """The graph of a plan.

    Attributes:
      sizes: of the graph.
      sample: samples its traffic for (num_parts, options); None: there is nothing to sample on. That of an input is
        called only where the graph would be cut in memory.
      num_parts: of a finished partition; None otherwise.
    """

    sizes: GraphSizes
    sample: Callable[[int, TrafficOptions], StepTraffic] | None = None
    num_parts: int | None = None


def open_input(
    path: str | Path,
    format_name: str | None = None,
    undirected: bool | None = None,
    task: str | None = None,
    edges: EdgeListOptions | None = None,
) -> PlanInput:
    """Sizes of an input graph or of a finished partition; no data are read.

    Args:
      path, format_name, undirected, task, edges: as of `read_graph` and ReadOptions.
    Raises:
      ValueError: as `input_sizes` and `read_manifest`; an option of these beside a finished partition; an edge list
        whose ids are nearly all gaps, which a run refuses.
    """
    place = Path(path)
    if (place / MANIFEST_NAME).is_file():
        if (format_name, undirected, task) != (None, None, None) or (edges is not None and edges.given):
            raise ValueError(
                f"{place} is a finished partition; leave --format, --undirected, --task and the options of edge lists "
                "out."
            )
        manifest = read_manifest(place)
        return PlanInput(
            sizes=_sizes_of_partition(place, manifest),
            sample=lambda num_parts, options: sample_partition(place, manifest, num_parts, options),
            num_parts=manifest.num_parts,
        )
    sizes = input_sizes(place, format_name, undirected, edges)
    by_ids = sizes.least_nodes is not None and not sizes.feature_dim and not sizes.has_labels
    if by_ids and nearly_all_gaps(sizes.num_nodes, sizes.num_listed):
        raise ValueError(
            f"{place}: the ids of its {sizes.num_listed} edges go up to {sizes.num_nodes - 1} or so, so nearly all of "
            "as many nodes would have no edge; a run would refuse that: relabel the ids (--relabel), then pass "
            "--num-nodes and --num-edges, not --input; or state num_nodes in meta.json if nodes without edges are "
            "meant."
        )
    if sizes.has_labels and not sizes.num_targets:
        sizes = replace(sizes, num_targets=num_targets((sizes.num_nodes,), task))
    mapped = (format_name or detect_format(place)) == "npy"
    return PlanInput(
        sizes=sizes,
        sample=(lambda num_parts, options: sample_input(place, num_parts, options)) if mapped else None,
    )


def make_plan(given: PlanInput, options: PlanOptions, base: int) -> dict[str, Any]:
    """Predict.

    Args:
      given: the graph.
      options: what is planned for.
      base: bytes that a process of the command holds without data.
    Returns:
      The plan as plain values for JSON; "training" has "traffic" only with `options.traffic`.
    Raises:
      ValueError: no number of parts, more parts than nodes or train nodes, a number of clusters that does not fit,
        features of a type that is not kept.
    """
    if options.edge_map:
        given = replace(given, sizes=replace(given.sizes, edge_map=True))
    if options.clusters is not None:
        given = replace(given, sizes=replace(given.sizes, clusters=True))
    sizes, num_parts = given.sizes, options.num_parts or given.num_parts
    if num_parts is None:
        raise ValueError("--plan needs --num-parts; pass the number of machines.")
    if num_parts > sizes.num_nodes:
        raise ValueError(
            f"num_parts is {num_parts} but the graph has {sizes.num_nodes} nodes; take at most one part per node."
        )
    if num_parts > sizes.splits.get("train", num_parts):
        raise ValueError(
            f"num_parts is {num_parts} but the graph has {sizes.splits['train']} train nodes; training needs at least "
            "one per part, so take fewer parts."
        )
    if options.clusters is not None:
        check_num_clusters(options.clusters, num_parts, sizes.num_nodes)
    if given.num_parts is None:
        check_feature_dtype(sizes.name, sizes.feature_dtype, options.feature_dtype)
    partitioning = _partitioning(sizes, num_parts, options, base)
    if given.num_parts is None and partitioning["chosen"] == "on_disk":  # no topology that is made in seconds
        given = replace(given, sample=None)
    return {
        "graph": {**asdict(sizes), "num_edges": sizes.num_edges},
        "num_parts": num_parts,
        "partitioning": partitioning,
        "training": _training(given, num_parts, options, base),
    }


def _partitioning(sizes: GraphSizes, num_parts: int, options: PlanOptions, base: int) -> dict[str, Any]:
    budget = memory_budget(options.memory_limit, base, sizes, next(iter(METHODS)))
    on_disk = sorted_on_disk(sizes, budget)
    methods = {}
    for name in METHODS:
        ordered = options.streaming.read_by(name).order == "bfs"
        budget = memory_budget(budget.limit, base, sizes, name, ordered=ordered)
        obstacle = _obstacle(sizes, name, budget)
        try:
            buffer = buffer_within(name, options.streaming.read_by(name).buffer, num_parts, budget)
        except ValueError as error:
            buffer, obstacle = None, obstacle or f"refused: {error}"
        filled = None if buffer is None else filled_bytes(buffer, num_neighbours(sizes))
        peaks = {
            "in_memory": in_memory_peak(sizes, name, num_parts, filled),
            "on_disk": on_disk_peak(sizes, name, num_parts, budget, filled),
        }
        if ordered:
            peaks = {way: with_order(peak, sizes, name, on_disk=way == "on_disk") for way, peak in peaks.items()}
        methods[name] = {
            way: {"peak_bytes": base + peak.extra_bytes, "step": peak.widest} for way, peak in peaks.items()
        }
        methods[name]["least_bytes"] = _of_a_kind(sizes, name, base, AssignMemory.least)
        methods[name]["most_bytes"] = _of_a_kind(sizes, name, base, AssignMemory.most)
        methods[name]["obstacle"] = obstacle
        made = sizes, num_parts, options.feature_dtype, METHODS[name].work_files(ordered=ordered)
        methods[name]["work_bytes"] = max(work_bytes(*made).values())
        narrow = work_bytes(*made, link_weight_bytes=NARROW_LINK_BYTES)
        methods[name]["narrow_work_bytes"] = max(narrow.values())
    work = work_bytes(sizes, num_parts, options.feature_dtype)
    return {
        "memory_limit": budget.limit,
        "base_bytes": base,
        "chosen": "on_disk" if on_disk else "in_memory",
        "methods": methods,
        "disk": {
            "output_bytes": output_bytes(sizes, num_parts, options.feature_dtype),
            "work_bytes": work,
            "peak_bytes": max(work.values()) if on_disk else output_bytes(sizes, num_parts, options.feature_dtype),
        },
    }


def _of_a_kind(sizes: GraphSizes, method: str, base: int, taken: Taken) -> int | None:
    """Peak of assigning a graph of a kind sorted on disk, for a method whose memory depends on that."""
    if METHODS[method].memory.least_bytes is None:
        return None
    return base + whole_graph_bytes(sizes, method, sizes.num_edges, num_neighbours(sizes), taken)


def _obstacle(sizes: GraphSizes, method: str, budget: MemoryBudget) -> str | None:
    """Why the command would refuse a method, as far as sizes show; None: it would not."""
    least = method_needs(sizes, method, budget, sizes.num_listed, sizes.num_listed)
    entries = sizes.num_edges, num_neighbours(sizes)
    apart = method_needs(sizes, method, budget, *entries)
    plain = method_needs(sizes, method, budget, *entries, AssignMemory.total)
    most = method_needs(sizes, method, budget, *entries, AssignMemory.most)
    limit = format_size(budget.limit)
    if least > budget.limit:
        return f"refused: holds the whole graph, {format_size(least)} or more with a margin; the limit is {limit}"
    if apart > budget.limit:
        return f"refused if few edges are listed twice: up to {format_size(apart)} with a margin; the limit is {limit}"
    if plain > budget.limit:
        return f"ended at the limit if the graph has no communities: up to {format_size(most)}; the limit is {limit}"
    if most > budget.limit:
        return f"ended at the limit if it has neither communities nor hubs: {format_size(most)}; the limit is {limit}"
    if budget.limit < budget.least():
        return f"refused: the limit is {limit}, the least is {format_size(budget.least())}"
    return None


def _training(given: PlanInput, num_parts: int, options: PlanOptions, base: int) -> dict[str, Any]:
    sizes = given.sizes
    row_bytes = feature_row_bytes(sizes, options.feature_dtype)
    traffic = None
    if options.traffic is not None:
        sample = given.sample or (lambda parts, traffic: estimate_traffic(sizes, parts, traffic))
        traffic = sample(num_parts, options.traffic)
    training: dict[str, Any] = {"hosts_memory": options.hosts_memory, "row_bytes": row_bytes, "schemes": {}}
    for scheme in SCHEMES:
        memory = machine_memory(sizes, scheme, num_parts, base, row_bytes, traffic)
        entry: dict[str, Any] = {"memory": {**asdict(memory), "total": memory.total}}
        if options.hosts_memory is not None:
            entry["fits"] = memory.total <= options.hosts_memory
            entry["least_machines"] = least_machines(sizes, scheme, options.hosts_memory, memory, row_bytes)
        training["schemes"][scheme] = entry
    if traffic is not None:
        training |= _communication(sizes, num_parts, options, traffic, training["schemes"])
    return training


def _communication(
    sizes: GraphSizes, num_parts: int, options: PlanOptions, traffic: StepTraffic, schemes: dict[str, Any]
) -> dict[str, Any]:
    """Adds "step" and "epoch_s" to the schemes; returns what they have in common."""
    num_hops = len(options.traffic.fanouts)
    model = {"name": "GraphSAGE", "hidden": options.hidden, "num_classes": _num_outputs(sizes)}
    gradients = graphsage_bytes(sizes.feature_dim, options.hidden, model["num_classes"], num_hops)
    shape = StepShape(num_hops, num_parts, options.network)
    row_bytes = feature_row_bytes(sizes, options.feature_dtype)
    for scheme, entry in schemes.items():
        cost = step_cost(scheme, traffic, sizes.node_id_bytes, row_bytes, gradients, shape)
        steps = traffic.steps_per_epoch
        entry["step"] = asdict(cost)
        entry["epoch_s"] = None if steps is None else steps * cost.seconds
    return {
        "options": asdict(options.traffic),
        "network": asdict(options.network),
        "model": model,
        "traffic": asdict(traffic),
        "quicker": min(schemes, key=lambda scheme: schemes[scheme]["step"]["seconds"]),
    }


def _num_outputs(sizes: GraphSizes) -> int:
    return sizes.num_targets or sizes.num_classes or DEFAULT_CLASSES


def _sizes_of_partition(path: Path, manifest: Manifest) -> GraphSizes:
    """Sizes of the graph that was cut. An undirected list held every edge once, as far as the topology shows."""
    counts = {split: 0 for split in SPLITS}
    for part in range(manifest.num_parts):
        for split, ids in load_part(path, manifest, part).splits.items():
            counts[split] += len(ids)
    sizes = GraphSizes(
        name=manifest.name,
        num_nodes=manifest.num_nodes,
        num_listed=-(-manifest.num_edges // 2) if manifest.undirected else manifest.num_edges,
        undirected=manifest.undirected,
        weight_dtype="float32" if "topology/weights.npy" in manifest.files else None,
        feature_dim=manifest.feature_dim or 0,
        feature_dtype=manifest.feature_dtype or "",
        feature_scales=manifest.feature_scales,
        has_labels=any(name.endswith(("labels.npy", "targets.npy")) for name in manifest.files),
        num_targets=manifest.num_targets,
        num_classes=manifest.num_classes or None,
        edge_map="topology/edge_map.npy" in manifest.files,
        clusters=CLUSTERS in manifest.files,
    )
    return replace(sizes, splits={split: count for split, count in counts.items() if count})

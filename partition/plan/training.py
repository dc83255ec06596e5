"""What training on a partition will take, per machine and step: memory, rows, bytes, seconds of communication.

Traffic is sampled where there is a topology: on a finished partition as it is, on a small graph as `random` would cut
it. Otherwise it is estimated from sizes, as on a graph of N nodes with d uniform in-neighbours each. Every hop asks all
nodes so far again, so of the neighbours of a node that came at hop j, the share 1 - (1 - f_j/d) ... (1 - f_h/d) is
picked by the end of hop h (fanouts f, at most d). With k picks in all, from s seeds,

    s + (N - s) (1 - (1 - 1/N)^k)

distinct nodes are reached; of those that are not seeds, (P - 1)/P are remote. Neighbours that are shared more than in a
uniform graph, as in one with hubs or communities, make fewer distinct nodes: RMAT scale 18, edge factor 16, fanouts
15,10,5 and 1000 seeds reach 36,222 where the formula says 247,302. So it is a bound there rather than an estimate.

One machine per part, one process on it. The hybrid scheme sends ids and gets rows: 2 exchanges a step; vanilla asks for
the hops below the first as well: 2 L (FastSample, section 3.3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph, read_meta
from fastsample_dist.graph.inputs.sizes import GraphSizes
from fastsample_dist.graph.network import COUNTS_BYTES, Network
from fastsample_dist.graph.npy_files import open_npy
from fastsample_dist.graph.storage import Manifest, load_part, load_topology
from fastsample_dist.partition.methods import random_parts
from fastsample_dist.partition.report.traffic import PartTraffic, TrafficOptions, assignment_traffic, sampled_rows

SCHEMES = ("hybrid", "vanilla")
DEFAULT_HIDDEN, DEFAULT_CLASSES = 256, 100
BUCKET_BYTES = 25 << 20  # of gradients that are summed in one call
PARAMETER_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class StepTraffic:
    """Means per step and machine.

    Attributes:
      source: how it was found, in words.
      sampled: drawn from a topology, not estimated from sizes.
      input_rows, remote_rows: input nodes, and those that other machines own.
      remote_rows_error: standard error of the latter; 0 if estimated.
      sampling_ids: what vanilla sends and receives to sample, in ids.
      steps_per_epoch: None where the number of train nodes is unknown.
    """

    source: str
    sampled: bool
    input_rows: float
    remote_rows: float
    remote_rows_error: float
    sampling_ids: float
    steps_per_epoch: int | None


def estimate_traffic(sizes: GraphSizes, num_parts: int, options: TrafficOptions) -> StepTraffic:
    """Expected traffic on a uniform graph of these sizes; the formula is at the top of this file."""
    num_nodes, degree = sizes.num_nodes, sizes.num_edges / sizes.num_nodes
    train = sizes.splits.get("train")
    per_part = num_nodes if train is None else math.ceil(train / num_parts)
    seeds = float(min(options.batch_size, per_part))
    remote_share = (num_parts - 1) / num_parts
    reached, ids = seeds, 0.0
    arrived, unpicked = [seeds], [1.0]  # by hop: nodes that came at it, and the share of their neighbours not picked
    for hop, fanout in enumerate(options.fanouts):
        share = 1.0 if fanout < 0 or fanout >= degree else fanout / degree
        if hop:
            ids += (reached - seeds) * remote_share * (2 + share * degree)
        unpicked = [left * (1 - share) for left in unpicked]
        picks = degree * sum(nodes * (1 - left) for nodes, left in zip(arrived, unpicked, strict=True))
        after = seeds + (num_nodes - seeds) * -math.expm1(picks * math.log1p(-1 / max(2, num_nodes)))
        arrived.append(after - reached)
        unpicked.append(1.0)
        reached = after
    return StepTraffic(
        source="estimated from sizes, as if edges were uniform; hubs make fewer rows (RMAT scale 18: a seventh)",
        sampled=False,
        input_rows=reached,
        remote_rows=(reached - seeds) * remote_share,
        remote_rows_error=0.0,
        sampling_ids=ids,
        steps_per_epoch=None if train is None else math.ceil(per_part / options.batch_size),
    )


def sample_input(path: Path, num_parts: int, options: TrafficOptions) -> StepTraffic:
    """Traffic of an `npy` directory cut by method random, from batches sampled on its topology.

    Raises:
      ValueError: an id is out of range.
    """
    meta = read_meta(path)
    edges, num_nodes = open_npy(path / "edge_index.npy"), meta["num_nodes"]
    if edges.size and not 0 <= int(edges.min()) <= int(edges.max()) < num_nodes:
        raise ValueError(
            f"{path / 'edge_index.npy'} holds ids from {edges.min()} to {edges.max()}; expected 0 to {num_nodes - 1}."
        )
    raw = RawGraph(name=meta["name"], num_nodes=num_nodes, undirected=meta["undirected"], edge_index=edges)
    file = path / "train_idx.npy"
    train = np.sort(open_npy(file).astype(np.int64)) if file.exists() else None
    return _sample_random(raw.to_csc(), train, num_parts, options)


def sample_partition(path: Path, manifest: Manifest, num_parts: int, options: TrafficOptions) -> StepTraffic:
    """Traffic of a finished partition as it is, or of its graph cut at random into another number of parts."""
    if num_parts == manifest.num_parts:
        return _mean_traffic(
            sampled_rows(path, manifest, options), f"sampled on {path} as it is cut ({manifest.method})"
        )
    splits = [load_part(path, manifest, part).splits for part in range(manifest.num_parts)]
    train = [own["train"].numpy() for own in splits if "train" in own]
    graph = load_topology(path, manifest)
    return _sample_random(graph, np.concatenate(train) if train else None, num_parts, options)


def _sample_random(graph: CSCGraph, train: np.ndarray | None, num_parts: int, options: TrafficOptions) -> StepTraffic:
    known = train is not None and len(train) > 0
    seeds = train if known else np.flatnonzero(graph.in_degrees().numpy())
    parts = random_parts(graph.num_nodes, seeds, num_parts, options.rng_seed)
    found = _mean_traffic(
        assignment_traffic(graph, seeds, parts, num_parts, options), "sampled on the graph, cut by method random"
    )
    if known:
        return found
    return replace(found, source=f"{found.source}, from any seeds", steps_per_epoch=None)


def _mean_traffic(parts: Sequence[PartTraffic], source: str) -> StepTraffic:
    count = len(parts)
    return StepTraffic(
        source=source,
        sampled=True,
        input_rows=sum(part.input_rows for part in parts) / count,
        remote_rows=sum(part.remote_rows for part in parts) / count,
        remote_rows_error=sum(part.remote_rows_error**2 for part in parts) ** 0.5 / count,
        sampling_ids=sum(part.sampling_ids for part in parts) / count,
        steps_per_epoch=max(part.steps for part in parts),
    )


@dataclass(frozen=True, kw_only=True)
class MachineMemory:
    """Resident bytes of one machine while it trains, the model's own left out.

    Attributes:
      program: Python and torch.
      topology: hybrid: the whole; vanilla: the part's rows, their offsets, and the original id of every node.
      rows: features and labels of the part.
      batch: a step's feature rows, and its remote rows as received and as sent to others.
    """

    program: int
    topology: int
    rows: int
    batch: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.program + self.topology + self.rows + self.batch


def machine_memory(
    sizes: GraphSizes, scheme: str, machines: int, program_bytes: int, row_bytes: int, traffic: StepTraffic | None
) -> MachineMemory:
    """Resident bytes per machine.

    Args:
      sizes: of the graph.
      scheme: one of SCHEMES.
      machines: parts, one each.
      program_bytes: of a process without data.
      row_bytes: of a stored feature row.
      traffic: for the batch; None leaves it out.
    """
    nodes, edge_bytes = sizes.num_nodes, sizes.node_id_bytes + sizes.weight_bytes
    edges = edge_bytes * sizes.num_edges
    topology = edges + 16 * nodes
    if scheme == "vanilla":
        topology = (edges + 16 * nodes) // machines + 8 * nodes
    batch = 0 if traffic is None else round((traffic.input_rows + 2 * traffic.remote_rows) * row_bytes)
    rows = (row_bytes + sizes.label_row_bytes) * nodes // machines
    return MachineMemory(program=program_bytes, topology=topology, rows=rows, batch=batch)


def least_machines(
    sizes: GraphSizes, scheme: str, hosts_memory: int, fixed: MachineMemory, row_bytes: int
) -> int | None:
    """The least number of machines with this much memory that hold the graph under a scheme; None: no number does.

    Args:
      fixed: of any number of machines; its program and batch are taken.
    """

    def left(machines: int) -> int:
        split = machine_memory(sizes, scheme, machines, fixed.program, row_bytes, None)
        return hosts_memory - split.total - fixed.batch

    if left(sizes.num_nodes) < 0:
        return None
    low, high = 1, sizes.num_nodes
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if left(middle) >= 0 else (middle + 1, high)
    return low


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Communication of one scheme, per step and machine.

    Attributes:
      exchanges: collectives with payload: ids, picks, rows.
      feature_bytes, sampling_bytes: sent in them.
      gradient_bytes: summed over the machines.
      seconds: of all of it, on the network.
    """

    exchanges: int
    feature_bytes: float
    sampling_bytes: float
    gradient_bytes: int
    seconds: float


@dataclass(frozen=True)
class StepShape:
    """Shape of the training: the number of hops and of machines, and the network between them."""

    num_hops: int
    machines: int
    network: Network


def step_cost(
    scheme: str, traffic: StepTraffic, id_bytes: int, row_bytes: int, gradient_bytes: int, shape: StepShape
) -> StepCost:
    """What a scheme's step costs on a network.

    Args:
      scheme: one of SCHEMES.
      traffic: of a step.
      id_bytes, row_bytes: of a node id and of a feature row.
      gradient_bytes: of the model.
      shape: hops, machines and network.
    """
    below_first = (shape.num_hops - 1) if scheme == "vanilla" else 0
    exchanges, counts = 2 + 2 * below_first, 1 + 2 * below_first
    features = traffic.remote_rows * (id_bytes + row_bytes)
    sampling = traffic.sampling_ids * id_bytes if below_first else 0.0
    network, machines = shape.network, shape.machines
    seconds = network.all_to_all_s(exchanges, features + sampling, machines)
    seconds += network.all_to_all_s(counts, counts * COUNTS_BYTES * (machines - 1), machines)
    seconds += network.ring_sum_s(math.ceil(gradient_bytes / BUCKET_BYTES), gradient_bytes, machines)
    return StepCost(
        exchanges=exchanges,
        feature_bytes=features,
        sampling_bytes=sampling,
        gradient_bytes=gradient_bytes,
        seconds=seconds if machines > 1 else 0.0,
    )


def graphsage_bytes(feature_dim: int, hidden: int, num_classes: int, num_layers: int) -> int:
    """Bytes of the gradients of GraphSAGE: a layer maps own and mean row, 2 * width columns, and adds a bias."""
    widths = [feature_dim, *[hidden] * (num_layers - 1), num_classes]
    return PARAMETER_BYTES * sum(2 * own * out + out for own, out in itertools.pairwise(widths))

"""What a rank of `fastsample-bench features` does: fetch the inputs of the same batches by every way in turn.

A way is a transport, or OWN: this rank has all rows in one table in memory, which no fetch can beat. All ways fetch the
same nodes of a step before the next one's turn, repeat by repeat, so that slow changes of the machine affect all alike.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from fastsample_dist.comm.context import DistContext
from fastsample_dist.features.source import FeatureSource
from fastsample_dist.features.store import LocalFeatures
from fastsample_dist.graph.storage import load_features
from fastsample_dist.ops import SampleSpec
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.schemes import HYBRID, make_sampler
from fastsample_dist.pipeline.transport import SHARED, choose_transport

OWN = "all rows own"
WARM_UP = 2  # passes over all steps that are not counted


def features_rank(ctx: DistContext, settings: dict, folder: Path | None = None) -> dict:
    """Fetch. Collective: every rank must call this.

    Args:
      ctx: the rank's context.
      settings: {"path", "transports", "batch_size", "fanouts", "steps", "repeats", "rng_seed", "verify"}.
      folder: not used.
    Returns:
      {"graph": {"name", "num_nodes", "num_edges"}, "row_bytes": stored, "inputs": rows a step, "remote": those of
      other ranks, "differences": ways whose rows are not those of the first way, "ways": {name: {"walls_s": per repeat
      and step, "cpu_s": per repeat, of all threads of this process}}}.
    Raises:
      ValueError: the partition has no features, fewer training nodes than one, or ranks cannot share.
    """
    data = DistData.load(settings["path"], ctx)
    if data.features is None:
        raise ValueError(f"{settings['path']} has no features; partition an input with features.npy.")
    batches = _input_nodes(data, settings)
    ways = _ways(data, settings["transports"])
    differences = _compare(ways, batches) if settings["verify"] else []
    found: dict[str, dict[str, list]] = {name: {"walls_s": [], "cpu_s": []} for name in ways}
    for repeat in range(WARM_UP + settings["repeats"]):
        for name, features in ways.items():
            ctx.comm.barrier(purpose="benchmark")
            walls_s, cpu_s = _pass(features, batches)
            if repeat >= WARM_UP:
                found[name]["walls_s"].append(walls_s)
                found[name]["cpu_s"].append(cpu_s)
    lo, hi = data.own_range
    manifest = data.manifest
    return {
        "graph": {"name": manifest.name, "num_nodes": manifest.num_nodes, "num_edges": manifest.num_edges},
        "row_bytes": data.features.local.row_bytes,
        "inputs": sum(nodes.numel() for nodes in batches) / len(batches),
        "remote": sum(int(((nodes < lo) | (nodes >= hi)).sum()) for nodes in batches) / len(batches),
        "differences": differences,
        "ways": found,
    }


def _input_nodes(data: DistData, settings: dict) -> list[Tensor]:
    """The input nodes of the first steps; training nodes are used again where they are too few."""
    spec = SampleSpec(fanouts=tuple(settings["fanouts"]), rng_seed=settings["rng_seed"])
    sampler, train = make_sampler(data, HYBRID, spec, data.ctx.comm), data.split("train")
    if train.numel() == 0:
        raise ValueError(f"rank {data.ctx.rank} has no training nodes to sample from; take fewer ranks.")
    size, batches = min(settings["batch_size"], train.numel()), []
    for step in range(settings["steps"]):
        first = step * size % max(1, train.numel() - size + 1)
        batches.append(sampler.sample(train[first : first + size], step).input_nodes)
    return batches


def _ways(data: DistData, transports: list[str]) -> dict[str, FeatureSource]:
    """What fetches, by name. Collective: every rank must call this."""
    assert data.features is not None  # checked by the caller
    ways: dict[str, FeatureSource] = {}
    for name in transports:
        sharing = choose_transport(data, name, torch.device("cpu"))
        ways[name] = data.features.reading(sharing.neighbours) if sharing.name == SHARED else data.features
    parts = [load_features(data.path, data.manifest, part) for part in range(data.manifest.num_parts)]
    ways[OWN] = LocalFeatures.from_parts(parts, 0)
    return ways


def _compare(ways: dict[str, FeatureSource], batches: list[Tensor]) -> list[str]:
    """Ways that give other rows than the first."""
    different = set()
    for nodes in batches:
        rows = {name: features.fetch(nodes, checked=False) for name, features in ways.items()}
        first = next(iter(rows.values()))
        different |= {name for name, found in rows.items() if not torch.equal(found, first)}
    return sorted(different)


def _pass(features: FeatureSource, batches: list[Tensor]) -> tuple[list[float], float]:
    """(seconds of every step, processor seconds of all)."""
    walls_s, cpu_s = [], time.process_time()
    for nodes in batches:
        begin_s = time.perf_counter()
        features.fetch(nodes, checked=False)
        walls_s.append(time.perf_counter() - begin_s)
    return walls_s, time.process_time() - cpu_s

"""Partitions the input graph with dgl.distributed.partition_graph and writes partition.json next to the parts.

METIS as DistDGL's examples call it: edges balanced, and train nodes balanced by passing the train mask as
node type. DGL reports 0 edge cuts whatever the cut, so the cut is counted here from the mapping that DGL
returns.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import dgl
import numpy as np
import torch
from graph_input import count_cut_edges, fingerprint, read_graph
from settings import GRAPH_NAME, PARTITION_REPORT, Settings


def partition(settings: Settings, output: Path) -> dict[str, object]:
    """Write DistDGL's partitions of the graph to `output` and return the report about them."""
    data = read_graph(settings.graph)
    g = dgl.graph((torch.from_numpy(data.src), torch.from_numpy(data.dst)), num_nodes=data.num_nodes)
    train_mask = torch.zeros(data.num_nodes, dtype=torch.bool)
    train_mask[torch.from_numpy(data.train_idx)] = True
    g.ndata["feat"] = torch.from_numpy(data.features)
    g.ndata["label"] = torch.from_numpy(data.labels)
    g.ndata["train_mask"] = train_mask
    torch.manual_seed(settings.seed)
    dgl.seed(settings.seed)
    start = time.perf_counter()
    orig_ids, _ = dgl.distributed.partition_graph(
        g,
        GRAPH_NAME,
        settings.machines,
        str(output),
        num_hops=1,
        part_method="metis",
        balance_ntypes=train_mask,
        balance_edges=True,
        return_mapping=True,
    )
    seconds = time.perf_counter() - start
    ranges = json.loads((output / f"{GRAPH_NAME}.json").read_text())["node_map"]["_N"]
    part_of = np.empty(data.num_nodes, dtype=np.int32)
    for part, (lo, hi) in enumerate(ranges):
        part_of[orig_ids[lo:hi].numpy()] = part
    cut = count_cut_edges(data.src, data.dst, part_of)
    return {
        "graph": data.facts(),
        "input": fingerprint(settings.graph),
        "seed": settings.seed,
        "seconds": seconds,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "cut_edges": cut,
        "cut_share": cut / max(len(data.src), 1),
        "nodes_per_part": np.bincount(part_of, minlength=settings.machines).tolist(),
        "train_nodes_per_part": np.bincount(part_of[data.train_idx], minlength=settings.machines).tolist(),
    }


def main() -> None:
    """Partition as the settings file says; the report is written last, so it marks complete partitions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    report = partition(Settings.read(args.settings), args.output)
    (args.output / PARTITION_REPORT).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

"""What it takes to partition a CSCGraph, as it is and as the list of its edges: time and peak memory.

    python benchmarks/partition_rows.py [--scale 17] [--edge-factor 16] [--num-parts 4] [--trials 5]

The graph is RMAT with both directions of every edge, written to files first. Each run loads it in a process of its own
and calls `fastsample_dist.partition_graph` (method random, so that the topology is most of the work); "list" unrolls
the rows to [2, num_edges] inside the measured time. The two ways take turns, and their files must be equal. Peak: the
most that the process held (VmHWM) above what it held before the call.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WAYS = ("rows", "list")
RUN = """
import json, sys, time
import numpy as np, torch
import fastsample_dist as fsd
from fastsample_dist.memory_sizes import resident_bytes

folder, output, way, undirected, num_parts = sys.argv[1:]
options = {"undirected": bool(int(undirected)), "num_parts": int(num_parts), "method": "random", "output": output}
graph = fsd.CSCGraph(np.load(f"{folder}/indptr.npy"), np.load(f"{folder}/indices.npy"))
fsd.partition_graph  # its modules are loaded here
before, begin, cpu = resident_bytes(), time.perf_counter(), time.process_time()
if way == "list":
    nodes = torch.arange(graph.num_nodes, dtype=graph.indices.dtype)
    options["num_nodes"] = graph.num_nodes
    graph = torch.stack([graph.indices, torch.repeat_interleave(nodes, graph.in_degrees())])
fsd.partition_graph(graph, **options)
spent = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
print(json.dumps({**spent, "bytes": resident_bytes(peak=True) - before}))
"""


def digest(path: Path) -> str:
    """SHA-256 of a partition's manifest, which has those of all files."""
    return hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("scale", 17), ("edge-factor", 16), ("num-parts", 4), ("trials", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    import numpy as np

    from fastsample_dist.graph.generators import rmat

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = rmat(args.scale, args.edge_factor, seed=1)
        np.save(folder / "indptr.npy", graph.indptr.numpy())
        np.save(folder / "indices.npy", graph.indices.numpy())
        print(f"rmat:{args.scale}:{args.edge_factor}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges; "
              f"{args.num_parts} parts, median of {args.trials} (least - most)\n")  # fmt: skip
        print("| edges count | given as | seconds | CPU s | peak MB above start |\n|---|---|---|---|---|")
        for undirected in (0, 1):
            found, digests = {way: [] for way in WAYS}, set()
            for trial in range(args.trials):
                for way in WAYS:
                    output = folder / f"parts-{undirected}-{way}-{trial}"
                    command = [sys.executable, "-c", RUN, *map(str, (folder, output, way, undirected, args.num_parts))]
                    run = subprocess.run(command, check=True, capture_output=True, text=True)
                    found[way].append(json.loads(run.stdout.splitlines()[-1]))
                    digests.add(digest(output))
            if len(digests) != 1:
                sys.exit("the two ways gave different files")
            for way, runs in found.items():
                columns = [[run[key] for run in runs] for key in ("seconds", "cpu")]
                times = " | ".join(
                    f"{statistics.median(column):.2f} ({min(column):.2f} - {max(column):.2f})" for column in columns
                )
                peak = statistics.median(run["bytes"] for run in runs) / 1e6
                print(f"| {'in both directions' if undirected else 'as stored'} | {way} | {times} | {peak:.0f} |")


if __name__ == "__main__":
    main()

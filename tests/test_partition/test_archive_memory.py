"""A data set in papers100M's layout is partitioned in memory far below its archive's size, stored or packed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.graph.inputs.layouts import Graph, write_ogb_binary
from tests.grids import grid

NUM_NODES, NUM_EDGES, DIM = 160_000, 1_000_000, 256
ROOM = 80 << 20  # beyond what the process holds before; the arrays of the archive have 180 MB

PROGRAM = """
import json, sys
from pathlib import Path
from fastsample_dist.graph.inputs import ReadOptions, read_graph
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.partition.external.journal import input_scratch
from fastsample_dist.memory_sizes import resident_bytes
import fastsample_dist.graph.inputs.ogb, fastsample_dist.partition.report.quality

Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
base = resident_bytes(peak=True)
with input_scratch(sys.argv[2]) as scratch:
    raw = read_graph(sys.argv[1], "ogb", ReadOptions(scratch=scratch))
    options = PartitionOptions(num_parts=2, method="random", memory_limit=base + int(sys.argv[3]), on_disk=True)
    build_partition(raw, options, sys.argv[2])
print(json.dumps({"grown": resident_bytes(peak=True) - base}))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not measure peaks anew")
@pytest.mark.parametrize("packed", grid([False, True], gate=[False]))
def test_memory_stays_far_below_the_archive(tmp_path, packed):
    features = np.tile(np.arange(DIM, dtype=np.float32), (NUM_NODES, 1))
    features[:, 0] = np.arange(NUM_NODES)
    rng = np.random.default_rng(0)
    graph = Graph(
        edges=rng.integers(0, NUM_NODES, (2, NUM_EDGES)),
        num_nodes=NUM_NODES,
        features=features,
        labels=np.where(np.arange(NUM_NODES) < 900, np.arange(NUM_NODES) % 7, -1),
        splits={name: np.arange(lo, lo + 300) for name, lo in (("train", 0), ("val", 300), ("test", 600))},
    )
    source = write_ogb_binary(tmp_path / "ogbn_papers100M", graph, packed=packed)
    command = [sys.executable, "-c", PROGRAM, str(source), str(tmp_path / "parts"), str(ROOM)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2])
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["grown"] <= ROOM
    parts = [np.load(tmp_path / f"parts/part-{part}/features.npy", mmap_mode="r") for part in range(2)]
    assert sorted(np.concatenate([part[:, 0] for part in parts]).tolist()) == list(range(NUM_NODES))

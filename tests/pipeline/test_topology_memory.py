"""However many ranks a machine runs, it holds one copy of the topology: summed proportional set size (PSS)."""

import sys
from pathlib import Path

import psutil
import pytest

from fastsample_dist import DistData
from fastsample_dist.testing import run_distributed
from tests.parts import draw_partition


def touch_topology(ctx, path):
    """(pss, rss) in bytes of this rank's mappings of the topology's files, once all ranks have read all of it."""
    graph = DistData.load(path, ctx).graph
    _ = int(graph.indptr.sum()), int(graph.indices.sum()), int(graph.orig_ids.sum())
    ctx.comm.barrier()
    mappings = [m for m in psutil.Process().memory_maps() if "/topology/" in m.path]
    ctx.comm.barrier()
    return sum(m.pss for m in mappings), sum(m.rss for m in mappings)


@pytest.mark.skipif(sys.platform != "linux", reason="PSS is read from /proc, which only Linux has")
def test_four_ranks_hold_one_copy_of_the_topology(tmp_path):
    path = draw_partition(tmp_path, 4, num_nodes=100_000, num_edges=4_000_000).path
    files_bytes = sum(file.stat().st_size for file in Path(path, "topology").iterdir())
    memory = run_distributed(4, touch_topology, args=(path,))
    pss, rss = sum(pss for pss, _ in memory), sum(rss for _, rss in memory)
    print(f"topology {files_bytes:,} bytes, 4 ranks: PSS {pss:,}, RSS {rss:,}")
    assert rss > 3.9 * files_bytes, "every rank reads the whole topology"
    assert 0.95 * files_bytes < pss < 1.05 * files_bytes

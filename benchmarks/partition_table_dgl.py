"""DGL's side of partition_table.py: `dgl.distributed.partition_graph` on a topology in files.

    python partition_table_dgl.py GRAPH RESULT NUM_PARTS [metis]

Writes parts.npy and figures.json to RESULT: seconds and peak memory of the process when METIS has finished, and when
the whole call has. The latter needs several times the memory; with "metis", the call ends when METIS has.
Its METIS is asked to balance edges (balance_edges).
"""

from __future__ import annotations

import argparse
import json
import re
import time
from contextlib import suppress
from pathlib import Path

import dgl
import numpy as np
import torch
from dgl.distributed import partition


def peak_bytes() -> int:
    """Most physical memory that this process has held so far (ru_maxrss would begin with that of its parent)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024


def main() -> None:
    """Partition one graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, help="directory with indptr.npy and indices.npy")
    parser.add_argument("result", type=Path, help="directory of what is written")
    parser.add_argument("num_parts", type=int)
    parser.add_argument("only", nargs="?", choices=["metis"], help="end when METIS has")
    args = parser.parse_args()
    columns = [torch.from_numpy(np.load(args.graph / f"{name}.npy")).long() for name in ("indptr", "indices")]
    graph = dgl.graph(("csc", (*columns, [])), num_nodes=len(columns[0]) - 1)  # it partitions int64 ids only
    del columns
    seen = {}

    class Enough(Exception):  # noqa: N818 - no error
        """METIS has finished."""

    metis = partition.metis_partition_assignment

    def timed(*given: object, **options: object) -> torch.Tensor:
        begin = time.perf_counter(), time.process_time()
        parts = metis(*given, **options)
        seen["seconds"], seen["cpu_s"] = time.perf_counter() - begin[0], time.process_time() - begin[1]
        seen["peak"], seen["parts"] = peak_bytes(), parts
        if args.only:
            raise Enough
        return parts

    partition.metis_partition_assignment = timed
    dgl.seed(0)
    begin = time.perf_counter()
    with suppress(Enough):
        dgl.distributed.partition_graph(graph, "graph", args.num_parts, str(args.result / "parts"), balance_edges=True)
        seen |= {"total_s": time.perf_counter() - begin, "total_peak_bytes": peak_bytes()}
    parts = seen["parts"]
    np.save(args.result / "parts.npy", (parts.numpy() if isinstance(parts, torch.Tensor) else parts.asnumpy()))
    figures = {"seconds": seen["seconds"], "cpu_s": seen["cpu_s"], "peak_bytes": seen["peak"]}
    figures |= {name: value for name, value in seen.items() if name.startswith("total")}
    (args.result / "figures.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()

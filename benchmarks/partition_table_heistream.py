"""HeiStream's side of partition_table.py: its own program on the adjacency as a METIS file.

    python partition_table_heistream.py PROGRAM METIS_FILE RESULT NUM_PARTS [OPTION ...]

Runs PROGRAM (Faraj and Schulz, "Buffered streaming graph partitioning", JEA 2022), which the user has built, and writes
assigned.txt and figures.json to RESULT. Seconds, CPU seconds and peak memory are those of its process, which reads the
text once per pass. It balances nodes, or with the option balance_edges edges, not the splits; nothing is levelled
afterwards. Standard library only, as a child's peak begins with what its parent holds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastsample_dist.partition.methods.adjacency import Adjacency

CHUNK_ROWS = 1 << 16


def write_metis(links: Adjacency, file: Path) -> None:
    """Write neighbour lists as METIS reads them: ids from 1, a node a line, every weight behind its neighbour."""
    begun = file.with_suffix(".part")
    with begun.open("w", encoding="ascii") as out:
        out.write(f"{links.num_nodes} {len(links.indices) // 2}{'' if links.weights is None else ' 1'}\n")
        for lo in range(0, links.num_nodes, CHUNK_ROWS):
            offsets = links.indptr[lo : lo + CHUNK_ROWS + 1].tolist()
            words = [str(each + 1) for each in links.indices[offsets[0] : offsets[-1]].tolist()]
            if links.weights is not None:
                weights = links.weights[offsets[0] : offsets[-1]].tolist()
                words = [f"{word} {weight}" for word, weight in zip(words, weights, strict=True)]
            for first, end in itertools.pairwise(offsets):
                out.write(" ".join(words[first - offsets[0] : end - offsets[0]]) + "\n")
    begun.rename(file)


def main() -> int:
    """Run the program once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="HeiStream's")
    parser.add_argument("graph", metavar="metis_file", help="the adjacency")
    parser.add_argument("result", help="directory of what is written")
    parser.add_argument("num_parts", type=int)
    parser.add_argument("options", nargs="*", metavar="option", help="of PROGRAM, without the dashes")
    args = parser.parse_args()
    assigned = Path(args.result, "assigned.txt")
    command = [args.program, args.graph, f"--k={args.num_parts}", f"--output_filename={assigned}", "--evaluate=false"]
    begin = time.perf_counter()
    words = [*command, *(f"--{option}" for option in args.options)]
    status = subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # no other process was started
    figures = {
        "seconds": time.perf_counter() - begin,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
    }
    if status or not assigned.exists():  # 0 too where it does not know an option
        print(f"{args.program} ended with {status} and no parts.", file=sys.stderr)
        return 1
    Path(args.result, "figures.json").write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())

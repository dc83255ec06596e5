"""Our partitioning methods beside DGL's METIS in one table: time, peak memory, edge cut, balance.

    python benchmarks/partition_table.py --graph rmat:18:32 [--graph planted:100000:1600000:50:0.3] [--graph DIR]
        --num-parts 2,8 [--methods metis,ldg] [--dgl-python PYTHON] [--heistream DIR] [--work DIR] [--json FILE]

A graph is RMAT by scale and edge factor or planted by nodes, edges, communities and mixing (seed 1, a tenth of the
nodes train nodes), or an `npy` input directory. Its topology is written to files first, from which every method starts
in a process of its own, so that the peak memory (with what it maps and the interpreter) is its own. Method "planted",
for graphs with planted.npy, packs their communities into the parts: the reference. Seconds are those of the assignment,
levelling included;
CPU seconds, of all threads, are the same on a machine that others use. For DGL they are those of METIS as
`dgl.distributed.partition_graph` calls it (balance_edges); seconds and memory of the whole call, which also writes the
parts, follow. Method "heistream" is DIR/heistream, built by the user, and takes its own options, as
heistream:batch_size=65536:num_streams_passes=2; its figures are those of its whole process, which balances nodes alone;
what it cuts once it is levelled as ours are follows. Shares are of the mean part. Tables are Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from fastsample_dist.command import Parser, add_json, run_command
from fastsample_dist.files import write_json
from fastsample_dist.testing.supervisor import last_line, run_process

if TYPE_CHECKING:
    from fastsample_dist.partition.methods import PartitionRequest
    from fastsample_dist.partition.methods.options import StreamOptions

REPOSITORY = Path(__file__).resolve().parent.parent
METHODS = ("metis", "kaminpar", "stream", "ldg", "fennel", "random")
PLANTED, HEISTREAM = "planted", "heistream"
CHUNK_EDGES = 1 << 22
TRAIN_SHARE = 0.1


def prepare(name: str, work: Path) -> Path:
    """The directory with a graph's topology in files, made on first use."""
    from fastsample_dist.bench.graphs import GRAPH_SEED, drawing_options, is_drawn
    from fastsample_dist.graph import generators
    from fastsample_dist.graph.datasets import read_npy_graph

    folder = work / name.strip("/").replace("/", "_").replace(":", "-")
    if (folder / "meta.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    if name.startswith("rmat:"):
        scale, edge_factor = map(int, name.split(":")[1:])
        graph, undirected = generators.rmat(scale, edge_factor, seed=1), True
        chosen = np.random.default_rng(0).permutation(graph.num_nodes)[: int(graph.num_nodes * TRAIN_SHARE)]
        splits = {"train": np.sort(chosen)}
    else:
        given = Path(name)
        if is_drawn(name):
            given = folder / "input"
            words = [*drawing_options(name), *GRAPH_SEED, "--train-fraction", str(TRAIN_SHARE)]
            if not given.exists() and generators.main([*words, "--output", str(given)]):
                raise RuntimeError(f"{name} cannot be drawn.")
        raw = read_npy_graph(given)
        graph, undirected, splits, name = raw.to_csc(), raw.undirected, raw.splits, raw.name
        if (given / "planted.npy").is_file():
            shutil.copyfile(given / "planted.npy", folder / "planted.npy")
    np.save(folder / "indptr.npy", graph.indptr.numpy())
    np.save(folder / "indices.npy", graph.indices.numpy())
    for split, ids in splits.items():
        np.save(folder / f"{split}.npy", ids)
    meta = {"name": name, "nodes": graph.num_nodes, "edges": graph.num_edges, "undirected": undirected}
    write_json(folder / "meta.json", {**meta, "splits": list(splits)})
    shutil.rmtree(folder / "input", ignore_errors=True)
    return folder


def method_of(name: str, folder: Path) -> Any:
    """One of our methods; "planted" packs the communities that a graph was drawn with, and is balanced like metis."""
    from fastsample_dist.graph.planted import planted_parts
    from fastsample_dist.partition.methods import METHODS as OURS

    if name != PLANTED:
        return OURS[name]

    def assign_planted(request: PartitionRequest) -> np.ndarray:
        if not (folder / "planted.npy").is_file():
            raise ValueError("method planted needs the communities of a planted graph: planted.npy beside its edges.")
        return planted_parts(np.load(folder / "planted.npy"), request.num_parts)

    return replace(OURS["metis"], name=name, assign=assign_planted)


def request_of(folder: Path, num_parts: int, **options: Any) -> PartitionRequest:
    """A prepared graph, its topology mapped."""
    import torch

    from fastsample_dist.graph.csc import CSCGraph
    from fastsample_dist.partition.methods import PartitionRequest

    meta = json.loads((folder / "meta.json").read_text())
    columns = [torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in ("indptr", "indices")]
    splits = {split: np.load(folder / f"{split}.npy") for split in meta["splits"]}
    return PartitionRequest(
        graph=CSCGraph(*columns), undirected=meta["undirected"], num_parts=num_parts, splits=splits, **options
    )


def assign(folder: Path, chosen: str, num_parts: int, result: Path) -> None:
    """Run one of our methods, as NAME[:option=value...], in this process; the parts and the figures go to files."""
    from fastsample_dist.memory_sizes import resident_bytes
    from fastsample_dist.partition.methods.balance import balance_parts
    from fastsample_dist.partition.methods.order import bfs_order

    method_name, options = stream_options(chosen)
    request = request_of(folder, num_parts, passes=options.passes, buffer_bytes=options.buffer, work=result)
    method = method_of(method_name, folder)
    begin, cpu_begin = time.perf_counter(), time.process_time()
    if options.order == "bfs":
        links = method.links_of(request)
        request = replace(request, order=bfs_order(links), stored=links if method.links == "adjacency" else None)
    parts = method.assign(request)
    assigned = time.perf_counter()
    balanced = balance_parts(request, method, parts)
    done, cpu_s = time.perf_counter(), time.process_time() - cpu_begin
    peak = resident_bytes(peak=True)
    np.save(result / "parts.npy", parts)
    figures = {
        "seconds": done - begin,
        "assign_s": assigned - begin,
        "cpu_s": cpu_s,
        "peak_bytes": peak,
        "notes": balanced.notes,
    }
    write_json(result / "figures.json", figures)


def stream_options(chosen: str) -> tuple[str, StreamOptions]:
    """NAME[:option=value...] as (name, options), checked as the command's are."""
    from fastsample_dist.memory_sizes import parse_bytes
    from fastsample_dist.partition.methods.options import StreamOptions

    name, *given = chosen.split(":")
    read = {"passes": int, "order": str, "buffer": parse_bytes}
    pairs = [option.partition("=")[::2] for option in given]
    if unknown := [option for option, _ in pairs if option not in read]:
        raise ValueError(f"{chosen} has the option {unknown[0]!r}; expected {', '.join(read)}.")
    options = StreamOptions(**{option: read[option](value) for option, value in pairs})
    if name != PLANTED:
        options.check(name)
    return name, options


def measure(folder: Path, parts: np.ndarray, num_parts: int) -> dict[str, Any]:
    """Edge cut, and what the parts hold over the mean part."""
    meta = json.loads((folder / "meta.json").read_text())
    indptr, indices = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices"))
    cut = 0
    for lo in range(0, len(indices), CHUNK_EDGES):
        hi = min(lo + CHUNK_EDGES, len(indices))
        dst = np.searchsorted(indptr, np.arange(lo, hi), side="right") - 1
        cut += int((parts[dst] != parts[indices[lo:hi]]).sum())
    held = {"nodes": np.bincount(parts, minlength=num_parts)}
    held["in_edges"] = np.bincount(parts, np.diff(indptr), minlength=num_parts)
    for split in meta["splits"]:
        held[split] = np.bincount(parts[np.load(folder / f"{split}.npy")], minlength=num_parts)
    shares = {name: [float(count.min() / count.mean()), float(count.max() / count.mean())] for name, count in
              held.items()}  # fmt: skip
    counts = {name: [int(count.min()), int(count.max())] for name, count in held.items()}
    return {"cut": cut / max(1, len(indices)), "shares": shares, "counts": counts}


def run(folder: Path, method: str, num_parts: int, args: argparse.Namespace) -> dict[str, object]:
    """One row of the table; a method that fails gives its last line of output instead of figures."""
    with tempfile.TemporaryDirectory(dir=args.work) as result:
        if method == "dgl":
            command = [args.dgl_python, str(REPOSITORY / "benchmarks" / "partition_table_dgl.py"), str(folder), result]
            command += [str(num_parts), *(["metis"] if args.dgl_metis_only else [])]
        elif method.split(":")[0] == HEISTREAM:
            command = [sys.executable, str(REPOSITORY / "benchmarks" / "partition_table_heistream.py")]
            command += [str(heistream_program(args)), str(metis_file(folder)), result, str(num_parts)]
            command += method.split(":")[1:]
        else:
            command = [sys.executable, __file__, "--worker", method, str(folder), result]
            command += ["--num-parts", str(num_parts)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        ended = run_process(command, env=environment, cwd=result)
        if ended.returncode:
            return {"method": method, "num_parts": num_parts, "failed": last_line(ended)}
        figures = json.loads((Path(result) / "figures.json").read_text())
        assigned = Path(result) / "assigned.txt"
        parts = np.loadtxt(assigned, dtype=np.int32) if assigned.exists() else np.load(Path(result) / "parts.npy")
        measured = measure(folder, parts, num_parts)
        if assigned.exists():
            figures["notes"] = [f"levelled as ours are, it cuts {levelled_cut(folder, parts, num_parts):.2%}"]
        return {"method": method, "num_parts": num_parts, **figures, **measured}


def levelled_cut(folder: Path, parts: np.ndarray, num_parts: int) -> float:
    """The edge cut once the parts, which are changed, hold as even shares as those of our methods."""
    from fastsample_dist.partition.methods import METHODS as OURS
    from fastsample_dist.partition.methods.balance import balance_parts

    balance_parts(request_of(folder, num_parts), OURS["metis"], parts)
    return measure(folder, parts, num_parts)["cut"]


def heistream_program(args: argparse.Namespace) -> Path:
    """DIR/heistream of --heistream DIR."""
    program = args.heistream and (args.heistream / HEISTREAM).absolute()
    if not program or not program.is_file():
        raise ValueError(f"method {HEISTREAM} needs --heistream DIR with its program, DIR/{HEISTREAM}; got {program}.")
    return program


def metis_file(folder: Path) -> Path:
    """A graph's adjacency as a METIS file, made on first use."""
    from partition_table_heistream import write_metis

    file = folder / "adjacency.graph"
    if not file.exists():
        write_metis(request_of(folder, 1).adjacency, file)
    return file


def show(meta: dict[str, object], rows: list[dict[str, object]]) -> None:
    """Print a graph's table."""
    print(f"\n{meta['name']}: {meta['nodes']:,} nodes, {meta['edges']:,} edges")
    table = Table(box=MARKDOWN)
    columns = ("parts", "method", "seconds", "CPU s", "peak MB", "edges cut", "nodes", "in-edges", "train nodes")
    for column in columns:
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        if "failed" in row:
            table.add_row(str(row["num_parts"]), row["method"], row["failed"])
            continue
        shares = ["{:.3f} - {:.3f}".format(*row["shares"][name]) for name in ("nodes", "in_edges")]
        train = "{:,} - {:,}".format(*row["counts"]["train"]) if "train" in row["counts"] else "-"
        seconds = f"{row['seconds']:.1f}" + (f" of {row['total_s']:.1f}" if "total_s" in row else "")
        memory = f"{row['peak_bytes'] / 1e6:,.0f}"
        memory += f" of {row['total_peak_bytes'] / 1e6:,.0f}" if "total_peak_bytes" in row else ""
        figures = (seconds, f"{row['cpu_s']:.1f}", memory, f"{row['cut']:.2%}", *shares, train)
        table.add_row(str(row["num_parts"]), row["method"], *figures)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for row in rows:
        for note in row.get("notes", ()):
            print(f"{row['num_parts']} parts, {row['method']}: {note}")


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(
        prog="partition_table.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graph", action="append", metavar="rmat:S:F|planted:N:E:C[:M]|DIR")
    parser.add_argument("--num-parts", default="8", metavar="P[,P...]")
    parser.add_argument(
        "--methods",
        help="of ours, separated by commas, with options such as ldg:order=bfs:passes=3; planted, for graphs with "
        "planted.npy (default: all that work)",
    )
    parser.add_argument("--dgl-python", metavar="PYTHON", help="an interpreter with dgl 1.1.3: its METIS too")
    parser.add_argument("--dgl-metis-only", action="store_true", help="end DGL's call when METIS has finished")
    parser.add_argument("--heistream", type=Path, metavar="DIR", help="for method heistream: has its program")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "fastsample-partition-table")
    add_json(parser)
    parser.add_argument("--worker", nargs=3, metavar=("METHOD", "GRAPH", "RESULT"), help=argparse.SUPPRESS)
    return parser


def methods_for(folder: Path, args: argparse.Namespace) -> list[str]:
    """The methods asked for, or those that are compared by default and exist here; DGL's METIS last."""
    from fastsample_dist.partition.methods import METHODS as OURS

    planted = [PLANTED] if (folder / "planted.npy").is_file() else []
    default = [*(name for name in METHODS if name in OURS), *planted]
    chosen = default if args.methods is None else list(filter(None, args.methods.split(",")))
    return [*chosen, *(["dgl"] if args.dgl_python else [])]


def compare(args: argparse.Namespace) -> tuple[int, dict[str, object]]:
    """Prepare the graphs, run the methods one after another, print; returns (exit status, figures for --json)."""
    if args.worker:
        assign(Path(args.worker[1]), args.worker[0], int(args.num_parts), Path(args.worker[2]))
        return 0, {}
    args.work = args.work.absolute()
    report = {"command": sys.argv[1:], "machine": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
    report["graphs"] = []
    for name in args.graph or ["rmat:17:16"]:
        folder = prepare(name, args.work)
        meta = json.loads((folder / "meta.json").read_text())
        methods = methods_for(folder, args)
        counts = map(int, args.num_parts.split(","))
        rows = [run(folder, method, num_parts, args) for num_parts in counts for method in methods]
        show(meta, rows)
        report["graphs"].append({**meta, "rows": rows})
    return 0, report


if __name__ == "__main__":
    sys.exit(run_command(make_parser(), compare, None))

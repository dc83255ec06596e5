"""Debian's packages as a graph for node classification.

    python examples/debian_graph.py build --packages Packages.xz --sources Sources.xz \
        --translation Translation-en.xz --release InRelease --name debian12-packages --output DIR
    python examples/debian_graph.py pack DIR debian12-packages.tar.xz
    python examples/debian_graph.py unpack examples/data/debian12-packages.tar.xz DIR

`build` reads the indexes that `apt-get update` fetches and writes an `npy` input directory for fastsample-partition:
nodes, edges, labels and splits as debian_index/package_graph.py says, features as debian_index/words.py says. The
task: the Section of a binary package (libs, python, games, ...) from its description and its neighbourhood.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from debian_index import archive, control, package_graph, words

from fastsample_dist.graph.generators import write_npy_graph

SOURCE = (
    "Debian's package index (Packages, Sources and, for long descriptions, Translation-en), as apt-get update reads it"
)
LICENCE = (
    "Debian's package index is freely redistributable; a package's description is under that package's free licence, "
    "of which word statistics are kept here"
)


def build(args: argparse.Namespace) -> str:
    """Build the graph directory that the command line asks for; one line about it."""
    if args.output.exists():
        raise ValueError(f"{args.output} exists; remove it or pass another --output.")
    index = _describe_indexes(args)
    binaries = control.read_binaries(args.packages)
    sources = control.read_sources(args.sources)
    long_texts = control.read_translations(args.translation)
    graph = package_graph.build_graph(binaries, sources)
    labels, classes = package_graph.section_labels(
        graph, binaries, min_packages=args.min_packages, min_sources=args.min_sources
    )
    splits = package_graph.split_by_source(graph, binaries, labels)
    in_order = [binaries[name] for name in graph.binaries]
    rows = words.hashed_tfidf(
        in_order,
        [long_texts.get(binary.description_md5, binary.description) for binary in in_order],
        dim=args.dim,
        banned=words.section_words({binary.section for binary in in_order}),
    )
    features = np.zeros((graph.num_nodes, args.dim), dtype=rows.dtype)
    features[: len(rows)] = rows
    node_type = np.repeat(np.arange(2, dtype=np.uint8), [len(graph.binaries), len(graph.sources)])
    meta = {**_describe_graph(args, graph, classes), "index": index}
    meta["long_descriptions"] = sum(binary.description_md5 in long_texts for binary in in_order)
    write_npy_graph(
        args.output,
        (graph.edge_index, graph.num_nodes),
        name=args.name,
        features=features,
        labels=labels,
        splits=splits,
        undirected=True,
        arrays={"edge_type": graph.edge_type, "node_type": node_type},
        meta=meta,
    )
    names = args.output / "node_names.txt"
    names.write_text("".join(f"{name}\n" for name in graph.binaries + graph.sources), encoding="utf-8")
    sizes = ", ".join(f"{len(ids)} {split}" for split, ids in splits.items())
    return f"{args.output}: {graph.num_nodes} nodes, {len(graph.edge_type)} edges, {len(classes)} classes, {sizes}"


def _describe_graph(args: argparse.Namespace, graph: package_graph.PackageGraph, classes: list[str]) -> dict[str, Any]:
    """What meta.json says about the graph, apart from its size."""
    return {
        "num_classes": len(classes),
        "class_names": classes,
        "node_types": list(package_graph.NODE_TYPES),
        "edge_types": list(package_graph.EDGE_TYPES),
        "edges_per_type": np.bincount(graph.edge_type, minlength=len(package_graph.EDGE_TYPES)).tolist(),
        "relations_left_out": graph.unresolved,
        "label": f"Section of a binary package; -1 for source packages and for sections with fewer than "
        f"{args.min_packages} packages or from fewer than {args.min_sources} source packages",
        "features": f"words of the description without the package's name and without words that name a section, "
        f"tf-idf over source packages, hashed to {args.dim} signed buckets, length 1; zero for source packages",
        "split": "SHA-256 of the source package's name modulo 100: below 60 train, below 80 val, else test",
        "source": SOURCE,
        "licence": LICENCE,
    }


def _describe_indexes(args: argparse.Namespace) -> dict[str, Any]:
    """Which indexes were read: their checksums and, with a Release file, its date and their paths in the archive."""
    given = {"packages": args.packages, "sources": args.sources, "translation": args.translation}
    sums = {kind: [control.index_sha256(path) for path in paths] for kind, paths in given.items()}
    if args.release is None:
        return {"sha256": sums}
    release = control.read_release(args.release)
    for kind, paths in given.items():
        for path, digest in zip(paths, sums[kind], strict=True):
            if digest not in release.files:
                raise ValueError(
                    f"{path} has SHA-256 {digest}, which {args.release} does not list; "
                    "pass the Release file that was fetched together with the indexes."
                )
    files = {release.files[digest]: digest for digests in sums.values() for digest in digests}
    return {**release.fields, "sha256": files}


def _pack(args: argparse.Namespace) -> str:
    digest = archive.pack(args.directory, args.file)
    return f"{args.file}: {args.file.stat().st_size} bytes, SHA-256 {digest}"


def _unpack(args: argparse.Namespace) -> str:
    archive.unpack(args.file, args.directory)
    return f"{args.directory}: unpacked from {args.file}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Debian's packages as a graph for node classification.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("build", help="make an npy directory from package indexes")
    command.set_defaults(run=build)
    for option, required, text in (
        ("packages", True, "Packages index (plain, gz, xz or bz2); repeat for more, newer ones last"),
        ("sources", True, "Sources index; repeat for more, newer ones last"),
        ("translation", False, "Translation-en index: long descriptions for --packages without them"),
    ):
        command.add_argument(f"--{option}", type=Path, action="append", default=[], required=required, help=text)
    command.add_argument("--release", type=Path, help="Release or InRelease of the indexes: checked, its date recorded")
    command.add_argument("--name", default="debian-packages", help="name of the graph (default %(default)s)")
    command.add_argument("--min-packages", type=int, default=100, help="packages a class needs (default %(default)s)")
    command.add_argument("--min-sources", type=int, default=20, help="sources a class needs (default %(default)s)")
    command.add_argument("--dim", type=int, default=128, help="feature buckets (default %(default)s)")
    command.add_argument("--output", type=Path, required=True, help="new directory")
    command = commands.add_parser("pack", help="pack a graph directory into one file")
    command.set_defaults(run=_pack)
    command.add_argument("directory", type=Path)
    command.add_argument("file", type=Path, help="new file, named .tar.xz")
    command = commands.add_parser("unpack", help="unpack a file made by pack")
    command.set_defaults(run=_unpack)
    command.add_argument("file", type=Path)
    command.add_argument("directory", type=Path, help="new directory")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one of the commands; 0, or 1 after one line on stderr."""
    args = _parser().parse_args(argv)
    try:
        print(args.run(args))
    except (ValueError, OSError) as error:
        print(f"debian_graph: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

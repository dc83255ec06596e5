"""`fastsample-partition --repartition PARTS NEW_P --output NEW`: another number of parts, without a new cut.

Part p owns one contiguous range of ids, so parts can be joined with their neighbours and ranges can be cut, and no id
changes. Then the topology does not change either: its files are hard links to the old ones (copies where the file
system has no links), and the samples drawn from both partitions are the same. Only features, labels and splits
are written again, streamed, and the manifest. Their SHA-256 is compared while they are read, so that damage is refused
and not given a new checksum; linked files keep theirs.

    4 -> 2   part q joins the parts q * 2 and q * 2 + 1
    4 -> 8   part p becomes 2 p and 2 p + 1: its range is cut where its train nodes are halved

A cut at one point balances one thing. It is made by train nodes, since a step is as slow as the rank with the most
seeds: when the old parts are within one train node of each other, the new ones are too. Between two train nodes
there is room, and there the cut is put as close to equal numbers of nodes as possible. How even the nodes are in
the end depends on where the train nodes are among the part's ids; the report shows it. Without train nodes the cut
is by nodes. Within an old part the cut follows the ids (node types one after another, original ids inside a type), not
the edges: expect more cut edges than from cutting the graph again.

Clusters stay where parts are joined. A part that is cut would cut its clusters too, so they are left out then, with a
warning; --clusters K makes new ones inside the new parts. With it the number of parts may stay the same: then every
other file is a hard link, and a finished partition gets clusters without being cut or written again.

Where nodes have types, a piece of a part has one range of ids per type, as the part had; a joined part has those of
the parts it joins, one part's after the other's (`type_ranges` of the manifest).
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np

from fastsample_dist.files import naming_file
from fastsample_dist.graph.npy_files import open_npy
from fastsample_dist.graph.npy_stream import NpyStream
from fastsample_dist.graph.storage import (
    CLUSTERS,
    SPLITS,
    Manifest,
    PartitionWriter,
    check_output,
    load_part,
    load_topology,
    part_files,
    read_manifest,
    topology_files,
    verify_files,
)
from fastsample_dist.partition.methods.request import check_num_clusters
from fastsample_dist.partition.plan.disk import HEADER_BYTES
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.report.quality import PartitionQuality, measure_partition
from fastsample_dist.partition.write.clusters import assign_clusters, require_for_clusters
from fastsample_dist.partition.write.disk_space import check_space

logger = logging.getLogger(__name__)

_BY_NODE = ("features", "scales", "labels", "targets")


def repartition(
    path: str | Path,
    num_parts: int,
    output: str | Path,
    *,
    clusters: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PartitionQuality:
    """Write a partition's copy with another number of parts; see the module text.

    Args:
      path: the old partition, with all parts in it; it stays as it is.
      num_parts: number of parts of the new one; divides the old number or is a multiple of it. The same number only
        with clusters.
      output: directory of the new one; appears when complete. On the same file system it shares the topology's bytes
        with the old one; either may be deleted, neither may be edited in place.
      clusters: cut the new parts into so many clusters in all; None: keep those that there are.
      seed: of the clusters.
      overwrite: replace a partition that is there.
      progress: gets the steps "cluster" (with clusters), "repartition" and "measure", and the bytes written.
    Returns:
      The new partition's figures, counted from its files.
    Raises:
      ValueError: no such partition, one that is damaged (by file), a number of parts that does not fit, an output that
        exists or cannot be written, a number of clusters that does not fit.
      ImportError: clusters without METIS.
      OSError: the disk refuses; nothing is left behind.
    """
    progress, source = progress or Progress(), Path(path)
    manifest = read_manifest(source)
    _check_num_parts(source, manifest, num_parts, same=clusters is not None)
    if clusters is not None:
        check_num_clusters(clusters, num_parts, manifest.num_nodes)
        require_for_clusters()
    check_output(output, overwrite)
    if Path(output).resolve() == source.resolve():
        raise ValueError(f"--output {output} is the partition that is read; pass another directory.")
    columns = _columns(source, manifest)
    check_space(output, _bytes_to_write((source, manifest), columns, num_parts, Path(output).absolute().parent))
    if num_parts <= manifest.num_parts:
        ranges = manifest.part_ranges[:: manifest.num_parts // num_parts]
    else:
        ranges = _cut_ranges(source, manifest, num_parts // manifest.num_parts)
    found = None
    if clusters is not None:
        with progress.step("cluster"):
            found = _clusters_of(source, manifest, ranges, clusters, seed)
    with progress.step("repartition"), _Writer(output, overwrite=overwrite) as writer:
        own = [name for part in range(manifest.num_parts) for name in part_files(manifest, part)]
        progress.bytes_total(sum(manifest.files[name]["bytes"] for name in own))
        same = own if num_parts == manifest.num_parts else []
        for name in (*_kept_topology(source, manifest, num_parts, clusters), *same):
            writer.take_over(name, source, manifest)
        if found is not None:
            writer.write(CLUSTERS, found)
        for column in columns if not same else ():
            _rewrite_column(writer, (source, manifest), column, ranges, progress.bytes_done)
        known = {field.name: getattr(manifest, field.name) for field in fields(Manifest)}
        known.update(num_parts=num_parts, part_ranges=tuple(ranges), type_ranges=_type_ranges(manifest, ranges))
        if not same:
            known["stats"] = {**manifest.stats, "repartitioned_from_parts": manifest.num_parts}
        del known["files"], known["version"]
        written = writer.finish(**known)
    with progress.step("measure"):
        return measure_partition(output, written)


def _kept_topology(path: Path, manifest: Manifest, num_parts: int, clusters: int | None) -> list[str]:
    """The topology's files that the new partition has too: all but clusters that would not lie in one part."""
    names = topology_files(manifest)
    if CLUSTERS in names and (clusters is not None or num_parts > manifest.num_parts):
        names.remove(CLUSTERS)
        if clusters is None:
            logger.warning(
                "%s has clusters, which are left out as its parts are cut; pass --clusters for new ones", path
            )
    return names


def _clusters_of(path: Path, manifest: Manifest, ranges: tuple[int, ...], clusters: int, seed: int) -> np.ndarray:
    """int32 [num_nodes]; clusters inside the new parts."""
    parts = np.repeat(np.arange(len(ranges) - 1, dtype=np.int32), np.diff(ranges))
    topology = load_topology(path, manifest)
    return assign_clusters(topology, parts, clusters, undirected=manifest.undirected, seed=seed)


class _Writer(PartitionWriter):
    """A PartitionWriter that takes over files of another partition unchanged."""

    def take_over(self, name: str, source: Path, manifest: Manifest) -> None:
        """Link a file under the same name, or copy and verify it where no link can be made."""
        assert self._partial is not None, "take_over outside the with block"
        target = self._partial / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, target)
        except OSError:  # another file system, or one without links
            with naming_file(target):
                shutil.copyfile(source / name, target)
                verify_files(self._partial, manifest, [name])
                with target.open("rb") as copied:
                    os.fsync(copied.fileno())
        self.files[name] = dict(manifest.files[name])


def _bytes_to_write(old: tuple[Path, Manifest], columns: list[str], num_parts: int, parent: Path) -> int:
    """Bytes of the new files, manifest.json aside; of the topology too where it must be copied."""
    path, manifest = old
    copied = topology_files(manifest) if path.stat().st_dev != parent.stat().st_dev else []
    own = [name for part in range(manifest.num_parts) for name in part_files(manifest, part)]
    headers = HEADER_BYTES * len(columns) * (num_parts - manifest.num_parts)
    return sum(manifest.files[name]["bytes"] for name in (*copied, *own)) + headers


def _check_num_parts(path: Path, manifest: Manifest, num_parts: int, *, same: bool) -> None:
    old = manifest.num_parts
    if num_parts < 1:
        raise ValueError(f"the number of parts is {num_parts}; expected at least 1.")
    if num_parts == old and not same:
        raise ValueError(f"{path} has {old} parts already; pass another number, --clusters, or copy the directory.")
    if old % num_parts and num_parts % old:
        raise ValueError(
            f"{path} has {old} parts, of which {num_parts} cannot be made without cutting the graph again: neither "
            f"number divides the other; take a divisor or a multiple of {old}, or partition with --num-parts "
            f"{num_parts}."
        )


def _columns(path: Path, manifest: Manifest) -> list[str]:
    """Names of the parts' files, the same for every part, after a look at every file's size and header.

    Raises:
      ValueError: a damaged file, a part that lacks one, a file that this release cannot rewrite.
    """
    stems = sorted({Path(name).stem for part in range(manifest.num_parts) for name in part_files(manifest, part)})
    for stem in stems:
        if stem not in (*_BY_NODE, *SPLITS):
            raise ValueError(
                f"{path} has {stem}.npy in its parts, which --repartition does not know; partition the graph again."
            )
        for part in range(manifest.num_parts):
            if f"part-{part}/{stem}.npy" not in manifest.files:
                raise ValueError(f"{path} has no part-{part}/{stem}.npy, which other parts have; run --check on it.")
    load_topology(path, manifest)
    for part in range(manifest.num_parts):
        load_part(path, manifest, part)
    return stems


def _type_ranges(manifest: Manifest, ranges: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The runs of the old partition, cut where the new parts begin."""
    pieces = (
        tuple(np.clip(run, lo, hi).tolist()) for lo, hi in pairwise(ranges) for run in manifest.type_ranges if lo < hi
    )
    return tuple(piece for piece in pieces if piece[0] < piece[-1])


def _cut_ranges(path: Path, manifest: Manifest, pieces: int) -> tuple[int, ...]:
    """Bounds of the parts when every part is cut into `pieces`."""
    bounds = [0]
    for part in range(manifest.num_parts):
        lo, hi = manifest.part_ranges[part : part + 2]
        if hi - lo < pieces:
            raise ValueError(
                f"{path}: part {part} has {hi - lo} nodes, expected at least {pieces} to cut it into {pieces}; "
                "take fewer parts."
            )
        train = load_part(path, manifest, part).splits.get("train")
        if train is not None and len(train) < pieces:
            logger.warning(
                "part %d of %s has %d train nodes for %d new parts, expected at least one each; a rank whose parts "
                "have none takes part in training with empty batches",
                *(part, path, len(train), pieces),
            )
        bounds += cut_points((lo, hi), np.empty(0, np.int64) if train is None else train.numpy(), pieces)
    return tuple(bounds)


def cut_points(owned: tuple[int, int], train: np.ndarray, pieces: int) -> list[int]:
    """Where a range of nodes is cut so that its train nodes are shared out evenly, to within one.

    Args:
      owned: (lo, hi), the range.
      train: int64 [T]; train nodes in it, ascending. Fewer than `pieces`: the cut is by nodes.
      pieces: 1 .. hi - lo.
    Returns:
      The pieces' ends, the last of which is hi. A cut may be anywhere after one train node and up to the next; it
      is put as near to the point of equal nodes as that allows.
    """
    (lo, hi), ends = owned, []
    for piece in range(1, pieces):
        even = lo + piece * (hi - lo) // pieces
        if len(train) >= pieces:
            below = piece * len(train) // pieces  # train nodes before the cut
            even = min(max(even, int(train[below - 1]) + 1), int(train[below]))
        ends.append(even)
    return [*ends, hi]


def _rewrite_column(
    writer: _Writer,
    old: tuple[Path, Manifest],
    column: str,
    ranges: tuple[int, ...],
    on_bytes: Callable[[int], None],
) -> None:
    """Stream one file of all old parts, in the order of ids, into the new parts' files.

    Both partitions keep nodes in the order of ids, so what the parts store is one long column either way, cut at
    different places. The new parts' row counts are known first, since a file begins with its shape.
    """
    path, manifest = old
    names = [f"part-{part}/{column}.npy" for part in range(manifest.num_parts)]
    rows = _verified_rows(path, manifest, names, on_bytes)
    pending = next(rows, None)
    header = open_npy(path / names[0])
    for part, count in enumerate(_row_counts(path, names, column, ranges)):
        with writer.open(f"part-{part}/{column}.npy", header.dtype, (count, *header.shape[1:])) as file:
            while count:
                assert pending is not None, f"{column}: fewer rows than the headers state"
                file.append(pending[:count])
                taken = min(count, len(pending))
                count -= taken
                pending = pending[taken:] if taken < len(pending) else next(rows, None)
    assert pending is None, f"{column}: more rows than the headers state"


def _verified_rows(
    path: Path, manifest: Manifest, names: list[str], on_bytes: Callable[[int], None]
) -> Iterator[np.ndarray]:
    """Rows of several files, one after the other, in chunks; a file's checksum is compared at its end."""
    for name in names:
        stream = NpyStream(path / name)
        for _, rows in stream.chunks():
            yield rows
            on_bytes(rows.nbytes)
        if stream.sha256 != manifest.files[name]["sha256"]:
            raise ValueError(
                f"{path / name} is altered: its SHA-256 is {stream.sha256[:16]}..., the manifest says "
                f"{manifest.files[name]['sha256'][:16]}...; copy it again or partition the graph again."
            )


def _row_counts(path: Path, names: list[str], column: str, ranges: tuple[int, ...]) -> list[int]:
    """Rows of the column in each new part: nodes, or split nodes that fall in its range."""
    if column in _BY_NODE:
        return np.diff(ranges).tolist()
    counts = np.zeros(len(ranges) - 1, dtype=np.int64)
    for name in names:
        counts += np.diff(np.searchsorted(open_npy(path / name), ranges))
    return counts.tolist()


def add_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --repartition; it takes --output, --overwrite, --clusters, --seed and --json as --input does."""
    parser.add_argument(
        "--repartition",
        nargs=2,
        metavar=("PARTS", "NEW_P"),
        help="write PARTS with NEW_P parts to --output: neighbouring parts are joined, or each is cut by its train "
        "nodes; one number of parts must divide the other. Ids and topology stay, samples too. With --input PARTS, "
        "the numbers of parts before and after: --repartition OLD_P NEW_P. With --clusters K they may be equal",
    )

"""`fastsample-partition --check`: does a partition on disk hold together, byte by byte and file by file.

Every file is read once, from front to back, in chunks: its SHA-256 and what its rows must satisfy come from one pass.
Memory: 9 bytes per node for the topology (a mark per original id; orig_ids mapped), 2 per node of a part, and a chunk;
nothing per edge. What is verified:

    manifest     lists the topology and, for every part, the files that the other parts have
    every file   there, of the stated size, type, shape and SHA-256
    indptr       runs from 0 to num_edges and never decreases
    orig_ids     a permutation of 0 .. num_nodes - 1: with the manifest's ranges, every node is owned once; where nodes
                 have types, ascending inside a part's range of each type
    indices      ids in range; every row ascends by original id (the canonical order that sampling relies on); of an
                 undirected graph every edge in both directions, by comparing sums of hashes of (source, destination)
                 and (destination, source)
    edge_map     of a directed graph every place in the input once; of an undirected one one place for both directions
    clusters     every number from 0 to the highest, each in one part; a part's numbers follow those of the part before
    labels       -1 .. num_classes - 1; targets 0, 1 or NaN for multilabel, finite or NaN for regression
    splits       inside the part's range, ascending, without repetition, no node in two; train nodes have a label

A fault found a thousand times in one file is one finding: its first position and how many there are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fastsample_dist.graph.csc import destinations
from fastsample_dist.graph.labels import MULTILABEL
from fastsample_dist.graph.npy_files import drop_pages, open_npy
from fastsample_dist.graph.npy_stream import NpyStream
from fastsample_dist.graph.storage import (
    BFLOAT16,
    BFLOAT16_AS,
    CLUSTERS,
    SPLITS,
    Manifest,
    part_files,
    read_manifest,
    topology_files,
)
from fastsample_dist.partition.progress import Progress

_ID_DTYPES = ("int32", "int64")
_SPLIT_OF_MARK = np.array(["", *SPLITS])
_EDGE_MAP = "topology/edge_map.npy"
_REQUIRED = ("topology/indptr.npy", "topology/indices.npy", "topology/orig_ids.npy")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
      file: path of the file, the partition's directory included.
      position: entry (row) of the file, of the first such fault; None: the file as a whole.
      text: value found and value expected.
      count: how many entries have this fault.
    """

    file: str
    position: int | None
    text: str
    count: int = 1

    def __str__(self) -> str:
        where = self.file if self.position is None else f"{self.file}, entry {self.position}"
        return f"{where}: {self.text}" + (f" (the first of {self.count:,} such entries)" if self.count > 1 else "")


def check_partition(path: str | Path, *, progress: Progress | None = None) -> list[Finding]:
    """Verify a partition.

    Args:
      path: the partition's directory, with all parts in it.
      progress: gets the step "check" and the bytes read.
    Returns:
      What is wrong, in the order of the files; [] for a sound partition. Cost: reads every byte once.
    Raises:
      ValueError: there is no manifest, or it is damaged, foreign or newer: nothing can be checked against it.
    """
    progress = progress or Progress()
    manifest = read_manifest(path)
    check = _Check(Path(path), manifest, progress.bytes_done)
    with progress.step("check"):
        progress.bytes_total(sum(record["bytes"] for record in manifest.files.values()))
        check.run()
    return check.findings


class _Faults:
    """Faults in the entries of one file, the first of each kind kept."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, str]] = {}
        self._counts: dict[str, int] = {}

    def add(self, text: str, first_row: int, bad: np.ndarray, *columns: Sequence[Any]) -> None:
        """Count the entries marked in `bad`, rows first_row ..; {} in the text takes the first one's column values."""
        count = int(np.count_nonzero(bad))
        if not count:
            return
        if text not in self._first:
            index = int(bad.argmax())
            self._first[text] = (first_row + index, text.format(*(column[index] for column in columns)))
        self._counts[text] = self._counts.get(text, 0) + count

    def findings(self, file: str) -> list[Finding]:
        """One finding per kind of fault."""
        return [
            Finding(file=file, position=position, text=text, count=self._counts[kind])
            for kind, (position, text) in self._first.items()
        ]


class _RowOf:
    """Destination of each edge from `first_edge` on: looked up only where a fault is described."""

    def __init__(self, indptr: np.ndarray, first_edge: int) -> None:
        self._indptr, self._first_edge = indptr, first_edge

    def __getitem__(self, index: int) -> int:
        return int(np.searchsorted(self._indptr, self._first_edge + index, side="right")) - 1


class _Check:
    """One run of the checks; `findings` grows."""

    def __init__(self, path: Path, manifest: Manifest, on_bytes: Callable[[int], None]) -> None:
        self.findings: list[Finding] = []
        self._path, self._manifest, self._on_bytes = path, manifest, on_bytes
        self._sound: set[str] = set()  # files whose rows are what they must be (their checksum left aside)

    def run(self) -> None:
        """All checks, in the order of the module text."""
        self._check_listing()
        self._check_offsets()
        self._check_orig_ids()
        self._check_indices()
        edges = (self._manifest.num_edges,)
        self._check_bytes("topology/weights.npy", ("float32", "float64"), edges)
        self._check_edge_map()
        self._check_clusters()
        done = {*_REQUIRED, "topology/weights.npy", _EDGE_MAP, CLUSTERS}
        for part in range(self._manifest.num_parts):
            done |= self._check_part(part)
        for name in self._manifest.files:
            if name not in done:  # of a later release: nothing is known of it but its bytes
                self._check_bytes(name, None, None)

    # ---- files

    def _note(self, name: str, text: str) -> None:
        self.findings.append(Finding(file=str(self._path / name), position=None, text=text))

    def _rows(
        self, name: str, dtypes: tuple[str, ...] | None, shape: tuple[int | None, ...] | None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Rows of a listed file, chunk by chunk, while the file as such is compared with the manifest."""
        record, file = self._manifest.files.get(name), self._path / name
        if record is None:
            return
        if not file.is_file():
            return self._note(name, f"is missing; expected {record['bytes']} bytes")
        size = file.stat().st_size
        if size != record["bytes"]:
            state = "truncated" if size < record["bytes"] else "altered"
            return self._note(name, f"is {state}: it has {size} bytes, the manifest says {record['bytes']}")
        try:
            stream = NpyStream(file)
        except ValueError as error:
            return self._note(name, str(error).removeprefix(f"{file} "))
        if dtypes is not None and not _fits(stream, dtypes, shape):
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            found = f"{stream.dtype.name} of shape {stream.shape}"
            return self._note(name, f"holds {found}; expected {' or '.join(dtypes)} of shape ({wanted})")
        for first_row, rows in stream.chunks():
            yield first_row, rows
            self._on_bytes(rows.nbytes)
        self._sound.add(name)
        if stream.sha256 != record["sha256"]:
            found, expected = stream.sha256[:16], record["sha256"][:16]
            self._note(name, f"is altered: its SHA-256 is {found}..., the manifest says {expected}...")
        return None

    def _check_bytes(self, name: str, dtypes: tuple[str, ...] | None, shape: tuple[int | None, ...] | None) -> None:
        for _ in self._rows(name, dtypes, shape):
            pass  # reading is checking

    def _check_listing(self) -> None:
        manifest = self._manifest
        for name in _REQUIRED:
            if name not in manifest.files:
                self._note("manifest.json", f"does not list {name}, which every partition has")
        parts = range(manifest.num_parts)
        stems = {Path(name).name for part in parts for name in part_files(manifest, part)}
        if (manifest.feature_dim is not None) != ("features.npy" in stems):
            state = "lists no features.npy" if manifest.feature_dim is not None else "lists features.npy"
            self._note("manifest.json", f"{state}, but its feature_dim is {manifest.feature_dim}")
        if manifest.feature_scales and "scales.npy" not in stems:
            self._note("manifest.json", "lists no scales.npy, but its feature_scales is true")
        for part in parts:
            for stem in sorted(stems):
                if f"part-{part}/{stem}" not in manifest.files:
                    self._note("manifest.json", f"does not list part-{part}/{stem}, which another part has")
        owned = {*topology_files(manifest), *(name for part in parts for name in part_files(manifest, part))}
        for name in sorted(set(manifest.files) - owned):
            self._note("manifest.json", f"lists {name}, which belongs to none of the parts 0 to {parts[-1]}")

    # ---- topology

    def _check_offsets(self) -> None:
        name, faults, before = "topology/indptr.npy", _Faults(), 0
        num_nodes, num_edges = self._manifest.num_nodes, self._manifest.num_edges
        for first_row, rows in self._rows(name, ("int64",), (num_nodes + 1,)):
            if first_row == 0:
                faults.add("is {}; expected 0", 0, rows[:1] != 0, rows)
                before = int(rows[0])
            ahead = _shifted(rows, before)
            text = "is {}, below the {} before it; expected offsets that never decrease"
            faults.add(text, first_row, rows < ahead, rows, ahead)
            before = int(rows[-1])
            if first_row + len(rows) == num_nodes + 1:
                text = f"is {{}}; expected {num_edges}, the number of edges"
                faults.add(text, num_nodes, rows[-1:] != num_edges, rows[-1:])
        self._add(name, faults)

    def _check_orig_ids(self) -> None:
        name, num_nodes, faults = "topology/orig_ids.npy", self._manifest.num_nodes, _Faults()
        seen, before = np.zeros(num_nodes, dtype=bool), -1
        typed = bool(self._manifest.node_types)
        starts = np.unique(self._manifest.type_ranges) if typed else np.empty(0, dtype=np.int64)
        for first_row, ids in self._rows(name, ("int64",), (num_nodes,)):
            outside = (ids < 0) | (ids >= num_nodes)
            faults.add(f"is {{}}; expected original ids 0 to {num_nodes - 1}", first_row, outside, ids)
            kept = np.where(outside, 0, ids)
            again = (seen[kept] | ~_first_of_each(ids)) & ~outside
            faults.add("is {}, as an earlier entry is; expected every node once", first_row, again, ids)
            seen[kept[~outside]] = True
            if typed:
                ahead = _shifted(ids, before)
                first, last = np.searchsorted(starts, [first_row, first_row + len(ids)])
                ahead[starts[first:last] - first_row] = -1
                text = "is {} after {}; expected original ids that ascend inside a run of one node type"
                faults.add(text, first_row, (ids < ahead) & ~outside, ids, ahead)
                before = int(ids[-1])
        self._add(name, faults)

    def _check_indices(self) -> None:
        name, num_nodes, faults = "topology/indices.npy", self._manifest.num_nodes, _Faults()
        lookups = ("topology/indptr.npy", "topology/orig_ids.npy")
        ordered = self._sound.issuperset(lookups)  # else rows and original ids are not known
        indptr, orig_ids = (open_npy(self._path / file) for file in lookups) if ordered else (None, None)
        before = -1  # original id of the source of the edge before; -1: none to compare with
        one_way = 0  # hashes of the edges minus hashes of their reverses: 0 when each is the reverse of another
        for first_row, ids in self._rows(name, _ID_DTYPES, (self._manifest.num_edges,)):
            outside = (ids < 0) | (ids >= num_nodes)
            faults.add(f"is source {{}}; expected ids 0 to {num_nodes - 1}", first_row, outside, ids)
            if not ordered:
                continue
            originals = np.where(outside, -1, orig_ids[np.where(outside, 0, ids)])
            ahead = _shifted(originals, before)
            ahead[_row_starts(indptr, first_row, len(ids))] = -1
            text = (
                "is a source with original id {} after one with {}, both of edges into node {}; "
                "expected rows that ascend by original id"
            )
            disorder = (originals < ahead) & ~outside
            faults.add(text, first_row, disorder, originals, ahead, _RowOf(indptr, first_row))
            before = int(originals[-1])
            if self._manifest.undirected:
                one_way += _one_way(ids, destinations(indptr, first_row, len(ids)))
        self._add(name, faults)
        if one_way % 2**64 and name in self._sound:
            text = "lacks the reverse of some edge; the manifest says undirected, expected each in both directions"
            self._note(name, text)

    def _check_edge_map(self) -> None:
        manifest, faults = self._manifest, _Faults()
        undirected, num_edges = manifest.undirected, manifest.num_edges
        end = manifest.stats.get("edges_listed", np.iinfo(np.int64).max) if undirected else num_edges
        lookups = ("topology/indptr.npy", "topology/indices.npy")
        known = self._sound.issuperset(lookups)  # else the ends of an edge are not known
        indptr, indices = (open_npy(self._path / file) for file in lookups) if known else (None, None)
        unpaired = 0  # hashes of places that should cancel out
        for first_row, places in self._rows(_EDGE_MAP, _ID_DTYPES, (num_edges,)):
            outside = (places < 0) | (places >= end)
            faults.add(f"is place {{}}; expected 0 to {end - 1}, a place in the input", first_row, outside, places)
            if not undirected:
                expected = np.arange(first_row, first_row + len(places))
                unpaired += _hash_sum(places, 0) - _hash_sum(expected, 0)
            elif known:
                ends = indices[first_row : first_row + len(places)], destinations(indptr, first_row, len(places))
                unpaired += _one_way_places(*ends, places)
                drop_pages(indices)
        self._add(_EDGE_MAP, faults)
        if unpaired % 2**64 and _EDGE_MAP in self._sound:
            if undirected:
                self._note(_EDGE_MAP, "leads the two directions of some edge to different places; expected one place")
            else:
                self._note(_EDGE_MAP, f"lacks some place of 0 to {num_edges - 1}; expected each once")

    def _check_clusters(self) -> None:
        num_nodes, faults = self._manifest.num_nodes, _Faults()
        ranges = np.asarray(self._manifest.part_ranges)
        seen = np.zeros(num_nodes, dtype=bool)
        first, highest, part = 0, -1, -1  # numbers below `first` are of earlier parts than `part`
        for first_row, rows in self._rows(CLUSTERS, ("int32",), (num_nodes,)):
            bounds = [first_row, *ranges[(ranges > first_row) & (ranges < first_row + len(rows))].tolist()]
            for lo, hi in pairwise([*bounds, first_row + len(rows)]):
                numbers = rows[lo - first_row : hi - first_row]
                owner = int(np.searchsorted(ranges, lo, side="right")) - 1
                first, part = (first, part) if owner == part else (highest + 1, owner)
                outside = (numbers < 0) | (numbers >= num_nodes)
                faults.add(f"is {{}}; expected a cluster, 0 to {num_nodes - 1} at most", lo, outside, numbers)
                text = f"is {{}} in part {part}, but earlier parts have the clusters up to {first - 1}"
                faults.add(text, lo, (numbers < first) & ~outside, numbers)
                seen[numbers[~outside]] = True
                highest = max(highest, int(numbers[~outside].max(initial=-1)))
        self._add(CLUSTERS, faults)
        if CLUSTERS in self._sound and not seen[: highest + 1].all():
            text = f"lacks cluster {int(seen.argmin())}; expected every number from 0 to {highest}"
            self._note(CLUSTERS, text)

    # ---- parts

    def _check_part(self, part: int) -> set[str]:
        """Check one part's files; gives their names."""
        manifest, folder = self._manifest, f"part-{part}"
        lo, hi = manifest.part_ranges[part : part + 2]
        dtype, rows = str(manifest.feature_dtype), (hi - lo, manifest.feature_dim)
        self._check_bytes(f"{folder}/features.npy", (BFLOAT16_AS if dtype == BFLOAT16 else dtype,), rows)
        if manifest.feature_scales:
            self._check_scales(f"{folder}/scales.npy", hi - lo)
        check_labels = self._check_targets if manifest.num_targets else self._check_labels
        labelled = check_labels(f"{folder}/{_label_stem(manifest)}.npy", hi - lo)
        taken = np.zeros(hi - lo, dtype=np.uint8)  # 1 + which split a node is in
        for split in SPLITS:
            self._check_split(f"{folder}/{split}.npy", (lo, hi), taken, labelled if split == "train" else None)
        stems = ("features", *(("scales",) if manifest.feature_scales else ()), _label_stem(manifest), *SPLITS)
        return {f"{folder}/{stem}.npy" for stem in stems}

    def _check_scales(self, name: str, num_nodes: int) -> None:
        faults = _Faults()
        for first_row, scales in self._rows(name, ("float32",), (num_nodes,)):
            bad = ~(np.isfinite(scales) & (scales >= 0))
            faults.add("is {}; expected a scale, finite and not negative", first_row, bad, scales)
        self._add(name, faults)

    def _check_labels(self, name: str, num_nodes: int) -> np.ndarray | None:
        """bool [num_nodes]: which nodes have a label; None when that is not known."""
        num_classes, faults = self._manifest.num_classes, _Faults()
        labelled = np.zeros(num_nodes, dtype=bool)
        for first_row, labels in self._rows(name, ("int64",), (num_nodes,)):
            outside = (labels < -1) | (labels >= num_classes)
            text = f"is {{}}; expected a label -1 (none) or 0 to {num_classes - 1}"
            faults.add(text, first_row, outside, labels)
            labelled[first_row : first_row + len(labels)] = labels >= 0
        self._add(name, faults)
        return labelled if name in self._sound else None

    def _check_targets(self, name: str, num_nodes: int) -> np.ndarray | None:
        """bool [num_nodes]: which nodes have a target that is known; None when that is not known."""
        multilabel, faults = self._manifest.task == MULTILABEL, _Faults()
        expected = "0, 1 or NaN" if multilabel else "finite numbers or NaN"
        labelled = np.zeros(num_nodes, dtype=bool)
        for first_row, rows in self._rows(name, ("float32",), (num_nodes, self._manifest.num_targets)):
            wrong = (rows != 0) & (rows != 1) & ~np.isnan(rows) if multilabel else np.isinf(rows)
            column = wrong.argmax(axis=1)
            text, values = f"is {{}} in column {{}}; expected {expected}", rows[np.arange(len(rows)), column]
            faults.add(text, first_row, wrong.any(axis=1), values, column)
            labelled[first_row : first_row + len(rows)] = ~np.isnan(rows).all(axis=1)
        self._add(name, faults)
        return labelled if name in self._sound else None

    def _check_split(self, name: str, owned: tuple[int, int], taken: np.ndarray, labelled: np.ndarray | None) -> None:
        (lo, hi), faults, before = owned, _Faults(), -1
        mark = 1 + SPLITS.index(Path(name).stem)
        for first_row, ids in self._rows(name, ("int64",), (None,)):
            ahead = _shifted(ids, before)
            text = "is node {} after node {}; expected ascending ids, each once"
            faults.add(text, first_row, ids <= ahead, ids, ahead)
            inside = (ids >= lo) & (ids < hi)
            faults.add(f"is node {{}}; expected nodes of the part, {lo} to {hi - 1}", first_row, ~inside, ids)
            rows = np.flatnonzero(inside)
            own = ids[rows] - lo
            others = np.zeros(len(ids), dtype=np.int64)
            others[rows] = np.where(taken[own] == mark, 0, taken[own])
            text = "is node {}, which is in {}.npy too; expected every node in one split at most"
            faults.add(text, first_row, others > 0, ids, _SPLIT_OF_MARK[others])
            if labelled is not None:
                bare = np.zeros(len(ids), dtype=bool)
                bare[rows] = ~labelled[own]
                faults.add("is node {}, which has no label; expected one for every train node", first_row, bare, ids)
            taken[own] = mark
            before = int(ids[-1])
        self._add(name, faults)

    def _add(self, name: str, faults: _Faults) -> None:
        found = faults.findings(str(self._path / name))
        self.findings += found
        if found:
            self._sound.discard(name)


def _label_stem(manifest: Manifest) -> str:
    return "targets" if manifest.num_targets else "labels"


def _fits(stream: NpyStream, dtypes: tuple[str, ...], shape: tuple[int | None, ...]) -> bool:
    return (
        stream.dtype.name in dtypes
        and stream.dtype.isnative
        and len(stream.shape) == len(shape)
        and all(want in (None, have) for have, want in zip(stream.shape, shape, strict=True))
    )


def _shifted(values: np.ndarray, before: int) -> np.ndarray:
    """The value before each; `before` precedes the first."""
    ahead = np.empty_like(values)
    ahead[1:] = values[:-1]
    ahead[0] = before
    return ahead


def _first_of_each(ids: np.ndarray) -> np.ndarray:
    """bool [n]: which entries are the first with their value."""
    first = np.zeros(len(ids), dtype=bool)
    first[np.unique(ids, return_index=True)[1]] = True
    return first


def _row_starts(indptr: np.ndarray, first_edge: int, count: int) -> np.ndarray:
    """Which of the edges first_edge .. first_edge + count - 1 begin a row, as positions 0 .. count - 1."""
    rows = np.searchsorted(indptr, [first_edge, first_edge + count])
    return indptr[rows[0] : rows[1]] - first_edge


def _one_way(sources: np.ndarray, destinations: np.ndarray) -> int:
    """Sum of the edges' hashes minus that of their reverses; it does not depend on the order of the edges."""
    return _hash_sum(sources, destinations) - _hash_sum(destinations, sources)


def _one_way_places(sources: np.ndarray, destinations: np.ndarray, places: np.ndarray) -> int:
    """Sum of the hashes of (pair of ends, place) over edges in one direction minus that over the other's."""
    pairs = _hashes(np.minimum(sources, destinations), np.maximum(sources, destinations))
    forwards, backwards = sources < destinations, sources > destinations
    return _hash_sum(pairs[forwards], places[forwards]) - _hash_sum(pairs[backwards], places[backwards])


def _hash_sum(first: np.ndarray, second: np.ndarray | int) -> int:
    """Sum of the pairs' hashes."""
    return int(_hashes(first, second).sum(dtype=np.uint64))


def _hashes(first: np.ndarray, second: np.ndarray | int) -> np.ndarray:
    """One 64-bit hash per pair, uint64 [n] (the multipliers and shifts of SplitMix64, by S. Vigna)."""
    mixed = first.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(second).astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def add_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --check to the command's tasks."""
    parser.add_argument(
        "--check",
        metavar="PARTS",
        help="verify a finished partition: checksums, ranges, every node owned once, topology, splits and features in "
        "agreement; one line per finding, exit status 1 when there is any",
    )

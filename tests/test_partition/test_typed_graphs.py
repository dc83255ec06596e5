"""Graphs with node types, from the layout to --check, --inspect and --repartition.

The oracle of the layout is a sort of (part, type, original id) by Python.
"""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import fastsample_dist as fsd
from fastsample_dist.graph import npy_files
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.storage import SPLITS, load_orig_ids, load_part, read_manifest
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.report.check import check_partition
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.partition.write.repartition import repartition
from fastsample_dist.partition.write.writer import Relabelling
from tests.graph.inputs.layouts import TYPED
from tests.graph.inputs.test_layouts import SEVERAL_TYPES
from tests.test_partition.damage import entry, rewrite, rewrite_manifest
from tests.test_partition.inputs import draw_raw, write_input
from tests.test_partition.test_on_disk import contents

NAMES = ("author", "paper", "venue")


def draw_typed(num_nodes: int = 60, names: tuple[str, ...] = NAMES, **drawn: object) -> RawGraph:
    """Types are mixed over the ids, and of different number: two in three nodes are of the second type."""
    raw = draw_raw(undirected=True, num_nodes=num_nodes, **drawn)
    node_type = np.array([1, 0, 1, 2, 1, 1])[np.arange(num_nodes) * 5 % 6].astype(np.uint8) % len(names)
    labels = np.maximum(raw.labels, 0)
    return dataclasses.replace(raw, labels=labels, node_types=names, node_type=node_type)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Three parts."""
    build_partition(draw_typed(), PartitionOptions(num_parts=3, method="random"), tmp_path / "parts")
    return tmp_path / "parts"


def types_by_ranges(path: Path) -> np.ndarray:
    """Type of every node of a partition, as its ranges say."""
    manifest = read_manifest(path)
    return np.concatenate([np.repeat(np.arange(len(ends) - 1), np.diff(ends)) for ends in manifest.type_ranges])


# ---- the layout


@pytest.mark.parametrize("num_parts, num_types", [(1, 1), (3, 4), (5, 1), (300, 300)])
@pytest.mark.parametrize("chunk_bytes", [1 << 24, 70])
def test_nodes_are_numbered_by_part_type_and_original_id(num_parts, num_types, chunk_bytes, monkeypatch):
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", chunk_bytes)
    rng = np.random.default_rng(0)
    parts, node_type = rng.integers(0, num_parts, 700, dtype=np.int32), rng.integers(0, num_types, 700, dtype=np.int16)
    labelling = Relabelling.from_parts(parts, num_parts, node_type, num_types)
    wanted = sorted(range(700), key=lambda node: (parts[node], node_type[node], node))
    assert labelling.orig_ids.tolist() == wanted
    assert labelling.new_ids[labelling.orig_ids].tolist() == list(range(700))
    for part in range(num_parts):
        assert labelling.part_ranges[part] == labelling.type_ranges[part][0]
        assert labelling.part_ranges[part + 1] == labelling.type_ranges[part][-1]
        for kind, (lo, hi) in enumerate(pairwise(labelling.type_ranges[part])):
            assert labelling.orig_ids[lo:hi].tolist() == np.flatnonzero((parts == part) & (node_type == kind)).tolist()


@pytest.mark.parametrize("method", ["metis", "random", "ldg"])
def test_ranges_tell_every_nodes_type(tmp_path, method):
    raw = draw_typed()
    build_partition(raw, PartitionOptions(num_parts=3, method=method), tmp_path / "parts")
    manifest = read_manifest(tmp_path / "parts")
    assert manifest.node_types == NAMES
    orig_ids = load_orig_ids(tmp_path / "parts", manifest).numpy()
    assert types_by_ranges(tmp_path / "parts").tolist() == raw.node_type[orig_ids].tolist()


def test_columns_follow_their_nodes(parts):
    raw, manifest = draw_typed(), read_manifest(parts)
    orig_ids = load_orig_ids(parts, manifest).numpy()
    for part, (lo, hi) in enumerate(pairwise(manifest.part_ranges)):
        loaded = load_part(parts, manifest, part)
        np.testing.assert_array_equal(loaded.features.numpy(), raw.features[orig_ids[lo:hi]])
        assert loaded.labels.tolist() == raw.labels[orig_ids[lo:hi]].tolist()
        for split in SPLITS:
            assert loaded.splits[split].tolist() == sorted(loaded.splits[split].tolist())
            assert set(orig_ids[loaded.splits[split]]) == set(raw.splits[split]) & set(orig_ids[lo:hi])


def test_cutting_on_disk_gives_the_same_bytes(tmp_path):
    for on_disk in (False, True):
        options = PartitionOptions(num_parts=3, method="random", on_disk=on_disk)
        build_partition(draw_typed(300), options, tmp_path / f"parts-{on_disk}")
    assert contents(tmp_path / "parts-True") == contents(tmp_path / "parts-False")


def test_one_type_changes_nothing_but_the_manifest(tmp_path):
    raw = draw_typed(names=("paper",))
    for name, given in (("typed", raw), ("plain", dataclasses.replace(raw, node_types=(), node_type=None))):
        build_partition(given, PartitionOptions(num_parts=2, method="random"), tmp_path / name)
    assert read_manifest(tmp_path / "typed").files == read_manifest(tmp_path / "plain").files
    assert read_manifest(tmp_path / "typed").node_types == ("paper",)


def test_input_directory_and_arrays_give_the_same_partition(tmp_path):
    raw = draw_typed()
    graph = write_input(tmp_path / "graph", raw)
    argv = ["--input", graph, "--num-parts", 2, "--method", "random", "--output", tmp_path / "from-files"]
    assert main([str(item) for item in argv]) == 0
    columns = {"features": raw.features, "labels": raw.labels, "splits": raw.splits}
    facts = {"name": "drawn", "undirected": True, "node_type": raw.node_type, "node_types": NAMES}
    kwargs = {**columns, **facts, "num_parts": 2, "method": "random"}
    fsd.partition_graph(raw.edge_index, **kwargs, output=tmp_path / "from-arrays")
    assert contents(tmp_path / "from-arrays") == contents(tmp_path / "from-files")


@pytest.mark.parametrize("layout", SEVERAL_TYPES)
def test_types_of_every_input_format_reach_the_partition(tmp_path, layout):
    graph = SEVERAL_TYPES[layout][1](tmp_path / "tiny", TYPED)
    argv = ["--input", graph, "--num-parts", 2, "--method", "random", "--output", tmp_path / "parts"]
    assert main([str(item) for item in argv]) == 0
    manifest = read_manifest(tmp_path / "parts")
    assert manifest.node_types == tuple(TYPED.counts)
    wanted = np.repeat(np.arange(len(TYPED.counts)), list(TYPED.counts.values()))
    assert types_by_ranges(tmp_path / "parts").tolist() == wanted[load_orig_ids(tmp_path / "parts", manifest)].tolist()


# ---- --check and --inspect


def test_typed_partition_is_sound(parts, monkeypatch):
    assert check_partition(parts) == []
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", 40)
    assert check_partition(parts) == []


@pytest.mark.parametrize("chunk_bytes", [1 << 24, 40])
def test_range_that_ends_too_late_is_found(parts, monkeypatch, chunk_bytes):
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", chunk_bytes)
    ranges = read_manifest(parts).type_ranges
    first, second = ranges[1][1:3]
    moved = (ranges[0], (ranges[1][0], first + 3, *ranges[1][2:]), ranges[2])
    rewrite_manifest(parts, type_ranges=moved)
    orig_ids = np.load(parts / "topology/orig_ids.npy")
    assert orig_ids[first] < orig_ids[first - 1] and first + 3 < second
    text = f"entry {first}: is {orig_ids[first]} after {orig_ids[first - 1]}; expected original ids that ascend inside"
    assert [text in str(finding) for finding in check_partition(parts)] == [True]


def test_nodes_of_a_type_out_of_order_are_found(parts):
    orig_ids = np.load(parts / "topology/orig_ids.npy")
    lo = read_manifest(parts).type_ranges[2][1]
    rewrite(parts, "topology/orig_ids.npy", entry(slice(lo, lo + 2), orig_ids[[lo + 1, lo]]))
    assert any(f"entry {lo + 1}: is {orig_ids[lo]} after {orig_ids[lo + 1]}" in str(f) for f in check_partition(parts))


def test_inspect_counts_nodes_by_type_and_part(parts, tmp_path, capsys):
    assert main(["--inspect", str(parts), "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["node_types"] == list(NAMES)
    manifest, node_type = read_manifest(parts), draw_typed().node_type
    orig_ids = load_orig_ids(parts, manifest).numpy()
    for part, (lo, hi) in enumerate(pairwise(manifest.part_ranges)):
        counts = np.bincount(node_type[orig_ids[lo:hi]], minlength=3).tolist()
        assert report["parts"][part]["node_types"] == dict(zip(NAMES, counts, strict=True))
    out = capsys.readouterr().out
    assert "nodes by type: author 10, paper 40, venue 10\n  part 0: author " in out


# ---- --repartition


@pytest.mark.parametrize("num_parts", [6, 12])
def test_cut_parts_keep_their_types_together(parts, tmp_path, num_parts):
    repartition(parts, num_parts, tmp_path / "new")
    assert check_partition(tmp_path / "new") == []
    assert read_manifest(tmp_path / "new").node_types == NAMES
    assert types_by_ranges(tmp_path / "new").tolist() == types_by_ranges(parts).tolist()


@pytest.mark.parametrize("num_parts", [1, 3])
def test_joined_parts_keep_the_ranges_of_types_of_those_they_join(parts, tmp_path, num_parts):
    repartition(parts, 6, tmp_path / "cut")
    repartition(tmp_path / "cut", num_parts, tmp_path / "new")
    assert check_partition(tmp_path / "new") == []
    assert read_manifest(tmp_path / "new").type_ranges == read_manifest(tmp_path / "cut").type_ranges
    assert types_by_ranges(tmp_path / "new").tolist() == types_by_ranges(parts).tolist()


def test_inspect_counts_the_types_of_joined_parts(parts, tmp_path):
    quality = repartition(parts, 1, tmp_path / "new")
    counts = np.bincount(draw_typed().node_type, minlength=3).tolist()
    assert [part.node_types for part in quality.parts] == [dict(zip(NAMES, counts, strict=True))]


def test_pieces_of_a_part_are_joined_again(parts, tmp_path):
    repartition(parts, 12, tmp_path / "cut")
    repartition(tmp_path / "cut", 3, tmp_path / "joined")
    old, new = read_manifest(parts), read_manifest(tmp_path / "joined")
    assert (old.part_ranges, old.files) == (new.part_ranges, new.files)

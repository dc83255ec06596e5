"""--check: a sound partition has no finding, and each thing that is damaged has one that names its file and entry."""

import argparse
import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph import npy_files
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.partition.cli_tasks import run_check as run
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.report.check import add_options, check_partition
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from tests.test_partition.damage import entry, rewrite, rewrite_manifest
from tests.test_partition.inputs import NUM_CLASSES, NUM_NODES, draw_raw


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = tmp_path_factory.mktemp("template") / "parts"
    raw = draw_raw(undirected=False, weighted=True)
    raw.labels[raw.splits["train"]] = 1
    build_partition(raw, PartitionOptions(num_parts=3, method="random"), parts)
    return parts


@pytest.fixture
def parts(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "parts")


@pytest.fixture(params=["one chunk", "many chunks"])
def chunked(request, monkeypatch):
    """Run the test twice: with files read whole, and with 5 int64 at a time."""
    if request.param == "many chunks":
        monkeypatch.setattr(npy_files, "CHUNK_BYTES", 40)


def only_finding(parts: Path) -> str:
    findings = check_partition(parts)
    assert len(findings) == 1, "\n".join(map(str, findings))
    return str(findings[0])


def test_sound_partition_has_no_finding(parts, chunked):
    assert check_partition(parts) == []


@pytest.mark.parametrize("num_parts, undirected", [(1, True), (2, True), (7, False)])
def test_whatever_the_partitioner_writes_is_sound(tmp_path, num_parts, undirected):
    raw = draw_raw(undirected=undirected)
    raw.labels[:] = np.maximum(raw.labels, 0)
    build_partition(raw, PartitionOptions(num_parts=num_parts, method="random"), tmp_path / "parts")
    assert check_partition(tmp_path / "parts") == []


def test_topology_without_features_labels_and_splits_is_sound(tmp_path):
    raw = draw_raw(undirected=True)
    raw = type(raw)(name="bare", num_nodes=raw.num_nodes, undirected=True, edge_index=raw.edge_index)
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    assert check_partition(tmp_path / "parts") == []


def test_memory_is_a_chunk_and_something_per_node_whatever_the_edges(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    raw = RawGraph(
        name="dense",
        num_nodes=1000,
        undirected=False,
        edge_index=rng.integers(0, 1000, (2, 500_000)),
        features=rng.random((1000, 512), dtype=np.float32),
    )
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    size = sum(record["bytes"] for record in read_manifest(tmp_path / "parts").files.values())
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", 1 << 14)
    tracemalloc.start()
    findings = check_partition(tmp_path / "parts")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert findings == [] and peak < 500_000 < 4_000_000 < size


def test_features_in_bfloat16_are_checked_as_the_bits_they_are_stored_as(parts):
    for part in range(3):
        rewrite(parts, f"part-{part}/features.npy", lambda rows: (rows.view(np.int32) >> 16).astype(np.int16))
    rewrite_manifest(parts, feature_dtype="bfloat16")
    assert check_partition(parts) == []
    rewrite(parts, "part-1/features.npy", lambda rows: rows.astype(np.float32))
    assert "holds float32 of shape (20, 3); expected int16 of shape (20, 3)" in only_finding(parts)


def test_scales_are_checked(tmp_path):
    options = PartitionOptions(num_parts=2, method="random", feature_dtype="int8")
    raw = draw_raw(undirected=False)
    raw.labels[raw.splits["train"]] = 1
    build_partition(raw, options, tmp_path / "parts")
    assert check_partition(tmp_path / "parts") == []
    rewrite(tmp_path / "parts", "part-1/scales.npy", entry(3, -1))
    assert "part-1/scales.npy, entry 3: is -1.0; expected a scale, finite and not negative" in only_finding(
        tmp_path / "parts"
    )


# ---- bytes


ALL_FILES = [
    *(f"topology/{name}.npy" for name in ("indptr", "indices", "weights", "orig_ids")),
    *(f"part-1/{name}.npy" for name in ("features", "labels", "train", "val", "test")),
]


@pytest.mark.parametrize("name", ALL_FILES)
def test_missing_file_is_named(parts, name):
    (parts / name).unlink()
    assert f"{parts / name}: is missing; expected " in only_finding(parts)


@pytest.mark.parametrize("name", ALL_FILES)
def test_truncated_file_is_named(parts, name):
    os.truncate(parts / name, (parts / name).stat().st_size - 3)
    assert f"{parts / name}: is truncated: it has " in only_finding(parts)


@pytest.mark.parametrize("name", ["topology/weights.npy", "part-1/features.npy"])
def test_one_altered_byte_is_found_by_the_checksum(parts, name):
    data = bytearray((parts / name).read_bytes())
    data[-2] ^= 1
    (parts / name).write_bytes(data)
    assert f"{parts / name}: is altered: its SHA-256 is " in only_finding(parts)


def test_several_damaged_files_are_all_named(parts):
    for name in ALL_FILES:
        (parts / name).unlink()
    assert {finding.file for finding in check_partition(parts)} == {str(parts / name) for name in ALL_FILES}


def test_damaged_manifest_is_refused(parts):
    text = (parts / "manifest.json").read_text()
    (parts / "manifest.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        check_partition(parts)


# ---- headers and rows


@pytest.mark.parametrize(
    "name, change, text",
    [
        ("topology/indptr.npy", lambda a: a[:-1], f"holds int64 of shape ({NUM_NODES},); expected int64 of shape"),
        ("topology/indices.npy", lambda a: a.astype(np.float32), "holds float32 of shape"),
        ("topology/weights.npy", lambda a: a[:-1], "expected float32 or float64 of shape"),
        ("part-0/features.npy", lambda a: a[:-1], "expected float32 of shape (20, 3)"),
        ("part-0/features.npy", lambda a: a.astype(np.float16), "holds float16 of shape (20, 3)"),
        ("part-0/labels.npy", lambda a: np.append(a, 0), "holds int64 of shape (21,); expected int64 of shape (20)"),
        ("part-0/train.npy", lambda a: a[:, None], "expected int64 of shape (any)"),
        ("part-0/features.npy", np.asfortranarray, "is stored column by column"),
    ],
)
def test_file_of_another_shape_or_type_is_named(parts, name, change, text):
    rewrite(parts, name, change)
    found = only_finding(parts)
    assert found.startswith(f"{parts / name}: ") and text in found


def test_file_that_is_no_npy_is_named(parts):
    rewrite(parts, "part-2/val.npy", lambda ids: ids)
    (parts / "part-2/val.npy").write_bytes(b"x" * (parts / "part-2/val.npy").stat().st_size)
    assert f"{parts / 'part-2/val.npy'}: is not a readable .npy file" in only_finding(parts)


# ---- topology


def test_decreasing_offset_is_found(parts, chunked):
    indptr = np.load(parts / "topology/indptr.npy")
    rewrite(parts, "topology/indptr.npy", entry(30, 0))
    expected = f"indptr.npy, entry 30: is 0, below the {indptr[29]} before it; expected offsets that never decrease"
    assert expected in only_finding(parts)


def test_offsets_that_do_not_begin_at_0_are_found(parts, chunked):
    rewrite(parts, "topology/indptr.npy", entry(0, -4))
    assert "indptr.npy, entry 0: is -4; expected 0" in only_finding(parts)


def test_offsets_that_do_not_end_at_num_edges_are_found(parts, chunked):
    rewrite(parts, "topology/indptr.npy", entry(-1, 1000))
    assert f"indptr.npy, entry {NUM_NODES}: is 1000; expected 240, the number of edges" in only_finding(parts)


@pytest.mark.parametrize("value", [-1, NUM_NODES])
def test_source_out_of_range_is_found(parts, chunked, value):
    rewrite(parts, "topology/indices.npy", entry(77, value))
    assert f"indices.npy, entry 77: is source {value}; expected ids 0 to {NUM_NODES - 1}" in only_finding(parts)


def test_sources_out_of_range_are_one_finding_with_their_number(parts, chunked):
    rewrite(parts, "topology/indices.npy", lambda ids: np.where(np.arange(len(ids)) % 50 == 9, 99, ids))
    assert only_finding(parts).endswith("entry 9: is source 99; expected ids 0 to 59 (the first of 5 such entries)")


def test_row_out_of_canonical_order_is_found(parts, chunked):
    """Every place where swapping two neighbours of a row changes its order by original id, one after another."""
    orig_ids, indptr, indices = (np.load(parts / f"topology/{name}.npy") for name in ("orig_ids", "indptr", "indices"))
    row_of = np.repeat(np.arange(NUM_NODES), np.diff(indptr))
    swaps = np.flatnonzero((row_of[1:] == row_of[:-1]) & (indices[1:] != indices[:-1]))
    assert len(swaps) > 100
    for first in swaps[::9]:
        swapped = indices.copy()
        swapped[[first, first + 1]] = indices[[first + 1, first]]
        rewrite(parts, "topology/indices.npy", lambda _, swapped=swapped: swapped)
        low, high = orig_ids[indices[first]], orig_ids[indices[first + 1]]
        text = f"is a source with original id {low} after one with {high}, both of edges into node {row_of[first]}"
        assert any(f"entry {first + 1}: {text}" in str(finding) for finding in check_partition(parts))


def test_rows_sorted_by_new_id_are_found(parts):
    indptr = np.load(parts / "topology/indptr.npy")

    def sort_rows(indices: np.ndarray) -> np.ndarray:
        return np.concatenate([np.sort(row) for row in np.split(indices, indptr[1:-1])])

    rewrite(parts, "topology/indices.npy", sort_rows)
    assert "expected rows that ascend by original id" in only_finding(parts)


@pytest.mark.parametrize("edge", [0, 100, -1])
def test_edge_of_an_undirected_graph_without_its_reverse_is_found(tmp_path, chunked, edge):
    """A source becomes another one that leaves the row in order."""
    parts = tmp_path / "parts"
    raw = draw_raw(undirected=True)
    raw.labels[:] = 0
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), parts)
    orig_ids, indptr, indices = (np.load(parts / f"topology/{name}.npy") for name in ("orig_ids", "indptr", "indices"))
    edge %= len(indices)
    row = int(np.searchsorted(indptr, edge, side="right")) - 1
    originals = orig_ids[indices[indptr[row] : indptr[row + 1]]]
    low, high = np.r_[-1, originals, NUM_NODES][[edge - indptr[row], edge - indptr[row] + 2]]
    others = [value for value in range(low + 1, high) if value != orig_ids[indices[edge]]]
    rewrite(parts, "topology/indices.npy", entry(edge, int(np.flatnonzero(orig_ids == others[0])[0])))
    assert "indices.npy: lacks the reverse of some edge; the manifest says undirected" in only_finding(parts)


@pytest.mark.parametrize("value", [-1, NUM_NODES])
def test_original_id_out_of_range_is_found(parts, chunked, value):
    rewrite(parts, "topology/orig_ids.npy", entry(33, value))
    assert f"orig_ids.npy, entry 33: is {value}; expected original ids 0 to {NUM_NODES - 1}" in only_finding(parts)


@pytest.mark.parametrize("distance", [1, 30])
def test_node_owned_twice_is_found(parts, chunked, distance):
    orig_ids = np.load(parts / "topology/orig_ids.npy")
    rewrite(parts, "topology/orig_ids.npy", entry(40, orig_ids[40 - distance]))
    expected = f"orig_ids.npy, entry 40: is {orig_ids[40 - distance]}, as an earlier entry is; expected every node once"
    assert expected in only_finding(parts)


# ---- parts


@pytest.mark.parametrize("value", [-2, NUM_CLASSES])
def test_label_outside_the_classes_is_found(parts, chunked, value):
    rewrite(parts, "part-2/labels.npy", entry(11, value))
    assert f"labels.npy, entry 11: is {value}; expected a label -1 (none) or 0 to 3" in only_finding(parts)


def test_train_node_without_a_label_is_found(parts, chunked):
    train = np.load(parts / "part-1/train.npy")
    rewrite(parts, "part-1/labels.npy", entry(train[3] - 20, -1))
    assert f"train.npy, entry 3: is node {train[3]}, which has no label" in only_finding(parts)


def test_split_node_of_another_part_is_found(parts, chunked):
    rewrite(parts, "part-1/val.npy", entry(-1, 40))
    val = np.load(parts / "part-1/val.npy")
    assert f"val.npy, entry {len(val) - 1}: is node 40; expected nodes of the part, 20 to 39" in only_finding(parts)


def test_split_that_does_not_ascend_is_found(parts, chunked):
    train = np.load(parts / "part-0/train.npy")
    rewrite(parts, "part-0/train.npy", lambda ids: np.r_[ids[:4], ids[5], ids[4], ids[6:]])
    assert f"train.npy, entry 5: is node {train[4]} after node {train[5]}" in only_finding(parts)


def test_split_node_listed_twice_is_found(parts, chunked):
    train = np.load(parts / "part-0/train.npy")
    rewrite(parts, "part-0/train.npy", lambda ids: np.r_[ids[:5], ids[4], ids[5:]])
    assert f"train.npy, entry 5: is node {train[4]} after node {train[4]}" in only_finding(parts)


def test_node_in_two_splits_is_found(parts, chunked):
    train, test = (np.load(parts / f"part-0/{split}.npy") for split in ("train", "test"))
    merged = np.sort(np.append(test, train[2]))
    rewrite(parts, "part-0/test.npy", lambda _: merged)
    position = np.searchsorted(merged, train[2])
    assert f"test.npy, entry {position}: is node {train[2]}, which is in train.npy too" in only_finding(parts)


def test_faults_of_several_kinds_in_one_file_are_all_found(parts):
    rewrite(parts, "part-1/train.npy", lambda ids: np.r_[59, ids[1], ids[1], ids[3:]])
    positions = [(finding.position, finding.text.split(";")[0]) for finding in check_partition(parts)]
    assert [position for position, _ in positions] == [1, 0]


# ---- the manifest against the files


def test_part_that_lacks_what_others_have_is_found(parts):
    files = dict(read_manifest(parts).files)
    del files["part-1/labels.npy"]
    rewrite_manifest(parts, files=files)
    assert "manifest.json: does not list part-1/labels.npy, which another part has" in only_finding(parts)


def test_manifest_without_a_topology_file_is_found(parts):
    files = dict(read_manifest(parts).files)
    del files["topology/orig_ids.npy"]
    rewrite_manifest(parts, files=files)
    assert "manifest.json: does not list topology/orig_ids.npy" in only_finding(parts)


def test_features_that_the_manifest_does_not_state_are_found(parts):
    rewrite_manifest(parts, feature_dim=None)
    texts = [str(finding) for finding in check_partition(parts)]
    assert "manifest.json: lists features.npy, but its feature_dim is None" in texts[0]


def test_files_of_a_part_that_does_not_exist_are_found(parts):
    files = dict(read_manifest(parts).files)
    shutil.copytree(parts / "part-1", parts / "part-3")
    files["part-3/labels.npy"] = files["part-1/labels.npy"]
    rewrite_manifest(parts, files=files)
    assert "lists part-3/labels.npy, which belongs to none of the parts 0 to 2" in only_finding(parts)


def test_wrong_part_ranges_are_found_by_the_parts(parts):
    rewrite_manifest(parts, part_ranges=(0, 19, 40, 60))
    files = {finding.file for finding in check_partition(parts)}
    assert {str(parts / f"part-{part}/labels.npy") for part in (0, 1)} <= files


# ---- the command


def parse(*argv: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args([str(item) for item in argv])


def test_command_says_sound_and_ends_with_0(parts, capsys):
    status, report = run(parse("--check", parts), Progress())
    output = capsys.readouterr()
    assert (status, report["findings"], output.err) == (0, [], "")
    assert f"{parts}: sound (3 parts, 19 files, " in output.out


def test_command_prints_a_line_per_finding_and_ends_with_1(parts, capsys):
    (parts / "part-0/val.npy").unlink()
    rewrite(parts, "part-2/labels.npy", entry(0, 9))
    status, report = run(parse("--check", parts), Progress())
    output = capsys.readouterr()
    assert status == 1 and len(report["findings"]) == 2
    lines = output.out.splitlines()
    assert [line.split(": ")[0] for line in lines[:2]] == [
        str(parts / "part-0/val.npy"),
        f"{parts / 'part-2/labels.npy'}, entry 0",
    ]
    assert report["findings"][1]["position"] == 0
    assert len(lines) == 3 and lines[2].startswith(f"{parts}: 2 findings")


def test_progress_counts_the_bytes_of_the_rows(parts):
    class Recorder(Progress):
        total, done = 0, 0

        def bytes_total(self, count: int) -> None:
            self.total += count

        def bytes_done(self, count: int) -> None:
            self.done += count

    recorder = Recorder()
    check_partition(parts, progress=recorder)
    headers = sum(np.load(file, mmap_mode="r").offset for file in parts.rglob("*.npy"))
    assert recorder.total == recorder.done + headers

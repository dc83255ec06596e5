"""Format version 1: what is written is what is read, and whatever is damaged is refused by name."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.graph import storage
from fastsample_dist.graph.storage import (
    Manifest,
    PartitionWriter,
    load_part,
    load_topology,
    read_manifest,
    verify_files,
)

# 5 nodes: part 0 owns 0, 1, 2 and part 1 owns 3, 4. Rows by ascending original id of the source.
FILES = {
    "topology/indptr.npy": np.array([0, 2, 2, 3, 6, 7]),
    "topology/indices.npy": np.array([1, 4, 0, 1, 3, 2, 0], dtype=np.int32),
    "topology/weights.npy": np.arange(7, dtype=np.float32) / 4,
    "topology/orig_ids.npy": np.array([1, 0, 4, 2, 3]),
    "part-0/features.npy": np.arange(6, dtype=np.float16).reshape(3, 2),
    "part-0/labels.npy": np.array([0, -1, 2]),
    "part-0/train.npy": np.array([0, 2]),
    "part-0/val.npy": np.array([1]),
    "part-1/features.npy": np.arange(6, 10, dtype=np.float16).reshape(2, 2),
    "part-1/labels.npy": np.array([1, 1]),
    "part-1/train.npy": np.array([3]),
    "part-1/val.npy": np.empty(0, dtype=np.int64),
}
FIELDS = {
    "name": "tiny",
    "num_nodes": 5,
    "num_edges": 7,
    "num_parts": 2,
    "part_ranges": (0, 3, 5),
    "feature_dim": 2,
    "feature_dtype": "float16",
    "num_classes": 3,
    "method": "random",
    "seed": 7,
    "undirected": False,
    "stats": {"train_nodes_moved": 0},
}


def write_parts(path: Path, files: dict[str, np.ndarray] = FILES, overwrite: bool = False, **fields: object) -> Path:
    with PartitionWriter(path, overwrite=overwrite) as writer:
        for name, array in files.items():
            writer.write(name, array)
        writer.finish(**{**FIELDS, **fields})
    return path


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parts(tmp_path_factory.mktemp("template") / "parts")


@pytest.fixture
def parts(template: Path, tmp_path: Path) -> Path:
    """A partition of the test's own: a copy, since writing one waits for the disk."""
    return shutil.copytree(template, tmp_path / "parts")


def load_everything(path: Path) -> None:
    """Open every file of a partition the way a job does."""
    manifest = read_manifest(path)
    load_topology(path, manifest)
    for part in range(manifest.num_parts):
        load_part(path, manifest, part)


def edit_manifest(path: Path, **changes: object) -> None:
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# ---- what is written is what is read


def test_directory_holds_the_files_of_the_format_and_no_others(parts):
    found = {str(file.relative_to(parts)) for file in parts.rglob("*") if file.is_file()}
    assert found == {*FILES, "manifest.json"}


@pytest.mark.parametrize("name", FILES)
def test_files_are_plain_npy(parts, name):
    stored = np.load(parts / name)
    assert stored.dtype == FILES[name].dtype
    np.testing.assert_array_equal(stored, FILES[name])


def test_manifest_comes_back_as_written(parts):
    manifest = read_manifest(parts)
    assert {key: getattr(manifest, key) for key in FIELDS} == FIELDS
    assert manifest.version == 1


def test_manifest_states_size_and_sha256_of_every_file(parts):
    expected = {
        name: {
            "bytes": (parts / name).stat().st_size,
            "sha256": hashlib.sha256((parts / name).read_bytes()).hexdigest(),
        }
        for name in FILES
    }
    assert read_manifest(parts).files == expected


def test_manifest_has_sorted_keys(parts):
    text = (parts / "manifest.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"


def test_same_content_gives_the_same_bytes(parts, tmp_path):
    again = write_parts(tmp_path / "again", dict(reversed(FILES.items())))
    for name in (*FILES, "manifest.json"):
        assert (again / name).read_bytes() == (parts / name).read_bytes(), name


def test_topology_equals_the_arrays(parts):
    graph = load_topology(parts, read_manifest(parts))
    for field in ("indptr", "indices", "weights", "orig_ids"):
        stored = FILES[f"topology/{field}.npy"]
        assert torch.equal(getattr(graph, field), torch.from_numpy(stored)), field


def test_topology_without_weights_has_none(tmp_path):
    files = {name: array for name, array in FILES.items() if name != "topology/weights.npy"}
    path = write_parts(tmp_path / "parts", files)
    assert load_topology(path, read_manifest(path)).weights is None


@pytest.mark.parametrize("lo, hi", [(0, 3), (3, 5), (0, 5), (2, 2), (5, 5), (1, 4)])
def test_node_range_gives_the_rows_of_the_range(parts, lo, hi):
    whole = load_topology(parts, read_manifest(parts))
    ranged = load_topology(parts, read_manifest(parts), (lo, hi))
    assert ranged.num_nodes == hi - lo
    for row in range(hi - lo):
        wanted = slice(int(whole.indptr[lo + row]), int(whole.indptr[lo + row + 1]))
        found = slice(int(ranged.indptr[row]), int(ranged.indptr[row + 1]))
        assert torch.equal(ranged.indices[found], whole.indices[wanted])
        assert torch.equal(ranged.weights[found], whole.weights[wanted])
    assert torch.equal(ranged.orig_ids, whole.orig_ids[lo:hi])


@pytest.mark.parametrize("node_range", [(-1, 2), (3, 2), (0, 6)])
def test_node_range_outside_the_graph_is_refused(parts, node_range):
    with pytest.raises(ValueError, match="node_range is .*; expected 0 <= lo <= hi <= 5"):
        load_topology(parts, read_manifest(parts), node_range)


def test_topology_is_mapped_not_copied(parts):
    graph = load_topology(parts, read_manifest(parts))
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "indices.npy" in line]
    ranges = [[int(end, 16) for end in fields[0].split("-")] for fields in mapped]
    assert any(lo <= graph.indices.data_ptr() < hi for lo, hi in ranges)


def test_writing_to_a_loaded_tensor_leaves_the_file_alone(parts):
    load_topology(parts, read_manifest(parts)).indices.fill_(0)
    verify_files(parts, read_manifest(parts), FILES)


@pytest.mark.parametrize("part", [0, 1])
def test_part_equals_the_arrays(parts, part):
    data = load_part(parts, read_manifest(parts), part)
    assert torch.equal(data.features, torch.from_numpy(FILES[f"part-{part}/features.npy"]))
    assert torch.equal(data.labels, torch.from_numpy(FILES[f"part-{part}/labels.npy"]))
    assert {name: ids.tolist() for name, ids in data.splits.items()} == {
        "train": FILES[f"part-{part}/train.npy"].tolist(),
        "val": FILES[f"part-{part}/val.npy"].tolist(),
    }


def test_topology_alone_is_a_partition(tmp_path):
    files = {name: array for name, array in FILES.items() if name.startswith("topology")}
    path = write_parts(tmp_path / "parts", files, feature_dim=None, feature_dtype=None, num_classes=0)
    data = load_part(path, read_manifest(path), 1)
    assert (data.features, data.labels, data.splits) == (None, None, {})


@pytest.mark.parametrize("dtype", (*storage.FEATURE_DTYPES, *storage.WIDE_DTYPES))
def test_features_keep_their_type(tmp_path, dtype):
    files = {name: array.astype(dtype) if "features" in name else array for name, array in FILES.items()}
    path = write_parts(tmp_path / "parts", files, feature_dtype=dtype)
    features = load_part(path, read_manifest(path), 1).features
    assert features.dtype == getattr(torch, dtype)
    assert features.tolist() == [[6, 7], [8, 9]]


def test_big_endian_input_is_stored_little_endian(tmp_path):
    files = {**FILES, "topology/indptr.npy": FILES["topology/indptr.npy"].astype(">i8")}
    path = write_parts(tmp_path / "parts", files)
    assert load_topology(path, read_manifest(path)).indptr.tolist() == FILES["topology/indptr.npy"].tolist()


def test_files_of_a_machine_are_listed_by_room(parts):
    manifest = read_manifest(parts)
    assert sorted(storage.topology_files(manifest)) == sorted(name for name in FILES if name.startswith("topology"))
    assert sorted(storage.part_files(manifest, 1)) == sorted(name for name in FILES if name.startswith("part-1"))


def test_the_files_of_all_parts_are_found_in_one_pass_over_the_manifest(parts):
    """A pass for each of many parts would take longer than reading their files."""

    class Counted(dict):
        passes = 0

        def __iter__(self):
            Counted.passes += 1
            return super().__iter__()

    manifest = read_manifest(parts)
    manifest = replace(manifest, files=Counted(manifest.files))
    Counted.passes = 0
    for _ in range(5):
        storage.topology_files(manifest), storage.part_files(manifest, 0), storage.part_files(manifest, 1)
    assert Counted.passes == 1


def test_a_machine_needs_only_the_topology_and_its_own_part(parts):
    shutil.rmtree(parts / "part-1")
    manifest = read_manifest(parts)
    verify_files(parts, manifest, [*storage.topology_files(manifest), *storage.part_files(manifest, 0)])
    assert load_part(parts, manifest, 0).labels.tolist() == [0, -1, 2]


# ---- what is damaged is refused by name


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named(parts, name):
    (parts / name).unlink()
    with pytest.raises(ValueError, match=f"{parts / name} is missing; expected .* bytes"):
        load_everything(parts)


@pytest.mark.parametrize("name", FILES)
def test_truncated_file_is_named(parts, name):
    size = (parts / name).stat().st_size
    os.truncate(parts / name, size - 1)
    with pytest.raises(ValueError, match=f"{parts / name} is truncated: it has {size - 1} bytes, .* says {size}"):
        load_everything(parts)


@pytest.mark.parametrize("name", FILES)
def test_altered_file_is_named(parts, name):
    data = bytearray((parts / name).read_bytes())
    data[-1] ^= 1
    (parts / name).write_bytes(data)
    manifest = read_manifest(parts)
    with pytest.raises(ValueError, match=f"{parts / name} is altered: its SHA-256"):
        verify_files(parts, manifest, manifest.files)


@pytest.mark.parametrize("name", FILES)
def test_array_of_another_shape_is_named(parts, name):
    array = FILES[name]
    wrong = np.concatenate([array, array[:1]]) if array.size else np.zeros((1, 1))
    data = (parts / name).read_bytes()
    np.save(parts / name, wrong.reshape(1, *wrong.shape))  # one axis more than the format has
    edit_size(parts, name, len(data))
    with pytest.raises(ValueError, match=f"{parts / name} holds .* of shape .*; the manifest expects"):
        load_everything(parts)


def edit_size(path: Path, name: str, old_size: int) -> None:
    """State the file's present size in the manifest, as if it had been written so, and sign the manifest again."""
    manifest = read_manifest(path)
    assert manifest.files[name]["bytes"] == old_size
    files = {**manifest.files, name: {**manifest.files[name], "bytes": (path / name).stat().st_size}}
    signed = Manifest(files=files, **FIELDS)
    (path / "manifest.json").write_text(signed.to_json())


def test_file_that_is_no_npy_is_named(parts):
    name = "topology/indptr.npy"
    size = (parts / name).stat().st_size
    (parts / name).write_bytes(b"x" * size)
    with pytest.raises(ValueError, match=f"{parts / name} is not a readable .npy file"):
        load_everything(parts)


def test_file_that_the_manifest_does_not_list_is_named(tmp_path):
    files = {name: array for name, array in FILES.items() if name != "topology/orig_ids.npy"}
    path = write_parts(tmp_path / "parts", files)
    with pytest.raises(ValueError, match="manifest.json does not list topology/orig_ids.npy"):
        load_topology(path, read_manifest(path))


def test_unknown_part_is_refused(parts):
    with pytest.raises(ValueError, match="part is 2; .* has the parts 0 to 1"):
        load_part(parts, read_manifest(parts), 2)


def test_missing_directory_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a directory"):
        read_manifest(tmp_path / "nowhere")


def test_directory_without_manifest_is_refused(tmp_path):
    with pytest.raises(ValueError, match="manifest.json is missing, so .* is not a finished partition"):
        read_manifest(tmp_path)


def test_manifest_that_is_no_json_is_refused(parts):
    os.truncate(parts / "manifest.json", 100)
    with pytest.raises(ValueError, match="manifest.json is damaged: it is not JSON"):
        read_manifest(parts)


@pytest.mark.parametrize(
    "text", ['{"name": "package", "version": "2.1"}', "[1, 2]", '{"format": "other", "version": 1}']
)
def test_manifest_of_something_else_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="is not a partition of this framework"):
        read_manifest(tmp_path)


def test_newer_format_version_is_refused(parts):
    edit_manifest(parts, version=7)
    with pytest.raises(ValueError, match="this is format version 7; this release reads versions 1 and 2; upgrade"):
        read_manifest(parts)


@pytest.mark.parametrize("version", ["1", 0, None])
def test_version_that_is_none_is_refused(parts, version):
    edit_manifest(parts, version=version)
    with pytest.raises(ValueError, match="manifest.json is damaged: its version is"):
        read_manifest(parts)


@pytest.mark.parametrize("change", [{"num_classes": 4}, {"seed": 8}, {"part_ranges": [0, 2, 5]}, {"extra": 1}])
def test_altered_manifest_is_refused(parts, change):
    edit_manifest(parts, **change)
    with pytest.raises(ValueError, match="manifest.json is damaged: its fields do not have the SHA-256"):
        read_manifest(parts)


@pytest.mark.parametrize(
    "fields",
    [
        {"part_ranges": (0, 5)},
        {"part_ranges": (0, 4, 3)},
        {"part_ranges": (0, 6, 5)},
        {"num_edges": 1.5},
        {"name": None},
    ],
)
def test_manifest_with_impossible_fields_is_refused(tmp_path, fields):
    path = write_parts(tmp_path / "parts", **fields)
    with pytest.raises(ValueError, match="manifest.json is damaged: its"):
        read_manifest(path)


def test_manifest_that_points_outside_is_refused(parts):
    record = {"bytes": 1, "sha256": ""}
    (parts / "manifest.json").write_text(Manifest(files={"../secret.npy": record}, **FIELDS).to_json())
    with pytest.raises(ValueError, match=r"its entry for '\.\./secret\.npy' is not a path inside the partition"):
        read_manifest(parts)


# ---- complete or not at all


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_when_writing_is_broken_off(tmp_path, error):
    with pytest.raises(error), PartitionWriter(tmp_path / "parts") as writer:
        writer.write("topology/indptr.npy", FILES["topology/indptr.npy"])
        raise error
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_when_one_file_is_broken_off(tmp_path):
    with (
        pytest.raises(OSError, match="disk full"),
        PartitionWriter(tmp_path / "parts") as writer,
        writer.open("part-0/labels.npy", np.dtype(np.int64), (2,)) as file,
    ):
        file.append(np.zeros(1, dtype=np.int64))
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []


def test_final_name_appears_only_at_the_end(tmp_path):
    path = tmp_path / "parts"
    with PartitionWriter(path) as writer:
        for name, array in FILES.items():
            writer.write(name, array)
        assert not path.exists()
        writer.finish(**FIELDS)
        assert path.exists()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["partition", "empty directory", "file", "dangling link"])
def test_existing_output_is_refused(tmp_path, kind):
    path = tmp_path / "parts"
    if kind == "partition":
        write_parts(path)
    elif kind == "empty directory":
        path.mkdir()
    elif kind == "file":
        path.touch()
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="parts exists; pass --overwrite"):
        PartitionWriter(path)


def test_overwrite_replaces_a_partition(parts):
    write_parts(parts, overwrite=True, name="second")
    assert read_manifest(parts).name == "second"
    load_everything(parts)
    assert list(parts.parent.iterdir()) == [parts]


def test_overwrite_of_nothing_writes(tmp_path):
    assert read_manifest(write_parts(tmp_path / "parts", overwrite=True)).name == "tiny"


def test_overwrite_keeps_the_old_partition_until_the_new_one_is_complete(parts):
    with pytest.raises(KeyboardInterrupt), PartitionWriter(parts, overwrite=True) as writer:
        writer.write("topology/indptr.npy", np.zeros(9, dtype=np.int64))
        assert read_manifest(parts).name == "tiny"
        raise KeyboardInterrupt
    load_everything(parts)
    assert list(parts.parent.iterdir()) == [parts]


def test_old_partition_comes_back_when_the_new_one_cannot_take_its_name(parts, monkeypatch):
    real_rename = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if Path(target) == parts and "partial" in self.name and (self / "part-0").exists() and not moved_back:
            moved_back.append(self)
            raise OSError("refused")
        return real_rename(self, target)

    moved_back: list[Path] = []
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="refused"):
        write_parts(parts, overwrite=True, name="second")
    assert read_manifest(parts).name == "tiny"
    assert list(parts.parent.iterdir()) == [parts]


def test_overwrite_spares_a_directory_that_is_no_partition(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    with pytest.raises(ValueError, match="thesis exists and is not a partition; only a partition is overwritten"):
        PartitionWriter(tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter.tex").exists()


def test_output_without_a_parent_is_refused(tmp_path):
    with pytest.raises(ValueError, match="missing does not exist, so .* cannot be written; create it first"):
        PartitionWriter(tmp_path / "missing" / "parts")


def test_output_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is not writable .*, so .* cannot be written"):
        PartitionWriter(tmp_path / "file" / "parts")


def test_checking_an_output_leaves_nothing_behind(tmp_path):
    storage.check_output(tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


def test_directory_gets_the_usual_mode(tmp_path):
    before = os.umask(0o027)
    try:
        path = write_parts(tmp_path / "parts")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o750


def test_incomplete_array_is_our_own_mistake(tmp_path):
    with (
        pytest.raises(AssertionError, match="1 rows written, 2 announced"),
        PartitionWriter(tmp_path / "parts") as writer,
        writer.open("part-0/labels.npy", np.dtype(np.int64), (2,)) as file,
    ):
        file.append(np.zeros(1, dtype=np.int64))

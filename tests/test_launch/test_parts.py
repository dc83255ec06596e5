"""Which files of a partition go to which host."""

import json
from pathlib import Path

import pytest

from fastsample_dist.launch.hosts import HostEntry, place_ranks
from fastsample_dist.launch.parts import plan_copies, split_copy_parts


def make_parts(directory: Path, num_parts: int) -> Path:
    (directory / "topology").mkdir(parents=True)
    (directory / "topology" / "indptr.npy").write_text("indptr")
    (directory / "manifest.json").write_text(json.dumps({"num_parts": num_parts}))
    for part in range(num_parts):
        (directory / f"part-{part}").mkdir()
        (directory / f"part-{part}" / "labels.npy").write_text(f"labels {part}")
    return directory


def names(copy):
    return [Path(source).name for source in copy.sources]


def test_a_host_gets_the_parts_of_its_ranks_only(tmp_path):
    parts = make_parts(tmp_path / "parts", 6)
    copies = plan_copies(parts, "/data", place_ranks([HostEntry("a", 2), HostEntry("b", 1)], None))
    assert names(copies[0]) == ["manifest.json", "topology", "part-0", "part-1", "part-2", "part-3"]
    assert names(copies[1]) == ["manifest.json", "topology", "part-4", "part-5"]


def test_parts_that_do_not_fit_the_ranks_are_refused(tmp_path):
    parts = make_parts(tmp_path / "parts", 4)
    with pytest.raises(ValueError, match="has 4 parts but world_size is 3; start a number of ranks that divides 4"):
        plan_copies(parts, "/data", place_ranks([HostEntry("a", 3)], None))


def test_a_part_that_is_missing_is_named(tmp_path):
    parts = make_parts(tmp_path / "parts", 2)
    (parts / "part-1" / "labels.npy").unlink()
    (parts / "part-1").rmdir()
    with pytest.raises(ValueError, match="lacks part-1; partition the graph again"):
        plan_copies(parts, "/data", place_ranks([HostEntry("a", 2)], None))


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"num_parts": 0}', '{"num_parts": "2"}'])
def test_what_is_no_partition_is_refused_by_name(tmp_path, text):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json is not the manifest of a partition"):
        plan_copies(tmp_path, "/data", place_ranks([HostEntry("a")], None))


def test_destination_is_the_same_path_or_starts_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert split_copy_parts("parts", "/w") == (tmp_path / "parts", str(tmp_path / "parts"))
    assert split_copy_parts("parts:data/x", "/w") == (tmp_path / "parts", "/w/data/x")
    assert split_copy_parts("/a/parts:/b", "/w") == (Path("/a/parts"), "/b")


def test_a_directory_with_a_colon_in_its_name_is_a_directory(tmp_path):
    (tmp_path / "a:b").mkdir()
    assert split_copy_parts(str(tmp_path / "a:b"), "/w")[0] == tmp_path / "a:b"

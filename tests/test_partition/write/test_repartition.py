"""--repartition: the same graph under the same ids in another number of parts."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import fastsample_dist.partition.write.repartition
from fastsample_dist.graph import npy_files
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.npy_files import NpyWriter
from fastsample_dist.graph.storage import SPLITS, load_part, load_topology, read_manifest
from fastsample_dist.ops import SampleSpec, SamplingGraph
from fastsample_dist.partition.cli_tasks import run_repartition as run
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.report.check import check_partition
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.partition.write.repartition import add_options, cut_points, repartition
from tests.test_partition.damage import rewrite
from tests.test_partition.inputs import draw_raw

REPOSITORY = Path(fastsample_dist.partition.write.repartition.__file__).parents[3]
SPEC = SampleSpec(fanouts=(4, 3), rng_seed=11)


def draw(path: Path, num_parts: int, **options: object) -> Path:
    raw = draw_raw(undirected=True, num_nodes=200, num_train=83, **options)
    raw.labels[:] = np.maximum(raw.labels, 0)
    build_partition(raw, PartitionOptions(num_parts=num_parts, method="random"), path)
    return path


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Four parts."""
    return draw(tmp_path / "parts", 4)


def whole(path: Path) -> dict[str, torch.Tensor]:
    """Every column of all parts, by id."""
    manifest = read_manifest(path)
    loaded = [load_part(path, manifest, part) for part in range(manifest.num_parts)]
    columns = {split: torch.cat([part.splits[split] for part in loaded]) for split in SPLITS}
    columns["features"] = torch.cat([part.features for part in loaded])
    columns["labels"] = torch.cat([part.labels for part in loaded])
    return columns


def batch_by_original_ids(graph: CSCGraph, originals: torch.Tensor) -> list[torch.Tensor]:
    """A batch of the nodes with these original ids: its nodes and edges as original ids."""
    seeds = torch.argsort(graph.orig_ids)[originals].to(graph.indices.dtype)
    hops = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids).sample(seeds, SPEC, step=5)
    nodes = graph.orig_ids[hops.nodes.long()]
    return [nodes, *hops.indptrs, *(nodes[edges.long()] for edges in hops.indices)]


NEW_COUNTS = [1, 2, 8, 12, 40]


@pytest.mark.parametrize("num_parts", NEW_COUNTS)
def test_new_partition_passes_the_checks(parts, tmp_path, num_parts):
    quality = repartition(parts, num_parts, tmp_path / "new")
    assert check_partition(tmp_path / "new") == []
    assert quality.manifest == read_manifest(tmp_path / "new")
    assert len(quality.parts) == num_parts


@pytest.mark.parametrize("num_parts", NEW_COUNTS)
@pytest.mark.parametrize("chunk_bytes", [1 << 24, 40])
def test_features_labels_and_splits_are_those_of_the_old_one(parts, tmp_path, num_parts, chunk_bytes, monkeypatch):
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", chunk_bytes)
    repartition(parts, num_parts, tmp_path / "new")
    old, new = whole(parts), whole(tmp_path / "new")
    assert old.keys() == new.keys()
    for name in old:
        assert torch.equal(old[name], new[name]) and old[name].dtype == new[name].dtype


@pytest.mark.parametrize("num_parts", [1, 4])
def test_features_in_bfloat16_stay_the_same_bits(tmp_path, num_parts):
    raw = draw_raw(undirected=True)
    options = PartitionOptions(num_parts=2, method="random", feature_dtype="bfloat16")
    build_partition(raw, options, tmp_path / "parts")
    repartition(tmp_path / "parts", num_parts, tmp_path / "new")
    old, new = whole(tmp_path / "parts")["features"], whole(tmp_path / "new")["features"]
    assert new.dtype == torch.bfloat16 and torch.equal(old, new)


@pytest.mark.parametrize("num_parts", [1, 4])
def test_int8_features_keep_their_scales(tmp_path, num_parts):
    raw = draw_raw(undirected=True)
    build_partition(raw, PartitionOptions(num_parts=2, method="random", feature_dtype="int8"), tmp_path / "parts")
    repartition(tmp_path / "parts", num_parts, tmp_path / "new")
    old, new = read_manifest(tmp_path / "parts"), read_manifest(tmp_path / "new")
    assert (new.version, new.feature_dtype, new.feature_scales) == (2, "int8", True)
    for name in ("features", "scales"):
        stored = [
            torch.cat([getattr(load_part(path, manifest, part), name) for part in range(manifest.num_parts)])
            for path, manifest in ((tmp_path / "parts", old), (tmp_path / "new", new))
        ]
        assert torch.equal(*stored)


@pytest.mark.parametrize("num_parts", NEW_COUNTS)
def test_batches_are_those_of_the_old_one_by_original_ids(parts, tmp_path, num_parts):
    repartition(parts, num_parts, tmp_path / "new")
    graphs = [load_topology(path, read_manifest(path)) for path in (parts, tmp_path / "new")]
    seeds = torch.randperm(200, generator=torch.Generator().manual_seed(2))[:30]
    old, new = (batch_by_original_ids(graph, seeds) for graph in graphs)
    assert all(map(torch.equal, old, new)) and len(old) == len(new)


@pytest.mark.parametrize("num_parts", [8, 12, 40, 80])
def test_split_parts_have_train_nodes_within_one(parts, tmp_path, num_parts):
    quality = repartition(parts, num_parts, tmp_path / "new")
    counts = [part.splits["train"] for part in quality.parts]
    assert max(counts) - min(counts) <= 1 and sum(counts) == 83


def test_splitting_and_joining_again_gives_the_same_files(parts, tmp_path):
    repartition(parts, 12, tmp_path / "split")
    repartition(tmp_path / "split", 4, tmp_path / "joined")
    old, new = read_manifest(parts), read_manifest(tmp_path / "joined")
    assert old.part_ranges == new.part_ranges and old.files == new.files


def test_joining_keeps_neighbouring_parts_together(parts, tmp_path):
    repartition(parts, 2, tmp_path / "new")
    assert read_manifest(tmp_path / "new").part_ranges == read_manifest(parts).part_ranges[::2]


def test_manifest_tells_the_old_number_and_keeps_the_rest(parts, tmp_path):
    repartition(parts, 8, tmp_path / "new")
    old, new = read_manifest(parts), read_manifest(tmp_path / "new")
    assert new.stats == {**old.stats, "repartitioned_from_parts": 4}
    for field in ("name", "num_nodes", "num_edges", "feature_dim", "feature_dtype", "num_classes", "method", "seed"):
        assert getattr(old, field) == getattr(new, field)


def test_topology_is_linked_not_copied(parts, tmp_path):
    repartition(parts, 8, tmp_path / "new")
    for name in ("indptr", "indices", "orig_ids"):
        file = f"topology/{name}.npy"
        assert (parts / file).stat().st_ino == (tmp_path / "new" / file).stat().st_ino


def test_topology_is_copied_where_no_link_can_be_made(parts, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    repartition(parts, 8, tmp_path / "new")
    file = "topology/indices.npy"
    assert (parts / file).stat().st_ino != (tmp_path / "new" / file).stat().st_ino
    assert check_partition(tmp_path / "new") == []


def test_old_partition_may_be_deleted(parts, tmp_path):
    repartition(parts, 2, tmp_path / "new")
    shutil.rmtree(parts)
    assert check_partition(tmp_path / "new") == []


def test_topology_alone_is_repartitioned(tmp_path):
    raw = draw_raw(undirected=True)
    raw = type(raw)(name="bare", num_nodes=raw.num_nodes, undirected=True, edge_index=raw.edge_index)
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    repartition(tmp_path / "parts", 6, tmp_path / "new")
    assert read_manifest(tmp_path / "new").part_ranges == tuple(range(0, 61, 10))
    assert check_partition(tmp_path / "new") == []


@pytest.mark.parametrize("num_parts", [1, 4])
def test_memory_is_a_few_chunks_whatever_the_features(tmp_path, monkeypatch, num_parts):
    raw = RawGraph(
        name="wide",
        num_nodes=1000,
        undirected=True,
        edge_index=np.arange(2000).reshape(2, 1000) % 1000,
        features=np.random.default_rng(0).random((1000, 2048), dtype=np.float32),
    )
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", 1 << 16)
    tracemalloc.start()
    repartition(tmp_path / "parts", num_parts, tmp_path / "new")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000 < 8_000_000 < sum(file.stat().st_size for file in (tmp_path / "new").rglob("features.npy"))


# ---- where ranges are cut


def test_cut_is_by_train_nodes_and_as_even_in_nodes_as_they_allow():
    # Four train nodes 10 .. 13 of 0 .. 99: the cut is between 11 and 12, the equal point 50 is out of reach.
    assert cut_points((0, 100), np.array([10, 11, 12, 13]), 2) == [12, 100]
    # Between 11 and 80 there is room for it.
    assert cut_points((0, 100), np.array([10, 11, 80, 81]), 2) == [50, 100]
    assert cut_points((0, 100), np.array([60, 70, 80, 90]), 2) == [71, 100]


@pytest.mark.parametrize("seed", range(20))
def test_cut_leaves_train_nodes_within_one_and_no_part_empty(seed):
    rng = np.random.default_rng(seed)
    num_nodes, pieces = int(rng.integers(20, 200)), int(rng.integers(2, 10))
    train = np.sort(rng.choice(num_nodes, int(rng.integers(pieces, num_nodes)), replace=False)) + 1000
    bounds = [1000, *cut_points((1000, 1000 + num_nodes), train, pieces)]
    counts = np.diff(np.searchsorted(train, bounds))
    assert bounds[-1] == 1000 + num_nodes and min(np.diff(bounds)) >= 1
    assert counts.max() - counts.min() <= 1 and counts.sum() == len(train)


def test_too_few_train_nodes_are_cut_by_nodes_with_a_warning(tmp_path, caplog):
    draw(tmp_path / "parts", 4)
    rewrite(tmp_path / "parts", "part-1/train.npy", lambda ids: ids[:2])
    repartition(tmp_path / "parts", 12, tmp_path / "new")
    assert "has 2 train nodes for 3 new parts, expected at least one each" in caplog.text
    ranges = read_manifest(tmp_path / "new").part_ranges
    lo, hi = read_manifest(tmp_path / "parts").part_ranges[1:3]
    assert ranges[3:7] == (lo, lo + (hi - lo) // 3, lo + 2 * (hi - lo) // 3, hi)


# ---- refusals


@pytest.mark.parametrize(
    "num_parts, text",
    [
        (6, "has 4 parts, of which 6 cannot be made without cutting the graph again: neither number divides the other"),
        (3, "take a divisor or a multiple of 4, or partition with --num-parts 3"),
        (4, "has 4 parts already"),
        (0, "the number of parts is 0; expected at least 1"),
        (400, "part 0 has 50 nodes, expected at least 100 to cut it into 100"),
    ],
)
def test_number_of_parts_that_does_not_fit_is_refused(parts, tmp_path, num_parts, text):
    with pytest.raises(ValueError, match=text):
        repartition(parts, num_parts, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [parts]


@pytest.mark.parametrize("name", ["features", "labels", "train"])
@pytest.mark.parametrize("num_parts", [2, 8])
def test_altered_file_is_refused_and_gets_no_new_checksum(parts, tmp_path, name, num_parts):
    file = parts / f"part-3/{name}.npy"
    data = bytearray(file.read_bytes())
    data[-8] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match=rf"part-3/{name}\.npy is altered"):
        repartition(parts, num_parts, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [parts]


@pytest.mark.parametrize("name", ["topology/indices.npy", "part-2/labels.npy"])
def test_missing_file_is_refused(parts, tmp_path, name):
    (parts / name).unlink()
    with pytest.raises(ValueError, match=rf"{name} is missing"):
        repartition(parts, 2, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [parts]


def test_damaged_topology_stays_detectable(parts, tmp_path):
    data = bytearray((parts / "topology/indices.npy").read_bytes())
    data[-4] ^= 1
    (parts / "topology/indices.npy").write_bytes(data)
    repartition(parts, 2, tmp_path / "new")
    assert any("indices.npy: is altered" in str(finding) for finding in check_partition(tmp_path / "new"))


def test_damaged_topology_is_refused_where_it_is_copied(parts, tmp_path, monkeypatch):
    data = bytearray((parts / "topology/indices.npy").read_bytes())
    data[-4] ^= 1
    (parts / "topology/indices.npy").write_bytes(data)
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(18, "Invalid cross-device link")))
    with pytest.raises(ValueError, match=r"indices\.npy is altered"):
        repartition(parts, 2, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [parts]


def test_existing_output_is_refused_and_overwritten_on_request(parts, tmp_path):
    draw(tmp_path / "new", 3)
    with pytest.raises(ValueError, match="new exists; pass --overwrite"):
        repartition(parts, 2, tmp_path / "new")
    repartition(parts, 2, tmp_path / "new", overwrite=True)
    assert read_manifest(tmp_path / "new").num_parts == 2


def test_partition_is_not_overwritten_by_itself(parts):
    with pytest.raises(ValueError, match="is the partition that is read"):
        repartition(parts, 2, parts, overwrite=True)
    assert check_partition(parts) == []


def test_full_disk_leaves_nothing(parts, tmp_path, monkeypatch):
    def refuse(self: NpyWriter, rows: np.ndarray) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(NpyWriter, "append", refuse)
    with pytest.raises(OSError, match="No space left"):
        repartition(parts, 2, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [parts]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_in_the_middle_leaves_nothing_under_the_final_name(parts, tmp_path, number):
    # The signal arrives when the topology is linked and the first column is written.
    script = (
        "import os, sys, fastsample_dist.partition.write.repartition as module\n"
        "rewrite, done = module._rewrite_column, []\n"
        "def column(*given):\n"
        f"    os.kill(os.getpid(), {int(number)}) if done else None\n"
        "    done.append(rewrite(*given))\n"
        "module._rewrite_column = column\n"
        "module.repartition(sys.argv[1], 8, sys.argv[2])"
    )
    argv = [sys.executable, "-c", script, str(parts), str(tmp_path / "new")]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, timeout=300, check=False)
    assert done.returncode == -number
    assert not (tmp_path / "new").exists()
    left = [path for path in tmp_path.iterdir() if path != parts]
    assert len(left) == (number == signal.SIGKILL)  # nothing cleans up after SIGKILL, but a run after it succeeds
    assert check_partition(parts) == []
    repartition(parts, 8, tmp_path / "new")
    assert check_partition(tmp_path / "new") == []


# ---- the command


def parse(*argv: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.add_argument("--input")
    parser.add_argument("--output")
    parser.add_argument("--overwrite", action="store_true", default=None)
    parser.add_argument("--clusters", type=int)
    parser.add_argument("--seed", type=int)
    return parser.parse_args([str(item) for item in argv])


def test_command_reports_the_new_partition(parts, tmp_path, capsys):
    args = parse("--repartition", parts, 8, "--output", tmp_path / "new")
    status, report = run(args, Progress())
    assert (status, report["num_parts"], report["repartitioned_from"]) == (0, 8, str(parts))
    assert report["balance"]["train"] < 1.1 and report["balance"]["nodes"] >= 1
    assert "8, by random" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, text",
    [
        (["--repartition", "p", "8"], "--repartition needs --output"),
        (["--repartition", "p", "eight", "--output", "q"], "NEW_P is 'eight'; expected a number"),
    ],
)
def test_wrong_command_line_is_refused(argv, text):
    with pytest.raises(ValueError, match=text):
        run(parse(*argv), Progress())

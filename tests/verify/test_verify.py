"""fastsample-verify: a sound partition passes; damage done on purpose is named by rank, step, hop and node."""

import json
import shutil

import numpy as np
import pytest
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.manifest import read_manifest
from fastsample_dist.graph.npy_files import sha256_file
from fastsample_dist.graph.storage import load_orig_ids
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.testing import mpi_missing_reason
from fastsample_dist.verify import cli as verify
from fastsample_dist.verify.compare import Difference, RunOptions
from fastsample_dist.verify.content import batch_content, first_difference
from fastsample_dist.verify.reference import VerifySettings
from tests.parts import draw_partition
from tests.train.task import make_task

SMALL = ("--steps", "4", "--batch-size", "20", "--fanouts", "4,3", "--hidden", "8")
SETTINGS = VerifySettings(steps=3, batch_size=20, fanouts=(4, 3), hidden=8)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A partition into four parts, float32 features."""
    return make_task(tmp_path_factory.mktemp("verify"), 4, dtype="float32").path


@pytest.fixture
def damaged_copy(parts, tmp_path):
    """A function: copy the partition, change one array, and make the manifest's record of it fit again."""

    def make(relpath, change):
        copy = tmp_path / "copy"
        shutil.copytree(parts, copy)
        array = np.load(copy / relpath)
        change(array)
        np.save(copy / relpath, array)
        document = json.loads((copy / "manifest.json").read_text())
        record = {"bytes": (copy / relpath).stat().st_size, "sha256": sha256_file(copy / relpath)}
        document["files"][relpath] = record
        manifest = read_manifest(parts)
        fixed = type(manifest)(**{**vars(manifest), "files": {**manifest.files, relpath: record}})
        (copy / "manifest.json").write_text(fixed.to_json())
        return copy

    return make


def run(capsys, *options):
    status = verify.main([str(option) for option in options])
    return status, capsys.readouterr()


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        pytest.param((2, 4), (), marks=pytest.mark.grid),
        ((2,), ("--prefetch", "2", "--model", "gat", "--hidden", "8", "--split", "val")),
    ],
)
def test_ranks_equal_one_process(forked_ranks, parts, tmp_path, capsys, ranks, options):
    file = tmp_path / "out.json"
    status, printed = run(capsys, parts, "--ranks", ",".join(map(str, ranks)), *SMALL, *options, "--json", file)
    assert status == 0, printed
    results = json.loads(file.read_text())
    assert results["ok"] and results["difference"] is None
    assert [(r["ranks"], r["batches"]) for r in results["runs"]] == [(number, number * 2 * 4) for number in ranks]
    assert all(r["edges"] > 0 and 0 <= r["gradient_error"] < 1e-12 for r in results["runs"])
    assert printed.out.count("pass  ") == len(ranks)


def test_a_training_command_line_shapes_the_batches(forked_ranks, parts, tmp_path, capsys):
    file = tmp_path / "out.json"
    script = (
        "examples/train_sage.py --model gat --fanouts 4,3 --batch-size 9 --scheme hybrid --epochs 7 --lr 0.1 "
        "--hidden 6 --heads 2 --dropout 0.25 --residual --norm layer --transport exchange --exchange paired "
        "--sampler uniform"
    )
    status, printed = run(capsys, parts, "--script", script, "--steps", 1, "--json", file)
    assert status == 0, printed
    results = json.loads(file.read_text())
    model = {"model": "gat", "hidden": 6, "heads": 2, "dropout": 0.25, "residual": True, "norm": "layer"}
    expected = {"fanouts": [4, 3], "batch_size": 9} | model
    assert {name: results["settings"][name] for name in expected} == expected
    assert results["runs"][0]["schemes"] == ["hybrid"]


@pytest.mark.grid
def test_ranks_under_mpirun(parts, capsys):
    if mpi_missing_reason() is not None:
        pytest.skip(f"no MPI here: {mpi_missing_reason()}")
    status, printed = run(capsys, parts, "--ranks", "2", *SMALL, "--mpi")
    assert status == 0, printed


def test_a_copy_that_is_another_partition_is_refused(forked_ranks, parts, damaged_copy):
    def change(rows):
        rows[0, 2] += 1

    copy = damaged_copy("part-1/features.npy", change)
    with pytest.raises(Exception, match=r"ranks differ in sha256 of manifest\.json: .* on rank 0; .* on rank 1"):
        verify.verify(RunOptions(path=parts, rank_paths=(copy, parts), schemes=("hybrid",)), SETTINGS, 2)


def test_an_altered_feature_row_is_found_with_its_values(forked_ranks, parts):
    """Part 1's first row, owned by rank 0 of 2 ranks; the value is one bit off."""
    orig_ids, manifest = load_orig_ids(parts, read_manifest(parts)), read_manifest(parts)
    node, true = int(orig_ids[manifest.part_ranges[1]]), float(np.load(parts / "part-1/features.npy")[0, 2])
    altered = float(np.nextafter(np.float32(true), np.float32(np.inf)))
    options = RunOptions(path=parts, task="tests.testing.job_tasks:verify_with_an_altered_feature", schemes=("hybrid",))
    with pytest.raises(Difference) as found:
        verify.verify(options, SETTINGS, 2)
    text = str(found.value)
    assert text.startswith("2 ranks, hybrid, step 0, rank ") and f"features of node {node} (row " in text
    assert text.endswith(f"column 2 is {altered:.17g}, expected {true:.17g}")


@pytest.mark.grid
def test_an_altered_label_is_found(forked_ranks, parts):
    options = RunOptions(path=parts, task="tests.testing.job_tasks:verify_with_altered_labels", schemes=("hybrid",))
    with pytest.raises(Difference, match=r"2 ranks, hybrid, step 0, rank 1: label of node \d+ is \d, expected \d"):
        verify.verify(options, replaced(batch_size=60), 2)


def test_a_sampler_that_draws_otherwise_is_found_at_its_step_hop_and_node(forked_ranks, parts):
    options = RunOptions(path=parts, task="tests.testing.job_tasks:verify_with_another_seed_on_rank_1")
    with pytest.raises(
        Difference, match=r"2 ranks, hybrid, step 2, rank 1: hop 0, node \d+: sampled in-neigh.*expected"
    ):
        verify.verify(options, SETTINGS, 2)


def test_a_wrong_gradient_is_found(forked_ranks, parts):
    options = RunOptions(path=parts, task="tests.testing.job_tasks:verify_with_a_loss_too_large", schemes=("vanilla",))
    with pytest.raises(Difference, match="2 ranks, vanilla, step 0: summed gradient, entry .* tolerance 1e-10"):
        verify.verify(options, SETTINGS, 2)


def test_a_difference_ends_the_command_with_status_1(parts, tmp_path, capsys, monkeypatch):
    def differs(options, settings, num_ranks):
        raise Difference("here")

    monkeypatch.setattr(verify, "verify", differs)
    status, printed = run(capsys, parts, "--ranks", "2", "--json", tmp_path / "out.json")
    assert status == 1 and printed.out == "DIFFERS  here\n"
    assert json.loads((tmp_path / "out.json").read_text())["difference"] == "here"


def test_without_labels_only_batches_are_compared(forked_ranks, tmp_path, capsys):
    from fastsample_dist.graph.datasets import RawGraph
    from fastsample_dist.partition.write.build import PartitionOptions, build_partition

    drawn = draw_partition(tmp_path, 2)
    dst = np.repeat(np.arange(drawn.graph.num_nodes), drawn.graph.in_degrees().numpy())
    raw = RawGraph(
        name="bare", num_nodes=drawn.graph.num_nodes, undirected=False,
        edge_index=np.stack([drawn.graph.indices.numpy().astype(np.int64), dst]), splits=drawn.splits,
        features=drawn.features, labels=None, num_classes=0,
    )  # fmt: skip
    build_partition(raw, PartitionOptions(num_parts=2, method="random", seed=1), tmp_path / "bare")
    status, printed = run(capsys, tmp_path / "bare", *SMALL)
    assert status == 0 and "no gradients" in printed.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "2,3"), "has 4 parts, which 3 ranks cannot share equally; pass --ranks with 1, 2, 4, or"),
        (("--ranks", "x"), "must be an integer >= 1, not 'x'"),
        (("--tolerance", "nan"), "must be a number >= 0 and < 1, not 'nan'"),
        (("--split", "nosuch"), "has no split 'nosuch'"),
        (("--seed", "-1"), "rng_seed is -1"),
        (("--script", "train_sage.py --model foo"), "argument --model: invalid choice: 'foo'"),
        (
            ("--script", "train_sage.py --heads 0"),
            "--script is 'train_sage.py --heads 0': argument --heads: must be an integer >= 1, not '0'; see "
            "fastsample-verify --help.",
        ),
        (
            ("--script", "train_sage.py --model 'gat"),
            """--script is "train_sage.py --model 'gat": No closing quotation; close it.""",
        ),
        (
            ("--script", "train_sage.py --sampler labor"),
            "--script has --sampler labor, but only --sampler uniform is",
        ),
        (
            ("--script", "train_sage.py --replace"),
            "--script has --replace, but only draws without replacement",
        ),
        (
            ("--script", "train_sage.py --fanouts 4,3 --layers 3"),
            "--script has --layers 3, but the model that is compare",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(forked_ranks, parts, capsys, options, message):
    status, printed = run(capsys, parts, *SMALL, *options)
    assert status == 1 and message in printed.err and printed.err.count("\n") == 1


def test_a_directory_without_a_partition_is_refused(tmp_path, capsys):
    status, printed = run(capsys, tmp_path)
    assert status == 1 and "manifest.json" in printed.err and printed.err.count("\n") == 1


# ---- the comparison itself, on one drawn batch ----


@pytest.fixture
def arrays():
    """Content of a batch whose original ids are ids + 100."""
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 30, (2, 200), generator=generator)
    graph = CSCGraph.from_edge_index(src, dst, 30)
    batch = NeighborSampler(graph, [3, 2]).sample([4, 9, 2])
    batch.features, batch.labels = torch.randn(batch.input_nodes.numel(), 5), torch.tensor([1, 0, 2])
    return batch_content(batch, torch.arange(30) + 100).arrays


def copied(arrays, **changed):
    return {name: array.copy() for name, array in arrays.items()} | changed


def test_equal_contents_have_no_difference(arrays):
    assert first_difference(copied(arrays), arrays) is None


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("seeds", 1, "seeds, position 1: node is 110, expected 109"),
        ("features", 4, "features of node {input} (row 4)"),
        ("labels", 2, "label of node 102 is 3, expected 2"),
    ],
)
def test_a_changed_value_is_located(arrays, name, row, message):
    found = copied(arrays)
    found[name][row] += np.array(1, dtype=found[name].dtype)
    assert first_difference(found, arrays)[2] == message.format(input=arrays["input nodes"][4])


def test_a_changed_pick_is_located_by_hop_and_destination(arrays):
    found = copied(arrays)
    edge = int(arrays["hop 1 indptr"][3])  # the first pick of destination 3, the first node after the seeds
    found["hop 1 indices"][edge] += 1
    node = arrays["input nodes"][3]
    assert first_difference(found, arrays)[2].startswith(f"hop 1, node {node}: sampled in-neighbours [")


def test_another_number_of_rows_is_reported(arrays):
    found = copied(arrays, labels=arrays["labels"][:2])
    assert first_difference(found, arrays)[2] == "labels: 2 rows, expected 3"


def replaced(**fields):
    return VerifySettings(**{**vars(SETTINGS), **fields})


def test_labels_that_are_not_known_are_equal_and_others_are_named():
    expected = {"seeds": np.array([7, 9]), "labels": np.array([[1, np.nan], [np.nan, 0.5]], dtype=np.float32)}
    assert first_difference(expected, expected) is None
    found = {**expected, "labels": np.array([[1, np.nan], [np.nan, 2]], dtype=np.float32)}
    name, row, text = first_difference(found, expected)
    assert (name, row) == ("labels", 1) and "label of node 9 is [nan  2.], expected [nan 0.5]" in text

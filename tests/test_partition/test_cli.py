"""fastsample-partition: what it writes, prints and refuses. A refusal is one line, status 1, and leaves nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fastsample_dist.partition.write.writer
from fastsample_dist.graph.npy_files import NpyWriter
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.report.display import format_bytes
from tests.forked import run_code
from tests.test_partition.inputs import draw_raw, write_input

REPOSITORY = Path(fastsample_dist.partition.write.writer.__file__).parents[3]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return write_input(tmp_path / "graph")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template")
    write_input(path / "graph")
    assert main(["--input", str(path / "graph"), "--num-parts", "2", "--output", str(path / "parts")]) == 0
    return path / "parts"


@pytest.fixture
def parts(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "parts")


def run_refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """Run a command that must be refused; gives its one line."""
    status = main([str(item) for item in argv])
    output = capsys.readouterr()
    assert status == 1
    assert output.err.startswith("fastsample-partition: error: ")
    assert output.err.count("\n") == 1 and output.err.endswith("\n")
    return output.err


def cut(graph: Path, output: Path, *more: object) -> int:
    argv = ["--input", graph, "--num-parts", 2, "--output", output, *more]
    return main([str(item) for item in argv])


# ---- success


def test_partition_is_written_and_reported(graph, tmp_path, capsys):
    assert cut(graph, tmp_path / "parts", "--seed", 4) == 0
    manifest = read_manifest(tmp_path / "parts")
    assert (manifest.num_parts, manifest.method, manifest.seed) == (2, "metis", 4)
    output = capsys.readouterr()
    assert output.err == ""
    for word in ("assign nodes to parts: ", "edge cut", "peak resident", "max/mean", "topology/indices.npy"):
        assert word in output.out


def test_report_as_json_has_what_the_tables_show(graph, tmp_path):
    assert cut(graph, tmp_path / "parts", "--method", "random", "--json", tmp_path / "report.json") == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["num_parts"], report["method"], report["num_nodes"]) == (2, "random", 60)
    assert sum(part["cut_in_edges"] for part in report["parts"]) == report["edge_cut"]["edges"]
    assert {"read", "topology", "assign", "balance", "write", "measure", "total"} == report["seconds"].keys()
    assert sum(report["seconds"].values()) <= 2 * report["seconds"]["total"] + 1e-6
    assert report["peak_resident_bytes"] > 1_000_000
    for name, count in report["bytes"]["files"].items():
        assert (tmp_path / "parts" / name).stat().st_size == count


def test_inspect_reports_the_same_figures_as_the_run(graph, tmp_path):
    cut(graph, tmp_path / "parts", "--json", tmp_path / "run.json")
    assert main(["--inspect", str(tmp_path / "parts"), "--json", str(tmp_path / "inspect.json")]) == 0
    run, inspect = (json.loads((tmp_path / name).read_text()) for name in ("run.json", "inspect.json"))
    assert inspect.pop("files_verified") == len(run["bytes"]["files"])
    assert inspect == {key: value for key, value in run.items() if key not in ("seconds", "peak_resident_bytes")}


def test_inspect_prints_a_report(parts, capsys):
    assert main(["--inspect", str(parts)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "drawn, format version 1" in output.out
    assert "13 files verified" in output.out


def test_edge_list_is_cut(tmp_path):
    (tmp_path / "ring.csv").write_text("".join(f"{node},{(node + 1) % 10}\n" for node in range(10)))
    assert cut(tmp_path / "ring.csv", tmp_path / "parts", "--format", "edgelist", "--undirected") == 0
    manifest = read_manifest(tmp_path / "parts")
    assert (manifest.name, manifest.num_nodes, manifest.num_edges) == ("ring", 10, 20)


def test_overwrite_replaces(graph, parts):
    assert cut(graph, parts, "--seed", 8, "--overwrite") == 0
    assert read_manifest(parts).seed == 8


def test_features_that_are_not_finite_are_warned_of_and_counted(graph, tmp_path, capsys):
    features = np.load(graph / "features.npy")
    features[3, 1] = np.nan
    np.save(graph / "features.npy", features)
    assert cut(graph, tmp_path / "parts") == 0
    output = capsys.readouterr()
    assert "warning: " in output.err and "holds 1 NaN and 0 infinite values in 1 rows" in output.err
    assert "1 values not finite" in output.out


def test_module_runs_as_a_command(graph, tmp_path):
    argv = [
        sys.executable,
        "-m",
        "fastsample_dist.partition.cli",
        "--input",
        graph,
        "--num-parts",
        "3",
        "--output",
        tmp_path / "parts",
    ]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_manifest(tmp_path / "parts").num_parts == 3
    assert "\x1b" not in done.stdout  # no terminal, no control sequences


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for option in ("--input", "--format", "--num-parts", "--method", "--seed", "--output", "--overwrite", "--inspect"):
        assert option in text


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (999_700, "1 MB"), (38_912_345, "38.9 MB")],
)
def test_sizes_have_units(count, text):
    assert format_bytes(count) == text


# ---- refusals: the input


def replace(column: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def apply(graph: Path) -> None:
        np.save(graph / f"{column}.npy", change(np.load(graph / f"{column}.npy")))

    return apply


def entry(index: object, value: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[index] = value
        return array

    return change


def state_classes(graph: Path) -> None:
    meta = json.loads((graph / "meta.json").read_text())
    (graph / "meta.json").write_text(json.dumps({**meta, "num_classes": 2}))


BAD_INPUTS = {
    "edge id out of range": (replace("edge_index", entry((0, 5), 60)), "the source of edge 5 is 60; expected 0 to 59"),
    "negative edge id": (replace("edge_index", entry((1, 7), -2)), "the destination of edge 7 is -2; expected 0 to 59"),
    "label outside the classes": (state_classes, "expected -1 (unlabelled) or 0 to 1 (num_classes is 2)"),
    "label below -1": (replace("labels", entry(9, -3)), "the label of node 9 is -3"),
    "duplicate seeds": (replace("train_idx", lambda ids: np.append(ids, ids[0])), "more than once"),
    "features of too few nodes": (replace("features", lambda rows: rows[:-1]), "has shape (59, 3); expected (60, dim)"),
    "no meta.json": (lambda graph: (graph / "meta.json").unlink(), "meta.json is missing"),
    "no edges": (lambda graph: (graph / "edge_index.npy").unlink(), "edge_index.npy is missing"),
    "truncated features": (
        lambda graph: os.truncate(graph / "features.npy", 200),
        "features.npy has 200 bytes; expected 848: it is truncated",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_refused(case, graph, tmp_path, capsys):
    spoil, message = BAD_INPUTS[case]
    spoil(graph)
    line = run_refused(capsys, "--input", graph, "--num-parts", 2, "--output", tmp_path / "parts")
    assert message in line
    assert list(tmp_path.iterdir()) == [graph]


def test_overlapping_splits_are_refused(graph, tmp_path, capsys):
    np.save(graph / "val_idx.npy", np.load(graph / "train_idx.npy")[:2])
    line = run_refused(capsys, "--input", graph, "--num-parts", 2, "--output", tmp_path / "parts")
    assert "share 2 nodes" in line
    assert list(tmp_path.iterdir()) == [graph]


def test_bad_edge_list_line_is_refused(tmp_path, capsys):
    (tmp_path / "edges.txt").write_text("0 1\n1 two\n")
    argv = ["--input", tmp_path / "edges.txt", "--format", "edgelist", "--num-parts", 2, "--output", tmp_path / "parts"]
    assert "edges.txt, line 2: found '1 two'" in run_refused(capsys, *argv)
    assert list(tmp_path.iterdir()) == [tmp_path / "edges.txt"]


def test_ogb_without_the_package_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb", None)
    monkeypatch.chdir(tmp_path)
    argv = ["--input", "ogbn-arxiv", "--format", "ogb", "--num-parts", 2, "--output", tmp_path / "parts"]
    assert "downloading ogbn-arxiv needs the ogb package" in run_refused(capsys, *argv)


def test_metis_without_its_packages_is_refused(graph, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fastsample_dist.partition.methods.libmetis.load", lambda: None)
    monkeypatch.setitem(sys.modules, "pymetis", None)
    line = run_refused(capsys, "--input", graph, "--num-parts", 2, "--output", tmp_path / "parts")
    assert "pip install fastsample_dist[partition]" in line
    assert list(tmp_path.iterdir()) == [graph]


def test_more_parts_than_nodes_are_refused(tmp_path, capsys):
    graph = write_input(tmp_path / "graph", draw_raw(undirected=True, num_nodes=8, num_train=4))
    line = run_refused(capsys, "--input", graph, "--num-parts", 9, "--output", tmp_path / "parts")
    assert "num_parts is 9 but the graph has 8 nodes" in line
    assert list(tmp_path.iterdir()) == [graph]


def test_more_parts_than_train_nodes_are_refused(tmp_path, capsys):
    graph = write_input(tmp_path / "graph", draw_raw(undirected=True, num_train=4))
    for more in ([], ["--on-disk"]):
        argv = ["--input", graph, "--num-parts", 5, "--output", tmp_path / "parts", *more]
        assert "num_parts is 5 but drawn has 4 train nodes" in run_refused(capsys, *argv)
        assert list(tmp_path.iterdir()) == [graph]


# ---- refusals: the output


def test_existing_output_is_refused(graph, parts, capsys):
    before = (parts / "manifest.json").read_bytes()
    line = run_refused(capsys, "--input", graph, "--num-parts", 3, "--output", parts)
    assert "parts exists; pass --overwrite" in line
    assert (parts / "manifest.json").read_bytes() == before


def test_unwritable_output_is_refused_before_any_work(tmp_path, capsys):
    (tmp_path / "file").touch()
    argv = ["--input", tmp_path / "no-graph", "--num-parts", 2, "--output", tmp_path / "file" / "parts"]
    assert "file is not writable" in run_refused(capsys, *argv)


def test_output_without_a_parent_is_refused(graph, tmp_path, capsys):
    argv = ["--input", graph, "--num-parts", 2, "--output", tmp_path / "missing" / "parts"]
    assert "missing does not exist" in run_refused(capsys, *argv)


@pytest.mark.parametrize("target", ["missing/report.json", "graph"])
def test_unwritable_report_is_refused_before_any_work(graph, tmp_path, capsys, target):
    argv = ["--input", graph, "--num-parts", 2, "--output", tmp_path / "parts", "--json", tmp_path / target]
    assert "--json" in run_refused(capsys, *argv)
    assert list(tmp_path.iterdir()) == [graph]


def test_full_disk_is_one_line_and_leaves_nothing(graph, tmp_path, capsys, monkeypatch):
    def refuse(self: NpyWriter, rows: np.ndarray) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(NpyWriter, "append", refuse)
    line = run_refused(capsys, "--input", graph, "--num-parts", 2, "--output", tmp_path / "parts")
    assert "No space left on device" in line
    assert list(tmp_path.iterdir()) == [graph]


def test_overwrite_that_fails_keeps_the_old_partition(graph, parts, capsys, monkeypatch):
    monkeypatch.setattr(
        fastsample_dist.partition.write.writer, "_write_part", lambda *_: (_ for _ in ()).throw(OSError(5, "I/O error"))
    )
    run_refused(capsys, "--input", graph, "--num-parts", 3, "--output", parts, "--overwrite")
    monkeypatch.undo()
    assert main(["--inspect", str(parts)]) == 0
    assert read_manifest(parts).num_parts == 2


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_interrupted_writing_leaves_nothing(graph, tmp_path, signal_name):
    # The signal arrives, as it would from outside, when the topology is on disk and the parts are not.
    script = (
        "import os, signal, sys\nfrom fastsample_dist.partition import cli\n"
        "from fastsample_dist.partition.write import writer\n"
        f"writer._write_part = lambda *rest: os.kill(os.getpid(), signal.{signal_name})\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    argv = ["--input", graph, "--num-parts", "2", "--output", tmp_path / "parts"]
    done = run_code(script, *argv)
    assert (done.returncode, done.stderr) == (130, "fastsample-partition: interrupted; no partial output is left.\n")
    assert list(tmp_path.iterdir()) == [graph]


def test_interrupt_of_a_method_that_keeps_pythons_lock_ends_the_process_at_once(graph, tmp_path):
    # Inside pymetis, say, no Python code runs, so Ctrl-C must not wait for a Python handler.
    script = (
        "import dataclasses, os, signal, sys, fastsample_dist.partition.cli as cli\n"
        "killing = {'assign': lambda request: os.kill(os.getpid(), signal.SIGINT), 'blocks_signals': lambda: True}\n"
        "cli.METHODS['metis'] = dataclasses.replace(cli.METHODS['metis'], **killing)\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    argv = ["--input", graph, "--num-parts", "2", "--method", "metis", "--output", tmp_path / "parts"]
    argv = [sys.executable, "-c", script, *map(str, argv)]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -2
    assert list(tmp_path.iterdir()) == [graph]


# ---- refusals: the command line


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "one of the arguments --input --inspect --check --plan --repartition is required"),
        (["--input", "g", "--num-parts", "2"], "--input needs --output"),
        (["--input", "g", "--output", "p"], "--input needs --num-parts"),
        (["--input", "g", "--output", "p", "--num-parts", "two"], "invalid int value: 'two'"),
        (["--input", "g", "--output", "p", "--num-parts", "0"], "num_parts is 0; expected an integer >= 1"),
        (["--input", "g", "--output", "p", "--num-parts", "2", "--seed", "-1"], "seed is -1; expected an integer"),
        (["--input", "g", "--output", "p", "--num-parts", "2", "--method", "spectral"], "invalid choice: 'spectral'"),
        (
            ["--input", "g", "--output", "p", "--num-parts", "2", "--format", "npy", "--undirected"],
            "--undirected does not go with --format npy",
        ),
        (
            ["--input", "g", "--output", "p", "--num-parts", "2", "--threads", "1025"],
            "--threads is 1025; expected an integer from 1 to 1024",
        ),
        (["--inspect", "p", "--threads", "2"], "--threads does not go with --inspect"),
        (["--inspect", "p", "--input", "g"], "not allowed with argument"),
        (["--inspect", "p", "--num-parts", "2"], "--num-parts does not go with --inspect"),
    ],
)
def test_wrong_command_line_is_refused_in_one_line(argv, message, capsys):
    assert message in run_refused(capsys, *argv)


# ---- refusals: --inspect


@pytest.mark.parametrize("name", ["topology/indices.npy", "part-1/features.npy", "part-0/train.npy"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "altered"])
def test_damaged_file_is_named(parts, capsys, name, damage):
    file = parts / name
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        os.truncate(file, file.stat().st_size - 8)
    else:
        data = bytearray(file.read_bytes())
        data[-3] ^= 64
        file.write_bytes(data)
    assert f"{file} is {damage}" in run_refused(capsys, "--inspect", parts)


def test_newer_version_is_refused(parts, capsys):
    manifest = json.loads((parts / "manifest.json").read_text())
    (parts / "manifest.json").write_text(json.dumps({**manifest, "version": 7}))
    line = run_refused(capsys, "--inspect", parts)
    assert "this is format version 7; this release reads versions 1 and 2; upgrade" in line


def test_directory_that_is_no_partition_is_refused(graph, capsys):
    assert "manifest.json is missing" in run_refused(capsys, "--inspect", graph)


def test_output_name_too_long_is_refused_in_one_line(graph, tmp_path, capsys):
    output = tmp_path / ("x" * 300)
    assert "File name too long" in run_refused(capsys, "--input", graph, "--num-parts", 2, "--output", output)


def test_output_that_appears_meanwhile_stays_and_is_named(graph, tmp_path, capsys, monkeypatch):
    write_part = fastsample_dist.partition.write.writer._write_part

    def write_after_another_run(*given: object) -> None:
        (tmp_path / "parts").mkdir(exist_ok=True)
        (tmp_path / "parts/theirs").touch()
        write_part(*given)

    monkeypatch.setattr(fastsample_dist.partition.write.writer, "_write_part", write_after_another_run)
    line = run_refused(capsys, "--input", graph, "--num-parts", 2, "--method", "random", "--output", tmp_path / "parts")
    assert "parts has appeared in the meantime, made by another run" in line
    assert [item.name for item in (tmp_path / "parts").iterdir()] == ["theirs"]

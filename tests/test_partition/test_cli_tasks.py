"""fastsample-partition --check, --repartition and --inspect with traffic, as commands."""

import json
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from tests.forked import run_code
from tests.test_partition.damage import entry, rewrite
from tests.test_partition.inputs import draw_raw


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Two parts."""
    raw = draw_raw(undirected=True)
    raw.labels[:] = np.maximum(raw.labels, 0)
    build_partition(raw, PartitionOptions(num_parts=2, method="random"), tmp_path / "parts")
    return tmp_path / "parts"


def command(*argv: object) -> int:
    return main([str(item) for item in argv])


def test_check_of_a_sound_partition_ends_with_0(parts, tmp_path, capsys):
    assert command("--check", parts, "--json", tmp_path / "check.json") == 0
    output = capsys.readouterr()
    assert output.err == "" and f"{parts}: sound (2 parts, " in output.out
    assert json.loads((tmp_path / "check.json").read_text())["findings"] == []


def test_check_of_a_damaged_partition_ends_with_1_and_still_reports(parts, tmp_path, capsys):
    rewrite(parts, "part-1/labels.npy", entry(3, 99))
    assert command("--check", parts, "--json", tmp_path / "check.json") == 1
    assert f"{parts / 'part-1/labels.npy'}, entry 3: is 99" in capsys.readouterr().out
    assert json.loads((tmp_path / "check.json").read_text())["findings"][0]["position"] == 3


def test_repartition_writes_and_reports(parts, tmp_path, capsys):
    assert command("--repartition", parts, 4, "--output", tmp_path / "four", "--json", tmp_path / "four.json") == 0
    assert read_manifest(tmp_path / "four").num_parts == 4
    assert "write the new parts: " in capsys.readouterr().out
    assert json.loads((tmp_path / "four.json").read_text())["num_parts"] == 4
    assert command("--check", tmp_path / "four") == 0


def test_page_and_report_in_one_file_are_refused(parts, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    assert command("--inspect", parts, "--html", tmp_path / "x", "--json", tmp_path / "x") == 1
    assert "--json and --html are both" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_inspect_measures_traffic_and_draws_the_page(parts, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    files = "--html", tmp_path / "page.html", "--json", tmp_path / "report.json"
    assert command("--inspect", parts, "--fanouts", "3,2", "--batch-size", 5, *files) == 0
    assert "remote rows per step and machine" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text())["traffic"]["options"]["batch_size"] == 5
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_repartition_by_the_numbers_before_and_after(parts, tmp_path):
    assert command("--repartition", 2, 4, "--input", parts, "--output", tmp_path / "new") == 0
    assert command("--repartition", parts, 4, "--output", tmp_path / "same") == 0
    assert read_manifest(tmp_path / "new") == read_manifest(tmp_path / "same")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((8, 4), "--repartition's OLD_P is 8 but"), (("p", 4), "--repartition's OLD_P is 'p'; expected a number")],
)
def test_wrong_number_before_is_refused(parts, tmp_path, capsys, numbers, message):
    assert command("--repartition", *numbers, "--input", parts, "--output", tmp_path / "new") == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_terminated_repartition_leaves_nothing(parts, tmp_path):
    script = (
        "import os, signal, sys\n"
        "from fastsample_dist.partition import cli\n"
        "from fastsample_dist.partition.write import repartition as module\n"
        "module._rewrite_column = lambda *rest: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    done = run_code(script, "--repartition", parts, "4", "--output", tmp_path / "four")
    assert (done.returncode, done.stderr) == (130, "fastsample-partition: interrupted; no partial output is left.\n")
    assert list(tmp_path.iterdir()) == [parts]


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--check", "p", "--output", "q"], "--output does not go with --check"),
        (["--check", "p", "--fanouts", "5,5"], "--fanouts does not go with --check"),
        (["--repartition", "p", "4"], "--repartition needs --output"),
        (["--repartition", "p", "4", "--output", "q", "--method", "random"], "--method does not go with --repartition"),
        (["--repartition", "p"], "expected 2 arguments"),
        (["--input", "g", "--html", "f", "--num-parts", "2", "--output", "p"], "--html does not go with --input"),
        (["--inspect", "p", "--batch-size", "5"], "--batch-size goes with --fanouts only"),
        (["--check", "p", "--inspect", "p"], "not allowed with argument"),
    ],
)
def test_options_out_of_place_are_refused_in_one_line(argv, message, capsys):
    assert command(*argv) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error

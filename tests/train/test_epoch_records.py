"""What is recorded of every epoch, by the command on two ranks and in one process; and records read back."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from fastsample_dist.train import cli
from fastsample_dist.train.epoch_records import COUNTS, MEMORY, TIMES, read_records
from fastsample_dist.train.report_page import render_page
from tests.forked import run_forked
from tests.html_pages import rows
from tests.train.records import make_records
from tests.train.task import make_task

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_sage.py"
SMALL = ("--batch-size", 40, "--fanouts", "4,3", "--hidden", 16, "--threads", 1)


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory):
    """(directory with out.json, epochs.jsonl and page.html, the JSON) of two ranks."""
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    where = tmp_path_factory.mktemp("two")
    files = ("--json", where / "out.json", "--jsonl", where / "epochs.jsonl", "--report", where / "page.html")
    finished = run_forked(
        2, SCRIPT, ["--data", make_task(where, 2, dtype="float32").path, *SMALL, "--epochs", 3, *files]
    )
    assert finished.returncode == 0, finished.stderr
    return where, json.loads((where / "out.json").read_text())


@pytest.fixture
def main():
    """The command in this process, with its exit status."""
    threads = torch.get_num_threads()

    def call(*argv):
        try:
            return cli.main([*map(str, argv)])
        except SystemExit as end:
            return end.code

    yield call
    torch.set_num_threads(threads)


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


# ---- what a run records


def test_ranks_are_recorded_beside_their_means(run_of_two):
    for epoch in run_of_two[1]["epochs"]:
        assert [rank["rank"] for rank in epoch["ranks"]] == [0, 1]
        assert all(rank["steps"] == epoch["steps"] and rank.keys() >= set(MEMORY) for rank in epoch["ranks"])
        for name in TIMES:
            assert sum(rank[name] for rank in epoch["ranks"]) / 2 == pytest.approx(epoch[name], rel=1e-12)


def test_counts_of_the_epochs_add_up_to_those_of_training(run_of_two):
    epochs, comm = run_of_two[1]["epochs"], run_of_two[1]["comm"]
    for purpose, counts in comm.items():
        for name in COUNTS:
            assert sum(epoch["ranks"][0]["comm"].get(purpose, {}).get(name, 0) for epoch in epochs) == counts[name]
    assert "records" not in comm and comm["gradients"]["calls"] == run_of_two[1]["steps"]


def test_what_was_run_is_recorded(run_of_two):
    found = run_of_two[1]["epochs"][0]["run"]
    assert (found["graph"], found["ranks"], found["fanouts"], found["epochs"]) == ("communities", 2, [4, 3], 3)


def test_a_line_of_the_file_is_the_epochs_record(run_of_two):
    where, results = run_of_two
    lines = [json.loads(line) for line in (where / "epochs.jsonl").read_text().splitlines()]
    assert [line.pop("step") for line in lines] == [line["steps"] * (line["epoch"] + 1) for line in lines]
    assert lines == results["epochs"] and "test_acc" in lines[-1]


# ---- the page of the command


def test_the_page_of_the_run_and_of_its_file_are_the_same(run_of_two, main, tmp_path):
    where, results = run_of_two
    page = (where / "page.html").read_text()
    assert main("--report", tmp_path / "page.html", "--from-jsonl", where / "epochs.jsonl") == 0
    assert (tmp_path / "page.html").read_text() == page == render_page(results["epochs"])
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert ["test accuracy", f"{results['test_acc']:.4f} after epoch 3"] in rows(page)


def test_epochs_before_a_restart_are_on_the_page(main, tmp_path):
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    page, lines = tmp_path / "page.html", tmp_path / "epochs.jsonl"
    parts = make_task(tmp_path, 1, dtype="float32").path
    options = ("--data", parts, *SMALL, "--checkpoint-dir", tmp_path / "saved", "--report", page, "--jsonl", lines)
    assert main(*options, "--epochs", 1) == main(*options, "--epochs", 3, "--resume") == 0
    records = read_records(lines)
    assert [record["epoch"] for record in records] == [0, 1, 2]
    assert page.read_text() == render_page(records)
    assert ["epochs recorded", "3 epochs, 1 to 3"] in rows(page.read_text())


# ---- reading a file


def test_a_run_that_continued_a_file_replaces_what_it_did_again(tmp_path):
    first, again = make_records(4), [{**record, "loss": 0.5} for record in make_records(4)]
    assert read_records(write_lines(tmp_path / "a", first)) == first
    assert read_records(write_lines(tmp_path / "b", [*first, *again[2:]])) == [*first[:2], *again[2:]]
    assert read_records(write_lines(tmp_path / "c", [*first, *again[:2]])) == again[:2]


def test_blank_lines_are_no_records(tmp_path):
    path = write_lines(tmp_path / "a", make_records(1))
    path.write_text("\n" + path.read_text() + "\n")
    assert len(read_records(path)) == 1


@pytest.mark.parametrize("name", ["loss", "val_acc"])
def test_what_was_no_number_leaves_a_gap(tmp_path, name):
    records = make_records(3)
    records[1][name] = None
    records = read_records(write_lines(tmp_path / "a", records))
    assert math.isnan(records[1][name])
    render_page(records)


def changed(**values):
    return json.dumps({**make_records(1)[0], **values})


DAMAGES = {
    "half a line": ('{"epoch": 1, "lo', "Unterminated string"),
    "not text": ("\udcff", "'utf-8' codec can't decode"),
    "not an object": ("[1, 2]", "the line is list, expected an object"),
    "a figure is missing": ('{"epoch": 1}', "loss of the line is None, expected a number"),
    "a figure is text": (changed(seconds="long"), "seconds of the line is 'long', expected a number"),
    "a score is text": (changed(val_acc="good"), "val_acc of the line is 'good', expected a number"),
    "ranks are a number": (changed(ranks=2), "ranks is int, expected a list"),
    "a rank is empty": (changed(ranks=[{}]), r"rank of ranks\[0\] is None, expected a number"),
    "counts are missing": (
        changed(ranks=[{**make_records(1)[0]["ranks"][0], "comm": {"rows": {}}}]),
        r"calls of comm of rows in ranks\[0\] is None, expected a number",
    ),
    "the run is a list": (changed(run=[1]), "run is list, expected an object"),
    "roles lack a rank": (
        changed(roles={"samplers": 1, "trainers": 1, "standby": 0, "sampled": [0, 5], "trained": [5]}),
        "trained of roles has 1 entries, expected one per rank",
    ),
    "a count of roles is text": (
        changed(roles={"samplers": 1, "trainers": 1, "standby": 0, "sampled": [0, "5"], "trained": [5, 0]}),
        "1 of sampled of roles is '5', expected a number",
    ),
    "a hit rate is text": (changed(cache={"hit_rate": "high"}), "hit_rate of cache is 'high', expected a number"),
}


@pytest.mark.parametrize("line, reason", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_line_is_refused_by_its_number(tmp_path, line, reason):
    path = write_lines(tmp_path / "a.jsonl", make_records(1))
    path.write_bytes(path.read_bytes() + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(ValueError, match=rf"a\.jsonl: line 2 is not the record of an epoch \({reason}"):
        read_records(path)


# ---- refusals of the command


def refusal(capsys):
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    return printed.err


def test_a_file_that_is_missing_or_empty_is_refused(main, tmp_path, capsys):
    target, lines = tmp_path / "page.html", tmp_path / "a.jsonl"
    assert main("--report", target, "--from-jsonl", lines) == 1
    assert f"--from-jsonl {lines} cannot be read (No such file or directory)" in refusal(capsys)
    lines.touch()
    assert main("--report", target, "--from-jsonl", lines) == 1
    assert f"--from-jsonl {lines} has no line" in refusal(capsys) and not target.exists()


@pytest.mark.parametrize(
    "options, text",
    [
        (("--from-jsonl", "a"), "--from-jsonl RUN goes with --report FILE only, which is missing"),
        (
            ("--from-jsonl", "a", "--report", "b", "--data", "c", "--epochs", 3),
            "--from-jsonl RUN goes with --report FILE only, not with --data, --epochs",
        ),
        (("--report", "b"), "the following arguments are required: --data"),
    ],
)
def test_options_that_do_not_go_together_are_refused(main, capsys, options, text):
    assert main(*options) == 1
    assert text in refusal(capsys)


@pytest.mark.parametrize("options", [("--data", "no-such-parts"), ("--from-jsonl", "no-such-file")])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(main, tmp_path, capsys, options):
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    assert main(*options, "--report", tmp_path / "no" / "page.html") == 1
    expected = f"--report {tmp_path}/no/page.html cannot be written (No such file or directory)"
    assert expected in refusal(capsys)


@pytest.mark.parametrize("options", [("--data", "no-such-parts"), ("--from-jsonl", "no-such-file")])
def test_without_matplotlib_one_line_names_the_extra_before_the_work(main, tmp_path, capsys, monkeypatch, options):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(*options, "--report", tmp_path / "page.html") == 1
    text = refusal(capsys)
    assert "--report draws with matplotlib" in text and "pip install fastsample_dist[report], or take --jsonl" in text
    assert list(tmp_path.iterdir()) == []


def test_a_page_does_not_replace_the_records_that_it_is_made_of(main, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    (tmp_path / "run.jsonl").write_text("records")
    assert main("--from-jsonl", tmp_path / "run.jsonl", "--report", tmp_path / "run.jsonl") == 1
    assert f"--from-jsonl and --report are both {tmp_path}/run.jsonl; pass two names." in refusal(capsys)
    assert (tmp_path / "run.jsonl").read_text() == "records"

"""--inspect: tables, JSON and the HTML page; the page stands alone."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastsample_dist.partition.cli_tasks import run_inspect as run
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.report.html import render_html
from fastsample_dist.partition.report.inspection import (
    add_options,
    add_sampling_options,
    make_report,
    parse_fanouts,
    traffic_lines,
)
from fastsample_dist.partition.report.traffic import TrafficOptions
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from tests.html_pages import SVG, check_self_contained, elements, pictures
from tests.test_partition.inputs import draw_raw

OPTIONS = TrafficOptions(fanouts=(4, 3), batch_size=3)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drawn") / "parts"
    build_partition(draw_raw(undirected=True), PartitionOptions(num_parts=3, method="random"), path)
    return path


@pytest.fixture(scope="module")
def report(parts: Path) -> dict:
    return make_report(parts, OPTIONS)


@pytest.fixture(scope="module")
def page(report: dict) -> str:
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    return render_html(report)


def parse(*argv: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inspect")
    parser.add_argument("--json")
    add_options(parser)
    add_sampling_options(parser)
    return parser.parse_args([str(item) for item in argv])


# ---- JSON


def test_report_is_plain_json(report):
    read = json.loads(json.dumps(report, allow_nan=False))
    assert {"edge_cut", "balance", "parts", "traffic", "files_verified", "path"} <= read.keys()
    assert read["traffic"]["options"]["fanouts"] == [4, 3] and len(read["traffic"]["parts"]) == 3


def test_traffic_is_measured_only_on_request(parts, report):
    without = make_report(parts)
    assert without == {key: value for key, value in report.items() if key != "traffic"}


def test_balance_has_every_constraint(report):
    assert {"nodes", "in_edges", "train", "val", "test"} <= report["balance"].keys()


def test_lines_for_the_terminal_tell_the_figures(report):
    text = "\n".join(traffic_lines(report["traffic"]))
    assert "fanouts 4,3, 3 seeds per step" in text
    assert f"{report['traffic']['remote_rows_per_step']['mean']:,.0f} (standard error" in text
    for word in (
        "bytes per epoch, hybrid",
        "bytes per epoch, vanilla",
        "degree",
        "hotness",
        "vip",
        "oracle",
        "advice: --cache ",
    ):
        assert word in text
    assert len([line for line in text.splitlines() if re.match(r" +[012] ", line)]) == 3


def test_every_step_is_reported_from_nothing_to_the_whole(parts):
    class Recorder(Progress):
        def __init__(self) -> None:
            self.steps: dict[str, list[int]] = {}

        @contextmanager
        def step(self, name: str) -> Iterator[None]:
            self.steps[name] = [0, 0]
            self.now = self.steps[name]
            yield

        def bytes_total(self, count: int) -> None:
            self.now[0] += count

        def bytes_done(self, count: int) -> None:
            self.now[1] += count

    recorder = Recorder()
    make_report(parts, OPTIONS, recorder)
    assert list(recorder.steps) == ["verify", "measure", "traffic"]
    for name in ("verify", "traffic"):
        total, done = recorder.steps[name]
        assert total == done > 0


# ---- the page


def test_page_has_its_plots_inside(page):
    found = pictures(page)
    assert len(found) == 4 and all(root.tag == f"{SVG}svg" for root in found)
    assert all(len(list(root.iter(f"{SVG}path"))) > 10 for root in found)


def test_page_asks_for_nothing_from_outside(page):
    check_self_contained(page)


def test_page_tells_the_figures(page, report):
    for text in ("drawn in 3 parts", f"({report['edge_cut']['fraction']:.2%})", "fanouts 4,3, 3 seeds per step"):
        assert text in page
    for part in report["parts"]:
        assert f"<td>{part['halo_nodes']}</td>" in page


def test_page_without_traffic_has_the_other_plots(page, report):
    short = render_html({key: value for key, value in report.items() if key != "traffic"})
    assert len(pictures(short)) == 2 and "Remote rows" not in short


def test_the_same_report_gives_the_same_page(page, report):
    assert render_html(report) == page


def test_names_are_text_not_markup(report):
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    page = render_html({**report, "name": "<script>alert(1)</script>", "path": "a&b<c>"})
    assert "<script>" not in page and "a&amp;b&lt;c&gt;" in page
    elements(page)


def test_page_of_a_bare_topology_in_one_part_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    raw = draw_raw(undirected=True)
    raw = type(raw)(name="bare", num_nodes=raw.num_nodes, undirected=True, edge_index=raw.edge_index[:, :0])
    build_partition(raw, PartitionOptions(num_parts=1, method="random"), tmp_path / "parts")
    assert len(pictures(render_html(make_report(tmp_path / "parts")))) == 2


# ---- the command


def test_command_writes_the_page_and_prints_the_traffic(parts, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    target = tmp_path / "report.html"
    args = parse("--inspect", parts, "--fanouts", "4,3", "--batch-size", 3, "--num-batches", 8, "--html", target)
    status, report = run(args, Progress())
    output = capsys.readouterr().out
    assert status == 0 and report["traffic"]["options"]["num_batches"] == 8
    assert "edge cut" in output and "traffic, one machine per part" in output and f"page: {target}" in output
    assert target.read_text() == render_html(report)
    assert list(tmp_path.iterdir()) == [target]


def test_command_without_options_is_the_plain_report(parts, capsys):
    _, report = run(parse("--inspect", parts), Progress())
    assert "traffic" not in report and "traffic" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, text",
    [
        (["--batch-size", 10], "--batch-size goes with --fanouts only"),
        (["--num-batches", 10], "--num-batches goes with --fanouts only"),
        (["--fanouts", "15;10"], "--fanouts is '15;10'; expected integers with commas"),
        (["--fanouts", "15,10", "--batch-size", 0], "batch_size is 0"),
    ],
)
def test_wrong_options_are_refused_before_any_work(argv, text):
    with pytest.raises(ValueError, match=text):
        run(parse("--inspect", "no-such-partition", *argv), Progress())


@pytest.mark.parametrize("target, text", [("", "is a directory"), ("missing/page.html", "cannot be written")])
def test_page_that_cannot_be_written_is_refused_before_any_work(tmp_path, target, text):
    pytest.importorskip("matplotlib", reason="the page is drawn with matplotlib, which is not installed")
    with pytest.raises(ValueError, match=f"--html .* {text}"):
        run(parse("--inspect", "no-such-partition", "--html", tmp_path / target), Progress())


def test_page_without_matplotlib_is_refused_in_one_line_that_names_the_extra(parts, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install fastsample_dist\[report\]") as refusal:
        run(parse("--inspect", parts, "--html", tmp_path / "page.html"), Progress())
    assert "\n" not in str(refusal.value) and list(tmp_path.iterdir()) == []


def test_fanouts_are_integers_between_commas():
    assert parse_fanouts("15,10,-1") == (15, 10, -1)

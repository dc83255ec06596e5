"""partition_table.py from the command line: a row per method, figures that are the assignment's, failures reported."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "partition_table.py"


def run_table(tmp_path: Path, *options: str) -> tuple[str, dict]:
    command = [sys.executable, str(SCRIPT), "--work", str(tmp_path), "--json", str(tmp_path / "table.json"), *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout, json.loads((tmp_path / "table.json").read_text())


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    directory = tmp_path_factory.mktemp("table")
    return run_table(directory, "--graph", "rmat:10:8", "--num-parts", "3", "--methods", "metis,ldg,random")


@pytest.mark.grid
def test_every_method_has_a_row(table):
    shown, report = table
    (graph,) = report["graphs"]
    assert [row["method"] for row in graph["rows"]] == ["metis", "ldg", "random"]
    assert graph["nodes"] == 1024
    assert "rmat:10:8" in shown and "ldg" in shown


@pytest.mark.grid
def test_figures_are_plausible_and_train_nodes_even(table):
    for row in table[1]["graphs"][0]["rows"]:
        low, high = row["counts"]["train"]
        assert high - low <= 1
        assert 0 < row["cut"] < 0.75 and row["seconds"] > 0 and row["peak_bytes"] > 1e7
        assert row["shares"]["nodes"][0] <= 1 <= row["shares"]["nodes"][1]


@pytest.mark.grid
def test_a_planted_graph_has_its_own_cut_as_a_row(tmp_path):
    """Six communities in two parts: half of the others are in the same part, roughly, so that 30 % gives some 18 %."""
    shown, report = run_table(
        tmp_path, "--graph", "planted:600:30000:6:0.3", "--num-parts", "2", "--methods", "ldg,planted"
    )
    ldg, planted = report["graphs"][0]["rows"]
    assert 0.12 < planted["cut"] < 0.24 and planted["cut"] < ldg["cut"] * 1.1
    assert planted["counts"]["train"] == [30, 30] and "planted-600-30000-6" in shown


@pytest.mark.grid
def test_a_graph_without_communities_has_no_planted_row(tmp_path):
    _, report = run_table(tmp_path, "--graph", "rmat:6:2", "--num-parts", "2", "--methods", "planted")
    assert "planted needs the communities of a planted graph: planted.npy" in report["graphs"][0]["rows"][0]["failed"]


@pytest.mark.grid
def test_cut_is_counted_from_the_edges(tmp_path):
    graph = tmp_path / "ring"
    graph.mkdir()
    (graph / "meta.json").write_text(json.dumps({"name": "ring", "num_nodes": 12, "undirected": True}))
    np.save(graph / "edge_index.npy", np.stack([np.arange(12), (np.arange(12) + 1) % 12]))
    _, report = run_table(tmp_path, "--graph", str(graph), "--num-parts", "3", "--methods", "range")
    (row,) = report["graphs"][0]["rows"]
    assert row["cut"] == 6 / 24  # three borders, both directions


@pytest.mark.grid
def test_a_method_that_fails_gives_its_reason(tmp_path):
    shown, report = run_table(tmp_path, "--graph", "rmat:6:2", "--num-parts", "3", "--methods", "file,random")
    failed, done = report["graphs"][0]["rows"]
    assert "method file needs the file" in failed["failed"] and "cut" in done
    assert "method file needs" in shown


@pytest.mark.grid
def test_methods_take_options(tmp_path):
    methods = ("ldg", "ldg:passes=1", "ldg:order=bfs:passes=1", "ldg:pases=1", "range:order=bfs")
    _, report = run_table(tmp_path, "--graph", "rmat:8:4", "--num-parts", "3", "--methods", ",".join(methods))
    *done, unknown, unread = report["graphs"][0]["rows"]
    assert [row["method"] for row in done] == list(methods[:3])
    assert len({(row["cut"], str(row["shares"])) for row in done}) == 3
    assert "has the option 'pases'; expected passes, order, buffer" in unknown["failed"]
    assert "order does not go with method range" in unread["failed"]


PROGRAM = f"""#!{sys.executable}
import sys
graph, *options = sys.argv[1:]
given = dict(option[2:].split("=") for option in options)
nodes, pairs = map(int, open(graph).readline().split()[:2])
rows = [line.split() for line in open(graph)][1:]
assert len(rows) == nodes and sum(map(len, rows)) == 2 * pairs and given["batch_size"] == "16"
assert all(str(node + 1) in rows[int(other) - 1] for node, row in enumerate(rows) for other in row)
with open(given["output_filename"], "w") as out:
    out.writelines(f"{{node * int(given['k']) // nodes}}\\n" for node in range(nodes))
"""


@pytest.mark.grid
def test_heistream_is_a_program_that_the_user_has_built(tmp_path):
    (tmp_path / "built").mkdir()
    program = tmp_path / "built" / "heistream"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    methods = ("range", "heistream:batch_size=16", "heistream:batch_size=17")
    options = ("--num-parts", "2", "--methods", ",".join(methods), "--heistream", str(tmp_path / "built"))
    shown, report = run_table(tmp_path, "--graph", "rmat:8:4", *options)
    ours, theirs, failed = report["graphs"][0]["rows"]
    assert theirs["shares"]["nodes"] == [1, 1] and theirs["seconds"] > 0 and theirs["peak_bytes"] > 1e6
    assert "levelled as ours are, it cuts" in shown and "ended with 1 and no parts" in failed["failed"]
    assert abs(theirs["cut"] - ours["cut"]) < 0.05  # range moves train nodes afterwards


@pytest.mark.parametrize("side, needs", [("dgl", "dgl"), ("heistream", "json")])
def test_what_it_starts_shows_its_arguments(side, needs, monkeypatch, capsys):
    pytest.importorskip(needs)
    monkeypatch.setattr(sys, "argv", ["side", "--help"])
    with pytest.raises(SystemExit, match="^0$"):
        runpy.run_path(str(SCRIPT.with_name(f"partition_table_{side}.py")), run_name="__main__")
    assert "result num_parts" in " ".join(capsys.readouterr().out.split())

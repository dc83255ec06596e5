"""Ids with huge gaps are refused with the counts; duplicates, self-loops and isolated nodes are counted."""

import dataclasses
import json
import logging
import re

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.graph import npy_files
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.memory_sizes import resident_bytes
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.report import multiplicity
from fastsample_dist.partition.write import gaps
from fastsample_dist.partition.write.gaps import check_gaps
from tests.test_partition.inputs import draw_raw

SPARSE = np.random.default_rng(0).choice(49_000_000, (2, 400), replace=False)
SPARSE[0, 7] = 48_999_999


def arguments(graph, output, *more: object) -> list[str]:
    return [str(item) for item in ("--input", graph, "--num-parts", 2, "--method", "random", "--output", output, *more)]


def write_list(file, edges) -> None:
    file.write_text("".join(f"{src} {dst}\n" for src, dst in edges.T.tolist()))


COUNTS = "400 edges name 800 distinct ids, but the largest is 48999999, which means 49000000 nodes"


def test_few_edges_with_far_ids_are_refused_with_the_counts(tmp_path, capsys):
    write_list(tmp_path / "edges.txt", SPARSE)
    assert main(arguments(tmp_path / "edges.txt", tmp_path / "parts")) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert COUNTS in line and "--relabel" in line and "num_nodes" in line
    assert [file.name for file in tmp_path.iterdir()] == ["edges.txt"]


@pytest.mark.parametrize(
    "highest, message",
    [
        (48_999_999, "the largest is 48999999, which means 49000000 nodes"),
        (2_999_999_999, "the largest is 2999999999, which means 3000000000 nodes"),
        (3_000_000_000, "node id 3000000000.*; expected 0 to 2999999999"),
        (2**62, f"node id {2**62}.*; expected 0 to 2999999999"),
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".parquet"])
def test_far_ids_need_relabelling_rather_than_memory(tmp_path, capsys, highest, message, suffix):
    """Before the list is read, what so many nodes would take is no reason yet."""
    file, ids = tmp_path / f"edges{suffix}", [[0, 5], [7, highest]]
    if suffix == ".txt":
        write_list(file, np.array(ids))
    else:
        pa = pytest.importorskip("pyarrow", reason="parquet files are read with pyarrow, which is not installed")
        pytest.importorskip("pyarrow.parquet").write_table(pa.table({"src": ids[0], "dst": ids[1]}), file)
    limit = resident_bytes(peak=True) + 1_500_000_000  # what earlier tests have left in this process is counted too
    assert main(arguments(file, tmp_path / "parts", "--memory-limit", limit)) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and re.search(message, line) and "--relabel" in line


def test_arrays_with_far_ids_are_refused_too(tmp_path):
    with pytest.raises(ValueError, match=f"{COUNTS}.*numpy.unique"):
        fsd.partition_graph(SPARSE, num_parts=2, method="random", output=tmp_path / "parts")


def test_who_states_the_nodes_gets_them(monkeypatch):
    raw = RawGraph(name="few", num_nodes=49_000_000, undirected=False, edge_index=SPARSE)
    check_gaps(raw)
    with pytest.raises(ValueError, match=COUNTS):
        check_gaps(dataclasses.replace(raw, counted_by_ids=True))
    monkeypatch.setattr(gaps, "COUNTED_EDGES", 10)
    with pytest.raises(ValueError, match="400 edges name at most 800 distinct ids"):
        check_gaps(dataclasses.replace(raw, counted_by_ids=True))


@pytest.mark.parametrize("num_nodes, num_edges", [(1 << 20, 1), (2_000_000, 100_000), (49_000_000, 2_450_000)])
def test_graphs_with_some_gaps_are_taken(num_nodes, num_edges):
    edges = np.zeros((2, num_edges), dtype=np.int64)
    check_gaps(RawGraph(name="some", num_nodes=num_nodes, undirected=False, edge_index=edges, counted_by_ids=True))


def expected_counts(raw: RawGraph) -> dict[str, int | None]:
    """Counted from the list, one by one."""
    edges = list(zip(*raw.edge_index.tolist(), strict=True))
    pairs = {(min(edge), max(edge)) for edge in edges}
    loops = [edge for edge in (pairs if raw.undirected else edges) if edge[0] == edge[1]]
    return {
        "parallel_edges": 0 if raw.undirected else len(edges) - len(set(edges)),
        "self_loops": len(loops),
        "isolated_nodes": raw.num_nodes - len({node for edge in edges for node in edge}),
        "merged_duplicates": len(edges) - len(pairs) if raw.undirected else None,
    }


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("step", [1, 3, 1 << 19])
def test_counts_are_those_of_the_list(tmp_path, caplog, monkeypatch, undirected, on_disk, step):
    monkeypatch.setattr(multiplicity, "STEP_EDGES", step)
    raw = draw_raw(undirected=undirected)
    given = {"num_parts": 3, "method": "random", "on_disk": on_disk, "output": tmp_path / "parts"}
    counts = fsd.partition_graph(raw, **given).edge_counts.to_json()
    assert counts == expected_counts(raw)
    assert counts["self_loops"] > 0 and counts["isolated_nodes"] >= 3
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    text = f"drawn: {counts['parallel_edges']} edges are duplicates of another; kept as parallel edges"
    assert warned == ([] if undirected else [text])  # reaches whoever calls it from Python


def test_the_command_prints_and_reports_them(tmp_path, capsys):
    write_list(tmp_path / "edges.txt", np.array([[0, 0, 1, 3, 3, 5], [1, 1, 0, 3, 3, 0]]))
    for more, said in (
        ([], ["2 edges are duplicates of another; kept as parallel", "2 edges are self-loops", "2 nodes have no edge"]),
        (
            ["--undirected"],
            [
                "3 listed edges were duplicates (in either direction); merged, the first listed counts",
                "1 edges are self",
            ],
        ),
    ):
        argv = arguments(tmp_path / "edges.txt", tmp_path / f"parts{len(more)}", "--json", tmp_path / "r.json", *more)
        assert main(argv) == 0
        output = capsys.readouterr()
        for sentence in said:
            assert sentence in output.out
        assert ("warning: edges: 2 edges are duplicates" in output.err) == (not more)
        report = json.loads((tmp_path / "r.json").read_text())
        assert report["edge_counts"]["isolated_nodes"] == 2
        assert main(["--inspect", str(tmp_path / f"parts{len(more)}")]) == 0
        assert all(sentence in capsys.readouterr().out for sentence in said[:1])


def test_a_graph_without_oddities_says_nothing():
    counts = multiplicity.EdgeCounts(parallel_edges=0, self_loops=0, isolated_nodes=0, merged_duplicates=0)
    assert counts.lines() == []


def test_a_plan_refuses_what_a_run_would(tmp_path, capsys):
    file = tmp_path / "edges.txt"
    write_list(file, SPARSE)
    plan = ["--plan", "--input", str(file), "--num-parts", "2"]
    assert main(plan) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and re.search(r"edges\.txt: the ids of its 400 edges go up to 49\d{6} or so", line)
    assert "--relabel" in line and "num_nodes in meta.json" in line
    (tmp_path / "meta.json").write_text('{"name": "stated", "num_nodes": 49000000, "undirected": false}')
    plan[2] = str(tmp_path)
    assert main(plan) == 0


def warned_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


UNLIKE = (
    "{}: {} listed edge(s) repeat an earlier one (in either direction) with another weight; merged, the weight of the "
    "first listed is kept: where weights are meant to add up, add them up before."
)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("edge_map", [False, True])
@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_merged_edges_of_another_weight_are_counted(tmp_path, caplog, monkeypatch, on_disk, edge_map, chunk_bytes):
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", chunk_bytes)
    raw = draw_raw(undirected=True)
    weights = np.random.default_rng(2).integers(1, 4, raw.edge_index.shape[1]).astype(np.float32)
    kept, unlike = {}, 0
    for src, dst, weight in zip(*raw.edge_index.tolist(), weights.tolist(), strict=True):
        unlike += kept.setdefault((min(src, dst), max(src, dst)), weight) != weight
    given = {"num_parts": 3, "method": "random", "on_disk": on_disk, "edge_map": edge_map}
    fsd.partition_graph(dataclasses.replace(raw, edge_weight=weights), **given, output=tmp_path / "parts")
    assert unlike > 5 and warned_of(caplog) == [UNLIKE.format("drawn", unlike)]
    caplog.clear()
    like = dataclasses.replace(raw, edge_weight=np.full_like(weights, 2.5))
    fsd.partition_graph(like, **given, output=tmp_path / "like")
    assert warned_of(caplog) == []


def test_of_a_graph_whose_directions_weigh_differently_one_counts(tmp_path, caplog):
    graph = fsd.CSCGraph.from_edge_index([0, 1, 1, 2], [1, 0, 2, 1], 3, torch.tensor([1.0, 2.0, 3.0, 3.0]))
    fsd.partition_graph(graph, undirected=True, num_parts=1, method="random", output=tmp_path / "parts")
    assert warned_of(caplog) == [UNLIKE.format("graph", 1)]

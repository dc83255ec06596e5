"""Edges in .parquet: which columns are taken, and the column and row of what is not an edge."""

import json
import logging
import sys

import numpy as np
import pytest

from fastsample_dist.graph.inputs import EdgeListOptions, ReadOptions, Scratch, edgelist, least_sizes, parquet_edges
from fastsample_dist.graph.inputs.edgelist import read_edgelist

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(path, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return path


def read(path, **options):
    return read_edgelist(path, ReadOptions(**options))


@pytest.mark.parametrize(
    "src, dst",
    [("src", "dst"), ("source", "target"), ("Source", "Destination"), ("u", "v"), ("from", "to"), ("a", "b")],
)
def test_ends_are_found_by_name_or_as_the_only_integers(tmp_path, src, dst):
    raw = read(write(tmp_path / "web.parquet", **{src: [0, 2], dst: [1, 1]}))
    assert raw.edge_index.tolist() == [[0, 2], [1, 1]]
    assert (raw.name, raw.num_nodes, raw.edge_weight) == ("web", 3, None)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_integer_types(tmp_path, dtype):
    ids = np.array([0, 7], dtype=dtype)
    assert read(write(tmp_path / "web.parquet", src=ids, dst=ids)).edge_index.tolist() == [[0, 7], [0, 7]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whole_floating_point_ids_are_taken(tmp_path, dtype):
    raw = read(write(tmp_path / "web.parquet", src=np.array([0, 7], dtype), dst=[1, 2]))
    assert raw.edge_index.tolist() == [[0, 7], [1, 2]] and raw.edge_index.dtype == np.int32


def test_columns_may_be_named(tmp_path):
    file = write(tmp_path / "web.parquet", a=[5, 6], b=[0, 2], c=[1, 1], amount=[0.5, 2.0])
    raw = read(file, edges=EdgeListOptions(columns=("b", "c"), weight_column="amount"))
    assert raw.edge_index.tolist() == [[0, 2], [1, 1]] and raw.edge_weight.tolist() == [0.5, 2.0]
    for options, message in (
        ({"columns": ("b", "d")}, "has no column d; expected one of a, b, c, amount"),
        ({"weight_column": "w", "columns": ("b", "c")}, "has no column w"),
        ({"header": True}, "names its columns itself; leave --header and --delimiter out"),
    ):
        with pytest.raises(ValueError, match=message):
            read(file, edges=EdgeListOptions(**options))


def test_other_columns_are_left_out_with_a_note(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    raw = read(write(tmp_path / "web.parquet", time=[1, 2], dst=[1, 1], src=[0, 2], kind=["x", "y"]))
    assert raw.edge_index.tolist() == [[0, 2], [1, 1]]
    assert "columns left out: time, kind" in caplog.text


def test_columns_that_are_left_out_are_named_once_for_all_parts_and_passes(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    for number in range(3):
        write(tmp_path / f"part-{number}.parquet", src=["x", "y"], dst=["y", "z"], weight=[1.0, 2.0], time=[1, 2])
    options = EdgeListOptions(relabel=True)
    least_sizes(tmp_path, "edgelist", ReadOptions(edges=options))
    assert read(tmp_path, edges=options).num_nodes == 3
    said = [message for message in caplog.messages if "left out" in message]
    assert said == [f"{tmp_path / 'part-0.parquet'}: columns left out: time"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize("small_bytes", [0, 1 << 30])
def test_weights_come_along(tmp_path, monkeypatch, dtype, small_bytes):
    monkeypatch.setattr(edgelist, "SMALL_BYTES", small_bytes)
    monkeypatch.setattr(parquet_edges, "BATCH_ROWS", 2)
    weights = np.arange(7, dtype=dtype)
    file = write(tmp_path / "web.parquet", src=np.arange(7), dst=np.arange(7)[::-1].copy(), weight=weights)
    with Scratch(tmp_path / "scratch") as scratch:
        raw = read(file, scratch=scratch)
        assert raw.edge_index.tolist() == [[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0]]
        assert raw.edge_weight.dtype == dtype and raw.edge_weight.tolist() == weights.tolist()


def test_parts_are_one_list(tmp_path):
    for number in (1, 0):
        write(tmp_path / f"part-{number}.parquet", src=[number], dst=[5], weight=[number + 0.5])
    (tmp_path / "meta.json").write_text(json.dumps({"name": "two", "num_nodes": 9, "undirected": True}))
    raw = read(tmp_path)
    assert raw.edge_index.tolist() == [[0, 1], [5, 5]]
    assert (raw.edge_weight.tolist(), raw.num_nodes, raw.undirected) == ([0.5, 1.5], 9, True)


def test_progress_adds_up_to_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_edges, "BATCH_ROWS", 2)
    reported = []
    file = write(tmp_path / "web.parquet", src=np.arange(7), dst=np.arange(7))
    read(file, on_bytes=reported.append)
    assert sum(reported) == file.stat().st_size and len(reported) > 2


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"src": [0, 1, 2], "dst": [0, None, 2]}, "column dst has no value in row 1 .of 0 to 2."),
        ({"src": [0, 1, 2], "dst": [0, 1, -2]}, "column dst: node id -2 in row 2, counted from 0; expected 0 to"),
        ({"src": [0, 2**62], "dst": [0, 1]}, "column src: node id 4611686018427387904 in row 1"),
        ({"src": np.array([0, 2**63], np.uint64), "dst": [0, 1]}, "column src: node id 9223372036854775808 in row 1"),
        ({"src": [0.0, 1.5], "dst": [0, 1]}, "column src: node id 1.5 in row 1, counted from 0, is not a whole number"),
        (
            {"src": [0.0, 1.0, 2.5], "dst": [0, 1, 2]},
            "column src: node id 2.5 in row 2, counted from 0, is not a whole",
        ),
        (
            {"src": [0, 1], "dst": [0.0, np.nan]},
            "column dst: node id nan in row 1, counted from 0, is not a whole number",
        ),
        ({"src": [0, 1], "dst": [0.0, np.inf]}, "column dst: node id inf in row 1"),
        ({"src": [0, 1], "dst": [0.0, -1.0]}, "column dst: node id -1 in row 1, counted from 0; expected 0 to"),
        ({"src": [0, 1], "dst": [0.0, 2.0**53]}, "column dst: node id 9007199254740992.0 in row 1"),
        ({"src": [True, False], "dst": [0, 1]}, "column src is bool; expected integer node ids"),
        ({"src": ["a", "b"], "dst": [0, 1]}, "column src is string; expected integer node ids"),
        ({"src": [0, 1], "weight": [0, 1]}, "with no pair of ends; expected one pair"),
        ({"src": [0], "dst": [0], "u": [0], "v": [0]}, "with src, dst or u, v; expected one pair"),
        ({"src": [0], "dst": [0], "SRC": [0]}, "expected different names"),
        ({"a": [0], "b": [0], "c": [0]}, "with no pair of ends"),
        ({"src": [0], "dst": [0], "weight": ["x"]}, "column weight is string; expected numbers"),
        ({"src": [0, 1], "dst": [0, 1], "weight": [1.0, None]}, "column weight has no value in row 1"),
        ({"src": [0], "dst": [0], "weight": [np.nan]}, "column weight: the weight of edge 0 is nan"),
        ({"src": np.array([], int), "dst": np.array([], int)}, "lists no edge"),
    ],
)
def test_bad_columns_are_refused_by_name_and_row(tmp_path, monkeypatch, columns, message):
    monkeypatch.setattr(parquet_edges, "BATCH_ROWS", 2)
    with pytest.raises(ValueError, match=rf"web\.parquet:? (has the columns .*)?{message}"):
        read(write(tmp_path / "web.parquet", **columns))


@pytest.mark.parametrize(
    "source, highest",
    [(np.array([0.0, 5.0]), 5), (np.array([0.0, np.inf]), 2), (np.array([0, 5], np.float16), 2)],
)
def test_the_highest_id_is_stated_where_the_statistics_have_a_number(tmp_path, source, highest):
    file = write(tmp_path / "web.parquet", src=source, dst=[1, 2])
    assert parquet_edges.ParquetEdges([file], 10, lambda count: None).least_highest_id() == highest


def test_weights_in_some_parts_only_are_refused(tmp_path):
    write(tmp_path / "part-0.parquet", src=[0], dst=[1])
    write(tmp_path / "part-1.parquet", src=[0], dst=[1], weight=[1.0])
    with pytest.raises(ValueError, match="part-1.parquet has a column weight but .*part-0.parquet has none"):
        read(tmp_path)


def test_two_statements_of_weights_are_refused(tmp_path):
    write(tmp_path / "web.parquet", src=[0], dst=[1], weight=[1.0])
    np.save(tmp_path / "edge_weight.npy", np.ones(1))
    with pytest.raises(ValueError, match="has edge_weight.npy and a column weight in web.parquet"):
        read(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_damaged_file_is_refused(tmp_path, damage):
    file = write(tmp_path / "web.parquet", src=np.arange(1000), dst=np.arange(1000))
    file.write_bytes(file.read_bytes()[:-20] if damage == "cut" else b"0 1\n" * 10)
    with pytest.raises(ValueError, match="web.parquet cannot be read as .parquet"):
        read(file)


def test_missing_package_names_the_extra(tmp_path, monkeypatch):
    file = write(tmp_path / "web.parquet", src=[0], dst=[1])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install fastsample_dist\[formats\]"):
        read(file)

"""Edge lists: text to edges, and the line number of what is not an edge."""

import gzip
import json
import logging

import numpy as np
import pytest

from fastsample_dist.graph.inputs import EdgeListOptions, ReadOptions, least_sizes
from fastsample_dist.graph.inputs.edgelist import read_edgelist


@pytest.mark.parametrize(
    "name, text",
    [
        ("edges.txt", "0 1\n2 1\n"),
        ("edges.tsv", "0\t1\n2\t1"),
        ("edges.csv", "0,1\n2, 1\n"),
        ("edges.txt", "# source destination\n0 1  # first\n\n   2   1\n"),
        ("edges.txt", "0 1\r\n2 1\r\n"),
        ("edges.csv", "\ufeff0,1\r\n2,1"),
        ("edges.txt", "# na\u00efve\n0 1\n2 1\n"),
        ("edges.el", "0 1\n2 1\n"),
    ],
)
def test_separators_comments_and_empty_lines(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    raw = read_edgelist(tmp_path / name, ReadOptions())
    assert raw.edge_index.tolist() == [[0, 2], [1, 1]]
    assert (raw.name, raw.num_nodes, raw.undirected) == ("edges", 3, False)


@pytest.mark.parametrize("name", ["edges.csv.gz", "edges.tsv.gz", "edges.txt.gz"])
def test_packed_text(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"0,1\n2,1\n" if "csv" in name else b"0\t1\n2\t1\n"))
    raw = read_edgelist(tmp_path / name, ReadOptions())
    assert raw.edge_index.tolist() == [[0, 2], [1, 1]]
    assert raw.name == "edges"


@pytest.mark.parametrize("highest, dtype", [(2**31 - 1, np.int32), (2**31, np.int64)])
def test_ids_are_as_narrow_as_they_can_be(tmp_path, highest, dtype):
    (tmp_path / "edges.txt").write_text(f"0 1\n{highest} 5\n")
    raw = read_edgelist(tmp_path / "edges.txt", ReadOptions())
    assert raw.edge_index.dtype == dtype
    assert raw.edge_index.tolist() == [[0, highest], [1, 5]]


def test_parts_are_one_list_in_the_order_of_their_numbers(tmp_path):
    directory = tmp_path / "web"
    directory.mkdir()
    for name, text in {"part-00010-x.csv": "9,1\n", "part-00002-x.csv": "4,0\n", "part-00011-x.csv": ""}.items():
        (directory / name).write_text(text)
    (directory / "_SUCCESS").write_text("")
    np.save(directory / "edge_weight.npy", np.array([0.5, 2.0]))
    raw = read_edgelist(directory, ReadOptions())
    assert raw.edge_index.tolist() == [[4, 9], [0, 1]]
    assert (raw.name, raw.edge_weight.tolist()) == ("web", [0.5, 2.0])


@pytest.mark.parametrize("name, wanted", [("web.csv", "web"), ("web", "web"), ("v1.5", "v1.5")])
def test_list_of_parts_is_named_after_its_directory(tmp_path, name, wanted):
    (tmp_path / name).mkdir()
    (tmp_path / name / "part-r-00000.csv").write_text("0,1\n")
    assert read_edgelist(tmp_path / name, ReadOptions()).name == wanted


def test_line_of_a_part_is_counted_in_that_part(tmp_path):
    (tmp_path / "part-0.csv").write_text("0,1\n0,1\n")
    (tmp_path / "part-1.csv").write_text("0,1\nx,1\n")
    with pytest.raises(ValueError, match="part-1.csv, line 2: found 'x,1'"):
        read_edgelist(tmp_path, ReadOptions())


def test_progress_adds_up_to_the_files(tmp_path):
    reported = {"total": 0, "read": 0}
    for number in range(2):
        (tmp_path / f"part-{number}.txt.gz").write_bytes(gzip.compress(b"0 1\n" * 50))
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    options = ReadOptions(
        on_total=lambda count: reported.update(total=count),
        on_bytes=lambda count: reported.update(read=reported["read"] + count),
    )
    read_edgelist(tmp_path, options)
    assert reported == {"total": size, "read": size}


def test_undirected_is_taken_over(tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n")
    assert read_edgelist(tmp_path / "edges.txt", ReadOptions(undirected=True)).undirected


def test_directory_brings_its_columns(tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n")
    (tmp_path / "meta.json").write_text(json.dumps({"name": "four", "num_nodes": 4, "undirected": True}))
    np.save(tmp_path / "train_idx.npy", np.array([3]))
    raw = read_edgelist(tmp_path, ReadOptions())
    assert (raw.name, raw.num_nodes, raw.undirected) == ("four", 4, True)
    assert raw.splits["train"].tolist() == [3]


@pytest.mark.parametrize(
    "names, advice",
    [
        ([], "pass the directory: --input {}"),
        (["other.csv"], "pass a directory that holds them and no other list"),
        (["edge_index.npy"], None),  # of which they are columns
    ],
)
def test_columns_beside_a_list_that_is_passed_as_a_file_are_named_and_not_read(tmp_path, caplog, names, advice):
    (tmp_path / "calls.csv").write_text("0,1\n")
    (tmp_path / "meta.json").write_text(json.dumps({"name": "four", "num_nodes": 4, "undirected": True}))
    np.save(tmp_path / "labels.npy", np.zeros(4, dtype=np.int64))
    for name in names:
        (tmp_path / name).touch()
    raw = read_edgelist(tmp_path / "calls.csv", ReadOptions())
    assert (raw.name, raw.num_nodes, raw.labels) == ("calls", 2, None)
    expected = f"meta.json, labels.npy beside calls.csv are not read; {advice}".format(tmp_path)
    assert caplog.messages == ([] if advice is None else [expected])


def test_a_list_alone_in_its_directory_is_read_without_a_warning(tmp_path, caplog):
    (tmp_path / "calls.csv").write_text("0,1\n")
    (tmp_path / "notes.npy").touch()
    read_edgelist(tmp_path / "calls.csv", ReadOptions())
    assert not caplog.messages


def test_columns_that_are_left_out_are_named_once_for_all_parts_and_passes(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="fastsample_dist.graph.inputs")
    for number in range(3):
        (tmp_path / f"part-{number}.csv").write_text("a,b,minutes,weight\nx,y,1,1\ny,z,2,1\n")
    (tmp_path / "part-3.csv").write_text("a,b,minutes,kind\nx,z,1,1\n")
    options = EdgeListOptions(header=True, columns=("a", "b"), weight_column="minutes", relabel=True)
    least_sizes(tmp_path, "edgelist", ReadOptions(edges=options))
    read_edgelist(tmp_path, ReadOptions(edges=options))
    said = [message.removeprefix(str(tmp_path)) for message in caplog.messages if "left out" in message]
    assert said == [
        "/part-0.csv, line 1: columns left out: weight",
        "/part-0.csv, line 1: a column weight is left out; pass --weight-column weight to take it",
        "/part-3.csv, line 1: columns left out: kind",
    ]


@pytest.mark.parametrize(
    "text, message",
    [
        ("0 1\n0 x\n", "line 2: found '0 x'; expected two integers"),
        ("0 1\n\n# c\n0 1 2\n", "line 4: found '0 1 2'; expected two integers.*keep the first two of its 3 columns"),
        ("0,1,0.5\n", "line 1: found '0,1,0.5'; .*weights go into edge_weight.npy"),
        ("0,1\n2;3\n", "line 2: found '2;3'; expected two integers"),
        ("0 1\r2 1\r", "line 1: found '0 1.r2 1'"),
        ("0 1 2\n0 1 2\n", "line 1: found '0 1 2'; expected two integers"),
        ("0 1\n5\n", "line 2: found '5'"),
        ("source,destination\n0,1\n", "line 1: found 'source,destination'.*put # before a header"),
        ("0 1\n0,1\n", "line 2: found '0,1'; .*separated like the first edge"),
        ("0 1.5\n", "line 1: found '0 1.5'"),
        ("0 1\n-3 1\n", "line 2: node id -3; expected 0 to"),
        ("0 1\n0 99999999999999999999\n", "line 2: node id 99999999999999999999; expected 0 to"),
        ("0 1\n0 9223372036854775808\n", "line 2: node id 9223372036854775808; expected 0 to 2999999999"),
        ("0 3000000000\n", "line 1: node id 3000000000; expected 0 to 2999999999"),
        ("# nothing\n", "lists no edge"),
    ],
)
def test_bad_line_is_refused_by_number(tmp_path, text, message):
    (tmp_path / "edges.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_edgelist(tmp_path / "edges.txt", ReadOptions())


def test_id_beyond_the_stated_nodes_is_refused_by_line(tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n# c\n4 0\n")
    (tmp_path / "meta.json").write_text(json.dumps({"name": "four", "num_nodes": 4, "undirected": False}))
    with pytest.raises(ValueError, match="line 3: node id 4; expected 0 to 3"):
        read_edgelist(tmp_path, ReadOptions())


def test_two_statements_of_direction_are_refused(tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n")
    (tmp_path / "meta.json").write_text(json.dumps({"name": "two", "num_nodes": 2, "undirected": False}))
    with pytest.raises(ValueError, match='meta.json states "undirected" itself'):
        read_edgelist(tmp_path, ReadOptions(undirected=True))


@pytest.mark.parametrize(
    "names", [[], ["a.csv", "b.txt"], ["a.csv", "b.csv"], ["part-0.csv", "part-1.csv.gz"], ["part-0.csv", "nodes.csv"]]
)
def test_directory_must_hold_one_list(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("0 1\n")
    with pytest.raises(ValueError, match=f"holds {len(names)} edge lists"):
        read_edgelist(tmp_path, ReadOptions())


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="edges.txt does not exist"):
        read_edgelist(tmp_path / "edges.txt", ReadOptions())

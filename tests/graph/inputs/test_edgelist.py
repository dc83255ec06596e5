"""Edge lists: text to edges, and the line number of what is no edge."""

import json

import numpy as np
import pytest

from fastsample_dist.graph.inputs import ReadOptions
from fastsample_dist.graph.inputs.edgelist import read_edgelist


@pytest.mark.parametrize(
    "name, text",
    [
        ("edges.txt", "0 1\n2 1\n"),
        ("edges.tsv", "0\t1\n2\t1"),
        ("edges.csv", "0,1\n2, 1\n"),
        ("edges.txt", "# source destination\n0 1  # first\n\n   2   1\n"),
        ("edges.txt", "0 1\r\n2 1\r\n"),
    ],
)
def test_separators_comments_and_empty_lines(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    raw = read_edgelist(tmp_path / name, ReadOptions())
    assert raw.edge_index.tolist() == [[0, 2], [1, 1]]
    assert (raw.name, raw.num_nodes, raw.undirected) == ("edges", 3, False)


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
    "text, message",
    [
        ("0 1\n0 x\n", "line 2: found '0 x'; expected two integers"),
        ("0 1\n\n# c\n0 1 2\n", "line 4: found '0 1 2'; expected two integers"),
        ("0 1 2\n0 1 2\n", "line 1: found '0 1 2'; expected two integers"),
        ("0 1\n5\n", "line 2: found '5'"),
        ("source,destination\n0,1\n", "line 1: found 'source,destination'.*put # before a header"),
        ("0 1\n0,1\n", "line 2: found '0,1'; .*separated like the first edge"),
        ("0 1.5\n", "line 1: found '0 1.5'"),
        ("0 1\n-3 1\n", "line 2: node id -3; expected 0 to"),
        ("0 1\n0 99999999999999999999\n", "line 2: node id 99999999999999999999; expected 0 to"),
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


@pytest.mark.parametrize("names", [[], ["a.csv", "b.txt"]])
def test_directory_must_hold_one_list(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("0 1\n")
    with pytest.raises(ValueError, match=f"holds {len(names)} edge lists"):
        read_edgelist(tmp_path, ReadOptions())


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="edges.txt does not exist"):
        read_edgelist(tmp_path / "edges.txt", ReadOptions())

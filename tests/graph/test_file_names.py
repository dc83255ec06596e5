"""Files of an input directory whose names are almost those of a column."""

import json
import logging
import re

import numpy as np
import pytest

from fastsample_dist.graph.datasets import read_npy_graph
from fastsample_dist.graph.inputs import ReadOptions, input_sizes, read_graph
from fastsample_dist.partition.cli import main


def write_graph(path, name="edge_index.npy"):
    path.mkdir()
    (path / "meta.json").write_text(json.dumps({"name": "two", "num_nodes": 2, "undirected": False}))
    np.save(path / name, np.array([[0], [1]]))
    return path


NEAR = {
    "feature.npy": "features.npy",
    "features.npz": "features.npy",
    "Features.npy": "features.npy",
    "features.NPY": "features.npy",
    "feat.npy": "features.npy",
    "x.pt": "features.npy",
    "label.npy": "labels.npy",
    "y.npy": "labels.npy",
    "edge_weights.npy": "edge_weight.npy",
    "train_ids.npy": "train_idx.npy",
    "train_mask.npy": "train_idx.npy",
    "valid_idx.npy": "val_idx.npy",
    "node-type.npy": "node_type.npy",
}


@pytest.mark.parametrize("name", NEAR)
def test_near_miss_is_refused_in_one_line(tmp_path, name):
    graph = write_graph(tmp_path / "graph")
    np.save(tmp_path / "array.npy", np.array([0.0, 1.0]))
    (tmp_path / "array.npy").rename(graph / name)
    message = f"found {re.escape(name)}, expected {re.escape(NEAR[name])}, which is missing; "
    for read in (read_npy_graph, input_sizes):
        with pytest.raises(ValueError, match=message) as refusal:
            read(graph)
        assert "\n" not in str(refusal.value)


def test_near_miss_of_the_edges_is_named(tmp_path):
    with pytest.raises(ValueError, match="found edges.npy, expected edge_index.npy"):
        read_npy_graph(write_graph(tmp_path / "graph", "edges.npy"))


def test_near_miss_beside_an_edge_list_is_refused(tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n")
    np.save(tmp_path / "feature.npy", np.zeros((2, 3)))
    with pytest.raises(ValueError, match="found feature.npy, expected features.npy"):
        read_graph(tmp_path, "edgelist", ReadOptions())


@pytest.mark.parametrize("name", ["notes.txt", "features_old.npy", "orig_ids.npy", "edge_attr.npy", ".feature.npy"])
def test_other_files_are_no_near_misses(tmp_path, caplog, name):
    caplog.set_level(logging.INFO)
    graph = write_graph(tmp_path / "graph")
    with (graph / name).open("wb") as file:
        np.save(file, np.zeros(2))
    assert read_npy_graph(graph).features is None
    assert (f"{name} left out" in caplog.text) == (name.endswith(".npy") and name[0] != ".")


def test_a_second_file_beside_the_column_is_left_out_with_a_note(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    graph = write_graph(tmp_path / "graph")
    np.save(graph / "features.npy", np.ones((2, 1)))
    np.save(graph / "feature.npy", np.zeros((2, 1)))
    assert read_npy_graph(graph).features.tolist() == [[1.0], [1.0]]
    assert "feature.npy left out" in caplog.text


def test_the_command_notes_it_once(tmp_path, capsys):
    """It takes the sizes before it reads."""
    graph = write_graph(tmp_path / "graph")
    np.save(graph / "planted.npy", np.zeros(2))
    words = ["--num-parts", "2", "--method", "random", "--output", str(tmp_path / "parts")]
    assert main(["--input", str(graph), *words]) == 0
    assert capsys.readouterr().out.count("planted.npy left out: not a column of the npy format") == 1


def test_the_command_refuses_it(tmp_path, capsys):
    graph = write_graph(tmp_path / "graph")
    np.save(graph / "feature.npy", np.zeros((2, 3)))
    assert main(["--input", str(graph), "--num-parts", "2", "--output", str(tmp_path / "parts")]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "found feature.npy, expected features.npy" in line

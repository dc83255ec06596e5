"""Attributes of Data and HeteroData: what is taken, what is left out and what is refused."""

import logging
from collections import defaultdict

import numpy as np
import pytest
import torch

from fastsample_dist.graph.inputs import ReadOptions, Scratch
from fastsample_dist.graph.inputs.pyg_saved import from_mapping, read_pyg
from tests.graph.inputs.layouts import (
    TYPED,
    PygPickles,
    draw_graph,
    found,
    listed,
    pyg_attributes,
    pyg_stores,
    write_pyg,
)


def refusal(mapping) -> str:
    with pytest.raises(ValueError) as caught:
        from_mapping(mapping)
    return str(caught.value)


@pytest.fixture
def attributes():
    return pyg_attributes(draw_graph())


def test_labels_of_one_column(attributes):
    attributes["y"] = attributes["y"][:, None]
    assert found(from_mapping(attributes)) == listed(draw_graph())


def test_float_labels_with_nan(attributes):
    labels = attributes["y"].float()
    labels[labels < 0] = torch.nan
    attributes["y"] = labels
    assert found(from_mapping(attributes)) == listed(draw_graph())


def test_masks_of_numbers(attributes):
    attributes["train_mask"] = attributes["train_mask"].to(torch.uint8)
    assert found(from_mapping(attributes)) == listed(draw_graph())


def test_edge_weight_comes_before_edge_attr(attributes):
    attributes |= {"edge_weight": torch.ones(90), "edge_attr": torch.zeros(90)}
    assert from_mapping(attributes).edge_weight.tolist() == [1.0] * 90


def test_wide_edge_attr_is_left_out_with_a_note(attributes, caplog):
    attributes["edge_attr"] = torch.ones(90, 3)
    with caplog.at_level(logging.INFO):
        assert from_mapping(attributes).edge_weight is None
    assert "edge_attr of shape (90, 3) left out" in caplog.text


def test_other_attributes_are_left_out_with_a_note(attributes, caplog):
    attributes["pos"] = torch.ones(30, 2)
    with caplog.at_level(logging.INFO):
        from_mapping(attributes)
    assert "data: pos left out" in caplog.text


def test_bfloat16_features_become_float32_with_a_note(attributes, caplog):
    attributes["x"] = attributes["x"].bfloat16()
    with caplog.at_level(logging.INFO):
        raw = from_mapping(attributes)
    assert raw.features.dtype == np.float32 and "x is bfloat16 and read as float32" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int8])
def test_types_that_partitions_hold_are_kept(attributes, dtype):
    attributes["x"] = attributes["x"].to(dtype)
    assert from_mapping(attributes).features.dtype == attributes["x"].numpy().dtype


def test_nodes_are_counted_by_edges_where_nothing_else_tells():
    assert from_mapping({"edge_index": torch.tensor([[0, 6], [3, 1]])}).num_nodes == 7


def test_num_nodes_is_taken_over():
    assert from_mapping({"edge_index": torch.tensor([[0], [1]]), "num_nodes": 9}).num_nodes == 9


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("train_mask", torch.ones(30, 10, dtype=torch.bool), "train_mask has shape (30, 10), 10 splits; expected one"),
        ("train_mask", torch.ones(29, dtype=torch.bool), "train_mask is bool of shape (29,); expected a mask"),
        ("val_mask", torch.arange(30), "val_mask has values 0 to 29; expected a mask of 0 and 1"),
        ("y", torch.ones(30, 4, 2), "y has labels of shape (30, 4, 2); expected one per node"),
        ("y", torch.full((30,), 0.5), "y: the label of node 0 is 0.5; expected a class number or NaN"),
        ("y", torch.ones(31, dtype=torch.int64), "y has 31 rows; expected 30"),
        ("x", [1.0], "x is a list; expected a tensor"),
        ("x", torch.eye(30).to_sparse(), "x is a tensor of layout torch.sparse_coo; expected a dense one"),
        ("edge_index", torch.ones(90, 2, dtype=torch.int64), "edge_index has shape (90, 2); expected (2, num_edges)"),
        ("edge_index", torch.tensor([[0, 30], [1, 1]]), "edge_index: the source of edge 1 is 30; expected 0 to 29"),
        ("edge_attr", torch.ones(5), "edge_attr has 5"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(attributes, name, value, message):
    attributes[name] = value
    found_message = refusal(attributes)
    assert "\n" not in found_message
    if name != "edge_attr":
        assert f"data: {message}" in found_message
    else:
        assert "weights of data: edge_index are float32 of shape (5,); expected numbers of shape (90,)" in found_message


def test_adj_t_is_refused_with_advice(attributes):
    attributes["adj_t"] = attributes.pop("edge_index")
    assert "has adj_t; expected edge_index [2, num_edges]; save the data without ToSparseTensor" in refusal(attributes)


def test_widths_that_differ_name_both_types():
    stores = pyg_stores(TYPED)
    stores["author"]["x"] = torch.ones(3, 5)
    message = refusal(stores)
    assert "data: author.x has float32 features of shape (3, 5)" in message or "data: author.x float32" in message
    assert "paper.x" in message and "expected one type and width for all" in message


def test_data_that_is_not_of_the_library_is_refused(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "t.pt")
    with pytest.raises(ValueError, match=r"t\.pt holds a list; expected a saved Data, HeteroData"):
        read_pyg(tmp_path / "t.pt", ReadOptions())


def test_several_graphs_are_refused(tmp_path):
    with PygPickles() as pyg:
        slices = {"x": torch.tensor([0, 30, 60])}
        torch.save((pyg_attributes(draw_graph()), slices, pyg.classes["Data"]), tmp_path / "t.pt")
    with pytest.raises(ValueError, match=r"t\.pt holds 2 graphs; expected one"):
        read_pyg(tmp_path / "t.pt", ReadOptions())


def test_slices_in_a_dict_of_dicts_are_read(tmp_path):
    """PyG 2.4 saves those of several graphs in a defaultdict(dict)."""
    slices = defaultdict(dict, x=torch.tensor([0, 30, 60]))
    torch.save((pyg_attributes(draw_graph()), slices), tmp_path / "t.pt")
    with pytest.raises(ValueError, match=r"t\.pt holds 2 graphs; expected one"):
        read_pyg(tmp_path / "t.pt", ReadOptions())


def test_the_directory_of_a_data_set(tmp_path):
    write_pyg(tmp_path / "Cora/processed/data.pt", draw_graph(), form="dataset")
    torch.save("filter", tmp_path / "Cora/processed/pre_filter.pt")
    assert read_pyg(tmp_path / "Cora", ReadOptions()).name == "Cora"


def test_a_directory_with_several_files_is_refused(tmp_path):
    for name in ("train", "test"):
        write_pyg(tmp_path / f"processed/{name}.pt", draw_graph())
    with pytest.raises(ValueError, match=r"processed holds 2 \.pt files \(test\.pt, train\.pt\); expected one"):
        read_pyg(tmp_path, ReadOptions())


def test_joined_edges_of_types_lie_in_the_scratch_directory(tmp_path):
    with Scratch(tmp_path / "scratch") as scratch:
        raw = read_pyg(write_pyg(tmp_path / "t.pt", TYPED), ReadOptions(scratch=scratch))
        assert str(raw.edge_index.filename) == str(tmp_path / "scratch/edge_index.npy")

"""Raw OGB directories: which sets are symmetric, and what is refused, by file."""

import logging

import numpy as np
import pytest
import torch

from fastsample_dist.graph.inputs import ReadOptions, Scratch, input_sizes
from fastsample_dist.graph.inputs.ogb_raw import read_raw, set_name
from tests.graph.inputs.layouts import (
    SPLITS,
    TYPED,
    column,
    draw_graph,
    put_csv,
    write_ogb,
    write_ogb_binary,
    write_ogb_typed,
)


def read(path, **options):
    with Scratch() as scratch:
        return read_raw(path, ReadOptions(scratch=scratch, **options))


def refusal(path) -> str:
    with pytest.raises(ValueError) as caught:
        read(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("ogbn_arxiv", "ogbn-arxiv"),
        ("ogbn-papers100M", "ogbn-papers100M"),
        ("papers100M-bin", "ogbn-papers100M"),
        ("ogbn_products_pyg", "ogbn-products"),
        ("own", "ogbn-own"),
    ],
)
def test_set_of_a_directory(tmp_path, directory, name):
    assert set_name(tmp_path / directory) == name


@pytest.mark.parametrize(("directory", "undirected"), [("ogbn_products", True), ("ogbn_arxiv", False), ("own", False)])
def test_sets_that_ogb_symmetrises_are_undirected(tmp_path, directory, undirected):
    assert read(write_ogb(tmp_path / directory, draw_graph())).undirected == undirected


def test_classes_of_a_known_set_are_stated(tmp_path):
    assert read(write_ogb(tmp_path / "ogbn_arxiv", draw_graph())).num_classes == 40


def test_standard_split_is_taken_among_several(tmp_path):
    directory = write_ogb(tmp_path / "ogbn_arxiv", draw_graph())
    (directory / "split/random").mkdir()
    assert read(directory).splits["train"].tolist() == draw_graph().splits["train"].tolist()


def test_several_splits_of_an_unknown_set_are_refused(tmp_path):
    directory = write_ogb(tmp_path / "own", draw_graph())
    (directory / "split/random").mkdir()
    assert "split holds 2 splits (random, time); expected one directory" in refusal(directory)


@pytest.mark.parametrize("write", [write_ogb, lambda path, graph: write_ogb_binary(path, graph, packed=False)])
def test_further_facts_of_nodes_are_left_out_with_a_note(tmp_path, caplog, write):
    directory = write(tmp_path / "ogbn_arxiv", draw_graph())
    put_csv(directory / "raw/node_year.csv.gz", [[2013]] * 30)
    with caplog.at_level(logging.INFO):
        read(directory)
    assert "node_year" in caplog.text and "left out" in caplog.text


def test_several_labels_per_node_are_targets(tmp_path):
    directory = write_ogb(tmp_path / "ogbn_proteins", draw_graph())
    values = np.random.default_rng(0).integers(0, 2, (30, 5))
    put_csv(directory / "raw/node-label.csv.gz", values.tolist())
    raw = read(directory)
    assert (raw.task, raw.labels, raw.num_classes) == ("multilabel", None, 0)
    np.testing.assert_array_equal(raw.targets, values)
    assert input_sizes(directory).num_targets == 5


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("edge", [[0, 1]], "edge.csv.gz has 1 edges; expected 90 as "),
        ("edge", [[0, 1], [2, "x"]], "edge.csv.gz, line 2: found '2,x'; expected 2 integers separated by ','"),
        ("edge", [[0, 1], [2]], "edge.csv.gz, line 2: found '2'; expected 2 integers"),
        ("edge", [[0, 1]] * 89 + [[3, 30]], "edge.csv.gz: the destination of edge 89 is 30; expected 0 to 29"),
        ("node-feat", [[1.0, 2.0]] * 29, "node-feat.csv.gz has 29 rows; expected 30"),
        ("node-label", [[0.5]] * 30, "node-label.csv.gz: the label of node 0 is 0.5; expected a class number or NaN"),
        ("node-label", [[0]] * 31, "node-label.csv.gz has 31 rows; expected 30"),
        ("num-node-list", [[15], [15]], "num-node-list.csv.gz has 2 lines; expected one number"),
        ("num-node-list", [["many"]], "num-node-list.csv.gz has 'many'; expected a number"),
    ],
)
def test_text_that_does_not_fit_is_refused(tmp_path, name, rows, message):
    directory = write_ogb(tmp_path / "ogbn_arxiv", draw_graph())
    put_csv(directory / f"raw/{name}.csv.gz", rows)
    assert message in refusal(directory)


@pytest.mark.parametrize("name", ["num-node-list", "num-edge-list", "node-label"])
def test_a_missing_file_is_named(tmp_path, name):
    directory = write_ogb(tmp_path / "ogbn_arxiv", draw_graph())
    (directory / f"raw/{name}.csv.gz").unlink()
    assert f"{name}.csv.gz is missing" in refusal(directory)


def test_a_missing_split_is_named(tmp_path):
    directory = write_ogb(tmp_path / "ogbn_arxiv", draw_graph())
    (directory / "split/time/valid.csv.gz").unlink()
    assert "valid.csv.gz is missing" in refusal(directory)


def test_a_split_beyond_the_nodes_is_named(tmp_path):
    directory = write_ogb(tmp_path / "ogbn_arxiv", draw_graph())
    put_csv(directory / "split/time/test.csv.gz", column([1, 30]))
    assert "test: entry 1 is 30; expected node ids 0 to 29" in refusal(directory)


def test_no_raw_files_are_refused(tmp_path):
    (tmp_path / "ogbn_arxiv/raw").mkdir(parents=True)
    (tmp_path / "ogbn_arxiv/split/time").mkdir(parents=True)
    assert "raw has no edge.csv.gz, data.npz or triplet-type-list.csv.gz" in refusal(tmp_path / "ogbn_arxiv")


def test_edges_of_an_archive_are_counted(tmp_path):
    graph = draw_graph()
    directory = write_ogb_binary(tmp_path / "ogbn_papers100M", graph, packed=False)
    np.savez(
        directory / "raw/data.npz",
        edge_index=graph.edges[:, :5],
        num_nodes_list=np.array([30]),
        num_edges_list=np.array([90]),
    )
    assert "edge_index has shape (2, 5); expected (2, 90) by num_edges_list" in refusal(directory)


def test_split_dict_without_splits_is_refused(tmp_path):
    directory = write_ogb_binary(tmp_path / "ogbn_papers100M", draw_graph(), packed=True)
    torch.save([1, 2], directory / "split/time/split_dict.pt")
    assert "split_dict.pt holds no splits; expected a dict with train, valid and test" in refusal(directory)


def test_split_dict_by_type(tmp_path):
    directory = write_ogb_typed(tmp_path / "ogbn_mag", TYPED)
    saved = {name: {"paper": TYPED.splits["paper"][split]} for split, name in SPLITS.items()}
    torch.save(saved, directory / "split/time/split_dict.pt")
    assert read(directory).splits["train"].tolist() == [3 + 0, 3 + 4]


def test_an_edge_between_types_beyond_its_type_is_named(tmp_path):
    directory = write_ogb_typed(tmp_path / "ogbn_mag", TYPED)
    put_csv(directory / "raw/relations/author___writes___paper/edge.csv.gz", [[0, 4], [3, 0], [1, 3], [0, 4]])
    assert "author___writes___paper/edge.csv.gz: the source of edge 1 is 3; expected 0 to 2" in refusal(directory)

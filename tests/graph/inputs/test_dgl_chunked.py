"""DGL's chunked format: what is refused, by file."""

import logging
from functools import partial

import numpy as np
import pytest

from fastsample_dist.graph.inputs.dgl_chunked import read_chunked
from tests.graph.inputs.layouts import TYPED, change_json, draw_graph, listed, read_with, refusal_of, write_chunked


@pytest.fixture
def chunked(tmp_path):
    return write_chunked(tmp_path / "tiny", draw_graph())


read, refusal = partial(read_with, read_chunked), partial(refusal_of, read_chunked)


def change(path, edit) -> None:
    change_json(path / "metadata.json", edit)


def test_the_metadata_file_will_do(chunked):
    assert read(chunked / "metadata.json")[1] == listed(draw_graph())


def test_newer_files_have_counts_per_type(chunked):
    def edit(meta):
        for kind in ("nodes", "edges"):
            meta[f"num_{kind}_per_type"] = [sum(item) for item in meta.pop(f"num_{kind}_per_chunk")]

    change(chunked, edit)
    assert read(chunked)[1] == listed(draw_graph())


def test_absolute_names(chunked):
    def edit(meta):
        described = meta["edges"]["node:to:node"]
        described["data"] = [str((chunked / name).absolute()) for name in described["data"]]

    change(chunked, edit)
    assert read(chunked)[1] == listed(draw_graph())


def test_other_node_data_are_left_out_with_a_note(chunked, caplog):
    change(
        chunked, lambda meta: meta["node_data"]["node"].update(year={"format": {"name": "numpy"}, "data": ["y.npy"]})
    )
    with caplog.at_level(logging.INFO):
        read(chunked)
    assert "node data of type node: year left out" in caplog.text


def test_joining_edge_types_is_noted(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        read(write_chunked(tmp_path / "tiny", TYPED))
    assert "3 edge types are joined" in caplog.text
    assert "nodes of type venue get zeros" in caplog.text


def node_feat(meta) -> dict:
    return meta["node_data"]["node"]["feat"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda meta: meta.pop("edges"), "metadata.json has no edges; expected an object with node_type"),
        (
            lambda meta: meta.update(num_nodes_per_chunk=[[1], [2]]),
            "num_nodes_per_type is [[1], [2]]; expected",
        ),
        (lambda meta: meta.update(num_nodes_per_chunk=[["x"]]), "num_nodes_per_type is [['x']]; expected a number"),
        (
            lambda meta: meta.update(edge_type=["follows"]),
            "edge_type 'follows'; expected 'source type:",
        ),
        (lambda meta: meta.update(edge_type=["a:b:c"]), "edges has no 'a:b:c'; expected one entry per edge_type"),
        (lambda meta: meta.update(num_edges_per_chunk=[[91]]), "the files of node:to:node list 90 edges; expected 91"),
        (
            lambda meta: meta.update(num_nodes_per_chunk=[[31]]),
            "expected a mask of shape (31,)",
        ),
        (lambda meta: node_feat(meta)["format"].update(name="parquet"), "has format 'parquet'; expected csv or numpy"),
        (lambda meta: node_feat(meta)["data"].append("gone.npy"), "gone.npy is missing"),
        (
            lambda meta: node_feat(meta)["data"].append("node_data/node/label-0.npy"),
            "expected chunks of one type and width",
        ),
    ],
)
def test_metadata_that_do_not_fit_are_refused(chunked, edit, message):
    change(chunked, edit)
    assert message in refusal(chunked)


def test_an_edge_beyond_its_type_is_named_with_its_file(tmp_path):
    path = write_chunked(tmp_path / "tiny", TYPED, edges_as="numpy")
    rows = np.load(path / "edges/writes-1.npy")
    rows[0, 0] = 3
    np.save(path / "edges/writes-1.npy", rows)
    assert "edges/writes-1.npy: the source of edge 0 is 3; expected 0 to 2" in refusal(path)


def test_an_edge_type_of_unknown_nodes_is_refused(tmp_path):
    path = write_chunked(tmp_path / "tiny", TYPED)
    change(
        path, lambda meta: (meta["node_type"].pop(), meta["num_nodes_per_chunk"].pop(), meta["node_data"].pop("venue"))
    )
    assert "edges paper:at:venue join 'venue'; expected node types author, paper" in refusal(path)


def test_a_line_that_is_no_edge_is_named(chunked):
    with (chunked / "edges/to-1.txt").open("a") as file:
        file.write("1 2 3\n")
    assert "to-1.txt, line 60: found '1 2 3'; expected 2 integers" in refusal(chunked)


def test_a_missing_parquet_file_is_named(tmp_path):
    path = write_chunked(tmp_path / "tiny", draw_graph(), edges_as="parquet")
    (path / "edges/to-1.parquet").unlink()
    assert "edges/to-1.parquet is missing" in refusal(path)


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = write_chunked(tmp_path / "tiny", draw_graph(), edges_as="parquet")
    (path / "edges/to-1.parquet").write_bytes(b"junk")
    assert "edges/to-1.parquet cannot be read as .parquet" in refusal(path)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    path = write_chunked(tmp_path / "tiny", draw_graph(weighted=True))
    np.save(path / "edge_data/w-1.npy", np.ones(7, np.float32))
    assert "expected numbers of shape (59,), one per edge" in refusal(path)


def test_missing_metadata(tmp_path):
    assert "metadata.json is missing" in refusal(tmp_path)


def test_damaged_metadata(chunked):
    (chunked / "metadata.json").write_text("{")
    assert "metadata.json is not JSON" in refusal(chunked)

"""GraphBolt's metadata: what is taken of them, and what is refused, by file."""

import logging
import sys
from functools import partial

import numpy as np
import pytest

from fastsample_dist.graph.inputs import ReadOptions, Scratch
from fastsample_dist.graph.inputs.graphbolt import read_graphbolt
from tests.graph.inputs.layouts import (
    TYPED,
    change_json,
    draw_graph,
    flat,
    listed,
    read_with,
    refusal_of,
    write_graphbolt,
)


@pytest.fixture
def dataset(tmp_path):
    return write_graphbolt(tmp_path / "tiny", draw_graph())


read, refusal = partial(read_with, read_graphbolt), partial(refusal_of, read_graphbolt)


def change(path, edit) -> None:
    change_json(path / "metadata.yaml", edit)


YAML = """
dataset_name: written   # as an author writes it
graph:
  nodes:
    - num: 4
  edges:
    - format: csv
      path: edges.csv
feature_data:
tasks:
  - name: node_classification
    num_classes: 7
    train_set:
      - data:
          - format: numpy
            path: seeds.npy
          - format: numpy
            path: labels.npy
"""


def test_yaml_with_data_by_position(tmp_path):
    (tmp_path / "metadata.yaml").write_text(YAML)
    (tmp_path / "edges.csv").write_text("0,1\n3,2\n")
    np.save(tmp_path / "seeds.npy", np.array([2, 0]))
    np.save(tmp_path / "labels.npy", np.array([5, 6]))
    with Scratch() as scratch:
        raw = read_graphbolt(tmp_path, ReadOptions(scratch=scratch))
    assert (raw.name, raw.num_classes, raw.features) == ("written", 7, None)
    assert raw.labels.tolist() == [6, -1, 5, -1]
    assert raw.splits["train"].tolist() == [0, 2] and list(raw.splits) == ["train"]


def test_types_are_in_alphabetical_order(tmp_path):
    path = write_graphbolt(tmp_path / "tiny", TYPED)
    change(path, lambda meta: meta["graph"]["nodes"].reverse())
    assert read(path)[1] == flat(TYPED)


def test_the_first_task_over_nodes_is_taken_and_named(dataset, caplog):
    np.save(dataset / "pairs.npy", np.zeros((3, 2), np.int64))
    links = {
        "name": "link_prediction",
        "train_set": [{"data": [{"name": "seeds", "format": "numpy", "path": "pairs.npy"}]}],
    }
    change(dataset, lambda meta: meta["tasks"].insert(0, links))
    with caplog.at_level(logging.INFO):
        assert read(dataset)[1] == listed(draw_graph())
    assert "tasks link_prediction, node_classification: node_classification is taken" in caplog.text


def test_features_that_only_sampling_uses_count_as_well(tmp_path):
    path = write_graphbolt(tmp_path / "tiny", draw_graph(weighted=True))
    change(path, lambda meta: meta["graph"].update(feature_data=meta.pop("feature_data")))
    raw, as_found = read(path)
    assert as_found == listed(draw_graph()) and raw.edge_weight is not None


def test_features_of_one_number(dataset):
    np.save(dataset / "node-feat.npy", np.arange(30, dtype=np.float32))
    assert read(dataset)[0].features.shape == (30, 1)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda meta: meta.pop("graph"), "metadata.yaml has no graph; expected"),
        (lambda meta: meta.update(graph_topology=meta.pop("graph")), "it is what GraphBolt made of a data set"),
        (lambda meta: meta["graph"].update(nodes=[]), "nodes is []; expected a list of entries with num"),
        (lambda meta: meta["graph"].update(edges=[{"format": "csv"}]), "expected a list of entries with path"),
        (
            lambda meta: meta["graph"]["nodes"][0].update(num="x"),
            "num of nodes of type (one) is 'x'; expected",
        ),
        (lambda meta: meta["graph"]["nodes"][0].update(num=31), "node-feat.npy has 30 rows; expected 31"),
        (lambda meta: meta["graph"]["nodes"][0].update(num=10), "expected node ids 0 to 9"),
        (lambda meta: meta["graph"]["edges"][0].update(path="gone.csv"), "gone.csv is missing"),
        (
            lambda meta: meta["graph"]["edges"][0].update(type="follows"),
            "edges of type 'follows'; expected 'source",
        ),
        (lambda meta: meta["feature_data"][0].update(format="hdf5"), "has format 'hdf5'; expected numpy or torch"),
        (lambda meta: meta["feature_data"][0].update(path="gone.npy"), "gone.npy is missing"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(dataset, edit, message):
    change(dataset, edit)
    assert message in refusal(dataset)


def test_labels_that_do_not_pair_with_seeds_are_refused(dataset):
    np.save(dataset / "node-train-labels.npy", np.zeros(3, np.int64))
    assert "node-train-seeds.npy has 12 seeds but 3 labels" in refusal(dataset)


def test_an_edge_beyond_the_nodes_is_named(dataset):
    with (dataset / "to.csv").open("a") as file:
        file.write("30,0\n")
    assert "to.csv: the source of edge 90 is 30; expected 0 to 29" in refusal(dataset)


def test_a_header_is_refused_by_line(dataset):
    text = (dataset / "to.csv").read_text()
    (dataset / "to.csv").write_text("src,dst\n" + text)
    assert "to.csv, line 1: found 'src,dst'; expected 2 integers" in refusal(dataset)


def test_edges_the_wrong_way_round_are_refused(tmp_path):
    path = write_graphbolt(tmp_path / "tiny", draw_graph(), edges_as="numpy")
    np.save(path / "to-edges.npy", draw_graph().edges.T)
    assert "to-edges.npy has shape (90, 2); expected (2, num_edges)" in refusal(path)


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", "!!python/object/apply:os.system ['true']"])
def test_what_is_no_mapping_is_refused(dataset, text):
    (dataset / "metadata.yaml").write_text(text)
    assert "metadata.yaml" in refusal(dataset)


def test_missing_metadata(tmp_path):
    assert "metadata.yaml is missing" in refusal(tmp_path)


def test_missing_package_is_named(monkeypatch, dataset):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ImportError, match=r"needs PyYAML.*pip install fastsample_dist\[formats\]"):
        read(dataset)

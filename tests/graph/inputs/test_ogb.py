"""The ogb reader against a stand-in for the ogb package that answers as ogb 1.3.6 does."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph.inputs import ReadOptions
from fastsample_dist.graph.inputs.ogb import read_ogb


class Dataset:
    """ogb.nodeproppred.NodePropPredDataset for one small graph: the attributes that ogb documents."""

    is_hetero = False
    num_classes = 3
    labels = np.array([[0.0], [np.nan], [2.0], [1.0]])

    def __init__(self, name: str, root: str) -> None:
        type(self).called_with = (name, root)

    def __getitem__(self, index: int) -> tuple[dict, np.ndarray]:
        assert index == 0
        graph = {
            "edge_index": np.array([[0, 3], [1, 2]]),
            "edge_feat": None,
            "node_feat": np.ones((4, 2), dtype=np.float32),
            "num_nodes": 4,
        }
        return graph, self.labels

    def get_idx_split(self) -> dict[str, np.ndarray]:
        return {"train": np.array([0]), "valid": np.array([2]), "test": np.array([3])}


@pytest.fixture
def dataset(monkeypatch) -> type[Dataset]:
    made = type("NodePropPredDataset", (Dataset,), {})
    package, module = types.ModuleType("ogb"), types.ModuleType("ogb.nodeproppred")
    module.NodePropPredDataset = made
    monkeypatch.setitem(sys.modules, "ogb", package)
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    return made


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "ogbn_arxiv").mkdir()
    return tmp_path / "ogbn_arxiv"


def test_package_is_asked_for_the_set_of_the_directory(dataset, directory):
    read_ogb(directory, ReadOptions())
    assert dataset.called_with == ("ogbn-arxiv", str(directory.parent))


def test_graph_comes_as_delivered(dataset, directory):
    raw = read_ogb(directory, ReadOptions())
    assert (raw.name, raw.num_nodes, raw.num_classes, raw.undirected) == ("ogbn-arxiv", 4, 3, False)
    assert raw.edge_index.tolist() == [[0, 3], [1, 2]]
    assert raw.features.shape == (4, 2)


def test_unlabelled_nodes_become_minus_one(dataset, directory):
    assert read_ogb(directory, ReadOptions()).labels.tolist() == [0, -1, 2, 1]


def test_splits_get_our_names(dataset, directory):
    splits = {name: ids.tolist() for name, ids in read_ogb(directory, ReadOptions()).splits.items()}
    assert splits == {"train": [0], "val": [2], "test": [3]}


def test_undirected_is_taken_over(dataset, directory):
    assert read_ogb(directory, ReadOptions(undirected=True)).undirected


def test_several_labels_per_node_are_refused(dataset, directory):
    dataset.labels = np.zeros((4, 112))
    with pytest.raises(ValueError, match=r"labels of shape \(4, 112\); expected one per node"):
        read_ogb(directory, ReadOptions())


def test_several_node_types_are_refused(dataset, directory):
    dataset.is_hetero = True
    with pytest.raises(ValueError, match="has several node types"):
        read_ogb(directory, ReadOptions())


def test_missing_directory_is_refused(dataset, tmp_path):
    with pytest.raises(ValueError, match="ogbn_mag is not a directory; download ogbn-mag with the ogb package first"):
        read_ogb(tmp_path / "ogbn_mag", ReadOptions())


def test_missing_package_is_named(monkeypatch, directory):
    monkeypatch.setitem(sys.modules, "ogb", None)
    with pytest.raises(ImportError, match="format ogb needs the ogb package.*pip install ogb"):
        read_ogb(directory, ReadOptions())

"""Graphs of DGL and PyG in memory, and DGL's own files, as input for partitioning."""

import sys

import numpy as np
import pytest
import torch

from fastsample_dist import interop
from fastsample_dist.graph.inputs import ReadOptions, read_graph
from tests.graph.inputs.layouts import (
    TYPED,
    dgl_graph,
    dgl_heterograph,
    draw_graph,
    flat,
    found,
    listed,
    pyg_attributes,
    pyg_stores,
)


class Attributes:
    """Stands for a Data or HeteroData: what `from_data` uses of it."""

    def __init__(self, mapping: dict) -> None:
        self.mapping = mapping

    def to_dict(self) -> dict:
        return self.mapping


def test_a_data_object_shares_its_memory():
    attributes = pyg_attributes(draw_graph(weighted=True))
    raw = interop.pyg.from_data(Attributes(attributes), name="mine", undirected=True)
    assert found(raw) == listed(draw_graph()) and (raw.name, raw.undirected) == ("mine", True)
    assert raw.features.ctypes.data == attributes["x"].data_ptr()
    assert raw.edge_index.ctypes.data == attributes["edge_index"].data_ptr()


def test_a_hetero_data_object():
    assert found(interop.pyg.from_data(Attributes(pyg_stores(TYPED)))) == flat(TYPED)


def test_bad_attributes_of_an_object_are_named():
    attributes = pyg_attributes(draw_graph()) | {"train_mask": torch.ones(30, 5, dtype=torch.bool)}
    with pytest.raises(ValueError, match=r"data: train_mask has shape \(30, 5\), 5 splits; expected one"):
        interop.pyg.from_data(Attributes(attributes))


def test_undirected_is_a_truth_value():
    """A text such as "no", which is true, would add every edge's reverse."""
    attributes = Attributes(pyg_attributes(draw_graph()))
    assert interop.pyg.from_data(attributes, undirected=np.bool_(True)).undirected is True
    with pytest.raises(ValueError, match=r"^undirected is 'no'; expected True or False\.$"):
        interop.pyg.from_data(attributes, undirected="no")


@pytest.fixture
def pyg_data():
    """The torch_geometric.data module; skips where it is missing."""
    return pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")


def test_pyg_saves_what_we_read(pyg_data, tmp_path):
    data = pyg_data.Data(**pyg_attributes(draw_graph()))
    assert data.num_edges and not data.is_coalesced() and data.node_attrs()  # fills caches that are saved too
    assert found(interop.pyg.from_data(data)) == listed(draw_graph())
    torch.save(data, tmp_path / "data.pt")
    assert found(read_graph(tmp_path / "data.pt")) == listed(draw_graph())
    pyg_data.InMemoryDataset.save([data], str(tmp_path / "set.pt"))
    assert found(read_graph(tmp_path / "set.pt")) == listed(draw_graph())


def test_pyg_saves_types_that_we_read(pyg_data, tmp_path):
    data = pyg_data.HeteroData()
    for key, store in pyg_stores(TYPED).items():
        if key != "_global_store":
            for name, value in store.items():
                data[key][name] = value
    assert found(interop.pyg.from_data(data)) == flat(TYPED)
    torch.save(data, tmp_path / "data.pt")
    assert found(read_graph(tmp_path / "data.pt")) == flat(TYPED)
    pyg_data.InMemoryDataset.save([data, data], str(tmp_path / "two.pt"))
    with pytest.raises(ValueError, match=r"two\.pt holds 2 graphs"):
        read_graph(tmp_path / "two.pt")


@pytest.fixture
def one_type(dgl):
    return dgl_graph(dgl, draw_graph(weighted=True))


@pytest.fixture
def several_types(dgl):
    return dgl_heterograph(dgl, TYPED)


def test_a_dgl_graph(one_type):
    raw, graph = interop.dgl.from_graph(one_type, name="mine"), draw_graph(weighted=True)
    assert found(raw) == listed(graph) and raw.name == "mine"
    assert np.array_equal(raw.edge_index, graph.edges) and np.array_equal(raw.edge_weight, graph.weights)


def test_a_dgl_graph_of_several_types(several_types):
    assert found(interop.dgl.from_graph(several_types)) == flat(TYPED)


@pytest.mark.parametrize("form", ["coo", "csr", "csc", ["csr", "csc"]], ids=str)
def test_a_dgl_graph_restricted_to_some_formats(dgl, one_type, several_types, tmp_path, form):
    restricted, graph = one_type.formats(form), draw_graph(weighted=True)
    before = restricted.formats()
    raw = interop.dgl.from_graph(restricted)
    assert np.array_equal(raw.edge_index, graph.edges) and np.array_equal(raw.edge_weight, graph.weights)
    assert restricted.formats() == before
    assert found(interop.dgl.from_graph(several_types.formats(form))) == flat(TYPED)
    dgl.save_graphs(str(tmp_path / "tiny.bin"), restricted)
    assert found(read_graph(tmp_path / "tiny.bin")) == listed(graph)


@pytest.mark.parametrize("given", [3, None, {}], ids=str)
def test_what_is_no_dgl_graph_is_refused(given):
    with pytest.raises(ValueError, match=f"^graph is a {type(given).__name__}; expected a DGLGraph.$"):
        interop.dgl.from_graph(given)


@pytest.mark.parametrize("given", [3, None, {}], ids=str)
def test_what_is_no_pyg_data_is_refused(given):
    with pytest.raises(ValueError, match=f"^data is a {type(given).__name__}; expected a Data or HeteroData.$"):
        interop.pyg.from_data(given)


def test_ids_agree_with_dgls_own_flattening(dgl, several_types):
    edges = dgl.to_homogeneous(several_types).edges()
    assert sorted(zip(*(ids.tolist() for ids in edges), strict=True)) == flat(TYPED)["edges"]


def test_a_file_of_dgl(dgl, one_type, tmp_path):
    dgl.save_graphs(str(tmp_path / "tiny.bin"), one_type)
    raw = read_graph(tmp_path / "tiny.bin", None, ReadOptions(undirected=True))
    assert found(raw) == listed(draw_graph()) and raw.undirected


def test_a_file_of_several_dgl_graphs_is_refused(dgl, one_type, tmp_path):
    dgl.save_graphs(str(tmp_path / "two.bin"), [one_type, one_type])
    with pytest.raises(ValueError, match=r"two\.bin holds 2 graphs; expected one"):
        read_graph(tmp_path / "two.bin")


def test_a_damaged_file_of_dgl_is_refused(dgl, tmp_path):
    (tmp_path / "junk.bin").write_bytes(b"junk" * 100)
    with pytest.raises(ValueError, match=r"^[^\n]*junk\.bin is not readable by dgl\.load_graphs"):
        read_graph(tmp_path / "junk.bin")


def test_a_missing_file_of_dgl_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.bin is missing; expected a file written by dgl\.save_graphs"):
        read_graph(tmp_path / "gone.bin", "dgl")


def test_missing_dgl_is_named(monkeypatch, tmp_path):
    (tmp_path / "tiny.bin").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(ImportError, match=r"format dgl .*needs dgl.*pip install fastsample_dist\[dgl\]"):
        read_graph(tmp_path / "tiny.bin")


def test_labels_of_a_dgl_graph_for_another_task(one_type, tmp_path, dgl):
    one_type.ndata["label"] = torch.linspace(0, 1, 30)
    assert interop.dgl.from_graph(one_type, task="regression").targets.shape == (30, 1)
    one_type.ndata["label"] = torch.eye(30)[:, :4] + 1
    dgl.save_graphs(str(tmp_path / "tiny.bin"), one_type)
    assert read_graph(tmp_path / "tiny.bin").task == "regression"


def test_labels_of_a_pyg_graph_for_another_task(pyg_data):
    data = pyg_data.Data(edge_index=torch.tensor([[0], [1]]), y=torch.tensor([[1.0, 0.0], [0.0, torch.nan]]))
    assert interop.pyg.from_data(data).task == "multilabel"
    data.y = torch.tensor([0.5, 2.0])
    assert interop.pyg.from_data(data, task="regression").targets.tolist() == [[0.5], [2.0]]

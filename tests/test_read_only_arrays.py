"""NumPy arrays that cannot be written, such as pandas and numpy.load(mmap_mode="r") return, are taken as they are:
without a copy, and without torch's warning of undefined behaviour."""

import warnings

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist.ops import checks
from fastsample_dist.sampling import transit

INDPTR, INDICES = np.array([0, 2, 3, 4]), np.array([1, 2, 0, 1])
EDGES = np.array([[1, 2, 0, 1], [0, 0, 1, 2]])


@pytest.fixture(autouse=True)
def every_warning_is_an_error():
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # by itself torch warns once in a process
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch.set_warn_always(before)


def read_only(values):
    array = np.array(values)
    array.flags.writeable = False
    return array


def sample(graph):
    return fsd.NeighborSampler(graph, [2]).sample(read_only([0, 2])).seeds.tolist()


def walk(graph):
    return fsd.TransitSampler(graph, transit.DeepWalk(2)).sample(read_only([0, 2])).vertices[:, 0].tolist()


def test_a_graph_of_such_arrays():
    graph = fsd.CSCGraph(read_only(INDPTR), read_only(INDICES), read_only(np.ones(4, np.float32)))
    listed = fsd.CSCGraph.from_edge_index(*map(read_only, EDGES), 3, read_only(np.ones(4, np.float32)))
    assert graph.indptr.tolist() == listed.indptr.tolist() == INDPTR.tolist()
    assert graph.indices.tolist() == listed.indices.tolist() == INDICES.tolist()


@pytest.mark.parametrize("take", [sample, walk])
def test_seeds_and_roots(take):
    assert take(fsd.CSCGraph(torch.from_numpy(INDPTR), torch.from_numpy(INDICES))) == [0, 2]


@pytest.mark.parametrize("undirected", [False, True])
def test_a_partition_of_such_arrays(undirected, tmp_path):
    splits = {"train": read_only([0, 2])}
    columns = read_only(np.ones((3, 2), np.float32)), read_only([0, 1, 0]), splits
    weights = read_only(np.ones(4, np.float32))
    facts = {"num_parts": 1, "method": "range", "undirected": undirected, "edge_weight": weights}
    fsd.partition_graph(read_only(EDGES), *columns, output=tmp_path / "parts", **facts)
    with fsd.DistContext.from_env() as ctx:
        data = fsd.DistData.load(tmp_path / "parts", ctx)
        assert data.orig_ids(read_only([0, 2])).tolist() == [0, 2]
        assert [mb.seeds.tolist() for mb in fsd.DistLoader(data, [2], 4, seeds=read_only([2]))] == [[2]]


@pytest.mark.parametrize("values", [[[1, 2], [3, 4]], [], 5], ids=["rows", "none", "a number"])
@pytest.mark.parametrize("step", [1, 2])
def test_the_tensor_is_the_array(values, step):
    array = read_only(values)
    array = array[..., ::step] if array.ndim else array
    tensor = checks.as_tensor(array)
    assert (tensor.data_ptr() == array.__array_interface__["data"][0]) or not array.size
    assert np.array_equal(tensor.numpy(), array) and tensor.dtype == torch.as_tensor(array.copy()).dtype

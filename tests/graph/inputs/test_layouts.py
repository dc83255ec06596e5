"""Every layout of other libraries gives the graph that was written, of one node type and of several."""

from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph.inputs import ReadOptions, Scratch, detect_format, read_graph
from tests.graph.inputs.layouts import (
    TYPED,
    draw_graph,
    flat,
    found,
    listed,
    write_chunked,
    write_graphbolt,
    write_ogb,
    write_ogb_binary,
    write_ogb_typed,
    write_pyg,
)

ONE_TYPE = {
    "ogb": ("ogb", write_ogb),
    "ogb npz": ("ogb", lambda path, graph: write_ogb_binary(path, graph, packed=False)),
    "ogb npz packed": ("ogb", lambda path, graph: write_ogb_binary(path, graph, packed=True)),
    "ogb npz csv split": ("ogb", lambda path, graph: write_ogb_binary(path, graph, packed=True, split_dict=False)),
    "chunked csv": ("dgl-chunked", write_chunked),
    "chunked numpy": ("dgl-chunked", lambda path, graph: write_chunked(path, graph, edges_as="numpy")),
    "chunked parquet": ("dgl-chunked", lambda path, graph: write_chunked(path, graph, edges_as="parquet")),
    "chunked whole": ("dgl-chunked", lambda path, graph: write_chunked(path, graph, edges_as="numpy", chunks=1)),
    "graphbolt csv": ("graphbolt", write_graphbolt),
    "graphbolt numpy": ("graphbolt", lambda path, graph: write_graphbolt(path, graph, edges_as="numpy")),
    "graphbolt torch": ("graphbolt", lambda path, graph: write_graphbolt(path, graph, data_as="torch")),
    "pyg object": ("pyg", lambda path, graph: write_pyg(path / "data.pt", graph)),
    "pyg data set": ("pyg", lambda path, graph: write_pyg(path / "data.pt", graph, form="dataset")),
    "pyg collated": ("pyg", lambda path, graph: write_pyg(path / "data.pt", graph, form="collated")),
}
SEVERAL_TYPES = {
    "ogb": ("ogb", write_ogb_typed),
    "chunked csv": ("dgl-chunked", write_chunked),
    "chunked numpy": ("dgl-chunked", lambda path, graph: write_chunked(path, graph, edges_as="numpy", chunks=1)),
    "graphbolt": ("graphbolt", write_graphbolt),
    "pyg object": ("pyg", lambda path, graph: write_pyg(path / "data.pt", graph)),
    "pyg data set": ("pyg", lambda path, graph: write_pyg(path / "data.pt", graph, form="dataset")),
}
WEIGHTED = {
    name: ONE_TYPE[name] for name in ("chunked csv", "chunked whole", "graphbolt csv", "graphbolt torch", "pyg object")
}


@pytest.mark.parametrize("layout", ONE_TYPE)
def test_one_node_type(tmp_path, layout):
    graph, (name, write) = draw_graph(), ONE_TYPE[layout]
    with Scratch() as scratch:
        raw = read_graph(write(tmp_path / "tiny", graph), name, ReadOptions(scratch=scratch))
        assert found(raw) == listed(graph)


@pytest.mark.parametrize("layout", SEVERAL_TYPES)
def test_several_node_types(tmp_path, layout):
    name, write = SEVERAL_TYPES[layout]
    with Scratch() as scratch:
        raw = read_graph(write(tmp_path / "tiny", TYPED), name, ReadOptions(scratch=scratch))
        assert found(raw) == flat(TYPED)


@pytest.mark.parametrize("layout", WEIGHTED)
def test_weights_belong_to_their_edges(tmp_path, layout):
    graph, (name, write) = draw_graph(weighted=True), WEIGHTED[layout]
    with Scratch() as scratch:
        raw = read_graph(write(tmp_path / "tiny", graph), name, ReadOptions(scratch=scratch))
        assert np.array_equal(raw.edge_index, graph.edges)
        assert np.array_equal(raw.edge_weight, graph.weights)


@pytest.mark.parametrize("layout", ONE_TYPE)
def test_format_is_seen_from_the_files(tmp_path, layout):
    name, write = ONE_TYPE[layout]
    assert detect_format(write(tmp_path / "tiny", draw_graph())) == name


def test_text_beside_a_data_set_does_not_hide_its_format(tmp_path):
    directory = write_ogb(tmp_path / "ogbn_tiny", draw_graph())
    (directory / "RELEASE_v1.txt").write_text("")
    assert detect_format(directory) == "ogb"


@pytest.mark.parametrize("layout", ONE_TYPE)
def test_undirected_is_taken_over(tmp_path, layout):
    name, write = ONE_TYPE[layout]
    with Scratch() as scratch:
        options = ReadOptions(undirected=True, scratch=scratch)
        assert read_graph(write(tmp_path / "tiny", draw_graph()), name, options).undirected


@pytest.mark.parametrize("layout", ["ogb npz", "chunked numpy", "graphbolt numpy", "pyg object"])
def test_features_stay_mapped(tmp_path, layout):
    name, write = ONE_TYPE[layout]
    with Scratch() as scratch:
        features = read_graph(write(tmp_path / "tiny", draw_graph()), name, ReadOptions(scratch=scratch)).features
        for segment in getattr(features, "segments", [features]):
            assert isinstance(segment, np.memmap)
            assert tmp_path in Path(segment.filename).parents

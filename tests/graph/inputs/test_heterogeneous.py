"""Types in one id space: what is handed on, what is joined, what is refused."""

import logging

import numpy as np
import pytest

from fastsample_dist.graph.inputs import Scratch
from fastsample_dist.graph.inputs.heterogeneous import (
    EdgeType,
    NodeType,
    TypedGraph,
    flatten,
    flattened,
    joined_edges,
)
from tests.graph.inputs.layouts import TYPED, flat, found


def place(name):
    return lambda column: f"{name}/{column}"


def typed(**changed) -> TypedGraph:
    nodes = [
        NodeType(
            name=name,
            num_nodes=count,
            features=TYPED.features.get(name),
            labels=TYPED.labels.get(name),
            splits=TYPED.splits.get(name, {}),
            where=place(name),
        )
        for name, count in TYPED.counts.items()
    ]
    edges = [
        EdgeType(source=a, relation=r, target=b, pieces=[(f"{r}.npy", pairs)])
        for (a, r, b), pairs in TYPED.edges.items()
    ]
    return TypedGraph(**{"name": "typed", "nodes": nodes, "edges": edges, "undirected": False, "where": "in"} | changed)


def single(edges: np.ndarray, *, num_nodes: int = 4, **more) -> TypedGraph:
    nodes = NodeType(name="", num_nodes=num_nodes, where=place("node"))
    pieces = [("edges.npy", edges)]
    kind = EdgeType(source="", relation="", target="", pieces=pieces, **more)
    return TypedGraph(name="single", nodes=[nodes], edges=[kind], undirected=False, where="in")


@pytest.mark.parametrize("on_disk", [False, True])
def test_types_follow_each_other(tmp_path, on_disk):
    with Scratch(tmp_path / "scratch") as scratch:
        assert found(flatten(typed(), scratch if on_disk else None)) == flat(TYPED)


def test_the_type_of_every_node_is_passed_on():
    meta, _, columns = flattened(typed(), None)
    assert meta["node_types"] == ["author", "paper", "venue"]
    assert columns["node_type"].tolist() == [0] * 3 + [1] * 5 + [2] * 2
    assert columns["node_type"].dtype == np.uint8


def test_one_type_is_not_named():
    meta, _, columns = flattened(single(np.array([[0], [1]])), None)
    assert "node_types" not in meta and "node_type" not in columns


def test_one_piece_of_one_type_is_handed_on_as_it_is():
    edges = np.array([[0], [1]])
    assert flatten(single(edges), None).edge_index is edges


def test_ids_beyond_31_bits_are_joined_as_64_bits():
    nodes = [NodeType(name=name, num_nodes=2**31, where=place(name)) for name in "ab"]
    kind = EdgeType(source="a", relation="r", target="b", pieces=[("e", np.array([[2**31 - 1], [5]], dtype=np.uint32))])
    graph = TypedGraph(name="large", nodes=nodes, edges=[kind], undirected=False, where="in")
    joined = joined_edges(graph, np.array([0, 2**31, 2**32]), None)
    assert joined.dtype == np.int64 and joined.tolist() == [[2**31 - 1], [2**31 + 5]]


def test_pieces_follow_each_other_with_their_weights():
    pieces = [("a", np.array([[0, 1], [1, 2]])), ("b", np.array([[3], [0]]))]
    weights = [np.array([1, 2], np.float32), np.array([3], np.float32)]
    kind = EdgeType(source="", relation="", target="", pieces=pieces, weights=weights)
    nodes = [NodeType(name="", num_nodes=4, where=place("n"))]
    raw = flatten(TypedGraph(name="p", nodes=nodes, edges=[kind], undirected=False, where="in"), None)
    assert raw.edge_index.tolist() == [[0, 1, 3], [1, 2, 0]] and raw.edge_weight.tolist() == [1, 2, 3]


def test_weights_of_some_types_only_are_left_out_with_a_warning(caplog):
    edges = list(typed().edges)
    edges[0] = EdgeType(
        source="author", relation="writes", target="paper", pieces=edges[0].pieces, weights=[np.ones(4)]
    )
    with caplog.at_level(logging.WARNING):
        assert flatten(typed(edges=edges), None).edge_weight is None
    assert "edges of type at, cites have no weight" in caplog.text


@pytest.mark.parametrize(("value", "end"), [(3, "source"), (-1, "source")])
def test_an_id_outside_its_type_names_the_piece(value, end):
    edges = list(typed().edges)
    pairs = np.array([[0, value], [4, 0]])
    edges[0] = EdgeType(source="author", relation="writes", target="paper", pieces=[("writes.npy", pairs)])
    with pytest.raises(ValueError, match=rf"writes\.npy: the {end} of edge 1 is {value}; expected 0 to 2"):
        flatten(typed(edges=edges), None)


def test_a_split_outside_its_type_names_the_place():
    nodes = list(typed().nodes)
    nodes[1] = NodeType(name="paper", num_nodes=5, splits={"train": np.array([0, 5])}, where=place("paper"))
    with pytest.raises(ValueError, match="paper/train: entry 1 is 5; expected node ids 0 to 4"):
        flatten(typed(nodes=nodes), None)


@pytest.mark.parametrize("rows", [np.ones((3, 4), np.float32), np.ones((3, 2), np.float16)])
def test_features_that_differ_name_both_places(rows):
    nodes = list(typed().nodes)
    nodes[0] = NodeType(name="author", num_nodes=3, features=rows, where=place("author"))
    with pytest.raises(ValueError, match=r"paper/features has float32 features of shape \(5, 2\), author/features"):
        flatten(typed(nodes=nodes), None)


def test_a_type_listed_twice_is_refused():
    nodes = [*typed().nodes, typed().nodes[0]]
    with pytest.raises(ValueError, match="lists a node type twice"):
        flatten(typed(nodes=nodes), None)


def test_no_edges_are_refused():
    with pytest.raises(ValueError, match="has 3 node types and no edges"):
        flatten(typed(edges=[]), None)


def test_a_joined_file_is_made_again_when_its_source_changes(tmp_path):
    source = tmp_path / "source"
    source.write_text("1")
    with Scratch(tmp_path / "scratch") as scratch:
        flatten(typed(sources=[source]), scratch)
        source.write_text("22")
        edges = list(typed().edges)[:2]
        assert flatten(typed(sources=[source], edges=edges), scratch).edge_index.shape == (2, 6)

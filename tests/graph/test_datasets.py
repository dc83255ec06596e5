"""The `npy` input directory: what is read, what is built from it, and how each bad value is refused."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.graph.datasets import RawGraph, read_npy_graph
from fastsample_dist.graph.inputs.sizes import npy_sizes
from tests.optional import given, settings, st

META = {"name": "tiny", "num_nodes": 5, "undirected": False, "num_classes": 3}
COLUMNS = {
    "edge_index": np.array([[1, 4, 0, 1], [0, 0, 2, 3]]),
    "features": np.arange(10, dtype=np.float32).reshape(5, 2),
    "labels": np.array([0, 2, 1, -1, 1]),
    "train_idx": np.array([4, 0]),
    "val_idx": np.array([1]),
    "test_idx": np.array([2]),
}


def write_input(path: Path, meta: object = None, **columns: np.ndarray | None) -> Path:
    """Write the tiny graph with some columns replaced, or left out (None)."""
    path.mkdir()
    (path / "meta.json").write_text(json.dumps(META if meta is None else meta))
    for name, array in {**COLUMNS, **columns}.items():
        if array is not None:
            np.save(path / f"{name}.npy", array)
    return path


def raw_graph(edges: list[tuple[int, int]], num_nodes: int, **fields: object) -> RawGraph:
    edge_index = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return RawGraph(**{"name": "drawn", "undirected": False, **fields}, num_nodes=num_nodes, edge_index=edge_index)


def rows_of(raw: RawGraph) -> list[list[int]]:
    """In-neighbours of every node, in stored order."""
    graph = raw.to_csc()
    return [graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist() for v in range(raw.num_nodes)]


# ---- what is read


def test_everything_is_read(tmp_path):
    raw = read_npy_graph(write_input(tmp_path / "g"))
    assert (raw.name, raw.num_nodes, raw.undirected, raw.num_classes) == ("tiny", 5, False, 3)
    for field in ("edge_index", "features", "labels"):
        np.testing.assert_array_equal(getattr(raw, field), COLUMNS[field])


def test_splits_come_ascending(tmp_path):
    raw = read_npy_graph(write_input(tmp_path / "g"))
    assert {split: ids.tolist() for split, ids in raw.splits.items()} == {"train": [0, 4], "val": [1], "test": [2]}


def test_arrays_stay_mapped(tmp_path):
    raw = read_npy_graph(write_input(tmp_path / "g"))
    assert isinstance(raw.features, np.memmap) and isinstance(raw.edge_index, np.memmap)


def test_topology_alone_is_a_graph(tmp_path):
    nothing = {name: None for name in COLUMNS if name != "edge_index"}
    raw = read_npy_graph(write_input(tmp_path / "g", **nothing))
    assert (raw.features, raw.labels, raw.splits) == (None, None, {})


def test_classes_are_counted_when_meta_does_not_state_them(tmp_path):
    meta = {key: value for key, value in META.items() if key != "num_classes"}
    assert read_npy_graph(write_input(tmp_path / "g", meta)).num_classes == 3


@pytest.mark.parametrize("label", [10**8, 10**12, 2**63 - 1])
def test_labels_far_apart_are_refused_unless_the_classes_are_stated(tmp_path, label):
    meta = {key: value for key, value in META.items() if key != "num_classes"}
    labels = with_entry("labels", 1, label)
    with pytest.raises(ValueError, match=f"labels.npy has 3 distinct labels but the highest is {label}"):
        read_npy_graph(write_input(tmp_path / "g", meta, labels=labels))
    stated = write_input(tmp_path / "stated", {**meta, "num_classes": label + 1}, labels=labels)
    assert read_npy_graph(stated).num_classes == label + 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "int32", "uint32", "int64", "uint64", ">i4"])
def test_any_integer_type_of_ids_gives_the_same_topology(tmp_path, dtype):
    raw = read_npy_graph(write_input(tmp_path / "g", edge_index=COLUMNS["edge_index"].astype(dtype)))
    assert rows_of(raw) == [[1, 4], [], [0], [1], []]


def test_column_major_files_are_read(tmp_path):
    raw = read_npy_graph(write_input(tmp_path / "g", edge_index=np.asfortranarray(COLUMNS["edge_index"])))
    assert rows_of(raw) == [[1, 4], [], [0], [1], []]


def test_link_that_leads_nowhere_is_refused(tmp_path):
    path = write_input(tmp_path / "graph", labels=None)
    (path / "labels.npy").symlink_to("elsewhere.npy")
    for read in (read_npy_graph, lambda place: npy_sizes(place, None)):
        with pytest.raises(ValueError, match="labels.npy is missing"):
            read(path)


def test_types_are_left_out_with_a_note(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    read_npy_graph(write_input(tmp_path / "g", edge_type=np.zeros(4, dtype=np.int8)))
    assert "edge_type.npy is left out" in caplog.text


def test_node_types_are_read_with_their_names(tmp_path):
    node_type = np.array([1, 0, 1, 1, 0], dtype=np.uint8)
    raw = read_npy_graph(write_input(tmp_path / "g", {**META, "node_types": ["paper", "author"]}, node_type=node_type))
    assert raw.node_types == ("paper", "author") and raw.node_type.tolist() == [1, 0, 1, 1, 0]


def test_node_types_without_names_are_numbered(tmp_path):
    raw = read_npy_graph(write_input(tmp_path / "g", node_type=np.array([0, 2, 0, 0, 2])))
    assert raw.node_types == ("0", "1", "2")


def test_graph_of_one_kind_of_nodes_has_no_types(tmp_path):
    raw = read_npy_graph(write_input(tmp_path / "g", {**META, "node_types": []}))
    assert (raw.node_types, raw.node_type) == ((), None)


TYPED = {**META, "node_types": ["paper", "author"]}
BAD_TYPES = [
    (TYPED, np.zeros(4, dtype=int), "node_type.npy has shape (4,); expected (5,), one type per node"),
    (TYPED, np.zeros((5, 1), dtype=int), "node_type.npy has shape (5, 1); expected (5,)"),
    (TYPED, np.zeros(5), "node_type.npy is float64; expected an integer type"),
    (TYPED, np.array([0, 1, 2, 0, 9]), "the type of node 2 is 2; expected 0 to 1 (node_types has 2 names); correct"),
    (TYPED, np.array([0, 1, 1, -1, 0]), "the type of node 3 is -1; expected 0 to 1"),
    (META, np.array([0, 1, 70_000, 1, 0]), "the type of node 2 is 70000; expected 0 to 65535; correct"),
    (TYPED, None, "node_types names 2 types but there is no node_type; give every node its type"),
    ({**META, "node_types": ["a", "a"]}, np.zeros(5, dtype=int), "node_types is ['a', 'a']; expected a list of diff"),
    ({**META, "node_types": ["a", 7]}, np.zeros(5, dtype=int), "node_types is ['a', 7]; expected a list of different"),
    ({**META, "node_types": "paper"}, np.zeros(5, dtype=int), "node_types is 'paper'; expected a list of different"),
]


@pytest.mark.parametrize("meta, node_type, message", BAD_TYPES)
def test_bad_node_types_are_refused(tmp_path, meta, node_type, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_npy_graph(write_input(tmp_path / "g", meta, node_type=node_type))
    assert "\n" not in str(caught.value)


# ---- what is built


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40))
def test_directed_topology_keeps_every_edge(edges):
    oracle = [sorted(src for src, dst in edges if dst == node) for node in range(7)]
    assert rows_of(raw_graph(edges, 7)) == oracle


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40))
def test_undirected_topology_has_each_pair_once_per_direction(edges):
    both = {*edges, *((dst, src) for src, dst in edges)}
    oracle = [sorted(src for src, dst in both if dst == node) for node in range(7)]
    assert rows_of(raw_graph(edges, 7, undirected=True)) == oracle


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_undirected_weight_is_the_first_listed_in_either_direction(edges):
    weights = np.arange(len(edges), dtype=np.float32)
    oracle: dict[tuple[int, int], float] = {}
    for (src, dst), weight in zip(edges, weights.tolist(), strict=True):
        for edge in ((src, dst), (dst, src)):
            oracle.setdefault(edge, weight)
    graph = raw_graph(edges, 5, undirected=True, edge_weight=weights).to_csc()
    dst = torch.repeat_interleave(torch.arange(5), graph.in_degrees())
    found = dict(zip(zip(graph.indices.tolist(), dst.tolist(), strict=True), graph.weights.tolist(), strict=True))
    assert found == oracle


def test_directed_weights_follow_their_edges():
    graph = raw_graph([(3, 0), (1, 0), (3, 0)], 4, edge_weight=np.array([0.5, 1.5, 2.5])).to_csc()
    assert list(zip(graph.indices.tolist(), graph.weights.tolist(), strict=True)) == [(1, 1.5), (3, 0.5), (3, 2.5)]


@pytest.mark.parametrize(
    "given_dtype, stored", [("float16", "float32"), ("int8", "float32"), ("float64", "float64"), ("int64", "float64")]
)
def test_weights_are_stored_without_loss(given_dtype, stored):
    graph = raw_graph([(1, 0)], 2, edge_weight=np.array([3], dtype=given_dtype)).to_csc()
    assert graph.weights.dtype == getattr(torch, stored)


def test_graph_without_edges_has_empty_rows():
    assert rows_of(raw_graph([], 3, undirected=True)) == [[], [], []]


# ---- what is refused: column, bad value, words of the message


def with_entry(column: str, index: object, value: float) -> np.ndarray:
    array = COLUMNS[column].copy()
    array[index] = value
    return array


LONGER_FLOATS = [np.longdouble] if np.dtype(np.longdouble).itemsize > 8 else []  # where the machine has some
BAD_COLUMNS = [
    ("edge_index", None, "edge_index.npy is missing"),
    ("edge_index", with_entry("edge_index", (0, 2), 5), "the source of edge 2 is 5; expected 0 to 4"),
    ("edge_index", with_entry("edge_index", (1, 3), -1), "the destination of edge 3 is -1; expected 0 to 4"),
    ("edge_index", COLUMNS["edge_index"].T, r"has shape \(4, 2\); expected \(2, num_edges\).*; transpose it"),
    ("edge_index", COLUMNS["edge_index"][0], r"has shape \(4,\); expected \(2, num_edges\)"),
    ("edge_index", COLUMNS["edge_index"] / 1, "is float64; expected an integer type"),
    ("edge_index", COLUMNS["edge_index"].astype(object), "edge_index.npy is not a readable .npy file"),
    ("features", np.zeros((4, 2)), r"has shape \(4, 2\); expected \(5, dim\)"),
    ("features", np.zeros(5), r"has shape \(5,\); expected \(5, dim\)"),
    ("features", np.zeros((5, 0)), r"has shape \(5, 0\); expected \(5, dim\) with dim >= 1"),
    ("features", np.zeros((5, 2), dtype=complex), "is complex128; expected one of float16"),
    ("labels", np.zeros(4, dtype=int), r"has shape \(4,\); expected \(5,\)"),
    ("labels", np.zeros(5), "is float64; expected an integer type"),
    ("labels", with_entry("labels", 1, -2), r"the label of node 1 is -2; expected -1 \(unlabelled\) or 0 to 2"),
    ("labels", with_entry("labels", 2, 3), r"the label of node 2 is 3; expected .* 0 to 2 \(num_classes is 3\)"),
    ("train_idx", np.array([0, 4, 0]), r"lists node 0 more than once \(1 repeated entries in all\)"),
    ("train_idx", np.array([0, 5]), "entry 1 is 5; expected node ids 0 to 4"),
    ("train_idx", np.array([-1, 0]), "entry 0 is -1; expected node ids 0 to 4"),
    ("train_idx", np.array([True, False, True, False, False]), "is bool of shape .*numpy.flatnonzero"),
    ("train_idx", np.array([[0, 4]]), r"is int64 of shape \(1, 2\); expected a one-dimensional list"),
    ("train_idx", np.array([0, 1]), "train_idx.npy and .*val_idx.npy share 1 nodes, the first is node 1"),
    ("test_idx", np.array([2, 4]), "train_idx.npy and .*test_idx.npy share 1 nodes, the first is node 4"),
    ("train_idx", np.array([0, 3]), "lists 1 nodes without a label, the first is node 3"),
    ("edge_weight", np.ones(3), r"has shape \(3,\); expected \(4,\), one weight per listed edge"),
    ("edge_weight", np.array([1, np.nan, 1, 1]), "the weight of edge 1 is nan; expected a finite number"),
    ("edge_weight", np.array([1, 0, -0.5, 1]), "the weight of edge 2 is -0.5; expected a finite number, 0 or more"),
    ("edge_weight", np.array([1, 0, 2, -3]), "the weight of edge 3 is -3; expected a finite number, 0 or more"),
    ("edge_weight", np.array([1, np.inf, 1, 1]), "the weight of edge 1 is inf; expected a finite number"),
    ("edge_weight", np.ones(4, dtype=bool), "is bool; expected numbers"),
    ("edge_weight", np.ones(4, dtype=complex), "is complex128; expected numbers of up to 64 bits"),
    *(("edge_weight", np.ones(4, dtype=wide), "expected numbers of up to 64 bits") for wide in LONGER_FLOATS),
]


@pytest.mark.parametrize("column, array, message", BAD_COLUMNS)
def test_bad_column_is_refused_by_file_and_value(tmp_path, column, array, message):
    path = write_input(tmp_path / "g", **{column: array})
    with pytest.raises(ValueError, match=message) as refusal:
        read_npy_graph(path)
    assert f"{column}.npy" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "meta, message",
    [
        ({**META, "num_nodes": "5"}, 'num_nodes is "5"; expected num_nodes as int'),
        ({**META, "num_nodes": True}, "num_nodes is true; expected num_nodes as int"),
        ({**META, "num_nodes": 0}, "num_nodes is 0; expected 1 to"),
        ({**META, "undirected": 1}, "undirected is 1; expected undirected as bool"),
        ({"name": "tiny", "num_nodes": 5}, "there is no undirected"),
        ({**META, "num_classes": -1}, "num_classes is -1; expected an integer >= 0"),
        ([1], "holds a list; expected an object"),
    ],
)
def test_bad_meta_is_refused(tmp_path, meta, message):
    with pytest.raises(ValueError, match=f"meta.json.*{message}"):
        read_npy_graph(write_input(tmp_path / "g", meta))


def test_meta_that_is_no_json_is_refused(tmp_path):
    path = write_input(tmp_path / "g")
    (path / "meta.json").write_text("{name: tiny}")
    with pytest.raises(ValueError, match="meta.json is not JSON"):
        read_npy_graph(path)


def test_missing_meta_is_refused(tmp_path):
    path = write_input(tmp_path / "g")
    (path / "meta.json").unlink()
    with pytest.raises(ValueError, match="meta.json is missing; expected"):
        read_npy_graph(path)


def test_missing_directory_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a directory"):
        read_npy_graph(tmp_path / "nowhere")


def test_truncated_file_is_refused(tmp_path):
    path = write_input(tmp_path / "g")
    data = (path / "features.npy").read_bytes()
    (path / "features.npy").write_bytes(data[:-1])
    with pytest.raises(ValueError, match=r"features.npy has \d+ bytes; expected \d+: it is truncated"):
        read_npy_graph(path)


# ---- what is warned of


def test_features_that_are_not_finite_are_counted_and_kept(tmp_path, caplog):
    features = COLUMNS["features"].copy()
    features[1] = [np.nan, np.inf]
    features[4, 0] = np.nan
    raw = read_npy_graph(write_input(tmp_path / "g", features=features))
    assert raw.nonfinite_features == 3
    assert "features.npy holds 2 NaN and 1 infinite values in 2 rows" in caplog.text
    np.testing.assert_array_equal(raw.features, features)


def test_finite_features_bring_no_warning(tmp_path, caplog):
    assert read_npy_graph(write_input(tmp_path / "g")).nonfinite_features == 0
    assert caplog.text == ""


def test_unlabelled_test_nodes_are_warned_of(tmp_path, caplog):
    read_npy_graph(write_input(tmp_path / "g", test_idx=np.array([2, 3])))
    assert "test_idx.npy lists 1 nodes without a label" in caplog.text


def test_an_empty_train_split_is_warned_of(tmp_path, caplog):
    raw = read_npy_graph(write_input(tmp_path / "g", train_idx=np.empty(0, dtype=np.int64)))
    assert "train_idx.npy lists no node: nothing can be trained" in caplog.text
    assert raw.splits["train"].size == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 5}, "name is 5; expected text"),
        ({"undirected": 1}, "undirected is 1; expected True or False"),
        ({"num_nodes": 3.0}, "num_nodes is 3.0; expected an integer from 1 to"),
        ({"num_classes": None}, "num_classes is None; expected an integer >= 0"),
    ],
)
def test_graph_made_by_hand_with_a_fact_of_another_type_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        raw_graph([(0, 1)], **{"num_nodes": 3, **fields})


def test_facts_of_a_graph_made_by_hand_become_pythons():
    raw = raw_graph([(0, 1)], np.int64(3), undirected=np.bool_(True), num_classes=torch.tensor(2))
    assert [type(value) for value in (raw.num_nodes, raw.undirected, raw.num_classes)] == [int, bool, int]

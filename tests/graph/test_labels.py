"""Labels that are not classes: which task they are for, what is refused, and how every format hands them on."""

import logging

import numpy as np
import pytest
import torch

from fastsample_dist.graph import npy_files
from fastsample_dist.graph.datasets import read_npy_graph
from fastsample_dist.graph.inputs import ReadOptions, input_sizes, read_graph
from fastsample_dist.graph.inputs.graphbolt import read_graphbolt
from fastsample_dist.graph.inputs.heterogeneous import NodeType, TypedGraph, flatten
from fastsample_dist.graph.inputs.pyg_saved import from_mapping
from fastsample_dist.graph.labels import has_target, target_rows
from tests.graph.inputs.test_heterogeneous import place, typed
from tests.graph.test_datasets import META, write_input

NAN = np.nan
PLAIN = {key: value for key, value in META.items() if key != "num_classes"}
SEVERAL = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0], [-1, -1, 1], [1, 0, -1]])
FRACTIONS = np.array([0.5, -1.0, 2.25, NAN, 7.0])


@pytest.fixture(params=["one chunk", "many chunks"])
def chunked(request, monkeypatch):
    """Run the test twice: with arrays read whole, and a row at a time."""
    if request.param == "many chunks":
        monkeypatch.setattr(npy_files, "CHUNK_BYTES", 8)


def read(tmp_path, labels, task=None, *, stated=None, **columns):
    meta = PLAIN if stated is None else {**PLAIN, "task": stated}
    return read_npy_graph(write_input(tmp_path / "g", meta, labels=labels, **columns), task)


def targets_of(raw) -> list[list[float | None]]:
    rows = target_rows(raw.targets, np.arange(raw.num_nodes), raw.task)
    assert rows.dtype == np.float32
    return [[None if np.isnan(value) else value for value in row] for row in rows.tolist()]


# ---- npy: which task


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.float32, np.float64])
def test_several_columns_of_0_and_1_are_multilabel(tmp_path, caplog, chunked, dtype):
    with caplog.at_level(logging.INFO):
        raw = read(tmp_path, SEVERAL.astype(dtype))
    assert (raw.task, raw.labels, raw.num_classes) == ("multilabel", None, 0)
    assert targets_of(raw) == [[None if value == -1 else value for value in row] for row in SEVERAL.tolist()]
    assert "labels.npy: 3 labels per node, read as multilabel (all are 0, 1 or not known)" in caplog.text


def test_truth_values_are_multilabel(tmp_path):
    assert targets_of(read(tmp_path, SEVERAL == 1)) == (SEVERAL == 1).astype(float).tolist()


@pytest.mark.parametrize("labels", [SEVERAL + 1, SEVERAL / 2, np.where(SEVERAL == -1, NAN, SEVERAL * 3.0)])
def test_several_columns_of_other_numbers_are_regression(tmp_path, caplog, chunked, labels):
    with caplog.at_level(logging.INFO):
        raw = read(tmp_path, labels)
    assert raw.task == "regression"
    assert targets_of(raw) == [[None if np.isnan(value) else value for value in row] for row in labels.tolist()]
    assert "read as regression (not all are 0 or 1)" in caplog.text


def test_minus_one_is_a_value_where_the_task_is_regression(tmp_path):
    assert targets_of(read(tmp_path, SEVERAL, "regression")) == SEVERAL.tolist()


@pytest.mark.parametrize(
    ("asked", "stated"), [("regression", None), (None, "regression"), ("regression", "regression")]
)
def test_a_single_column_of_fractions_with_a_task(tmp_path, asked, stated):
    raw = read(tmp_path, FRACTIONS, asked, stated=stated)
    assert (raw.task, targets_of(raw)) == ("regression", [[0.5], [-1.0], [2.25], [None], [7.0]])


@pytest.mark.parametrize("labels", [FRACTIONS, np.arange(5.0)])
def test_a_single_column_of_floats_without_a_task_is_refused_with_what_to_do(tmp_path, labels):
    with pytest.raises(ValueError, match=r"labels.npy is float64; expected an integer type for classes; .*--task"):
        read(tmp_path, labels)


def test_whole_floats_are_classes_where_the_task_says_so(tmp_path):
    raw = read(tmp_path, np.array([0, 2, 1, NAN, 1]), "classification")
    assert (raw.task, raw.labels.tolist(), raw.num_classes, raw.targets) == (
        "classification",
        [0, 2, 1, -1, 1],
        3,
        None,
    )


@pytest.mark.parametrize("labels", [np.array([0, 2, 1, -1, 1]), np.array([[0], [2], [1], [-1], [1]])])
def test_a_single_column_of_integers_has_classes_as_ever(tmp_path, caplog, labels):
    raw = read(tmp_path, labels)
    assert (raw.task, raw.labels.tolist(), raw.num_classes, raw.targets) == (
        "classification",
        [0, 2, 1, -1, 1],
        3,
        None,
    )
    assert caplog.text == ""


def test_a_single_column_of_integers_for_another_task(tmp_path):
    labels = np.array([1, 0, 1, -1, 1])
    assert targets_of(read(tmp_path, labels, "multilabel")) == [[1], [0], [1], [None], [1]]


# ---- what is refused and what is warned of


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        (SEVERAL[:4], None, r"has shape \(4, 3\); expected \(5, columns\), one row per node"),
        (SEVERAL[:, :, None], None, r"has labels of shape \(5, 3, 1\); expected one per node"),
        (SEVERAL[:, :0], None, r"has labels of shape \(5, 0\); expected one per node"),
        (SEVERAL, "classification", r"has labels of shape \(5, 3\); expected one per node, .* pass another task"),
        (SEVERAL * 2, "multilabel", "label 1 of node 0 is 2; expected 0 or 1, or -1 or NaN"),
        (np.where(SEVERAL == -1, np.inf, SEVERAL), None, "label 0 of node 3 is inf; expected a finite number"),
        (np.where(SEVERAL == -1, 1e300, SEVERAL), None, "label 0 of node 3 is 1e\\+300; expected a finite number"),
        (FRACTIONS, "classification", "the label of node 0 is 0.5; expected a class number or NaN"),
        (FRACTIONS, "ranking", "task is 'ranking'; expected one of classification, multilabel, regression"),
        (None, "regression", "the task is regression but tiny has no labels; expected them in .*labels.npy"),
        (SEVERAL.astype(complex), None, "is complex128; expected numbers"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path, labels, task, message):
    with pytest.raises(ValueError, match=message) as refusal:
        read(tmp_path, labels, task)
    assert "\n" not in str(refusal.value)


def test_two_tasks_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"meta.json states the task regression but multilabel is requested"):
        read(tmp_path, SEVERAL, "multilabel", stated="regression")


def test_a_train_node_none_of_whose_labels_is_known_is_refused(tmp_path):
    labels = np.where(np.arange(5)[:, None] == 4, -1, SEVERAL)
    with pytest.raises(ValueError, match=r"train_idx.npy lists 1 nodes without a label, the first is node 4"):
        read(tmp_path, labels)


def test_one_known_label_makes_a_train_node(tmp_path, caplog):
    labels = np.full((5, 3), NAN)
    labels[[0, 4], [1, 2]] = 1
    assert has_target(read(tmp_path, labels).targets, np.arange(5), "multilabel").tolist() == [1, 0, 0, 0, 1]
    assert "val_idx.npy lists 1 nodes without a label" in caplog.text


def test_integers_that_float32_rounds_are_warned_of(tmp_path, caplog):
    read(tmp_path, np.array([1, 2, 2**24 + 1, 3, 4]), "regression")
    assert "labels.npy has integers that float32 does not hold exactly; they are rounded" in caplog.text


# ---- other formats (dgl: tests/interop/test_inputs.py; ogb: tests/graph/inputs/test_ogb_raw.py)


def test_edge_lists_take_labels_and_task(tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n2,0\n")
    np.save(tmp_path / "labels.npy", np.array([0.5, 1.5, 2.5]))
    raw = read_graph(tmp_path, "edgelist", ReadOptions(task="regression"))
    assert (raw.task, targets_of(raw)) == ("regression", [[0.5], [1.5], [2.5]])


def test_saved_pyg_labels_of_several_columns():
    edges = torch.tensor([[0, 1], [1, 2]])
    raw = from_mapping({"edge_index": edges, "y": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])})
    assert (raw.task, targets_of(raw)) == ("multilabel", [[1, 0], [0, 1], [1, 1]])
    raw = from_mapping({"edge_index": edges, "y": torch.tensor([0.5, 1.0, 2.0])}, ReadOptions(task="regression"))
    assert (raw.task, targets_of(raw)) == ("regression", [[0.5], [1], [2]])


def test_fractions_of_other_formats_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"y: the label of node 0 is 0.5; expected a class number or NaN; .*--task"):
        from_mapping({"edge_index": torch.tensor([[0], [1]]), "y": torch.tensor([0.5, 1.0])})


GRAPHBOLT = """
dataset_name: several
graph:
  nodes: [{num: 4}]
  edges: [{format: numpy, path: edges.npy}]
tasks:
  - train_set: [{data: [{name: seeds, format: numpy, path: train.npy}, {name: labels, format: numpy, path: a.npy}]}]
    validation_set: [{data: [{name: seeds, format: numpy, path: val.npy}, {name: labels, format: numpy, path: b.npy}]}]
"""


def write_graphbolt(path, first: np.ndarray, second: np.ndarray) -> None:
    (path / "metadata.yaml").write_text(GRAPHBOLT)
    arrays = {
        "edges": np.array([[0, 1], [1, 2]]),
        "train": np.array([3, 0]),
        "val": np.array([2]),
        "a": first,
        "b": second,
    }
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)


def test_graphbolt_labels_of_several_columns_by_seed(tmp_path):
    write_graphbolt(tmp_path, np.array([[1, 0], [0, 1]]), np.array([[1, 1]]))
    raw = read_graphbolt(tmp_path, ReadOptions())
    assert (raw.task, targets_of(raw)) == ("multilabel", [[0, 1], [None, None], [1, 1], [1, 0]])


def test_graphbolt_sets_with_other_columns_are_refused(tmp_path):
    write_graphbolt(tmp_path, np.array([[1, 0], [0, 1]]), np.array([1]))
    with pytest.raises(ValueError, match=r"b.npy has labels of shape \(1,\); expected as many columns as in the other"):
        read_graphbolt(tmp_path, ReadOptions())


def test_types_without_labels_have_none_that_are_known():
    raw = flatten(with_labels({"paper": np.eye(5, 2)}), None)
    assert raw.task == "multilabel"
    assert targets_of(raw) == [*[[None] * 2] * 3, [1, 0], [0, 1], *[[0, 0]] * 3, *[[None] * 2] * 2]


def test_types_with_other_columns_are_refused():
    with pytest.raises(ValueError, match=r"paper/labels has labels of shape \(5, 2\), author/labels of shape \(3,\)"):
        flatten(with_labels({"paper": np.eye(5, 2), "author": np.arange(3)}), None)


def with_labels(labels: dict[str, np.ndarray]) -> TypedGraph:
    graph = typed()
    nodes = [
        NodeType(name=item.name, num_nodes=item.num_nodes, labels=labels.get(item.name), where=place(item.name))
        for item in graph.nodes
    ]
    return typed(nodes=nodes)


# ---- sizes


@pytest.mark.parametrize(
    ("labels", "stated", "columns"),
    [(SEVERAL, None, 3), (FRACTIONS, "regression", 1), (np.arange(5), None, 0), (np.arange(5), "classification", 0)],
)
def test_sizes_have_the_columns_of_targets(tmp_path, labels, stated, columns):
    meta = PLAIN if stated is None else {**PLAIN, "task": stated}
    sizes = input_sizes(write_input(tmp_path / "g", meta, labels=labels))
    assert (sizes.num_targets, sizes.label_row_bytes) == (columns, 4 * columns or 8)

"""TransitTables: their size is known before, what is too large is refused, and copies change no sample."""

import numpy as np
import pytest
import torch

from fastsample_dist import memory_sizes
from fastsample_dist.ops.hashed_rows import hashed_rows
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, TransitRequest, transit_sample
from fastsample_dist.ops.transit_tables import TableNeeds, TransitTables, table_bytes
from tests.ops.graphs import random_csc

GRAPH = random_csc()
WEIGHTS = torch.ones(GRAPH.indices.numel())
ALL = TableNeeds(weighted=True, max_weight=True, edge_queries=True, copy_indices=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_size_is_known_before(dtype):
    indices, num_rows = GRAPH.indices.to(dtype), GRAPH.num_nodes
    sizes = table_bytes(GRAPH.indptr, indices, ALL)
    assert sizes == {
        "walk slots": (12 if dtype == torch.int32 else 24) * indices.numel(),
        "sums of weights": 8 * num_rows,
        "largest weights": 8 * num_rows,
        "hashed rows": hashed_rows(GRAPH.indptr, indices).num_bytes,
        "a copy of the neighbours": indices.nbytes,
    }
    tables = TransitTables(GRAPH.indptr, indices, WEIGHTS, ALL)
    assert tables.num_bytes == sum(sizes.values())
    assert TransitTables(GRAPH.indptr, indices).num_bytes == 0


def test_tables_larger_than_the_free_memory_are_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(memory_sizes, "available_bytes", lambda: 2000)
    with pytest.raises(ValueError) as refused:
        TransitTables(GRAPH.indptr, GRAPH.indices, WEIGHTS, TableNeeds(weighted=True))
    assert str(refused.value) == (
        "the application's tables take 8880B (walk slots 8400B, sums of weights 480B), but 2000B of memory are free; "
        "use a machine with more, or an application that needs fewer tables (weighted=False drops the walk slots)."
    )


def test_a_copy_of_the_neighbours_gives_the_same_samples_and_is_in_use():
    app, roots = IndividualApp([1] * 5, [1] * 5, 1, NextKind.UNIFORM), torch.arange(GRAPH.num_nodes)[:, None]
    copied = TransitTables(GRAPH.indptr, GRAPH.indices, needs=TableNeeds(copy_indices=True))
    plain = TransitTables(GRAPH.indptr, GRAPH.indices)
    assert plain.graph.indices == GRAPH.indices.data_ptr() != copied.graph.indices
    samples = [transit_sample(tables, app, roots, None, TransitRequest(3)).vertices for tables in (copied, plain)]
    assert torch.equal(*samples)


def test_columns_are_handed_over_by_address():
    columns = [np.arange(GRAPH.num_nodes), np.ones(GRAPH.num_nodes, dtype=np.int32)]
    tables = TransitTables(GRAPH.indptr, GRAPH.indices, columns=columns)
    addresses = np.ctypeslib.as_array(tables._addresses)
    assert addresses[0] == columns[0].ctypes.data
    with pytest.raises(ValueError, match=r"column 0 has shape \(3,\); expected one entry per node, \(60,\)"):
        TransitTables(GRAPH.indptr, GRAPH.indices, columns=[np.arange(3)])


@pytest.mark.parametrize("needs", [TableNeeds(weighted=True), TableNeeds(max_weight=True)])
def test_tables_of_weights_need_weights(needs):
    with pytest.raises(ValueError, match="the application reads weights but the graph has none; pass weights, one per"):
        TransitTables(GRAPH.indptr, GRAPH.indices, needs=needs)

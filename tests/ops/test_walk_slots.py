"""walk_slots against alias_tables, whose tables and draws they share, and against sums of the rows' weights."""

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops.walk_slots import read_bytes, slot_bytes, walk_slots
from tests.ops.graphs import random_csc
from tests.toolchain import CSRC, find_compiler

GRAPH = random_csc()
ID_BITS = 6  # 60 nodes
NUM_EDGES = GRAPH.indices.numel()


def _weights(kind, dtype):
    drawn = torch.rand(NUM_EDGES, generator=torch.Generator().manual_seed(5), dtype=dtype)
    return {
        "ordinary": drawn + 0.01,
        "heavy": (drawn + 1e-4) ** -3,
        "some_zero": torch.where(drawn < 0.6, 0, drawn),
        "all_zero": torch.zeros(NUM_EDGES, dtype=dtype),
    }[kind]


def _expected(indptr, indices, weights):
    """Slots by the oracle of alias_tables (tests/ops/test_alias_tables.py), row by row."""
    table = ops.alias_tables(indptr, weights).table.tolist()
    slots = []
    for begin, end in pairwise(indptr.tolist()):
        ids = indices[begin:end].tolist() if weights[begin:end].sum() > 0 else [-1] * (end - begin)
        slots += [[table[begin + i][0] % 2**32, ids[i], ids[table[begin + i][1]]] for i in range(end - begin)]
    return slots


def _read(slots, num_edges):
    """[threshold, own id, other id] of every edge, from the bytes that core/walk_slot.h describes."""
    if slots.numel() == slot_bytes(torch.int64) * num_edges:
        return [
            [threshold % 2**32, own, other] for threshold, own, other in slots.view(torch.int64).view(-1, 3).tolist()
        ]
    words, thresholds = slots[: 8 * num_edges].view(torch.int64).tolist(), slots[8 * num_edges :].view(torch.int32)
    found = []
    for word, threshold in zip(words, thresholds.tolist(), strict=True):
        assert word % 2**64 >> 32 == threshold % 2**32, "there is room for all bits of it"
        mask = 2**ID_BITS - 1
        found.append([threshold % 2**32, (word & mask) - 1, (word >> ID_BITS & mask) - 1])
    return found


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", ["ordinary", "heavy", "some_zero", "all_zero"])
def test_slots_are_the_alias_tables_with_ids_for_positions(kind, id_dtype, weight_dtype, num_threads):
    indices, weights = GRAPH.indices.to(id_dtype), _weights(kind, weight_dtype)
    built = walk_slots(GRAPH.indptr, indices, weights, num_threads=num_threads)
    assert _read(built.slots, NUM_EDGES) == _expected(GRAPH.indptr, indices, weights)
    assert built.num_bytes == NUM_EDGES * slot_bytes(id_dtype)
    assert (slot_bytes(id_dtype), read_bytes(id_dtype)) == ((12, 8) if id_dtype == torch.int32 else (24, 24))


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.float64])
def test_totals_and_maxima_are_those_of_the_rows(weight_dtype, slots):
    weights = _weights("some_zero", weight_dtype)
    built = walk_slots(GRAPH.indptr, GRAPH.indices, weights, slots=slots, totals=True, maxima=True, num_threads=2)
    rows = [weights[begin:end].tolist() for begin, end in pairwise(GRAPH.indptr.tolist())]
    totals = []
    for row in rows:
        total = 0.0
        for weight in row:
            total += weight
        totals.append(total)
    assert built.totals.tolist() == totals
    assert built.maxima.tolist() == [max(row, default=0.0) for row in rows]
    assert (built.slots is None) == (not slots)


def test_words_of_slots_decide_as_whole_thresholds_for_any_number_of_rows(tmp_path):
    program = tmp_path / "walk_slot_words"
    source = Path(__file__).with_name("walk_slot_words.cpp")
    subprocess.run([find_compiler(), "-std=c++17", f"-I{CSRC / 'core'}", source, "-o", program], check=True)
    run = subprocess.run([program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "")


def test_a_graph_without_edges_has_no_slots():
    empty = torch.zeros(4, dtype=torch.int64)
    built = walk_slots(empty, torch.empty(0, dtype=torch.int32), torch.empty(0), totals=True, maxima=True)
    assert built.slots.numel() == 0
    assert built.totals.tolist() == built.maxima.tolist() == [0.0, 0.0, 0.0]


def test_a_weight_that_is_negative_is_refused_by_its_edge():
    weights = torch.ones(NUM_EDGES)
    weights[7] = -2
    with pytest.raises(ValueError, match="walk_slots: the weight of edge 7 is -2; expected a finite number >= 0"):
        walk_slots(GRAPH.indptr, GRAPH.indices, weights)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("source", "line"),
    [(60, "walk_slots: the graph holds the source id 60; expected 0 to 59"), (-2, "the negative source id -2")],
)
def test_the_first_source_that_is_no_row_is_refused(source, line, dtype):
    indices = GRAPH.indices.to(dtype)
    indices[[7, 500]] = torch.tensor([source, 99], dtype=dtype)
    with pytest.raises(ValueError, match=line):
        walk_slots(GRAPH.indptr, indices, torch.ones(NUM_EDGES), num_threads=2)
    sums = walk_slots(GRAPH.indptr, indices, torch.ones(NUM_EDGES), slots=False, totals=True)
    assert sums.totals.equal(GRAPH.in_degrees().double())


@pytest.mark.parametrize(
    ("indices", "weights", "line"),
    [
        (GRAPH.indices[1:], torch.ones(NUM_EDGES), "indices has .* entries; expected"),
        (GRAPH.indices, torch.ones(3), "weights has 3 entries; expected"),
        (GRAPH.indices, torch.ones(NUM_EDGES, dtype=torch.int64), "weights is torch.int64 .* expected one dimension"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(indices, weights, line):
    with pytest.raises(ValueError, match=line):
        walk_slots(GRAPH.indptr, indices, weights)

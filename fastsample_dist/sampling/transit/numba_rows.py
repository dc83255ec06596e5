"""Rows as compiled applications see them: `edges`, `s.prev_edges`, `s.row` (values.py defines what they give).

A row's type says what the graph is made of, so that nothing is decided when `next` runs. The rows of a probing `next`
are types of their own: what it is probed for, its first read of the graph or its first query of an edge, leaves with
the address, so that the cache line is there when the `next` that counts comes by. Up to there both take the same way,
since random words depend on counters alone.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import (
    make_attribute_wrapper,
    models,
    overload,
    overload_attribute,
    overload_method,
    register_model,
)  # fmt: skip

from fastsample_dist.ops.library import Graph, WeightTables
from fastsample_dist.ops.transit_layouts import StepTask, TableArguments
from fastsample_dist.sampling.transit.numba_draws import (
    DrawType,
    draw_below,
    next_word,
    restore_draw,
    save_draw,
)
from fastsample_dist.sampling.transit.numba_slots import slot_readers
from fastsample_dist.sampling.transit.numba_types import (
    FORCED,
    NULL,
    READERS,
    AppType,
    field,
    forced,
    leave,
    maker,
    prefetch,
    read_int64,
    read_uint32,
    read_uint64,
    shift,
)

# core/hashed_rows.h: a record is {offset << 28 | buckets, degree, first bucket} in 16 bytes, a bucket 64 bytes.
_RECORD_BYTES, _DEGREE_AT, _FIRST_AT, _BUCKET_BYTES = 16, 8, 12, 64
_BUCKETS_BITS = np.uint64(28)
_BUCKETS_MASK = np.uint64((1 << 28) - 1)
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_WORD_BITS = np.uint64(32)
READS, QUERIES = "reads", "queries"  # what a `next` is probed for
_NO_ROW = "a row is asked for of a vertex outside the graph"
_NO_EDGE = "index outside the row"

task_graph, task_tables = field(StepTask, "graph"), field(StepTask, "tables")
graph_indptr, graph_indices, graph_weights, graph_rows = (
    field(Graph, name) for name in ("indptr", "indices", "weights", "num_rows")
)
weight_array = field(WeightTables, "weights")
table_totals, table_maxima, table_nodes, table_buckets = (
    field(TableArguments, name) for name in ("total_weights", "max_weights", "hashed_nodes", "hashed_buckets")
)
task_transits, task_stride, task_combined, task_distinct, task_num_transits, task_ranked, task_ranked_stride = (
    field(StepTask, name)
    for name in ("transits", "transit_stride", "combined", "num_distinct", "num_transits", "ranked", "ranked_stride")
)


@dataclass(frozen=True)
class RowTraits:
    """What a row is made of.

    Attributes:
      id: type of node ids.
      weight: type of weights; None: without.
      edge_queries, max_weight, ranked: what is offered.
      probing: READS: the first read of an element leaves; QUERIES: the first query of an edge does; None: nothing.
    """

    id: types.Integer
    weight: types.Float | None
    edge_queries: bool
    max_weight: bool
    ranked: bool
    probing: str | None = None

    @property
    def leaves_at_reads(self) -> bool:
        """Whether reading an element ends the probing."""
        return self.probing == READS


class RowType(AppType):
    """The neighbours of one vertex."""

    def __init__(self, traits: RowTraits):
        self.traits = traits
        super().__init__("edges", traits)


class CombinedRowType(AppType):
    """The rows of all transits of a sample."""

    def __init__(self, traits: RowTraits):
        self.traits = traits
        super().__init__("edges", traits)


@register_model(RowType)
class _RowModel(models.StructModel):
    def __init__(self, manager, row):
        members = [
            ("task", types.voidptr),
            ("vertex", types.int64),
            ("begin", types.int64),  # offset in indices
            ("length", types.int64),
            ("first", types.int64),  # with edge queries: the first bucket ...
            ("buckets", types.uint64),  # ... and how many; 0: the row is scanned
        ]
        super().__init__(manager, row, members)


@register_model(CombinedRowType)
class _CombinedRowModel(models.StructModel):
    def __init__(self, manager, row):
        super().__init__(manager, row, [("task", types.voidptr), ("sample", types.int64), ("length", types.int64)])


for _name in ("task", "vertex", "begin", "length", "first", "buckets"):
    make_attribute_wrapper(RowType, _name, f"_{_name}")
for _name in ("task", "sample", "length"):
    make_attribute_wrapper(CombinedRowType, _name, f"_{_name}")


def row_functions(row: RowType):
    """Functions for a type of rows: (task, vertex of the graph) -> row, (task, any vertex) -> row."""
    make, edge_queries = maker(row), row.traits.edge_queries

    @forced
    def known_row(task, vertex):
        if edge_queries:
            record = shift(table_nodes(task_tables(task)), vertex * _RECORD_BYTES)
            place = read_uint64(record, 0)
            begin, length = np.int64(place >> _BUCKETS_BITS), np.int64(read_uint32(record, _DEGREE_AT))
            first, buckets = np.int64(read_uint32(record, _FIRST_AT)), place & _BUCKETS_MASK
        else:
            indptr = graph_indptr(task_graph(task))
            begin = read_int64(indptr, 8 * vertex)
            length = read_int64(indptr, 8 * vertex + 8) - begin
            first, buckets = 0, np.uint64(0)
        return make((task, vertex, begin, length, first, buckets))

    @forced
    def any_row(task, vertex):
        if vertex == NULL:
            return make((task, NULL, 0, 0, 0, np.uint64(0)))
        if vertex < 0 or vertex >= graph_rows(task_graph(task)):
            raise IndexError(_NO_ROW)
        return known_row(task, vertex)

    return known_row, any_row


def record_prefetcher(traits: RowTraits):
    """A function (task, vertex of the graph) that asks for what a row of this vertex is made from."""
    edge_queries = traits.edge_queries

    @forced
    def prefetch_record(task, vertex):
        if edge_queries:
            prefetch(table_nodes(task_tables(task)), vertex * _RECORD_BYTES)
        else:
            indptr = graph_indptr(task_graph(task))
            prefetch(indptr, 8 * vertex)
            prefetch(indptr, 8 * vertex + 8)  # one in eight begins in the next line

    return prefetch_record


def element_reader(dtype, leaves: bool):
    """A function (address of an array, index) -> element.

    Args:
      leaves: it ends the probing with the element's address.
    """
    read, size = READERS[dtype], dtype.bitwidth // 8

    @forced
    def read_element(address, index):
        if leaves:
            leave(address, index * size)
        return read(address, index * size)

    return read_element


def require_index(i, what: str) -> bool:
    """Whether an argument is an index. Raises TypingError: it is something else."""
    if not isinstance(i, types.Integer | types.IntegerLiteral):
        raise TypingError(f"{what} needs an integer, got {i}")
    return True


# ---- rows of one vertex ----


@overload(len, jit_options=FORCED)
def _row_length(row):
    if isinstance(row, RowType | CombinedRowType):
        return lambda row: row._length
    return None


@overload(operator.getitem, jit_options=FORCED)
def _row_item(row, i):
    if not isinstance(row, RowType) or not require_index(i, "edges[i]"):
        return None
    read = element_reader(row.traits.id, row.traits.leaves_at_reads)

    def item(row, i):
        if i < 0 or i >= row._length:
            raise IndexError(_NO_EDGE)
        return np.int64(read(graph_indices(task_graph(row._task)), row._begin + np.int64(i)))

    return item


@overload_method(RowType, "weight", jit_options=FORCED)
def _row_weight(row, i):
    require_index(i, "edges.weight(i)")
    weighted = row.traits.weight is not None
    read = element_reader(row.traits.weight or types.float64, row.traits.leaves_at_reads)

    def weight(row, i):
        if i < 0 or i >= row._length:
            raise IndexError(_NO_EDGE)
        if not weighted:
            return 1.0
        return np.float64(read(weight_array(graph_weights(task_graph(row._task))), row._begin + np.int64(i)))

    return weight


@overload_attribute(RowType, "total_weight", jit_options=FORCED)
def _row_total(row):
    if row.traits.weight is None:
        return lambda row: np.float64(row._length)
    read = element_reader(types.float64, row.traits.leaves_at_reads)
    return lambda row: read(table_totals(task_tables(row._task)), row._vertex) if row._length else 0.0


@overload_attribute(RowType, "max_weight", jit_options=FORCED)
def _row_maximum(row):
    if not row.traits.max_weight:
        raise TypingError("max_weight is not among the application's needs; add transit.needs(max_weight=True)")
    if row.traits.weight is None:
        return lambda row: 1.0 if row._length else 0.0
    read = element_reader(types.float64, row.traits.leaves_at_reads)
    return lambda row: read(table_maxima(task_tables(row._task)), row._vertex) if row._length else 0.0


@overload_method(RowType, "pick", jit_options=FORCED)
def _row_pick(row, draw):
    if not isinstance(draw, DrawType):
        raise TypingError(f"edges.pick needs draw, got {draw}")
    if row.traits.weight is None:
        read = element_reader(row.traits.id, row.traits.leaves_at_reads)

        def pick_uniformly(row, draw):
            if row._length == 0:
                return NULL
            position = row._begin + draw_below(draw._state, row._length)
            return np.int64(read(graph_indices(task_graph(row._task)), position))

        return pick_uniformly
    read_slot, read_threshold = slot_readers(row.traits.id, row.traits.leaves_at_reads)

    def pick_by_weight(row, draw):
        if row._length == 0:
            return NULL
        state = draw._state
        before = save_draw(state)
        slot = row._begin + draw_below(state, row._length)
        threshold, open_bits, own, other = read_slot(row._task, slot)
        if own < 0:  # the row's weights are all 0: nothing is drawn
            restore_draw(state, before)
            return NULL
        word = next_word(state)
        if np.uint64(word ^ threshold) >> open_bits == 0:
            threshold = read_threshold(row._task, slot)
        return own if word < threshold else other

    return pick_by_weight


@overload_method(RowType, "has", jit_options=FORCED)
def _row_has(row, v):
    require_index(v, "edges.has(v)")
    is_member = membership(row.traits)
    return lambda row, v: is_member(row, np.int64(v))


def scanner(traits: RowTraits):
    """A function (address of ids, how many, vertex) -> whether the vertex is one of them."""
    read, id_bytes = READERS[traits.id], traits.id.bitwidth // 8

    @forced
    def holds(address, count, vertex):
        found = False
        for i in range(count):
            found |= np.int64(read(address, i * id_bytes)) == vertex
        return found

    return holds


@forced
def home_bucket(vertex, buckets):
    """The bucket of a vertex among those of a row (core/hashed_rows.h)."""
    bits = np.uint64(vertex) * _MIX[0]
    bits = (bits ^ bits >> _WORD_BITS) * _MIX[1]
    return (bits >> _WORD_BITS) * buckets >> _WORD_BITS


def membership(traits: RowTraits):
    """A function (row, vertex) -> whether it is a neighbour (core/hashed_rows.h)."""
    if not traits.edge_queries:
        raise TypingError("has is not among the application's needs; add transit.needs(edge_queries=True)")
    read, id_bytes, leaves = READERS[traits.id], traits.id.bitwidth // 8, traits.probing is not None
    ids, last_id = _BUCKET_BYTES // id_bytes, _BUCKET_BYTES - id_bytes
    largest = 2 ** (traits.id.bitwidth - 1) - 1

    holds = scanner(traits)

    @forced
    def is_member(row, vertex):
        if vertex < 0 or vertex > largest or row._length == 0:
            return False
        if row._buckets == 0:
            address = shift(graph_indices(task_graph(row._task)), row._begin * id_bytes)
            if leaves:
                leave(address, 0)
            return holds(address, row._length, vertex)
        at = home_bucket(vertex, row._buckets)
        buckets = shift(table_buckets(task_tables(row._task)), row._first * _BUCKET_BYTES)
        for _ in range(row._buckets):  # a row whose buckets are all full is seen whole at most
            bucket = shift(buckets, np.int64(at) * _BUCKET_BYTES)
            if leaves:
                leave(bucket, 0)
            if holds(bucket, ids, vertex):
                return True
            if read(bucket, last_id) == -1:  # room is left: no id went on to the next bucket
                return False
            at = np.uint64(0) if at + np.uint64(1) == row._buckets else at + np.uint64(1)
        return False

    return is_member


# ---- rows of all transits ----


@forced
def prefix_sums(row):
    """Address of the sums of the transits' degrees, and how many transits there are."""
    task, sample = row._task, row._sample
    sums = shift(task_combined(task), 8 * sample * (task_num_transits(task) + 1))
    return sums, read_int64(task_distinct(task), 8 * sample)


@forced
def transit_at(task, sample, index):
    """A transit of a sample."""
    return read_int64(task_transits(task), 8 * (sample * task_stride(task) + index))


@forced
def find_transit(row, i):
    """Index of the transit whose edge the i-th is: the last one whose sum is at most i."""
    if i < 0 or i >= row._length:
        raise IndexError(_NO_EDGE)
    sums, count = prefix_sums(row)
    low, high = 0, count  # sums[low] <= i < sums[high]
    while high - low > 1:
        middle = (low + high) >> 1
        if read_int64(sums, 8 * middle) <= i:
            low = middle
        else:
            high = middle
    return low


@forced
def find_position(row, i):
    """Offset of the i-th edge in the graph's arrays."""
    transit = find_transit(row, i)
    sums, _ = prefix_sums(row)
    vertex = transit_at(row._task, row._sample, transit)
    begin = read_int64(graph_indptr(task_graph(row._task)), 8 * vertex)
    return begin + i - read_int64(sums, 8 * transit)


@overload_method(CombinedRowType, "transit_of", jit_options=FORCED)
def _transit_of(row, i):
    require_index(i, "edges.transit_of(i)")
    return lambda row, i: find_transit(row, np.int64(i))


@overload(operator.getitem, jit_options=FORCED)
def _combined_item(row, i):
    if not isinstance(row, CombinedRowType) or not require_index(i, "edges[i]"):
        return None
    read = element_reader(row.traits.id, row.traits.leaves_at_reads)
    return lambda row, i: np.int64(read(graph_indices(task_graph(row._task)), find_position(row, np.int64(i))))


@overload_method(CombinedRowType, "weight", jit_options=FORCED)
def _combined_weight(row, i):
    require_index(i, "edges.weight(i)")
    weighted = row.traits.weight is not None
    read = element_reader(row.traits.weight or types.float64, row.traits.leaves_at_reads)

    def weight(row, i):
        position = find_position(row, np.int64(i))
        return np.float64(read(weight_array(graph_weights(task_graph(row._task))), position)) if weighted else 1.0

    return weight


@overload_method(CombinedRowType, "has", jit_options=FORCED)
def _combined_has(row, v):
    require_index(v, "edges.has(v)")
    single = RowType(row.traits)
    is_member, (known_row, _) = membership(row.traits), row_functions(single)

    def has(row, v):
        _, count = prefix_sums(row)
        for i in range(count):
            if is_member(known_row(row._task, transit_at(row._task, row._sample, i)), np.int64(v)):
                return True
        return False

    return has


@overload_method(CombinedRowType, "ranked", jit_options=FORCED)
def _combined_ranked(row, i):
    if not row.traits.ranked:
        raise TypingError('ranked is not among the application\'s needs; add transit.needs(race="squared")')
    require_index(i, "edges.ranked(i)")

    def ranked(row, i):
        if i < 0:
            raise IndexError("index outside the ranking")
        stride = task_ranked_stride(row._task)
        return read_int64(task_ranked(row._task), 8 * (row._sample * stride + i)) if i < stride else NULL

    return ranked

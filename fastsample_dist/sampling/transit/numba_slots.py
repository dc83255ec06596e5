"""Walk slots (csrc/core/walk_slot.h) as compiled applications read them, for picks by weight."""

from __future__ import annotations

import numpy as np
from numba.core import types

from fastsample_dist.ops.library import Graph
from fastsample_dist.ops.transit_layouts import StepTask, TableArguments
from fastsample_dist.sampling.transit.numba_types import (
    bit_length,
    field,
    forced,
    leave,
    prefetch,
    read_int64,
    read_uint32,
    read_uint64,
    shift,
)

_MOST_ID_BITS = 32
_LONG_BYTES = 24  # of int64 ids: threshold, 4 bytes that are not used, own id, other id

task_graph, task_tables = field(StepTask, "graph"), field(StepTask, "tables")
graph_rows, graph_edges = field(Graph, "num_rows"), field(Graph, "num_edges")
table_slots = field(TableArguments, "walk_slots")


def slot_readers(id_type: types.Integer, leaves: bool):
    """Two functions of (task, position): a slot's threshold without its lowest bits, how many these are, own id and
    other id, -1 where it has none; and the whole threshold.

    Args:
      leaves: the first one ends the probing with the slot's address.
    """
    return _readers_of_words(leaves) if id_type == types.int32 else _readers_of_long_slots(leaves)


def _readers_of_words(leaves: bool):
    @forced
    def read_slot(task, position):
        words = table_slots(task_tables(task))
        if leaves:
            leave(words, 8 * position)
        id_bits = min(bit_length(graph_rows(task_graph(task))), _MOST_ID_BITS)
        open_bits = np.uint64(max(0, 2 * id_bits - 32))
        word, mask = read_uint64(words, 8 * position), np.uint64((1 << id_bits) - 1)
        own, other = word & mask, word >> np.uint64(id_bits) & mask
        return np.uint32(word >> np.uint64(32)), open_bits, np.int64(own) - 1, np.int64(other) - 1

    @forced
    def read_threshold(task, position):
        return read_uint32(table_slots(task_tables(task)), 8 * graph_edges(task_graph(task)) + 4 * position)

    return read_slot, read_threshold


def _readers_of_long_slots(leaves: bool):
    @forced
    def read_slot(task, position):
        slot = shift(table_slots(task_tables(task)), _LONG_BYTES * position)
        if leaves:
            prefetch(slot, _LONG_BYTES - 1)  # one in four crosses a cache line
            leave(slot, 0)
        return read_uint32(slot, 0), np.uint64(0), read_int64(slot, 8), read_int64(slot, 16)

    @forced
    def read_threshold(task, position):
        return read_uint32(table_slots(task_tables(task)), _LONG_BYTES * position)

    return read_slot, read_threshold

"""A small engine over step kernels: tasks made by hand, one kernel call after another. For tests of kernels alone."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, byref, c_int32, c_int64

import numpy as np
import torch

from fastsample_dist.ops import library, reference
from fastsample_dist.ops.hashed_rows import hashed_rows
from fastsample_dist.ops.reference.streams import INITIAL, STEP_TRANSITS, TRANSIT
from fastsample_dist.ops.transit_layouts import StepTask, TableArguments
from fastsample_dist.ops.walk_slots import walk_slots
from fastsample_dist.sampling.transit import ALL, NULL

KERNEL = CFUNCTYPE(c_int32, POINTER(StepTask), c_int64, c_int64)


class RaisedError(Exception):
    """A kernel has returned 1: (step, slot)."""


def words(*values):
    return np.array(values, dtype=np.int64)


class StepDriver:
    """Samples of a bound application by its compiled kernels, all samples together.

    Args:
      pieces: slots per call of a kernel.
      reorder: gives the kernel a list of slots, in another order.
    """

    def __init__(self, bound, compiled, pieces=100, reorder=False):
        self.bound, self.compiled, self.pieces, self.reorder = bound, compiled, pieces, reorder
        self.kept, self.ranking = [], None
        graph, layout = bound.graph, bound.layout
        tables, weights = TableArguments(), None
        if layout.weighted:
            self.slots = walk_slots(graph.indptr, graph.indices, graph.weights, totals=True, maxima=True)
            tables.walk_slots, tables.total_weights = self.slots.slots.data_ptr(), self.slots.totals.data_ptr()
            tables.max_weights = self.slots.maxima.data_ptr()
            weights = ctypes.pointer(library.WeightTables(graph.weights.data_ptr(), None, None, 0))
        if layout.edge_queries:
            self.hashed = hashed_rows(graph.indptr, graph.indices)
            tables.hashed_nodes, tables.hashed_buckets = self.hashed.nodes.data_ptr(), self.hashed.buckets.data_ptr()
        tables.columns = self.keep(words(*(column.ctypes.data for column in bound.columns.values())))
        self.graph = library.Graph(
            graph.indptr.data_ptr(), graph.indices.data_ptr(), None, None, weights, graph.num_nodes, 0,
            graph.indices.numel(), 0,
        )  # fmt: skip
        self.tables = tables

    def keep(self, array):
        """The address of an array that is kept."""
        self.kept.append(array)
        return array.ctypes.data

    def task(self, step, shape):
        """A task over the vertices so far."""
        task = StepTask(ctypes.pointer(self.graph), ctypes.pointer(self.tables))
        task.params, task.sample_ids = self.keep(self.bound.par.words()), self.keep(self.ids)
        task.vertices = self.keep(words(*(block.ctypes.data for block in self.vertices)))
        task.strides = task.widths = self.keep(words(*(block.shape[1] for block in self.vertices)))
        task.state, task.state_words = self.keep(self.state), self.state.shape[1]
        task.failed_slot = self.keep(words(-7))
        task.rng_seed, task.step, task.step_index = self.key.rng_seed, self.key.step, step
        task.num_samples, task.num_roots = len(self.ids), self.vertices[0].shape[1]
        task.num_transits, task.sample_size, task.picks = shape
        return task

    def call(self, address, task, domain, slots, out=None):
        """Runs a kernel over slots, in pieces."""
        task.key0, task.key1 = reference.stage_key(task.rng_seed, domain, task.step_index, task.step)
        if out is not None:
            task.out, task.out_stride = out.ctypes.data, out.shape[-1]
        if self.reorder:
            slots = np.random.default_rng(3).permutation(slots)
        if not np.array_equal(slots, np.arange(len(slots))):
            task.slots = self.keep(np.ascontiguousarray(slots, dtype=np.int64))
        for begin in range(0, len(slots), self.pieces):
            if KERNEL(address)(byref(task), begin, min(begin + self.pieces, len(slots))):
                failed = ctypes.cast(task.failed_slot, POINTER(c_int64))[0]
                raise RaisedError(int(task.step_index), failed)

    def transits(self, step, num_transits):
        """Transits of a step, int64 [S, T]."""
        if self.compiled.step_transits is None:
            return np.ascontiguousarray(self.vertices[-1][:, :num_transits])
        transits = np.full((len(self.ids), num_transits), -9, dtype=np.int64)
        task = self.task(step, (num_transits, 1, num_transits))
        self.call(self.compiled.step_transits, task, STEP_TRANSITS, np.arange(transits.size), transits)
        return transits

    def run(self, roots, ids, key):
        """Picks of each step, int64 [S, picks], as plain.run gives them."""
        plan = self.bound.plan(roots.shape[1])
        self.key, self.ids, self.vertices = key, np.ascontiguousarray(ids), [np.ascontiguousarray(roots)]
        self.state = np.zeros((len(ids), self.bound.layout.offsets(roots.shape[1])[-1]), dtype=np.int64)
        if self.compiled.initial is not None:
            self.call(self.compiled.initial, self.task(0, (0, 1, 1)), INITIAL, np.arange(len(ids)))
        for step in range(plan.num_steps):
            shape = plan.shape(step)
            transits = self.transits(step, shape.num_transits)
            if plan.until_done and (transits == NULL).all():
                break
            if shape.sample_size == ALL:
                self.vertices.append(self.all_neighbors(step, transits))
                continue
            task = self.task(step, (shape.num_transits, shape.sample_size, shape.picks))
            picks = np.full((len(ids), shape.picks), NULL, dtype=np.int64)
            self.add_transits(task, transits)
            self.fill(task, shape, transits, picks)
            self.vertices.append(picks)
        if plan.until_done and (self.vertices[-1] == NULL).all():
            self.vertices.pop()  # a step in which all samples ended
        return self.vertices[1:]

    def fill(self, task, shape, transits, picks):
        """Fills a step's picks; distinct ones in rounds."""
        if not shape.unique:
            self.call(self.compiled.next, task, TRANSIT, np.arange(picks.size), picks)
            return
        empty = np.ones(picks.shape, dtype=bool)
        for attempt in range(self.bound.app.max_attempts):
            task.attempt, made = attempt, np.full(picks.shape, NULL, dtype=np.int64)
            self.call(self.compiled.next, task, TRANSIT, np.flatnonzero(empty), made)
            for sample, slot in np.argwhere(empty):
                node = made[sample, slot]
                if node == NULL or node not in picks[sample]:
                    picks[sample, slot], empty[sample, slot] = node, False

    def add_transits(self, task, transits):
        """Sets what `next` reads of transits: of a collective application the distinct ones and sums of degrees."""
        if not self.bound.collective:
            task.transits, task.transit_stride = self.keep(transits), transits.shape[1]
            return
        indptr, distinct = self.bound.graph.indptr.numpy(), np.full_like(transits, NULL)
        sums, counts = np.zeros((transits.shape[0], transits.shape[1] + 1), dtype=np.int64), []
        for own, row, ends in zip(transits, distinct, sums, strict=True):
            found = list(dict.fromkeys(node for node in own.tolist() if node != NULL))
            row[: len(found)] = found
            ends[1 : len(found) + 1] = np.cumsum(indptr[words(*found) + 1] - indptr[words(*found)])
            counts.append(len(found))
        task.transits, task.transit_stride = self.keep(distinct), transits.shape[1]
        if self.ranking is not None:
            task.ranked, task.ranked_stride = self.keep(self.ranking), self.ranking.shape[1]
        task.combined, task.num_distinct = self.keep(sums), self.keep(words(*counts))

    def all_neighbors(self, step, transits):
        """Picks of sample_size ALL: one task per sample and transit."""
        indptr, made = self.bound.graph.indptr.numpy(), []
        for sample, own in enumerate(transits):
            made.append([])
            for node in own[own != NULL]:
                degree = int(indptr[node + 1] - indptr[node])
                task, out = self.task(step, (1, degree, degree)), np.empty((1, degree), dtype=np.int64)
                task.sample_ids = self.ids[sample:].ctypes.data
                task.transits, task.transit_stride, task.first_pick = self.keep(words(node)), 1, len(made[-1])
                self.call(self.compiled.next, task, TRANSIT, np.arange(degree), out)
                made[-1] += out[0].tolist()
        width = max(map(len, made), default=0)
        return np.array([row + [NULL] * (width - len(row)) for row in made], dtype=np.int64).reshape(len(made), width)


def random_roots(graph, shape, seed=1):
    """Roots of a graph, some of them NULL."""
    return torch.randint(-1, graph.num_nodes, shape, generator=torch.Generator().manual_seed(seed))

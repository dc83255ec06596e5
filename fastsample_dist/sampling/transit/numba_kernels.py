"""Block kernels: an application's function over a range of slots of a task (FsStepKernel in fastsample_transit.h).

`next` is compiled two or three times. Slots go through stages, a few chunks apart: their transits are looked up, and
the rows' places asked for; random words are made by vector instructions, four per slot, and `next` runs until it first
reads the graph, with whose address it leaves (numba_rows.py); where rows can be asked for edges, it runs until it first
does that; and the `next` that counts runs, with its lines on the way or there. Reads of later trials are missed.

A chunk's addresses are asked for together. One by one they would wait for the processor to translate them, and it has
room for the instructions of few slots meanwhile (AVX2, ns per step: by weight 50.9, together 41.6; node2vec 182, 131).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np
from numba import cfunc, njit
from numba.core import types
from numba.core.errors import TypingError

from fastsample_dist.ops.transit_layouts import StepTask
from fastsample_dist.sampling.transit.numba_draws import (
    DRAW,
    DRAW_BYTES,
    enter_block,
    restore_draw,
    rewind_draw,
    save_draw,
    set_keys,
    start_draw,
)
from fastsample_dist.sampling.transit.numba_lanes import (
    CHUNK,
    CHUNK_BYTES,
    LINE,
    NUMBER,
    SAMPLE,
    TRANSIT,
    lane_of,
    make_words,
    set_stream,
)  # fmt: skip
from fastsample_dist.sampling.transit.numba_rows import (
    QUERIES,
    READS,
    CombinedRowType,
    RowTraits,
    RowType,
    record_prefetcher,
    row_functions,
    task_combined,
    task_distinct,
    task_num_transits,
    task_stride,
    task_transits,
)  # fmt: skip
from fastsample_dist.sampling.transit.numba_sample import (
    SIZE_BYTES,
    ArrayType,
    ParamsType,
    SampleType,
    task_ids,
    task_step,
)  # fmt: skip
from fastsample_dist.sampling.transit.numba_types import (
    FORCED,
    NULL,
    asking_call,
    caught_call,
    field,
    forced,
    is_nowhere,
    local_memory,
    maker,
    prefetch,
    quotient,
    read_address,
    read_int64,
    shift,
    write_address,
    write_int64,
)

KERNEL = types.int32(types.voidptr, types.int64, types.int64)
_LAG = 2  # chunks from one stage to the next. Uniform walks (AVX2): 1: 0.98 of the rate of 2, 3: 0.92
_CHUNKS = 3 * _LAG + 1  # in hand
_CHUNKS_BYTES = _CHUNKS * CHUNK_BYTES

task_params, task_slots, task_out, task_failed, task_key0, task_key1 = (
    field(StepTask, name) for name in ("params", "slots", "out", "failed_slot", "key0", "key1")
)
task_picks, task_size, task_out_stride, task_attempt, task_first = (
    field(StepTask, name) for name in ("picks", "sample_size", "out_stride", "attempt", "first_pick")
)
make_draw = maker(DRAW)


@dataclass(frozen=True)
class AppTypes:
    """What compiled functions of an application are called with.

    Attributes:
      traits: of rows, those of a probing pass aside.
      collective: `edges` are the rows of all transits.
      state, columns, params: as binding.Layout has them.
    """

    traits: RowTraits
    collective: bool
    state: tuple
    columns: tuple[str, ...]
    params: tuple[tuple[str, str], ...]

    def sample(self, probing: str | None = None) -> SampleType:
        """Type of `s`."""
        return SampleType(replace(self.traits, probing=probing), self.state, self.columns)

    def edges(self, probing: str | None = None) -> RowType | CombinedRowType:
        """Type of `edges`."""
        return (CombinedRowType if self.collective else RowType)(replace(self.traits, probing=probing))

    @property
    def par(self) -> ParamsType:
        """Type of `par`."""
        return ParamsType(self.params)


@dataclass(frozen=True)
class Target:
    """What code is compiled for.

    Attributes:
      function: compiles a user's function for these types of arguments; what comes back has fndesc, library, signature.
      kernel: makes of a Python function an FsStepKernel.
    """

    function: Callable[[Callable, tuple[types.Type, ...]], Any]
    kernel: Callable[[Callable], Any]


def _compiled_by_njit(function: Callable, arguments: tuple[types.Type, ...]):
    dispatcher = njit(nogil=True, **FORCED)(function)
    dispatcher.compile(arguments)
    return dispatcher.overloads[arguments]


CPU = Target(_compiled_by_njit, cfunc(KERNEL))


def compile_function(
    function: Callable, arguments: tuple[types.Type, ...], returns_vertex: bool = True, target: Target = CPU
):
    """A user's function compiled for these arguments, to be taken into a kernel whole.

    Raises:
      TypingError: it returns something else than a vertex, and should.
    """
    expected = len(signature(function).parameters)
    if expected != len(arguments):
        raise TypingError(f"it takes {expected} arguments, but is called with {len(arguments)}")
    compiled = target.function(function, arguments)
    returned = compiled.signature.return_type
    if returns_vertex and not isinstance(returned, types.Integer):
        shown = f"{returned.type} or None" if isinstance(returned, types.Optional) else returned
        raise TypingError(f"it returns {shown}; expected an integer, a vertex or transit.NULL, on every path")
    return compiled


def next_signature(app: AppTypes, probing: str | None = None) -> tuple[types.Type, ...]:
    """What `next` is called with."""
    return app.sample(probing), ArrayType(types.int64), app.edges(probing), types.int64, DRAW, app.par


def chunk_prober(app: AppTypes, function: Callable, probing: str):
    """A function (task, slots, chunk, size, par) that runs the `next`s of a chunk up to what they are probed for, and
    asks for it.
    """
    probe = asking_call(compile_function(function, next_signature(app, probing)))
    arguments = next_arguments(app, probing)

    @forced
    def probe_chunk(task, count, chunk, counted, par):
        for number in range(count):
            lane = lane_of(chunk, number)
            write_int64(lane, LINE, 0)
            if read_int64(lane, TRANSIT) != NULL:
                rewind_draw(lane)
                start = save_draw(lane)
                write_address(lane, LINE, probe(arguments(task, lane, counted, par)))
                restore_draw(lane, start)
        for number in range(count):
            prefetch(read_address(lane_of(chunk, number), LINE), 0)

    return probe_chunk


def chunk_picker(app: AppTypes, function: Callable):
    """A function (task, slots, chunk, size, par) that makes the picks of a chunk -> the lane that raised, or -1."""
    call = caught_call(compile_function(function, next_signature(app)))
    arguments = next_arguments(app)

    @forced
    def make_picks(task, count, chunk, counted, par):
        for number in range(count):
            lane = lane_of(chunk, number)
            node = NULL
            if read_int64(lane, TRANSIT) != NULL:
                rewind_draw(lane)
                raised, node = call(arguments(task, lane, counted, par))
                if raised:
                    return number
            place = read_int64(lane, SAMPLE) * task_out_stride(task) + read_int64(lane, NUMBER)
            write_int64(task_out(task), 8 * place, node)
        return -1

    return make_picks


def next_kernel(app: AppTypes, function: Callable, target: Target = CPU):
    """The kernel of `next`, a Numba cfunc."""
    look_up, make_par = chunk_reader(app), maker(app.par)
    has_queries = app.traits.edge_queries
    probe_reads, make_picks = chunk_prober(app, function, READS), chunk_picker(app, function)
    probe_queries = chunk_prober(app, function, QUERIES) if has_queries else probe_reads
    last_lag = (3 if has_queries else 2) * _LAG

    def kernel(task, begin, end):
        chunks, counted = local_memory(_CHUNKS_BYTES), local_memory(SIZE_BYTES)
        par = make_par((task_params(task),))
        write_int64(counted, 0, NULL)
        for first in range(begin, end + last_lag * CHUNK, CHUNK):  # a chunk behind each other's stage
            count, chunk = chunk_of(chunks, begin, end, first)
            if count > 0:
                look_up(task, first, count, chunk)
            count, chunk = chunk_of(chunks, begin, end, first - _LAG * CHUNK)
            if count > 0:
                make_words(chunk, count, task_key0(task), task_key1(task))
                probe_reads(task, count, chunk, counted, par)
            count, chunk = chunk_of(chunks, begin, end, first - 2 * _LAG * CHUNK)
            if has_queries and count > 0:
                probe_queries(task, count, chunk, counted, par)
            made = first - last_lag * CHUNK
            count, chunk = chunk_of(chunks, begin, end, made)
            if count > 0:
                raised = make_picks(task, count, chunk, counted, par)
                if raised >= 0:
                    write_int64(task_failed(task), 0, slot_at(task, made + raised))
                    return types.int32(1)
        return types.int32(0)

    return target.kernel(kernel)


@forced
def chunk_of(chunks, begin, end, first):
    """(slots, memory) of the chunk of the slots from `first` on, of begin .. end - 1; 0 slots where it is not one."""
    count = min(CHUNK, end - first) if first >= begin else 0
    return count, shift(chunks, (first - begin) // CHUNK % _CHUNKS * CHUNK_BYTES)


def slot_kernel(app: AppTypes, function: Callable, target: Target):
    """The kernel of `next`, one call after another: what next_kernel does in stages."""
    make_sample, neighbourhood = maker(app.sample()), _neighbourhood_of(app)

    @forced
    def arguments(task, sample, number, memory, par):
        turn, transits, row = neighbourhood(task, sample, number)
        slot, pick = task_first(task) + number, task_first(task) + task_attempt(task) * task_picks(task) + number
        start_draw(memory[0], read_int64(task_ids(task), 8 * sample), pick << 32)
        draw, s = make_draw((memory[0], slot, turn)), make_sample((task, sample, slot, memory[1]))
        return s, transits, row, task_step(task), draw, par

    compiled = compile_function(function, next_signature(app), target=target)
    return _one_by_one(app, compiled, arguments, True, target)


def _neighbourhood_of(app: AppTypes):
    """A function (task, sample, number of a slot in it) -> its turn, transits and edges."""
    make_transits = maker(ArrayType(types.int64))
    if app.collective:
        rows_of_all = combined_rows(app.edges())

        @forced
        def of_all(task, sample, number):
            transits, row = rows_of_all(task, sample)
            return number, transits, row

        return of_all
    known_row, _ = row_functions(app.edges())

    @forced
    def of_one(task, sample, number):
        index, turn = split_slot(number, task_size(task))
        place = shift(task_transits(task), 8 * (sample * task_stride(task) + index))
        return turn, make_transits((place, 1)), known_row(task, read_int64(place, 0))

    return of_one


def single_kernel(app: AppTypes, function: Callable, initial: bool, target: Target = CPU):
    """The kernel of `initial` or of `step_transits`: one call after another."""
    sample_type = app.sample()
    leading = (sample_type,) if initial else (types.int64, sample_type, types.int64)
    make_sample = maker(sample_type)

    @forced
    def arguments(task, sample, index, memory, par):
        start_draw(memory[0], read_int64(task_ids(task), 8 * sample), index << 32)
        s, draw = make_sample((task, sample, 0, memory[1])), make_draw((memory[0], index, 0))
        if initial:
            return s, draw, par
        return task_step(task), s, index, draw, par

    compiled = compile_function(function, (*leading, DRAW, app.par), returns_vertex=not initial, target=target)
    return _one_by_one(app, compiled, arguments, not initial, target)


def _one_by_one(app: AppTypes, compiled: Any, arguments: Callable, writes: bool, target: Target):
    """A kernel that calls a compiled function slot by slot.

    Args:
      arguments: (task, sample, number of the slot in it, memory of draw and size, par) -> what to call it with.
      writes: its result goes to the task's `out`.
    """
    call, make_par = caught_call(compiled), maker(app.par)

    def kernel(task, begin, end):
        memory = local_memory(DRAW_BYTES), local_memory(SIZE_BYTES)
        par = make_par((task_params(task),))
        set_keys(memory[0], task_key0(task), task_key1(task))
        write_int64(memory[1], 0, NULL)
        for position in range(begin, end):
            slot = slot_at(task, position)
            sample, number = split_slot(slot, task_picks(task))
            raised, node = call(arguments(task, sample, number, memory, par))
            if raised:
                write_int64(task_failed(task), 0, slot)
                return types.int32(1)
            if writes:
                write_int64(task_out(task), 8 * (sample * task_out_stride(task) + number), node)
        return types.int32(0)

    return target.kernel(kernel)


# ---- the stages of a chunk ----


@forced
def slot_at(task, position):
    """The slot at a position of the task."""
    return position if is_nowhere(task_slots(task)) else read_int64(task_slots(task), 8 * position)


@forced
def split_slot(slot, picks):
    """(slot // picks, slot % picks); walks have one pick, and need no division."""
    if picks == 1:
        return slot, 0
    whole = quotient(slot, picks)
    return whole, slot - whole * picks


def chunk_reader(app: AppTypes):
    """A function (task, first position, slots, chunk) that writes down what a chunk's slots are: sample, number,
    transit (NULL: next is not asked), and which random words are theirs.
    """
    collective, prefetch_record = app.collective, record_prefetcher(app.traits)

    @forced
    def transit_of(task, sample, number):
        if collective:
            some = read_int64(task_distinct(task), 8 * sample) > 0
            return np.int64(0) if some else np.int64(NULL)
        index, _ = split_slot(number, task_size(task))
        transit = read_int64(task_transits(task), 8 * (sample * task_stride(task) + index))
        if transit != NULL:
            prefetch_record(task, transit)
        return transit

    @forced
    def look_up(task, first, count, chunk):
        picks = task_picks(task)
        ahead = task_first(task) + task_attempt(task) * picks
        for i in range(count):
            lane = lane_of(chunk, i)
            sample, number = split_slot(slot_at(task, first + i), picks)
            sample_id, block = read_int64(task_ids(task), 8 * sample), (ahead + number) << 32
            write_int64(lane, SAMPLE, sample)
            write_int64(lane, NUMBER, number)
            write_int64(lane, TRANSIT, transit_of(task, sample, number))
            set_keys(lane, task_key0(task), task_key1(task))
            enter_block(lane, sample_id, block)
            set_stream(chunk, i, sample_id, block)

    return look_up


def combined_rows(edges: CombinedRowType):
    """A function (task, sample) -> all its transits and the row that their neighbours make."""
    make_transits, make_row = maker(ArrayType(types.int64)), maker(edges)

    @forced
    def rows_of_all(task, sample):
        distinct = read_int64(task_distinct(task), 8 * sample)
        sums = shift(task_combined(task), 8 * sample * (task_num_transits(task) + 1))
        transits = shift(task_transits(task), 8 * sample * task_stride(task))
        return make_transits((transits, distinct)), make_row((task, sample, read_int64(sums, 8 * distinct)))

    return rows_of_all


def next_arguments(app: AppTypes, probing: str | None = None):
    """A function that puts the arguments of `next` together for a lane."""
    collective, edges = app.collective, app.edges(probing)
    make_sample, make_transits = maker(app.sample(probing)), maker(ArrayType(types.int64))
    known_row = None if collective else row_functions(edges)[0]
    rows_of_all = combined_rows(edges) if collective else None

    @forced
    def row_of_one(task, lane):
        transit = shift(lane, TRANSIT)
        return make_transits((transit, 1)), known_row(task, read_int64(transit, 0))

    @forced
    def arguments(task, lane, counted, par):
        sample, number = read_int64(lane, SAMPLE), read_int64(lane, NUMBER)
        slot = task_first(task) + number
        if collective:
            turn = number
            transits, row = rows_of_all(task, sample)
        else:
            turn = split_slot(number, task_size(task))[1]
            transits, row = row_of_one(task, lane)
        draw, s = make_draw((lane, slot, turn)), make_sample((task, sample, slot, counted))
        return s, transits, row, task_step(task), draw, par

    return arguments

"""Mirrors of csrc/include/fastsample_transit.h: structs and constants of transit-parallel sampling."""

from __future__ import annotations

import enum
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint32, c_uint64, c_void_p

from fastsample_dist.ops import library

NULL_NODE = -1
ALL_NEIGHBORS = -1
INDIVIDUAL, COLLECTIVE = range(2)


class NextKind(enum.IntEnum):
    """FsNextKind: who makes the picks of a step."""

    CALLBACK = 0
    UNIFORM = 1
    WEIGHTED = 2
    NODE2VEC = 3
    PPR = 4
    MULTI_RW = 5
    LAYER = 6
    ALL = 7
    GLOBAL = 8
    RANKED = 9


class Schedule(enum.IntEnum):
    """FsSchedule: in which order the picks of a step are made."""

    AUTO = 0
    SAMPLE = 1
    TRANSIT = 2
    TRANSIT_FLAT = 3


class AppFault(enum.IntEnum):
    """FsAppFault: why an application failed."""

    FINE = 0
    RAISED = 1
    BAD_NODE = 2
    NEVER_ENDS = 3


class AppFunction(enum.IntEnum):
    """FsAppFunction: the function of an application that failed."""

    NEXT = 0
    STEP_TRANSITS = 1
    INITIAL = 2


library.DECLARED.values(
    FS_NULL_NODE=NULL_NODE, FS_ALL_NEIGHBORS=ALL_NEIGHBORS, FS_INDIVIDUAL=INDIVIDUAL, FS_COLLECTIVE=COLLECTIVE,
    **{f"FS_NEXT_{kind.name}": kind.value for kind in NextKind},
    **{f"FS_SCHEDULE_{schedule.name}": schedule.value for schedule in Schedule},
    **{f"FS_APP_{fault.name}": fault.value for fault in AppFault},
    **{f"FS_IN_{function.name}": function.value for function in AppFunction},
)  # fmt: skip


@library.DECLARED.mirror("FsTransitTables")
class TableArguments(Structure):
    """FsTransitTables."""

    _fields_ = (
        ("walk_slots", c_void_p),
        ("total_weights", c_void_p),
        ("max_weights", c_void_p),
        ("hashed_nodes", c_void_p),
        ("hashed_buckets", c_void_p),
        ("columns", c_void_p),
    )


@library.DECLARED.mirror("FsStepTask")
class StepTask(Structure):
    """FsStepTask."""

    _fields_ = (
        ("graph", POINTER(library.Graph)),
        ("tables", POINTER(TableArguments)),
        ("params", c_void_p),
        ("sample_ids", c_void_p),
        ("vertices", c_void_p),
        ("strides", c_void_p),
        ("widths", c_void_p),
        ("transits", c_void_p),
        ("num_distinct", c_void_p),
        ("combined", c_void_p),
        ("ranked", c_void_p),
        ("state", c_void_p),
        ("slots", c_void_p),
        ("out", c_void_p),
        ("failed_slot", c_void_p),
        ("rng_seed", c_uint64),
        ("step", c_uint64),
        ("step_index", c_int64),
        ("num_samples", c_int64),
        ("num_transits", c_int64),
        ("sample_size", c_int64),
        ("picks", c_int64),
        ("num_roots", c_int64),
        ("transit_stride", c_int64),
        ("ranked_stride", c_int64),
        ("out_stride", c_int64),
        ("state_words", c_int64),
        ("attempt", c_int64),
        ("first_pick", c_int64),
        ("key0", c_uint32),
        ("key1", c_uint32),
    )


@library.DECLARED.mirror("FsTransitApp")
class AppArguments(Structure):
    """FsTransitApp."""

    _fields_ = (
        ("sample_sizes", c_void_p),
        ("num_transits", c_void_p),
        ("unique", c_void_p),
        ("params", c_void_p),
        ("next", c_void_p),
        ("step_transits", c_void_p),
        ("initial", c_void_p),
        ("num_steps", c_int64),
        ("num_roots", c_int64),
        ("state_words", c_int64),
        ("max_attempts", c_int64),
        ("next_kind", c_int32),
        ("sampling_type", c_int32),
        ("until_done", c_int32),
    )


@library.DECLARED.mirror("FsTransitRequest")
class RequestArguments(Structure):
    """FsTransitRequest."""

    _fields_ = (
        ("roots", c_void_p),
        ("sample_ids", c_void_p),
        ("num_samples", c_int64),
        ("block_samples", c_int64),
        ("rng_seed", c_uint64),
        ("step", c_uint64),
        ("num_threads", c_int32),
        ("schedule", c_int32),
    )


@library.DECLARED.mirror("FsTransitFailure")
class Failure(Structure):
    """FsTransitFailure."""

    _fields_ = (
        ("sample", c_int64),
        ("sample_id", c_int64),
        ("step", c_int64),
        ("node", c_int64),
        ("fault", c_int32),
        ("function", c_int32),
    )


@library.DECLARED.mirror("FsTransitResult")
class ResultMemory(Structure):
    """FsTransitResult."""

    _fields_ = (
        ("num_samples", c_int64),
        ("num_steps", c_int64),
        ("width", c_int64),
        ("num_vertices", c_int64),
        ("offsets", c_void_p),
        ("vertices", c_void_p),
    )


class AppFailedError(RuntimeError):
    """A function of an application raised or returned what is no node, or the application never ends.

    Attributes:
      sample: position in the call.
      sample_id, step, node: see FsTransitFailure.
      fault, function: what happened, and in which function.
    """

    def __init__(self, line: str, failure: Failure) -> None:
        super().__init__(line)
        self.sample, self.sample_id = failure.sample, failure.sample_id
        self.step, self.node = failure.step, failure.node
        self.fault, self.function = AppFault(failure.fault), AppFunction(failure.function)

"""The compiled core, loaded with ctypes (which releases the GIL during calls).

`core()` is libfastsample.so; the CUDA library has a module of its own (cuda.py). The structures mirror
csrc/include/fastsample.h field by field, which `load` checks (abi.py); `call` turns a status code into an exception.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from fastsample_dist.ops import abi, checks

ABI_VERSION = 16
LIBRARY_DIR = Path(__file__).resolve().parent.parent / "lib"

OK, INVALID_ARGUMENT, OUT_OF_MEMORY, DEVICE_ERROR, APP_ERROR = range(5)

TYPE_CODES = {
    torch.int32: 0,
    torch.int64: 1,
    torch.float32: 2,
    torch.float64: 3,
    torch.bfloat16: 4,
    torch.float16: 5,
    torch.int8: 6,
    torch.uint8: 7,
    torch.int16: 8,
}
REDUCE_CODES = {"sum": 0, "mean": 1, "max": 2}
ACTIVATION_CODES = {"identity": 0, "relu": 1}
REFUSAL_VALUES = 4


class Refusal(enum.IntEnum):
    """FsRefusal: what a value is refused for; csrc/include/fastsample.h lists the values that each line shows."""

    ROW = 0
    OFFSETS = 1
    NEGATIVE_SOURCE = 2
    SOURCE = 3
    NEGATIVE_SEED = 4
    REPEATED_SEED = 5
    NEGATIVE_DST = 6
    REPEATED_DST = 7
    NEGATIVE_NEIGHBOR = 8
    ID = 9
    PLACE = 10
    OWNER = 11


DECLARED = abi.Declarations(structs={"FsAbiEntry": abi.AbiEntry})
DECLARED.values(
    FS_ABI_VERSION=ABI_VERSION, FS_OK=OK, FS_INVALID_ARGUMENT=INVALID_ARGUMENT, FS_OUT_OF_MEMORY=OUT_OF_MEMORY,
    FS_DEVICE_ERROR=DEVICE_ERROR, FS_APP_ERROR=APP_ERROR, FS_REFUSAL_VALUES=REFUSAL_VALUES,
    **{f"FS_{str(dtype).removeprefix('torch.').upper()}": code for dtype, code in TYPE_CODES.items()},
    **{f"FS_{name.upper()}": code for codes in (REDUCE_CODES, ACTIVATION_CODES) for name, code in codes.items()},
    **{f"FS_REFUSED_{refusal.name}": refusal.value for refusal in Refusal},
)  # fmt: skip


@DECLARED.mirror("FsWeightTables")
class WeightTables(Structure):
    """FsWeightTables."""

    _fields_ = (
        ("weights", c_void_p),
        ("alias_table", c_void_p),
        ("num_positive", c_void_p),
        ("weight_type", c_int32),
    )


@DECLARED.mirror("FsGraph")
class Graph(Structure):
    """FsGraph."""

    _fields_ = (
        ("indptr", c_void_p),
        ("indices", c_void_p),
        ("orig_ids", c_void_p),
        ("src_orig_ids", c_void_p),
        ("weights", POINTER(WeightTables)),
        ("num_rows", c_int64),
        ("num_sources", c_int64),
        ("num_edges", c_int64),
        ("id_type", c_int32),
    )


@DECLARED.mirror("FsSampleSpec")
class SampleArguments(Structure):
    """FsSampleSpec."""

    _fields_ = (
        ("fanouts", POINTER(c_int64)),
        ("num_hops", c_int32),
        ("first_hop", c_int32),
        ("method", c_int32),
        ("replace", c_int32),
        ("layer_dependency", c_int32),
        ("edge_ids", c_int32),
        ("num_threads", c_int32),
        ("rng_seed", c_uint64),
        ("step", c_uint64),
    )


@DECLARED.mirror("FsHop")
class Hop(Structure):
    """FsHop. Read as words of 8 bytes, all fields at once."""

    _fields_ = (
        ("num_dst", c_int64),
        ("num_src", c_int64),
        ("num_edges", c_int64),
        ("indptr", c_void_p),
        ("indices", c_void_p),
        ("edge_ids", c_void_p),
        ("edge_weights", c_void_p),
    )


HOP_FIELDS = tuple(name for name, _ in Hop._fields_)
assert ctypes.sizeof(Hop) == 8 * len(HOP_FIELDS)


@DECLARED.mirror("FsMiniBatch")
class MiniBatchMemory(Structure):
    """FsMiniBatch."""

    _fields_ = (
        ("num_hops", c_int32),
        ("num_nodes", c_int64),
        ("nodes", c_void_p),
        ("hops", c_void_p),  # array of FsHop
    )


@DECLARED.mirror("FsEdgeWeights")
class WeightedEdges(Structure):
    """FsEdgeWeights."""

    _fields_ = (
        ("indptr", c_void_p),
        ("weights", c_void_p),
        ("num_rows", c_int64),
        ("num_edges", c_int64),
        ("type", c_int32),
        ("num_threads", c_int32),
    )


@DECLARED.mirror("FsRowTable")
class RowTable(Structure):
    """FsRowTable."""

    _fields_ = (
        ("rows", c_void_p),
        ("num_rows", c_int64),
        ("scales", c_void_p),
        ("row_stride", c_int32),
        ("scale_stride", c_int32),
    )


@DECLARED.mirror("FsRowTables")
class RowTables(Structure):
    """FsRowTables."""

    _fields_ = (
        ("tables", POINTER(RowTable)),
        ("fetched", c_void_p),
        ("num_fetched", c_int64),
        ("row_width", c_int64),
        ("num_tables", c_int32),
        ("in_type", c_int32),
        ("fetched_type", c_int32),
        ("is_scaled", c_int32),
    )


@DECLARED.mirror("FsAggregation")
class Aggregation(Structure):
    """FsAggregation."""

    _fields_ = (
        ("indptr", c_void_p),
        ("indices", c_void_p),
        ("num_dst", c_int64),
        ("num_src", c_int64),
        ("num_edges", c_int64),
        ("id_type", c_int32),
        ("reduce", c_int32),
        ("weights", c_void_p),
        ("num_heads", c_int64),
        ("width", c_int64),
        ("type", c_int32),
        ("num_threads", c_int32),
        ("tile", c_int64),
        ("tiles_outer", c_int32),
    )


@DECLARED.mirror("FsStream")
class Stream(Structure):
    """FsStream."""

    _fields_ = (
        ("indptr", c_void_p),
        ("indices", c_void_p),
        ("order", c_void_p),
        ("in_edges", c_void_p),
        ("kinds", c_void_p),
        ("capacities", c_void_p),
        ("num_nodes", c_int64),
        ("num_edges", c_int64),
        ("num_parts", c_int32),
        ("id_type", c_int32),
        ("score", c_int32),
        ("rows_by_turn", c_int32),
        ("alpha", c_double),
        ("rng_seed", c_uint64),
    )


@DECLARED.mirror("FsActDropout")
class ActDropout(Structure):
    """FsActDropout."""

    _fields_ = (
        ("node_ids", c_void_p),
        ("num_rows", c_int64),
        ("width", c_int64),
        ("type", c_int32),
        ("activation", c_int32),
        ("drop_threshold", c_uint32),
        ("num_threads", c_int32),
        ("rng_seed", c_uint64),
        ("step", c_uint64),
        ("layer", c_uint64),
        ("bias", c_void_p),
    )


@DECLARED.mirror("FsEdgeList")
class EdgeList(Structure):
    """FsEdgeList."""

    _fields_ = (
        ("src", c_void_p),
        ("dst", c_void_p),
        ("weights", c_void_p),
        ("num_edges", c_int64),
        ("num_nodes", c_int64),
        ("first_edge", c_int64),
        ("id_type", c_int32),
        ("weight_type", c_int32),
        ("undirected", c_int32),
    )


@DECLARED.mirror("FsGroupedEdges")
class GroupedEdges(Structure):
    """FsGroupedEdges."""

    _fields_ = (
        ("keys", c_void_p),
        ("weights", c_void_p),
        ("positions", c_void_p),
        ("counts", c_void_p),
        ("position_type", c_int32),
    )


@DECLARED.mirror("FsEdgeBucket")
class EdgeBucket(Structure):
    """FsEdgeBucket."""

    _fields_ = (
        ("keys", c_void_p),
        ("weights", c_void_p),
        ("positions", c_void_p),
        ("counts", c_void_p),
        ("num_edges", c_int64),
        ("first_row", c_int64),
        ("num_rows", c_int64),
        ("id_type", c_int32),
        ("weight_type", c_int32),
        ("position_type", c_int32),
        ("merge", c_int32),
        ("num_threads", c_int32),
        ("unlike", c_void_p),
    )


DECLARED.prototypes.update({
    "fs_sample_mfg": (POINTER(Graph), POINTER(SampleArguments), c_void_p, c_int64, POINTER(POINTER(MiniBatchMemory))),
    "fs_sample_many": (
        POINTER(Graph), POINTER(SampleArguments), POINTER(c_void_p), POINTER(c_int64), c_int64,
        POINTER(POINTER(MiniBatchMemory)),
    ),
    "fs_sample_neighbors": (
        POINTER(Graph), POINTER(SampleArguments), c_void_p, c_int64, POINTER(POINTER(MiniBatchMemory)),
    ),
    "fs_induced_subgraph": (
        POINTER(Graph), c_void_p, c_int64, c_int32, c_int32, POINTER(POINTER(MiniBatchMemory)),
    ),
    "fs_compact": (c_int32, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, POINTER(c_int64)),
    "fs_alias_tables": (POINTER(WeightedEdges), c_void_p, c_void_p),
    "fs_gather_rows": (c_void_p, c_int64, c_int64, c_int32, c_void_p, c_int64, c_void_p, c_int32),
    "fs_merge_rows": (POINTER(RowTables), c_void_p, c_int64, c_int32, c_void_p, c_int32),
    "fs_bucket_by_part": (c_int32, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
    "fs_stream_partition": (POINTER(Stream), c_void_p),
    "fs_bfs_order": (POINTER(Graph), c_void_p),
    "fs_aggregate": (POINTER(Aggregation), c_void_p, c_void_p, c_int64, c_void_p),
    "fs_aggregate_backward": (
        POINTER(Aggregation), c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p,
    ),
    "fs_aggregate_concat": (POINTER(Aggregation), c_void_p, c_void_p, c_void_p),
    "fs_aggregate_concat_backward": (POINTER(Aggregation), c_void_p, c_void_p),
    "fs_act_dropout": (POINTER(ActDropout), c_void_p, c_void_p),
    "fs_act_dropout_backward": (POINTER(ActDropout), c_void_p, c_void_p, c_void_p),
    "fs_act_dropout_backward_sums": (POINTER(ActDropout), c_void_p, c_void_p, c_void_p, c_void_p),
    "fs_has_matrix_units": (),
    "fs_weight_gradient": (POINTER(ActDropout), *([c_void_p] * 5), c_int64, c_void_p),
    "fs_edge_degrees": (POINTER(EdgeList), c_void_p),
    "fs_group_edges": (POINTER(EdgeList), c_void_p, c_int64, POINTER(GroupedEdges)),
    "fs_sort_edges": (POINTER(EdgeBucket), c_void_p, POINTER(c_int64)),
    "fs_read_ranges": (c_int32, c_void_p, c_void_p, c_int64, c_void_p),
    "fs_page_out_file": (c_char_p, c_int64, POINTER(c_int32)),
    "fs_set_isa": (c_char_p,),
    "fs_refuse": (c_int32, c_char_p, POINTER(c_int64)),
    "fs_check_sample_spec": (c_char_p, POINTER(SampleArguments)),
})  # fmt: skip


def load(path: Path, declared: abi.Declarations, remedy: str, *, kind: str = "fs") -> ctypes.CDLL:
    """A library whose functions and structs are what Python declares of it.

    Args:
      path: the file.
      declared: its functions, structs and constants.
      remedy: what to do about a mismatch; ends the message.
      kind: what the names of its functions begin with.
    Raises:
      ImportError: it is missing, damaged, of another version, or was compiled with other structs; the message ends with
        the remedy.
    """
    if not path.exists():
        raise ImportError(f"{path.name} is not in {path.parent}; {remedy}")
    try:
        abi.check_length(path)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded ({error}); {remedy}") from error
    family = kind.removesuffix("_bench")  # a library of benchmarks has the version function of its kind
    version = f"{family}_abi_version"
    if not hasattr(library, version):
        raise ImportError(f"{path} lacks {version}, so it is another library; {remedy}")
    found = getattr(library, version)()
    if found != ABI_VERSION:
        raise ImportError(f"{path} has ABI version {found}, these Python files expect {ABI_VERSION}; {remedy}")
    for function in (*declared.prototypes, f"{kind}_abi_entries"):
        if not hasattr(library, function):
            raise ImportError(f"{path} lacks {function}, so it is older than these Python files; {remedy}")
    difference = declared.first_difference(library, f"{kind}_abi_entries")
    if difference is not None:
        raise ImportError(f"{path} was compiled from other headers: {difference}; {remedy}")
    for function, arguments in declared.prototypes.items():
        getattr(library, function).argtypes = arguments
        getattr(library, function).restype = c_int32
    getattr(library, f"{family}_last_error").restype = c_char_p
    return library


@functools.cache
def core() -> ctypes.CDLL:
    """The CPU library, loaded on first use.

    Raises:
      ImportError: it is missing, damaged or of another version; the message says how to build it.
    """
    library = load(
        LIBRARY_DIR / "libfastsample.so",
        DECLARED,
        "build it with `pip install --no-build-isolation -e .` in the source directory.",
    )
    library.fs_mini_batch_free.argtypes = (POINTER(MiniBatchMemory),)
    library.fs_mini_batch_free.restype = None
    library.fs_collective_free.argtypes = (c_void_p,)
    library.fs_collective_free.restype = None
    library.fs_subgraph_nodes_free.argtypes = (c_void_p, c_int64)
    library.fs_subgraph_nodes_free.restype = None
    library.fs_subgraphs_free.argtypes = (c_void_p, c_int64)
    library.fs_subgraphs_free.restype = None
    library.fs_advise_huge_pages.argtypes = (c_void_p, c_int64, c_int32)
    library.fs_advise_huge_pages.restype = None
    library.fs_sampler_scratch_bytes.restype = c_int64
    library.fs_isa.restype = c_char_p
    return library


def call(function: Callable[..., int], *arguments: object) -> None:
    """Call an entry point of the CPU library; a failing status becomes an exception with the library's line."""
    raise_for_status(function(*arguments), core().fs_last_error)


def raise_for_status(status: int, last_error: Callable[[], bytes]) -> None:
    """ValueError for refused arguments, MemoryError or RuntimeError for the rest; returns when status is 0."""
    if status == 0:
        return
    message = last_error().decode(errors="replace")
    if status == INVALID_ARGUMENT:
        raise ValueError(message)
    raise MemoryError(message) if status == OUT_OF_MEMORY else RuntimeError(message)


def refuse(refusal: Refusal, operation: str, *values: int) -> NoReturn:
    """Refuse values that a GPU's kernel has found, with the line that the CPU's operators give.

    Raises:
      ValueError: always.
    """
    padded = (c_int64 * REFUSAL_VALUES)(*values)
    call(core().fs_refuse, refusal, operation.encode(), padded)
    raise AssertionError("fs_refuse returned without a refusal")


def isa() -> str:
    """Instruction set in use by the vector kernels: "baseline", "avx2", "avx512", or "scalar" (see `set_isa`)."""
    return core().fs_isa().decode()


def set_isa(name: str) -> None:
    """Choose the instruction set of the vector kernels for this process; all sets give the same bits.

    "scalar" samples by the definition of a hop (csrc/cpu/plain_hop.cpp): slow, for comparisons.

    Raises:
      ValueError: the name is unknown or the processor lacks it.
    """
    call(core().fs_set_isa, name.encode())


def address(tensor: Tensor | None) -> int | None:
    """Pointer to the first element, None for None."""
    return None if tensor is None else tensor.data_ptr()


def type_code(tensor: Tensor) -> int:
    """The FsType of a tensor's dtype.

    Raises:
      ValueError: the compiled core has no such type.
    """
    if tensor.dtype not in TYPE_CODES:
        expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in TYPE_CODES)
        raise ValueError(f"a tensor of {tensor.dtype} was passed; expected one of {expected}.")
    return TYPE_CODES[tensor.dtype]


def advise_huge_pages(tensor: Tensor, *, now: bool = False) -> None:
    """Ask the system to hold a tensor's memory in huge pages, which speeds up random reads.

    Contents stay as they are; a system without them (or without Linux) is not an error.

    Args:
      tensor: CPU memory, anonymous or mapped from a file.
      now: gather pages that exist already (copies them); else only pages that come into being are affected.
    """
    core().fs_advise_huge_pages(tensor.data_ptr(), tensor.nbytes, int(now))


def sampler_scratch_bytes() -> int:
    """Scratch memory, in bytes, that the calling thread keeps between sampling calls."""
    return int(core().fs_sampler_scratch_bytes())


def num_threads(asked: int | None = None) -> int:
    """Threads for one operator call: as many as are asked for, or torch's intra-op setting.

    Raises:
      ValueError: not an integer from 1 to checks.MOST_THREADS.
    """
    return torch.get_num_threads() if asked is None else checks.whole("num_threads", asked, 1, checks.MOST_THREADS)

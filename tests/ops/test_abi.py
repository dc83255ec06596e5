"""Structs and constants of the C ABI: what a library lists, its header declares and ctypes mirrors is the same."""

import ctypes
import re
from ctypes import Structure, c_int32, c_void_p

import pytest

from fastsample_dist.bench import native
from fastsample_dist.bench.gpu import baseline, limits
from fastsample_dist.bench.sampling import touch
from fastsample_dist.ops import abi, cuda, cuda_collective_apps, library
from tests.toolchain import CSRC

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
STRUCT = re.compile(r"typedef struct \{(.*?)\} (\w+);", re.DOTALL)
ENUM = re.compile(r"typedef enum \{(.*?)\} \w+;", re.DOTALL)
MACRO = re.compile(r"^#define (FS_\w+) \(?(-?\d+)\)?[ \t]*$", re.MULTILINE)
MEMBER = re.compile(r"(\w+)(?:\[\w+\])?$")

DECLARING = (baseline, limits, touch, cuda_collective_apps)  # modules that declare what they call

# By what the names of a library's functions begin with: its headers, and what Python declares of it.
KINDS = {
    "fs": (
        (
            "include/fastsample.h",
            "include/fastsample_transit.h",
            "include/fastsample_embedding.h",
            "include/fastsample_subgraph.h",
            "include/fastsample_inclusion.h",
            "include/fastsample_clusters.h",
            "include/fastsample_queue.h",
        ),
        library.DECLARED,
    ),
    "fs_cuda": (("include/fastsample_cuda.h",), cuda.DECLARED),
    "fs_bench": (("bench/fastsample_bench.h",), native.CPU),
    "fs_cuda_bench": (("bench/fastsample_bench.h",), native.CUDA),
}


def headers(*names):
    """({struct: fields in order}, {constant: value}) of some headers."""
    text = COMMENT.sub("", "\n".join((CSRC / name).read_text() for name in names))
    structs = {}
    for body, struct in STRUCT.findall(text):
        declarations = [part.strip() for line in body.split(";") for part in line.split(",") if part.strip()]
        structs[struct] = [MEMBER.search(part)[1] for part in declarations]
    constants = {macro: int(value) for macro, value in MACRO.findall(text)}
    for body in ENUM.findall(text):
        constants |= {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", body)}
    return structs, constants


def declared_by(kind):
    """What a library of this kind has to list."""
    structs, constants = headers(*KINDS[kind][0])
    if kind == "fs_bench":
        structs = {name: fields for name, fields in structs.items() if name == "FsRandomReads"}
    elif kind == "fs_cuda_bench":
        structs = {name: fields for name, fields in structs.items() if name != "FsRandomReads"}
    elif kind == "fs_cuda":
        shared, _ = headers("include/fastsample.h", "include/fastsample_transit.h")
        structs |= {name: fields for name, fields in shared.items() if name in cuda.SHARED}
    return structs, constants


@pytest.fixture(params=KINDS)
def kind_and_library(request):
    """A kind, and a library that has the functions of this kind."""
    if request.param == "fs":
        return request.param, library.core()
    if request.param == "fs_bench":
        return request.param, native.core()
    return request.param, ctypes.CDLL(str(request.getfixturevalue("emulated_library")))


def test_a_library_lists_every_field_and_constant_of_its_header(kind_and_library):
    kind, loaded = kind_and_library
    found = abi.entries_of(loaded, f"{kind}_abi_entries")
    structs, constants = declared_by(kind)
    fields = {}
    for owner, member in found:
        if owner:
            fields.setdefault(owner, []).extend([member] if member else [])
    assert fields == structs
    assert {member: value for (owner, member), (value, _) in found.items() if not owner} == constants


@pytest.mark.parametrize("kind", KINDS)
def test_python_declares_every_struct_and_constant_of_the_headers(kind):
    structs, constants = declared_by(kind)
    declared = KINDS[kind][1]
    assert {name: [field for field, *_ in mirror._fields_] for name, mirror in declared.structs.items()} == structs
    assert declared.constants == constants


class Swapped(Structure):
    """FsWeightTables with two fields in the wrong order: each of the right size."""

    _fields_ = (
        ("weights", c_void_p), ("num_positive", c_void_p), ("alias_table", c_void_p), ("weight_type", c_int32),
    )  # fmt: skip


class Narrow(Structure):
    """FsWeightTables with a field of half its size."""

    _fields_ = (("weights", c_int32), ("alias_table", c_void_p), ("num_positive", c_void_p), ("weight_type", c_int32))


class Longer(Structure):
    """FsWeightTables with a field too many."""

    _fields_ = (*library.WeightTables._fields_, ("padding", c_int32))


class Shorter(Structure):
    """FsWeightTables without its last field: every field that it has is right."""

    _fields_ = library.WeightTables._fields_[:-1]


@pytest.mark.parametrize(
    ("structs", "constants", "line"),
    [
        (
            {"FsWeightTables": Swapped}, {},
            "FsWeightTables.num_positive is 8 bytes at offset 16, these Python files expect 8 bytes at offset 8",
        ),
        (
            {"FsWeightTables": Narrow}, {},
            "FsWeightTables.weights is 8 bytes at offset 0, these Python files expect 4 bytes at offset 0",
        ),
        (
            {"FsWeightTables": Longer}, {},
            "FsWeightTables.padding is missing, these Python files expect 4 bytes at offset 28",
        ),
        (
            {"FsWeightTables": Shorter}, {},
            "FsWeightTables.weight_type is 4 bytes at offset 24, these Python files expect no such field",
        ),
        ({"FsNothing": Swapped}, {}, "FsNothing is missing, these Python files expect a struct of 32 bytes"),
        ({}, {"FS_LABOR": 1}, "FS_LABOR is 2, these Python files expect 1"),
        ({}, {"FS_NOTHING": 1}, "FS_NOTHING is missing, these Python files expect 1"),
    ],
)  # fmt: skip
def test_a_declaration_that_differs_is_refused_by_name(structs, constants, line):
    path = library.LIBRARY_DIR / "libfastsample.so"
    wrong = abi.Declarations(structs=library.DECLARED.structs | structs, constants=constants)
    with pytest.raises(ImportError) as refused:
        library.load(path, wrong, "do it.")
    assert str(refused.value) == f"{path} was compiled from other headers: {line}; do it."


def test_a_struct_of_another_size_is_refused(monkeypatch):
    found = abi.entries_of(library.core(), "fs_abi_entries") | {("FsWeightTables", ""): (0, 64)}
    monkeypatch.setattr(abi, "entries_of", lambda *_: found)
    line = library.DECLARED.first_difference(library.core(), "fs_abi_entries")
    assert line == "FsWeightTables has 64 bytes, these Python files expect 32"


def test_the_shipped_libraries_lack_what_only_benchmarks_call():
    for loaded in (library.core(), *([cuda.core()] if (library.LIBRARY_DIR / cuda.NAME).exists() else [])):
        for function in (*native.CPU.prototypes, *native.CUDA.prototypes):
            assert not hasattr(loaded, function)


def test_a_missing_library_of_benchmarks_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIBRARY_DIR", tmp_path)
    for load, name in ((native.core, "libfastsample_bench.so"), (native.cuda_core, "libfastsample_bench_cuda.so")):
        with pytest.raises(ImportError, match=rf"{name} is not in .* needs? it: .*pip install --no-build-isolation"):
            load.__wrapped__()

"""What Python declares of a compiled library, compared with what the library was compiled with.

ctypes mirrors the C structs by hand. A library lists its own structs and constants (fs_abi_entries in
csrc/include/fastsample.h); `Declarations.first_difference` compares the two when the library is loaded, and one line
names the first field or constant in which they differ. Before that, `check_length` compares the file with its header.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from ctypes import POINTER, Structure, c_char_p, c_int64
from dataclasses import dataclass, field
from pathlib import Path

_CONSTANT = ""  # in the place of a struct's name


class AbiEntry(Structure):
    """FsAbiEntry."""

    _fields_ = (("type", c_char_p), ("member", c_char_p), ("value", c_int64), ("size", c_int64))


@dataclass(frozen=True)
class Declarations:
    """What Python declares of one library.

    Attributes:
      prototypes: argument types by function; each returns a status.
      structs: mirrors by the C name.
      constants: values by the C name.
    """

    prototypes: dict[str, tuple] = field(default_factory=dict)
    structs: dict[str, type[Structure]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)

    def functions(self, **prototypes: tuple) -> None:
        """Declare the argument types of functions that return a status."""
        self.prototypes.update(prototypes)

    def mirror(self, name: str) -> Callable[[type[Structure]], type[Structure]]:
        """Declare the class that follows as the mirror of a C struct."""

        def declare(structure: type[Structure]) -> type[Structure]:
            self.structs[name] = structure
            return structure

        return declare

    def values(self, **constants: int) -> None:
        """Declare the values of enumerators and macros."""
        self.constants.update(constants)

    def first_difference(self, library: ctypes.CDLL, entries_function: str) -> str | None:
        """One line on the first declaration that the library does not share; None where they agree.

        Args:
          library: a loaded library.
          entries_function: its function that returns the table of FsAbiEntry.
        """
        found = entries_of(library, entries_function)
        for name, value in self.constants.items():
            if found.get((_CONSTANT, name)) != (value, 0):
                has = found.get((_CONSTANT, name))
                return f"{name} is {'missing' if has is None else has[0]}, these Python files expect {value}"
        for name, structure in self.structs.items():
            line = _struct_difference(name, structure, found)
            if line is not None:
                return line
        return None


def check_length(path: Path) -> None:
    """Refuse an ELF file that was cut short, which the loader would map and end the process with SIGBUS.

    The table of sections, whose place the header states, is a file's end. What is no ELF file of 64 bits and this byte
    order the loader refuses itself.

    Raises:
      OSError: it was cut short, or cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) == 64 and header.startswith(b"\x7fELF\x02\x01"):
        (start,), (size, number) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<HH", header, 58)
        found, expected = path.stat().st_size, start + size * number
        if found < expected:
            raise OSError(f"it has {found:,} bytes, its header states {expected:,}")


def entries_of(library: ctypes.CDLL, entries_function: str) -> dict[tuple[str, str], tuple[int, int]]:
    """A library's table: {(struct, field or "" for the struct): (offset, size), ("", constant): (value, 0)}."""
    function = getattr(library, entries_function)
    function.restype = POINTER(AbiEntry)
    return dict(_entries(function()))


def _entries(table: ctypes._Pointer) -> Iterator[tuple[tuple[str, str], tuple[int, int]]]:
    place = 0
    while table[place].type is not None:
        entry = table[place]
        yield (entry.type.decode(), entry.member.decode()), (entry.value, entry.size)
        place += 1


def _struct_difference(
    name: str, structure: type[Structure], found: dict[tuple[str, str], tuple[int, int]]
) -> str | None:
    expected = {member: getattr(structure, member) for member, *_ in structure._fields_}
    has = {member: layout for (owner, member), layout in found.items() if owner == name and member}
    if not has:
        return f"{name} is missing, these Python files expect a struct of {ctypes.sizeof(structure)} bytes"
    for member in [*expected, *(member for member in has if member not in expected)]:
        ours = "no such field"
        if member in expected:
            ours = _layout(expected[member].offset, expected[member].size)
        theirs = _layout(*has[member]) if member in has else "missing"
        if ours != theirs:
            return f"{name}.{member} is {theirs}, these Python files expect {ours}"
    size = found[name, ""][1]
    if size != ctypes.sizeof(structure):
        return f"{name} has {size} bytes, these Python files expect {ctypes.sizeof(structure)}"
    return None


def _layout(offset: int, size: int) -> str:
    return f"{size} bytes at offset {offset}"

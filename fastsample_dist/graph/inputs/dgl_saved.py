"""Sizes of a file of dgl.save_graphs, by its headers: DGL itself loads a graph whole, or only the labels of graphs.

Numbers are little-endian, 8 bytes where nothing else is said; a list is its length and its items, a text a list of
bytes. DGL 1.1.3 writes (src/graph/serialize/heterograph_serialize.cc, and Save of what it writes):

    file      magic, 2, kind of graphs, number of graphs; at byte 4096: place of the first graph, list of labels, graphs
    graph     magic, types: matrices; list of relations; list of the number of nodes by type;
              list by node type of lists of (name, array), the same by edge type; names of node and edge types
    types     magic, CSR matrix
    relation  magic, formats that are stored (bits of COO 1, CSR 2, CSC 4), formats that may be made;
              for each format that is stored: types, matrix
    matrix    magic, columns, rows, 3 arrays (COO: rows, columns, edge ids; CSR, CSC: offsets, ids, edge ids),
              COO: 2 bytes, CSR, CSC: 1 byte that say whether it is sorted
    array     magic, 0, device (4 + 4), number of extents (4), kind and bits of a number (1 + 1), lanes (2), extents,
              bytes, data
Arrays are passed over. A magic number that differs is a layout that is not known here.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

from fastsample_dist.graph.inputs.sizes import GraphSizes
from fastsample_dist.graph.inputs.typed_sizes import Shape, dgl_edges, dgl_nodes, dtype_name, typed_sizes

_FILE, _GRAPH, _TYPES = 0xDD2E4FF046B4A13F, 0xDD589FBE35224ABF, 0xDD3C5FFE20046ABF
_RELATION, _COO, _CSR, _ARRAY = 0xDD2E60F0F6B4A127, 0xDD61FFD305DFF127, 0xDD6CD31205DFF127, 0xDD5E40F096B4A13F
_GRAPHS_AT = 4096
_FORMATS = ((1, _COO, 2), (2, _CSR, 1), (4, _CSR, 1))  # bit, magic, bytes that say what is sorted
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}  # of numbers, as DLPack counts them
_MOST_EXTENTS = 32


def saved_sizes(path: Path, undirected: bool | None) -> GraphSizes:
    """Sizes of a file of dgl.save_graphs that holds one graph; a few kB are read.

    Raises:
      ValueError: no such file, a layout that is not known (another version of DGL wrote it, or it is damaged), several
        graphs, or two names for one thing.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing; expected a file written by dgl.save_graphs.")
    with path.open("rb") as file:
        reader = _Reader(file, path)
        reader.expect(_FILE)
        *_, num_graphs = reader.values("3q")
        if num_graphs != 1:
            raise ValueError(f"{path} holds {num_graphs} graphs; expected one; save that one alone.")
        reader.seek(_GRAPHS_AT)
        reader.seek(reader.number())
        return _graph_sizes(reader, path, bool(undirected))


def _graph_sizes(reader: _Reader, path: Path, undirected: bool) -> GraphSizes:
    reader.expect(_GRAPH)
    reader.types()
    relations = [reader.relation() for _ in range(reader.length())]
    counts = reader.numbers(reader.length())
    node_data, edge_data = ([reader.columns() for _ in range(reader.length())] for _ in range(2))
    node_types, edge_types = ([reader.text() for _ in range(reader.length())] for _ in range(2))
    if not len(counts) == len(node_data) == len(node_types) or not len(relations) == len(edge_data) == len(edge_types):
        raise reader.unknown("types that do not match")
    nodes = [
        dgl_nodes(count, data, f"{path}: nodes of type {kind}")
        for count, data, kind in zip(counts, node_data, node_types, strict=True)
    ]
    edges = [
        dgl_edges(*ids, data, f"{path}: edges of type {kind}")
        for ids, data, kind in zip(relations, edge_data, edge_types, strict=True)
    ]
    return typed_sizes(path.stem, nodes, edges, undirected)


class _Reader:
    """What stands at the current place of a file, which is then behind it."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path, self._size = file, path, os.fstat(file.fileno()).st_size

    def unknown(self, found: str) -> ValueError:
        """The refusal of a layout."""
        return ValueError(
            f"{self._path} has {found} at byte {self._file.tell()}; expected what dgl.save_graphs of DGL 1.1.3 writes; "
            "pass --num-nodes and --num-edges instead of --input."
        )

    def seek(self, place: int) -> None:
        if not 0 <= place <= self._size:
            raise self.unknown(f"a jump to byte {place} of {self._size}")
        self._file.seek(place)

    def values(self, layout: str) -> tuple[Any, ...]:
        """Numbers of a layout of `struct`, little-endian without gaps."""
        size = struct.calcsize(f"<{layout}")
        found = self._file.read(size)
        if len(found) < size:
            raise self.unknown("its end")
        return struct.unpack(f"<{layout}", found)

    def expect(self, magic: int) -> None:
        (found,) = self.values("Q")
        if found != magic:
            raise self.unknown(f"{found:#x} for {magic:#x}")

    def number(self) -> int:
        return self.values("q")[0]

    def length(self) -> int:
        """Of a list, whose items have a byte at least each."""
        count = self.number()
        if not 0 <= count <= self._size:
            raise self.unknown(f"a list of {count}")
        return count

    def numbers(self, count: int) -> list[int]:
        if 8 * count > self._size:
            raise self.unknown(f"a list of {count}")
        return list(self.values(f"{count}q"))

    def text(self) -> str:
        return self.values(f"{self.length()}s")[0].decode(errors="replace")

    def columns(self) -> dict[str, Shape]:
        """Named arrays."""
        return {self.text(): self.array() for _ in range(self.length())}

    def array(self) -> Shape:
        self.expect(_ARRAY)
        *_, num_extents, kind, bits, lanes = self.values("qiiiBBH")
        if kind not in _KINDS or not 0 <= num_extents <= _MOST_EXTENTS:
            raise self.unknown(f"an array of {num_extents} extents and kind {kind}")
        extents, num_bytes = self.numbers(num_extents), self.number()
        if num_bytes * 8 != math.prod(extents) * bits * lanes:
            raise self.unknown(f"{num_bytes} bytes for an array of shape {extents}")
        self.seek(self._file.tell() + num_bytes)
        return Shape(tuple(extents), dtype_name("bool" if _KINDS[kind] == "bool" else f"{_KINDS[kind]}{bits}"))

    def types(self) -> None:
        self.expect(_TYPES)
        self.matrix(_CSR, 1)

    def matrix(self, magic: int, num_flags: int) -> list[Shape]:
        self.expect(magic)
        self.numbers(2)
        arrays = [self.array() for _ in range(3)]
        self.values(f"{num_flags}B")
        return arrays

    def relation(self) -> tuple[int, str]:
        """(edges, type of their ids)."""
        self.expect(_RELATION)
        stored, _ = self.numbers(2)
        found = []
        for bit, magic, num_flags in _FORMATS:
            if stored & bit:
                self.types()
                found.append(self.matrix(magic, num_flags)[1])
        if not found:
            raise self.unknown("a relation without edges")
        return found[0].extents[0], found[0].dtype

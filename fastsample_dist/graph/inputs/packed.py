"""Packed text files, by the ends of their names: .gz, .xz (standard library) and .zst (through pyarrow).

Each is opened on a file that is open already, so that its position shows how far reading has got.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

RATIO = 5  # edge lists pack to a third or a fifth


@dataclass(frozen=True)
class Packing:
    """A way to pack.

    Attributes:
      name: for messages.
      suffix: that file names end in.
      magic: bytes that its files begin with.
      unpack: gives the stream of unpacked bytes of an open file.
      damage: what that raises when the data are damaged or cut short.
    """

    name: str
    suffix: str
    magic: bytes
    unpack: Callable[[BinaryIO], BinaryIO]
    damage: tuple[type[Exception], ...]

    def reason(self, error: Exception) -> str:
        """What is wrong with the data, in words."""
        text = str(error).rstrip(".")
        return f"the file is truncated: {text}" if isinstance(error, EOFError) or "Truncated" in text else text


def _unpack_zstd(raw: BinaryIO) -> BinaryIO:
    from fastsample_dist.graph.inputs.parquet_edges import open_zstd  # the home of pyarrow

    return open_zstd(raw)


PACKINGS = (
    Packing(
        "gzip",
        ".gz",
        b"\x1f\x8b",
        lambda raw: gzip.GzipFile(fileobj=raw),
        (EOFError, zlib.error, gzip.BadGzipFile),
    ),
    Packing("xz", ".xz", b"\xfd7zXZ\x00", lzma.LZMAFile, (EOFError, lzma.LZMAError)),
    Packing("zstd", ".zst", b"\x28\xb5\x2f\xfd", _unpack_zstd, (OSError,)),
)


def packing_of(file: Path) -> Packing | None:
    """How a file is packed, by its name; None: it is not packed."""
    return next((packing for packing in PACKINGS if file.name.endswith(packing.suffix)), None)


def packing_in(data: bytes) -> Packing | None:
    """How data are packed, by their first bytes; None: not packed, as far as can be seen."""
    return next((packing for packing in PACKINGS if data.startswith(packing.magic)), None)


def text_bytes(file: Path) -> int:
    """Bytes of text in a file; of a packed one an estimate."""
    return file.stat().st_size * (RATIO if packing_of(file) else 1)

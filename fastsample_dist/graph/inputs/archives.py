"""Members of an .npz archive, without loading them.

A member that is stored as it is can be mapped where it lies: an .npz is a zip of .npy files, so the array begins behind
the zip's local header and the .npy header. A compressed member is unpacked once, block by block, into a file.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from fastsample_dist.graph.inputs.read_options import ReadOptions
from fastsample_dist.graph.npy_files import CHUNK_BYTES, NpyHeader, map_array, open_npy, read_npy_header

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")  # of the zip format; the last two are the sizes of name and extra field
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, struct.error)


class Archive:
    """An .npz file.

    Args:
      file: the archive.
      options: `scratch` gets what is unpacked; `on_bytes` is called with the bytes of the archive that were read.
    Attributes:
      members: names of the arrays.
    Raises:
      ValueError: the file is missing or is not a zip file.
    """

    def __init__(self, file: Path, options: ReadOptions) -> None:
        if not file.is_file():
            raise ValueError(f"{file} is missing; expected an .npz archive there.")
        self.file, self._options = file, options
        try:
            with zipfile.ZipFile(file) as archive:
                infos = archive.infolist()
        except _DAMAGE as error:
            raise self._damaged(error) from error
        self._infos = {info.filename.removesuffix(".npy"): info for info in infos if info.filename.endswith(".npy")}
        self.members = tuple(self._infos)

    def packed_bytes(self, name: str) -> int:
        """Bytes to read through to open a member; 0 if it is mapped or not there."""
        info = self._infos.get(name)
        return 0 if info is None or info.compress_type == zipfile.ZIP_STORED else info.compress_size

    def header(self, name: str) -> NpyHeader:
        """Shape and type of a member; only the beginning of a packed one is unpacked.

        Raises:
          ValueError: no such member, or it is damaged.
        """
        info = self._info(name)
        try:
            with zipfile.ZipFile(self.file) as archive, archive.open(info) as member:
                return read_npy_header(member)
        except (ValueError, *_DAMAGE) as error:
            raise self._damaged(error, name) from error

    def open(self, name: str, *, aligned: bool = False) -> np.ndarray:
        """Map a member.

        Args:
          name: one of `members`.
          aligned: its values must begin at multiples of their size, as torch wants them; a member that is stored
            elsewhere is unpacked too.
        Raises:
          ValueError: no such member, or it is damaged, truncated or holds Python objects.
          OSError: the disk refuses the unpacked data.
        """
        info = self._info(name)
        try:
            if info.compress_type == zipfile.ZIP_STORED:
                array = self._map(info)
                if array.flags.aligned or not aligned:
                    return array
            return open_npy(
                self._options.scratch.made(
                    f"{self.file.name}.{name}.npy", [self.file], lambda path: self._unpack(info, path)
                )
            )
        except _DAMAGE as error:
            raise self._damaged(error, name) from error

    def _info(self, name: str) -> zipfile.ZipInfo:
        if name not in self._infos:
            raise ValueError(f"{self.file} has no {name}.npy; it holds {', '.join(self.members) or 'nothing'}.")
        return self._infos[name]

    def _map(self, info: zipfile.ZipInfo) -> np.ndarray:
        with self.file.open("rb") as file:
            file.seek(info.header_offset)
            fields = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            begin = info.header_offset + _LOCAL_HEADER.size + fields[-2] + fields[-1]
            file.seek(begin)
            try:
                header = read_npy_header(file)
            except ValueError as error:
                raise self._damaged(error, info.filename) from error
        count = math.prod(header.shape)
        if header.offset + count * header.dtype.itemsize != begin + info.file_size:
            raise self._damaged(f"its header says {count} values of {header.dtype}", info.filename)
        if not count:
            return np.empty(header.shape, dtype=header.dtype)
        place = {"offset": header.offset, "fortran_order": header.fortran_order}
        return map_array(self.file, header.dtype, header.shape, **place)

    def _unpack(self, info: zipfile.ZipInfo, path: Path) -> None:
        with zipfile.ZipFile(self.file) as archive, archive.open(info) as source, path.open("xb") as out:
            share = info.compress_size / max(1, info.file_size)
            while block := source.read(CHUNK_BYTES):
                out.write(block)
                self._options.on_bytes(round(len(block) * share))

    def _damaged(self, reason: Exception | str, member: str | None = None) -> ValueError:
        part = f": {member}" if member else ""
        text = str(reason).split("\n")[0].rstrip(".")
        return ValueError(f"{self.file}{part} is not a readable .npz archive ({text}); copy or download it again.")

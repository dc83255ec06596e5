"""The compact file of a graph directory: one .tar.xz, and its SHA-256 beside it.

The archive holds the directory's files under one folder named like the archive, sorted, without times and owners, so
the same directory gives the same bytes. Unpacking compares the checksum when FILE.sha256 is there, takes plain files of
that one folder only, and makes the directory appear complete or not at all.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import secrets
import shutil
import tarfile
from pathlib import Path

from fastsample_dist.graph.generators import new_directory

SUFFIX = ".tar.xz"
# Numbers of two and four bytes dominate, so literals get two position bits instead of one context bit more.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 2, "lp": 1, "pb": 2}]
_MEMBER = re.compile(r"[A-Za-z0-9][^/]*/([A-Za-z0-9][A-Za-z0-9_.\-]*)")


def pack(directory: Path, file: Path) -> str:
    """Pack the files of a directory into FILE.tar.xz and write FILE.tar.xz.sha256.

    Returns:
      The hexadecimal SHA-256 of the packed file.
    Raises:
      ValueError: the directory is not a graph directory or has folders in it; the file exists or is not named .tar.xz.
    """
    if not file.name.endswith(SUFFIX):
        raise ValueError(f"{file} does not end in {SUFFIX}; name the packed file so.")
    if file.exists():
        raise ValueError(f"{file} exists; remove it or pass another name.")
    if not (directory / "meta.json").is_file():
        raise ValueError(f"{directory} has no meta.json; expected the output of the build command.")
    members = sorted(directory.iterdir())
    folders = [member.name for member in members if not member.is_file()]
    if folders:
        raise ValueError(f"{directory} holds {folders[0]}, which is not a plain file; expected files only.")
    packed = io.BytesIO()  # a few megabytes: packed in memory, so that a failure leaves no partial file
    with (
        lzma.open(packed, "wb", format=lzma.FORMAT_XZ, check=lzma.CHECK_SHA256, filters=_FILTERS) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for member in members:
            info = tarfile.TarInfo(f"{file.name.removesuffix(SUFFIX)}/{member.name}")
            info.size = member.stat().st_size
            with member.open("rb") as content:
                tar.addfile(info, content)
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    partial = file.with_name(f".{file.name}.partial-{secrets.token_hex(4)}")
    try:
        partial.write_bytes(packed.getvalue())
        checksum_file(file).write_text(f"{digest}  {file.name}\n", encoding="ascii")
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)
    return digest


def unpack(file: Path, directory: Path) -> None:
    """Unpack a packed graph into a new directory.

    Raises:
      ValueError: the directory exists; the file is missing, damaged, or not what `pack` writes; or its checksum is
        not the one recorded beside it.
    """
    if not file.is_file():
        raise ValueError(f"{file} is missing; expected a file written by the pack command.")
    _compare_checksum(file)
    with new_directory(directory) as partial:
        try:
            with lzma.open(file) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    _extract(tar, member, file, partial)
                while stream.read(1 << 20):  # to the end, where xz compares its own checksum
                    pass
        except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
            raise ValueError(f"{file} is damaged or truncated ({error}); fetch it again.") from error
        if not (partial / "meta.json").is_file():
            raise ValueError(f"{file} holds no meta.json; expected a file written by the pack command.")


def checksum_file(file: Path) -> Path:
    """Where the checksum of a packed file is recorded, in the format of sha256sum."""
    return file.with_name(file.name + ".sha256")


def _compare_checksum(file: Path) -> None:
    record = checksum_file(file)
    if not record.is_file():
        return
    expected = record.read_text(encoding="ascii").split()[0]
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != expected:
        raise ValueError(f"{file} has SHA-256 {found}; {record.name} says {expected}; fetch the file again.")


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, file: Path, directory: Path) -> None:
    match = _MEMBER.fullmatch(member.name)
    content = tar.extractfile(member) if member.isreg() and match else None
    if match is None or content is None:
        raise ValueError(f"{file} holds {member.name!r}; expected plain files in one folder; do not trust this file.")
    with content, (directory / match.group(1)).open("xb") as target:
        shutil.copyfileobj(content, target)

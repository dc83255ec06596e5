"""Debian control files: paragraphs, relation fields, package records.

An index (Packages, Sources, Translation-en) is a sequence of paragraphs of `Field: value` lines, continued by
lines that start with a blank, and separated by empty lines. Only a dozen fields are needed and the indexes are
written by the archive's own software, never by hand, so the standard library reads them in 60 lines; python-debian
would add a dependency and, for these 150,000 paragraphs, an object per field.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_OPENERS = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
_UNREADABLE = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}

# Name of a package in a relation: "libc6:any (>= 2.34) [amd64] <!nocheck>" -> "libc6".
_RELATION = re.compile(r"\s*([a-zA-Z0-9][a-zA-Z0-9+.\-]*)\s*(?::[a-z0-9\-]+)?\s*(?:[(\[<].*)?$", re.DOTALL)

# A line of a Release file's SHA256 list: " <64 hex digits> <size> <path>".
_LISTED_FILE = re.compile(r" ([0-9a-f]{64}) +\d+ (\S+)$")

BINARY_RELATIONS = {"depends": ("Depends", "Pre-Depends"), "recommends": ("Recommends",), "suggests": ("Suggests",)}
SOURCE_RELATIONS = {"build-depends": ("Build-Depends", "Build-Depends-Indep", "Build-Depends-Arch")}


@dataclass(frozen=True, kw_only=True)
class Binary:
    """A binary package of a Packages index.

    Attributes:
      name: package name.
      source: name of the source package it is built from.
      section: Section without its archive area ("contrib/net" -> "net"); "" when the index has none.
      description: text of the Description field, short line first.
      description_md5: key of the long description in a Translation index; "" when absent.
      provides: virtual package names it provides.
      relations: edge type -> names of packages it needs, in the order of the index, alternatives side by side.
    """

    name: str
    source: str
    section: str
    description: str
    description_md5: str = ""
    provides: tuple[str, ...] = ()
    relations: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source package of a Sources index: its name and what it needs to be built (as in `Binary.relations`)."""

    name: str
    relations: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Release:
    """The Release file that a set of indexes belongs to.

    Attributes:
      fields: origin, codename, version and date, those that are present.
      files: SHA-256 of a file -> its path in the archive ("main/source/Sources").
    """

    fields: dict[str, str]
    files: dict[str, str]


def open_index(path: Path) -> IO[str]:
    """Open an index as UTF-8 text, plain or compressed with gzip, xz or bzip2 (recognised by its first bytes).

    Raises:
      ValueError: the file is compressed with lz4 or zstd, which the standard library does not read.
    """
    return io.TextIOWrapper(_open_bytes(path), encoding="utf-8")


def _open_bytes(path: Path) -> IO[bytes]:
    with path.open("rb") as raw:
        head = raw.read(6)
    for magic, name in _UNREADABLE.items():
        if head.startswith(magic):
            raise ValueError(
                f"{path} is compressed with {name}; expected plain text, gzip, xz or bzip2: "
                "unpack it first with `/usr/lib/apt/apt-helper cat-file FILE`."
            )
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), open)
    return opener(path, "rb")


def paragraphs(path: Path) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a control file as {field: value}; continuation lines keep their line breaks.

    Raises:
      ValueError: a line is neither a field nor a continuation; names the file and the line.
    """
    current: dict[str, str] = {}
    key = ""
    with open_index(path) as lines:
        for number, line in enumerate(lines, start=1):
            line = line.rstrip("\n")
            if not line.strip():
                if current:
                    yield current
                current, key = {}, ""
            elif line[0] in " \t" and key:
                current[key] += "\n" + line.strip()
            else:
                key, colon, value = line.partition(":")
                if not colon or key != key.strip() or not key:
                    raise ValueError(f"{path}, line {number}: found {line[:60]!r}, expected 'Field: value'.")
                current[key] = value.strip()
    if current:
        yield current


def relation_names(value: str) -> tuple[str, ...]:
    """Package names in a relation field; every alternative of `a | b` is one, versions and qualifiers are dropped.

    Raises:
      ValueError: an entry does not begin with a package name.
    """
    names = []
    for entry in re.split(r"[,|]", value):
        if not entry.strip():
            continue
        match = _RELATION.match(entry)
        if match is None:
            raise ValueError(f"relation {entry.strip()!r} does not begin with a package name.")
        names.append(match.group(1))
    return tuple(names)


def read_binaries(paths: Iterable[Path]) -> dict[str, Binary]:
    """Read Packages indexes as {name: Binary}.

    An index lists the versions of a name in ascending order, so a later entry of a name replaces an earlier one;
    pass newer indexes last.

    Raises:
      ValueError: a paragraph has no Package field, or a relation cannot be read.
    """
    found: dict[str, Binary] = {}
    for path in paths:
        for entry in paragraphs(path):
            name = _package_name(entry, path)
            found[name] = Binary(
                name=name,
                # "Source: gcc-12 (12.2.0-14)" carries a version when it differs from the binary's.
                source=entry.get("Source", name).split(" ")[0],
                section=entry.get("Section", "").rpartition("/")[2],
                description=entry.get("Description", entry.get("Description-en", "")),
                description_md5=entry.get("Description-md5", ""),
                provides=_read_relations(entry, ("Provides",), path),
                relations={kind: _read_relations(entry, keys, path) for kind, keys in BINARY_RELATIONS.items()},
            )
    return found


def read_sources(paths: Iterable[Path]) -> dict[str, Source]:
    """Read Sources indexes as {name: Source}; a later entry of a name replaces an earlier one.

    Entries marked `Extra-Source-Only: yes` (old versions kept for their licence) are left out.

    Raises:
      ValueError: a paragraph has no Package field, or a relation cannot be read.
    """
    found: dict[str, Source] = {}
    for path in paths:
        for entry in paragraphs(path):
            name = _package_name(entry, path)
            if entry.get("Extra-Source-Only") == "yes":
                continue
            relations = {kind: _read_relations(entry, keys, path) for kind, keys in SOURCE_RELATIONS.items()}
            found[name] = Source(name=name, relations=relations)
    return found


def read_translations(paths: Iterable[Path]) -> dict[str, str]:
    """Read Translation-en indexes as {Description-md5: short and long description}."""
    return {
        entry["Description-md5"]: entry["Description-en"]
        for path in paths
        for entry in paragraphs(path)
        if "Description-md5" in entry and "Description-en" in entry
    }


def read_release(path: Path) -> Release:
    """Read a Release or InRelease file.

    Raises:
      ValueError: the file has no Date or lists no index.
    """
    wanted = ("Origin", "Codename", "Version", "Date")
    fields: dict[str, str] = {}
    files: dict[str, str] = {}
    with open_index(path) as lines:
        for line in lines:
            key, _, value = line.rstrip("\n").partition(": ")
            if key in wanted:
                fields[key.lower()] = value
            elif match := _LISTED_FILE.match(line):
                files[match.group(1)] = match.group(2)
    if "date" not in fields or not files:
        raise ValueError(f"{path} has no 'Date:' or no SHA256 list; expected the Release file of the indexes.")
    return Release(fields=fields, files=files)


def index_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of an index's uncompressed bytes: what a Release file lists."""
    digest = hashlib.sha256()
    with _open_bytes(path) as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _package_name(entry: dict[str, str], path: Path) -> str:
    if "Package" not in entry:
        fields = ", ".join(list(entry)[:3])
        raise ValueError(f"{path}: a paragraph ({fields} ...) has no Package field; expected a Debian package index.")
    return entry["Package"]


def _read_relations(entry: dict[str, str], keys: tuple[str, ...], path: Path) -> tuple[str, ...]:
    names: list[str] = []
    for key in keys:
        try:
            names.extend(relation_names(entry.get(key, "")))
        except ValueError as error:
            raise ValueError(f"{path}: {entry['Package']}, {key}: {error}") from None
    return tuple(names)

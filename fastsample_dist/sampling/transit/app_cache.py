"""What has been compiled of applications, on disk: a file per key in the user's cache directory.

A key is a hash of all that the result depends on. Of a function that is its bytecode with what it reads from around
itself: constants, variables of enclosing functions, globals, and the functions among these in turn. A value that
cannot be told from others by its content has no key; what depends on it is compiled in every process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fastsample_dist.files import cache_home

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...))
_LIBRARIES = ("builtins", "math", "operator", "numpy", "numba")  # whose functions and types their names tell

LOWERING = tuple(sorted(Path(__file__).parent.glob("numba_*.py")))  # what compiled code is made by
_CHECKSUM_BYTES = hashlib.sha256().digest_size


class _NoKeyError(Exception):
    """A value has no content to go by."""


def directory() -> Path:
    """Where the files are."""
    return cache_home() / "fastsample_dist" / "apps"


def key_of(functions: tuple[Callable | None, ...], besides: Any) -> str | None:
    """The key of functions; None: one of them reads something without content to go by.

    Args:
      besides: what else the result depends on; its repr counts.
    """
    try:
        told = [_told(function, ()) for function in functions]
    except _NoKeyError:
        return None
    return joined(sys.version, *told, repr(besides))


def joined(*parts: str) -> str:
    """One key of several parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


@functools.cache
def digest(*files: Path) -> str:
    """Hash of files' content."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def kept(key: str | None, kind: str, make: Callable[[], bytes]) -> bytes:
    """The content of a file; made, and written, where there is none, or a damaged one.

    Args:
      key: None: it is made every time.
      kind: of content; the file's suffix.
      make: gives the content.
    """
    if key is None:
        return make()
    path = directory() / f"{key}.{kind}"
    with contextlib.suppress(OSError):
        found = path.read_bytes()
        content = found[_CHECKSUM_BYTES:]
        if found == _with_checksum(content):
            return content
    content = make()
    with contextlib.suppress(OSError):  # where nothing can be kept it is made again
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent) as own:  # processes may write the same file at the same time
            partial = Path(own) / path.name
            partial.write_bytes(_with_checksum(content))
            partial.replace(path)
    return content


def _with_checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() + content


def _told(value: Any, above: tuple[Any, ...]) -> str:
    """A value by its content.

    Args:
      above: functions that it was found in, which need not be told again.
    """
    value = getattr(value, "py_func", value)  # a dispatcher of Numba's
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.generic | np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if isinstance(value, tuple | frozenset):
        entries = [_told(entry, above) for entry in value]
        return f"({', '.join(entries if isinstance(value, tuple) else sorted(entries))})"
    if isinstance(value, CodeType):
        return " ".join(
            _told(part, above) for part in (value.co_code, value.co_consts, value.co_names, value.co_varnames)
        )
    if isinstance(value, FunctionType):
        if any(value is function for function in above):
            return value.__qualname__
        return joined(*_parts(value, (*above, value)))
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, np.ufunc) and getattr(np, value.__name__, None) is value:  # NumPy 1's name no module
        return f"numpy.{value.__name__}"
    home = str(getattr(value, "__module__", ""))
    if callable(value) and home.split(".")[0] in _LIBRARIES:
        return f"{home}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    raise _NoKeyError


def _parts(function: FunctionType, above: tuple[Any, ...]) -> Iterator[str]:
    """All that a function is made of."""
    yield _told(function.__code__, above)
    yield _told(function.__defaults__ or (), above)
    for cell in function.__closure__ or ():
        yield _told(cell.cell_contents, above)
    names = _names(function.__code__)
    for name in names:
        value = function.__globals__.get(name)
        if not isinstance(value, ModuleType):
            yield f"{name} {_told(value, above)}"
            continue
        read = [(own, getattr(value, own)) for own in names if own != name and hasattr(value, own)]
        yield f"{name} {value.__name__} {[(own, _told(found, above)) for own, found in read]}"


def _names(code: CodeType) -> list[str]:
    """Names of globals and attributes in a function and those inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(_names(constant))
    return sorted(names)

"""Files written by torch.save, read without running anything in them.

torch.load(weights_only=True) builds tensors, containers and numbers, and refuses every other name that a file asks
for. Names that inputs are known to use are given harmless classes of this module for the time of the load: they keep
what the file says, whatever library wrote it, and that library is not needed.
"""

from __future__ import annotations

import pickle
import threading
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.graph.inputs.scratch import Scratch
from fastsample_dist.graph.npy_files import NpyWriter, map_array, open_npy, row_chunks

# What torch.load raises for files that are not sound, or that ask for more than they may.
_FAILURES = (
    *(pickle.UnpicklingError, RuntimeError, ValueError, EOFError),
    *(KeyError, TypeError, AttributeError, IndexError, AssertionError),
)
READ_BYTES = 1 << 24  # of a file of which only shapes are wanted
_lock = threading.Lock()  # torch keeps one list of allowed names per process


class Record:
    """Stands for an object of a class that is not loaded: its arguments and its state as plain values."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Record:
        """Any arguments will do."""
        made = super().__new__(cls)
        made.args, made.state = args, {}
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


def stand_in(path: str) -> type[Record]:
    """A class that torch.load takes for the one at a dotted path."""
    module, _, name = path.rpartition(".")
    return type(name, (Record,), {"__module__": module})


class _SavedDtype(Record):
    """Stands for numpy.dtype."""

    def native(self) -> np.dtype:
        """The type; with the byte order of the state."""
        dtype = np.dtype(self.args[0])
        if dtype.kind not in "biufc":
            raise ValueError(f"an array of type {dtype}; expected numbers")
        return dtype.newbyteorder(self.state[1]) if self.state else dtype


class _SavedArray(Record):
    """Stands for numpy.ndarray."""

    def array(self) -> np.ndarray:
        """The array that the state describes."""
        _, shape, dtype, fortran, data = self.state
        return np.frombuffer(data, dtype=dtype.native()).reshape(shape, order="F" if fortran else "C")


def _reconstruct(*args: Any) -> _SavedArray:
    return _SavedArray()


def _encode(text: str, encoding: str) -> bytes:
    assert encoding == "latin1", "what pickle writes for bytes"
    return text.encode("latin1")


def _member(owner: Any, name: str) -> Record:
    """A member of an enumeration, as Python 3.11.0 to 3.11.3 write it: the attribute of its class."""
    if not (isinstance(owner, type) and issubclass(owner, Record)):
        raise pickle.UnpicklingError("unsupported GLOBAL getattr")
    return owner(name)


def _named(source: Any, path: str) -> Any:
    """A class or function made known under a dotted path."""
    module, _, name = path.rpartition(".")
    if isinstance(source, type):
        return type(name, (source,), {"__module__": module})

    def called(*args: Any) -> Any:
        return source(*args)

    called.__module__, called.__name__, called.__qualname__ = module, name, name
    return called


_NUMPY = (
    *(_named(_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    _named(_SavedArray, "numpy.ndarray"),
    _named(_SavedDtype, "numpy.dtype"),
    _SavedArray,
)
_BASICS = (  # torch 2.4 does not know all of these by itself
    _named(_encode, "_codecs.encode"),
    _named(lambda: b"", "builtins.bytes"),
    _named(lambda *args: list(*args), "builtins.set"),
    _named(lambda *args: {}, "collections.defaultdict"),
    dict,  # PyG 2.4 saves a defaultdict(dict)
    _named(_member, "builtins.getattr"),
)


def load_saved(file: Path, stand_ins: Sequence[type[Record]] = ()) -> Any:
    """What torch.save wrote, with tensors mapped where the file allows it and NumPy arrays as arrays.

    Args:
      file: the file.
      stand_ins: classes from `stand_in` that it may name.
    Returns:
      Tensors, arrays, containers, numbers, texts and Records.
    Raises:
      ValueError: the file is missing, damaged, or asks for anything else, by name.
    """
    if not file.is_file():
        raise ValueError(f"{file} is missing; expected a file written by torch.save there.")
    try:
        with _allowed([*_NUMPY, *_BASICS, *stand_ins]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch thinks of the file is in the refusal, if there is one
            loaded = torch.load(str(file), map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        return _with_arrays(loaded)
    except _FAILURES as error:
        raise ValueError(f"{file} {_refusal(error)}") from error


def check_mappable(file: Path) -> None:
    """Refuse a file that `load_saved` does not leave mostly unread: tensors are mapped from zip archives, their
    descriptions and whatever is not a tensor are read.

    Raises:
      ValueError: an older form of torch.save, or more than READ_BYTES besides tensors.
    """
    reason = "is no zip archive"
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            described = sum(item.file_size for item in archive.infolist() if item.filename.endswith("data.pkl"))
        reason = "" if described <= READ_BYTES else f"holds {described} bytes besides its tensors"
    if reason:
        raise ValueError(
            f"{file} {reason}, so its sizes are unknown before it is read; save its tensors by torch.save."
        )


def as_array(
    tensor: Tensor, file: Path | None = None, scratch: Scratch | None = None, name: str = "tensor"
) -> np.ndarray:
    """A tensor as NumPy's array.

    Args:
      tensor: dense; bfloat16, which NumPy does not have, becomes float32.
      file: the file that the tensor was mapped from; its array is then mapped too, so that pages can be dropped.
      scratch: gets the rows of a bfloat16 matrix from a file as float32; None: they are made in memory.
      name: of the tensor in the file.
    Raises:
      ValueError: a sparse tensor.
    """
    if tensor.layout != torch.strided:
        raise ValueError(f"a tensor of layout {tensor.layout}; expected a dense one")
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16 and file is not None and scratch is not None and tensor.ndim == 2 and len(tensor):

        def widen(path: Path) -> None:
            with NpyWriter(path, np.dtype(np.float32), tuple(tensor.shape)) as out:
                for lo, hi in row_chunks(len(tensor), tensor.shape[1] * 4):
                    out.append(tensor[lo:hi].float().numpy())

        return open_npy(scratch.made(f"{file.name}.{name}.float32.npy", [file], widen))
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy()
    array = tensor.numpy()
    offset = _file_offset(array, file) if file is not None and array.size and array.flags.c_contiguous else None
    if offset is None:
        return array
    return map_array(file, array.dtype, array.shape, offset=offset)


@contextmanager
def _allowed(names: Sequence[Any]) -> Iterator[None]:
    """These names only: not those that a library or the user has allowed in this process."""
    with _lock:
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(list(names))
        try:
            yield
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def _with_arrays(value: Any) -> Any:
    """The value with saved arrays turned into arrays, inside containers too."""
    if isinstance(value, _SavedArray):
        return value.array()
    if type(value) is dict:
        return {key: _with_arrays(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_arrays(item) for item in value)
    return value


def _refusal(error: Exception) -> str:
    """What is wrong with a file, from torch's message; where it asked for something by name, that name."""
    message = str(error)
    for mark in ("unsupported GLOBAL ", "GLOBAL "):
        if mark in message:
            name = message.split(mark, 1)[1].split()[0]
            return (
                f"asks for {name}, which safe loading does not run; expected tensors and plain values only; "
                "save it again without that."
            )
    reason = message.split("\n")[0].split(". ")[0].rstrip(".")
    return f"cannot be loaded safely ({reason}); expected tensors and plain values; save it again."


def _file_offset(array: np.ndarray, file: Path) -> int | None:
    """Where in a mapped file an array's memory lies, as the system reports; None where it does not."""
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return None
    address, wanted = array.ctypes.data, str(file.resolve())
    for line in maps.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(None, 5)
        begin, end = (int(part, 16) for part in fields[0].split("-"))
        if begin <= address < end and len(fields) == 6 and fields[5] == wanted:
            return address - begin + int(fields[2], 16)
    return None

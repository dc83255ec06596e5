"""Params: values that the functions of an application read as `par`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

ARRAY_DTYPES = (np.int32, np.int64, np.uint32, np.float32, np.float64)
_HOST_NAMES = ("words", "kinds", "plain")


class Params:
    """Values handed to `next` as `par`, when it runs: another value needs no compilation; made by `params`.

    Attributes:
      kinds: per value (name, kind); kind is "int", "float", or the dtype of an array, such as "int64".
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {name: _value_of(name, value) for name, value in values.items()}
        self.kinds = tuple((name, _kind_of(value)) for name, value in self._values.items())

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"there is no parameter {name!r}; the application has {sorted(values)}.")
        return values[name]

    def words(self, address_of: Callable[[np.ndarray], int] = lambda array: array.ctypes.data) -> np.ndarray:
        """The values as compiled code gets them, int64 [n], in declared order: an int as it is, a float as its double's
        bits, an array as address and length. Keep the Params while the words are used: the arrays are its own.

        Args:
          address_of: where an array is that is read.
        """
        words: list[int] = []
        for value in self._values.values():
            if isinstance(value, np.ndarray):
                words += [address_of(value), value.size]
            else:
                words.append(value if isinstance(value, int) else int(np.float64(value).view(np.int64)))
        return np.array(words, dtype=np.int64)

    def plain(self) -> SimpleNamespace:
        """The values as Python's ints, floats and tuples of them."""
        return SimpleNamespace(
            **{n: tuple(v.tolist()) if isinstance(v, np.ndarray) else v for n, v in self._values.items()}
        )


def params(**values: Any) -> Params:
    """Values that `next` reads as par.<name>: an int of 64 bits, a float (double), or a one-dimensional array or tensor
    of int32, int64, uint32, float32 or float64, of which par.<name>[i] and len(par.<name>) are read. Elements of an
    array are read as int64 or double.
    """
    return Params(values)


def _value_of(name: str, value: Any) -> int | float | np.ndarray:
    """A parameter as int, float or contiguous array."""
    if name in _HOST_NAMES or name.startswith("_"):
        raise ValueError(f"a parameter is named {name!r}; choose a name without a leading _ and not in {_HOST_NAMES}.")
    if isinstance(value, int | np.integer | np.bool_):
        if not -(2**63) <= int(value) < 2**63:
            raise ValueError(f"parameter {name} is {value}; expected an integer of 64 bits.")
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    array = np.array(value.numpy(force=True) if isinstance(value, Tensor) else value, order="C")
    if array.ndim != 1 or array.dtype not in ARRAY_DTYPES:
        raise ValueError(
            f"parameter {name} is {array.dtype} of shape {array.shape}; expected an int, a float, or a one-dimensional "
            "array of int32, int64, uint32, float32 or float64."
        )
    return array


def _kind_of(value: int | float | np.ndarray) -> str:
    return value.dtype.name if isinstance(value, np.ndarray) else type(value).__name__

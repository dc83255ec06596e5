"""Kernels that an earlier process has compiled for this processor: machine code on disk, loaded in place of compiling.

Numba's own cache takes no function that is made in another one, as the kernels of applications are.
"""

from __future__ import annotations

import pickle
import re
from typing import Any

import llvmlite
import numba
from llvmlite import binding
from numba.core.codegen import CPUCodegen
from numba.core.registry import cpu_target

_DECLARED = re.compile(r'^declare [^@]*@"?(?!llvm\.)([^"(]+)', re.MULTILINE)
_ENVIRONMENT = re.compile(r"^[^@\n].*NumbaEnv", re.MULTILINE)  # used; lines that begin with @ are definitions
_loaded: list[Any] = []  # code lives as long as its library


def compiler() -> tuple[object, ...]:
    """Versions of what compiles, and the processor that it compiles for."""
    return numba.__version__, llvmlite.__version__, *_codegen().magic_tuple()


def _codegen() -> CPUCodegen:
    return cpu_target.target_context.codegen()


def label(kernel: Any, key: str) -> Any:
    """The Python function of a kernel, under a name that no other process gives to another one."""
    kernel.__qualname__ = f"{kernel.__qualname__}_{key}"
    return kernel


def packed(kernel: Any) -> bytes:
    """A compiled kernel, a Numba cfunc, as `load` takes it; empty where its code holds what only this process has.

    That is addresses of objects, and Numba's environments, of which code that prints, for one, makes use.
    """
    library = kernel._library
    text = library.get_llvm_str()
    if library.has_dynamic_globals or _ENVIRONMENT.search(text):
        return b""
    return pickle.dumps((kernel._wrapper_name, _DECLARED.findall(text), library.serialize_using_object_code()))


def load(content: bytes) -> int | None:
    """Address of a packed kernel; None where it could not be packed, or calls a function that is not there."""
    if not content:
        return None
    name, called, state = pickle.loads(content)
    generator = _codegen()
    if any(binding.address_of_symbol(function) is None for function in called):
        return None
    _loaded.append(generator.unserialize_library(state))
    return _loaded[-1].get_pointer_to_function(name)

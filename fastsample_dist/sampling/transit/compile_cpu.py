"""Applications compiled for the CPU engine by Numba (extra `[apps]`): block kernels at addresses.

A user's `next`, `step_transits` and `initial` become functions of type FsStepKernel
(csrc/include/fastsample_transit.h), which the engine calls like its own, without the GIL. They give the bits of
plain.py.

As always with Numba: what a function reads from around itself, globals and variables of enclosing functions, is a
constant of the compiled code, with the value of the time of compilation. Values that change belong into `par`.
Compiling takes some five seconds of processor time per application; an application that another instance, graph or
sampler has already been compiled for is found by its functions, the layout and the types of the graph, and what an
earlier process has compiled for this kind of processor in the user's cache directory (app_cache.py).
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from fastsample_dist import __version__
from fastsample_dist.sampling.transit import app_cache
from fastsample_dist.sampling.transit.binding import BoundApp, Layout

if TYPE_CHECKING:
    from fastsample_dist.sampling.transit.numba_kernels import AppTypes

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SPECIFIC = re.compile(r"raised a specific error:\s*\w+: (.*)")
_LITERAL = re.compile(r"Literal\[\w+\]\((.*?)\)")
_PREAMBLE = ("Failed in", "- Resolution failure")
NAMES = ("next", "step_transits", "initial")
_lock = threading.Lock()
_made: list[Any] = []  # compiled kernels live as long as the process, as their addresses do


@dataclass(frozen=True)
class CompiledApp:
    """Addresses of an application's kernels (FsStepKernel); good as long as the process lives.

    Attributes:
      next: picks of a step.
      step_transits, initial: None where the application does not define them.
    """

    next: int
    step_transits: int | None
    initial: int | None


def compile_app(app: BoundApp) -> CompiledApp:
    """Compile an application's functions for its graph's types.

    Raises:
      ImportError: Numba is missing; the message names the extra to install.
      ValueError: a function cannot be compiled; the message names its line and the reason.
    """
    require_numba(type(app.app).__name__)
    weights = app.graph.weights.dtype if app.weighted else None
    functions = (app.next, app.step_transits, app.initial)
    with _lock:
        return _kernels(functions, app.layout, app.graph.indices.dtype, weights)


def require_numba(user: str) -> ModuleType:
    """The module numba.

    Args:
      user: what wants it, for the message.
    Raises:
      ImportError: it is missing, or cannot be loaded.
    """
    try:
        import numba
    except (ImportError, OSError) as error:
        raise ImportError(
            f"{user} is an application of your own, which runs by Numba, and that cannot be imported ({error}); run "
            "`pip install fastsample_dist[apps]`."
        ) from error
    return numba


@functools.cache
def _kernels(
    functions: tuple[Callable | None, ...], layout: Layout, id_type: torch.dtype, weight_type: torch.dtype | None
) -> CompiledApp:
    """Addresses of the kernels of `next`, `step_transits` and `initial`."""
    from fastsample_dist.sampling.transit import numba_kept

    made_by = (__version__, app_cache.digest(*app_cache.LOWERING), numba_kept.compiler())
    key = app_cache.key_of(functions, (layout, id_type, weight_type, made_by))
    addresses = []
    for function, name in zip(functions, NAMES, strict=True):
        own = None if key is None else app_cache.joined(key, name)
        make = functools.partial(_compile, function, name, layout, id_type, weight_type, own)
        addresses.append(None if function is None else _address(own, make))
    return CompiledApp(*addresses)


def _address(key: str | None, make: Callable[[], Any]) -> int:
    """Of a kernel from an earlier process, or of what is made here and kept for later ones."""
    from fastsample_dist.sampling.transit import numba_kept

    made: list[Any] = []

    def content() -> bytes:
        made.append(make())
        return numba_kept.packed(made[0])

    if key is not None:
        kept = app_cache.kept(key, "object", content)
        address = None if made else numba_kept.load(kept)
        if address is not None:
            return address
    kernel = made[0] if made else make()
    _made.append(kernel)
    return kernel.address


def _compile(
    function: Callable, name: str, layout: Layout, id_type: torch.dtype, weight_type: torch.dtype | None,
    key: str | None,
) -> Any:  # fmt: skip
    """The kernel of a function, a Numba cfunc."""
    from fastsample_dist.sampling.transit import numba_kept, numba_kernels

    def named(kernel: Callable) -> Any:
        return numba_kernels.CPU.kernel(kernel if key is None else numba_kept.label(kernel, key))

    app, target = app_types(layout, id_type, weight_type), numba_kernels.Target(numba_kernels.CPU.function, named)
    if name == "next":
        return compiled(function, name, lambda own: numba_kernels.next_kernel(app, own, target))
    return compiled(function, name, lambda own: numba_kernels.single_kernel(app, own, name == "initial", target))


def app_types(layout: Layout, id_type: torch.dtype, weight_type: torch.dtype | None) -> AppTypes:
    """What an application's functions are called with, as Numba types; the same for every target."""
    from numba.core import types

    from fastsample_dist.sampling.transit import numba_kernels
    from fastsample_dist.sampling.transit.numba_rows import RowTraits

    numba_types = {
        torch.int32: types.int32, torch.int64: types.int64, torch.float32: types.float32, torch.float64: types.float64,
    }  # fmt: skip
    traits = RowTraits(
        numba_types[id_type], numba_types.get(weight_type), layout.edge_queries, layout.max_weight, layout.ranked
    )
    return numba_kernels.AppTypes(traits, layout.collective, layout.state, layout.columns, layout.params)


def compiled(function: Callable | None, name: str, compile_kernel: Callable[[Callable], Any]) -> Any:
    """What a function is compiled to; None of None.

    Raises:
      ValueError: it cannot be compiled; the line says where and why.
    """
    if function is None:
        return None
    try:
        return compile_kernel(function)
    except Exception as error:  # Numba's are of many kinds, some without a base of their own
        raise ValueError(explain(error, function, name)) from error


def explain(error: Exception, function: Callable, name: str) -> str:
    """One line on why Numba refuses a function: its file, the line in it, and the reason.

    Args:
      error: what Numba raised; its text has the chain of what it tried, and mentions the lines.
      function, name: what was compiled.
    """
    code, text = function.__code__, _COLOURS.sub("", str(error))
    file, location = Path(code.co_filename).name, getattr(error, "loc", None)
    mentioned = re.findall(rf'{re.escape(file)}(?:", line (\d+)| \((\d+)\))', text)
    line = next((int(one or other) for one, other in mentioned), code.co_firstlineno)
    if location is not None and location.filename == code.co_filename:
        line = location.line
    return f"{file}:{line}: {name} cannot be compiled: {_reason(text)}."


def _reason(text: str) -> str:
    """What Numba's text comes down to."""
    specific = _SPECIFIC.search(text)
    if specific:
        return specific[1].rstrip(".")
    lines = [line.strip() for line in text.splitlines()]
    reason = next((line for line in lines if line and not line.startswith(_PREAMBLE)), text)
    tried = next((line[4:] for line in lines if line.startswith(">>> ")), None)
    if reason.startswith("No implementation of function") and tried:
        reason = f"there is no {tried}"
    if reason.startswith("Untyped global name") and reason.endswith("<class 'function'>"):
        reason += "; decorate that function with numba.njit"
    return _LITERAL.sub(r"\1", reason).removesuffix(" Raised from None").rstrip(".")

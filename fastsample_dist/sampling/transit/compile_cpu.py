"""Applications compiled for the CPU engine by Numba (extra `[apps]`): block kernels at addresses.

A user's `next`, `step_transits` and `initial` become functions of type FsStepKernel
(csrc/include/fastsample_transit.h), which the engine calls like its own, without the GIL. They give the bits of
plain.py.

As always with Numba: what a function reads from around itself, globals and variables of enclosing functions, is a
constant of the compiled code, with the value of the time of compilation. Values that change belong into `par`.
Compiling takes some five seconds of processor time per application and process; an application that another instance,
graph or sampler has already been compiled for is found by its functions, the layout and the types of the graph.
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

from fastsample_dist.sampling.transit.binding import BoundApp, Layout

if TYPE_CHECKING:
    from fastsample_dist.sampling.transit.numba_kernels import AppTypes

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SPECIFIC = re.compile(r"raised a specific error:\s*\w+: (.*)")
_LITERAL = re.compile(r"Literal\[\w+\]\((.*?)\)")
_PREAMBLE = ("Failed in", "- Resolution failure")
_lock = threading.Lock()


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
        kernels = _kernels(functions, app.layout, app.graph.indices.dtype, weights)
    return CompiledApp(*(kernel and kernel.address for kernel in kernels))


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
) -> tuple[Any, ...]:
    """Compiled kernels in the order of the functions; they live as long as the process, as their code does."""
    from fastsample_dist.sampling.transit import numba_kernels

    app = app_types(layout, id_type, weight_type)
    next_function, step_transits, initial = functions
    return (
        compiled(next_function, "next", lambda f: numba_kernels.next_kernel(app, f)),
        compiled(step_transits, "step_transits", lambda f: numba_kernels.single_kernel(app, f, initial=False)),
        compiled(initial, "initial", lambda f: numba_kernels.single_kernel(app, f, initial=True)),
    )


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

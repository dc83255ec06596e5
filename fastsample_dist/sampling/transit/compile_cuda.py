"""Applications compiled for GPUs by numba-cuda (extra `[apps-cuda]`): a cubin of their functions and our kernels.

A user's `next`, `step_transits` and `initial` become functions of type FsStepKernel for a device, as LTO IR; nvJitLink
links them with the kernels that call them (csrc/cuda/app_kernels.cuh), which the build ships as LTO IR as well, so that
a call of `next` is gone in the end. The lowering is that of the CPU (numba_*.py), which numba-cuda takes over as it
stands; floats are not contracted (`-fma=0`), and division is Python's: by zero it raises.

What is compiled and linked stays on disk (app_cache.py). No GPU is needed for any of it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from fastsample_dist import __version__
from fastsample_dist.ops import library
from fastsample_dist.ops.cuda_apps import compiler_version
from fastsample_dist.sampling.transit import app_cache
from fastsample_dist.sampling.transit.binding import BoundApp, Layout
from fastsample_dist.sampling.transit.compile_cpu import NAMES, app_types, compile_app, compiled

KERNELS = library.LIBRARY_DIR / "fastsample_apps.fatbin"
_LINK_OPTIONS = ("-lto", "-O3", "-fma=0")
_lock = threading.Lock()


@dataclass(frozen=True)
class DeviceCode:
    """An application's functions for GPUs of one compute capability.

    Attributes:
      objects: LTO IR by name, of those that there are.
      capability: (major, minor).
      key: what names it in the cache; None: it is not kept there.
    """

    objects: tuple[tuple[str, bytes], ...]
    capability: tuple[int, int]
    key: str | None

    def cubin(self, kernels: Sequence[str]) -> bytes:
        """The functions linked with these kernels (csrc/include/fastsample_cuda.h, fs_cuda_load_app).

        Raises:
          RuntimeError: nvJitLink refuses; the line has its reason.
        """
        with _lock:
            return _cubin(self, tuple(kernels))


def compile_for_device(app: BoundApp, capability: tuple[int, int]) -> DeviceCode:
    """Compile an application's functions for its graph's types.

    Args:
      capability: of the GPU, (major, minor).
    Raises:
      ImportError: a part of the toolchain is missing, or too old; the message says which, and what to do.
      ValueError: a function cannot be compiled; the message names its line and the reason.
    """
    require_toolchain(type(app.app).__name__)
    weights = app.graph.weights.dtype if app.weighted else None
    functions, types = (app.next, app.step_transits, app.initial), (app.graph.indices.dtype, weights)
    made_by = (__version__, _versions(), app_cache.digest(KERNELS, *app_cache.LOWERING), capability)
    key = app_cache.key_of(functions, (app.layout, types, made_by))
    objects = []
    for name, function in zip(NAMES, functions, strict=True):
        if function is not None:
            make = functools.partial(_object, function, name, app.layout, *types, capability)
            objects.append((name, _made(app, None if key is None else app_cache.joined(key, name), make)))
    return DeviceCode(tuple(objects), capability, key)


def _made(app: BoundApp, key: str | None, make: Callable[[], bytes]) -> bytes:
    """A function's LTO IR. What the CPU's Numba refuses too is refused in its words, which know the line."""
    try:
        with _lock:
            return app_cache.kept(key, "ltoir", make)
    except ValueError:
        compile_app(app)
        raise


def require_toolchain(user: str) -> None:
    """Refuse, in a line, a toolchain that is not whole.

    Args:
      user: what wants it, for the message.
    Raises:
      ImportError: packages or the kernels are missing, or nvJitLink is older than what it is to link.
    """
    try:
        import numba_cuda  # noqa: F401
        from cuda.bindings import nvjitlink, nvvm

        linker = nvjitlink.version()
        nvvm.version()
    except Exception as error:  # a library that is not there has an error of its own kind
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ImportError(
            f"{user} is an application of your own, which runs on a GPU by numba-cuda and nvJitLink, and these cannot "
            f"be loaded ({reason}); run `pip install fastsample_dist[apps-cuda]`."
        ) from error
    if not KERNELS.exists():
        raise ImportError(
            f"{KERNELS.name} is not in {KERNELS.parent}; install the CUDA toolkit (nvcc) and run `pip install "
            "--no-build-isolation -e .` again."
        )
    for name, version in (("nvcc, which made the kernels,", compiler_version()), ("NVVM", _nvvm_version())):
        if version is not None and linker < version:
            raise ImportError(
                f"nvJitLink is {_dotted(linker)}, older than {name} of version {_dotted(version)}; run `pip install -U "
                "nvidia-nvjitlink`."
            )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _nvvm_version() -> tuple[int, int] | None:
    """That of the package; None: NVVM is the toolkit's, as nvcc is."""
    try:
        major, minor = importlib.metadata.version("nvidia-nvvm").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return None
    return int(major), int(minor)


def _versions() -> tuple[str, ...]:
    """Versions of what compiles and links."""
    from cuda.bindings import nvjitlink

    packages = [importlib.metadata.version(name) for name in ("numba", "numba-cuda", "llvmlite")]
    return (*packages, str(_nvvm_version()), str(nvjitlink.version()))


# ---- functions ----


def _object(
    function: Callable, name: str, layout: Layout, id_type: torch.dtype, weight_type: torch.dtype | None,
    capability: tuple[int, int],
) -> bytes:  # fmt: skip
    """LTO IR of one function."""
    return code_library(function, name, layout, id_type, weight_type, capability).get_ltoir(cc=capability)


def code_library(
    function: Callable, name: str, layout: Layout, id_type: torch.dtype, weight_type: torch.dtype | None,
    capability: tuple[int, int],
) -> Any:  # fmt: skip
    """What numba-cuda makes of one function: the code library of fs_app_<name>."""
    from numba.cuda.core.compiler_lock import global_compiler_lock

    from fastsample_dist.sampling.transit import numba_kernels

    app = app_types(layout, id_type, weight_type)
    target = numba_kernels.Target(
        _compiled_by_numba_cuda, lambda kernel: _compiled_by_numba_cuda(kernel, None, f"fs_app_{name}").library
    )

    def compile_kernel(own: Callable) -> Any:
        if name == "next":
            return numba_kernels.slot_kernel(app, own, target)
        return numba_kernels.single_kernel(app, own, name == "initial", target)

    with global_compiler_lock, _compiling_for(capability):
        return compiled(function, name, compile_kernel)


def _compiled_by_numba_cuda(
    function: Callable, arguments: tuple | None, symbol: str | None = None, returned: Any = None
) -> Any:
    """A device function; with a symbol one of C, of type FsStepKernel.

    numba.cuda.compile would do, but for its division, which is NumPy's: by zero it does not raise.
    """
    from numba.cuda import compiler, utils
    from numba.cuda.core.callconv import CUDACABICallConv, CUDACallConv
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.flags import CUDAFlags

    from fastsample_dist.sampling.transit.numba_kernels import KERNEL

    flags, context = CUDAFlags(), cuda_target.target_context
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.lto = flags.forceinline = True
    flags.error_model, flags.nvvm_options = "python", {"opt": 3}
    if symbol is not None:
        arguments, returned = KERNEL.args, KERNEL.return_type
    with utils.numba_target_override():
        made = compiler.compile_extra(
            cuda_target.typing_context, context, function, arguments, returned, flags, {},
            call_conv=CUDACallConv(context) if symbol is None else CUDACABICallConv(context),
            abi_info={} if symbol is None else {"abi_name": symbol},
        )  # fmt: skip
    made.library.finalize()
    return made


@contextlib.contextmanager
def _compiling_for(capability: tuple[int, int]) -> Iterator[None]:
    """While it is open, what a function calls is compiled as itself: for this capability, whatever GPU there is, and
    with Python's division. numba-cuda asks the GPU, and has no option for the other. For who holds its lock.
    """
    from numba.cuda import dispatcher

    replaced = {
        "get_current_device": lambda: SimpleNamespace(compute_capability=capability),
        "compile_cuda": lambda function, returned, arguments, **_: _compiled_by_numba_cuda(
            function, arguments, None, returned
        ),
    }
    before = {name: getattr(dispatcher, name) for name in replaced}
    for name, value in replaced.items():
        setattr(dispatcher, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(dispatcher, name, value)


# ---- linking ----


@functools.cache
def _cubin(code: DeviceCode, kernels: tuple[str, ...]) -> bytes:
    key = None if code.key is None else app_cache.joined(code.key, *kernels)
    return app_cache.kept(key, "cubin", lambda: _link(code, kernels))


def _link(code: DeviceCode, kernels: Sequence[str]) -> bytes:
    from cuda.bindings import nvjitlink

    kinds = nvjitlink.InputType
    architecture = "".join(map(str, code.capability))
    options = [f"-arch=sm_{architecture}", *_LINK_OPTIONS, *(f"-kernels-used={kernel}" for kernel in kernels)]
    parts = [(kinds.FATBIN, KERNELS.name, KERNELS.read_bytes())]
    parts += [(kinds.LTOIR, name, content) for name, content in code.objects]
    handle = nvjitlink.create(len(options), options)
    try:
        for kind, name, content in parts:
            nvjitlink.add_data(handle, kind, content, len(content), name)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
    except nvjitlink.nvJitLinkError as error:
        raise RuntimeError(f"nvJitLink {_dotted(nvjitlink.version())} cannot link: {_log(handle) or error}") from error
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin)


def _log(handle: int) -> str:
    """nvJitLink's reasons, in one line."""
    from cuda.bindings import nvjitlink

    log = bytearray(nvjitlink.get_error_log_size(handle))
    nvjitlink.get_error_log(handle, log)
    return " ".join(log.decode(errors="replace").strip("\0").split())

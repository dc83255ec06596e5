"""Applications compiled for GPUs: the code, run here by the emulator, against plain Python; cubins, by the tools that
read them; the cache; what is refused. Needs the extra apps-cuda, no GPU.
"""

import importlib.util
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from fastsample_dist.sampling import transit
from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import app_cache, binding, compile_cuda, device_functions, plain
from fastsample_dist.sampling.transit.compile_cuda import compile_for_device
from fastsample_dist.sampling.transit.device_apps import DeviceAppEngine
from fastsample_dist.sampling.transit.engine import Run
from fastsample_dist.testing import conformance_graph
from tests.grids import grid

from . import refused_apps
from .apps import Own, small_graph
from .device_code import compile_as_for_a_gpu
from .test_compile_cpu import APPS, case, large_graph
from .test_device_apps import Failing, bound_case
from .test_device_collective_apps import CASES, assert_equals_the_oracle, drawn_roots

pytest.importorskip("numba")
KEY = DrawKey(3, 2**33 + 5)
MISSING = [name for name in ("numba_cuda", "cuda.bindings") if importlib.util.find_spec(name.split(".")[0]) is None]
toolchain = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (extra apps-cuda)")
kernels = pytest.mark.skipif(not compile_cuda.KERNELS.exists(), reason=f"not built: {compile_cuda.KERNELS.name}")


class Floats(Own):
    """Products and sums that a compiler would like to fuse, and a helper's division."""

    par = transit.params(scale=0.1, offsets=np.array([0.3, 0.7, 1e-3]))

    def next(s, transits, edges, step, draw, par):
        value = 1.0
        for i in range(len(par.offsets)):
            value = value * (draw.word() * par.scale) + par.offsets[i]
            value = value * par.scale + 1.0 / value
        return int(value * 1e6) % 64


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return app_cache.directory()


@toolchain
@pytest.mark.parametrize(("name", "dtype"), [
    ("every", torch.int32), ("stateful", torch.int64), ("surroundings", torch.int32),
    *(pytest.param(name, dtype, marks=pytest.mark.grid)
      for name in ("draws", "distinct", "wandering", "node2vec") for dtype in (torch.int32, torch.int64)),
])  # fmt: skip
def test_the_code_for_a_gpu_gives_the_oracles_samples(emulated_device, monkeypatch, name, dtype):
    monkeypatch.setattr(device_functions, "compile_app", compile_as_for_a_gpu)
    bound, roots, ids = bound_case(name, dtype)
    expected, engine = plain.run(bound, roots, ids, KEY), DeviceAppEngine(bound, torch.device("cpu"))
    for schedule in ("sample", "transit"):
        assert torch.equal(engine.sample(roots, ids, KEY, Run(schedule=schedule)).vertices, expected.vertices)


@toolchain
@pytest.mark.parametrize(
    "name", grid([*CASES, "every together"], gate=["by weight, distinct, within", "by column itself"])
)
def test_the_code_of_a_collective_application_gives_the_oracles_samples(emulated_device, monkeypatch, name):
    monkeypatch.setattr(device_functions, "compile_app", compile_as_for_a_gpu)
    app, graph = (APPS[name][0], conformance_graph(12)) if name in APPS else (CASES[name], small_graph())
    roots = drawn_roots(graph.num_nodes, 9)
    assert_equals_the_oracle(binding.bind(app, graph), torch.device("cpu"), *roots)


@toolchain
def test_the_code_for_a_gpu_raises_and_rounds_as_python(emulated_device, monkeypatch):
    monkeypatch.setattr(device_functions, "compile_app", compile_as_for_a_gpu)
    roots, ids, cpu = torch.full((12, 1), 6), torch.arange(12), torch.device("cpu")
    bound = binding.bind(Failing(), small_graph())
    with pytest.raises(RuntimeError, match=r"next raised ZeroDivisionError .* in sample 7 at step 1"):
        DeviceAppEngine(bound, cpu).sample(roots, ids, KEY, Run())
    bound = binding.bind(Floats(), large_graph(torch.int32))
    found = DeviceAppEngine(bound, cpu).sample(roots, ids, KEY, Run())
    assert torch.equal(found.vertices, plain.run(bound, roots, ids, KEY).vertices)


def disassembled(cubin, tmp_path) -> str:
    """SASS; skips where there is no nvdisasm."""
    tool = shutil.which("nvdisasm")
    if tool is None:
        pytest.skip("nvdisasm is not installed")
    (tmp_path / "app.cubin").write_bytes(cubin)
    return subprocess.run([tool, "-c", tmp_path / "app.cubin"], capture_output=True, text=True, check=True).stdout


@toolchain
@kernels
@pytest.mark.parametrize(("app", "kernel", "others"), [
    (Floats(), b"fs_app_walk", b"fs_app_make_picks"),
    (CASES["by weight, distinct, within"], b"fs_app_fill_slots", b"fs_app_walk"),
], ids=["individual", "collective"])  # fmt: skip
def test_a_cubin_has_the_kernel_that_it_was_linked_for_and_no_call_of_next(tmp_path, app, kernel, others):
    code = compile_for_device(binding.bind(app, large_graph(torch.int32)), (9, 0))
    cubin = code.cubin((kernel.decode(),))
    assert cubin.startswith(b"\x7fELF") and kernel in cubin and others not in cubin
    sass = disassembled(cubin, tmp_path)
    called = set(re.findall(r"\bCALL\.\S+\s+(.*?);", sass))
    assert "EXIT" in sass and all("$__internal_" in name for name in called)  # division in 64 bits, by ptxas
    assert "fs_app_next" not in sass


@toolchain
@kernels
def test_nothing_is_fused(tmp_path, monkeypatch):
    class Products(Own):
        def next(s, transits, edges, step, draw, par):
            return int(draw.word() * 0.1 + 0.3 * draw.index)

    bound = binding.bind(Products(), small_graph())
    code = compile_for_device(bound, (9, 0))
    sass = disassembled(code.cubin(("fs_app_walk",)), tmp_path)
    assert "DMUL" in sass and "DFMA" not in sass and "FFMA" not in sass
    monkeypatch.setattr(compile_cuda, "_LINK_OPTIONS", ("-lto", "-O3"))  # so the option is what does it
    assert "DFMA" in disassembled(code.cubin(("fs_app_walk", "fs_app_make_picks")), tmp_path)


def own_app(distance):
    class Distant(Own):
        def next(s, transits, edges, step, draw, par):
            return transit.NULL if len(edges) < distance else edges.pick(draw)

    return Distant()


@toolchain
@kernels
def test_what_was_compiled_and_linked_is_read_from_the_cache(cache, monkeypatch):
    graph, made = small_graph(), []
    names = {"_object": compile_cuda._object, "_link": compile_cuda._link}
    for name, make in names.items():
        monkeypatch.setattr(compile_cuda, name, lambda *given, make=make, name=name: made.append(name) or make(*given))
    first = compile_for_device(binding.bind(own_app(2), graph), (9, 0))
    cubin = first.cubin(("fs_app_walk",))
    assert made == ["_object", "_link"] and len(list(cache.iterdir())) == 2
    compile_cuda._cubin.cache_clear()  # as another process begins
    assert compile_for_device(binding.bind(own_app(2), graph), (9, 0)).cubin(("fs_app_walk",)) == cubin
    assert made == ["_object", "_link"]
    compile_for_device(binding.bind(own_app(3), graph), (9, 0))  # another variable of the enclosing function
    assert made == ["_object", "_link", "_object"]
    assert compile_for_device(binding.bind(own_app(2), graph), (8, 0)).key != first.key
    first.cubin(("fs_app_make_picks",))
    assert made[3:] == ["_object", "_link"]


@toolchain
@kernels
@pytest.mark.parametrize(("line", "function", "reason"), refused_apps.cases()[1:7:2], ids=lambda value: str(value)[:20])
def test_a_function_that_cannot_be_compiled_is_refused_with_line_and_reason(line, function, reason):
    bound = binding.bind(type("Refused", (Own,), {"next": function})(), large_graph(torch.int32))
    with pytest.raises(ValueError) as refused:
        compile_for_device(bound, (9, 0))
    assert str(refused.value).startswith(f"refused_apps.py:{line}: next cannot be compiled: ")
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_without_the_toolchain_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba_cuda", None)
    with pytest.raises(ImportError, match=r"Own .*`pip install fastsample_dist\[apps-cuda\]`") as refused:
        compile_for_device(case("own", torch.int32)[0], (9, 0))
    assert "\n" not in str(refused.value)


@toolchain
def test_without_the_kernels_the_remedy_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(compile_cuda, "KERNELS", tmp_path / "none.fatbin")
    with pytest.raises(ImportError, match=r"^none.fatbin is not in .*; install the CUDA toolkit \(nvcc\) and run"):
        compile_for_device(case("own", torch.int32)[0], (9, 0))


@toolchain
@kernels
def test_an_older_linker_is_refused_with_both_versions(monkeypatch):
    bound = case("own", torch.int32)[0]
    monkeypatch.setattr(compile_cuda, "compiler_version", lambda: (99, 1))
    with pytest.raises(ImportError, match=r"^nvJitLink is \d+\.\d+, older than nvcc, which made .* version 99\.1; run"):
        compile_for_device(bound, (9, 0))
    monkeypatch.setattr(compile_cuda, "compiler_version", lambda: (1, 0))
    monkeypatch.setattr(compile_cuda, "_nvvm_version", lambda: (98, 2))
    with pytest.raises(ImportError, match=r"^nvJitLink is \d+\.\d+, older than NVVM of version 98\.2; run"):
        compile_for_device(bound, (9, 0))


@toolchain
@kernels
def test_what_cannot_be_linked_is_reported_in_one_line():
    code = compile_cuda.DeviceCode((("next", b"nothing that nvJitLink knows"),), (9, 0), None)
    with pytest.raises(RuntimeError, match=r"^nvJitLink \d+\.\d+ cannot link: ") as refused:
        code.cubin(("fs_app_walk",))
    assert "\n" not in str(refused.value)

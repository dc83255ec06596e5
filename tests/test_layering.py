"""The order of the house: left never imports right.

    csrc/core -> csrc/{cpu,cuda} -> ops, device -> graph, comm -> sampling, features -> pipeline -> train
      -> verify, doctor, bench, examples

`files`, `memory_sizes`, `interrupts`, `command` and `page` are below all of them, `entry` above. No module imports one
that imports it, be it through others, inside a function or for types only.

Python imports are read from the syntax tree, those inside functions and `importlib.import_module("name")` included;
C++ ones from the #include lines. `violations` and `find_circle` are the checkers, tested on made-up trees first.
"""

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "fastsample_dist"
LOWEST = {
    "files",
    "memory_sizes",
    "interrupts",
    "command",
    "page",
    "progress",
}  # any room but launch, which knows nobody, may use them
ENTRY = "entry"  # starts the commands: it loads their rooms when Ctrl-C is already answered in one line
PUBLIC = (
    "the public names"  # `import fastsample_dist`, `from fastsample_dist import CSCGraph`: any room may be behind them
)

BELOW_GRAPH = {"ops", "device"}
BELOW_SAMPLING = BELOW_GRAPH | {"graph", "comm"}
BELOW_TRAIN = BELOW_SAMPLING | {"sampling", "features", "pipeline"}
# What a room may import besides itself.
ROOMS = {
    "ops": set(),
    "device": {"ops"},
    "graph": BELOW_GRAPH,
    "comm": BELOW_GRAPH,
    "sampling": BELOW_SAMPLING,
    "features": BELOW_SAMPLING,
    "pipeline": BELOW_SAMPLING | {"sampling", "features"},
    "train": BELOW_TRAIN,
    "verify": BELOW_TRAIN | {"train", "testing"},
    "doctor": BELOW_TRAIN | {"train", "testing", "partition"},
    "bench": BELOW_TRAIN | {"train", "interop", "testing", PUBLIC},
    "interop": BELOW_SAMPLING | {"sampling"},
    "testing": BELOW_SAMPLING | {"sampling"},
    "partition": {"ops", "graph"},
    "launch": set(),
    "examples": BELOW_TRAIN | {"train", "interop", ENTRY, PUBLIC},
    "__init__": set(),  # when it is loaded
    **{room: LOWEST for room in LOWEST},
    ENTRY: {"partition", "launch", "train", "verify", "doctor", "bench"},
}
TOP_LEVEL = ("partition", "launch", "examples")
MOVED_IN = ("partition", "launch")  # directories of the checkout that are installed inside the package
# The one file that imports each of these (of a package in a package, the longer name), or those of LOADED_ON_USE.
HOMES = {
    "dgl": "fastsample_dist/interop/dgl.py",
    "torch_geometric": "fastsample_dist/interop/pyg.py",
    "pylibcugraph": "fastsample_dist/interop/cugraph.py",
    "cupy": "fastsample_dist/interop/cugraph.py",
    "yaml": "fastsample_dist/graph/inputs/graphbolt.py",
    "pymetis": "partition/methods/metis.py",
    "kaminpar": "partition/methods/kaminpar_process.py",
    "mpi4py": "fastsample_dist/comm/mpi.py",
    "ogb": "fastsample_dist/graph/inputs/ogb.py",
    "pyarrow": "fastsample_dist/graph/inputs/parquet_edges.py",
    "numba": "fastsample_dist/sampling/transit/compile_cpu.py",
    "numba.cuda": "fastsample_dist/sampling/transit/compile_cuda.py",
    "numba_cuda": "fastsample_dist/sampling/transit/compile_cuda.py",
    "cuda": "fastsample_dist/sampling/transit/compile_cuda.py",
    "llvmlite": "fastsample_dist/sampling/transit/numba_types.py",
}
# Modules that import a package when they are loaded, since what they define is made of it; the home of that package
# loads them, on use, and nobody else does.
LOADED_ON_USE = {
    f"fastsample_dist/sampling/transit/numba_{name}.py": {"numba", "llvmlite"}
    for name in ("types", "draws", "lanes", "slots", "rows", "sample", "kernels", "kept")
}
ON_USE = [path.removesuffix(".py").replace("/", ".") for path in LOADED_ON_USE]
SHOWN = {"verify", "doctor", "bench"}  # rooms of commands that print tables
ON_LOAD = {"torch", "numpy"}  # what the other modules may import when they are loaded
OPTIONAL = [*HOMES, "psutil", "rich"]

C_ROOMS = {
    "include": {"include"},
    "core": {"include", "core"},
    "cpu": {"include", "core", "cpu"},
    "cuda": {"include", "core", "cuda"},
    "bench": {"include", "core", "cpu", "cuda", "bench"},
    "tests": {"include", "bench", "tests"},
}
C_SEARCH = (".", "include", "core", "cpu", "cuda", "bench")
FOREIGN_HEADER = re.compile(r"^(torch|ATen|c10|caffe2|pybind11|nanobind|numpy|dgl)/|^Python\.h$")
CUDA_HEADER = re.compile(r"^(cuda|cub/|cooperative_groups|thrust/)")
INCLUDE_LINE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


@dataclass(frozen=True)
class Import:
    """One imported name: dotted path, source line, and whether loading the module runs the import."""

    target: str
    line: int
    on_load: bool


def guards_types(node: ast.AST) -> bool:
    """Whether the node is `if TYPE_CHECKING:`, which never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imported_names(node: ast.AST, module: str, is_package: bool) -> list[str]:
    """Dotted paths that one statement or call imports; [] for anything else."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = module.split(".")
            parents = parents[: len(parents) - node.level + is_package]
            base = ".".join([*parents, *([base] if base else [])])
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
        return [node.args[0].value] if node.args and isinstance(node.args[0], ast.Constant) else []
    return []


def find_imports(node: ast.AST, module: str, is_package: bool, on_load: bool = True) -> Iterator[Import]:
    """Every import below `node`, functions included."""
    for child in ast.iter_child_nodes(node):
        for target in imported_names(child, module, is_package):
            yield Import(target, child.lineno, on_load)
        deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or guards_types(child)
        yield from find_imports(child, module, is_package, on_load and not deferred)


def room_of(target: str) -> str | None:
    """The room that a dotted path leads to; None for a path that leads outside or to the version."""
    parts = target.split(".")
    if parts[0] in TOP_LEVEL:
        return parts[0]
    if parts[0] != PACKAGE or parts[1:] == ["__version__"]:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else PUBLIC


def home_of(target: str) -> str:
    """The name of HOMES that a dotted path falls under, the longest one; its first part where there is none."""
    names = [name for name in HOMES if f"{target}.".startswith(f"{name}.")]
    return max(names, key=len, default=target.split(".")[0])


def python_violations(root: Path, path: Path) -> Iterator[str]:
    """What one Python file imports and should not, one line each."""
    relative = path.relative_to(root)
    is_package = path.name == "__init__.py"
    names = list((relative.parent if is_package else relative.with_suffix("")).parts)
    room = names[0] if names[0] in TOP_LEVEL else [*names, "__init__"][1]
    if path.name == "__main__.py" and names[0] == PACKAGE:
        room = ENTRY
    if room not in ROOMS:
        yield f"{relative}: {room} is not in this test's table of rooms; say what it may import"
        return
    for found in find_imports(ast.parse(path.read_text()), ".".join(names), is_package):
        place, top, target = f"{relative}:{found.line}", found.target.split(".")[0], room_of(found.target)
        foreign = target is None and top != PACKAGE and top not in sys.stdlib_module_names
        is_public = room == "__init__" and not found.on_load
        if target is not None and not is_public and target not in {room} | LOWEST | ROOMS[room]:
            yield f"{place}: {room} imports {target} ({found.target})"
        if top in MOVED_IN:
            yield f"{place}: imports {top}, which is not installed under that name; write {PACKAGE}.{top}"
        if room == "launch" and top not in sys.stdlib_module_names and target != "launch":
            yield f"{place}: launch imports {top}; expected the standard library only"
        loads = LOADED_ON_USE.get(relative.as_posix(), set())
        owned = home_of(found.target)
        if owned in HOMES and HOMES[owned] != relative.as_posix() and owned not in loads:
            yield f"{place}: {owned} is imported; only {HOMES[owned]} may"
        loaded = any(f"{found.target}.".startswith(f"{module}.") for module in ON_USE)
        if loaded and found.on_load and not loads:
            yield f"{place}: loading the module imports {found.target}; import it where it is used"
        if foreign and found.on_load and names[0] == PACKAGE and room not in SHOWN and top not in ON_LOAD | loads:
            yield f"{place}: loading the module imports {top}; import it where it is used"


def header_violations(root: Path, path: Path) -> Iterator[str]:
    """What one C++ or CUDA file includes and should not, one line each."""
    csrc, text = root / "csrc", path.read_text()
    room = path.relative_to(csrc).parts[0]
    for match in INCLUDE_LINE.finditer(text):
        quoted, header = match[1] == '"', match[2]
        place = f"{path.relative_to(root)}:{text[: match.start()].count(chr(10)) + 1}"
        if FOREIGN_HEADER.search(header):
            yield f"{place}: includes {header}; csrc knows neither torch nor Python"
        elif not quoted and CUDA_HEADER.search(header) and room not in ("cuda", "core"):
            yield f"{place}: includes {header} outside csrc/cuda"
        elif quoted:
            candidates = [path.parent / header, *(csrc / name / header for name in C_SEARCH)]
            owner = next((c.resolve().relative_to(csrc.resolve()).parts[0] for c in candidates if c.exists()), None)
            if owner is None:
                yield f"{place}: includes {header}, which is not in csrc"
            elif owner not in C_ROOMS[room]:
                yield f"{place}: csrc/{room} includes csrc/{owner} ({header})"


def violations(root: Path) -> list[str]:
    """Every import and #include under `root` that breaks the order."""
    found = []
    for directory in (PACKAGE, *TOP_LEVEL):
        for path in sorted((root / directory).rglob("*.py")):
            found += python_violations(root, path)
    for path in sorted((root / "csrc").rglob("*")):
        if path.suffix in (".h", ".cuh", ".cpp", ".cu"):
            found += header_violations(root, path)
    return found


def modules_of(root: Path) -> dict[str, Path]:
    """Every module of the installed package by its dotted name."""
    modules = {}
    for directory in (PACKAGE, *MOVED_IN):
        for path in sorted((root / directory).rglob("*.py")):
            relative = path.relative_to(root)
            names = (relative.parent if path.name == "__init__.py" else relative.with_suffix("")).parts
            modules[".".join(names if names[0] == PACKAGE else (PACKAGE, *names))] = path
    return modules


def find_circle(root: Path) -> list[str]:
    """Modules that import each other in a circle, the first one again at the end; [] where there is none."""
    modules = modules_of(root)
    imports: dict[str, set[str]] = {}
    for module, path in modules.items():
        imports[module] = set()
        for found in find_imports(ast.parse(path.read_text()), module, path.name == "__init__.py"):
            target = found.target
            while target and target not in modules:  # the name of something in a module
                target = target.rpartition(".")[0]
            imports[module] |= {target} - {"", PACKAGE}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def run_python(code: str) -> dict:
    """What a fresh interpreter prints as JSON after running `code`."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(run.stdout.splitlines()[-1])


BAD_PYTHON = [
    ("fastsample_dist/ops/a.py", "import fastsample_dist.graph.csc", "ops imports graph"),
    ("fastsample_dist/graph/a.py", "from fastsample_dist import comm", "graph imports comm"),
    ("fastsample_dist/comm/a.py", "from fastsample_dist.graph import csc", "comm imports graph"),
    (
        "fastsample_dist/sampling/a.py",
        "def f():\n    from fastsample_dist.features.dist import DistFeatures",
        "sampling imports features",
    ),
    ("fastsample_dist/features/a.py", "from ..sampling.mfg import MFG", "features imports sampling"),
    ("fastsample_dist/sampling/__init__.py", "from ..pipeline import x", "sampling imports pipeline"),
    ("fastsample_dist/pipeline/a.py", "import fastsample_dist.train.models", "pipeline imports train"),
    ("fastsample_dist/train/a.py", "from fastsample_dist import DistLoader", "train imports the public names"),
    ("fastsample_dist/train/b.py", "import fastsample_dist as fsd", "train imports the public names"),
    ("fastsample_dist/testing/a.py", "import fastsample_dist.features.dist", "testing imports features"),
    ("fastsample_dist/interop/a.py", "import fastsample_dist.pipeline.data", "interop imports pipeline"),
    ("fastsample_dist/ops/b.py", "importlib.import_module('fastsample_dist.bench')", "ops imports bench"),
    ("fastsample_dist/graph/b.py", "import fastsample_dist.partition.methods", "graph imports partition"),
    ("fastsample_dist/new_room/a.py", "import os", "new_room is not in this test's table"),
    ("partition/a.py", "from fastsample_dist.comm.base import Communicator", "partition imports comm"),
    ("partition/c.py", "from partition.build import PartitionOptions", "write fastsample_dist.partition"),
    ("launch/a.py", "import torch", "launch imports torch"),
    ("launch/c.py", "from fastsample_dist.files import write_text", "launch imports fastsample_dist"),
    ("fastsample_dist/files.py", "from fastsample_dist.graph import csc", "files imports graph"),
    ("fastsample_dist/device/a.py", "from fastsample_dist.graph import csc", "device imports graph"),
    ("fastsample_dist/bench/a.py", "import fastsample_dist.partition.cli", "bench imports partition"),
    ("launch/b.py", "from fastsample_dist import __version__", "launch imports fastsample_dist"),
    ("fastsample_dist/train/c.py", "def f():\n    import dgl.nn", "only fastsample_dist/interop/dgl.py may"),
    (
        "partition/b.py",
        "try:\n    import pymetis\nexcept ImportError:\n    raise",
        "only partition/methods/metis.py may",
    ),
    ("fastsample_dist/comm/context.py", "from mpi4py import MPI", "only fastsample_dist/comm/mpi.py may"),
    ("fastsample_dist/comm/mpi.py", "from mpi4py import MPI", "loading the module imports mpi4py"),
    ("fastsample_dist/sampling/transit/app.py", "def f():\n    import numba", "only fastsample_dist/sampling/transit/"),
    (
        "fastsample_dist/sampling/transit/numba_rows.py",
        "def f():\n    from numba.cuda import compiler",
        "only fastsample_dist/sampling/transit/compile_cuda.py",
    ),
    (
        "fastsample_dist/ops/c.py",
        "def f():\n    import cuda.bindings.nvjitlink",
        "only fastsample_dist/sampling/transit/",
    ),
    (
        "fastsample_dist/sampling/transit/app.py",
        "from fastsample_dist.sampling.transit.numba_rows import RowType",
        "import it where it is used",
    ),
    ("fastsample_dist/train/d.py", "import rich", "loading the module imports rich"),
    ("fastsample_dist/__init__.py", "from fastsample_dist.graph.csc import CSCGraph", "__init__ imports graph"),
]
BAD_HEADERS = [
    ("csrc/core/a.h", '#include "cpu/status.h"', "core includes csrc/cpu"),
    ("csrc/core/b.h", '#include "status.h"', "core includes csrc/cpu"),
    ("csrc/cuda/a.cu", '#include "../cpu/status.h"', "cuda includes csrc/cpu"),
    ("csrc/cpu/a.cpp", "#include <torch/torch.h>", "neither torch nor Python"),
    ("csrc/cuda/b.cu", "  # include <Python.h>", "neither torch nor Python"),
    ("csrc/cpu/b.cpp", "#include <cuda_runtime.h>", "outside csrc/cuda"),
    ("csrc/cpu/c.cpp", '#include "missing.h"', "not in csrc"),
]
GOOD = {
    "fastsample_dist/__init__.py": "if TYPE_CHECKING:\n    from fastsample_dist.graph.csc import CSCGraph as CSCGraph",
    "fastsample_dist/train/good.py": "from fastsample_dist import ops, __version__\nimport torch.nn as nn\nimport os",
    "fastsample_dist/comm/mpi.py": "def load():\n    from mpi4py import MPI\n    return MPI",
    "fastsample_dist/interop/dgl.py": "if TYPE_CHECKING:\n    from dgl import DGLGraph",
    "fastsample_dist/sampling/transit/numba_rows.py": "from numba.core import types",
    "fastsample_dist/sampling/transit/compile_cpu.py": (
        "def f():\n    import numba\n    from fastsample_dist.sampling.transit import numba_rows"
    ),
    "fastsample_dist/sampling/transit/compile_cuda.py": "def f():\n    from numba.cuda import compiler",
    "launch/good.py": "import argparse\nfrom fastsample_dist.launch.hosts import read_hosts",
    "examples/good.py": "import fastsample_dist as fsd",
    "csrc/cpu/status.h": "#include <vector>\n// #include <torch/torch.h>",
    "csrc/cpu/good.cpp": '#include "status.h"',
    "csrc/cuda/good.cu": "#include <cuda_runtime.h>",
}


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def test_checker_accepts_a_tree_in_order(tmp_path):
    write_tree(tmp_path, GOOD)
    assert violations(tmp_path) == []
    assert find_circle(tmp_path) == []


@pytest.mark.parametrize(("name", "text", "message"), BAD_PYTHON + BAD_HEADERS)
def test_checker_finds_a_violation(tmp_path, name, text, message):
    write_tree(tmp_path, {**GOOD, name: text})
    assert any(line.startswith(name) and message in line for line in violations(tmp_path))


CIRCLES = {
    "for types": ("if TYPE_CHECKING:\n    from fastsample_dist.comm.a import A", "import fastsample_dist.comm.b"),
    "in a function": ("def f():\n    from fastsample_dist.comm import a", "from fastsample_dist.comm.b import f"),
    "relative": ("from . import a", "from .b import B"),
    "of itself": ("pass", "from fastsample_dist.comm.a import A"),
}


@pytest.mark.parametrize(("b", "a"), CIRCLES.values(), ids=CIRCLES)
def test_checker_finds_a_circle(tmp_path, a, b):
    write_tree(tmp_path, {**GOOD, "fastsample_dist/comm/a.py": a, "fastsample_dist/comm/b.py": b})
    assert "fastsample_dist.comm.a" in find_circle(tmp_path)


def test_checker_finds_a_circle_of_directories_that_are_moved_in(tmp_path):
    tree = {
        "launch/__init__.py": "from fastsample_dist.launch.a import A",
        "launch/a.py": "from fastsample_dist.launch.b import B",
        "launch/b.py": "from fastsample_dist.launch import A",
    }
    write_tree(tmp_path, tree)
    assert len(find_circle(tmp_path)) == 4
    write_tree(tmp_path, {**tree, "launch/b.py": "import os"})
    assert find_circle(tmp_path) == []


def test_the_house_has_no_circle():
    assert find_circle(ROOT) == []
    assert len(modules_of(ROOT)) > 200


def test_the_house_keeps_the_order():
    assert violations(ROOT) == []


def test_the_walk_reaches_every_room():
    walked = {path.relative_to(ROOT / PACKAGE).parts[0] for path in (ROOT / PACKAGE).rglob("*.py")}
    rooms = set(ROOMS) - {"partition", "launch", "examples", "__init__"} - LOWEST - {ENTRY}
    assert rooms <= walked


def shown_to_checkers(package: ModuleType) -> dict[str, str]:
    """What a package imports under `if TYPE_CHECKING:`, in the form that exports it: the source of each name."""
    guards = [node for node in ast.parse(Path(package.__file__).read_text()).body if guards_types(node)]
    imports = [node for guard in guards for node in guard.body]
    return {
        alias.asname: f"{node.module}.{alias.name}"
        for node in imports
        for alias in node.names
        if alias.asname == alias.name
    }


@pytest.mark.parametrize(
    ("room", "names"),
    [
        ("", lambda package: {*package._PUBLIC, *package._SUBMODULES}),
        (".train", lambda package: package._PUBLIC.keys() | package._MODULES - {"__main__"}),
        (".testing", lambda package: {*package.__all__}),
        (".interop", lambda package: {"dgl", "pyg"}),
        (".sampling", lambda package: {"transit"}),
    ],
    ids=["the public names", "train", "testing", "interop", "sampling"],
)
def test_checkers_and_editors_see_the_names_that_are_loaded_on_use(room, names):
    package = importlib.import_module(PACKAGE + room)
    shown = shown_to_checkers(package)
    assert shown.keys() == names(package)
    for name, source in shown.items():
        assert getattr(package, name) is pkgutil.resolve_name(source), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_the_package_says_that_it_has_types():
    assert (ROOT / PACKAGE / "py.typed").is_file()


def test_importing_the_package_loads_the_standard_library_only():
    found = run_python(
        f"import json, os, sys, threading; before, environ = set(sys.modules), dict(os.environ); import {PACKAGE}; "
        "print(json.dumps({'tops': sorted({name.split('.')[0] for name in set(sys.modules) - before}), "
        "'environment_kept': dict(os.environ) == environ, 'threads': threading.active_count()}))"
    )
    assert set(found["tops"]) - sys.stdlib_module_names == {PACKAGE}
    assert found["environment_kept"] and found["threads"] == 1


def test_using_every_public_name_loads_no_optional_package_and_joins_no_process_group():
    found = run_python(
        f"import json, sys; import torch; before = set(sys.modules); import {PACKAGE} as fsd; "
        "names = sorted(fsd._PUBLIC); values = [getattr(fsd, name) for name in names]; "
        f"print(json.dumps({{'names': names, 'loaded': [m for m in {OPTIONAL} if m in set(sys.modules) - before], "
        "'initialized': torch.distributed.is_available() and torch.distributed.is_initialized()}))"
    )
    assert found["names"]
    assert found["loaded"] == []
    assert not found["initialized"]

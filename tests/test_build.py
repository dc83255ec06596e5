"""The build: one wheel for every Python, usable away from the source tree; what the compiled objects may hold."""

import email
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.grids import grid
from tests.toolchain import cmake, run
from tests.waiting import BUILD_S

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "csrc"  # what setup.py keeps of `pip install -e .`
AVX_INSTRUCTION = re.compile(r"^\s+[0-9a-f]+:\s+(?:\{\w+\} )?v\w+|[yz]mm\d", re.MULTILINE)

USE_OPERATOR = """
import torch, fastsample_dist
from fastsample_dist import ops
print(fastsample_dist.__file__)
print(ops.gather_rows(torch.arange(6.0).reshape(3, 2), torch.tensor([2, 0])).tolist())
"""


def tool(name: str) -> str:
    """Path of a program; skips where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def child_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@dataclass
class Sources:
    """A copy of the tracked files, and the sdist made of it."""

    checkout: Path
    sdist: Path


@dataclass
class Build:
    """A wheel made of an sdist."""

    wheel: Path
    wall_s: float
    cpu_s: float


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Sources:
    """Skips outside a git checkout."""
    base = tmp_path_factory.mktemp("sources")
    listed = subprocess.run([tool("git"), "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    checkout = base / "checkout"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():  # two links are directories
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
    make_sdist = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run([sys.executable, "-c", make_sdist, base], cwd=checkout)
    (sdist,) = base.glob("*.tar.gz")
    return Sources(checkout, sdist)


@pytest.fixture(scope="module")
def build(sources, tmp_path_factory) -> Build:
    """The wheel without CUDA: the same files as in `whole_build`, which is what users get, in a third of the time."""
    return make_wheel(sources, tmp_path_factory.mktemp("build"), "OFF", "Debug")


@pytest.fixture(scope="module")
def whole_build(sources, tmp_path_factory) -> Build:
    """As users build it, with the CUDA library for every GPU where nvcc is found."""
    return make_wheel(sources, tmp_path_factory.mktemp("whole-build"), "AUTO", "Release")


def make_wheel(sources: Sources, base: Path, cuda: str, build_type: str) -> Build:
    """What `pip wheel` makes of the sdist."""
    with tarfile.open(sources.sdist) as archive:
        archive.extractall(base / "source", filter="data")
    (source,) = (base / "source").iterdir()
    start, cpu_before = time.monotonic(), child_cpu_s()
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(base / "wheels")]
    environment = {**os.environ, "FASTSAMPLE_CUDA": cuda, "CMAKE_BUILD_TYPE": build_type}
    run([sys.executable, "-m", "pip", "wheel", *options, source], env=environment)
    wall_s, cpu_s = time.monotonic() - start, child_cpu_s() - cpu_before
    (wheel,) = (base / "wheels").glob("*.whl")
    return Build(wheel, wall_s, cpu_s)


@pytest.fixture(scope="module")
def installed(build, tmp_path_factory) -> Path:
    """A fresh virtual environment with the wheel."""
    return install(build, tmp_path_factory.mktemp("installed") / "venv")


def install(build: Build, home: Path) -> Path:
    """A fresh virtual environment with a wheel; torch comes from this environment's site-packages."""
    venv.EnvBuilder(with_pip=False).create(home)
    (site,) = home.glob("lib/python*/site-packages")
    # A directory named in a .pth file is searched after `site`; its own .pth files (an editable install) stay unread.
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(torch.__file__).parents[1])}
    (site / "torch.pth").write_text("".join(f"{path}\n" for path in sorted(paths)))
    options = ["--no-deps", "--no-index", "--no-compile"]
    run([sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", *options, build.wheel])
    return home


@pytest.mark.grid
def test_wheel_serves_every_python_on_this_kind_of_machine(build):
    machine = sysconfig.get_platform().rsplit("-", 1)[-1]
    assert re.fullmatch(rf"fastsample_dist-[\d.]+-py3-none-(many)?linux_\S*{machine}\.whl", build.wheel.name)


@pytest.mark.grid
def test_wheel_holds_the_library_and_no_extension_module(build):
    names = zipfile.ZipFile(build.wheel).namelist()
    libraries = [name for name in names if name.endswith(".so")]
    assert sorted(libraries) == [f"fastsample_dist/lib/libfastsample{room}.so" for room in ("", "_bench")]
    assert "fastsample_dist/py.typed" in names
    assert not [name for name in names if ".cpython-" in name or name.startswith(("tests/", "csrc/"))]


def test_sdist_holds_the_sources_and_every_module_once(sources):
    with tarfile.open(sources.sdist) as archive:
        members = archive.getmembers()
    names = sorted(member.name.split("/", 1)[1] for member in members if not member.isdir())
    assert all(member.isfile() or member.isdir() for member in members)
    tracked = {path.relative_to(sources.checkout).as_posix() for path in sources.checkout.rglob("*") if path.is_file()}
    assert {name for name in tracked if name.startswith("csrc/")} <= set(names)
    for room in ("partition", "launch"):
        modules = {
            f"fastsample_dist/{name}" for name in tracked if name.startswith(f"{room}/") and name.endswith(".py")
        }
        assert modules and modules <= set(names)
    for path in ("partition/", "launch/", "tests/"):
        assert not [name for name in names if name.startswith(path)]
    assert not [name for name in names if name.endswith((".so", ".pyc", ".o"))]
    assert "fastsample_dist/py.typed" in names


@pytest.mark.grid
def test_wheel_has_one_name_at_the_top(build):
    names = {name.split("/")[0] for name in zipfile.ZipFile(build.wheel).namelist()}
    version = build.wheel.name.split("-")[1]
    assert names == {"fastsample_dist", f"fastsample_dist-{version}.dist-info"}


@pytest.mark.grid
def test_wheel_says_what_it_is(build):
    archive = zipfile.ZipFile(build.wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    fields = email.message_from_bytes(archive.read(name))
    assert fields["Author"] == "The fastsample_dist authors"
    assert fields["License-Expression"] == "Apache-2.0"
    assert "graph neural networks" in fields["Keywords"]
    assert "Operating System :: POSIX :: Linux" in fields.get_all("Classifier")
    assert not {"Home-page", "Project-URL", "Author-email", "Download-URL"} & set(fields.keys())


SYSTEM_LIBRARIES = re.compile(r"lib(c|m|gcc_s|stdc\+\+|gomp|pthread|dl|rt)\.so\.\d+|ld-linux.*")


def needed(library: bytes, tmp_path: Path) -> list[str]:
    """What a shared library is linked with."""
    (tmp_path / "library.so").write_bytes(library)
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run([tool("readelf"), "--dynamic", tmp_path / "library.so"]))


def test_the_library_is_linked_with_the_system_and_openmp_alone(tmp_path):
    library = (ROOT / "fastsample_dist/lib/libfastsample.so").read_bytes()
    assert [name for name in needed(library, tmp_path) if not SYSTEM_LIBRARIES.fullmatch(name)] == []


@pytest.mark.grid
def test_a_wheel_claims_no_older_systems_than_auditwheel_finds(whole_build, record_property):
    shown = " ".join(run([tool("auditwheel"), "show", whole_build.wheel]).split())
    fits = re.search(r'following platform tag: "(\w+)"', shown)
    symbols = re.search(r'constrains the platform tag to "(\w+)"', shown)
    assert fits is not None and whole_build.wheel.stem.endswith(f"-{fits[1]}")
    record_property("by its symbols alone the wheel is", symbols[1] if symbols else fits[1])


@pytest.mark.grid
def test_wheel_holds_the_cuda_library_exactly_where_nvcc_is(whole_build):
    build = whole_build
    has_nvcc = shutil.which(os.environ.get("CUDACXX", "nvcc")) is not None
    names = zipfile.ZipFile(build.wheel).namelist()
    for room in ("cuda", "bench_cuda"):
        assert (f"fastsample_dist/lib/libfastsample_{room}.so" in names) == has_nvcc
    assert ("fastsample_dist/lib/fastsample_apps.fatbin" in names) == has_nvcc


FATBIN = struct.pack("<I", 0xBA55ED50)  # begins a container of device code
PTX, MACHINE_CODE = 1, 2
ALL_TARGETS = {(MACHINE_CODE, 75), (MACHINE_CODE, 80), (MACHINE_CODE, 90), (PTX, 90)}


def device_code(library: bytes) -> set[tuple[int, int]]:
    """(kind, architecture) of everything in the library's containers of device code."""
    found, start = set(), library.find(FATBIN)
    while start >= 0:
        _, header, size = struct.unpack_from("<HHQ", library, start + 4)
        at = start + header
        while at < start + header + size:
            kind, _, own_header, own_size = struct.unpack_from("<HHIQ", library, at)
            found.add((kind, struct.unpack_from("<I", library, at + 28)[0]))
            at += own_header + own_size
        start = library.find(FATBIN, start + 4)
    return found


@pytest.mark.grid
def test_cuda_library_of_a_wheel_serves_three_generations_and_those_to_come(whole_build):
    archive = zipfile.ZipFile(whole_build.wheel)
    name = "fastsample_dist/lib/libfastsample_cuda.so"
    if name not in archive.namelist():
        pytest.skip("nvcc is not installed")
    assert device_code(archive.read(name)) == ALL_TARGETS


def test_cuda_library_of_this_checkout_holds_what_was_asked_for(tmp_path):
    library = ROOT / "fastsample_dist" / "lib" / "libfastsample_cuda.so"
    if not library.exists():
        pytest.skip("no CUDA library was built in this checkout")
    cached = [tool("nvcc")] if shutil.which("nvcc") else []
    here = {
        (PTX if kind == "virtual" else MACHINE_CODE, int(number))
        for number, kind in (target.split("-") for target in cuda_targets("here", *cached or ["true"], tmp_path))
    }
    assert device_code(library.read_bytes()) in (here, ALL_TARGETS)


def cuda_targets(which: str, nvcc: str | Path, tmp_path: Path, **options: object) -> list[str]:
    """What csrc/cuda_targets.cmake chooses."""
    script = tmp_path / "print_targets.cmake"
    script.write_text(f'include({ROOT}/csrc/cuda_targets.cmake)\nmessage("targets: ${{CMAKE_CUDA_ARCHITECTURES}}")\n')
    command = [cmake(), f"-DFS_CUDA_TARGETS={which}", f"-DCMAKE_CUDA_COMPILER={nvcc}", "-P", script]
    (line,) = (line for line in run(command, **options).splitlines() if line.startswith("targets: "))
    return line.removeprefix("targets: ").split(";")


@pytest.mark.parametrize(
    ("found", "targets"),
    [
        ("echo 9.0; echo 9.0; echo 8.6", ["90-real", "86-real"]),
        ("echo 8.0; echo 99.9", ["80-real", "75-virtual"]),  # one that this nvcc does not know
        ("echo No devices were found; exit 6", ["75-virtual"]),
    ],
    ids=["two kinds", "a newer one", "none"],
)
def test_a_checkout_is_compiled_for_the_gpus_that_are_there(tmp_path, found, targets):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("nvidia-smi", found), ("nvcc", "for n in 75 80 86 90; do echo compute_$n; done")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    assert cuda_targets("here", programs / "nvcc", tmp_path, env=environment) == targets
    assert cuda_targets("all", programs / "nvcc", tmp_path, env=environment) == ["75-real", "80-real", "90"]


@pytest.mark.grid
def test_how_long_a_wheel_takes_is_printed(whole_build, record_property):
    record_property("a wheel was built in", f"{whole_build.wall_s:.1f} s, {whole_build.cpu_s:.1f} s of processor time")


@pytest.mark.grid
def test_a_wheel_as_users_build_it_runs_an_operator(whole_build, tmp_path):
    home = install(whole_build, tmp_path / "venv")
    test_installed_wheel_runs_an_operator_away_from_the_sources(home, tmp_path)


@pytest.mark.grid
def test_installed_wheel_runs_an_operator_away_from_the_sources(installed, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = run([installed / "bin" / "python", "-c", USE_OPERATOR], cwd=tmp_path, env=environment).splitlines()
    assert printed[-2].startswith(str(installed)), "the sources were imported, not the wheel"
    assert printed[-1] == "[[4.0, 5.0], [0.0, 1.0]]"


@pytest.fixture
def beside_own_modules(tmp_path) -> Path:
    """A user's directory with a partition.py and a launch.py of their own."""
    for name in ("partition", "launch"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the {name}.py of the user was imported')\n")
    return tmp_path


WAYS = ("installed", "checkout", "editable")


@pytest.fixture(params=grid(WAYS, gate=["checkout"]))
def python(request, beside_own_modules) -> tuple[Path, dict[str, str]]:
    """A Python that has the package in one of the ways in which users have it, and its environment."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    if request.param == "installed":
        return request.getfixturevalue("installed") / "bin" / "python", environment
    if request.param == "checkout":
        return Path(sys.executable), {**environment, "PYTHONPATH": str(ROOT)}
    where = "import fastsample_dist; print(fastsample_dist.__file__)"
    found = subprocess.run([sys.executable, "-c", where], cwd=beside_own_modules, env=environment, capture_output=True)
    if not found.stdout.startswith(os.fsencode(ROOT)):
        pytest.skip("this checkout is not installed with `pip install -e .` in the Python that runs the tests")
    return Path(sys.executable), environment


PARTITION = """
import numpy as np, fastsample_dist as fsd
edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
fsd.partition_graph(edges, num_parts=2, method="random", output="parts")
print("made", fsd.launch.__name__)
"""


def test_a_users_partition_and_launch_are_left_alone(python, beside_own_modules):
    interpreter, environment = python
    options = {"cwd": beside_own_modules, "env": environment}
    (beside_own_modules / "own.py").write_text(PARTITION)
    assert "made fastsample_dist.launch" in run([interpreter, "own.py"], **options)
    assert (beside_own_modules / "parts" / "manifest.json").exists()
    assert "--nproc" in run([interpreter, "-m", "fastsample_dist.launch", "--help"], **options)
    assert "--num-parts" in run([interpreter, "-m", "fastsample_dist.partition.cli", "--help"], **options)


@pytest.mark.grid
def test_installed_commands_print_their_help_beside_a_users_modules(installed, beside_own_modules):
    environment = {**os.environ, "PYTHONPATH": str(beside_own_modules)}  # ahead of site-packages
    for name, option in (("partition", "--num-parts"), ("launch", "--nproc")):
        command = [installed / "bin" / f"fastsample-{name}", "--help"]
        assert option in run(command, cwd=beside_own_modules, env=environment)


PRINT_EVERY_HELP = """
import sys
from importlib.metadata import distribution
for entry in distribution("fastsample_dist").entry_points:
    sys.argv = [entry.name, "--help"]
    try:
        status = entry.load()()
    except SystemExit as end:
        status = end.code
    print("command", entry.name, status)
"""


def test_every_installed_command_prints_its_help(python, tmp_path):
    interpreter, environment = python
    printed = run([interpreter, "-c", PRINT_EVERY_HELP], cwd=tmp_path, env=environment)
    names = ("bench", "doctor", "launch", "partition", "train", "verify")
    ends = sorted(line for line in printed.splitlines() if line.startswith("command "))
    assert ends == [f"command fastsample-{name} 0" for name in names]
    assert all(f"usage: fastsample-{name}" in printed for name in names)


def test_without_nvcc_configuring_says_so_and_continues(tmp_path):
    environment = {**os.environ, "CUDACXX": str(tmp_path / "no-nvcc")}
    printed = run([cmake(), "-S", ROOT / "csrc", "-B", tmp_path / "build", "-DFS_CUDA=AUTO"], env=environment)
    assert "nvcc not found, building the CPU library only" in printed
    targets = run([cmake(), "--build", tmp_path / "build", "--target", "help"])
    assert "libfastsample_cuda" not in targets and "fastsample_apps" not in targets


def test_cuda_required_but_missing_is_refused(tmp_path):
    environment = {**os.environ, "CUDACXX": str(tmp_path / "no-nvcc")}
    command = [cmake(), "-S", str(ROOT / "csrc"), "-B", str(tmp_path / "build"), "-DFS_CUDA=ON"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_S)
    assert done.returncode != 0
    assert "FS_CUDA=ON but nvcc was not found" in done.stderr


def test_sources_build_for_aarch64(tmp_path):
    compiler = tool("aarch64-linux-gnu-g++")
    target = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={compiler}"]
    run([cmake(), "-S", ROOT / "csrc", "-B", tmp_path, *target, "-DFS_CUDA=OFF"])
    run([cmake(), "--build", tmp_path, "--parallel", os.cpu_count() or 1])
    header = run([tool("readelf"), "--file-header", tmp_path / "libfastsample.so"])
    assert "AArch64" in header


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> Callable[[str], list[Path]]:
    """Object files of this checkout's library, optimised, by a pattern of their path: those of `make build`, if any."""
    cache = KEPT / "CMakeCache.txt"
    is_kept = cache.exists() and "CMAKE_BUILD_TYPE:STRING=Release\n" in cache.read_text()
    folder = KEPT if is_kept else tmp_path_factory.mktemp("optimised")
    if not is_kept:
        run([cmake(), "-S", ROOT / "csrc", "-B", folder, "-DFS_CUDA=OFF"])
    run([cmake(), "--build", folder, "--target", "fastsample", "--parallel", os.cpu_count() or 1])
    return lambda pattern: sorted(path for path in folder.rglob("*.o") if re.search(pattern, path.as_posix()))


@pytest.mark.skipif(sysconfig.get_platform() != "linux-x86_64", reason="AVX exists on x86-64 only")
class TestInstructionSets:
    def test_objects_for_every_processor_hold_no_avx(self, objects):
        found = objects(r"/CMakeFiles/(fs_baseline|fastsample)\.dir/")
        assert len(found) >= 2
        for path in found:
            wide = AVX_INSTRUCTION.search(run([tool("objdump"), "--disassemble", "--no-show-raw-insn", path]))
            assert wide is None, f"{path.name}: {wide[0].strip()}"

    @pytest.mark.parametrize("name", ["avx2", "avx512"])
    def test_wide_objects_hold_avx(self, objects, name):
        (path,) = objects(rf"/CMakeFiles/fs_{name}\.dir/")
        assert AVX_INSTRUCTION.search(run([tool("objdump"), "--disassemble", "--no-show-raw-insn", path]))

    @pytest.mark.parametrize("name", ["baseline", "avx2", "avx512"])
    def test_vector_objects_export_their_table_alone(self, objects, name):
        # A weak symbol of a wide object could be the copy that the linker keeps for all.
        (path,) = objects(rf"/CMakeFiles/fs_{name}\.dir/")
        symbols = run([tool("nm"), "--defined-only", "--extern-only", "--demangle", path]).splitlines()
        assert [line.split(maxsplit=2)[1:] for line in symbols] == [["T", f"fs::vector_kernels_{name}()"]]

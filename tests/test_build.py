"""The build: one wheel for every Python, usable away from the source tree; what the compiled objects may hold."""

import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.toolchain import cmake

ROOT = Path(__file__).resolve().parents[1]
COMPILE_LIMIT_S = 120
TIMEOUT_S = 900
AVX_INSTRUCTION = re.compile(r"^\s+[0-9a-f]+:\s+(?:\{\w+\} )?v\w+|[yz]mm\d", re.MULTILINE)

USE_OPERATOR = """
import torch, fastsample_dist
from fastsample_dist import ops
print(fastsample_dist.__file__)
print(ops.gather_rows(torch.arange(6.0).reshape(3, 2), torch.tensor([2, 0])).tolist())
"""


def run(command: list[str | Path], **options) -> str:
    """Standard output and error of a command that must succeed."""
    options = {"stdin": subprocess.DEVNULL, "timeout": TIMEOUT_S, **options}
    done = subprocess.run(
        list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout[-6000:]}"
    return done.stdout


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
class Build:
    """A wheel built from a copy of the tracked files, and where its objects lie."""

    source: Path
    wheel: Path
    wall_s: float
    cpu_s: float

    def objects(self, pattern: str) -> list[Path]:
        """Object files of the CMake build whose path matches."""
        return sorted(path for path in self.source.rglob("*.o") if re.search(pattern, path.as_posix()))


@pytest.fixture(scope="module")
def build(tmp_path_factory) -> Build:
    """The wheel that `pip wheel` makes of the tracked files; skips outside a git checkout."""
    base = tmp_path_factory.mktemp("build")
    listed = subprocess.run([tool("git"), "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (base / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, base / "source" / name)
    start, cpu_before = time.monotonic(), child_cpu_s()
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(base / "wheels")]
    run([sys.executable, "-m", "pip", "wheel", *options, base / "source"])
    wall_s, cpu_s = time.monotonic() - start, child_cpu_s() - cpu_before
    (wheel,) = (base / "wheels").glob("*.whl")
    return Build(base / "source", wheel, wall_s, cpu_s)


@pytest.fixture(scope="module")
def installed(build, tmp_path_factory) -> Path:
    """A fresh virtual environment with the wheel; torch comes from this environment's site-packages."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.EnvBuilder(with_pip=False).create(home)
    (site,) = home.glob("lib/python*/site-packages")
    # A directory named in a .pth file is searched after `site`; its own .pth files (an editable install) stay unread.
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(torch.__file__).parents[1])}
    (site / "torch.pth").write_text("".join(f"{path}\n" for path in sorted(paths)))
    options = ["--no-deps", "--no-index", "--no-compile"]
    run([sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", *options, build.wheel])
    return home


def test_wheel_serves_every_python_on_this_kind_of_machine(build):
    machine = sysconfig.get_platform().rsplit("-", 1)[-1]
    assert re.fullmatch(rf"fastsample_dist-[\d.]+-py3-none-(many)?linux_\S*{machine}\.whl", build.wheel.name)


def test_wheel_holds_the_library_and_no_extension_module(build):
    names = zipfile.ZipFile(build.wheel).namelist()
    assert "fastsample_dist/lib/libfastsample.so" in names
    assert not [name for name in names if ".cpython-" in name or name.startswith(("tests/", "csrc/"))]


def test_wheel_holds_the_cuda_library_exactly_where_nvcc_is(build):
    has_nvcc = shutil.which(os.environ.get("CUDACXX", "nvcc")) is not None
    names = zipfile.ZipFile(build.wheel).namelist()
    assert ("fastsample_dist/lib/libfastsample_cuda.so" in names) == has_nvcc


FATBIN = struct.pack("<I", 0xBA55ED50)  # begins a container of device code
PTX, MACHINE_CODE = 1, 2


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


def test_cuda_library_serves_three_generations_and_those_to_come(build):
    archive = zipfile.ZipFile(build.wheel)
    name = "fastsample_dist/lib/libfastsample_cuda.so"
    if name not in archive.namelist():
        pytest.skip("nvcc is not installed")
    expected = {(MACHINE_CODE, 75), (MACHINE_CODE, 80), (MACHINE_CODE, 90), (PTX, 90)}
    assert device_code(archive.read(name)) == expected


def test_compiling_takes_under_two_minutes(build, capsys):
    with capsys.disabled():
        print(f"\nwheel built in {build.wall_s:.1f} s, {build.cpu_s:.1f} s of processor time")
    # On a machine that others load the clock shows their work too; processor time is this build's own.
    assert min(build.wall_s, build.cpu_s) < COMPILE_LIMIT_S


def test_installed_wheel_runs_an_operator_away_from_the_sources(installed, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = run([installed / "bin" / "python", "-c", USE_OPERATOR], cwd=tmp_path, env=environment).splitlines()
    assert printed[-2].startswith(str(installed)), "the sources were imported, not the wheel"
    assert printed[-1] == "[[4.0, 5.0], [0.0, 1.0]]"


def test_installed_command_prints_its_help(installed, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = run([installed / "bin" / "fastsample-partition", "--help"], cwd=tmp_path, env=environment)
    assert "--num-parts" in printed


def test_without_nvcc_configuring_says_so_and_goes_on(tmp_path):
    environment = {**os.environ, "CUDACXX": str(tmp_path / "no-nvcc")}
    printed = run([cmake(), "-S", ROOT / "csrc", "-B", tmp_path / "build", "-DFS_CUDA=AUTO"], env=environment)
    assert "nvcc not found, building the CPU library only" in printed
    assert "libfastsample_cuda" not in run([cmake(), "--build", tmp_path / "build", "--target", "help"])


def test_cuda_required_but_missing_is_refused(tmp_path):
    environment = {**os.environ, "CUDACXX": str(tmp_path / "no-nvcc")}
    command = [cmake(), "-S", str(ROOT / "csrc"), "-B", str(tmp_path / "build"), "-DFS_CUDA=ON"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode != 0
    assert "FS_CUDA=ON but nvcc was not found" in done.stderr


def test_sources_build_for_aarch64(tmp_path):
    compiler = tool("aarch64-linux-gnu-g++")
    target = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={compiler}"]
    run([cmake(), "-S", ROOT / "csrc", "-B", tmp_path, *target, "-DFS_CUDA=OFF"])
    run([cmake(), "--build", tmp_path, "--parallel", os.cpu_count() or 1])
    header = run([tool("readelf"), "--file-header", tmp_path / "libfastsample.so"])
    assert "AArch64" in header


@pytest.mark.skipif(sysconfig.get_platform() != "linux-x86_64", reason="AVX exists on x86-64 only")
class TestInstructionSets:
    def test_objects_for_every_processor_hold_no_avx(self, build):
        objects = build.objects(r"/CMakeFiles/(fs_baseline|fastsample)\.dir/")
        assert len(objects) >= 2
        for path in objects:
            found = AVX_INSTRUCTION.search(run([tool("objdump"), "--disassemble", "--no-show-raw-insn", path]))
            assert found is None, f"{path.name}: {found[0].strip()}"

    @pytest.mark.parametrize("name", ["avx2", "avx512"])
    def test_wide_objects_hold_avx(self, build, name):
        (path,) = build.objects(rf"/CMakeFiles/fs_{name}\.dir/")
        assert AVX_INSTRUCTION.search(run([tool("objdump"), "--disassemble", "--no-show-raw-insn", path]))

    @pytest.mark.parametrize("name", ["baseline", "avx2", "avx512"])
    def test_vector_objects_export_their_table_alone(self, build, name):
        # A weak symbol of a wide object could be the copy that the linker keeps for all.
        (path,) = build.objects(rf"/CMakeFiles/fs_{name}\.dir/")
        symbols = run([tool("nm"), "--defined-only", "--extern-only", "--demangle", path]).splitlines()
        assert [line.split(maxsplit=2)[1:] for line in symbols] == [["T", f"fs::vector_kernels_{name}()"]]

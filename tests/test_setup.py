"""setup.py: what it asks CMake for, what it keeps of an earlier build, what it refuses."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.toolchain import cmake, run
from tests.waiting import BUILD_S

ROOT = Path(__file__).resolve().parents[1]


def by_setup(tmp_path, cmake_script, *words):
    """The command that builds by a copy of setup.py, with these arguments, and another program in the place of CMake,
    and its environment.
    """
    shutil.copy2(ROOT / "setup.py", tmp_path / "setup.py")
    (tmp_path / "fastsample_dist").mkdir()
    program = tmp_path / "bin" / "cmake"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{cmake_script}\n")
    program.chmod(0o755)
    line = "import runpy, sys; sys.executable = '/nowhere/python'; sys.argv[0] = 'setup.py'; "
    command = [sys.executable, "-c", f"{line}runpy.run_path('setup.py', run_name='__main__')", *words]
    return command, {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_a_build_that_cmake_refuses_ends_in_one_line(tmp_path):
    command, environment = by_setup(tmp_path, "echo 'CMAKE_CXX_COMPILER not set' >&2; exit 1", "build_ext", "--inplace")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BUILD_S)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2] == "CMAKE_CXX_COMPILER not set"
    line, reason = done.stderr.splitlines()[-1].split(" ended with status 1, ")
    assert line.startswith(f"setup.py: `cmake -S {tmp_path}/csrc -B {tmp_path}/build/csrc ")
    assert reason == "for the reason printed above; the build needs a C++17 compiler and make."


@pytest.mark.parametrize("built", ["in place", "for a wheel"])
def test_objects_are_kept_unless_copied_from_another_checkout_and_compilers_looked_for_again(tmp_path, built):
    """setup.py as far as CMake's first call, which is a program that writes down its words."""
    said = tmp_path / "said"
    words = ["build_ext", *(["--inplace"] if built == "in place" else ["--build-temp", "build", "--build-lib", "lib"])]
    command, environment = by_setup(tmp_path, f'echo "$@" >> {said}', *words)
    kept = tmp_path / "build" / "csrc"
    for home, stays in ((tmp_path / "csrc", True), (ROOT / "csrc", False)):
        for name in ("CMakeFiles/fastsample.dir/a.o", "CMakeFiles/3.25.1/CMakeCXXCompiler.cmake", "CMakeCache.txt"):
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            (kept / name).write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={home}\n")
        run(command, cwd=tmp_path, env=environment)
        left = [path.name for path in kept.rglob("*") if path.is_file()]
        assert left == ["a.o"] * stays
        assert f"-B {kept} " in said.read_text()


def test_nvcc_that_was_not_found_is_looked_for_again(tmp_path):
    """As the message about the missing library asks for: put nvcc on PATH and build again."""
    environment = {**os.environ, "CUDACXX": "/nowhere/nvcc"}
    command = [cmake(), "-S", ROOT / "csrc", "-B", tmp_path, "-DFS_CUDA=AUTO"]
    for _ in range(2):
        assert "Looking for a CUDA compiler" in run(command, env=environment)


INSTALL = """
if [ "$1" = --install ]; then
  mkdir -p "$4"; touch "$4/libfastsample.so"
  if [ -n "$WITH_CUDA" ]; then touch "$4/libfastsample_cuda.so"; fi
fi
"""


@pytest.mark.parametrize("words", [("build_ext", "--inplace"), ("bdist_wheel",)], ids=" ".join)
def test_nothing_of_an_earlier_build_is_installed(tmp_path, words):
    """A CUDA library, then none; a module, then none."""
    command, environment = by_setup(tmp_path, INSTALL, *words)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, tmp_path / name)
    package = tmp_path / "fastsample_dist"
    (package / "__init__.py").write_text('__version__ = "1"\n')
    module = package / "module.py"
    module.touch()
    for with_cuda in ("yes", ""):
        run(command, cwd=tmp_path, env={**environment, "WITH_CUDA": with_cuda})
        names = {path.relative_to(package).as_posix() for path in package.rglob("*")}
        for wheel in tmp_path.glob("dist/*.whl"):
            names = {name.removeprefix("fastsample_dist/") for name in zipfile.ZipFile(wheel).namelist()}
        assert "lib/libfastsample.so" in names
        assert ("lib/libfastsample_cuda.so" in names, "module.py" in names) == (bool(with_cuda), bool(with_cuda))
        module.unlink(missing_ok=True)


def test_another_word_for_cuda_is_refused(tmp_path):
    command = [sys.executable, str(ROOT / "setup.py"), "build_ext", "--build-temp", str(tmp_path)]
    environment = {**os.environ, "FASTSAMPLE_CUDA": "yes"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S)
    assert done.returncode != 0
    assert "FASTSAMPLE_CUDA is 'YES'; expected ON, OFF or AUTO" in done.stderr

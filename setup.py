"""Builds the compiled core with CMake and puts it beside the Python sources (fastsample_dist/lib).

The libraries have a C ABI and link neither torch nor Python, so one wheel (py3-none-<platform>) serves every Python and
every torch. `pip install --no-build-isolation .` and `-e .` both come here.

    FASTSAMPLE_CUDA=AUTO|ON|OFF   the CUDA library: where nvcc is found (AUTO, the default), always (else the build
                                  fails), never

A wheel's CUDA library serves every GPU; an editable install's is compiled for the GPUs of this machine alone, which
takes a quarter of the time. Its objects stay in build/csrc, so that the next one compiles what has changed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
LIBRARIES = (*(f"libfastsample{room}.so" for room in ("", "_cuda", "_bench", "_bench_cuda")), "fastsample_apps.fatbin")


def find_cmake() -> str:
    """The cmake of this Python environment, else the one on PATH."""
    beside = Path(sys.executable).with_name("cmake")
    found = str(beside) if beside.exists() else shutil.which("cmake")
    if found is None:
        raise SystemExit("setup.py: cmake was not found; install it with `pip install cmake` and run this again.")
    return found


def run_cmake(*words: str) -> None:
    """Run cmake, which prints what is wrong itself."""
    status = subprocess.run([find_cmake(), *words], check=False).returncode
    if status != 0:
        raise SystemExit(
            f"setup.py: `cmake {' '.join(words)}` ended with status {status}, for the reason printed above; the build "
            "needs a C++17 compiler and make."
        )


def chosen_cuda() -> str:
    """FASTSAMPLE_CUDA: ON, OFF or AUTO."""
    chosen = os.environ.get("FASTSAMPLE_CUDA", "AUTO").upper()
    if chosen not in ("ON", "OFF", "AUTO"):
        raise SystemExit(f"setup.py: FASTSAMPLE_CUDA is {chosen!r}; expected ON, OFF or AUTO.")
    return chosen


class CMakeBuild(build_ext):
    """Configure, build and install csrc/ in place of compiling an extension module."""

    def is_in_place(self) -> bool:
        """Whether the libraries go beside the sources (`pip install -e .`), not into a wheel."""
        return bool(self.inplace or self.editable_mode)

    def target_dir(self) -> Path:
        return (ROOT if self.is_in_place() else Path(self.build_lib).resolve()) / "fastsample_dist" / "lib"

    def build_dir(self) -> Path:
        """Where CMake builds; made anew if it was copied from another checkout.

        The compilers that an earlier build found are forgotten: another may be chosen by now, or nvcc installed. The
        objects stay, which make compares with the compiler and its options.
        """
        kept = (ROOT / "build" if self.is_in_place() else Path(self.build_temp).resolve()) / "csrc"
        cache = kept / "CMakeCache.txt"
        if cache.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT / 'csrc'}\n" not in cache.read_text():
            shutil.rmtree(kept)
        cache.unlink(missing_ok=True)
        for compilers in kept.glob("CMakeFiles/[0-9]*"):
            shutil.rmtree(compilers)
        return kept

    def run(self) -> None:
        build_dir = self.build_dir()
        build_dir.mkdir(parents=True, exist_ok=True)
        targets = "here" if self.is_in_place() else "all"
        options = [f"-DFS_CUDA={chosen_cuda()}", f"-DFS_CUDA_TARGETS={targets}"]
        run_cmake("-S", str(ROOT / "csrc"), "-B", str(build_dir), *options)
        run_cmake("--build", str(build_dir), "--parallel", str(os.cpu_count() or 1))
        for name in LIBRARIES:  # of an earlier build, which may have had CUDA
            (self.target_dir() / name).unlink(missing_ok=True)
        run_cmake("--install", str(build_dir), "--prefix", str(self.target_dir()))

    def get_outputs(self) -> list[str]:
        return [str(self.target_dir() / name) for name in LIBRARIES if (self.target_dir() / name).exists()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}  # an editable install finds the libraries in the source tree, where run() put them


class BinaryDistribution(Distribution):
    """Has compiled files although no extension module is among them."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """Tagged py3-none-<platform>: bound to the processor and the system, not to a Python version."""

    def run(self) -> None:
        if not self.skip_build:  # a wheel takes all that is there, modules that are gone from the sources among it
            shutil.rmtree(self.get_finalized_command("build").build_lib, ignore_errors=True)
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("fastsample_dist.lib.fastsample", sources=[])],
    distclass=BinaryDistribution,
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": PlatformWheel},
)

"""The compiler and the cmake that tests build C++ with, and how they are run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import BUILD_S

CSRC = Path(__file__).resolve().parents[1] / "csrc"


def run(command: list[str | Path], **options) -> str:
    """Standard output and error of a command that must succeed."""
    options = {"stdin": subprocess.DEVNULL, "timeout": BUILD_S, **options}
    done = subprocess.run(
        list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout[-6000:]}"
    return done.stdout


def cmake() -> str:
    """The cmake of this Python environment, else the one on PATH."""
    beside = Path(sys.executable).with_name("cmake")
    found = str(beside) if beside.exists() else shutil.which("cmake")
    assert found is not None, "cmake is part of the test environment: pip install cmake"
    return found


def find_compiler() -> str:
    """The C++ compiler that cmake takes."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler on PATH")
    return compiler

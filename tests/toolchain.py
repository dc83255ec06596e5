"""The compiler and the cmake that tests build C++ with."""

import os
import shutil
import sys
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[1] / "csrc"


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

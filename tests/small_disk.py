"""A file system that is soon full, for the tests of what happens then."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_tmpfs(directory: Path, size_bytes: int) -> Iterator[None]:
    """A mounted file system of that size; skips where this process may not mount one."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs may be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@contextmanager
def small_files(size_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond that size: like a full disk, where no file system may be mounted."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def enlarge(directory: Path, size_bytes: int) -> None:
    """Give a mounted small_tmpfs another size."""
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", str(directory)], check=True)

"""A file system that is soon full, for the tests of what happens then."""

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


def enlarge(directory: Path, size_bytes: int) -> None:
    """Give a mounted small_tmpfs another size."""
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", str(directory)], check=True)

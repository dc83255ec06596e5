"""What several benchmarks are tested with: a small graph on disk, and programs in the place of a peer's."""

import stat
from pathlib import Path

import pytest

from fastsample_dist.graph.generators import rmat, write_npy_graph


def rmat_input(folder: Path, scale: int) -> Path:
    """An npy input directory of rmat:SCALE:8."""
    write_npy_graph(folder / "graph", rmat(scale, 8, seed=1), name=f"rmat-{scale}-8")
    return folder / "graph"


def write_programs(directory: Path, names: list[str], script: str) -> Path:
    """The directory, made, with a shell script under every name; {calls} in it becomes a file for notes."""
    directory.mkdir()
    for name in names:
        program = directory / name
        program.write_text(script.format(calls=directory / "calls"))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return directory


def without_packages(names: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Python processes that are started from now on fail to import packages."""
    directory.mkdir()
    for name in names:
        (directory / f"{name}.py").write_text('raise ImportError("not on this machine")\n')
    monkeypatch.setenv("PYTHONPATH", str(directory))

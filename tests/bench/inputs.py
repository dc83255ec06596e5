"""What several benchmarks are tested with: a small graph on disk, and programs in the place of a peer's."""

import stat
from pathlib import Path

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

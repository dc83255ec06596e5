"""The peers that a benchmark runs beside this library: how the command line names them, and the graph that they read.

A peer is an installed package (`dgl`, `pyg`, on GPUs also `cugraph`), or programs that the user has built, named with
their directory. It runs in a process of its own, so that its memory and its threads are its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.testing.jobs import own_environment
from fastsample_dist.testing.supervisor import last_line, run_process

PACKAGES = ("dgl", "pyg")


@dataclass(frozen=True)
class Baseline:
    """A peer as it was named.

    Attributes:
      name: of the package or of the programs.
      directory: of the programs; None for a package.
    """

    name: str
    directory: Path | None = None

    @classmethod
    def parse(cls, text: str, built: str, packages: Sequence[str] = PACKAGES) -> Baseline:
        """The baseline that `--baseline TEXT` names.

        Args:
          text: a package, or `built`=DIR.
          built: name of the programs that a benchmark can run.
          packages: that it can run.
        Raises:
          ValueError: another name, or no directory.
        """
        name, _, directory = text.partition("=")
        if name in packages and not directory:
            return cls(name)
        if name == built and directory:
            return cls(name, Path(directory))
        names = ", ".join([f"{built}=DIR", *packages[:-1]])
        raise ValueError(f"--baseline is {text!r}; expected {names} or {packages[-1]}.")

    def program(self, name: str, example: str) -> Path:
        """A program in the directory.

        Args:
          name: its file's.
          example: what a directory that holds it may be, for the message.
        Raises:
          ValueError: it is not there, or cannot be run.
        """
        program = self.directory / name
        if not os.access(program, os.X_OK):
            raise ValueError(f"--baseline {self.name}={self.directory}: {name} is not there; pass {example}.")
        return program


def require_packages(names: Sequence[str], module: str) -> None:
    """Refuse packages that cannot be run, before anything is measured.

    Each is tried as it will run, in a process of its own: `python -m MODULE NAME` (see `answer_trial`).

    Args:
      names: of PACKAGES.
      module: in which they run.
    Raises:
      ImportError: something is missing; with the peer's last line.
    """
    for name in names:
        done = run_process([sys.executable, "-m", module, name], env=own_environment())
        if done.returncode != 0:
            raise ImportError(f"--baseline {name}: {last_line(done)}")


def answer_trial(make: Callable[[CSCGraph], object]) -> None:
    """The other side of `require_packages`: make what draws, on a graph of two nodes, or exit with what is missing."""
    try:
        make(CSCGraph(torch.tensor([0, 1, 2]), torch.tensor([1, 0])))
    except ImportError as error:
        sys.exit(" ".join(str(error).split()))


def write_columns(graph: CSCGraph, folder: Path) -> None:
    """Write indptr.npy, indices.npy and, where the graph has weights, weights.npy, for `read_columns`."""
    np.save(folder / "indptr.npy", graph.indptr.numpy())
    np.save(folder / "indices.npy", graph.indices.numpy())
    if graph.weights is not None:
        np.save(folder / "weights.npy", graph.weights.numpy())


def read_columns(folder: Path, *, weighted: bool = False) -> CSCGraph:
    """The graph that `write_columns` wrote."""
    names = ("indptr", "indices", *(["weights"] if weighted else []))
    return CSCGraph(*(torch.from_numpy(np.load(folder / f"{name}.npy")) for name in names))

"""One rank of a run: joins it, does what it is called for, and reports to the folder of the run (reports.py).

python -m fastsample_dist.testing.job_rank FOLDER
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
from pathlib import Path

import torch

from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.environment import parse_environment
from fastsample_dist.comm.mpi import load_mpi
from fastsample_dist.comm.pickled import unpickle
from fastsample_dist.testing.reports import CALL, Reporter


def run_rank(folder: Path, content: bytes) -> None:
    """Join, call, leave; exits with status 1 after a failure.

    Args:
      folder: of the run.
      content: a pickled `Call`.
    """
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    reporter = Reporter(folder, parse_environment(os.environ).rank)
    try:
        call = unpickle(content)
        torch.set_num_threads(call.threads)
        with DistContext.from_env(timeout_s=call.timeout_s) as ctx:
            if call.verify_exchanges is not None:
                ctx.comm.verify_exchanges = call.verify_exchanges
            try:
                reporter.returned(call.function(ctx, folder))
            except BaseException as error:
                reporter.failed(error)  # before the context lets the other ranks know
                raise
        reporter.left()
    except BaseException as error:
        reporter.failed(error)
        sys.exit(1)


def main(folder: Path) -> None:
    """Run as a process of its own: modules are found where the process that started the run finds them."""
    sys.path[:], content = pickle.loads((folder / CALL).read_bytes())
    run_rank(folder, content)
    sys.stdout.flush()
    sys.stderr.flush()
    if parse_environment(os.environ).backend == "mpi":
        load_mpi().Finalize()
    os._exit(0)  # like a child of multiprocessing: taking the interpreter down costs as much as a small test


if __name__ == "__main__":
    main(Path(sys.argv[1]))

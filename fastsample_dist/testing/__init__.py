"""For tests: run a function on several ranks (ranks.py)."""

from fastsample_dist.testing.ranks import (
    RankError,
    RankTimeoutError,
    devices,
    mpi_missing_reason,
    run_distributed,
    run_mpi,
)

__all__ = [
    "RankError",
    "RankTimeoutError",
    "devices",
    "mpi_missing_reason",
    "run_distributed",
    "run_mpi",
]

"""For tests: run a function on several ranks (ranks.py), put a sampler through a conformance suite (sampler.py)."""

from fastsample_dist.ops.reference import Certain, Independent, Replaced
from fastsample_dist.testing.graphs import conformance_graph
from fastsample_dist.testing.ranks import (
    RankError,
    RankTimeoutError,
    devices,
    mpi_missing_reason,
    run_distributed,
    run_mpi,
)
from fastsample_dist.testing.sampler import SamplerReport, check_sampler

__all__ = [
    "Certain",
    "Independent",
    "RankError",
    "RankTimeoutError",
    "Replaced",
    "SamplerReport",
    "check_sampler",
    "conformance_graph",
    "devices",
    "mpi_missing_reason",
    "run_distributed",
    "run_mpi",
]

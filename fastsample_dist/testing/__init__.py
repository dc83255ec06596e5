"""For tests: run a function on several ranks (ranks.py), put a sampler through a conformance suite (sampler.py), or an
application of graph sampling (apps.py).

Names are resolved on first use: commands take `jobs` and `supervisor` from here where torch cannot be loaded.
"""

import importlib
from typing import TYPE_CHECKING

_HOMES = {
    "ops.reference": ("Certain", "Independent", "Replaced"),
    "testing.apps": ("AppReport", "check_app"),
    "testing.graphs": ("conformance_graph", "relabelled"),
    "testing.ranks": ("RankError", "RankTimeoutError", "devices", "mpi_missing_reason", "run_distributed", "run_mpi"),
    "testing.sampler": ("SamplerReport", "check_sampler"),
}

if TYPE_CHECKING:  # see fastsample_dist/__init__.py
    from fastsample_dist.ops.reference import Certain as Certain
    from fastsample_dist.ops.reference import Independent as Independent
    from fastsample_dist.ops.reference import Replaced as Replaced
    from fastsample_dist.testing.apps import AppReport as AppReport
    from fastsample_dist.testing.apps import check_app as check_app
    from fastsample_dist.testing.graphs import conformance_graph as conformance_graph
    from fastsample_dist.testing.graphs import relabelled as relabelled
    from fastsample_dist.testing.ranks import RankError as RankError
    from fastsample_dist.testing.ranks import RankTimeoutError as RankTimeoutError
    from fastsample_dist.testing.ranks import devices as devices
    from fastsample_dist.testing.ranks import mpi_missing_reason as mpi_missing_reason
    from fastsample_dist.testing.ranks import run_distributed as run_distributed
    from fastsample_dist.testing.ranks import run_mpi as run_mpi
    from fastsample_dist.testing.sampler import SamplerReport as SamplerReport
    from fastsample_dist.testing.sampler import check_sampler as check_sampler
else:
    __all__ = [name for names in _HOMES.values() for name in names]

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(f"fastsample_dist.{home}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

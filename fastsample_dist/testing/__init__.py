"""For tests: run a function on several ranks (ranks.py), put a sampler through a conformance suite (sampler.py), or an
application of graph sampling (apps.py).

Names are resolved on first use: commands take `jobs` and `supervisor` from here where torch cannot be loaded.
"""

import importlib

_HOMES = {
    "ops.reference": ("Certain", "Independent", "Replaced"),
    "testing.apps": ("AppReport", "check_app"),
    "testing.graphs": ("conformance_graph", "relabelled"),
    "testing.ranks": ("RankError", "RankTimeoutError", "devices", "mpi_missing_reason", "run_distributed", "run_mpi"),
    "testing.sampler": ("SamplerReport", "check_sampler"),
}
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"fastsample_dist.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

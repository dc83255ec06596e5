"""For tests: run a function on several ranks (ranks.py), put a sampler through a conformance suite (sampler.py).

Names are resolved on first use: commands take `jobs` and `supervisor` from here where torch cannot be loaded.
"""

import importlib

_PUBLIC = {
    "RankError": "fastsample_dist.testing.ranks",
    "RankTimeoutError": "fastsample_dist.testing.ranks",
    "SamplerReport": "fastsample_dist.testing.sampler",
    "check_sampler": "fastsample_dist.testing.sampler",
    "conformance_graph": "fastsample_dist.testing.graphs",
    "devices": "fastsample_dist.testing.ranks",
    "mpi_missing_reason": "fastsample_dist.testing.ranks",
    "run_distributed": "fastsample_dist.testing.ranks",
    "run_mpi": "fastsample_dist.testing.ranks",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(_PUBLIC[name]), name)
    return value

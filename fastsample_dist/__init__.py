"""Distributed sampling-based training of graph neural networks.

Public names are resolved on first use, so `import fastsample_dist` has no side effects and needs
only torch and numpy.
"""

import importlib

__version__ = "0.1.0"

_PUBLIC = {
    "CSCGraph": "fastsample_dist.graph.csc",
    "PartitionBook": "fastsample_dist.graph.partition_book",
    "MFG": "fastsample_dist.sampling.mfg",
    "MiniBatch": "fastsample_dist.sampling.mfg",
    "SampleSpec": "fastsample_dist.ops",
    "NeighborSampler": "fastsample_dist.sampling.neighbor",
    "LaborSampler": "fastsample_dist.sampling.neighbor",
    "PinSAGESampler": "fastsample_dist.sampling.pinsage",
    "TransitSampler": "fastsample_dist.sampling.transit.sampler",
    "SubgraphSpec": "fastsample_dist.sampling.subgraph_spec",
    "SubgraphSampler": "fastsample_dist.sampling.subgraph",
    "DistContext": "fastsample_dist.comm.context",
    "DistData": "fastsample_dist.pipeline.data",
    "DistLoader": "fastsample_dist.pipeline.loader",
    "SubgraphLoader": "fastsample_dist.pipeline.subgraph_loader",
    "FeatureCache": "fastsample_dist.features.cache",
    "Roles": "fastsample_dist.pipeline.roles",
    "WalkLoader": "fastsample_dist.pipeline.walk_loader",
    "write_walks": "fastsample_dist.pipeline.walk_files",
    "Trainer": "fastsample_dist.train.trainer",
    "SkipGram": "fastsample_dist.train.skipgram",
    "SkipGramOptions": "fastsample_dist.train.skipgram",
    "SkipGramCheckpointer": "fastsample_dist.train.skipgram_checkpoint",
    "partition_graph": "fastsample_dist.partition.api",
}
_SUBMODULES = (
    "bench", "comm", "device", "doctor", "features", "graph", "interop", "launch", "ops", "partition", "pipeline",
    "sampling", "testing", "train", "verify",
)  # fmt: skip

__all__ = ["__version__", *_PUBLIC, *_SUBMODULES]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""Distributed sampling-based training of graph neural networks.

Public names are resolved on first use, so `import fastsample_dist` has no side effects and needs
only torch and numpy.
"""

import importlib
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:  # the same names, for checkers and editors, which know only what is written out
    from fastsample_dist import bench as bench
    from fastsample_dist import comm as comm
    from fastsample_dist import device as device
    from fastsample_dist import doctor as doctor
    from fastsample_dist import features as features
    from fastsample_dist import graph as graph
    from fastsample_dist import interop as interop
    from fastsample_dist import launch as launch
    from fastsample_dist import ops as ops
    from fastsample_dist import partition as partition
    from fastsample_dist import pipeline as pipeline
    from fastsample_dist import sampling as sampling
    from fastsample_dist import testing as testing
    from fastsample_dist import train as train
    from fastsample_dist import verify as verify
    from fastsample_dist.comm.context import DistContext as DistContext
    from fastsample_dist.features.cache import FeatureCache as FeatureCache
    from fastsample_dist.graph.csc import CSCGraph as CSCGraph
    from fastsample_dist.graph.partition_book import PartitionBook as PartitionBook
    from fastsample_dist.ops import SampleSpec as SampleSpec
    from fastsample_dist.partition.api import partition_graph as partition_graph
    from fastsample_dist.pipeline.data import DistData as DistData
    from fastsample_dist.pipeline.loader import DistLoader as DistLoader
    from fastsample_dist.pipeline.roles import Roles as Roles
    from fastsample_dist.pipeline.subgraph_loader import SubgraphLoader as SubgraphLoader
    from fastsample_dist.pipeline.walk_files import write_walks as write_walks
    from fastsample_dist.pipeline.walk_loader import WalkLoader as WalkLoader
    from fastsample_dist.sampling.mfg import MFG as MFG
    from fastsample_dist.sampling.mfg import MiniBatch as MiniBatch
    from fastsample_dist.sampling.neighbor import LaborSampler as LaborSampler
    from fastsample_dist.sampling.neighbor import NeighborSampler as NeighborSampler
    from fastsample_dist.sampling.pinsage import PinSAGESampler as PinSAGESampler
    from fastsample_dist.sampling.subgraph import SubgraphSampler as SubgraphSampler
    from fastsample_dist.sampling.subgraph_spec import SubgraphSpec as SubgraphSpec
    from fastsample_dist.sampling.transit.sampler import TransitSampler as TransitSampler
    from fastsample_dist.train.skipgram import SkipGram as SkipGram
    from fastsample_dist.train.skipgram import SkipGramOptions as SkipGramOptions
    from fastsample_dist.train.skipgram_checkpoint import SkipGramCheckpointer as SkipGramCheckpointer
    from fastsample_dist.train.trainer import Trainer as Trainer
else:
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

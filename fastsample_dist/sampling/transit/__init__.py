"""Graph sampling as applications that a user can write: `transit.App`, the built-in ones, `transit.plain` (the oracle).

class Uniform(transit.App):
    def steps(self): return 10
    def sample_size(self, step): return 1
    def next(s, transits, edges, step, draw, par): return edges.pick(draw)
"""

from fastsample_dist.sampling.transit import plain
from fastsample_dist.sampling.transit.app import (
    ALL,
    COLLECTIVE,
    INDIVIDUAL,
    INF,
    NULL,
    ROOTS,
    App,
    Needs,
    by_original_id,
    needs,
)  # fmt: skip
from fastsample_dist.sampling.transit.binding import BoundApp, Layout, bind
from fastsample_dist.sampling.transit.laws import History
from fastsample_dist.sampling.transit.layers import LADIES, FastGCN, Layer
from fastsample_dist.sampling.transit.params import Params, params
from fastsample_dist.sampling.transit.recorded_edges import RecordedEdges
from fastsample_dist.sampling.transit.samples import Samples
from fastsample_dist.sampling.transit.subgraphs import MVS, ClusterGCN
from fastsample_dist.sampling.transit.walks import PPR, DeepWalk, KHop, MultiRW, Node2Vec

__all__ = [
    "ALL",
    "COLLECTIVE",
    "INDIVIDUAL",
    "INF",
    "LADIES",
    "MVS",
    "NULL",
    "PPR",
    "ROOTS",
    "App",
    "BoundApp",
    "ClusterGCN",
    "DeepWalk",
    "FastGCN",
    "History",
    "KHop",
    "Layer",
    "Layout",
    "MultiRW",
    "Needs",
    "Node2Vec",
    "Params",
    "RecordedEdges",
    "Samples",
    "bind",
    "by_original_id",
    "needs",
    "params",
    "plain",
]

"""Assigning nodes to parts: the methods by name, behind one interface.

    request = PartitionRequest(graph=graph, undirected=True, num_parts=4, splits={"train": ids})
    method = METHODS["metis"]
    parts = method.assign(request)                        # int32 [num_nodes]
    balanced = balance_parts(request, method, parts)      # balance.py: train nodes, and what may be levelled

Packages that a method needs are imported when it runs, and checked (`Method.require`) before the graph is read.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from fastsample_dist.partition.methods import libmetis
from fastsample_dist.partition.methods.kaminpar import assign_kaminpar, missing_kaminpar, require_kaminpar
from fastsample_dist.partition.methods.metis import assign_metis, missing_metis, require_metis
from fastsample_dist.partition.methods.request import (
    MAX_SEED,
    SPLITS,
    AssignMemory,
    Method,
    MissingPackageError,
    PartitionRequest,
)
from fastsample_dist.partition.methods.simple import assign_file, assign_random, assign_range, random_parts
from fastsample_dist.partition.methods.stream import BUFFER_BYTES, assign_stream
from fastsample_dist.partition.methods.streaming import assign_fennel, assign_ldg


def _with_alternatives(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; its MissingPackageError names the methods that work here too."""

    @wraps(function)
    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except MissingPackageError as error:
            raise MissingPackageError(f"{error}, or take --method {', '.join(working_methods())}.") from error

    return call


_METHODS = (
    Method(
        name="metis",
        assign=_with_alternatives(assign_metis),
        summary="few cut edges, every constraint balanced (multilevel; needs cmeel-metis or pymetis)",
        memory=AssignMemory(node_bytes=540, neighbour_bytes=68, doubling_bytes=6),
        links="adjacency",
        in_memory=True,
        balances=True,
        blocks_signals=lambda: libmetis.load() is None,  # pymetis
        missing=missing_metis,
        require=_with_alternatives(require_metis),
    ),
    Method(
        name="kaminpar",
        assign=_with_alternatives(assign_kaminpar),
        summary="few cut edges, several threads, not repeatable (multilevel; needs kaminpar)",
        memory=AssignMemory(
            node_bytes=45,
            neighbour_bytes=13.5,
            doubling_bytes=0.15,
            fixed_bytes=16 << 20,
            copies=True,
            least_bytes=3.6,
            most_bytes=37,
            own_process=True,
        ),
        links="adjacency",
        in_memory=False,
        balances=True,
        missing=missing_kaminpar,
        require=_with_alternatives(require_kaminpar),
    ),
    Method(
        name="ldg",
        assign=assign_ldg,
        summary="streaming, linear deterministic greedy: fewer cut edges than random in little memory",
        memory=AssignMemory(node_bytes=9),
        links="rows",
        in_memory=False,
        balances=True,
        reads=frozenset({"passes", "order"}),
    ),
    Method(
        name="fennel",
        assign=assign_fennel,
        summary="streaming like ldg, with Fennel's penalty for large parts",
        memory=AssignMemory(node_bytes=9),
        links="rows",
        in_memory=False,
        balances=True,
        reads=frozenset({"passes", "order"}),
    ),
    Method(
        name="stream",
        assign=_with_alternatives(assign_stream),
        summary="few cut edges in little memory: clusters by streaming, METIS cuts the graph between them",
        memory=AssignMemory(node_bytes=44, fixed_bytes=BUFFER_BYTES),
        links="adjacency",
        in_memory=False,
        balances=True,
        blocks_signals=lambda: libmetis.load() is None,  # pymetis
        missing=missing_metis,
        require=_with_alternatives(require_metis),
        reads=frozenset({"passes", "order", "buffer"}),
    ),
    Method(
        name="random",
        assign=assign_random,
        summary="nodes dealt at random; needs no package",
        memory=AssignMemory(node_bytes=9),
        links="rows",
        in_memory=False,
        balances=False,
    ),
    Method(
        name="range",
        assign=assign_range,
        summary="the input order, cut into runs of equal length",
        memory=AssignMemory(node_bytes=4),
        links="rows",
        in_memory=False,
        balances=False,
    ),
    Method(
        name="file",
        assign=assign_file,
        summary="your own assignment, .npy or text, from --assignment FILE",
        memory=AssignMemory(node_bytes=4),
        links="rows",
        in_memory=False,
        balances=False,
    ),
)
METHODS = {method.name: method for method in _METHODS}

__all__ = [
    "MAX_SEED",
    "METHODS",
    "SPLITS",
    "AssignMemory",
    "Method",
    "PartitionRequest",
    "random_parts",
    "working_methods",
]


def working_methods() -> list[str]:
    """Names of the methods whose packages are there."""
    return [method.name for method in _METHODS if not method.missing()]

"""refine_parts: a pass in which nodes move to the part of most of their links, within capacities."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_double, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np

from fastsample_dist.ops import checks, library
from fastsample_dist.ops.neighbours import Neighbours, _Neighbours, address, array


@library.DECLARED.mirror("FsRefinement")
class _Refinement(Structure):
    """FsRefinement."""

    _fields_ = (
        ("node_loads", c_void_p),
        ("in_offsets", c_void_p),
        ("kinds", c_void_p),
        ("capacities", c_void_p),
        ("floors", c_void_p),
        ("num_limits", c_int32),
        ("num_parts", c_int32),
        ("shed", c_double),
    )


library.DECLARED.prototypes["fs_refine_parts"] = (
    POINTER(_Neighbours), POINTER(_Refinement), c_int64, c_int64, c_int32, c_void_p, c_void_p, POINTER(c_int64),
)  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class PartLimits:
    """What parts may hold, and what nodes count against it.

    Attributes:
      capacities: int64 [num_limits], >= 1; 1 to 10 limits.
      floors: int64 [num_limits]; nodes do not leave a part that would hold less.
      node_loads: int32 [num_nodes, num_limits], >= 0. None: a node counts 1, its in-edges and its kinds:
      in_offsets: int64 [num_nodes + 1]; offsets of the in-edges.
      kinds: uint8 [num_nodes]; bit k counts 1 against limit 2 + k.
    """

    capacities: np.ndarray
    floors: np.ndarray
    node_loads: np.ndarray | None = None
    in_offsets: np.ndarray | None = None
    kinds: np.ndarray | None = None

    def check(self, num_nodes: int) -> None:
        """Refuse arrays of other shapes and dtypes."""
        array("capacities", self.capacities, (np.int64,))
        array("floors", self.floors, (np.int64,), len(self.capacities))
        if self.node_loads is not None:
            array("node_loads", self.node_loads.reshape(-1), (np.int32,), num_nodes * len(self.capacities))
            return
        checks.require(
            self.in_offsets is not None and self.kinds is not None, "pass node_loads, or in_offsets and kinds."
        )
        array("in_offsets", self.in_offsets, (np.int64,), num_nodes + 1)
        array("kinds", self.kinds, (np.uint8,), num_nodes)


def refine_parts(
    graph: Neighbours,
    limits: PartLimits,
    parts: np.ndarray,
    loads: np.ndarray,
    *,
    shed: float = 0.0,
    turns: tuple[int, int] | None = None,
    num_threads: int | None = None,
) -> int:
    """Let the nodes of some turns move, one after the other.

    Args:
      graph: neighbour lists.
      limits: what parts may hold; csrc/include/fastsample_clusters.h has the law.
      parts: int32 [num_nodes]; part of each node, changed in place.
      loads: int64 [num_parts, num_limits]; what the parts hold, kept up to date.
      shed: 0 .. 1; share of its links' weight that a node may lose by leaving a part above a capacity.
      turns: first and end; None: all.
      num_threads: that read rows; the result is the same with any number.
    Returns:
      Number of nodes that moved.
    Raises:
      ValueError: an id, part, offset or capacity out of range, a shape or dtype mismatch.
    Source: Meyerhenke, Sanders and Schulz, SEA 2014, section 4. Cost: O(entries). Deterministic: yes.
    """
    limits.check(graph.num_nodes)
    num_parts, num_limits = loads.shape
    array("parts", parts, (np.int32,), graph.num_nodes)
    array("loads", loads.reshape(-1), (np.int64,), num_parts * len(limits.capacities))
    first, last = turns or (0, graph.num_nodes)
    spec = _Refinement(
        address(limits.node_loads), address(limits.in_offsets), address(limits.kinds), address(limits.capacities),
        address(limits.floors), num_limits, num_parts, shed,
    )  # fmt: skip
    moved = ctypes.c_int64()
    library.call(
        library.core().fs_refine_parts, byref(graph.argument()), byref(spec), first, last,
        library.num_threads(num_threads), address(parts), address(loads), byref(moved),
    )  # fmt: skip
    return moved.value

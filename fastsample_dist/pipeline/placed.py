"""A partition's tables where a device's kernels read them: placed once, for all loaders of a DistData.

On the CPU that is where they are: topology and features as mapped from disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.device.placement import Placement, Table, choose_places, measured_room
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.placed import place_graph, topology_bytes

WHOLE, OWN = "whole", "own"  # topologies that a rank samples from: the graph's, or the in-edges of its own nodes


@dataclass(frozen=True)
class PlacedTables:
    """What sampling and fetching read.

    Attributes:
      graph: rows to sample from, all of them or the rank's own; None where the user's sampler has its own.
      orig_ids: int64 [num_nodes], original id of every node, or None; those of the graph, or of a slice's whole graph.
      features: of the whole graph, split between ranks; None without.
      places: where the tables are, and why.
    """

    graph: CSCGraph | None
    orig_ids: Tensor | None
    features: DistFeatures | None
    places: tuple[Placement, ...] = ()


@dataclass(frozen=True)
class PlacementRequest:
    """How tables are to be placed.

    Attributes:
      device: whose kernels will read.
      choice: "auto", "device" or "pinned", for all tables.
      weighted: edges are drawn by their weights.
      valued: the weights of the edges are read.
      ranks_on_host: ranks that place tables on this machine.
      most_bytes: that the tables may take of the device's memory; None: all that is free but the reserve.
    """

    device: torch.device
    choice: str = "auto"
    weighted: bool = False
    valued: bool = False
    ranks_on_host: int = 1
    most_bytes: int | None = None


def place_tables(tables: PlacedTables, request: PlacementRequest) -> PlacedTables:
    """Place a rank's tables for a device by the rule of device/placement.py, the topology first.

    Args:
      tables: in host memory or mapped.
      request: device and choice.
    Returns:
      The tables for that device; on the CPU the same.
    Raises:
      ValueError: a table fits nowhere, or not where it was asked for; a choice without a GPU; missing weights; there
        is not enough memory.
    """
    graph, orig_ids, features = tables.graph, tables.orig_ids, tables.features
    has_node_map = graph is not None and orig_ids is not None and orig_ids is not graph.orig_ids
    sized = []
    if graph is not None:
        topology = topology_bytes(graph, weighted=request.weighted, valued=request.valued)
        sized.append(Table("topology", topology + (orig_ids.nbytes if has_node_map else 0), request.choice))
    if features is not None:
        sized.append(Table("features", features.local.nbytes, request.choice))
    room = measured_room(request.device, ranks_on_host=request.ranks_on_host).at_most(request.most_bytes)
    places = choose_places(sized, room)
    if request.device.type != "cuda":
        return PlacedTables(graph, orig_ids, features, tuple(places))
    try:
        if graph is not None:
            graph = place_graph(graph, places[0], weighted=request.weighted, valued=request.valued)
            orig_ids = places[0].put(orig_ids) if has_node_map else graph.orig_ids
        moved = None if features is None else features.placed(places[-1])
    except (MemoryError, RuntimeError) as error:  # something else has taken it since it was measured
        reason = str(error).split(". ", 1)[0].rstrip(".")
        raise ValueError(
            f"the tables could not be placed for {request.device} ({reason}); choose placement 'pinned', or end what "
            "else uses the memory."
        ) from error
    return PlacedTables(graph, orig_ids, moved, tuple(places))

"""A partition's tables where a device's kernels read them: placed once, for all loaders of a DistData.

On the CPU that is where they are: topology and features as mapped from disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.placement import (
    Placement,
    Table,
    choose_places,
    measured_room,
    place_graph,
    topology_bytes,
)


@dataclass(frozen=True)
class PlacedTables:
    """What sampling and fetching read.

    Attributes:
      graph: rows to sample from, all of them (hybrid) or the rank's own (vanilla).
      orig_ids: int64 [num_nodes], original id of every node, or None.
      features: of the whole graph, split between ranks; None without.
      places: where the tables are, and why.
    """

    graph: CSCGraph
    orig_ids: Tensor | None
    features: DistFeatures | None
    places: tuple[Placement, ...]


def place_tables(
    graph: CSCGraph,
    orig_ids: Tensor | None,
    features: DistFeatures | None,
    *,
    device: torch.device,
    choice: str = "auto",
    ranks_on_host: int = 1,
) -> PlacedTables:
    """Place a rank's tables for a device by the rule of graph/placement.py, the topology first.

    Args:
      graph, orig_ids, features: as in PlacedTables, in host memory or mapped; orig_ids may be those of the graph.
      device: whose kernels will read.
      choice: "auto", "device" or "pinned", for all tables.
      ranks_on_host: ranks that place tables on this machine.
    Raises:
      ValueError: a table fits nowhere, or not where it was wanted; a choice without a GPU; the memory cannot be had.
    """
    has_node_map = orig_ids is not None and orig_ids is not graph.orig_ids
    tables = [Table("topology", topology_bytes(graph) + (orig_ids.nbytes if has_node_map else 0), choice)]
    if features is not None:
        tables.append(Table("features", features.local.rows.nbytes, choice))
    places = choose_places(tables, measured_room(device, ranks_on_host=ranks_on_host))
    if device.type != "cuda":
        return PlacedTables(graph, orig_ids, features, tuple(places))
    try:
        placed = place_graph(graph, places[0])
        node_map = places[0].put(orig_ids) if has_node_map else placed.orig_ids
        moved = None if features is None else features.placed(places[1])
    except (MemoryError, RuntimeError) as error:  # somebody else took it since it was measured
        reason = str(error).split(". ", 1)[0].rstrip(".")
        raise ValueError(
            f"the tables could not be placed for {device} ({reason}); choose placement 'pinned', or end what else uses "
            "the memory."
        ) from error
    return PlacedTables(placed, node_map, moved, tuple(places))

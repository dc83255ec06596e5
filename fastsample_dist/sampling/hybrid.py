"""The hybrid scheme: every machine maps the whole topology, so sampling needs no communication at all.

Only the features of the sampled nodes travel afterwards: 2 payload exchanges a step, whatever the number of hops
(FastSample, section 3.3).
"""

from __future__ import annotations

import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampleSpec
from fastsample_dist.sampling.neighbor import NeighborSampler


class HybridSampler(NeighborSampler):
    """NeighborSampler over the whole mapped topology, as the hybrid scheme's member of the two schemes.

    Args:
      graph: the whole topology, ids relabelled, with orig_ids.
      spec: method, fanouts, generator key, threads.
      device, kernel: as NeighborSampler's.
      edge_values: give the stored weights of the sampled edges too; needs spec.edge_ids.
    Raises:
      ValueError: as NeighborSampler; edge_values without weights or edge ids.
    """

    def __init__(
        self,
        graph: CSCGraph,
        spec: SampleSpec,
        *,
        device: torch.device | str | None = None,
        kernel: str = "auto",
        edge_values: bool = False,
    ) -> None:
        self._take(graph, spec, device, kernel, edge_values=edge_values)

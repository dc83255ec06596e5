"""The schemes: which topology a rank samples from, and the sampler that does it. REGISTRY has one line for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fastsample_dist.comm.base import Communicator
from fastsample_dist.ops import SampleSpec
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.placed import OWN, WHOLE, PlacedTables
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.sampling.sampler import Sampler
from fastsample_dist.sampling.vanilla import VanillaSampler


@dataclass(frozen=True, kw_only=True)
class SamplerRequest:
    """What a sampler is made of.

    Attributes:
      data: the opened partition.
      spec: method, fanouts, generator key, threads.
      comm: carries what sampling needs.
      tables: what the device that samples reads.
      kernel: of a GPU.
      edge_values: give the stored weights of the sampled edges; needs spec.edge_ids.
      ranks: whose nodes' rows this rank samples by itself, its own among them; () for its own alone.
      exchanges: whether any rank ever asks another.
    """

    data: DistData
    spec: SampleSpec
    comm: Communicator
    tables: PlacedTables
    kernel: str = "auto"
    edge_values: bool = False
    ranks: tuple[int, ...] = ()
    exchanges: bool = True


@dataclass(frozen=True)
class Scheme:
    """One way to divide the topology between ranks.

    Attributes:
      topology: what a rank samples from: placed.WHOLE, or the in-edges of its OWN nodes.
      make: the sampler.
    """

    topology: str
    make: Callable[[SamplerRequest], Sampler]


def _hybrid(given: SamplerRequest) -> Sampler:
    return NeighborSampler.from_spec(given.tables.graph, given.spec, kernel=given.kernel, edge_values=given.edge_values)


def _vanilla(given: SamplerRequest) -> Sampler:
    data, tables = given.data, given.tables
    assert tables.orig_ids is not None  # a partition has them
    ranks = given.ranks or (data.ctx.rank,)
    return VanillaSampler(
        tables.graph, data.rank_book, given.comm, given.spec, tables.orig_ids, kernel=given.kernel,
        first_edge=data.first_edge(min(ranks)), edge_values=given.edge_values, ranks=ranks, exchanges=given.exchanges,
    )  # fmt: skip


HYBRID = "hybrid"
REGISTRY = {
    HYBRID: Scheme(WHOLE, _hybrid),
    "vanilla": Scheme(OWN, _vanilla),
}
SCHEMES = tuple(REGISTRY)


def make_sampler(
    data: DistData,
    scheme: str,
    spec: SampleSpec,
    comm: Communicator,
    *,
    tables: PlacedTables | None = None,
    kernel: str = "auto",
    edge_values: bool = False,
    ranks: tuple[int, ...] = (),
    exchanges: bool = True,
) -> Sampler:
    """The sampler of a scheme.

    Args:
      scheme: one of SCHEMES.
      tables: of the scheme's topology; None: in host memory, for the CPU.
      data, spec, comm, kernel, edge_values, ranks, exchanges: see SamplerRequest.
    Raises:
      ValueError: a kernel that the scheme or the device does not have; missing weights.
    """
    chosen = REGISTRY[scheme]
    tables = tables or data.placed_tables(torch.device("cpu"), chosen.topology, ranks=ranks)
    return chosen.make(
        SamplerRequest(
            data=data, spec=spec, comm=comm, tables=tables, kernel=kernel, edge_values=edge_values, ranks=ranks,
            exchanges=exchanges,
        )
    )  # fmt: skip

"""--verify of `fastsample-bench subgraphs`: what is measured is what the definitions in Python say.

- Small subgraphs of every method and structure: their nodes are those of the oracle, in order (a frontier of the
  measured size would take the oracle minutes).
- Whole subgraphs of every method: their edges are those between their nodes, found by looking at every row again.
- Pools of every number of threads are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import fastsample_dist as fsd
from fastsample_dist.bench.subgraphs.cases import SubgraphCase
from fastsample_dist.bench.subgraphs.measure import SubgraphOptions, Visitor, connected_roots
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops.reference import subgraph_nodes
from fastsample_dist.sampling.subgraph_spec import DASHBOARD, FRONTIER

SMALL = {"budget": 120, "frontier_size": 20}
NUMBERS = (0, 1, 2**63 - 1)


def verify(graph: CSCGraph, options: SubgraphOptions, progress: Callable[[str], object]) -> dict:
    """Compare.

    Args:
      graph: what is walked on.
      options: of the measurement.
      progress: called with a line about what is done next.
    Returns:
      {"failures": one line each, "checks": comparisons made}.
    """
    roots, failures, checks = connected_roots(graph), [], 0
    for comparison in (_against_oracle, _against_rows, _over_threads):
        progress(f"verifying: {comparison.__name__.strip('_').replace('_', ' ')}")
        for name, is_equal in comparison(graph, roots, options):
            checks += 1
            failures += [] if is_equal else [name]
    return {"failures": failures, "checks": checks}


def _against_oracle(graph: CSCGraph, roots: Tensor, options: SubgraphOptions) -> Iterator[tuple[str, bool]]:
    shapes: list[tuple[str, dict]] = [(case.method, {}) for case in options.cases]
    for eta in options.etas:
        shapes += [(FRONTIER, {"structure": DASHBOARD, "eta": eta, "max_degree": clip}) for clip in options.clips]
    for method, shape in shapes:
        spec = SubgraphCase(method=method, **SMALL).spec(rng_seed=options.rng_seed, **shape)
        visitor = Visitor(graph, roots, spec)
        for number in NUMBERS:
            expected = subgraph_nodes(graph, visitor.rule, roots, number)
            found = visitor.visit(number).nodes[0].tolist()
            yield f"{method} {shape}, number {number}: nodes differ from the oracle's", found == expected


def _against_rows(graph: CSCGraph, roots: Tensor, options: SubgraphOptions) -> Iterator[tuple[str, bool]]:
    place = torch.full((graph.num_nodes,), -1)
    for case in options.cases:
        found = fsd.SubgraphSampler(graph, case.spec(rng_seed=options.rng_seed), roots).sample(0)
        nodes = found.nodes.long()
        place[nodes] = torch.arange(nodes.numel())
        degrees = graph.in_degrees()[nodes]
        firsts = (graph.indptr[nodes] - torch.nn.functional.pad(degrees.cumsum(0), (1, 0))[:-1]).repeat_interleave(
            degrees
        )
        local = place[graph.indices[firsts + torch.arange(firsts.numel())].long()]
        rows = torch.arange(nodes.numel()).repeat_interleave(degrees)[local >= 0].bincount(minlength=nodes.numel())
        is_equal = torch.equal(found.indices.long(), local[local >= 0]) and torch.equal(found.indptr.diff(), rows)
        place[nodes] = -1
        yield f"{case.method}: edges differ from those between its nodes", is_equal


def _over_threads(graph: CSCGraph, roots: Tensor, options: SubgraphOptions) -> Iterator[tuple[str, bool]]:
    pools = [
        fsd.SubgraphSampler(
            graph, options.frontier.spec(rng_seed=options.rng_seed, num_threads=threads), roots
        ).sample_many(0, 4)
        for threads in options.threads
    ]
    for threads, pool in zip(options.threads, pools, strict=True):
        is_equal = all(
            torch.equal(one.nodes, other.nodes) and torch.equal(one.indices, other.indices)
            for one, other in zip(pools[0], pool, strict=True)
        )
        yield f"{threads} thread(s): subgraphs differ", is_equal

"""Hits of every policy once more, by sets and sorted lists, on a graph small enough for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from fastsample_dist.bench.cache import measure
from fastsample_dist.bench.cache.accesses import CacheOptions, Rank, choose_train_nodes, make_run
from fastsample_dist.bench.graphs import with_weights
from fastsample_dist.graph.csc import CSCGraph

NODES, EDGES, PARTS, EPOCHS, BATCH = 400, 3000, 2, 3, 12
SHARES = (0.0, 0.01, 0.05, 0.2, 0.6)


def verify(options: CacheOptions) -> dict:
    """Compare the measured hits with those of a slow simulation.

    Returns:
      {"comparisons", "failures": lines}.
    """
    generator = torch.Generator().manual_seed(options.spec.rng_seed)
    src = (torch.rand(EDGES, generator=generator) ** 3 * NODES).long()  # hubs among the sources
    dst = torch.randint(NODES, (EDGES,), generator=generator)
    graph = CSCGraph.from_edge_index(src, dst, NODES)
    if options.spec.traits.weighted:
        graph = with_weights(graph)
    fanouts = tuple(min(fanout, 4) for fanout in options.fanouts)
    small = replace(
        options, spec=replace(options.spec, fanouts=fanouts), batch_size=BATCH, epochs=EPOCHS, shares=SHARES,
        train_share=0.3,
    )  # fmt: skip
    train = choose_train_nodes(graph, torch.empty(0, dtype=torch.int64), small)
    run = make_run(graph, train, torch.linspace(0, NODES, PARTS + 1).long(), small)
    found, expected = measure.measure(run, small, lambda _: None), {}
    for rank in run.ranks:
        for name, hits in slow_hits(rank, small).items():
            expected[name] = [a + b for a, b in zip(expected.get(name, [0] * len(SHARES)), hits, strict=True)]
    failures = [
        f"{name}, {share:.0%} of the nodes: {int(ours)} hits; by sets {theirs}"
        for name, hits in expected.items()
        for share, ours, theirs in zip(SHARES, found.policies[name].hits, hits, strict=True)
        if int(ours) != theirs
    ]
    return {"comparisons": len(expected) * len(SHARES), "failures": failures}


def slow_hits(rank: Rank, options: CacheOptions) -> dict[str, list[int]]:
    """{policy: hits at every share} of one rank, by definition."""
    scores = {name: scorer(rank.workload).tolist() for name, scorer in measure.SCORERS.items()}
    remote = rank.remote.tolist()
    epochs = [[nodes.tolist() for nodes in rank.epoch(number)] for number in range(options.epochs)]
    wanted = [node for steps in epochs for step in steps for node in step]
    scores[measure.ORACLE] = [wanted.count(u) for u in range(NODES)]
    orders = {
        name: sorted((u for u in range(NODES) if remote[u] and of[u] > 0), key=lambda u: (-of[u], u))
        for name, of in scores.items()
    }
    auto = {u: place for place, u in enumerate(orders["auto"])}
    run = [[step for steps in epochs for step in steps]]
    found: dict[str, list[int]] = {}
    for share in options.shares:
        slots = int(share * NODES)
        for name, order in orders.items():
            held = set(order[:slots])
            found.setdefault(name, []).append(sum(u in held for u in wanted))
        known = partial(_keys_of_next_uses, window=options.lookahead, places=auto)
        hits = _replay(epochs, set(orders["auto"][:slots]), slots, known)
        found.setdefault(f"lookahead {options.lookahead}", []).append(hits)
        first = sorted(set(wanted), key=lambda u: (_next(run[0], u), u))[:slots]
        known = partial(_keys_of_next_uses, window=len(run[0]), places={})
        found.setdefault("belady", []).append(_replay(run, set(first), slots, known))
        found.setdefault("lru", []).append(_replay(run, set(), slots, _keys_of_last_uses))
    return found


Key = Callable[[int], object]


def _replay(epochs: list, held: set[int], slots: int, keys: Callable[[list, int, list], Key]) -> int:
    """Hits of a cache that keeps the `slots` smallest keys after every step; keys(steps, number, all uses so far)."""
    hits, past = 0, []
    for steps in epochs:
        for number, step in enumerate(steps):
            hits += len(held & set(step))
            past += step
            held = set(sorted(held | set(step), key=keys(steps, number, past))[:slots])
    return hits


def _keys_of_next_uses(steps: list, number: int, _: list, *, window: int, places: dict[int, int]) -> Key:
    upcoming = steps[number + 1 : number + 1 + window]
    return lambda node: (_next(upcoming, node), places.get(node, NODES + node))


def _keys_of_last_uses(_: list, __: int, past: list) -> Key:
    return lambda node: past[::-1].index(node)


def _next(steps: list, node: int) -> int:
    """How many of the steps come before the first that wants the node."""
    return next((number for number, step in enumerate(steps) if node in step), len(steps))

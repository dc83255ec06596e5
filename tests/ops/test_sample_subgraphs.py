"""sample_subgraphs against the oracles of its parts; the union against what Python makes of the subgraphs."""

import subprocess

import pytest
import torch

from fastsample_dist import CSCGraph, ops
from fastsample_dist.ops import SubgraphRule, SubgraphTables, reference
from fastsample_dist.ops.sampling_graph import SamplingGraph
from tests.ops.graphs import random_csc
from tests.toolchain import CSRC, find_compiler

ISAS = ("scalar", "baseline", "avx2", "avx512")
RULES = {
    "frontier": SubgraphRule(budget=90, frontier_size=20, rng_seed=5),
    "node": SubgraphRule(method="node", budget=70),
    "edge": SubgraphRule(method="edge", budget=50),
    "walk": SubgraphRule(method="walk", budget=61, walk_length=2),
    "ego": SubgraphRule(method="ego", depth=2, fanout=4),
    "dashboard": SubgraphRule(structure="dashboard", budget=120, frontier_size=20, eta=1.01),
}
NUMBERS = [3, 2**63 + 1, 3, 0]


def sampled(graph, rule, numbers=NUMBERS, **options):
    tables = SubgraphTables.of(rule, graph.indptr, graph.orig_ids, torch.arange(graph.num_nodes), graph.indices.dtype)
    view = SamplingGraph(graph.indptr, graph.indices, graph.orig_ids)
    return ops.sample_subgraphs(view, rule, tables, numbers, **options)


def some_flags(num_nodes, share=0.4):
    return torch.rand(num_nodes, generator=torch.Generator().manual_seed(3)) < share


def expected(graph, rule, number, flags=None):
    """(nodes with the loss nodes first, of ego networks roots alone; number of these, offsets, ids, positions)."""
    nodes = reference.subgraph_nodes(graph, rule, torch.arange(graph.num_nodes), number)
    loss = [node for node in (nodes[:1] if rule.method == "ego" else nodes) if flags is None or flags[node]]
    nodes, num_loss = loss + [node for node in nodes if node not in loss], len(loss)
    nodes = torch.tensor(nodes, dtype=graph.indices.dtype)
    return nodes, num_loss, *reference.induced_subgraph(graph.indptr, graph.indices, nodes)


def assert_is(found, nodes, num_loss, indptr, indices, edge_ids):
    assert torch.equal(found.nodes, nodes) and found.num_loss == num_loss
    assert torch.equal(found.indptr, indptr)
    assert torch.equal(found.indices, indices) and found.indices.dtype == nodes.dtype
    assert torch.equal(found.edge_ids, edge_ids)


def joined(parts):
    """The disjoint union, edge by edge: (nodes, num_loss, offsets, ids, positions)."""
    rows = [(p, i) for p, part in enumerate(parts) for i in range(part.num_loss)]
    num_loss = len(rows)
    rows += [(p, i) for p, part in enumerate(parts) for i in range(part.num_loss, part.nodes.numel())]
    place = {row: number for number, row in enumerate(rows)}
    offsets, ids, positions = [0], [], []
    for p, i in rows:
        edges = range(int(parts[p].indptr[i]), int(parts[p].indptr[i + 1]))
        ids += [place[p, int(parts[p].indices[e])] for e in edges]
        positions += [int(parts[p].edge_ids[e]) for e in edges]
        offsets.append(len(ids))
    dtype = parts[0].nodes.dtype
    nodes = torch.tensor([int(parts[p].nodes[i]) for p, i in rows], dtype=dtype)
    return nodes, num_loss, torch.tensor(offsets), torch.tensor(ids, dtype=dtype), torch.tensor(positions)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", RULES)
def test_subgraphs_are_those_of_the_oracles(use_isa, name, dtype, isa):
    use_isa(isa)
    graph, rule = random_csc(dtype=dtype), RULES[name]
    for flags in (None, some_flags(60)):
        found = sampled(graph, rule, loss_flags=flags, edge_ids=True)
        for number, part in zip(NUMBERS, found.graphs, strict=True):
            assert_is(part, *expected(graph, rule, number, flags))
        assert found.num_nodes.tolist() == [part.nodes.numel() for part in found.graphs]
        assert found.num_edges.tolist() == [part.indices.numel() for part in found.graphs]
        assert found.num_loss.tolist() == [part.num_loss for part in found.graphs]
        visits = [len(reference.subgraph_visits(graph, rule, torch.arange(60), number)) for number in NUMBERS]
        assert found.num_visits.tolist() == [part.num_visits for part in found.graphs] == visits


@pytest.mark.parametrize("union", [False, True])
def test_what_a_dashboard_took_is_that_of_the_oracle(union):
    graph, rule = random_csc(), RULES["dashboard"]
    found = sampled(graph, rule, union=union)
    counts = [reference.dashboard_counts(graph, rule, torch.arange(60), number) for number in NUMBERS]
    for name in ("probes", "cleanups", "growths"):
        assert getattr(found, name).tolist() == [own[name] for own in counts]
    assert torch.equal(found.steps, found.num_visits - rule.frontier_size)
    assert 0 < int(found.growths.sum()) < int(found.cleanups.sum()) < int(found.probes.sum())


@pytest.mark.parametrize("numbers", [[7], [4, 9], NUMBERS], ids=len)
@pytest.mark.parametrize("flags", [None, some_flags(60), torch.zeros(60, dtype=torch.uint8)], ids=["all", "some", "no"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_union_is_what_python_makes_of_the_subgraphs(dtype, flags, numbers):
    """With all nodes, some and none of them loss nodes."""
    graph, rule = random_csc(dtype=dtype), RULES["frontier"]
    apart = sampled(graph, rule, numbers, loss_flags=flags, edge_ids=True)
    together = sampled(graph, rule, numbers, loss_flags=flags, edge_ids=True, union=True)
    assert_is(*together.graphs, *joined(apart.graphs))
    assert together.graphs[0].num_visits == apart.num_visits.sum()
    for name in ("num_nodes", "num_edges", "num_loss", "num_visits", "steps"):
        assert torch.equal(getattr(together, name), getattr(apart, name))


def test_a_union_without_edge_ids_has_the_same_edges():
    found = [sampled(random_csc(), RULES["edge"], union=True, edge_ids=wanted).graphs[0] for wanted in (False, True)]
    assert torch.equal(found[0].indices, found[1].indices) and found[0].edge_ids is None


def test_no_numbers_give_no_subgraphs_and_an_empty_union():
    assert sampled(random_csc(), RULES["node"], []).graphs == []
    (empty,) = sampled(random_csc(), RULES["node"], [], union=True).graphs
    assert empty.nodes.numel() == empty.indices.numel() == 0 and empty.indptr.tolist() == [0]


def test_a_rule_without_threads_follows_the_setting_of_torch():
    before, rule = torch.get_num_threads(), SubgraphRule()
    try:
        for num_threads in (1, 3, 1):
            torch.set_num_threads(num_threads)
            assert rule.arguments().num_threads == num_threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("union", [False, True])
@pytest.mark.parametrize("count", [1, 9])
def test_threads_change_nothing(count, union):
    """One number is shared by the threads, more numbers are dealt out."""
    graph = random_csc(num_nodes=3000, num_edges=120_000, seed=4)
    flags = some_flags(3000)
    found = []
    for num_threads in (1, 2, 5):
        rule = SubgraphRule(budget=2500, frontier_size=300, num_threads=num_threads)
        one = sampled(graph, rule, range(count), loss_flags=flags, edge_ids=True, union=union)
        found.append([t for part in one.graphs for t in (part.nodes, part.indptr, part.indices, part.edge_ids)])
    for other in found[1:]:
        assert all(torch.equal(left, right) for left, right in zip(found[0], other, strict=True))


def test_what_is_refused_names_the_operation_and_leaves_nothing():
    graph, rule = random_csc(), RULES["node"]
    damaged = graph.indices.clone()
    damaged[5] = 60
    for union in (False, True):
        with pytest.raises(ValueError, match="sample_subgraphs: the graph holds the source id 60; expected 0 to 59"):
            sampled(CSCGraph(graph.indptr, damaged, orig_ids=graph.orig_ids), rule, range(20), union=union)
    with pytest.raises(ValueError, match="loss_flags has 59 entries; expected 60"):
        sampled(graph, rule, loss_flags=torch.ones(59, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"numbers holds -1; expected 0 to 2\*\*64 - 1"):
        sampled(graph, rule, [0, -1])


UNION_SIZES = """
#include <stdio.h>
#include "union_places.h"

namespace fs {
FsStatus fail(FsStatus status, const char*, ...) { return status; }
}  // namespace fs

int main() {
  int64_t no_edges[1] = {0};
  FsSubgraph parts[3] = {};
  for (FsSubgraph& part : parts) part.edges.indptr = no_edges;
  for (const int64_t last : {0, 1}) {
    parts[0].drawn.num_nodes = parts[1].drawn.num_nodes = (int64_t{1} << 30) - 1;
    parts[2].drawn.num_nodes = 1 + last;  // 2^31 - 1 nodes together, and one more
    const fs::UnionPlaces places(parts, 3);
    printf("%d %d ", places.check<int32_t>("union") == FS_OK, places.check<int64_t>("union") == FS_OK);
  }
}
"""


def test_a_union_of_more_nodes_than_int32_ids_number_is_refused(tmp_path):
    """By the sizes of its parts alone: nodes of so many would take 26 GB."""
    source, program = tmp_path / "sizes.cpp", tmp_path / "sizes"
    source.write_text(UNION_SIZES)
    folders = [f"-I{CSRC / name}" for name in ("cpu", "core", "include")]
    subprocess.run([find_compiler(), "-std=c++17", *folders, str(source), "-o", str(program)], check=True)
    assert subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout == "1 1 0 1 "

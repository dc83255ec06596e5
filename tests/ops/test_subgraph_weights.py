"""node_inclusion, subgraph_weights, edge_fingerprint: against their definition, and what they refuse."""

import math
from dataclasses import replace

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops.reference import subgraph_weights as reference
from tests.ops.graphs import random_csc

ISAS = ("baseline", "avx2", "avx512")


def law_of(kind: str, num_nodes: int, seed: int = 0) -> ops.InclusionLaw:
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(num_nodes, generator=generator, dtype=torch.float64)
    if kind == "draws":
        shares = uniform * 1e-4
        return ops.DrawsLaw(2e-3 * uniform + 0.3 * (uniform > 0.95) + 2 * shares, 700, shares=shares)
    if kind == "odds":
        return ops.DrawsLaw(2e-3 * uniform + 0.3 * (uniform > 0.95), 700)
    if kind == "arrivals":
        chances = torch.full((num_nodes,), 1 / (7 * num_nodes), dtype=torch.float64)
        return ops.DrawsLaw(chances, 40, arrivals=3 * uniform**4, links=1e-3 * uniform)
    if kind == "clusters":
        return ops.ClustersLaw(torch.randint(0, 5, (num_nodes,), generator=generator), 0.25, 0.03)
    bits = torch.randint(-(2**62), 2**62, (num_nodes, 3), generator=generator)
    bits[:, 2] &= 2**22 - 1
    return ops.CountsLaw(bits, 150)


KINDS = ("draws", "odds", "arrivals", "clusters", "counts")


def defined(law: ops.InclusionLaw, u: int, v: int, parallel: int) -> float:
    """P(u, v) by definition."""
    if isinstance(law, ops.DrawsLaw):
        zeros = torch.zeros(law.num_nodes).tolist()
        given = {name: getattr(law, name) for name in ("chances", "arrivals", "links", "shares")}
        columns = {name: zeros if column is None else column.tolist() for name, column in given.items()}
        return reference.drawn_inclusion(law.draws, columns, u, v, parallel)
    if isinstance(law, ops.ClustersLaw):
        return law.same if law.clusters[u] == law.clusters[v] else law.apart
    members = [{i for i in range(law.count) if int(law.bits[node, i // 64]) >> i % 64 & 1} for node in (u, v)]
    return reference.counted_inclusion(*members, law.count)


def rows_of(graph: CSCGraph):
    """(row, its sources) of every node."""
    return [(v, graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()) for v in range(graph.num_nodes)]


def simple_graph(num_nodes: int, num_edges: int) -> CSCGraph:
    """Without parallel edges and self-loops."""
    pairs = torch.randperm(num_nodes * (num_nodes - 1), generator=torch.Generator().manual_seed(1))[:num_edges]
    dst, src = pairs // (num_nodes - 1), pairs % (num_nodes - 1)
    return CSCGraph.from_edge_index(src + (src >= dst), dst, num_nodes)


GRAPHS = {"multigraph": random_csc(40, 300), "simple": simple_graph(40, 900)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_inclusion_is_that_of_the_definition(graph, kind):
    law = law_of(kind, 40)
    expected = [defined(law, u, v, row.count(u)) for v, row in rows_of(graph) for u in row]
    found = ops.subgraph_weights(graph.indptr, graph.indices, law, "inclusion")
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(expected, rel=1e-10)
    nodes = [law.same if kind == "clusters" else defined(law, v, v, 1) for v in range(40)]
    assert ops.node_inclusion(law).tolist() == pytest.approx(nodes, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_ratio_weights_add_up(kind):
    graph, law = random_csc(40, 300), law_of(kind, 40)
    sums = torch.arange(40).double() + 0.5
    found = ops.subgraph_weights(graph.indptr, graph.indices, law, row_sums=sums)
    assert found.dtype == torch.float32
    inclusion = ops.subgraph_weights(graph.indptr, graph.indices, law, "inclusion")
    if kind == "counts":  # weights divide by (c + 1) / (count + 1)
        inclusion = (inclusion * law.count + 1) / (law.count + 1)
    for (v, row), chances in zip(rows_of(graph), inclusion.split(graph.in_degrees().tolist()), strict=True):
        own = found[graph.indptr[v] : graph.indptr[v + 1]]
        assert own.tolist() == pytest.approx(reference.ratio_weights(chances.tolist(), float(sums[v])), rel=1e-6)
        assert not row or float(own.double().sum()) == pytest.approx(float(sums[v]), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_saint_weights_are_the_rows_node_over_the_edge(kind):
    graph, law = random_csc(40, 300), law_of(kind, 40)
    found = ops.subgraph_weights(graph.indptr, graph.indices, law, "saint")
    chances = ops.subgraph_weights(graph.indptr, graph.indices, law, "inclusion")
    nodes = ops.node_inclusion(law).repeat_interleave(graph.in_degrees())
    if kind == "counts":
        nodes, chances = nodes * law.count + 1, chances * law.count + 1
    torch.testing.assert_close(found, (nodes / chances).float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["ratio", "saint", "inclusion"])
@pytest.mark.parametrize("graph", [random_csc(300, 40_000), simple_graph(300, 40_000)], ids=["multigraph", "simple"])
def test_threads_instruction_sets_and_id_types_change_nothing(graph, kind, form, restore_isa):
    law, sums = law_of(kind, 300), graph.in_degrees().double()
    results = []
    for isa in ISAS:
        try:
            ops.set_isa(isa)
        except ValueError:
            continue  # the processor lacks it
        for threads in (1, 3):
            for dtype in (torch.int32, torch.int64):
                arrays = (graph.indptr, graph.indices.to(dtype), law, form)
                results.append(ops.subgraph_weights(*arrays, row_sums=sums, num_threads=threads))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.fixture
def restore_isa():
    before = ops.isa()
    yield
    ops.set_isa(before)


def test_nodes_are_looked_at_in_blocks():
    law = law_of("draws", 600)
    expected = [defined(law, v, v, 1) for v in (0, 255, 256, 511, 512, 599)]
    assert ops.node_inclusion(law)[[0, 255, 256, 511, 512, 599]].tolist() == pytest.approx(expected, rel=1e-12)


def test_small_probabilities_keep_their_digits():
    law = ops.DrawsLaw(torch.full((2,), 1e-12, dtype=torch.float64), 1000)
    found = ops.subgraph_weights(torch.tensor([0, 1, 1]), torch.tensor([1]), law, "inclusion")
    assert float(found) == pytest.approx(1000 * 999 * 1e-24, rel=1e-9)  # 1 - 2 miss + miss both would be 0
    assert ops.node_inclusion(law).tolist() == pytest.approx([1e-9] * 2, rel=1e-9)


def test_certain_nodes():
    law = ops.DrawsLaw(torch.tensor([1.0, 0.25], dtype=torch.float64), 8)
    found = ops.subgraph_weights(torch.tensor([0, 1, 1]), torch.tensor([1]), law, "inclusion")
    assert float(found) == pytest.approx(1 - 0.75**8)
    halves = ops.DrawsLaw(torch.tensor([0.5, 0.5], dtype=torch.float64), 4)
    found = ops.subgraph_weights(torch.tensor([0, 1, 1]), torch.tensor([1]), halves, "inclusion")
    assert float(found) == pytest.approx(1 - 2 * 0.5**4)


@pytest.mark.parametrize("certain", [1.0, 1 - 2.0**-53])
@pytest.mark.parametrize("given", [{}, {"links": 0.01}, {"arrivals": 0.5, "links": 0.01}, {"shares": 1e-3}])
@pytest.mark.parametrize("draws", [1, 8])
def test_an_edge_of_a_certain_node_is_there_where_its_other_end_is(draws, given, certain):
    """Nodes 0 and 1 are certain, node 2 is not; parallel edges and loops, which take paths of their own. With a
    single draw nothing covers up what a certain node's odds, which are infinite, would spoil.
    """
    chances = torch.tensor([certain, certain, 0.25], dtype=torch.float64)
    columns = {name: torch.full((3,), value, dtype=torch.float64) for name, value in given.items()}
    law = ops.DrawsLaw(chances, draws, **columns)
    indptr, sources = torch.tensor([0, 3, 5, 8]), torch.tensor([0, 1, 2, 0, 1, 0, 1, 1])
    nodes = ops.node_inclusion(law).tolist()
    assert nodes[:2] == [1.0, 1.0] and nodes[2] < 1
    assert nodes[2] == pytest.approx(1 - 0.75**draws * math.exp(-given.get("arrivals", 0)), rel=1e-12)
    found = ops.subgraph_weights(indptr, sources, law, "inclusion").tolist()
    assert found == [1, 1, nodes[2], 1, 1, nodes[2], nodes[2], nodes[2]]


def test_all_nodes_are_certain():
    """All have the same odds, for which one term serves all edges."""
    law = ops.DrawsLaw(torch.ones(3, dtype=torch.float64), 8)
    found = ops.subgraph_weights(torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 0]), law, "inclusion")
    assert found.tolist() == [1.0] * 3


def test_a_subgraph_without_nodes_or_edges():
    nothing = ops.DrawsLaw(torch.zeros(0, dtype=torch.float64), 5)
    empty = torch.zeros(0, dtype=torch.int32)
    assert ops.subgraph_weights(torch.zeros(1, dtype=torch.int64), empty, nothing, "saint").numel() == 0
    lonely = law_of("draws", 3)
    zeros = torch.zeros(4, dtype=torch.int64)
    assert ops.subgraph_weights(zeros, empty, lonely, row_sums=torch.ones(3, dtype=torch.float64)).numel() == 0


def test_what_is_refused():
    graph, law = random_csc(40, 300), law_of("draws", 40)
    for bad in (40, -3):
        wrong = graph.indices.clone()
        wrong[7] = bad
        with pytest.raises(ValueError, match=rf"id {bad} .* 0 to 39"):
            ops.subgraph_weights(graph.indptr, wrong, law, "saint")
    for row, end in ((5, -1), (5, 301), (6, 0)):
        indptr = graph.indptr.clone()
        indptr[row] = end
        with pytest.raises(ValueError, match="indptr of node .* runs from"):
            ops.subgraph_weights(indptr, graph.indices, law, "saint")
    for first in (1, 7):
        shifted = graph.indptr.clamp(min=first)
        with pytest.raises(ValueError, match=f"indptr runs from {first} to 300 but .* 300 entries; expected 0 to 300"):
            ops.subgraph_weights(shifted, graph.indices, law, "saint")
    with pytest.raises(ValueError, match="form is 'mean'; expected one of 'inclusion', 'ratio', 'saint'"):
        ops.subgraph_weights(graph.indptr, graph.indices, law, "mean")
    with pytest.raises(ValueError, match="row_sums is None; form 'ratio' needs the sum of every row"):
        ops.subgraph_weights(graph.indptr, graph.indices, law)
    with pytest.raises(ValueError, match="indptr has 41 entries; expected 40"):
        ops.subgraph_weights(graph.indptr, graph.indices, law_of("draws", 39), "saint")
    with pytest.raises(ValueError, match="2 words for 150 counted subgraphs; expected one bit each"):
        ops.node_inclusion(ops.CountsLaw(law_of("counts", 5).bits[:, :2], 150))
    with pytest.raises(ValueError, match="num_threads is 0; expected an integer from 1 to 1024"):
        ops.subgraph_weights(graph.indptr, graph.indices, law, "saint", num_threads=0)


@pytest.mark.parametrize(("kind", "column"), [("draws", "chances"), ("clusters", "clusters"), ("counts", "bits")])
def test_tensors_that_are_not_in_host_memory_are_refused(kind, column):
    graph, law = random_csc(40, 300), law_of(kind, 40)
    elsewhere = replace(law, **{column: getattr(law, column).to("meta")})
    line = rf"^{column} is on meta; expected host memory: pass {column}.cpu\(\)\.$"
    with pytest.raises(ValueError, match=line):
        ops.node_inclusion(elsewhere)
    with pytest.raises(ValueError, match=line):
        ops.subgraph_weights(graph.indptr, graph.indices, elsewhere, "saint")
    with pytest.raises(ValueError, match="indices is on meta"):
        ops.subgraph_weights(graph.indptr, graph.indices.to("meta"), law, "saint")
    with pytest.raises(ValueError, match="indptr is on meta"):
        ops.edge_fingerprint(graph.indptr.to("meta"), graph.indices)


@pytest.mark.parametrize(("indptr", "row"), [([0, 10**9], 0), ([0, 3, 2, 3], 1), ([-4, 3], 0)])
def test_the_fingerprint_refuses_damaged_offsets(indptr, row):
    with pytest.raises(ValueError, match=f"edge_fingerprint: indptr of node {row} runs from .* up to 3"):
        ops.edge_fingerprint(torch.tensor(indptr), torch.zeros(3, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_fingerprint_tells_symmetric_graphs(dtype):
    src, dst = torch.randint(0, 50, (2, 400), generator=torch.Generator().manual_seed(0))
    both = CSCGraph.from_edge_index(torch.cat([src, dst]), torch.cat([dst, src]), 50)
    found = [ops.edge_fingerprint(both.indptr, both.indices.to(dtype), num_threads=n) for n in (1, 3)]
    assert all(each.is_symmetric for each in found)
    loops = torch.bincount(src[src == dst], minlength=50) * 2
    assert all(torch.equal(each.loops.long(), loops) for each in found)
    one_more = torch.cat([src, dst, src[1:2]]), torch.cat([dst, src, dst[1:2]])  # once more, in one direction
    assert int(src[1]) != int(dst[1])
    directed = CSCGraph.from_edge_index(*one_more, 50)
    assert not ops.edge_fingerprint(directed.indptr, directed.indices.to(dtype)).is_symmetric


def test_the_fingerprint_of_no_edges():
    found = ops.edge_fingerprint(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))
    assert found.is_symmetric and found.loops.tolist() == [0, 0, 0]


def test_exponents_far_from_one():
    law = ops.DrawsLaw(torch.tensor([0.0, 0.0], dtype=torch.float64), 1, arrivals=torch.tensor([1e-7, 900.0]).double())
    assert ops.node_inclusion(law).tolist() == pytest.approx([-math.expm1(-float(torch.tensor(1e-7))), 1.0], rel=1e-12)

"""SubgraphSampler: subgraphs against their definition, the same under any numbering, and as mini-batches."""

import weakref

import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist import ops
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import reference
from fastsample_dist.testing.graphs import relabelled
from tests.ops.graphs import random_csc

SPECS = {
    "frontier": fsd.SubgraphSpec("frontier", 60, 8),
    "clipped": fsd.SubgraphSpec("frontier", 60, 8, max_degree=4, count_subgraphs=70),
    "dashboard": fsd.SubgraphSpec("frontier", 60, 8, structure="dashboard"),
    "node": fsd.SubgraphSpec("node", 30),
    "edge": fsd.SubgraphSpec("edge", 15),
    "walk": fsd.SubgraphSpec("walk", 40, walk_length=3, count_subgraphs=65),
    "cluster": fsd.SubgraphSpec("cluster", clusters_per_batch=2),
    "ego": fsd.SubgraphSpec("ego", depth=2, fanout=3),
}
NUM_NODES = 80


def symmetric(dtype: torch.dtype = torch.int32, seed: int = 0) -> CSCGraph:
    """With self-loops, parallel edges, isolated nodes and original ids far apart."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(0, NUM_NODES * 7 // 8, (2, 260), generator=generator)
    dst[:12] = src[:12]
    src[12:30], dst[12:30] = src[30:48].clone(), dst[30:48].clone()
    graph = CSCGraph.from_edge_index(torch.cat([src, dst]), torch.cat([dst, src]), NUM_NODES)
    assert bool((graph.in_degrees() == 0).any())
    ids = torch.arange(NUM_NODES) * (2**33 + 1)
    return CSCGraph(graph.indptr, graph.indices.to(dtype), orig_ids=ids)


def clusters_of(graph: CSCGraph) -> torch.Tensor:
    """Five clusters, by original id."""
    return (graph.orig_ids // (2**33 + 1) * 7 % 5).int()


def sampler_of(name: str, graph: CSCGraph, **changed) -> fsd.SubgraphSampler:
    spec = SPECS[name] if not changed else fsd.SubgraphSpec(**{**vars_of(SPECS[name]), **changed})
    return fsd.SubgraphSampler(graph, spec, clusters=clusters_of(graph) if name == "cluster" else None)


def vars_of(spec: fsd.SubgraphSpec) -> dict:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def edges_between(graph: CSCGraph, nodes: list[int]) -> list[list[int]]:
    """By node, the local ids of its in-neighbours in the subgraph, in the order of the graph's row."""
    local = {node: i for i, node in enumerate(nodes)}
    rows = [graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist() for v in nodes]
    return [[local[u] for u in row if u in local] for row in rows]


def rows_of(indptr: torch.Tensor, values: torch.Tensor) -> list[list]:
    return [part.tolist() for part in values.split(indptr.diff().tolist())]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", SPECS)
def test_a_subgraph_is_that_of_the_definition(name, dtype):
    graph = symmetric(dtype)
    sampler = sampler_of(name, graph)
    clusters = clusters_of(graph) if name == "cluster" else None
    for found in sampler.sample_many(3, 2):
        roots = torch.arange(NUM_NODES)
        visits = reference.subgraph_visits(graph, sampler.spec.rule, roots, found.number, clusters)
        nodes = list(dict.fromkeys(visits))
        assert found.nodes.tolist() == nodes and found.nodes.dtype == found.indices.dtype == dtype
        assert rows_of(found.indptr, found.indices) == edges_between(graph, nodes)
        assert found.num_visits == len(visits)


@pytest.mark.parametrize("name", SPECS)
def test_numbering_changes_nothing(name):
    graph = symmetric()
    other, _ = relabelled(graph, seed=1)
    for weights in ("ratio", "saint") if name != "ego" else ("none",):
        found, again = (sampler_of(name, each, weights=weights).sample(7) for each in (graph, other))
        assert torch.equal(graph.orig_ids[found.nodes], other.orig_ids[again.nodes])
        assert torch.equal(found.indptr, again.indptr) and torch.equal(found.indices, again.indices)
        assert name == "ego" or torch.equal(found.edge_weights, again.edge_weights)
    loss = torch.arange(0, NUM_NODES, 3)
    ids = torch.argsort(torch.argsort(other.orig_ids))  # original node of each one of `other`
    same = torch.nonzero(ids % 3 == 0).reshape(-1)
    assert sampler_of(name, graph).num_subgraphs(loss) == sampler_of(name, other).num_subgraphs(same)


@pytest.mark.parametrize("name", SPECS)
def test_threads_and_pools_change_nothing(name):
    graph = symmetric()
    one, three = (sampler_of(name, graph, num_threads=threads).sample_many(0, 5) for threads in (1, 3))
    alone = [sampler_of(name, graph).sample(number) for number in range(5)]
    for found in zip(one, three, alone, strict=True):
        for field in ("nodes", "indptr", "indices", "edge_weights"):
            first, *others = (getattr(subgraph, field) for subgraph in found)
            assert all((first is None and other is None) or torch.equal(first, other) for other in others)


@pytest.mark.parametrize("weights", ["ratio", "saint", "none"])
def test_a_batch_is_the_disjoint_union_with_loss_nodes_first(weights):
    graph = symmetric()
    sampler = sampler_of("frontier", graph, weights=weights)
    loss = torch.arange(0, NUM_NODES, 3)
    numbers = [4, 9, 2]
    batch = sampler.batch(numbers, num_layers=3, loss_nodes=loss, step=5)
    parts = [sampler.sample(number) for number in numbers]
    is_loss = [torch.isin(part.nodes, loss) for part in parts]
    expected = [part.nodes[mask] for part, mask in zip(parts, is_loss, strict=True)]
    num_loss = sum(map(len, expected))
    expected += [part.nodes[~mask] for part, mask in zip(parts, is_loss, strict=True)]
    assert torch.equal(batch.input_nodes, torch.cat(expected))
    assert torch.equal(batch.seeds, batch.input_nodes[:num_loss])
    assert batch.draw.step == 5 and batch.draw.rng_seed == sampler.spec.rng_seed

    square, same, last = batch.mfgs
    assert square is same and square.num_dst == square.num_src == batch.input_nodes.numel()
    assert last.num_dst == num_loss and torch.equal(last.src_nodes, batch.input_nodes)
    assert last.indices.data_ptr() == square.indices.data_ptr()
    place = torch.empty(square.num_src, dtype=torch.int64)  # of every node of the parts, one part behind the other
    order = torch.cat(is_loss)
    place[torch.cat([torch.nonzero(order), torch.nonzero(~order)]).reshape(-1)] = torch.arange(square.num_src)
    before = 0
    for part in parts:
        for row in range(part.num_nodes):
            own, mine = slice(*part.indptr[row : row + 2].tolist()), int(place[before + row])
            there = slice(*square.indptr[mine : mine + 2].tolist())
            assert place[before + part.indices[own].long()].tolist() == square.indices[there].tolist()
            if weights != "none":
                assert torch.equal(part.edge_weights[own], square.edge_weights[there])
        before += part.num_nodes
    assert last.num_edges == int(square.indptr[num_loss])
    if weights == "none":
        assert square.edge_weights is None and batch.seed_weights is None


@pytest.mark.parametrize("name", ["frontier", "node"])
def test_ratio_weights_add_up_to_the_degree_in_the_graph(name):
    """Nodes that are drawn alone lose some of them all their edges."""
    graph = symmetric()
    batch = sampler_of(name, graph).batch([0, 1])
    square = batch.mfgs[0]
    sums = [sum(row) for row in rows_of(square.indptr, square.edge_weights)]
    degrees = graph.in_degrees()[batch.input_nodes.long()]
    kept = square.indptr.diff() > 0
    assert bool((degrees[~kept] > 0).any()) == (name == "node")
    assert torch.tensor(sums)[kept].tolist() == pytest.approx(degrees[kept].tolist(), rel=1e-5)
    assert square.row_sums.tolist() == torch.where(kept, degrees, 0).tolist()
    assert batch.seed_weights is None


def test_saint_weights_come_with_their_divisors():
    graph = symmetric()
    sampler, loss = sampler_of("node", graph, weights="saint"), torch.arange(0, NUM_NODES, 2)
    batch = sampler.batch(3, num_layers=2, loss_nodes=loss)
    square, last = batch.mfgs
    assert torch.equal(square.row_sums.long(), graph.in_degrees()[batch.input_nodes.long()])
    assert torch.equal(last.row_sums, square.row_sums[: last.num_dst])
    chances = sampler.inclusion.node_probability(batch.seeds)
    mean = sampler.inclusion.node_probability(loss).mean()
    torch.testing.assert_close(batch.seed_weights, (mean / chances).float())


def test_counted_loss_weights_count_one_more():
    graph = symmetric()
    sampler, loss = sampler_of("walk", graph, weights="saint"), torch.arange(0, NUM_NODES, 2)
    batch = sampler.batch(3, loss_nodes=loss)
    bits, total = sampler.count(), sampler.spec.count_subgraphs
    counts = torch.tensor([sum((word >> i & 1) for word in row for i in range(64)) for row in bits.tolist()])
    expected = counts[loss].sum() / total / loss.numel() * (total + 1) / (counts[batch.seeds.long()] + 1)
    torch.testing.assert_close(batch.seed_weights, expected.float())


def test_what_is_counted_later_counts_for_an_epoch():
    sampler, loss = sampler_of("frontier", symmetric()), torch.arange(5)
    assert sampler.num_subgraphs(loss) > 0
    sampler.use_counts(torch.zeros_like(sampler.count()))
    with pytest.raises(ValueError, match=r"no subgraph can hold any of the 5 loss_nodes"):
        sampler.num_subgraphs(loss)


def test_the_first_step_is_a_step():
    assert [sampler_of("node", symmetric()).batch([4, 9], step=step).step for step in (0, 3, None)] == [0, 3, 4]


def test_an_ego_network_asks_for_its_root():
    graph = symmetric()
    sampler = fsd.SubgraphSampler(graph, SPECS["ego"], roots=torch.arange(10, 20))
    assert sampler.num_subgraphs() == 10
    batch = sampler.batch(range(10), num_layers=2)
    assert sorted(batch.seeds.tolist()) == list(range(10, 20))
    assert batch.mfgs[-1].num_dst == 10 and batch.mfgs[0].edge_weights is None


def test_a_batch_without_a_loss_node_or_a_subgraph():
    sampler = sampler_of("frontier", symmetric(), weights="saint")
    for batch in (sampler.batch(0, loss_nodes=[]), sampler.batch([], loss_nodes=torch.arange(5))):
        assert batch.seeds.numel() == 0 and batch.mfgs[-1].num_dst == 0 and batch.mfgs[-1].num_edges == 0
        assert float(batch.mean_loss(torch.zeros(0))) == 0.0
    assert batch.input_nodes.numel() == 0 and batch.mfgs[0].num_edges == 0


@pytest.mark.parametrize("name", ["frontier", "node", "edge", "walk"])
def test_a_graph_without_edges(name):
    graph = CSCGraph(torch.zeros(9, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))
    sampler = fsd.SubgraphSampler(graph, SPECS[name])
    found = sampler.sample(0)
    assert found.num_edges == 0 and found.num_visits < SPECS[name].budget
    assert (found.num_nodes == 0) == (name in ("node", "edge"))
    assert sampler.batch(0).mfgs[0].num_edges == 0


def test_walkers_may_outnumber_the_roots():
    graph = symmetric()
    sampler = fsd.SubgraphSampler(graph, fsd.SubgraphSpec(budget=40, frontier_size=40), roots=[3, 3, 5])
    found = sampler.sample(0)
    assert set(found.nodes.tolist()) == {3, 5} and found.num_visits == 40


def test_loss_nodes_are_covered_once_on_average():
    graph = symmetric()
    loss = torch.arange(0, NUM_NODES, 3)
    for name in ("frontier", "node", "walk"):
        sampler = sampler_of(name, graph)
        number = sampler.num_subgraphs(loss)
        mean = float(sampler.inclusion.node_probability(loss).mean())
        assert number - 1 < 1 / mean <= number
        assert sampler.num_subgraphs([]) == 0
    assert sampler_of("cluster", graph).num_subgraphs() == 3
    isolated = torch.nonzero(graph.in_degrees() == 0).reshape(-1)
    with pytest.raises(ValueError, match=r"no subgraph can hold any of the \d+ loss_nodes"):
        sampler_of("node", graph).num_subgraphs(isolated)


def test_clusters_below_0_are_left_out():
    graph = symmetric()
    clusters = clusters_of(graph)
    clusters[clusters == 2] = -1
    sampler = fsd.SubgraphSampler(graph, SPECS["cluster"], clusters=clusters)
    assert sampler.num_subgraphs() == 2
    nodes = torch.cat([found.nodes for found in sampler.sample_many(0, 2)])
    assert sorted(nodes.tolist()) == torch.nonzero(clusters >= 0).reshape(-1).tolist()
    assert bool((sampler.inclusion.node_probability(torch.arange(NUM_NODES)) == 0.5 * (clusters >= 0)).all())


def test_shares_of_the_counting_add_up():
    graph = symmetric()
    whole, shared = sampler_of("walk", graph), sampler_of("walk", graph)
    assert whole.needs_counts
    bits = sum(shared.count(share=(rank, 3)) for rank in range(3))
    assert torch.equal(bits, whole.count())
    shared.use_counts(bits)
    assert torch.equal(shared.sample(1).edge_weights, whole.sample(1).edge_weights)
    for i in (0, 63, 64):
        nodes = reference.subgraph_visits(graph, whole.spec.rule, torch.arange(NUM_NODES), 2**63 + i)
        has = (bits[:, i // 64] >> i % 64) & 1
        assert torch.nonzero(has).reshape(-1).tolist() == sorted(set(nodes))
    with pytest.raises(ValueError, match=r"bits is torch\.int64 of shape \(80, 1\); expected torch\.int64 \(80, 2\)"):
        shared.use_counts(bits[:, :1])


DIRECTED = random_csc(NUM_NODES, 500)


def test_closed_forms_are_refused_where_there_are_none():
    for name, graph, roots, reason in (
        ("frontier", DIRECTED, None, "the graph is directed"),
        ("edge", DIRECTED, None, "the graph is directed"),
        ("frontier", symmetric(), torch.arange(9), "the roots are not all nodes that have in-neighbours"),
    ):
        spec = fsd.SubgraphSpec(**{**vars_of(SPECS[name]), "inclusion": "closed"})
        with pytest.raises(ValueError, match=rf"inclusion is 'closed' but {reason}.*inclusion='counts'") as refused:
            fsd.SubgraphSampler(graph, spec, roots).sample(0)
        assert "\n" not in str(refused.value)
        automatic = fsd.SubgraphSampler(graph, SPECS[name], roots)
        assert automatic.needs_counts and automatic.sample(0).edge_weights is not None


def test_frontiers_may_leave_out_the_roots_where_no_walker_moves():
    graph = symmetric()
    connected = torch.nonzero(graph.in_degrees() > 0).reshape(-1)
    assert not fsd.SubgraphSampler(graph, SPECS["frontier"], connected).needs_counts


@pytest.mark.parametrize("method", ["frontier", "edge"])
def test_of_a_closed_form_two_numbers_per_node_are_kept(method, monkeypatch):
    made = []
    real = ops.edge_fingerprint
    monkeypatch.setattr(ops, "edge_fingerprint", lambda *given: made.append(real(*given)) or made[-1])
    sampler = sampler_of(method, symmetric())
    inclusion = sampler.inclusion
    loops = weakref.ref(made.pop().loops)
    assert loops() is None
    kept = [
        value for owner in (sampler, inclusion) for value in vars(owner).values() if isinstance(value, torch.Tensor)
    ]
    assert [tensor.nbytes for tensor in kept] == [NUM_NODES * 8] * 2


def tensor_bytes(*holders: object) -> int:
    """Of the tensors that are attributes."""
    return sum(value.nbytes for one in holders for value in vars(one).values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize(("method", "per_root"), [("frontier", 4), ("walk", 4), ("ego", 4), ("edge", 8), ("node", 12)])
def test_of_some_roots_nothing_is_kept_per_node_of_the_graph(method, per_root):
    """A rank with many parts has a sampler for each (locality="own")."""
    graph, roots = symmetric(), torch.arange(6)
    sampler = fsd.SubgraphSampler(graph, fsd.SubgraphSpec(method, weights="none"), roots)
    assert 0 < tensor_bytes(sampler, sampler._tables) <= per_root * len(roots) + 8
    sampler.batch(0, loss_nodes=roots)
    assert (
        tensor_bytes(sampler, sampler._loss) == tensor_bytes(sampler) + roots.nbytes + NUM_NODES
    )  # and a flag of each


def test_of_roots_that_repeat_a_closed_form_keeps_a_byte_per_node():
    graph = symmetric()
    for repeats, dtype in ((255, torch.uint8), (256, torch.int64)):
        roots = torch.cat([torch.arange(5), torch.full((repeats,), 7)])
        law = fsd.SubgraphSampler(graph, fsd.SubgraphSpec("node", 9), roots).inclusion
        assert law._root_counts.dtype == dtype and law._root_counts.tolist() == roots.bincount(minlength=80).tolist()
        shares = (graph.in_degrees() * law._root_counts.long()).double()
        expected = 1 - (1 - shares / shares.sum()) ** 9
        torch.testing.assert_close(law.node_probability(torch.arange(NUM_NODES)), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("dtype", "per_node"), [(torch.int32, 8), (torch.int64, 16)], ids=str)
def test_of_clusters_two_ids_per_node_are_kept(dtype, per_node):
    graph = symmetric(dtype)
    sampler = sampler_of("cluster", graph)
    offsets = sampler._tables.cluster_offsets.nbytes
    assert tensor_bytes(sampler, sampler._tables) - offsets == per_node * NUM_NODES


@pytest.mark.parametrize(("dtype", "per_node", "per_edge"), [(torch.int32, 16, 8), (torch.int64, 20, 12)], ids=str)
def test_bytes_of_a_batch(dtype, per_node, per_edge):
    batch = sampler_of("node", symmetric(dtype)).batch(0, 3, range(0, NUM_NODES, 4))
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in batch.tensors()}
    square = batch.mfgs[0]
    assert sum(storages.values()) == per_node * square.num_src + 8 + per_edge * square.num_edges


def test_drawing_nodes_has_a_closed_form_on_every_graph():
    assert not fsd.SubgraphSampler(DIRECTED, SPECS["node"]).needs_counts


def test_what_is_refused():
    graph = symmetric()
    refused = {
        "method is 'cluster' but no clusters were given": lambda: fsd.SubgraphSampler(graph, SPECS["cluster"]),
        "method is 'node' but clusters were given": lambda: fsd.SubgraphSampler(
            graph, SPECS["node"], clusters=clusters_of(graph)
        ),
        "clusters has 3 entries; expected 80": lambda: fsd.SubgraphSampler(
            graph, SPECS["cluster"], clusters=torch.zeros(3, dtype=torch.int32)
        ),
        "no node is in a cluster": lambda: fsd.SubgraphSampler(
            graph, SPECS["cluster"], clusters=torch.full((NUM_NODES,), -1)
        ),
        "clusters is torch.float32; expected integer cluster numbers": lambda: fsd.SubgraphSampler(
            graph, SPECS["cluster"], clusters=torch.zeros(NUM_NODES)
        ),
        "clusters_per_batch is 2 but there are 1 clusters": lambda: fsd.SubgraphSampler(
            graph, SPECS["cluster"], clusters=torch.zeros(NUM_NODES).int()
        ),
        "roots is given but method is 'cluster'": lambda: fsd.SubgraphSampler(
            graph, SPECS["cluster"], [1], clusters=clusters_of(graph)
        ),
        "graph is a Tensor; expected a fsd.CSCGraph": lambda: fsd.SubgraphSampler(graph.indices, SPECS["node"]),
        "spec is a str; expected a fsd.SubgraphSpec": lambda: fsd.SubgraphSampler(graph, "node"),
        "roots is a set; expected a tensor or list": lambda: fsd.SubgraphSampler(graph, SPECS["node"], {1, 2}),
        "roots is empty": lambda: fsd.SubgraphSampler(graph, SPECS["node"], roots=[]),
        "roots holds nodes from 0 to 80": lambda: fsd.SubgraphSampler(graph, SPECS["node"], roots=[0, 80]),
        "a subgraph's number is -1": lambda: sampler_of("node", graph).sample(-1),
        "a subgraph's number is 9223372036854775808": lambda: sampler_of("node", graph).batch(2**63),
        "a subgraph's number is 1.5": lambda: sampler_of("node", graph).batch([1.5]),
        "a subgraph's number is '3'": lambda: sampler_of("node", graph).sample("3"),
        "count is -1": lambda: sampler_of("node", graph).sample_many(0, -1),
        "count is 1048577": lambda: sampler_of("node", graph).sample_many(0, 2**20 + 1),
        "step is -1": lambda: sampler_of("node", graph).batch(0, step=-1),
        "loss_nodes is torch.bool; expected integer node ids; of a mask pass loss_nodes.nonzero()": lambda: sampler_of(
            "node", graph
        ).batch(0, loss_nodes=graph.in_degrees() > 0),
        "nodes holds node ids from 80 to 80": lambda: sampler_of("node", graph).inclusion.node_probability([80]),
        "u has 1 nodes and v has 2": lambda: sampler_of("node", graph).inclusion.edge_probability([1], [1, 2]),
        "num_layers is 0": lambda: sampler_of("node", graph).batch(0, num_layers=0),
        "loss_nodes holds node ids from 2 to 80": lambda: sampler_of("node", graph).batch(0, loss_nodes=[2, 80]),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError) as found:
            call()
        assert message in str(found.value) and "\n" not in str(found.value)

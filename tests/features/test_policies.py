"""Policies: what each scores, what is refused, and the replacement rule against sorted lists."""

import random

import pytest
import torch

from fastsample_dist.features import policies
from fastsample_dist.graph import hotness
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampleSpec
from fastsample_dist.sampling.neighbor import NeighborSampler

NODES, BATCH, STEPS = 120, 5, 4
EPOCHS = [(0, 0), (1, STEPS), (2, 2 * STEPS)]


@pytest.fixture(scope="module")
def graph():
    generator = torch.Generator().manual_seed(0)
    src = (torch.rand(900, generator=generator) ** 3 * NODES).long()
    return CSCGraph.from_edge_index(
        src,
        torch.randint(NODES, (900,), generator=generator),
        NODES,
        1.0 + torch.randint(9, (900,), generator=generator),
    )


class Epochs:
    """`Workload.sample`, noting what it was asked for."""

    def __init__(self, graph, spec, train):
        self.sampler, self.train, self.asked = NeighborSampler.from_spec(graph, spec), train, []

    def __call__(self, epoch, first_step):
        self.asked.append((epoch, first_step))
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(epoch % 2**62))
        for number, seeds in enumerate(self.train[order].split(BATCH)):
            yield self.sampler.sample(seeds, first_step + number).input_nodes


def workload(graph, *, known=True, **spec):
    drawn = SampleSpec(fanouts=(4, 3), **spec)
    train = torch.arange(0, NODES, 7)  # 18 of them: 4 batches
    return policies.Workload(
        graph=graph, train_nodes=train, batch_size=BATCH, rng_seed=0, spec=drawn if known else None,
        steps_per_epoch=STEPS, sample=Epochs(graph, drawn, train),
    )  # fmt: skip


@pytest.mark.parametrize("method", ["uniform", "weighted", "labor"])
def test_auto_is_vip_where_it_has_a_model_of_the_draws(method):
    assert policies.resolve("auto", SampleSpec(fanouts=(2,), method=method)) == "vip"


def test_auto_presamples_what_it_has_no_model_of():
    assert policies.resolve("auto", None) == "presample"
    assert policies.resolve("degree", None) == "degree"


def test_unknown_policies_and_vip_without_a_model_are_refused():
    with pytest.raises(ValueError, match="cache policy is 'hot'; expected one of auto, vip, presample"):
        policies.check_policy("hot", None)
    with pytest.raises(ValueError, match="'vip', which knows the library's neighbour samplers only"):
        policies.check_policy("vip", None)


@pytest.mark.parametrize("method", ["uniform", "weighted", "labor"])
def test_scores_are_expected_visits(graph, method):
    given = workload(graph, method=method)
    vip = hotness.vip(graph, given.train_nodes, BATCH, (4, 3), method=method)
    assert torch.equal(policies.score("vip", given), 4 * vip)
    visits = policies.presample(given, 3)
    assert torch.equal(policies.score("presample", given, presample_epochs=3), (visits << 32) + 12 * vip)
    assert torch.equal(policies.score("auto", given), policies.score(policies.resolve("auto", given.spec), given))
    assert not policies.score("none", given).any()


def test_presampled_epochs_are_none_of_the_run(graph):
    given = workload(graph)
    policies.score("presample", given)
    assert given.sample.asked == [(2**62, 2**62), (2**62 + 1, 2**62 + STEPS)]


def test_a_foreign_sampler_is_presampled_without_a_prior(graph):
    known, foreign = workload(graph), workload(graph, known=False)
    assert torch.equal(policies.score("auto", foreign), policies.presample(known, 2) << 32)


def test_fewer_than_one_presampled_epoch_is_refused(graph):
    with pytest.raises(ValueError, match="presample_epochs is 0; expected 1 or more"):
        policies.score("presample", workload(graph), presample_epochs=0)


def test_the_oracle_counts_the_epochs_that_will_be_trained(graph):
    given = workload(graph)
    expected = hotness.counts((nodes for epoch in EPOCHS for nodes in given.sample(*epoch)), NODES)
    assert torch.equal(policies.score("oracle", given, trained=EPOCHS), expected)


@pytest.mark.parametrize("method", ["uniform", "weighted", "labor"])
def test_no_policy_has_more_hits_than_the_oracle(graph, method):
    given = workload(graph, method=method)
    visits, orig_ids = policies.score("oracle", given, trained=EPOCHS), hotness.original_ids(graph)
    for policy in policies.POLICIES:
        scores = policies.score(policy, given, trained=EPOCHS)
        for count in (1, 10, 40, 120):
            hits, most = (int(visits[hotness.hottest(of, orig_ids, count)].sum()) for of in (scores, visits))
            assert hits <= most, policy


# ---- looking ahead


@pytest.mark.parametrize("seed", range(40))
def test_what_stays_is_what_the_next_steps_use_and_then_the_hottest(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    num_nodes = rng.randint(1, 40)
    orig_ids, order = (torch.randperm(num_nodes, generator=generator) for _ in range(2))
    order, slots, window = order[: rng.randint(0, num_nodes)], rng.randint(0, num_nodes + 3), rng.randint(1, 3)
    steps = [torch.randperm(num_nodes, generator=generator)[: rng.randint(0, num_nodes)] for _ in range(7)]
    places = {node: place for place, node in enumerate(order.tolist())}
    cache, held = policies.Lookahead(order, orig_ids, slots, window), set(order[:slots].tolist())
    rows = {node: slot for slot, node in enumerate(cache.nodes.tolist()) if node >= 0}
    for number, step in enumerate(steps):
        assert set(cache.nodes[cache.nodes >= 0].tolist()) == held
        fetched = [node for node in step.tolist() if node not in held]
        upcoming = [set(nodes.tolist()) for nodes in steps[number + 1 : number + 1 + window]]

        def key(node, upcoming=upcoming):
            use = next((later for later, nodes in enumerate(upcoming) if node in nodes), window)
            return use, places.get(node, num_nodes + int(orig_ids[node]))

        held = set(sorted(held | set(fetched), key=key)[:slots])
        changed, taken = cache.replace(torch.tensor(fetched, dtype=torch.int64), steps[number + 1 :])
        assert cache.nodes[changed].tolist() == [fetched[row] for row in taken]
        stayed = {node: slot for slot, node in enumerate(cache.nodes.tolist()) if node in rows}
        assert all(rows[node] == slot for node, slot in stayed.items())  # a row that stays keeps its slot
        rows = {node: slot for slot, node in enumerate(cache.nodes.tolist()) if node >= 0}


@pytest.mark.parametrize("window", [0, 101])
def test_a_window_out_of_range_is_refused(window):
    with pytest.raises(ValueError, match=f"lookahead is {window}; expected 1 to 100 steps"):
        policies.Lookahead(torch.arange(3), torch.arange(3), 2, window)

"""SubgraphSpec: what it refuses, in one line each, and what ranks compare."""

import dataclasses

import numpy as np
import pytest

import fastsample_dist as fsd

REFUSED = {
    "method": (dict(method="mrw"), "method is 'mrw'; expected 'frontier', 'node', 'edge'"),
    "structure": (dict(structure="table"), "structure is 'table'; expected 'sums' or 'dashboard'"),
    "weights": (dict(weights="mean"), "weights is 'mean'; expected 'ratio', 'saint' or 'none'"),
    "inclusion": (dict(inclusion="exact"), "inclusion is 'exact'; expected 'auto', 'closed' or 'counts'"),
    "no budget": (dict(budget=0), "budget is 0; expected an integer from 1 to"),
    "budget of a float": (dict(budget=8000.0), "budget is 8000.0; expected an integer"),
    "budget of True": (dict(budget=True), "budget is True; expected an integer"),
    "seed": (dict(rng_seed=2**63), "rng_seed is 9223372036854775808; expected an integer from 0"),
    "threads": (dict(num_threads=0), "num_threads is 0; expected an integer from 1"),
    "clip of 0": (dict(max_degree=0), "max_degree is 0; expected an integer from 1"),
    "fanout": (dict(method="ego", fanout=-2), "fanout is -2; expected an integer from -1"),
    "no fanout": (dict(method="ego", fanout=0), "fanout is 0; expected 1 or more in-neighbours per node, or -1"),
    "depth": (dict(method="ego", depth=0), "depth is 0; expected an integer from 1 to 64"),
    "counts": (dict(count_subgraphs=0), "count_subgraphs is 0; expected an integer from 1"),
    "walkers": (dict(budget=100, frontier_size=101), "frontier_size is 101 but budget is 100"),
    "short budget": (dict(method="walk", budget=4, walk_length=4), "budget is 4 but a walk of walk_length 4 makes 5"),
    "eta": (dict(eta=1.0), "eta is 1.0; expected a finite number above 1"),
    "eta of a dashboard": (
        dict(structure="dashboard", eta=1e9),
        "eta is 1e+09; expected a number above 1, at most 1000",
    ),
    "eta of nan": (dict(eta=float("nan")), "eta is nan; expected a finite number above 1"),
    "dashboard": (dict(method="node", structure="dashboard"), "structure is 'dashboard' but method is 'node'"),
    "clip": (dict(method="walk", max_degree=30), "max_degree is 30 but method is 'walk'"),
    "weighted ego": (dict(method="ego", weights="ratio"), "weights is 'ratio' but method is 'ego'"),
    "closed walk": (dict(method="walk", inclusion="closed"), "inclusion is 'closed' but method is 'walk'"),
    "closed clip": (dict(max_degree=30, inclusion="closed"), "inclusion is 'closed' but max_degree changes the law"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line(given, message):
    with pytest.raises(ValueError) as refused:
        fsd.SubgraphSpec(**given)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_spec_is_a_value():
    spec = fsd.SubgraphSpec("frontier", 8000, 1000)
    assert spec == fsd.SubgraphSpec(method="frontier", budget=np.int64(8000), frontier_size=1000)
    assert len({spec, fsd.SubgraphSpec()}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.budget = 1


@pytest.mark.parametrize("method", ["frontier", "node", "edge", "walk", "cluster", "ego"])
def test_ratio_weights_are_the_default_where_there_is_something_to_weigh(method):
    assert fsd.SubgraphSpec(method).weights == ("none" if method == "ego" else "ratio")


def test_a_walk_counts_its_root_in_the_budget():
    assert fsd.SubgraphSpec("walk", 8000).num_walks == 2666
    assert fsd.SubgraphSpec("walk", 5, walk_length=4).num_walks == 1


def test_a_small_budget_is_no_matter_of_walkers_where_there_are_none():
    assert fsd.SubgraphSpec("node", budget=10).budget == 10


def test_facts_are_what_shapes_a_batch():
    base = fsd.SubgraphSpec()
    for changed in (dict(eta=3.0), dict(structure="dashboard"), dict(max_degree=30), dict(rng_seed=1)):
        assert fsd.SubgraphSpec(**changed).facts() != base.facts()
    assert fsd.SubgraphSpec(num_threads=3, walk_length=7).facts() == base.facts()
    assert fsd.SubgraphSpec("node", frontier_size=7).facts() == fsd.SubgraphSpec("node").facts()

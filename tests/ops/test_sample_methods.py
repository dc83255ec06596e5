"""A sampling method is found everywhere in Python from its one registration."""

import argparse
import ast
from pathlib import Path

import pytest
import torch

from fastsample_dist import CSCGraph, NeighborSampler, ops
from fastsample_dist.bench.sampling.cli import add_command
from fastsample_dist.ops import SampleSpec, reference
from fastsample_dist.ops.kernel_choice import check_served
from fastsample_dist.ops.sample_methods import METHODS, SampleMethod
from fastsample_dist.pipeline.options import LoaderOptions
from fastsample_dist.testing import check_sampler, conformance_graph
from fastsample_dist.train.cli import parse_arguments

ROOT = Path(__file__).resolve().parents[2]
GRAPH = conformance_graph()
NAMED_IN = {
    "ops/sample_methods.py": "the list",
    "sampling/neighbor.py": "NeighborSampler(weighted=True) and LaborSampler, the samplers of these methods",
    "sampling/transit/layers.py": "the argument weighted of FastGCN and LADIES, not a method",
    "sampling/transit/walks.py": "the argument weighted of walks, not a method",
    "interop/dgl.py": "the methods that DGL has a sampler for",
    "bench/sampling/measure.py": "the methods that DGL samples unfused",
    "bench/sampling/report.py": "the methods that DGL samples unfused",
    "bench/models/cases.py": "GNNLab's workloads, one of which is weighted",
}


@pytest.fixture
def made_up(monkeypatch):
    """Two methods: one drawn by uniform's kernel and defined by its oracle, one by weight."""
    for method in (
        SampleMethod(name="made up", code=0, replaceable=False, oracle="uniform"),
        SampleMethod(name="by weight", code=1, weighted=True, oracle="weighted"),
    ):
        monkeypatch.setitem(METHODS, method.name, method)


def spec_of(method="made up", **options):
    return SampleSpec(fanouts=(3, 2), method=method, rng_seed=4, **options)


def test_the_made_up_method_is_unknown_without_registration():
    with pytest.raises(ValueError, match="method is 'made up'; expected 'uniform', 'weighted' or 'labor'"):
        spec_of()


def test_it_is_sampled_as_its_oracle_says(made_up):
    seeds, spec = torch.arange(9).int(), spec_of()
    batch, expected = (
        NeighborSampler.from_spec(GRAPH, spec).sample(seeds, 2),
        reference.sample_mfg(GRAPH, seeds, spec, 2),
    )
    assert torch.equal(batch.input_nodes, expected.nodes)
    hops = ops.sample_mfg(GRAPH.indptr, GRAPH.indices, seeds, spec, step=2, orig_ids=GRAPH.orig_ids)
    assert torch.equal(hops.nodes, expected.nodes)


def test_check_sampler_knows_its_law(made_up):
    sampler = NeighborSampler.from_spec(GRAPH, spec_of("by weight"))
    report = check_sampler(sampler.sample, GRAPH, fanouts=(3, 2), method="by weight", trials=300, seeds=[5, 7, 8])
    assert report.num_statistics > 20


def test_what_it_cannot_do_is_refused_by_its_name(made_up):
    with pytest.raises(ValueError, match="method 'made up' takes every edge at most once, but replace is True"):
        spec_of(replace=True)
    with pytest.raises(ValueError, match="method 'made up' has no variates to share; pass method='labor'"):
        spec_of(layer_dependency=True)
    with pytest.raises(ValueError, match="method is 'made up', but kernel 'persistent' draws uniformly only"):
        check_served("persistent", spec_of())
    with pytest.raises(ValueError, match="the graph has no edge weights"):
        NeighborSampler.from_spec(CSCGraph(GRAPH.indptr, GRAPH.indices), spec_of("by weight")).sample([1])


def test_loaders_and_commands_offer_it(made_up):
    assert LoaderOptions(fanouts=[2], batch_size=1, method="made up").spec.method == "made up"
    assert parse_arguments(["--data", "parts", "--sampler", "made up"]).sampler == "made up"
    with pytest.raises(ValueError, match="--sampler made up takes every edge at most once"):
        parse_arguments(["--data", "parts", "--sampler", "made up", "--replace"])
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    asked = parser.parse_args(["sampling", "--graph", "rmat:4:4", "--fanouts", "3,2", "--method", "by weight"])
    assert asked.method == "by weight"


def test_no_other_file_knows_a_method_by_name():
    found = set()
    for path in (ROOT / "fastsample_dist").rglob("*.py"):
        constants = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        if {"labor", "weighted"} & constants:
            found.add(path.relative_to(ROOT / "fastsample_dist").as_posix())
    assert found <= NAMED_IN.keys(), f"{sorted(found - NAMED_IN.keys())}: ask ops.sample_methods.METHODS instead."

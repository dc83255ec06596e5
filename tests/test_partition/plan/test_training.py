"""What a plan says about training, against --inspect's sampling, files, counters' formulas and arithmetic by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fastsample_dist.graph.generators import random_graph, rmat, write_npy_graph
from fastsample_dist.graph.inputs import input_sizes, read_graph
from fastsample_dist.graph.inputs.sizes import GraphSizes
from fastsample_dist.graph.network import Network
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.partition.plan.training import (
    StepShape,
    StepTraffic,
    estimate_traffic,
    graphsage_bytes,
    least_machines,
    machine_memory,
    sample_input,
    sample_partition,
    step_cost,
)
from fastsample_dist.partition.report.traffic import TrafficOptions, measure_traffic
from fastsample_dist.partition.write.build import PartitionOptions, build_partition

PARTS = 4
OPTIONS = TrafficOptions(fanouts=(5, 4, 3), batch_size=50, num_batches=24)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    """An RMAT graph with train nodes, as an input directory."""
    drawn = rmat(13, 8, seed=3)
    path = tmp_path_factory.mktemp("plan") / "graph"
    train = np.flatnonzero(drawn.in_degrees().numpy())[::3]
    write_npy_graph(
        path, drawn, name="rmat-13", features=np.zeros((drawn.num_nodes, 6), np.float32), splits={"train": train}
    )
    return path


@pytest.fixture(scope="module")
def parts(graph) -> Path:
    """That graph in PARTS parts by method random."""
    path = graph.parent / "parts"
    build_partition(read_graph(graph), PartitionOptions(num_parts=PARTS, method="random", seed=11), path)
    return path


def apart(one: tuple[float, float], other: tuple[float, float]) -> float:
    """How many standard errors two means with standard errors are apart."""
    return abs(one[0] - other[0]) / (one[1] ** 2 + other[1] ** 2) ** 0.5


def rows(traffic: StepTraffic) -> tuple[float, float]:
    return traffic.remote_rows, traffic.remote_rows_error


def test_sampling_on_the_input_agrees_with_inspect_on_the_random_partition(graph, parts):
    planned = sample_input(graph, PARTS, OPTIONS)
    measured = measure_traffic(parts, read_manifest(parts), OPTIONS)
    assert planned.sampled and planned.remote_rows_error > 0
    assert apart(rows(planned), measured.remote_rows) < 3
    assert planned.steps_per_epoch == measured.steps
    other = replace(OPTIONS, fanouts=(5, 4, 4))  # the comparison can fail
    assert apart(rows(sample_input(graph, PARTS, other)), measured.remote_rows) > 3


def test_vanilla_sampling_agrees_with_inspect_too(graph, parts):
    planned = sample_input(graph, PARTS, OPTIONS)
    measured = measure_traffic(parts, read_manifest(parts), OPTIONS)
    ids = sum(part.sampling_ids for part in measured.parts) / PARTS
    assert planned.sampling_ids == pytest.approx(ids, rel=0.03)


def test_a_finished_partition_is_measured_as_it_is(parts):
    manifest = read_manifest(parts)
    planned = sample_partition(parts, manifest, PARTS, OPTIONS)
    assert rows(planned) == measure_traffic(parts, manifest, OPTIONS).remote_rows
    assert "as it is cut (random)" in planned.source


def test_a_finished_partition_serves_for_another_number_of_parts(graph, parts):
    planned = sample_partition(parts, read_manifest(parts), 2, OPTIONS)
    assert apart(rows(planned), rows(sample_input(graph, 2, OPTIONS))) < 3
    assert "cut by method random" in planned.source


def test_the_estimate_is_the_mean_of_a_uniform_graph(tmp_path):
    """Every row has exactly as many uniform in-edges as there are on average, so nothing but the formula is tried."""
    num_nodes, degree = 5000, 12
    sources = np.random.default_rng(0).integers(0, num_nodes, (num_nodes, degree)).reshape(-1)
    edges = np.stack([sources, np.repeat(np.arange(num_nodes), degree)])
    write_npy_graph(tmp_path / "g", (edges, num_nodes), name="g", splits={"train": np.arange(0, num_nodes, 5)})
    estimated = estimate_traffic(input_sizes(tmp_path / "g"), PARTS, OPTIONS)
    sampled = sample_input(tmp_path / "g", PARTS, OPTIONS)
    assert estimated.input_rows == pytest.approx(sampled.input_rows, rel=0.02)
    assert estimated.remote_rows == pytest.approx(sampled.remote_rows, rel=0.02)
    assert estimated.sampling_ids == pytest.approx(sampled.sampling_ids, rel=0.03)
    assert estimated.steps_per_epoch == sampled.steps_per_epoch == 5
    assert not estimated.sampled and "estimated from sizes" in estimated.source


def test_a_graph_with_hubs_has_fewer_input_nodes_than_the_estimate(graph):
    estimated = estimate_traffic(input_sizes(graph), PARTS, OPTIONS)
    assert estimated.input_rows > sample_input(graph, PARTS, OPTIONS).input_rows


def test_without_train_nodes_any_are_seeds_and_steps_are_unknown(tmp_path):
    write_npy_graph(tmp_path / "g", random_graph(2000, 20_000, seed=0), name="g")
    assert sample_input(tmp_path / "g", 2, OPTIONS).steps_per_epoch is None
    assert estimate_traffic(input_sizes(tmp_path / "g"), 2, OPTIONS).steps_per_epoch is None


def test_ids_outside_the_graph_are_refused(tmp_path):
    write_npy_graph(tmp_path / "g", (np.array([[0, 9], [1, 2]]), 5), name="g")
    with pytest.raises(ValueError, match="edge_index.npy holds ids from 0 to 9; expected 0 to 4"):
        sample_input(tmp_path / "g", 2, OPTIONS)


SIZES = GraphSizes(name="g", num_nodes=1000, num_listed=20_000, feature_dim=6, feature_dtype="float32")


def test_hybrid_maps_the_topology_that_is_on_disk(graph, parts):
    memory = machine_memory(input_sizes(graph), "hybrid", PARTS, 0, 24, None)
    files = sum(file.stat().st_size for file in (parts / "topology").iterdir())
    assert memory.topology == pytest.approx(files, abs=3 * 128 + 8)


def test_vanilla_maps_its_rows_and_knows_every_original_id():
    memory = machine_memory(SIZES, "vanilla", 4, 0, 24, None)
    assert memory.topology == (4 * 20_000 + 16 * 1000) / 4 + 8 * 1000
    assert memory.rows == (24 + 8) * 1000 / 4


def test_a_batch_is_rows_as_made_received_and_sent():
    traffic = StepTraffic(
        source="", sampled=False, input_rows=100, remote_rows=30, remote_rows_error=0, sampling_ids=7, steps_per_epoch=2
    )
    memory = machine_memory(SIZES, "hybrid", 4, 5, 24, traffic)
    assert memory.batch == (100 + 2 * 30) * 24
    assert memory.total == memory.program + memory.topology + memory.rows + memory.batch and memory.program == 5


@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
@pytest.mark.parametrize("hosts_memory", [110_000, 125_000, 200_000])
def test_the_least_number_of_machines_is_the_first_that_fits(scheme, hosts_memory):
    fixed = machine_memory(SIZES, scheme, 4, 1000, 24, None)
    fitting = [
        machines
        for machines in range(1, SIZES.num_nodes + 1)
        if machine_memory(SIZES, scheme, machines, 1000, 24, None).total <= hosts_memory
    ]
    assert least_machines(SIZES, scheme, hosts_memory, fixed, 24) == fitting[0]


def test_no_number_of_machines_holds_a_topology_larger_than_each():
    fixed = machine_memory(SIZES, "hybrid", 4, 0, 24, None)
    assert least_machines(SIZES, "hybrid", 90_000, fixed, 24) is None
    assert least_machines(SIZES, "vanilla", 90_000, fixed, 24) is not None


TRAFFIC = StepTraffic(
    source="", sampled=False, input_rows=0, remote_rows=1000, remote_rows_error=0, sampling_ids=500, steps_per_epoch=1
)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_hybrid_exchanges_twice_and_vanilla_twice_per_hop(hops):
    shape = StepShape(hops, 4, Network(1e-3, 1e6))
    assert step_cost("hybrid", TRAFFIC, 4, 24, 0, shape).exchanges == 2
    assert step_cost("vanilla", TRAFFIC, 4, 24, 0, shape).exchanges == 2 * hops


def test_a_step_costs_messages_and_bytes():
    shape = StepShape(3, 4, Network(1e-3, 1e6))
    hybrid = step_cost("hybrid", TRAFFIC, 4, 24, 8000, shape)
    counts, gradients = 3e-3 + 48e-6, 2 * 3 * (1e-3 + 2000 / 1e6)
    assert hybrid.feature_bytes == 28_000 and hybrid.sampling_bytes == 0
    assert hybrid.seconds == pytest.approx(2 * 3e-3 + 28_000 / 1e6 + counts + gradients)
    vanilla = step_cost("vanilla", TRAFFIC, 4, 24, 8000, shape)
    assert vanilla.sampling_bytes == 2000
    assert vanilla.seconds - hybrid.seconds == pytest.approx(4 * 3e-3 + 2000 / 1e6 + 4 * counts)


def test_one_machine_sends_nothing():
    assert step_cost("hybrid", TRAFFIC, 4, 24, 8000, StepShape(3, 1, Network(1e-3, 1e6))).seconds == 0


def test_gradients_are_those_of_a_graphsage_of_linear_layers():
    layers = [nn.Linear(2 * 100, 256), nn.Linear(2 * 256, 256), nn.Linear(2 * 256, 47)]
    parameters = [value for layer in layers for value in layer.parameters()]
    assert graphsage_bytes(100, 256, 47, 3) == sum(value.numel() for value in parameters) * torch.float32.itemsize

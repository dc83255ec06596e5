"""Losses and epochs with locality "own": every node with a loss counts the same, whichever parts reach it."""

import numpy as np
import pytest
import torch

from fastsample_dist import DistContext, DistData, SubgraphLoader, SubgraphSpec
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.testing import run_distributed

STEPS = 1500
SPECS = {
    "node": SubgraphSpec("node", 30, weights="saint"),  # a subgraph has nodes of its part alone
    "edge": SubgraphSpec("edge", 15, weights="saint"),
    "cluster": SubgraphSpec("cluster", clusters_per_batch=2, weights="saint"),
    "walk": SubgraphSpec("walk", 30, weights="saint", count_subgraphs=64),
}
EXACT = ["node", "edge", "cluster"]  # by closed forms


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A ring of 200 nodes and other edges, in parts of 60 and 140 nodes, of which 50 each are train nodes."""
    directory = tmp_path_factory.mktemp("uneven")
    rng, nodes = np.random.default_rng(0), np.arange(200)
    ends = np.concatenate([np.stack([nodes, np.roll(nodes, 1)]), rng.integers(0, 200, (2, 500))], 1)
    ends = ends[:, ends[0] != ends[1]]
    np.save(directory / "assignment.npy", (nodes >= 60).astype(np.int64))
    train = np.concatenate([nodes[:50], nodes[60:160:2]])
    raw = RawGraph(
        name="uneven", num_nodes=200, undirected=True, edge_index=np.concatenate([ends, ends[::-1]], 1),
        features=np.zeros((200, 1), dtype=np.float32), labels=np.zeros(200, dtype=np.int64), num_classes=2,
        splits={"train": train, "val": nodes[50:60], "test": nodes[160:]},
    )  # fmt: skip
    options = PartitionOptions(num_parts=2, method="file", assignment=directory / "assignment.npy", clusters=10)
    build_partition(raw, options, directory / "parts")
    return directory / "parts"


def alone(path, work):
    with DistContext(LocalCommunicator()) as ctx:
        return work(DistData.load(path, ctx))


def make_loader(data, spec, **options):
    return SubgraphLoader(data, spec, 1, locality="own", **options)


def chances_of(data, loader):
    """float64 [2, train nodes]: probability of each to be in a subgraph of each part."""
    samplers, nodes = loader._sampler._samplers, data.split("train")
    return torch.stack([samplers[part].inclusion.node_probability(nodes) for part in range(2)])


def expected_weights(chances, spec):
    """Mean of the sums over parts / each sum; counts are c + 1 of one more than were counted."""
    sums = chances.sum(0)
    if spec.method == "walk":
        return sums.mean() * (spec.count_subgraphs + 1) / (sums * spec.count_subgraphs + 1)
    return sums.mean() / sums


def coefficients_of(data, loader, divided):
    """By step, what the loss of every train node is multiplied by, summed over the step's subgraphs: [steps, nodes].

    `divided`: by the loss nodes of the step, too, as the trainer's loss is.
    """
    found = torch.zeros(len(loader), data.graph.num_nodes, dtype=torch.float64)
    for batch in loader:
        weights = batch.seed_weights.double() / (batch.num_global_seeds if divided else 1)
        found[batch.step].index_add_(0, batch.seeds.long(), weights)
    return found[:, data.split("train")]


# --- losses


@pytest.mark.parametrize("method", SPECS)
def test_weights_are_by_the_sums_over_all_parts(path, method):
    def work(data):
        loader = make_loader(data, SPECS[method], steps_per_epoch=10)
        expected = torch.zeros(data.graph.num_nodes)
        expected[data.split("train")] = expected_weights(chances_of(data, loader), SPECS[method]).float()
        return [(batch.seed_weights, expected[batch.seeds.long()]) for batch in loader]

    for weights, expected in alone(path, work):
        torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("method", EXACT)
def test_on_average_every_loss_node_has_the_same_coefficient(path, method):
    """Steps are alike, and independent (clusters are drawn without replacement, which deviates less). Compared are two
    groups of nodes, by the part that reaches them more often: the mean difference of their coefficients is 0 within 5
    standard deviations, a false-alarm rate of 6e-7.
    """

    def work(data):
        loader = make_loader(data, SPECS[method], steps_per_epoch=STEPS)
        return coefficients_of(data, loader, divided=False), chances_of(data, loader)

    found, chances = alone(path, work)
    first = chances[0] > chances[1]
    differences = found[:, first].mean(1) - found[:, ~first].mean(1)
    deviation = float(differences.std()) / STEPS**0.5
    assert abs(float(differences.mean())) <= 5 * deviation + 1e-6
    assert deviation < 0.02 * float(found.mean())


@pytest.mark.parametrize("per_step", [1, 3])
def test_the_parts_of_a_step_do_not_matter_to_the_loss(path, per_step):
    """A step has other parts than the next one, and is divided by its own loss nodes."""

    def work(data):
        loader = make_loader(data, SPECS["node"], steps_per_epoch=STEPS, subgraphs_per_step=per_step)
        return coefficients_of(data, loader, divided=True), chances_of(data, loader)

    found, chances = alone(path, work)
    first = chances[0] > chances[1]
    ratio = float(found[:, first].mean() / found[:, ~first].mean())
    assert abs(ratio - 1) < 0.04  # its standard deviation is 0.006: a false-alarm rate below 1e-9


def find(ctx, path):
    """By method (steps of an epoch, subgraph by subgraph the original ids and weights of the seeds); calls at set-up.

    A rank's part is its rank.
    """
    data, found = DistData.load(path, ctx), {}
    for method, spec in SPECS.items():
        steps = len(make_loader(data, spec, subgraphs_per_step=1))
        batches = list(make_loader(data, spec, subgraphs_per_step=3, steps_per_epoch=8))
        kept = [(data.orig_ids(batch.seeds).tolist(), batch.seed_weights.tolist()) for batch in batches]
        found[method] = steps, [sorted(zip(*pair, strict=True)) for pair in kept]
    return found


def test_two_ranks_have_the_weights_and_the_epoch_of_one_process(path):
    with DistContext(LocalCommunicator()) as ctx:
        whole = find(ctx, path)
    ranks = run_distributed(2, find, args=(path,))
    for method, (steps, batches) in whole.items():
        assert [found[method][0] for found in ranks] == [steps] * 2
        both = zip(*(found[method][1] for found in ranks), strict=True)
        assert [sorted(first + second) for first, second in both] == batches


def test_set_up_is_one_sum_of_a_number_per_part_and_loss_node(path):
    def work(data, **options):
        calls = []
        real = data.ctx.comm.all_reduce
        data.ctx.comm.all_reduce = lambda given, **how: calls.append((given.numel(), how)) or real(given, **how)
        make_loader(data, **options)
        return calls

    once = {"purpose": "setup"}
    saint, ratio = SPECS["node"], SubgraphSpec("node", 30)
    assert alone(path, lambda data: work(data, spec=saint)) == [(2 + 1 + 100, once)]
    assert alone(path, lambda data: work(data, spec=saint, steps_per_epoch=3)) == [(2 + 1 + 100, once)]
    assert alone(path, lambda data: work(data, spec=ratio)) == [(2 + 1, once)]
    assert alone(path, lambda data: work(data, spec=ratio, steps_per_epoch=3)) == []


# --- epochs


@pytest.mark.parametrize("method", ["node", "edge", "walk"])
def test_an_epoch_shows_a_train_node_once_on_average(path, method):
    def work(data):
        loader = make_loader(data, SPECS[method], subgraphs_per_step=1)
        return len(loader), float(chances_of(data, loader).sum(0).mean()) / 2

    steps, per_subgraph = alone(path, work)
    assert (steps - 1) * per_subgraph < 1 <= steps * per_subgraph


def test_an_epoch_that_shows_no_train_node_is_refused(path):
    def work(data):
        others = data.split("val").tolist() + data.split("test").tolist()
        make_loader(data, SubgraphSpec("node", 30), roots=others)

    with pytest.raises(ValueError, match=r"^no subgraph can hold any of the 100 loss_nodes; expected roots with in-"):
        alone(path, work)

"""fastsample-bench models: the command as a user starts it, what stands beside ours, and what is refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fastsample_dist import DistContext
from fastsample_dist.bench import cli, graphs
from fastsample_dist.bench.cache.accesses import EpochBatches
from fastsample_dist.bench.graphs import DEBIAN, MOST_WEIGHT, GraphSource, load_classes, with_weights
from fastsample_dist.bench.models import verify as verify_module
from fastsample_dist.bench.models.cases import CASES
from fastsample_dist.bench.models.hit_rate import auto_hit_rate
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.features.policies import Workload
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.generators import write_npy_graph
from fastsample_dist.graph.hotness import original_ids
from fastsample_dist.pipeline.epoch_plan import EpochPlan
from tests.train.task import make_task

SMALL = ("--batch-size", "40", "--threads", "1", "--quick")
PARTS = ("sample_s", "fetch_s", "train_s")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("models"), 2, dtype="float32")


def run(*words):
    return cli.main(["models", *map(str, words)])


def one_process(task):
    return load_classes(task.path, DistContext(LocalCommunicator()))


# ---- the command ----


def test_every_workload_is_verified_and_measured(forked_ranks, task, tmp_path, capsys):
    file = tmp_path / "out.json"
    assert run("--graph", task.path, *SMALL, "--ranks", "1,2", "--verify", "--json", file) == 0
    printed, results = capsys.readouterr().out, json.loads(file.read_text())
    assert "verify: passed: a batch of each workload equals the oracle's" in printed
    assert [one["case"] for one in results["verify"]["compared"]] == list(CASES)
    assert f"edge weights: {graphs.WEIGHT_LAW}" in printed
    assert [(entry["case"], entry["ranks"]) for entry in results["runs"]] == [(c, r) for r in (1, 2) for c in CASES]
    for entry in results["runs"]:
        assert entry["steps"] == (3 if entry["ranks"] == 1 else entry["steps"]) and entry["steps"] >= 3
        [ours] = entry["contestants"]
        assert (ours["processes"], ours["threads"], ours["ratio"]) == (entry["ranks"], 1, 1)
        assert len(ours["epochs_s"]) == 1 and len(ours["loss"]) == 2 and all(map(math.isfinite, ours["loss"]))
        assert 0 < sum(ours[part] for part in PARTS) <= ours["epoch_s"]["median"] and 0 <= ours["test_acc"] <= 1
        cache = entry["cache"]
        assert cache["rows"] == 40 and 0 < cache["hit_rate"] <= cache["oracle_hit_rate"] <= 1
        assert f"{100 * cache['hit_rate']:.1f} ({100 * cache['oracle_hit_rate']:.1f})" in printed


@pytest.mark.grid
def test_dgl_trains_beside_ours(forked_ranks, task, tmp_path, capsys):
    pytest.importorskip("dgl", reason="dgl is not installed")
    file = tmp_path / "out.json"
    words = ("--graph", task.path, *SMALL, "--ranks", "2", "--cache-share", "0", "--baseline", "dgl")
    assert run(*words, "--model", "gcn-weighted", "--json", file) == 0
    assert "no feature cache on the CPU" in capsys.readouterr().out
    results = json.loads(file.read_text())
    assert results["conditions"]["dgl"]
    [entry] = results["runs"]
    ours, theirs = entry["contestants"]
    assert entry["cache"] is None and (theirs["name"], theirs["processes"], theirs["threads"]) == ("dgl", 1, 2)
    assert theirs["ratio"] == theirs["epoch_s"]["median"] / ours["epoch_s"]["median"]
    assert len(theirs["loss"]) == 2 and 0 < sum(theirs[part] for part in PARTS) <= theirs["epoch_s"]["median"]
    assert 0 <= theirs["val_acc"] <= 1


def test_roles_stand_beside_time_sharing_that_reads_in_place(forked_ranks, task, tmp_path, capsys):
    file = tmp_path / "out.json"
    words = ("--graph", task.path, *SMALL, "--ranks", "1,2", "--roles", "1+1", "--model", "graphsage")
    assert run(*words, "--json", file) == 0
    assert "ours, 1+1: the same with these roles" in capsys.readouterr().out
    one, two = json.loads(file.read_text())["runs"]
    assert [ours["name"] for ours in one["contestants"]] == ["fastsample_dist"]
    names = ["fastsample_dist", "fastsample_dist, in place", "fastsample_dist, 1+1"]
    assert [ours["name"] for ours in two["contestants"]] == names
    losses = [ours["loss"] for ours in two["contestants"]]
    assert losses[0] == losses[1] and losses[2] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--roles", "1+2"), "--roles 1+2 are 3 ranks, but --ranks is 1,2; pass --ranks with 3."),
        (("--roles", "2"), "roles '2' is not SAMPLERS+TRAINERS; pass two numbers, such as 1+3"),
        (("--batch-size", "41"), "--batch-size is 41, which 2 ranks cannot share equally; pass a multiple."),
        (("--ranks", "3"), "has 2 parts, which 3 ranks cannot share equally; pass --ranks with divisors of 2."),
        (("--model", "gat"), "invalid choice: 'gat'"),
        (("--cache-share", "1"), "must be a number >= 0 and < 1, not '1'"),
        (("--baseline", "pyg"), "invalid choice: 'pyg'"),
        (("--graph", "rmat:9"), "graph is 'rmat:9'; expected rmat:SCALE:EDGE_FACTOR such as rmat:19:16."),
        (("--epochs", "0"), "must be an integer >= 1, not '0'"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(task, capsys, words, message):
    assert run("--graph", task.path, "--batch-size", "42", *words) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_batch_that_differs_from_the_oracles_ends_the_command(task, monkeypatch, capsys):
    monkeypatch.setattr(verify_module, "oracle_failure", lambda *_: ({"edges": 0}, ["a batch differs"]))
    assert run("--graph", task.path, *SMALL, "--verify", "--model", "gcn") == 1
    assert "verify: FAILED: gcn: a batch differs" in capsys.readouterr().out


# ---- what it is made of ----


def test_workloads_are_those_of_the_paper():
    """GNNLab, section 7.1: "starting from a training vertex"."""
    sampled = {name: case for name, case in CASES.items() if name != "pinsage"}
    assert {name: (case.model, case.fanouts, case.method) for name, case in sampled.items()} == {
        "gcn": ("gcn", (15, 10, 5), "uniform"),
        "graphsage": ("sage", (10, 25), "uniform"),
        "gcn-weighted": ("gcn", (15, 10, 5), "weighted"),
    }
    walks = CASES["pinsage"]
    sizes = (walks.num_layers, walks.num_neighbors, walks.num_walks, walks.walk_length)
    assert (walks.model, sizes) == ("pinsage", (3, 5, 4, 3))


def test_a_source_weighs_the_same_to_all_in_any_numbering(task):
    drawn = with_weights(task.graph)
    of_source = np.full(task.graph.num_nodes, np.nan)
    of_source[drawn.indices.numpy()] = drawn.weights.numpy()
    assert np.array_equal(of_source[drawn.indices.numpy()], drawn.weights.numpy())
    assert drawn.weights.min() >= 1 and drawn.weights.max() <= MOST_WEIGHT and len(drawn.weights.unique()) > 20
    cut = with_weights(one_process(task).graph)
    assert np.array_equal(of_source[original_ids(cut)[cut.indices.long()].numpy()], cut.weights.numpy())
    own = replace(task.graph, weights=torch.ones(task.graph.num_edges))
    assert with_weights(own) is own


def test_hits_are_those_of_sets(task):
    data, case, rows = one_process(task), CASES["graphsage"], 30
    train, spec = data.split("train"), case.spec(3)
    plan = EpochPlan(0, 0, [train.numel()], 25)
    workload = Workload(
        graph=data.graph, train_nodes=train, batch_size=25, rng_seed=3, spec=spec, steps_per_epoch=plan.num_steps,
        sample=EpochBatches(case.sampler(data.graph, 3), train, 0, plan, 3),
    )  # fmt: skip
    found = auto_hit_rate(workload, 2, rows)
    inputs = []  # of the batches that a loader makes
    loader = case.loader(data, "train", 25, 3)
    for epoch in range(2):
        loader.set_epoch(epoch)
        inputs += [node for batch in loader for node in batch.input_nodes.tolist()]
    loader.close()
    counts = np.bincount(inputs, minlength=data.num_nodes)
    assert found["oracle_hit_rate"] == np.sort(counts)[-rows:].sum() / len(inputs)
    assert (found["policy"], found["rows"]) == ("vip", rows) and 0.9 < found["hit_rate"] / found["oracle_hit_rate"] <= 1


def named(case, layer):
    """Our layer's parameters under the names of DGL's."""
    weight, bias = layer.linear.weight, layer.linear.bias
    if case.model == "sage":
        own, neighbours = weight.tensor_split(2, dim=1)
        return {"fc_self.weight": own, "fc_self.bias": bias, "fc_neigh.weight": neighbours}
    return {"fc_neigh.weight": weight, "bias": bias} if case.model == "gcn" else layer.state_dict()


@pytest.mark.parametrize("name", CASES)
def test_dgls_model_computes_what_ours_does(task, name):
    pytest.importorskip("dgl", reason="dgl is not installed")
    from fastsample_dist.bench.models.dgl_process import Stack
    from fastsample_dist.interop import dgl

    data, case = one_process(task), CASES[name]
    data.graph = with_weights(data.graph)
    ours = case.build(data, 16, 0.5, 0).eval()
    loader = case.loader(data, "train", 30, 0)
    batch = next(iter(loader))
    loader.close()
    theirs = Stack(case, data.feature_dim, 16, data.num_classes, 0.5).eval()
    blocks = dgl.to_blocks(batch)
    for layer, mine, block in zip(theirs.layers, ours.layers, blocks, strict=True):
        layer.load_state_dict(named(case, mine))
        if name == "pinsage":  # visits, of which ours are shares
            block.edata[dgl.WEIGHTS] = 12 * block.edata[dgl.COEFFICIENTS]
    with torch.no_grad():
        torch.testing.assert_close(
            theirs(blocks, batch.features), ours(batch.mfgs, batch.features), rtol=1e-4, atol=1e-5
        )


def test_dgls_walks_give_blocks_of_the_most_visited():
    pytest.importorskip("dgl", reason="dgl is not installed")
    from fastsample_dist.interop import dgl

    ring = CSCGraph(torch.arange(7), torch.tensor([1, 2, 3, 4, 5, 0]))  # node v's one in-neighbour is v + 1
    sample = dgl.pinsage_sampler(ring, num_walks=3, walk_length=2, num_neighbors=2, num_layers=2, end_probability=0.0)
    below, above = sample(torch.tensor([0, 3]))
    assert dgl.input_nodes([above]).tolist()[:2] == [0, 3] and sorted(dgl.input_nodes([above]).tolist()) == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    assert above.edata[dgl.WEIGHTS].tolist() == [3.0] * 4  # every walk goes the one way there is
    assert below.num_edges() == 12 and below.num_dst_nodes() == above.num_src_nodes()


@pytest.fixture
def called(monkeypatch):
    """What GraphSource runs, which makes nothing here."""
    words = []
    monkeypatch.setattr(graphs, "_run", lambda *given: words.append(given))
    return words


def test_debian_is_unpacked_from_the_checkout_and_cut(called, tmp_path):
    source = GraphSource(DEBIAN, tmp_path, "random")
    source.check((1, 2))
    assert source.parts(2, lambda _: None) == tmp_path / "debian-random-2"
    (script, command, packed, directory), cut = called
    assert (command, directory) == ("unpack", str(tmp_path / DEBIAN)) and directory in cut
    assert all((graphs.EXAMPLES / file).is_file() for file in (script, packed))


def test_an_input_directory_is_cut_for_the_ranks(called, task, tmp_path):
    write_npy_graph(tmp_path / "input", task.graph, name="communities")
    source = GraphSource(str(tmp_path / "input"), tmp_path / "work", "random")
    source.check((1, 3))
    assert source.parts(3, lambda _: None) == tmp_path / "work" / "input-random-3"
    [(module, *words)] = called
    assert module == "fastsample_dist.partition.cli" and words[:4] == ["--input", source.name, "--num-parts", "3"]

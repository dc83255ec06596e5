"""Synthetic graphs: exact against slow oracles that read the same raw stream, then shape, tasks and files."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from fastsample_dist.graph import generators
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import read_npy_graph
from fastsample_dist.graph.generators import (
    new_directory,
    planted_communities,
    random_graph,
    rmat,
    synthetic_task,
    write_npy_graph,
)
from tests.forked import run_python


def edge_list(graph: CSCGraph) -> list[tuple[int, int]]:
    """(source, destination) of every edge in stored order."""
    rows = itertools.pairwise(graph.indptr.tolist())
    return [(src, dst) for dst, (lo, hi) in enumerate(rows) for src in graph.indices[lo:hi].tolist()]


def rmat_oracle(scale, edge_factor, probabilities, seed, *, permute, symmetrize, block):
    """Edges of `rmat`, one bit of one edge at a time: sorted (source, destination) pairs."""
    raw = np.random.PCG64(seed)
    num_nodes = 2**scale
    new_id = list(range(num_nodes))
    if permute:
        draws = raw.random_raw(num_nodes).tolist()
        new_id = sorted(range(num_nodes), key=lambda i: draws[i])
    bounds = [round(sum(probabilities[: i + 1]) * 2**32) for i in range(3)]
    edges = set()
    for lo in range(0, num_nodes * edge_factor, block):
        count = min(block, num_nodes * edge_factor - lo)
        ends = [[0, 0] for _ in range(count)]
        for _ in range(scale):
            words = raw.random_raw((count + 1) // 2).tolist()
            draws = [half for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
            for end, draw in zip(ends, draws, strict=False):
                quadrant = sum(draw >= bound for bound in bounds)  # 0: a, 1: b, 2: c, 3: d
                end[0] = 2 * end[0] + quadrant // 2
                end[1] = 2 * end[1] + quadrant % 2
        for src, dst in ends:
            src, dst = new_id[src], new_id[dst]
            if src != dst:
                edges |= {(src, dst), (dst, src)} if symmetrize else {(src, dst)}
    return sorted(edges, key=lambda edge: (edge[1], edge[0]))


@pytest.mark.parametrize("permute", [False, True])
@pytest.mark.parametrize("symmetrize", [False, True])
def test_rmat_equals_the_bit_by_bit_oracle(permute, symmetrize):
    graph = rmat(6, 5, a=0.5, b=0.2, c=0.1, seed=3, permute=permute, symmetrize=symmetrize)
    oracle = rmat_oracle(6, 5, (0.5, 0.2, 0.1), 3, permute=permute, symmetrize=symmetrize, block=1 << 20)
    assert edge_list(graph) == oracle


def test_rmat_equals_the_oracle_when_edges_span_blocks_of_odd_size(monkeypatch):
    monkeypatch.setattr(generators, "_BLOCK_EDGES", 37)
    oracle = rmat_oracle(5, 7, (0.57, 0.19, 0.19), 11, permute=True, symmetrize=True, block=37)
    assert edge_list(rmat(5, 7, seed=11)) == oracle


def test_rmat_is_symmetric_sorted_and_without_loops_or_duplicates():
    graph = rmat(12, 16, seed=1)
    graph.validate()
    dst = np.repeat(np.arange(graph.num_nodes), graph.in_degrees().numpy())
    src = graph.indices.numpy().astype(np.int64)
    keys = dst * graph.num_nodes + src
    assert (np.diff(keys) > 0).all()
    assert (src != dst).all()
    assert np.array_equal(np.sort(src * graph.num_nodes + dst), keys)


def test_rmat_of_one_seed_is_one_graph_and_of_another_seed_another():
    first, again, other = rmat(10, 8, seed=5), rmat(10, 8, seed=5), rmat(10, 8, seed=6)
    assert torch.equal(first.indptr, again.indptr)
    assert torch.equal(first.indices, again.indices)
    assert not torch.equal(first.indptr, other.indptr)


def test_rmat_permutation_renames_the_nodes_only():
    plain, renamed = rmat(9, 8, seed=2, permute=False), rmat(9, 8, seed=2)
    assert renamed.num_nodes == plain.num_nodes
    assert not torch.equal(renamed.in_degrees(), plain.in_degrees())
    # Without the permutation node 0, all bits 0, is the likeliest hub; with it the hub is anywhere.
    assert int(plain.in_degrees().argmax()) == 0
    hubs = {int(rmat(9, 8, seed=seed).in_degrees().argmax()) for seed in range(5)}
    assert len(hubs) > 1


def test_rmat_quadrants_have_the_given_probabilities():
    """Chi-square over the 4**3 combinations of the first three bits; 63 degrees of freedom, false alarm 1e-6."""
    scale, draws, probabilities = 3, 200_000, (0.57, 0.19, 0.19, 0.05)
    stream = np.random.PCG64(7)
    thresholds = [np.uint64(round(p * 2**32)) for p in (0.57, 0.76, 0.95)]
    src, dst = generators._rmat_ends(stream, draws, scale, thresholds)
    seen = np.bincount(src * 8 + dst, minlength=64)
    expected = np.empty(64)
    for cell in range(64):
        bits = [((cell >> (3 + bit)) & 1) * 2 + ((cell >> bit) & 1) for bit in range(3)]
        expected[cell] = draws * math.prod(probabilities[quadrant] for quadrant in bits)
    assert ((seen - expected) ** 2 / expected).sum() < 128.6


def test_rmat_has_as_many_isolated_nodes_as_theory_says():
    """A node with k one-bits is missed by an edge with a known probability; 5 standard deviations allowed."""
    scale, edge_factor, (a, b, c, d) = 14, 4, (0.57, 0.19, 0.19, 0.05)
    drawn, expected = edge_factor * 2**scale, 0.0
    for ones in range(scale + 1):
        zeros = scale - ones
        touch = (a + b) ** zeros * (c + d) ** ones + (a + c) ** zeros * (b + d) ** ones - 2 * a**zeros * d**ones
        expected += math.comb(scale, ones) * (1 - touch) ** drawn
    isolated = int((rmat(scale, edge_factor, seed=4).in_degrees() == 0).sum())
    assert abs(isolated - expected) < 5 * math.sqrt(2**scale * 0.25)


def test_rmat_has_hubs_and_a_uniform_graph_has_none():
    skewed = rmat(12, 8, seed=1)
    uniform = random_graph(skewed.num_nodes, skewed.num_edges, seed=1)
    mean = skewed.num_edges / skewed.num_nodes
    assert int(skewed.in_degrees().max()) > 20 * mean
    assert int(uniform.in_degrees().max()) < 4 * mean


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"scale": 0, "edge_factor": 1}, "scale is 0"),
        ({"scale": 32, "edge_factor": 1}, "scale is 32"),
        ({"scale": 4, "edge_factor": -1}, "edge_factor is -1"),
        ({"scale": 4, "edge_factor": 1, "a": 0.9}, "0.9, 0.19, 0.19"),
        ({"scale": 4, "edge_factor": 1, "b": -0.1}, "0.57, -0.1, 0.19"),
    ],
)
def test_rmat_refuses_bad_arguments(arguments, found):
    with pytest.raises(ValueError, match=found):
        rmat(seed=0, **arguments)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: rmat(3, 2, seed=seed),
        lambda seed: random_graph(3, 2, seed=seed),
        lambda seed: planted_communities(9, 3, seed=seed),
        lambda seed: synthetic_task(random_graph(3, 2, seed=0), 3, 7, 0.5, seed=seed),
    ],
    ids=["rmat", "random", "planted", "task"],
)
def test_a_seed_that_is_none_is_named(make):
    for seed in (-1, 1.5):
        with pytest.raises(ValueError, match=f"^seed is {seed}; expected an integer >= 0"):
            make(seed)


def test_rmat_without_edges_is_a_graph_of_isolated_nodes():
    graph = rmat(3, 0, seed=0)
    assert (graph.num_nodes, graph.num_edges) == (8, 0)


@pytest.mark.parametrize(("num_nodes", "num_edges"), [(50, 200), (6, 29), (6, 30), (2, 1), (1, 0), (5, 0)])
def test_random_graph_has_exactly_the_edges_asked_for(num_nodes, num_edges):
    edges = edge_list(random_graph(num_nodes, num_edges, seed=9))
    assert len(set(edges)) == len(edges) == num_edges
    assert all(src != dst and 0 <= src < num_nodes for src, dst in edges)
    assert edges == sorted(edges, key=lambda edge: (edge[1], edge[0]))


def test_random_graph_draws_every_pair_alike():
    """Chi-square over the 20 pairs of 5 nodes, 4,000 graphs of 3 edges; false alarm below 1e-6 (19 degrees)."""
    counts = np.zeros((5, 5))
    for seed in range(4000):
        for src, dst in edge_list(random_graph(5, 3, seed=seed)):
            counts[src, dst] += 1
    seen = counts[~np.eye(5, dtype=bool)]
    expected = 4000 * 3 / 20
    # Drawing 3 of 20 without replacement shrinks the variance, so the plain bound is on the safe side.
    assert ((seen - expected) ** 2 / expected).sum() < 63.0


def test_random_graph_refuses_more_edges_than_pairs():
    with pytest.raises(ValueError, match="num_edges is 7; expected 0 to 6 for 3 nodes"):
        random_graph(3, 7, seed=0)


def test_planted_communities_are_symmetric_without_loops():
    graph, _ = planted_communities(101, 4, seed=1)
    edges = edge_list(graph)
    assert len(set(edges)) == len(edges)
    assert {(dst, src) for src, dst in edges} == set(edges)
    assert all(src != dst for src, dst in edges)


@pytest.mark.parametrize(("homophily", "low", "high"), [(1.0, 1.0, 1.0), (0.8, 0.80, 0.90), (0.0, 0.2, 0.3)])
def test_planted_communities_share_of_inner_edges_follows_homophily(homophily, low, high):
    # Edges that end anywhere fall inside by chance once in num_classes: 0.8 + 0.2 / 4 = 0.85.
    graph, task = planted_communities(2000, 4, seed=3, homophily=homophily)
    inner = [task.labels[src] == task.labels[dst] for src, dst in edge_list(graph)]
    assert low <= np.mean(inner) <= high


def test_planted_communities_splits_partition_the_nodes():
    _, task = planted_communities(50, 3, seed=0)
    assert [len(task.splits[name]) for name in ("train", "val", "test")] == [30, 10, 10]
    assert sorted(np.concatenate(list(task.splits.values())).tolist()) == list(range(50))
    assert np.bincount(task.labels).tolist() == [17, 17, 16]


def test_planted_communities_neighbour_means_tell_the_class_better_than_features_alone():
    graph, task = planted_communities(1000, 4, seed=5, feature_dim=8)
    centres = np.stack([task.features[task.labels == k].mean(axis=0) for k in range(4)])

    def accuracy(rows: np.ndarray) -> float:
        return float((((rows[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1) == task.labels).mean())

    means = np.stack([task.features[[*row]].mean(axis=0) for row in np.split(graph.indices, graph.indptr[1:-1])])
    assert accuracy(task.features) > 0.35
    assert accuracy(means) > accuracy(task.features) + 0.2


def test_planted_communities_refuses_more_classes_than_nodes():
    with pytest.raises(ValueError, match="num_classes is 5; expected 1 to num_nodes = 4"):
        planted_communities(4, 5, seed=0)


def test_synthetic_task_splits_connected_nodes_only():
    graph = rmat(10, 4, seed=1)
    task = synthetic_task(graph, 3, 7, 0.1, seed=2)
    connected = int((graph.in_degrees() > 0).sum())
    chosen = np.concatenate(list(task.splits.values()))
    assert len(task.splits["train"]) == len(task.splits["val"]) == len(task.splits["test"]) == round(0.1 * connected)
    assert len(np.unique(chosen)) == len(chosen)
    assert (graph.in_degrees().numpy()[chosen] > 0).all()


def test_synthetic_task_shapes_and_types():
    graph = random_graph(30, 100, seed=0)
    task = synthetic_task(graph, 3, 7, 0.8, seed=2)
    assert (task.features.shape, task.features.dtype) == ((30, 3), np.float32)
    assert (task.labels.shape, task.labels.dtype) == ((30,), np.int64)
    assert set(np.unique(task.labels)) <= set(range(7))
    assert all((np.diff(ids) > 0).all() for ids in task.splits.values())


def test_synthetic_task_of_one_seed_is_one_task():
    graph = random_graph(30, 100, seed=0)
    first, again, other = (synthetic_task(graph, 3, 7, 0.5, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.features, again.features)
    assert np.array_equal(first.splits["train"], again.splits["train"])
    assert not np.array_equal(first.features, other.features)


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1])
def test_synthetic_task_refuses_a_fraction_that_is_none(fraction):
    with pytest.raises(ValueError, match=f"train_fraction is {fraction}"):
        synthetic_task(random_graph(4, 4, seed=0), 2, 2, fraction, seed=0)


def test_written_graph_reads_back_as_it_was(tmp_path):
    graph, task = planted_communities(40, 3, seed=1)
    write_npy_graph(
        tmp_path / "g", graph, name="communities", features=task.features, labels=task.labels, splits=task.splits
    )
    raw = read_npy_graph(tmp_path / "g")
    assert (raw.name, raw.num_nodes, raw.undirected) == ("communities", 40, False)
    assert torch.equal(raw.to_csc().indptr, graph.indptr)
    assert torch.equal(raw.to_csc().indices, graph.indices)
    assert np.array_equal(raw.features, task.features)
    assert all(np.array_equal(raw.splits[name], task.splits[name]) for name in task.splits)


def test_written_edge_list_keeps_extra_columns_and_meta(tmp_path):
    edges = np.array([[0, 1], [1, 2]], dtype=np.int32)
    kinds = np.array([3, 4], dtype=np.uint8)
    write_npy_graph(
        tmp_path / "g", (edges, 5), name="two", undirected=True, arrays={"edge_type": kinds}, meta={"licence": "none"}
    )
    meta = json.loads((tmp_path / "g" / "meta.json").read_text())
    assert meta == {"name": "two", "num_nodes": 5, "num_edges": 2, "undirected": True, "licence": "none"}
    assert np.array_equal(np.load(tmp_path / "g" / "edge_type.npy"), kinds)
    assert np.array_equal(np.load(tmp_path / "g" / "edge_index.npy"), edges)


def test_written_weights_follow_their_edges(tmp_path):
    graph = CSCGraph.from_edge_index(torch.tensor([2, 0]), torch.tensor([0, 1]), 3, torch.tensor([0.5, 0.25]))
    write_npy_graph(tmp_path / "g", graph, name="weighted")
    assert torch.equal(read_npy_graph(tmp_path / "g").to_csc().weights, graph.weights)


def test_existing_directory_is_refused_and_untouched(tmp_path):
    (tmp_path / "g").mkdir()
    with pytest.raises(ValueError, match="exists; expected a new directory"):
        write_npy_graph(tmp_path / "g", random_graph(3, 2, seed=0), name="x")
    assert list((tmp_path / "g").iterdir()) == []


def test_relabelled_graph_is_refused(tmp_path):
    graph = CSCGraph(torch.tensor([0, 0]), torch.empty(0, dtype=torch.int32), orig_ids=torch.tensor([0]))
    with pytest.raises(ValueError, match="orig_ids"):
        write_npy_graph(tmp_path / "g", graph, name="x")


def test_unknown_split_is_refused(tmp_path):
    with pytest.raises(ValueError, match="splits holds 'dev'; expected some of train, val, test"):
        write_npy_graph(tmp_path / "g", random_graph(3, 2, seed=0), name="x", splits={"dev": np.array([0])})


def test_a_failure_while_filling_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="disk full"), new_directory(tmp_path / "g") as partial:
        (partial / "half").write_text("x")
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []


def test_command_writes_the_graph_of_the_library(tmp_path):
    shape = ("--scale", 8, "--edge-factor", 4, "--features", 5, "--classes", 6, "--train-fraction", 0.2, "--seed", 3)
    done = run_python("-m", "fastsample_dist.graph.generators", "rmat", *shape, "--output", tmp_path / "g")
    assert done.returncode == 0, done.stderr
    graph = rmat(8, 4, seed=3)
    task = synthetic_task(graph, 5, 6, 0.2, seed=3)
    raw = read_npy_graph(tmp_path / "g")
    assert torch.equal(raw.to_csc().indices, graph.indices)
    assert np.array_equal(raw.features, task.features)
    assert np.array_equal(raw.splits["train"], task.splits["train"])
    assert raw.num_classes == 6


def test_command_says_in_one_line_what_is_wrong(tmp_path, capsys):
    status = generators.main(["rmat", "--scale", "40", "--edge-factor", "1", "--output", str(tmp_path / "g")])
    assert (status, capsys.readouterr().err) == (1, "generators: scale is 40; expected 1 to 31 (2**scale nodes).\n")


def test_command_refuses_an_output_that_exists(tmp_path, capsys):
    status = generators.main(["rmat", "--scale", "4", "--edge-factor", "1", "--output", str(tmp_path)])
    assert status == 1
    assert f"{tmp_path} exists; expected a new directory" in capsys.readouterr().err

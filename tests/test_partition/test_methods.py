"""Assignment: every node to one part, balanced as promised, repeatable, and METIS cutting less than chance."""

import builtins

import numpy as np
import pytest

from fastsample_dist.graph.datasets import RawGraph
from partition.adjacency import symmetrise
from partition.methods import RESOLUTION, metis_parts, random_parts, vertex_weights
from tests.test_partition.inputs import cut_of, draw_raw, listed_edges

PART_COUNTS = [1, 2, 3, 4, 5, 8]


def run_metis(raw: RawGraph, num_parts: int, seed: int = 0) -> np.ndarray:
    topology = raw.to_csc()
    adjacency = symmetrise(topology, undirected=raw.undirected)
    return metis_parts(adjacency, topology.in_degrees().numpy(), raw.splits["train"], num_parts, seed)


@pytest.mark.parametrize("num_parts", PART_COUNTS)
@pytest.mark.parametrize("num_nodes, num_train", [(61, 24), (40, 0), (8, 8)])
def test_random_balances_nodes_and_train_nodes_to_within_one(num_parts, num_nodes, num_train):
    train = np.random.default_rng(1).permutation(num_nodes)[:num_train]
    parts = random_parts(num_nodes, train, num_parts, seed=3)
    for members in (parts, parts[train]):
        counts = np.bincount(members, minlength=num_parts)
        assert len(counts) == num_parts
        assert counts.max() - counts.min() <= 1


def test_random_repeats_with_the_seed_and_changes_without():
    train = np.arange(0, 60, 3)
    first, again, other = (random_parts(60, train, 4, seed) for seed in (5, 5, 6))
    assert (first == again).all()
    assert (first != other).any()


def test_random_is_uniform():
    # Each of 6 nodes falls to each of 3 parts in a third of the draws: chi-square with 12 degrees of freedom,
    # false alarm 1e-6 at 55.4; the seeds are fixed, so the outcome is too.
    draws = np.stack([random_parts(6, np.array([1, 4]), 3, seed) for seed in range(900)])
    counts = np.stack([(draws == part).sum(axis=0) for part in range(3)])
    assert ((counts - 300) ** 2 / 300).sum() < 55.4


@pytest.mark.parametrize("num_parts", PART_COUNTS)
@pytest.mark.parametrize("undirected", [False, True])
def test_metis_gives_every_part_some_nodes(num_parts, undirected):
    counts = np.bincount(run_metis(draw_raw(undirected=undirected), num_parts), minlength=num_parts)
    assert len(counts) == num_parts
    assert counts.min() >= 1


@pytest.mark.parametrize("undirected", [False, True])
def test_metis_cuts_less_than_half_of_what_chance_cuts(undirected):
    raw = draw_raw(undirected=undirected, num_nodes=400)
    by_chance = random_parts(raw.num_nodes, raw.splits["train"], 4, seed=0)
    edges = listed_edges(raw)
    assert cut_of(edges, run_metis(raw, 4)) < cut_of(edges, by_chance) / 2


def test_metis_repeats_with_the_seed_and_changes_without():
    raw = draw_raw(undirected=True, num_nodes=400)
    first, again, other = (run_metis(raw, 4, seed) for seed in (5, 5, 6))
    assert (first == again).all()
    assert (first != other).any()


def test_metis_sees_how_many_stored_edges_a_pair_has():
    # A path 0 - 1 - 2 - 3 whose middle pair is one stored edge and whose outer pairs are three each.
    edges = [(0, 1), (1, 0), (0, 1), (1, 2), (2, 3), (3, 2), (2, 3)]
    raw = RawGraph(name="path", num_nodes=4, undirected=False, edge_index=np.array(edges).T, splits={"train": []})
    parts = run_metis(raw, 2)
    assert parts[0] == parts[1] != parts[2] == parts[3]


@pytest.mark.parametrize("num_parts", [2, 3, 5])
def test_metis_without_edges_balances_nodes(num_parts):
    edge_index = np.array([[1], [1]])  # a self-loop is no edge to cut
    raw = RawGraph(name="dots", num_nodes=5, undirected=False, edge_index=edge_index, splits={"train": np.array([0])})
    counts = np.bincount(run_metis(raw, num_parts), minlength=num_parts)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("num_nodes", [2, 3, 5, 8])
def test_as_many_parts_as_nodes_gives_each_one(num_nodes):
    ring = np.arange(num_nodes)
    edge_index = np.stack([ring, (ring + 1) % num_nodes])
    splits = {"train": np.arange(1)}
    raw = RawGraph(name="ring", num_nodes=num_nodes, undirected=True, edge_index=edge_index, splits=splits)
    assert sorted(run_metis(raw, num_nodes).tolist()) == list(range(num_nodes))


def test_weights_share_equally_between_nodes_edges_and_train_nodes():
    in_degrees = np.array([0, 2, 6, 0, 4])  # mean 2.4
    weights = vertex_weights(in_degrees, np.array([1, 3]), largest_sum=2**31 - 1)
    by_hand = [100, 100 + 83 + 250, 100 + 250, 100 + 250, 100 + 167]
    assert weights.tolist() == by_hand
    assert RESOLUTION == 100


def test_weights_without_edges_and_train_nodes_are_even():
    assert vertex_weights(np.zeros(3, dtype=int), np.empty(0, dtype=int), 2**31 - 1).tolist() == [100] * 3


def test_weights_sum_stays_below_the_largest_integer():
    in_degrees = np.random.default_rng(0).integers(0, 50, 1000)
    weights = vertex_weights(in_degrees, np.arange(7), largest_sum=20_000)
    assert weights.min() >= 1
    assert weights.sum() < 20_000


def test_failure_of_metis_tells_the_size_and_what_to_do(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("METIS_ERROR_MEMORY")

    monkeypatch.setattr("pymetis.part_graph", refuse)
    with pytest.raises(RuntimeError, match=r"METIS stopped on 60 nodes .*\(METIS_ERROR_MEMORY\).*take --method random"):
        run_metis(draw_raw(undirected=True), 2)


def test_missing_pymetis_names_the_extra(monkeypatch):
    real_import = builtins.__import__

    def refuse(name: str, *rest: object) -> object:
        if name == "pymetis":
            raise ImportError("no pymetis here")
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"pip install fastsample_dist\[partition\], or take --method random"):
        run_metis(draw_raw(undirected=True), 2)

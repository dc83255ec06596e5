"""`metis`: constraints each for themselves with libmetis, one combined weight with pymetis, and what it refuses."""

import dataclasses
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

import numpy as np
import pytest

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.partition.methods import libmetis, metis
from fastsample_dist.partition.methods.adjacency import Adjacency
from tests.test_partition.inputs import draw_raw
from tests.test_partition.methods.requests import assigned, drawn, graph_of, request_of


@pytest.fixture(params=["libmetis", "pymetis"])
def either(request, monkeypatch):
    """Runs a test with libmetis and with pymetis."""
    if request.param == "pymetis":
        monkeypatch.setattr(libmetis, "load", lambda: None)
    else:
        assert libmetis.load() is not None, "cmeel-metis is part of the test environment: pip install cmeel-metis"


def test_finds_the_width_of_metis_integers():
    header = libmetis.load().path.parent.parent / "include" / "metis.h"
    first = next(line for line in header.read_text().splitlines() if line.startswith("#define IDXTYPEWIDTH"))
    assert libmetis.load().dtype.itemsize * 8 == int(first.split()[-1])


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_width_is_read_from_what_is_written(width):
    class Library:
        @staticmethod
        def METIS_SetDefaultOptions(address):  # noqa: N802 - METIS' name
            import ctypes

            block = (ctypes.c_byte * (40 * np.dtype(width).itemsize)).from_address(address)
            np.frombuffer(block, dtype=width)[:] = -1

    assert libmetis._integer_type(Library) == width


def test_every_constraint_is_balanced_for_itself():
    rng = np.random.default_rng(0)
    raw = draw_raw(undirected=True, num_nodes=6000, num_train=1500)
    dense = rng.integers(0, 300, (2, 20_000))  # in-edges and nodes do not go together
    raw = RawGraph(
        name="made", num_nodes=6000, undirected=True, edge_index=np.hstack([raw.edge_index, dense]), splits=raw.splits
    )
    request = request_of(raw, 4)
    parts = assigned("metis", request)
    assert list(request.constraints()) == ["nodes", "in_edges", "train", "val", "test"]
    for name, weight in request.constraints().items():
        held = np.bincount(parts, weight[:], minlength=4)
        assert abs(held / held.mean() - 1).max() < 0.05, name


def test_the_smallest_cut_of_several_seeds_is_taken(monkeypatch):
    request = request_of(draw_raw(undirected=True, num_nodes=600, num_train=60), 4)
    best = metis.cut_weight(metis.assign_metis(request), request.adjacency)
    monkeypatch.setattr(metis, "TRIALS", 1)
    cuts = []
    for seed in range(8):
        parts = metis.assign_metis(dataclasses.replace(request, seed=seed))
        cuts.append(metis.cut_weight(parts, request.adjacency))
    assert best == min(cuts) < max(cuts)


def test_cut_weight_is_the_number_of_stored_edges_between_parts():
    raw = draw_raw(undirected=False, num_nodes=50)
    request, parts = request_of(raw, 3), np.arange(50, dtype=np.int32) % 3
    src, dst = raw.edge_index
    assert metis.cut_weight(parts, request.adjacency) == 2 * int((parts[src] != parts[dst]).sum())


def test_sees_how_many_stored_edges_a_pair_has(either):
    # A path 0 - 1 - 2 - 3 whose middle pair is one stored edge and whose outer pairs are three each.
    edges = [(0, 1), (1, 0), (0, 1), (1, 2), (2, 3), (3, 2), (2, 3)]
    parts = assigned("metis", request_of(graph_of(4, edges, undirected=False), 2))
    assert parts[0] == parts[1] != parts[2] == parts[3]


@pytest.mark.parametrize("num_nodes", [2, 3, 5, 8])
def test_as_many_parts_as_nodes_gives_each_one(num_nodes, either):
    ring = [(node, (node + 1) % num_nodes) for node in range(num_nodes)]
    request = request_of(graph_of(num_nodes, ring), num_nodes)
    assert sorted(assigned("metis", request).tolist()) == list(range(num_nodes))


def test_pymetis_repeats_and_says_that_it_stands_in(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(libmetis, "load", lambda: None)
    first, again, other = (assigned("metis", drawn(seed=seed)) for seed in (5, 5, 6))
    assert (first == again).all() and (first != other).any()
    assert "cmeel-metis with cmeel-gklib is not installed: METIS balances one combined weight" in caplog.text


def test_neither_package_names_the_extra_and_the_methods_that_work(monkeypatch):
    monkeypatch.setattr(libmetis, "load", lambda: None)
    for package in ("pymetis", "kaminpar"):
        monkeypatch.setitem(sys.modules, package, None)
    others = "or take --method ldg, fennel, random, range, file"
    with pytest.raises(ImportError, match=r"cmeel-metis or pymetis.*fastsample_dist\[partition\], " + others):
        assigned("metis", drawn())


def test_pymetis_before_2025_2_1_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(libmetis, "load", lambda: None)
    monkeypatch.setitem(sys.modules, "pymetis", module_from_spec(ModuleSpec("pymetis", None)))  # an empty module
    with pytest.raises(ImportError, match=r"pymetis >= 2025\.2\.1, and neither .*cannot import name 'zero_copy_dtype'"):
        assigned("metis", drawn())


def test_cmeel_metis_that_is_not_installed_is_not_an_error(monkeypatch):
    monkeypatch.setattr(libmetis, "PACKAGES", ("no-such-package", "cmeel-metis"))
    assert libmetis.load.__wrapped__() is None


def test_a_damaged_libmetis_is_named(monkeypatch, tmp_path):
    damaged = tmp_path / "libmetis.so"
    damaged.write_bytes(b"nothing")
    monkeypatch.setattr(libmetis, "_library_of", lambda _: damaged)
    with pytest.raises(ImportError, match=r"libmetis.so cannot be used .*reinstall cmeel-metis"):
        libmetis.load.__wrapped__()


def test_failure_of_libmetis_tells_the_size_and_what_to_do(monkeypatch):
    monkeypatch.setattr(libmetis, "METIS_OK", 99)
    with pytest.raises(
        RuntimeError, match=r"METIS stopped on 400 nodes .*status 1.*take --method ldg, fennel, random or range"
    ):
        assigned("metis", drawn())


def test_failure_of_pymetis_tells_the_size_and_what_to_do(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("METIS_ERROR_MEMORY")

    monkeypatch.setattr(libmetis, "load", lambda: None)
    monkeypatch.setattr("pymetis.part_graph", refuse)
    with pytest.raises(RuntimeError, match=r"METIS stopped on 400 nodes .*\(METIS_ERROR_MEMORY\)"):
        assigned("metis", drawn())


def test_more_neighbours_than_metis_counts_are_refused():
    few = Adjacency(np.array([0, 1, 2]), np.array([1, 0]), np.array([2**30, 2**30], dtype=np.int32))
    with pytest.raises(ValueError, match="the graph has 2147483648 neighbours but this METIS counts in int32"):
        metis.check_counts(few, 2**31 - 1, np.dtype(np.int32))


def test_combined_weights_share_equally_between_nodes_edges_and_train_nodes():
    in_degrees = np.array([0, 2, 6, 0, 4])  # mean 2.4
    weights = metis.combined_weights(in_degrees, np.array([1, 3]), largest_sum=2**31 - 1)
    by_hand = [100, 100 + 83 + 250, 100 + 250, 100 + 250, 100 + 167]
    assert weights.tolist() == by_hand
    assert metis.RESOLUTION == 100


def test_combined_weights_without_edges_and_train_nodes_are_even():
    weights = metis.combined_weights(np.zeros(3, dtype=int), np.empty(0, dtype=int), 2**31 - 1)
    assert weights.tolist() == [100] * 3


def test_combined_weights_sum_stays_below_the_largest_integer():
    in_degrees = np.random.default_rng(0).integers(0, 50, 1000)
    weights = metis.combined_weights(in_degrees, np.arange(7), largest_sum=20_000)
    assert weights.min() >= 1
    assert weights.sum() < 20_000

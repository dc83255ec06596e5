"""The finished partition against the input, fact by fact: nothing lost, nothing moved, rows in canonical order."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.partition_book import PartitionBook
from fastsample_dist.graph.storage import Manifest, PartData, load_part, load_topology, read_manifest
from fastsample_dist.partition.methods import adjacency
from fastsample_dist.partition.report.quality import PartitionQuality
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from tests.test_partition.inputs import cut_of, draw_raw, listed_edges

CASES = list(itertools.product(["metis", "random"], [False, True], [1, 2, 3, 5]))


@dataclass(frozen=True)
class Finished:
    """A partition with the graph it was made from."""

    raw: RawGraph
    quality: PartitionQuality
    manifest: Manifest
    graph: CSCGraph
    parts: list[PartData]

    @property
    def orig_ids(self) -> np.ndarray:
        return self.graph.orig_ids.numpy()

    @property
    def owner(self) -> np.ndarray:
        """Part of each original node."""
        owner = np.empty(self.raw.num_nodes, dtype=np.int64)
        book = PartitionBook(torch.tensor(self.manifest.part_ranges))
        owner[self.orig_ids] = book.nid2part(torch.arange(self.raw.num_nodes)).numpy()
        return owner

    def edges(self) -> list[tuple[int, int]]:
        """Stored edges by original ids, in stored order."""
        dst = torch.repeat_interleave(torch.arange(self.raw.num_nodes), self.graph.in_degrees()).numpy()
        ends = self.orig_ids[self.graph.indices.numpy()].tolist(), self.orig_ids[dst].tolist()
        return list(zip(*ends, strict=True))


def finish(raw: RawGraph, options: PartitionOptions, path: Path) -> Finished:
    quality = build_partition(raw, options, path)
    manifest = read_manifest(path)
    parts = [load_part(path, manifest, part) for part in range(manifest.num_parts)]
    return Finished(raw, quality, manifest, load_topology(path, manifest), parts)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def finished(request, tmp_path_factory) -> Finished:
    method, undirected, num_parts = request.param
    path = tmp_path_factory.mktemp("build") / "parts"
    raw = draw_raw(undirected=undirected, weighted=num_parts == 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adjacency, "CHUNK_EDGES", 50)  # several chunks even here
        return finish(raw, PartitionOptions(num_parts=num_parts, method=method, seed=1), path)


def test_every_node_is_owned_once(finished):
    assert sorted(finished.orig_ids.tolist()) == list(range(finished.raw.num_nodes))
    assert finished.manifest.part_ranges[-1] == finished.raw.num_nodes


def test_nodes_of_a_part_ascend_by_original_id(finished):
    for lo, hi in itertools.pairwise(finished.manifest.part_ranges):
        assert (np.diff(finished.orig_ids[lo:hi]) > 0).all()


def test_edges_are_the_listed_ones(finished):
    assert sorted(finished.edges()) == listed_edges(finished.raw)


def test_rows_ascend_by_original_id_of_the_source(finished):
    sources = finished.orig_ids[finished.graph.indices.numpy()]
    for lo, hi in itertools.pairwise(finished.graph.indptr.tolist()):
        assert (np.diff(sources[lo:hi]) >= 0).all()


def test_weights_stay_with_their_edges(finished):
    if finished.raw.edge_weight is None:
        assert finished.graph.weights is None
        return
    found = sorted(zip(finished.edges(), finished.graph.weights.tolist(), strict=True))
    listed = zip(zip(*finished.raw.edge_index.tolist(), strict=True), finished.raw.edge_weight.tolist(), strict=True)
    if finished.raw.undirected:
        first: dict[tuple[int, int], float] = {}
        for (src, dst), weight in listed:
            first.setdefault((src, dst), weight)
            first.setdefault((dst, src), weight)
        listed = first.items()
    assert found == sorted(listed)


def test_features_follow_their_nodes(finished):
    stored = torch.cat([part.features for part in finished.parts]).numpy()
    np.testing.assert_array_equal(stored, finished.raw.features[finished.orig_ids])


def test_labels_follow_their_nodes(finished):
    stored = torch.cat([part.labels for part in finished.parts])
    assert stored.tolist() == finished.raw.labels[finished.orig_ids].tolist()


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_splits_follow_their_nodes(finished, split):
    stored = torch.cat([part.splits[split] for part in finished.parts]).numpy()
    assert sorted(finished.orig_ids[stored].tolist()) == finished.raw.splits[split].tolist()


def test_splits_of_a_part_are_its_own_nodes_ascending(finished):
    for part, (lo, hi) in zip(finished.parts, itertools.pairwise(finished.manifest.part_ranges), strict=True):
        for ids in part.splits.values():
            assert ((ids >= lo) & (ids < hi)).all()
            assert (ids[1:] > ids[:-1]).all()


def test_train_nodes_are_balanced_to_within_one(finished):
    counts = [len(part.splits["train"]) for part in finished.parts]
    assert max(counts) - min(counts) <= 1


def test_manifest_tells_how_it_was_made(finished):
    manifest = finished.manifest
    made = (manifest.name, manifest.num_classes, manifest.undirected, manifest.seed)
    assert made == ("drawn", finished.raw.num_classes, finished.raw.undirected, 1)
    assert (manifest.feature_dim, manifest.feature_dtype) == (3, "float32")
    assert manifest.stats["edges_listed"] == finished.raw.edge_index.shape[1]


def test_reported_cut_is_the_cut(finished):
    edges = listed_edges(finished.raw)
    assert finished.quality.cut_edges == cut_of(edges, finished.owner)
    assert finished.quality.cut_fraction == cut_of(edges, finished.owner) / len(edges)


def test_reported_parts_are_counted_right(finished):
    owner, edges = finished.owner, listed_edges(finished.raw)
    for part in finished.quality.parts:
        incoming = [(src, dst) for src, dst in edges if owner[dst] == part.part]
        remote = [src for src, _ in incoming if owner[src] != part.part]
        assert part.nodes == (owner == part.part).sum()
        assert (part.in_edges, part.cut_in_edges, part.halo_nodes) == (len(incoming), len(remote), len(set(remote)))
        wanted = {split: int((owner[ids] == part.part).sum()) for split, ids in finished.raw.splits.items()}
        assert part.splits == wanted


def test_reported_balance_is_largest_over_mean(finished):
    nodes = [part.nodes for part in finished.quality.parts]
    assert finished.quality.balance["nodes"] == pytest.approx(max(nodes) / (sum(nodes) / len(nodes)))


# ---- options and edges of the range


def test_random_parts_have_the_same_number_of_nodes(tmp_path):
    options = PartitionOptions(num_parts=4, method="random")
    finished = finish(draw_raw(undirected=True, num_nodes=62), options, tmp_path / "parts")
    assert sorted(part.nodes for part in finished.quality.parts) == [15, 15, 16, 16]


def test_one_part_keeps_the_original_ids(tmp_path):
    finished = finish(draw_raw(undirected=True), PartitionOptions(num_parts=1), tmp_path / "parts")
    assert finished.orig_ids.tolist() == list(range(60))
    assert finished.quality.cut_edges == 0


def test_topology_alone_is_partitioned(tmp_path):
    raw = RawGraph(name="bare", num_nodes=3, undirected=False, edge_index=np.array([[0, 1], [1, 2]]))
    finished = finish(raw, PartitionOptions(num_parts=2), tmp_path / "parts")
    assert sorted(finished.edges()) == [(0, 1), (1, 2)]
    assert (finished.parts[0].features, finished.parts[0].labels, finished.parts[0].splits) == (None, None, {})
    assert (finished.manifest.feature_dim, finished.manifest.num_classes) == (None, 0)


@pytest.mark.parametrize("method", ["metis", "random"])
def test_graph_without_edges_is_partitioned(tmp_path, method):
    raw = RawGraph(name="dots", num_nodes=4, undirected=True, edge_index=np.empty((2, 0), dtype=np.int32))
    finished = finish(raw, PartitionOptions(num_parts=2, method=method), tmp_path / "parts")
    assert finished.graph.in_degrees().tolist() == [0] * 4
    assert finished.quality.cut_fraction == 0


def test_big_endian_features_keep_their_values(tmp_path):
    raw = RawGraph(
        name="swapped",
        num_nodes=2,
        undirected=False,
        edge_index=np.array([[0], [1]]),
        features=np.array([[1.5], [2.5]], dtype=">f8"),
    )
    finished = finish(raw, PartitionOptions(num_parts=1), tmp_path / "parts")
    assert finished.parts[0].features.tolist() == [[1.5], [2.5]]


@pytest.mark.parametrize("method", ["metis", "random"])
def test_same_command_gives_the_same_bytes(tmp_path, method):
    options = PartitionOptions(num_parts=3, method=method, seed=9)
    for name in ("first", "second"):
        build_partition(draw_raw(undirected=True, num_nodes=300), options, tmp_path / name)
    first = {file.relative_to(tmp_path / "first"): file.read_bytes() for file in (tmp_path / "first").rglob("*.*")}
    second = {file.relative_to(tmp_path / "second"): file.read_bytes() for file in (tmp_path / "second").rglob("*.*")}
    assert first == second


def test_fewer_train_nodes_than_parts_are_refused(tmp_path):
    raw = draw_raw(undirected=True, num_train=2)
    with pytest.raises(ValueError, match="num_parts is 4 but drawn has 2 train nodes; .* take fewer parts"):
        build_partition(raw, PartitionOptions(num_parts=4), tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


def test_more_parts_than_nodes_are_refused(tmp_path):
    raw = RawGraph(name="bare", num_nodes=3, undirected=False, edge_index=np.array([[0], [1]]))
    with pytest.raises(ValueError, match="num_parts is 4 but the graph has 3 nodes"):
        build_partition(raw, PartitionOptions(num_parts=4), tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_parts": 0}, "num_parts is 0; expected an integer >= 1"),
        ({"num_parts": 2, "method": "spectral"}, "method is 'spectral'; expected 'metis', "),
        ({"num_parts": 2, "method": "file"}, "method file and an assignment go together"),
        ({"num_parts": 2, "memory_limit": 0}, "memory_limit is 0; expected an integer >= 1"),
        ({"num_parts": 2, "feature_dtype": "float8"}, "feature_dtype is 'float8'; expected 'keep', "),
        ({"num_parts": 2, "seed": -1}, "seed is -1; expected an integer from 0 to 2147483647"),
        ({"num_parts": 2, "seed": 2**31}, "seed is 2147483648; expected an integer from 0 to 2147483647"),
        ({"num_parts": 2.0}, "num_parts is 2.0; expected an integer >= 1"),
        ({"num_parts": "2"}, "num_parts is '2'; expected an integer >= 1"),
        ({"num_parts": True}, "num_parts is True; expected an integer >= 1"),
        ({"num_parts": 2, "seed": None}, "seed is None; expected an integer from 0"),
        ({"num_parts": 2, "seed": 1.0}, "seed is 1.0; expected an integer from 0"),
        ({"num_parts": 2, "method": "ldg", "passes": 1.5}, "passes is 1.5; expected an integer >= 1"),
        ({"num_parts": 2, "clusters": "4"}, "clusters is '4'; expected an integer >= 1"),
        ({"num_parts": 2, "memory_limit": 1.5}, "memory_limit is 1.5; expected an integer >= 1"),
        ({"num_parts": 2, "edge_map": "no"}, "edge_map is 'no'; expected True or False"),
        ({"num_parts": 2, "on_disk": 1}, "on_disk is 1; expected True or False"),
        ({"num_parts": 2, "method": "file", "assignment": np.zeros(3)}, "assignment is a ndarray; expected the path"),
    ],
)
def test_options_out_of_range_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        PartitionOptions(**values)

"""--clusters: every node in one cluster of its own part, the same in memory, on disk and after the fact."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.generators import planted_communities
from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.graph.storage import CLUSTERS, MANIFEST_NAME, load_clusters, load_topology, read_manifest
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.methods import libmetis
from fastsample_dist.partition.methods.request import MissingPackageError
from fastsample_dist.partition.plan.disk import output_bytes
from fastsample_dist.partition.plan.memory import in_memory_peak
from fastsample_dist.partition.report.check import check_partition
from fastsample_dist.partition.write import clusters as writing
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.partition.write.clusters import assign_clusters, clusters_per_part
from fastsample_dist.partition.write.repartition import repartition
from fastsample_dist.pipeline.data import DistData
from tests.test_partition.damage import entry, rewrite
from tests.test_partition.inputs import draw_raw, write_input

K = 9


def draw(*, undirected: bool = True, **options):
    raw = draw_raw(undirected=undirected, num_nodes=200, num_train=83, **options)
    raw.labels[:] = np.maximum(raw.labels, 0)
    return raw


def build(path: Path, raw=None, **options) -> Path:
    options = {"num_parts": 4, "method": "random", "clusters": K} | options
    build_partition(raw or draw(), PartitionOptions(**options), path)
    return path


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Path:
    """Four parts with clusters; not to be changed."""
    return build(tmp_path_factory.mktemp("clusters") / "parts")


def clusters_of(path: Path) -> np.ndarray:
    return load_clusters(path, read_manifest(path)).numpy()


def parts_of_clusters(path: Path) -> list[tuple[int, ...]]:
    """The parts that each cluster has nodes in."""
    ranges = read_manifest(path).part_ranges
    owners = np.repeat(np.arange(len(ranges) - 1), np.diff(ranges))
    found = clusters_of(path)
    return [tuple(np.unique(owners[found == cluster]).tolist()) for cluster in range(found.max() + 1)]


@pytest.mark.parametrize("undirected", [True, False])
def test_clusters_nest_in_parts_and_are_of_similar_size(tmp_path, undirected):
    path = build(tmp_path / "parts", draw(undirected=undirected))
    assert clusters_of(path).dtype == np.int32 and len(clusters_of(path)) == 200
    assert parts_of_clusters(path) == [(0,), (0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,)]  # 50 nodes in each part
    sizes = np.bincount(clusters_of(path))
    assert all(abs(size - 50 / share) <= 3 for size, share in zip(sizes, [3] * 3 + [2] * 6, strict=True))
    assert check_partition(path) == []


def test_planted_communities_are_found():
    graph = planted_communities(400, 8, homophily=0.98, seed=3)[0]
    found = assign_clusters(graph, np.zeros(400, dtype=np.int32), 8, undirected=True, seed=0)
    owners = np.repeat(np.arange(400), np.diff(graph.indptr.numpy()))
    assert (found[owners] == found[graph.indices.numpy()]).mean() > 0.9  # by chance an eighth


@pytest.mark.parametrize("undirected", [True, False])
def test_on_disk_and_after_the_fact_they_are_the_same(tmp_path, undirected):
    raw = draw(undirected=undirected)
    one, two, bare = build(tmp_path / "one", raw), tmp_path / "two", tmp_path / "bare"
    build(two, raw, on_disk=True)
    build(bare, raw, clusters=None)
    repartition(bare, 4, tmp_path / "later", clusters=K)
    assert load_clusters(bare, read_manifest(bare)) is None
    for other in (two, tmp_path / "later"):
        assert (one / MANIFEST_NAME).read_bytes() == (other / MANIFEST_NAME).read_bytes()
    for name in read_manifest(bare).files:
        assert (bare / name).samefile(tmp_path / "later" / name)


def test_a_killed_run_resumes_after_the_clusters(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("fastsample_dist.partition.write.build.write_partition", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(tmp_path / "parts", on_disk=True)
    monkeypatch.setattr("fastsample_dist.partition.write.build.assign_clusters", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build(tmp_path / "parts", on_disk=True, clusters=8)
    monkeypatch.undo()
    build(tmp_path / "parts", on_disk=True)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["parts"]
    assert len(parts_of_clusters(tmp_path / "parts")) == K


def test_joined_parts_keep_them_and_cut_ones_do_not(parts, tmp_path, caplog):
    repartition(parts, 2, tmp_path / "two")
    assert [owner for (owner,) in parts_of_clusters(tmp_path / "two")] == [0] * 5 + [1] * 4
    assert check_partition(tmp_path / "two") == [] and not caplog.messages
    repartition(parts, 8, tmp_path / "eight")
    assert CLUSTERS not in read_manifest(tmp_path / "eight").files and "pass --clusters for new ones" in caplog.text
    repartition(parts, 8, tmp_path / "new", clusters=16)
    assert [owner for (owner,) in parts_of_clusters(tmp_path / "new")] == [part for part in range(8) for _ in "ab"]
    assert check_partition(tmp_path / "new") == []


def test_ranks_see_the_clusters_of_all_nodes(parts):
    with DistContext(LocalCommunicator()) as ctx:
        assert torch.equal(DistData.load(parts, ctx).clusters, torch.from_numpy(clusters_of(parts)))


def test_the_shares_of_the_parts():
    assert clusters_per_part(np.array([50, 50, 50, 50]), 9).tolist() == [3, 2, 2, 2]
    assert clusters_per_part(np.array([1, 1, 98]), 50).tolist() == [1, 1, 48]
    assert clusters_per_part(np.array([1, 2, 7]), 10).tolist() == [1, 2, 7]
    assert clusters_per_part(np.array([1000, 1]), 2).tolist() == [1, 1]


def test_one_cluster_per_node_one_per_part_and_no_edge():
    graph = CSCGraph(torch.zeros(7, dtype=torch.int64), torch.empty(0, dtype=torch.int32))
    owners = np.array([0, 1, 0, 1, 1, 1])
    cut = lambda count: assign_clusters(graph, owners, count, undirected=True, seed=0).tolist()  # noqa: E731
    assert cut(2) == [0, 1, 0, 1, 1, 1]
    assert cut(6) == [0, 2, 1, 3, 4, 5]
    assert cut(4) == [0, 1, 0, 2, 3, 1]


def test_the_figures_are_counted(parts, tmp_path, capsys):
    assert main(["--inspect", str(parts), "--json", str(tmp_path / "report.json")]) == 0
    figures, graph = json.loads((tmp_path / "report.json").read_text()), load_topology(parts, read_manifest(parts))
    found = clusters_of(parts)
    owners = np.repeat(np.arange(200), np.diff(graph.indptr.numpy()))
    inside = int((found[owners] == found[graph.indices.numpy()]).sum())
    sizes = np.bincount(found)
    assert figures["clusters"] == {
        "number": K, "smallest": sizes.min(), "largest": sizes.max(),
        "edges_inside": inside, "fraction_inside": inside / graph.num_edges,
    }  # fmt: skip
    assert f"{inside:,} edges inside ({inside / graph.num_edges:.2%})" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (entry(0, -1), "clusters.npy, entry 0: is -1; expected a cluster, 0 to 199 at most"),
        (entry(199, 0), "clusters.npy, entry 199: is 0 in part 3, but earlier parts have the clusters up to 6"),
        (lambda found: found + 1, "clusters.npy: lacks cluster 0; expected every number from 0 to 9"),
    ],
    ids=["negative", "foreign", "gap"],
)
def test_check_finds(tmp_path, change, text):
    path = build(tmp_path / "parts")
    rewrite(path, CLUSTERS, change)
    assert [str(finding) for finding in check_partition(path)] == [f"{path}/topology/{text}"]


@pytest.mark.parametrize(
    ("clusters", "text"),
    [
        (3, "clusters is 3 but there are 4 parts, and a cluster lies in one part; pass at least 4."),
        (201, "clusters is 201 but the graph has 200 nodes; take at most one cluster per node."),
    ],
)
def test_numbers_that_do_not_fit_are_refused(parts, tmp_path, capsys, clusters, text):
    graph = write_input(tmp_path / "graph", draw())
    more = ["--clusters", str(clusters), "--output", str(tmp_path / "new")]
    for task in (["--input", str(graph), "--num-parts", "4"], ["--repartition", str(parts), "4"]):
        assert main([*task, *more]) == 1
        assert capsys.readouterr().err == f"fastsample-partition: error: {text}\n"
    assert [item.name for item in tmp_path.iterdir()] == ["graph"]


def test_without_metis_they_are_refused_before_the_graph_is_read(parts, tmp_path, monkeypatch):
    def missing():
        raise MissingPackageError("method metis needs cmeel-metis or pymetis")

    monkeypatch.setattr(writing, "require_metis", missing)
    for act in (lambda: build(tmp_path / "new"), lambda: repartition(parts, 4, tmp_path / "new", clusters=K)):
        with pytest.raises(MissingPackageError, match="--clusters: method metis needs .* or leave --clusters out"):
            act()
    assert list(tmp_path.iterdir()) == []


def test_pymetis_cuts_clusters_where_libmetis_is_missing(tmp_path, monkeypatch):
    pytest.importorskip("pymetis", reason="pymetis is not installed")
    monkeypatch.setattr(libmetis, "load", lambda: None)
    for undirected in (True, False):
        path = build(tmp_path / f"{undirected}", draw(undirected=undirected))
        assert [len(owners) for owners in parts_of_clusters(path)] == [1] * K


def test_a_part_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fastsample_dist.partition.write.build.cluster_needs", lambda *_: 1 << 60)
    with pytest.raises(ValueError, match=r"a part with 50 nodes and \d+ edges inside, and the memory limit is"):
        build(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_inside_metis_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "cut_nodes", interrupted)
    bare = build(tmp_path / "bare", clusters=None)
    for act in (lambda: build(tmp_path / "new"), lambda: repartition(bare, 4, tmp_path / "new", clusters=K)):
        with pytest.raises(KeyboardInterrupt):
            act()
    assert [item.name for item in tmp_path.iterdir()] == ["bare"]


def test_the_plan_counts_them(tmp_path, capsys):
    raw = draw_raw(undirected=True, num_nodes=3000, num_train=100)
    plain, clustered = sizes_of(raw), sizes_of(raw, clusters=True)
    assert 4 * 3000 <= output_bytes(clustered, 3) - output_bytes(plain, 3) <= 4 * 3000 + 400
    assert "cluster" in in_memory_peak(clustered, "random", 3).steps.keys() - in_memory_peak(plain, "random", 3).steps
    path = build(tmp_path / "parts", raw, num_parts=3)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert 0 <= output_bytes(clustered, 3) - size < 0.3 * size
    plan = tmp_path / "plan.json"
    assert main(["--plan", "--input", str(path), "--json", str(plan)]) == 0
    assert json.loads(plan.read_text())["graph"]["clusters"] is True
    assert main(["--plan", "--num-nodes", "9", "--num-edges", "9", "--num-parts", "3", "--clusters", "2"]) == 1
    assert "clusters is 2 but there are 3 parts" in capsys.readouterr().err

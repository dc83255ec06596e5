"""fastsample-bench gpu gather, aggregate, epoch and walk: what they draw, verify, leave out and refuse."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fastsample_dist import NeighborSampler, TransitSampler, ops
from fastsample_dist.bench.gpu import aggregate as gpu_aggregate
from fastsample_dist.bench.gpu import epoch as gpu_epoch
from fastsample_dist.bench.gpu import gather as gpu_gather
from fastsample_dist.bench.gpu import report as gpu_report
from fastsample_dist.bench.gpu import walk as gpu_walk
from fastsample_dist.bench.gpu.aggregate import AggregateOptions
from fastsample_dist.bench.gpu.device import GpuTimer
from fastsample_dist.bench.gpu.gather import GatherOptions, ids_of_hit_rate
from fastsample_dist.bench.gpu.walk import GpuWalkOptions
from fastsample_dist.bench.peers import Baseline
from fastsample_dist.bench.walk.cases import with_weights
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.interop import dgl
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.sampling import arrays, transit
from tests.bench.gpu.emulated_gpu import EmulatedGpu
from tests.ops.graphs import random_csc
from tests.parts import draw_partition

GATHER = GatherOptions(width=8, device_rows=40, host_rows=40, num_ids=60, verify=True)
TRIALS = 2


@pytest.fixture
def gpu(emulated_device):
    return EmulatedGpu()


@pytest.mark.parametrize("hit_rate", [0.0, 0.25, 1.0])
def test_ids_hit_the_cache_as_often_as_asked(hit_rate):
    ids = ids_of_hit_rate(hit_rate, 200, (10, 40), torch.Generator().manual_seed(0))
    assert int((ids < 10).sum()) == hit_rate * 200
    assert ids.numel() == 200 and int(ids.min()) >= 0 and int(ids.max()) < 40


def test_hits_and_misses_are_mixed():
    hits = ids_of_hit_rate(0.5, 1000, (10, 40), torch.Generator().manual_seed(0)) < 10
    assert 400 < int((hits[1:] != hits[:-1]).sum()) < 600


def test_bytes_are_those_that_the_limit_counts(gpu):
    cases = {(case.place, case.dtype, case.hit_rate): case for case in gpu_gather.cases(gpu, GATHER)}
    row = 8 * 4
    whole = cases["device", torch.float32, None], cases["pinned", torch.float32, None]
    assert [(case.num_bytes, case.limit) for case in whole] == [(2 * 60 * row, "copy"), (60 * row, "bus")]
    split = [cases["split", torch.float32, rate] for rate in (0.0, 0.75, 1.0)]
    assert [(case.num_bytes, case.limit) for case in split] == [
        (60 * row, "bus"),
        (15 * row, "bus"),
        (120 * row, "copy"),
    ]


def test_gathered_rows_are_verified(gpu, monkeypatch):
    monkeypatch.setattr(ops, "gather_rows", lambda rows, ids, *_, **__: rows[ids] + 1)
    with pytest.raises(RuntimeError, match=r"verify: gathering 60 torch.float32 rows, device, .*not the CPU's"):
        gpu_gather.measure(gpu, GpuTimer(gpu, 0, TRIALS), GATHER, lambda _: None)


def measured_aggregate(gpu, **options):
    options = AggregateOptions(**{"batch_size": 5, "fanouts": (3, 2), "widths": (4,), **options})
    return gpu_aggregate.measure(random_csc(), gpu, GpuTimer(gpu, 0, TRIALS), options, lambda _: None)


def test_a_peer_that_is_not_installed_is_left_out_with_its_reason(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    found = measured_aggregate(gpu)
    assert "pip install fastsample_dist[pyg]" in found["missing"]["torch_geometric"]
    assert {way["way"] for case in found["cases"] for way in case["ways"]} == {"fastsample_dist", "torch.sparse"}


def test_torch_sparse_has_no_maximum(gpu):
    found = measured_aggregate(gpu)
    assert "max" in found["missing"]["torch.sparse"]
    has_sparse = {case["reduce"] for case in found["cases"] for way in case["ways"] if way["way"] == "torch.sparse"}
    assert has_sparse <= {"sum", "mean"} and has_sparse


def some_mfg():
    return NeighborSampler(random_csc(), [4]).sample([7, 0, 59, 12]).mfgs[0]


@pytest.mark.parametrize(
    ("name", "reduce"),
    [("torch.sparse", "sum"), ("torch.sparse", "mean"), ("torch_geometric", "sum"), ("torch_geometric", "mean"),
     ("torch_geometric", "max")],
)  # fmt: skip
def test_peers_combine_what_we_do(gpu, name, reduce):
    if name == "torch_geometric":
        pytest.importorskip("torch_geometric", reason="compares with torch_geometric's SimpleConv")
    mfg = some_mfg()
    rows = torch.randn(mfg.num_src, 6)
    combine = gpu_aggregate.contestants(gpu, mfg, torch.float32, reduce)[name]()
    torch.testing.assert_close(combine(rows), ops.aggregate(mfg.indptr, mfg.indices, rows, reduce=reduce))


def test_aggregates_are_verified(gpu, monkeypatch):
    real, calls = ops.aggregate, []

    def wrong_the_second_time(*args, **kwargs):
        calls.append(1)
        return real(*args, **kwargs) * len(calls)

    monkeypatch.setattr(ops, "aggregate", wrong_the_second_time)
    with pytest.raises(RuntimeError, match=r"verify: sum of torch.float32 rows of 6: the output is not the CPU's"):
        mfg = some_mfg()
        gpu_aggregate.verify(gpu, mfg, torch.randn(mfg.num_src, 6), "sum")


def test_an_epoch_needs_one_part(tmp_path):
    with pytest.raises(ValueError, match="has 2 parts; expected 1"):
        gpu_epoch.Task.load(draw_partition(tmp_path, 2).path, 0)


def test_an_epoch_needs_something_to_train_on(tmp_path):
    graph = RawGraph(name="bare", num_nodes=3, undirected=False, edge_index=np.array([[0, 1], [1, 2]]))
    build_partition(graph, PartitionOptions(num_parts=1, method="random"), tmp_path / "parts")
    with pytest.raises(ValueError, match="has no features and no labels and no training nodes"):
        gpu_epoch.Task.load(tmp_path / "parts", 0)


def test_parts_of_an_epoch_are_those_of_its_steps():
    class Way:
        def __init__(self):
            self.weight = torch.nn.Parameter(torch.ones(1))

        def batches(self):
            yield from (1.0, 3.0)

        def gather(self, batch):
            return batch, torch.tensor(batch), torch.zeros(1)

        def loss(self, batch, features, labels):
            return (self.weight * features).sum()

        def model(self):
            return torch.nn.ParameterList([self.weight])

    way, waits = Way(), []
    optimizer = torch.optim.SGD(way.model().parameters(), lr=0.5)
    found = gpu_epoch.run_epoch(way, optimizer, lambda: waits.append(1))
    assert found["loss"] == (1.0 + 0.5 * 3.0) / 2  # the first step takes 0.5 * 1.0 off the weight
    assert len(waits) == 2 * 3 and all(found[name] >= 0 for name in gpu_epoch.PARTS)


WALKS = GpuWalkOptions(samples=12, length=3, verify=True)


@pytest.fixture
def walking(gpu, monkeypatch):
    """The emulator's kernels also for applications; few rounds, of more distinct picks than there are nodes."""
    monkeypatch.setattr(transit.KHop, "max_attempts", 3)
    monkeypatch.setattr(arrays, "runs_kernels", lambda device: True)
    return gpu


def test_every_application_is_sampled_in_every_way(walking):
    found = gpu_walk.measure(random_csc(), walking, GpuTimer(walking, 0, TRIALS), WALKS, lambda _: None)
    assert [case["app"] for case in found["cases"]] == [
        "uniform", "deepwalk", "ppr", "node2vec", "multi_rw", "khop", "khop_unique",
        "layer", "fastgcn", "ladies", "cluster_gcn",
    ]  # fmt: skip
    for case in found["cases"]:
        is_collective = case["app"] in ("layer", "fastgcn", "ladies", "cluster_gcn")
        is_ragged, ways = case["app"] == "ppr", ["cpu", "sample"]
        if not is_collective:
            ways += ["transit", *([] if is_ragged else ["captured"]), "transit_flat"]
        assert [way["way"] for way in case["ways"]] == ways
        assert len(case["steps"]) == TRIALS and min(case["steps"]) > 0 and (case["samples"] == 12 or is_collective)


def test_samples_are_verified(walking, monkeypatch):
    real = TransitSampler.sample

    def wrong(self, *given):
        samples = real(self, *given)
        if self._run.schedule == "transit":
            samples.vertices[0, -1] += 1
        return samples

    monkeypatch.setattr(TransitSampler, "sample", wrong)
    with pytest.raises(RuntimeError, match=r"verify: uniform, schedule transit: the samples are not the CPU's\."):
        gpu_walk.measure(random_csc(), walking, GpuTimer(walking, 0, TRIALS), WALKS, lambda _: None)


STAND_IN = """#!{python}
import sys
import numpy as np
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
edges = np.fromfile(options["-g"], [("u", np.int32), ("v", np.int32), ("w", np.float32)])
assert options["-t"] == "edge-list" and options["-f"] == "binary" and edges["w"].min() >= 1
for _ in range(int(options["-n"])):
    print("SampleParallel: End to end time 0.5 secs")
print("totalSampledVertices", len(edges))
"""


@pytest.fixture
def nextdoor(tmp_path):
    """A directory with stand-ins for NextDoor's programs, which find as many vertices as the graph has edges."""
    for program, _ in gpu_walk.walk_peers.NEXTDOOR_CASES:
        file = tmp_path / program
        file.write_text(STAND_IN.format(python=sys.executable))
        file.chmod(0o755)
    return Baseline("nextdoor", tmp_path)


def test_nextdoor_runs_beside_every_schedule(walking, nextdoor, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_walk, "_cases", lambda *_: iter(()))
    monkeypatch.setattr(gpu_walk.walk_peers, "NEXTDOOR_CASES", gpu_walk.walk_peers.NEXTDOOR_CASES[::3])
    graph, options = random_csc(), GpuWalkOptions(samples=4, length=3, baselines=(nextdoor,), work=tmp_path)
    found = gpu_walk.measure(graph, walking, GpuTimer(walking, 0, TRIALS), options, lambda _: None)["nextdoor"]
    assert [case["app"] for case in found] == ["deepwalk", "khop"]
    for case in found:
        assert [way["way"] for way in case["ways"]] == ["sample", "transit", "transit_flat"]
        assert all(way["theirs_s"]["median"] == graph.num_edges / 0.5 for way in case["ways"])
    assert not list(tmp_path.glob("*.bin"))
    judged = gpu_report.walk_goals({"nextdoor": found})
    assert len(judged) == 2 and all(entry["met"] is not None for entry in judged)


def test_a_program_of_nextdoor_that_fails_is_named(nextdoor, tmp_path):
    (tmp_path / "KHopSampling").write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    with pytest.raises(RuntimeError, match="KHopSampling ended with 3: out of memory"):
        gpu_walk.walk_peers.nextdoor_rates(nextdoor, "KHopSampling", tmp_path / "edges", "transit", 2)
    with pytest.raises(ValueError, match="Missing is not there; pass a directory with its programs"):
        gpu_walk.walk_peers.nextdoor_rates(nextdoor, "Missing", tmp_path / "edges", "transit", 2)


def test_edges_for_nextdoor_are_records(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_walk.walk_peers, "RECORDS", 7)
    graph = with_weights(random_csc(), 0)
    gpu_walk.walk_peers.write_edges(graph, tmp_path / "edges")
    edges = np.fromfile(tmp_path / "edges", [("u", np.int32), ("v", np.int32), ("w", np.float32)])
    rows = np.repeat(np.arange(graph.num_nodes), graph.in_degrees())
    assert np.array_equal(edges["u"], rows) and np.array_equal(edges["v"], graph.indices)
    assert np.array_equal(edges["w"], graph.weights)


def test_a_package_walks_in_turns_or_is_left_out_with_its_reason(walking, monkeypatch):
    walk = lambda roots: torch.stack([roots, roots, torch.full_like(roots, -1)], 1)  # noqa: E731
    monkeypatch.setattr(dgl, "walker", lambda *_, **__: walk)
    monkeypatch.setattr(gpu_walk, "APPS", gpu_walk.APPS[:1])
    options = GpuWalkOptions(samples=4, length=3, baselines=(Baseline("dgl"),))
    found = gpu_walk.measure(random_csc(), walking, GpuTimer(walking, 0, TRIALS), options, lambda _: None)
    assert found["cases"][0]["ways"][-1]["way"] == "dgl" and found["cases"][0]["missing"] == {}
    left_out = [line for line in gpu_report.walk_lines(found) if "left out" in line]
    assert left_out == ["dgl left out of layer, fastgcn, ladies, cluster_gcn: only walks are compared with it."]


@pytest.mark.parametrize(("package", "app"), [("pyg", "deepwalk"), ("pyg", "ppr"), ("dgl", "node2vec")])
def test_what_a_package_has_not_on_gpus_is_refused(package, app):
    with pytest.raises(ValueError, match="walks"):
        gpu_walk.walk_peers.package_walker(package, app, random_csc(), 3, torch.device("cpu"))


def test_packages_walk_where_they_are_asked_to():
    pytest.importorskip("dgl", reason="walks by DGL")
    walk = gpu_walk.walk_peers.package_walker("dgl", "uniform", random_csc(), 3, torch.device("cpu"))
    assert walk(torch.tensor([0, 5, 7])).shape == (3, 3)


class StandInForCugraph:
    """pylibcugraph on arrays in host memory: its functions' arguments and results, picks of the first neighbour."""

    class ResourceHandle:
        pass

    class GraphProperties:
        def __init__(self, *, is_symmetric, is_multigraph):
            assert is_multigraph and not is_symmetric

    class SGGraph:
        def __init__(
            self, handle, properties, offsets, indices, *, weight_array, store_transposed, renumber,
            do_expensive_check, input_array_format,
        ):  # fmt: skip
            assert not store_transposed and input_array_format == "CSR"
            assert offsets.dtype == indices.dtype and len(indices) == offsets[-1]
            self.offsets, self.indices, self.weights = offsets, indices, weight_array

        def first(self, node):
            begin, end = self.offsets[node : node + 2] if node >= 0 else (0, 0)
            return self.indices[begin] if begin < end else -1

    def uniform_random_walks(self, handle, graph, starts, max_length):
        paths = [starts]
        for _ in range(max_length):
            paths.append(np.array([graph.first(node) for node in paths[-1]], dtype=starts.dtype))
        return np.stack(paths, 1).reshape(-1), None, max_length

    def biased_random_walks(self, handle, graph, starts, max_length):
        assert graph.weights.dtype == np.float32 and len(graph.weights) == len(graph.indices)
        return self.uniform_random_walks(handle, graph, starts, max_length)

    def node2vec_random_walks(self, handle, graph, seeds, max_depth, p, q):
        assert (p, q) == (2.0, 0.5)
        return self.uniform_random_walks(handle, graph, seeds, max_depth)[:2]

    def homogeneous_uniform_neighbor_sample(
        self, handle, graph, seeds, label_offsets, fan_out, *, with_replacement, do_expensive_check
    ):
        assert label_offsets is None and fan_out.dtype == np.int32 and with_replacement
        found = []
        for size in fan_out:
            seeds = np.array([graph.first(node) for node in seeds for _ in range(size) if graph.first(node) >= 0])
            found.append(seeds)
        return {"minors": np.concatenate(found)}


@pytest.fixture
def cugraph(monkeypatch):
    monkeypatch.setitem(sys.modules, "pylibcugraph", StandInForCugraph())
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=lambda tensor: tensor.numpy()))


@pytest.mark.parametrize("app", ["uniform", "deepwalk", "node2vec"])
def test_cugraph_walks_against_the_edges(cugraph, app):
    graph, roots = with_weights(random_csc(dtype=torch.int64), 0), torch.tensor([0, 5, 59])
    added = gpu_walk.walk_peers.package_walker("cugraph", app, graph, 3, torch.device("cpu"))(roots)
    assert added.shape == (3, 3) and added[:, 0].tolist() == [
        int(graph.indices[graph.indptr[node]]) if graph.in_degrees()[node] else -1 for node in roots
    ]  # fmt: skip


BESIDE_CUGRAPH = GpuWalkOptions(samples=4, length=3, baselines=(Baseline("cugraph"),))


def test_cugraph_counts_every_pick_of_a_neighbourhood(cugraph, gpu):
    graph = random_csc()
    walkers, missing = gpu_walk._package_walkers(graph, "khop", gpu, BESIDE_CUGRAPH)
    of_one = graph.indices[graph.indptr[:-1][graph.in_degrees() > 0]].long()
    seed = int(torch.nonzero(graph.in_degrees() > 0)[torch.nonzero(graph.in_degrees()[of_one] > 0)[0]])
    added = walkers["cugraph"](torch.tensor([seed]))
    assert missing == {} and added.shape == (25 + 25 * 10,) and bool((added >= 0).all())


def test_what_cugraph_has_not_is_left_out(cugraph, gpu):
    walkers, missing = gpu_walk._package_walkers(random_csc(), "khop_unique", gpu, BESIDE_CUGRAPH)
    assert walkers == {} and missing["cugraph"].startswith("cuGraph has uniform and weighted walks, node2vec and k-hop")


def test_a_package_that_is_missing_is_left_out_by_name(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "pylibcugraph", None)
    walkers, missing = gpu_walk._package_walkers(random_csc(), "uniform", gpu, BESIDE_CUGRAPH)
    assert walkers == {} and "cuGraph needs pylibcugraph and cupy, which cannot be imported" in missing["cugraph"]
    assert missing["cugraph"].endswith("install pylibcugraph-cu13")


def test_a_benchmark_names_the_packages_that_it_runs():
    assert Baseline.parse("cugraph", "nextdoor", gpu_walk.walk_peers.PACKAGES) == Baseline("cugraph")
    with pytest.raises(ValueError, match=r"--baseline is 'rapids'; expected nextdoor=DIR, dgl, pyg or cugraph\."):
        Baseline.parse("rapids", "nextdoor", gpu_walk.walk_peers.PACKAGES)
    with pytest.raises(ValueError, match=r"--baseline is 'cugraph'; expected thunderrw=DIR, dgl or pyg\."):
        Baseline.parse("cugraph", "thunderrw")

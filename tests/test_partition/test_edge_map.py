"""The edge map: edge k of a partition is the input's edge edge_map[k], in memory and on disk, from every format."""

import dataclasses
import gzip
import json
import shutil
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import fastsample_dist as fsd
from fastsample_dist import DistContext, DistData
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.graph import datasets, npy_files
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs import read_graph, sizes
from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.graph.storage import load_topology, read_manifest
from fastsample_dist.ops import SampleSpec
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.external import budget as memory
from fastsample_dist.partition.external.csc import sort_edge_bytes
from fastsample_dist.partition.plan.disk import output_bytes, work_bytes
from fastsample_dist.partition.plan.memory import memory_budget
from fastsample_dist.partition.report.check import check_partition
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.partition.write.repartition import repartition
from tests.graph.inputs import layouts
from tests.optional import HealthCheck, given, settings, st
from tests.test_partition.damage import entry, rewrite
from tests.test_partition.inputs import draw_raw, write_input
from tests.test_partition.test_on_disk import arguments, contents, run_killed

MAP = "topology/edge_map.npy"
OPTIONS = PartitionOptions(num_parts=3, method="random", seed=2, edge_map=True)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Several pieces and buckets even here."""
    monkeypatch.setattr(memory, "MIN_PIECE", 1)
    monkeypatch.setattr(memory, "MAX_PIECE", 37)
    monkeypatch.setattr(memory, "MAX_BUCKET", 61)


def draw(*, undirected: bool, weighted: bool, typed: bool = False, dtype: str = "int64") -> RawGraph:
    """A graph with parallel edges in both directions, self-loops, and equal edges of equal and of other weights."""
    raw = draw_raw(undirected=undirected, weighted=weighted)
    edges = np.concatenate([raw.edge_index, raw.edge_index[:, :40], raw.edge_index[::-1, 20:60]], axis=1)
    edges[1, ::17] = edges[0, ::17]
    weights = np.arange(edges.shape[1], dtype=np.float64) // 3 % 5 if weighted else None
    kinds = {"node_types": ("a", "b"), "node_type": np.arange(raw.num_nodes) % 2} if typed else {}
    changed = {"edge_index": edges.astype(dtype), "edge_weight": weights, "labels": np.maximum(raw.labels, 0)}
    return dataclasses.replace(raw, **changed, **kinds)


def check_map(path: Path, raw: RawGraph) -> None:
    """Edge by edge: the ends, the weight, and which of equal edges it is."""
    graph = load_topology(path, read_manifest(path))
    places, originals = graph.edge_map.numpy(), graph.orig_ids.numpy()
    sources = originals[graph.indices.numpy()]
    rows = originals[np.repeat(np.arange(graph.num_nodes), graph.in_degrees().numpy())]
    listed = list(zip(*raw.edge_index.tolist(), strict=True))
    stored = list(zip(sources.tolist(), rows.tolist(), strict=True))
    assert len(places) == len(stored) == graph.num_edges
    for place, ends in zip(places.tolist(), stored, strict=True):
        assert listed[place] == ends or (raw.undirected and listed[place] == ends[::-1])
    if raw.edge_weight is not None:
        np.testing.assert_array_equal(graph.weights.numpy(), raw.edge_weight[places])
    if raw.undirected:
        first = {}
        for place, (src, dst) in enumerate(listed):
            first.setdefault((src, dst), place)
            first[src, dst] = min(first[src, dst], first.get((dst, src), place))
            first[dst, src] = first[src, dst]
        assert {ends: place for ends, place in zip(stored, places.tolist(), strict=True)} == first
        return
    assert sorted(places.tolist()) == list(range(len(listed)))
    weights = np.zeros(len(places)) if raw.edge_weight is None else graph.weights.numpy()
    keys = list(zip(stored, weights.tolist(), strict=True))
    for one, other in zip(range(len(keys) - 1), range(1, len(keys)), strict=True):
        assert keys[one] != keys[other] or places[one] < places[other]  # equal edges as they are listed


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("typed", "dtype"), [(False, "int64"), (True, "int32"), (False, "uint8")])
def test_every_edge_leads_to_the_inputs_edge(tmp_path, undirected, weighted, typed, dtype):
    raw = draw(undirected=undirected, weighted=weighted, typed=typed, dtype=dtype)
    for on_disk in (False, True):
        options = dataclasses.replace(OPTIONS, on_disk=on_disk)
        build_partition(raw, options, tmp_path / f"parts-{on_disk}")
        check_map(tmp_path / f"parts-{on_disk}", raw)
    assert contents(tmp_path / "parts-True") == contents(tmp_path / "parts-False")
    assert check_partition(tmp_path / "parts-True") == []
    assert np.load(tmp_path / "parts-True" / MAP).dtype == np.int32
    assert len(list(tmp_path.iterdir())) == 2  # the work directory is gone


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_drawn_graphs_in_memory_and_on_disk(tmp_path_factory, data):
    num_nodes = data.draw(st.integers(1, 8))
    ends = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(ends, ends), max_size=40))
    weights = data.draw(st.sampled_from([None, "float32", "float64"]))
    raw = RawGraph(
        name="drawn",
        num_nodes=num_nodes,
        undirected=data.draw(st.booleans()),
        edge_index=np.array(edges, dtype=np.int64).reshape(-1, 2).T,
        edge_weight=None if weights is None else np.array([i % 3 for i in range(len(edges))], dtype=weights),
    )
    path = tmp_path_factory.mktemp("drawn")
    for on_disk in (False, True):
        options = PartitionOptions(num_parts=1, method="random", edge_map=True, on_disk=on_disk)
        build_partition(raw, options, path / f"{on_disk}")
        check_map(path / f"{on_disk}", raw)
    assert contents(path / "True") == contents(path / "False")


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_places_that_do_not_fit_int32_are_int64(tmp_path, monkeypatch, undirected, weighted):
    for module in (datasets, sizes):
        monkeypatch.setattr(module, "INT32_MAX_EDGES", 100)
    raw = draw(undirected=undirected, weighted=weighted)
    for on_disk in (False, True):
        build_partition(raw, dataclasses.replace(OPTIONS, on_disk=on_disk), tmp_path / f"{on_disk}")
        check_map(tmp_path / f"{on_disk}", raw)
    assert np.load(tmp_path / "True" / MAP).dtype == np.int64
    assert contents(tmp_path / "True") == contents(tmp_path / "False")


@pytest.mark.parametrize("on_disk", [False, True])
def test_without_the_option_nothing_changes(tmp_path, on_disk):
    raw = draw(undirected=True, weighted=True)
    for edge_map in (False, True):
        options = dataclasses.replace(OPTIONS, on_disk=on_disk, edge_map=edge_map)
        build_partition(raw, options, tmp_path / f"{edge_map}")
    plain, mapped = contents(tmp_path / "False"), contents(tmp_path / "True")
    assert mapped.keys() - plain.keys() == {MAP}
    assert all(mapped[name] == data for name, data in plain.items() if name != "manifest.json")
    assert "edge_map" not in plain["manifest.json"].decode()
    assert read_manifest(tmp_path / "True").version == 1
    assert load_topology(tmp_path / "False", read_manifest(tmp_path / "False")).edge_map is None


# ---- runs that are killed


@pytest.mark.parametrize(("where", "count"), [("save", 9), ("append", 4), ("write_at", 8), ("rows", 7)])
def test_killed_run_resumes_to_the_same_bytes(where, count, tmp_path):
    graph = write_input(tmp_path / "graph", draw(undirected=True, weighted=True))
    argv = arguments(graph, tmp_path / "parts", "--on-disk", "--method", "random", "--edge-map")
    assert run_killed(where, count, argv) == -signal.SIGKILL
    assert main(argv) == 0
    assert main(arguments(graph, tmp_path / "plain", "--method", "random", "--edge-map")) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")
    check_map(tmp_path / "parts", draw(undirected=True, weighted=True))


@pytest.mark.parametrize("first", [False, True])
def test_a_run_that_resumes_with_the_option_changed_starts_anew(tmp_path, first):
    graph = write_input(tmp_path / "graph", draw(undirected=False, weighted=False))
    argv = arguments(graph, tmp_path / "parts", "--on-disk", "--method", "random")
    both = [argv, [*argv, "--edge-map"]]
    assert run_killed("append", 4, both[first]) == -signal.SIGKILL
    assert main(both[not first]) == 0
    assert (tmp_path / "parts" / MAP).exists() != first
    assert check_partition(tmp_path / "parts") == []


# ---- --repartition, --check, --plan, --inspect


@pytest.mark.parametrize("num_parts", [1, 6])
def test_repartition_keeps_it(tmp_path, num_parts):
    raw = draw(undirected=False, weighted=True)
    build_partition(raw, OPTIONS, tmp_path / "parts")
    repartition(tmp_path / "parts", num_parts, tmp_path / "new")
    check_map(tmp_path / "new", raw)
    assert check_partition(tmp_path / "new") == []


@pytest.fixture(scope="module")
def templates(tmp_path_factory) -> dict[bool, Path]:
    paths = {undirected: tmp_path_factory.mktemp("template") / "parts" for undirected in (False, True)}
    for undirected, path in paths.items():
        build_partition(draw(undirected=undirected, weighted=False), OPTIONS, path)
    return paths


@pytest.mark.parametrize("chunk_bytes", [1 << 24, 40])
@pytest.mark.parametrize(
    ("undirected", "change", "text"),
    [
        (False, entry(5, 10**6), "entry 5: is place 1000000; expected 0 to 319, a place in the input"),
        (True, entry(7, -1), "entry 7: is place -1; expected 0 to 319, a place in the input"),
        (False, lambda places: np.where(places == 11, 12, places), "lacks some place of 0 to 319; expected each once"),
        (True, lambda places: np.where(np.arange(len(places)) == 9, (places[9] + 1) % 320, places), "different places"),
        (False, lambda places: places.astype(np.float32), "holds float32"),
    ],
)
def test_damage_is_found(templates, tmp_path, monkeypatch, chunk_bytes, undirected, change, text):
    monkeypatch.setattr(npy_files, "CHUNK_BYTES", chunk_bytes)
    parts = shutil.copytree(templates[undirected], tmp_path / "parts")
    rewrite(parts, MAP, change)
    findings = check_partition(parts)
    assert len(findings) == 1 and "edge_map.npy" in str(findings[0]) and text in str(findings[0])


def test_a_truncated_map_is_refused_when_the_partition_is_opened(templates, tmp_path):
    parts = shutil.copytree(templates[True], tmp_path / "parts")
    (parts / MAP).write_bytes((parts / MAP).read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"edge_map.npy is truncated"):
        load_topology(parts, read_manifest(parts))


def test_the_option_the_report_and_the_plan(tmp_path, capsys):
    raw = draw(undirected=True, weighted=False)
    graph, plans = write_input(tmp_path / "graph", raw), []
    assert main(arguments(graph, tmp_path / "parts", "--method", "random", "--edge-map")) == 0
    check_map(tmp_path / "parts", raw)
    assert main(["--inspect", str(tmp_path / "parts")]) == 0
    assert MAP in capsys.readouterr().out
    for more in ([], ["--edge-map"]):
        argv = ["--plan", "--input", graph, "--num-parts", 3, "--json", tmp_path / "plan.json", *more]
        assert main([str(item) for item in argv]) == 0
        plans.append(json.loads((tmp_path / "plan.json").read_text())["partitioning"])
    entries = 4 * 2 * raw.edge_index.shape[1]
    less, more = (plan["disk"]["output_bytes"] for plan in plans)
    assert entries <= more - less <= entries + 400
    less, more = (plan["disk"]["work_bytes"]["group"] for plan in plans)
    assert more - less == entries
    assert main(["--plan", "--input", str(tmp_path / "parts"), "--json", str(tmp_path / "plan.json")]) == 0
    assert json.loads((tmp_path / "plan.json").read_text())["graph"]["edge_map"] is True


@pytest.mark.parametrize("undirected", [False, True])
def test_the_plan_of_the_disk_holds(tmp_path, undirected):
    raw = draw_raw(undirected=undirected, num_nodes=3000, num_train=100)
    build_partition(raw, OPTIONS, tmp_path / "parts")
    size = sum(file.stat().st_size for file in (tmp_path / "parts").rglob("*") if file.is_file())
    planned = output_bytes(sizes_of(raw, edge_map=True), 3)
    assert 0 <= planned - size < 0.3 * size
    assert planned > output_bytes(sizes_of(raw), 3)
    assert work_bytes(sizes_of(raw, edge_map=True), 3)["sort"] > work_bytes(sizes_of(raw), 3)["sort"]


def test_memory_is_planned_for_it(monkeypatch):
    monkeypatch.setattr(memory, "MIN_PIECE", 1 << 16)
    raw = draw_raw(undirected=True)
    plain, mapped = (memory_budget(1 << 30, 0, sizes_of(raw, edge_map=flag), "random") for flag in (False, True))
    assert mapped.least() > plain.least()
    assert (mapped.sort_edge_bytes, plain.sort_edge_bytes) == (sort_edge_bytes(0, 4), sort_edge_bytes(0))
    # key, position, entry of the sort (source and position), room for the allocator
    assert sort_edge_bytes(0, 4) >= 8 + 4 + 8 and sort_edge_bytes(8, 8) >= 8 + 8 + 8 + 24


# ---- what it is for


def test_features_of_the_inputs_edges_are_joined_by_the_batches_edge_ids(tmp_path):
    raw = draw(undirected=True, weighted=True)
    fsd.partition_graph(raw, num_parts=2, method="random", edge_map=True, output=tmp_path / "parts", memory_limit="8GB")
    edge_features = torch.from_numpy(np.stack([*raw.edge_index, raw.edge_weight], axis=1))
    with DistContext(LocalCommunicator()) as ctx:
        data = DistData.load(tmp_path / "parts", ctx)
        sampler = fsd.NeighborSampler.from_spec(data.graph, SampleSpec(fanouts=(4, 3), edge_ids=True))
        batch = sampler.sample(data.split("train")[:9], step=3)
        for mfg in batch.mfgs:
            rows = edge_features[data.edge_map[mfg.edge_ids].long()]
            sources = data.orig_ids(mfg.src_nodes)[mfg.indices.long()]
            owners = torch.repeat_interleave(torch.arange(mfg.num_dst), mfg.indptr.diff())
            targets = data.orig_ids(mfg.src_nodes)[owners]
            assert torch.equal(
                rows[:, :2].sort(dim=1).values, torch.stack([sources, targets], 1).sort(dim=1).values.double()
            )
            assert torch.equal(rows[:, 2], data.graph.weights[mfg.edge_ids].double())
        own = data.own_graph()
        assert torch.equal(own.edge_map, data.edge_map[data.graph.indptr[data.own_range[0]] :][: own.num_edges])


def write_edgelist(path: Path, graph: layouts.Graph) -> Path:
    path.mkdir()
    lines = "".join(f"{src},{dst}\n# a comment\n" for src, dst in graph.edges.T.tolist())
    (path / "edges.csv.gz").write_bytes(gzip.compress(lines.encode()))
    return path


WRITERS = {
    "npy": layouts.write_npy,
    "edgelist": write_edgelist,
    "ogb": lambda path, graph: layouts.write_ogb(path.with_name("ogbn_arxiv"), graph),
    "ogb binary": lambda path, graph: layouts.write_ogb_binary(path.with_name("ogbn_papers100M"), graph, packed=True),
    "chunked": layouts.write_chunked,
    "graphbolt": layouts.write_graphbolt,
    "pyg": lambda path, graph: layouts.write_pyg(path.with_suffix(".pt"), graph),
}


@pytest.mark.parametrize("name", WRITERS)
def test_places_are_those_of_every_formats_own_list(tmp_path, name):
    graph = layouts.draw_graph()
    raw = read_graph(WRITERS[name](tmp_path / "input", graph))
    build_partition(raw, dataclasses.replace(OPTIONS, num_parts=2), tmp_path / "parts")
    check_map(tmp_path / "parts", dataclasses.replace(raw, edge_index=graph.edges))


def test_a_csc_graphs_places_are_those_of_its_indices(tmp_path):
    raw = draw(undirected=False, weighted=False)
    graph = raw.to_csc()
    fsd.partition_graph(graph, num_parts=2, method="random", edge_map=True, output=tmp_path / "parts")
    destinations = np.repeat(np.arange(graph.num_nodes), graph.in_degrees().numpy())
    check_map(tmp_path / "parts", dataclasses.replace(raw, edge_index=np.stack([graph.indices.numpy(), destinations])))


def test_types_that_are_joined_have_places_one_type_after_the_other(tmp_path):
    edges = np.concatenate([pairs + offset for pairs, offset in typed_offsets()], axis=1)
    raw = read_graph(layouts.write_pyg(tmp_path / "typed.pt", layouts.TYPED))
    build_partition(raw, dataclasses.replace(OPTIONS, num_parts=1), tmp_path / "parts")
    assert Counter(zip(*edges.tolist(), strict=True)) == Counter(zip(*raw.edge_index.tolist(), strict=True))
    check_map(tmp_path / "parts", dataclasses.replace(raw, edge_index=edges))


def typed_offsets() -> list[tuple[np.ndarray, np.ndarray]]:
    names = list(layouts.TYPED.counts)
    start = dict(zip(names, np.cumsum([0, *layouts.TYPED.counts.values()]).tolist(), strict=False))
    return [(pairs, np.array([[start[a]], [start[b]]])) for (a, _, b), pairs in layouts.TYPED.edges.items()]

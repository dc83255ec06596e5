"""A partition's tables for a device: placed once for all loaders, counted in full, refused in one line."""

from types import SimpleNamespace

import pytest
import torch

from fastsample_dist import DistContext, DistData, DistLoader, FeatureCache
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.device.placement import Room
from fastsample_dist.pipeline import caching, placed
from fastsample_dist.pipeline.placed import OWN, WHOLE, PlacedTables, PlacementRequest, place_tables
from tests.train.task import make_task

GPU = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), 1, dtype="float32").path


@pytest.fixture
def data(path):
    with DistContext(LocalCommunicator()) as ctx:
        yield DistData.load(path, ctx)


@pytest.fixture
def seen(monkeypatch):
    """What would be placed on a GPU with 1 MiB free: {name of the table: Placement}; nothing is."""
    places = {}

    def place_graph(graph, placement, *, weighted, valued):
        places["graph"] = placement
        return graph

    monkeypatch.setattr(placed, "measured_room", lambda device, ranks_on_host: Room(GPU, 1 << 20, 0, 1 << 20))
    monkeypatch.setattr(placed, "place_graph", place_graph)
    monkeypatch.setattr("fastsample_dist.features.dist.DistFeatures.placed", lambda features, place: features)
    monkeypatch.setattr("fastsample_dist.device.placement.Placement.put", lambda place, tensor: tensor)
    return places


def test_loaders_share_the_tables_of_a_scheme(data):
    cpu = torch.device("cpu")
    assert data.placed_tables(cpu, OWN) is data.placed_tables(cpu, OWN)
    assert data.placed_tables(cpu, WHOLE) is not data.placed_tables(cpu, OWN)
    assert data.placed_tables(cpu, WHOLE).graph is data.graph


def test_beside_a_sampler_of_its_own_features_alone_are_placed(data, seen):
    tables = data.placed_tables(GPU, None)
    assert tables.graph is None and [place.name for place in tables.places] == ["features"] and "graph" not in seen


def test_on_the_cpu_the_tables_stay_where_they_are(data):
    loader = DistLoader(data, [2], 10)
    assert [(place.name, place.where) for place in loader.places] == [("topology", "host"), ("features", "host")]
    assert loader.device == torch.device("cpu")


def test_a_slices_node_map_counts_as_topology(data, seen):
    hybrid = place_tables(PlacedTables(data.graph, data.graph.orig_ids, data.features), PlacementRequest(GPU))
    own = data.own_graph()
    vanilla = place_tables(PlacedTables(own, data.graph.orig_ids, data.features), PlacementRequest(GPU))
    ids = data.graph.orig_ids.nbytes
    arrays = data.graph.indptr.nbytes + data.graph.indices.nbytes
    assert hybrid.places[0].num_bytes == arrays + ids
    assert vanilla.places[0].num_bytes == arrays + (own.orig_ids.nbytes if own.orig_ids is not None else 0) + ids
    assert hybrid.places[1].num_bytes == data.features.local.nbytes
    assert seen["graph"].where == "device" and vanilla.orig_ids is data.graph.orig_ids


def test_a_choice_holds_for_all_tables(data, seen):
    tables = PlacedTables(data.graph, data.graph.orig_ids, data.features)
    assert [place.where for place in place_tables(tables, PlacementRequest(GPU, "pinned")).places] == ["pinned"] * 2


def test_what_tables_may_take_is_filled_by_the_topology_first(data, seen):
    assert data.table_bytes_left(GPU) is None
    topology, features = (place.num_bytes for place in data.placed_tables(GPU, WHOLE).places)
    for most, expected, left in (
        (topology + features, ["device", "device"], 0),
        (topology + features - 1, ["device", "pinned"], features - 1),
        (topology - 1, ["pinned", "device" if features < topology else "pinned"], None),
        (0, ["pinned", "pinned"], 0),
    ):
        data.forget_placed(GPU)
        data.table_bytes = most
        assert data.table_bytes_left(GPU) == most
        assert [place.where for place in data.placed_tables(GPU, WHOLE).places] == expected
        assert left is None or data.table_bytes_left(GPU) == left


def test_a_cache_beside_features_on_a_gpu_takes_no_more_than_tables_may(data, monkeypatch):
    local = SimpleNamespace(row_bytes=10, is_resident=True)
    features = SimpleNamespace(device=GPU, local=local, book=SimpleNamespace(num_nodes=100))
    task, alone = SimpleNamespace(data=data, features=features), SimpleNamespace()
    monkeypatch.setattr(caching, "measured_room", lambda device, ranks_on_host: Room(GPU, 1 << 20, 0, 1 << 20))
    data.table_bytes = 1500
    assert caching._rows_that_fit(FeatureCache(1500), task, alone) > 0
    with pytest.raises(ValueError, match="cache takes 1501B of device memory, but 1500B are free on cuda:0"):
        caching._rows_that_fit(FeatureCache(1501), task, alone)


@pytest.mark.parametrize("error", [MemoryError, torch.cuda.OutOfMemoryError])
def test_memory_that_was_taken_meanwhile_is_one_line(data, seen, monkeypatch, error):
    def place_graph(*_, **__):
        raise error("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 ...")

    monkeypatch.setattr(placed, "place_graph", place_graph)
    line = r"the tables could not be placed for cuda:0 \(CUDA out of memory\); choose placement 'pinned', or end what"
    with pytest.raises(ValueError, match=f"^{line}"):
        place_tables(PlacedTables(data.graph, data.graph.orig_ids, data.features), PlacementRequest(GPU))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_loader_for_a_gpu_that_is_not_there_is_refused(data):
    with pytest.raises(ValueError, match='device is "cuda" but torch sees no CUDA device'):
        DistLoader(data, [2], 10, device="cuda")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement": "device"}, "the topology cannot be placed in device memory: the device is cpu"),
        ({"placement": "moon"}, "placement is 'moon'; expected 'auto', 'device' or 'pinned'"),
        ({"kernel": "persistent"}, "kernel is 'persistent' but the device is cpu"),
        ({"kernel": "fast"}, "kernel is 'fast'; expected"),
    ],
)
def test_what_the_cpu_does_not_have_is_refused(data, options, message):
    with pytest.raises(ValueError, match=message):
        DistLoader(data, [2], 10, **options)

"""Batches in the memory of another process: every field arrives, tensors stay where the bytes are."""

import dataclasses

import pytest
import torch

from fastsample_dist import DistData, DistLoader, NeighborSampler, SampleSpec, SubgraphSpec
from fastsample_dist.device.clock import Clock, Lap
from fastsample_dist.pipeline.subgraph_loader import SubgraphLoader
from fastsample_dist.pipeline.task_batch import pack, unpack
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.mfg import MFG
from fastsample_dist.sampling.transit.app_sampler import AppSampler
from fastsample_dist.testing.graphs import conformance_graph
from tests.parts import draw_partition
from tests.pipeline.batch_fields import fields_of

FANOUTS, SEED = (4, 3, 2), 2**35 + 1
METHODS = {
    "uniform": {},
    "replaced": {"replace": True},
    "weighted": {"method": "weighted"},
    "weighted and replaced": {"method": "weighted", "replace": True},
    "labor": {"method": "labor"},
    "labor of one layer": {"method": "labor", "layer_dependency": True},
    "edge ids": {"edge_ids": True},
}
APPS = {
    "ladies": lambda: transit.LADIES((9, 7, 5)),
    "khop": lambda: transit.KHop((4, 3)),
}


def handed_over(batch, *tables):
    """The batch in copies of its bytes, as another process has them, and these."""
    head, buffers = pack(batch, tables)
    copies = [bytearray(bytes(buffer)) for buffer in buffers]
    return unpack(memoryview(head), [memoryview(copy) for copy in copies], tables), copies


def assert_arrives(batch, graph):
    found, _ = handed_over(batch, graph.orig_ids)
    assert fields_of(found) == fields_of(batch)
    assert all(mfg.orig_ids is graph.orig_ids for mfg in found.mfgs)
    assert [mfg.dst_orig_ids.tolist() for mfg in found.mfgs] == [mfg.dst_orig_ids.tolist() for mfg in batch.mfgs]


@pytest.fixture(scope="module", params=[torch.int32, torch.int64], ids=["int32", "int64"])
def graph(request):
    return conformance_graph(dtype=request.param)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_seeds", [0, 9])
def test_every_method_s_batches_arrive(graph, method, num_seeds):
    spec = SampleSpec(fanouts=FANOUTS, rng_seed=SEED, **METHODS[method])
    sampler = NeighborSampler.from_spec(graph, spec, edge_values=spec.edge_ids)
    assert_arrives(sampler.sample(torch.arange(num_seeds), 7), graph)


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("num_seeds", [0, 9])
def test_batches_of_applications_arrive(graph, app, num_seeds):
    assert_arrives(AppSampler(graph, APPS[app](), SEED, sample_id=3).sample(torch.arange(num_seeds), 7), graph)


@pytest.mark.parametrize("weights", ["ratio", "saint"])
def test_batches_of_subgraphs_arrive_with_one_mfg_for_all_layers(tmp_path, ctx, weights):
    data = DistData.load(draw_partition(tmp_path, 1).path, ctx)
    spec = SubgraphSpec(method="frontier", budget=60, frontier_size=9, weights=weights)
    batch = next(iter(SubgraphLoader(data, spec, num_layers=3)))
    assert (batch.seed_weights, batch.mfgs[0].row_sums)[weights == "ratio"] is not None
    assert_arrives(batch, data.graph)
    found, _ = handed_over(batch, data.graph.orig_ids)
    assert [mfg is found.mfgs[0] for mfg in found.mfgs] == [mfg is batch.mfgs[0] for mfg in batch.mfgs]


def test_a_loader_s_batch_arrives_with_features_labels_and_what_was_added(tmp_path, ctx):
    data = DistData.load(draw_partition(tmp_path, 1).path, ctx)
    batch = next(iter(DistLoader(data, [3, 2], 10, feature_dtype=torch.bfloat16)))
    batch.extra, batch.name, batch.flags = torch.arange(12).view(3, 4).t(), "one", torch.tensor([True, False])
    assert_arrives(batch, data.graph)


def test_known_original_ids_arrive(graph):
    batch = NeighborSampler(graph, FANOUTS).sample(torch.arange(9))
    batch.mfgs = [
        dataclasses.replace(mfg, orig_ids=None, known_orig_ids=mfg.dst_orig_ids, row_sums=torch.ones(mfg.num_dst))
        for mfg in batch.mfgs
    ]
    found, _ = handed_over(batch)
    assert fields_of(found) == fields_of(batch)


def test_tensors_lie_in_the_bytes_and_node_ids_travel_once(graph):
    batch = NeighborSampler(graph, FANOUTS).sample(torch.arange(9))
    found, copies = handed_over(batch, graph.orig_ids)
    spans = [(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in found.tensors() if tensor.numel()]
    begins = [torch.frombuffer(copy, dtype=torch.uint8).data_ptr() for copy in copies]
    held = [(begin, begin + len(copy)) for begin, copy in zip(begins, copies, strict=True)]
    assert all(any(lo <= first and end <= hi for lo, hi in held) for first, end in spans)
    edges = sum(mfg.indptr.nbytes + mfg.indices.nbytes for mfg in batch.mfgs)
    assert edges + batch.input_nodes.nbytes <= sum(map(len, copies)) <= edges + batch.input_nodes.nbytes + 16 * 7
    assert found.mfgs[1].src_nodes.data_ptr() == found.input_nodes.data_ptr() == found.seeds.data_ptr()


def test_seeds_that_are_a_slice_of_an_epoch_s_do_not_bring_the_others(graph):
    seeds = torch.arange(10_000)
    batch = NeighborSampler(graph, FANOUTS).sample(seeds[3:5].to(graph.indices.dtype))
    batch.extra = seeds[9000:9001]
    _, copies = handed_over(batch, graph.orig_ids)
    assert sum(map(len, copies)) < 4000


def test_what_was_derived_of_an_mfg_stays_behind(graph):
    batch = NeighborSampler(graph, FANOUTS).sample(torch.arange(9))
    batch.mfgs[0].derived["sums", torch.float32] = torch.ones(3)
    found, _ = handed_over(batch, graph.orig_ids)
    assert found.mfgs[0].derived == {} and isinstance(found.mfgs[0], MFG)


def test_another_graph_s_original_ids_are_copied(graph):
    batch = NeighborSampler(graph, FANOUTS).sample(torch.arange(9))
    found, _ = handed_over(batch, torch.arange(graph.num_nodes))
    assert torch.equal(found.mfgs[0].orig_ids, graph.orig_ids) and found.mfgs[0].orig_ids is not graph.orig_ids


def test_a_share_of_a_lap_arrives_as_its_seconds(graph):
    batch = NeighborSampler(graph, FANOUTS).sample(torch.arange(9))
    batch.sampling = Lap(Clock(), 10.0, 16.0, share=3)
    found, _ = handed_over(batch, graph.orig_ids)
    assert found.sample_s == 2.0 and found.fetching is None


def test_what_cannot_be_pickled_is_refused(graph):
    batch = NeighborSampler(graph, FANOUTS).sample(torch.arange(9), 5)
    batch.extra = lambda: 1
    with pytest.raises(ValueError, match=r"^the batch of step 5 cannot be handed to another process \(.*lambda.*"):
        pack(batch)

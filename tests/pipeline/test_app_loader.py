"""DistLoader(data, app=...): the batches of an application are those of one process on the unpartitioned graph, on a
GPU as on the CPU.

The oracle is an AppSampler there, fed each rank's seeds by original id and, for a collective sample, its rank's number.
"""

import contextlib
import importlib.util

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph, DistContext, DistData, DistLoader, MiniBatch
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.pipeline import loader as of_loader
from fastsample_dist.sampling import transit
from fastsample_dist.sampling.transit.app_sampler import AppSampler, app_facts
from fastsample_dist.sampling.transit.device_collective import NotOnGpusError
from fastsample_dist.testing import RankError, run_distributed
from tests.cuda_devices import kernels_on_the_cpu
from tests.grids import grid
from tests.parts import draw_partition
from tests.sampling.transit.apps import Own

SEED, BATCH, NUM_EDGES = 2**35 + 1, 11, 3000
APPS = {
    "ladies": lambda: transit.LADIES((9, 7, 5)),
    "fastgcn": lambda: transit.FastGCN((40, 30)),
    "fastgcn without replacement": lambda: transit.FastGCN((40, 30), replace=False),
    "khop": lambda: transit.KHop((4, 3)),
    "mvs": lambda: transit.MVS(),
}


class Near(Own):
    """Two picks, then most of the neighbours of both."""

    num_steps = 2

    def sample_size(self, step):
        return 2 if step == 0 else transit.ALL

    def next(s, transits, edges, step, draw, par):
        if draw.coin(2**30):
            return transit.NULL
        return edges[draw.turn] if step == 1 else edges.pick(draw)


class Sharing(transit.LADIES):
    """Two in three picks by the race, the others uniformly."""

    def unique(self, step):
        return False

    def next(s, transits, edges, step, draw, par):
        if draw.index % 3 == 2 and len(edges) > 0:
            return edges[draw.below(len(edges))]
        return edges.ranked(draw.index)


class Equal(Sharing):
    """All edges count alike, which is said in Python."""

    def edge_weights(self, edges):
        return torch.from_numpy(1.0 / edges.row_sums(np.ones(len(edges.src))))


OWN = {"near": Near, "sharing": lambda: Sharing((9, 7, 5)), "equal": lambda: Equal((9, 7, 5))}
NEEDS_NUMBA = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")


def draw_weights():
    """A quarter is 0, and some outweigh all the rest."""
    rng = np.random.default_rng(1)
    weights = rng.random(NUM_EDGES)
    weights[rng.random(NUM_EDGES) < 0.25] = 0
    weights[rng.random(NUM_EDGES) < 0.05] = 1e6
    return weights


def columns_of(batch, orig_ids=None):
    """All that is sampled, nodes by original id."""
    nodes = [batch.seeds, batch.input_nodes, *(mfg.src_nodes for mfg in batch.mfgs)]
    named = [own.long() if orig_ids is None else orig_ids[own.long()] for own in nodes]
    edges = [column for mfg in batch.mfgs for column in (mfg.indptr, mfg.indices, mfg.edge_weights)]
    return [*named, *edges], [(mfg.num_dst, mfg.includes_dst) for mfg in batch.mfgs], batch.step


def same(found, expected):
    """Whether two results of columns_of are equal."""
    pairs = list(zip(found[0], expected[0], strict=True))
    return found[1:] == expected[1:] and all(
        (a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in pairs
    )


def run_rank(ctx, path, prefetch):
    """{application: batches of an epoch}, and the exchanges that were made for them."""
    data = DistData.load(path, ctx)
    seen = {}
    for name, make in APPS.items():
        loader = DistLoader(data, app=make(), batch_size=BATCH, rng_seed=SEED, prefetch=prefetch)
        seen[name] = [columns_of(mb, data.graph.orig_ids) for mb in loader]
    return seen, set(ctx.comm.stats())


@pytest.mark.parametrize(
    ("ranks", "prefetch"), grid([(1, 0), (2, 0), (2, 3), (4, 0)], gate=[(1, 0), (2, 3)], several=True)
)
def test_batches_are_those_of_one_process(tmp_path, ranks, prefetch):
    drawn = draw_partition(tmp_path, ranks, weights=draw_weights())
    results = run_distributed(ranks, run_rank, args=(drawn.path, prefetch))
    for name, make in APPS.items():
        for rank, (seen, purposes) in enumerate(results):
            oracle = AppSampler(drawn.graph, make(), SEED, sample_id=rank)
            assert not {"sample_ids", "sample_reply"} & purposes
            assert len(seen[name]) > 1
            for found in seen[name]:
                assert same(found, columns_of(oracle.sample(found[0][0], found[2])))


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def on_kernels(request):
    """A context in which loaders sample by kernels, and their device."""
    if request.param == "gpu":
        return contextlib.nullcontext(), "cuda"
    return kernels_on_the_cpu(request.getfixturevalue("emulated_library")), "cpu"


@pytest.mark.parametrize("name", [*APPS, *(pytest.param(name, marks=[NEEDS_NUMBA, pytest.mark.grid]) for name in OWN)])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_of_a_gpu_are_the_cpus(tmp_path, on_kernels, name, prefetch):
    path, make = draw_partition(tmp_path, 1, weights=draw_weights()).path, {**APPS, **OWN}[name]
    kernels, device = on_kernels
    with DistContext(LocalCommunicator()) as ctx:
        data = DistData.load(path, ctx)

        def epoch(device):
            loader = DistLoader(data, app=make(), batch_size=40, rng_seed=SEED, prefetch=prefetch, device=device)
            for batch in loader:
                ids = [mfg.dst_orig_ids.tolist() for mfg in batch.mfgs]
                assert batch.input_nodes.device.type == torch.device(device).type
                yield columns_of(batch.to("cpu")), ids, batch.features.cpu().tolist()

        expected = list(epoch("cpu"))
        with kernels as emulated:
            found = list(epoch(device))
            assert emulated is None or emulated.num_launches() > 10 * len(found)
    assert len(found) == len(expected) == 3
    for (columns, *others), (right, *rest) in zip(found, expected, strict=True):
        assert same(columns, right) and others == rest


def test_what_no_kernel_samples_is_sampled_on_the_cpu(tmp_path, monkeypatch, caplog):
    tried = []

    class OnACpu(AppSampler):
        def __init__(self, *given, device):
            tried.append(device)
            if len(tried) == 1:
                raise NotOnGpusError("LADIES has what GPUs do not sample; leave the device out.")
            super().__init__(*given, device=device)

    path = draw_partition(tmp_path, 1).path
    with DistContext(LocalCommunicator()) as ctx:
        data = DistData.load(path, ctx)
        expected = [columns_of(mb) for mb in DistLoader(data, app=transit.LADIES((9,)), batch_size=40)]
        monkeypatch.setattr(of_loader, "AppSampler", OnACpu)
        found = [columns_of(mb) for mb in DistLoader(data, app=transit.LADIES((9,)), batch_size=40)]
    assert all(map(same, found, expected)) and len(tried) == 2
    [line] = [record.getMessage() for record in caplog.records if record.name == of_loader.__name__]
    assert line.startswith("LADIES has what GPUs do not sample; leave the device out. The CPU samples it, and its ")


def test_samples_of_other_ranks_and_steps_differ():
    graph = CSCGraph.from_edge_index(*torch.randint(0, 99, (2, 999), generator=torch.manual_seed(0)), 99)
    of_rank = [AppSampler(graph, transit.LADIES((5,)), sample_id=rank).sample([1, 2, 3]) for rank in range(2)]
    again = AppSampler(graph, transit.LADIES((5,))).sample([1, 2, 3], step=1)
    inputs = [batch.input_nodes.tolist() for batch in (*of_rank, again)]
    assert inputs[0] != inputs[1] and inputs[0] != inputs[2]


@pytest.mark.parametrize("app", [transit.KHop((3, 2)), pytest.param(Near(), marks=NEEDS_NUMBA)])
def test_rows_of_every_hop_hold_the_picks_of_the_steps_so_far(app):
    """Of samples of two steps: hop 1 has the seeds' picks of step 0, and all picks of step 1."""
    graph = CSCGraph.from_edge_index(*torch.randint(0, 30, (2, 400), generator=torch.manual_seed(0)), 31)
    seeds, degrees = torch.tensor([4, 9, 30, 11]), graph.in_degrees().tolist()
    batch = AppSampler(graph, app, 7).sample(seeds, 5)
    samples = transit.plain.sample(graph, app, seeds, 7, 5, seeds)
    steps, hops = [[[seed] for seed in seeds.tolist()], *(picks.tolist() for picks in samples.steps)], [[]]
    for k in range(2):
        found = []
        for transits, picks in zip(steps[k], steps[k + 1], strict=True):
            size = app.sample_size(k)
            counts = [size if size != transit.ALL else degrees[v] if v >= 0 else 0 for v in transits]
            owners = [v for v, count in zip(transits, counts, strict=True) for _ in range(count)]
            found += [(v, u) for v, u in zip(owners, picks, strict=False) if u >= 0]
        hops.append(hops[-1] + found)
    assert len(hops[2]) > len(hops[1]) > 0
    for mfg, expected in zip(batch.mfgs[::-1], hops[1:], strict=True):
        src, dst = mfg.edge_index()
        found = list(zip(mfg.src_nodes[dst].tolist(), mfg.src_nodes[src].tolist(), strict=True))
        assert found == sorted(expected, key=lambda edge: mfg.dst_nodes.tolist().index(edge[0]))


def test_a_batch_of_mvs_has_all_edges_of_its_seeds():
    graph = CSCGraph.from_edge_index(*torch.randint(0, 30, (2, 200), generator=torch.manual_seed(0)), 31)
    seeds = torch.tensor([4, 30, 9])  # 30 has no neighbour
    [mfg] = AppSampler(graph, transit.MVS(), 7).sample(seeds).mfgs
    for i, seed in enumerate(seeds.tolist()):
        row = graph.indices[graph.indptr[seed] : graph.indptr[seed + 1]]
        assert torch.equal(mfg.src_nodes[mfg.indices[mfg.indptr[i] : mfg.indptr[i + 1]].long()], row)


def test_an_empty_batch_has_the_layers_of_any_other():
    graph = CSCGraph(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32))
    for make in APPS.values():
        batch = AppSampler(graph, make()).sample([])
        assert isinstance(batch, MiniBatch) and batch.input_nodes.numel() == 0
        assert [mfg.num_dst for mfg in batch.mfgs] == [0] * make().steps()


REFUSED = [
    ({"app": transit.LADIES((4,)), "fanouts": [3]}, "fanouts and app are both given"),
    (
        {"app": transit.LADIES((4,)), "scheme": "vanilla"},
        "expected 'hybrid': an application reads whatever row",
    ),
    ({"app": transit.LADIES((4,)), "method": "labor"}, "method is 'labor' beside app, which would ignore it"),
    ({"app": transit.Layer()}, "Layer has record None, which makes no layers into the seeds"),
    ({"app": transit.ClusterGCN([0, 1], 1)}, "ClusterGCN has record 'within'"),
    ({"app": transit.PPR()}, "PPR has no layers"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_is_refused(tmp_path_factory, given, message):
    path = draw_partition(tmp_path_factory.mktemp("drawn"), 1).path
    with DistContext(LocalCommunicator()) as ctx, pytest.raises(ValueError, match=message):
        DistLoader(DistData.load(path, ctx), batch_size=4, **given)


def test_an_application_is_an_object(tmp_path):
    path = draw_partition(tmp_path, 1).path
    with DistContext(LocalCommunicator()) as ctx, pytest.raises(TypeError, match=r"such as app\(\)"):
        DistLoader(DistData.load(path, ctx), batch_size=4, app=transit.LADIES)


def test_seeds_are_unique():
    graph = CSCGraph(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32))
    with pytest.raises(ValueError, match="seeds holds node 1 2 times"):
        AppSampler(graph, transit.LADIES((4,))).sample([1, 0, 1])


def differing(ctx, path):
    DistLoader(DistData.load(path, ctx), app=transit.LADIES((4 + ctx.rank,)), batch_size=4)


def test_ranks_that_pass_different_applications_are_refused(tmp_path):
    with pytest.raises(RankError, match=r"differ in LADIES.sizes: '\[4\]' on rank 0; '\[5\]' on rank 1"):
        run_distributed(2, differing, args=(draw_partition(tmp_path, 2).path,))


def test_facts_tell_parameters_apart_and_not_objects():
    assert app_facts(transit.ClusterGCN([0, 1, 1], 1)) == app_facts(transit.ClusterGCN(torch.tensor([0, 1, 1]), 1))
    assert app_facts(transit.ClusterGCN([0, 1, 1], 1)) != app_facts(transit.ClusterGCN([0, 1, 0], 1))
    assert app_facts(transit.FastGCN((4,))) != app_facts(transit.FastGCN((4,), replace=False))
    assert app_facts(transit.Node2Vec(p=2.0)) != app_facts(transit.Node2Vec(p=3.0))


def test_facts_name_the_class_then_what_it_was_made_with_and_last_what_it_computed():
    facts = app_facts(transit.Node2Vec(5, p=2.0, q=np.float64(0.5)))
    names = ["app", "Node2Vec.length", "Node2Vec.p", "Node2Vec.q"]
    assert [*facts][-1] == "Node2Vec.par" and [facts[name] for name in names] == ["Node2Vec", 5, 2.0, 0.5]
    assert [*facts][:2] == names[:2] and [*facts].index("Node2Vec.q") < [*facts].index("Node2Vec.needs", 0)
    assert all(value is None or isinstance(value, str | int | float) for value in facts.values())
    assert app_facts(transit.DeepWalk(5))["app"] == "DeepWalk"

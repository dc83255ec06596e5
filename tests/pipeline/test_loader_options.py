"""What a loader can be asked for beside plain batches: edge ids and stored weights, own seeds, transforms."""

import dataclasses
import inspect
import itertools

import numpy as np
import pytest
import torch

from fastsample_dist import DistContext, DistData, DistLoader, SubgraphLoader, SubgraphSpec, WalkLoader, interop
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.pipeline.options import LoaderOptions
from fastsample_dist.testing import run_distributed
from tests.grids import grid
from tests.parts import draw_partition

NUM_EDGES = 3000


def draw_weighted(directory, num_parts):
    """A partition whose edges have weights; they distinguish the edges."""
    return draw_partition(directory, num_parts, weights=np.arange(1, NUM_EDGES + 1).astype(np.float32))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("plain"), 1)


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    return draw_weighted(tmp_path_factory.mktemp("weighted"), 1)


# --- edge ids and stored weights


def check_edges(data, batch, wants_values):
    """Ids stand for the MFG's edges in the partition's whole topology; values are what is stored for them."""
    for mfg in batch.mfgs:
        src, dst = mfg.edge_index()
        assert mfg.edge_ids.dtype == torch.int64 and mfg.edge_ids.shape == (mfg.num_edges,)
        assert torch.equal(data.graph.indices[mfg.edge_ids], mfg.src_nodes[src])
        assert torch.equal(
            torch.searchsorted(data.graph.indptr, mfg.edge_ids, right=True) - 1, mfg.dst_nodes[dst].long()
        )
        if wants_values:
            assert mfg.edge_values.dtype == data.graph.weights.dtype
            assert torch.equal(mfg.edge_values, data.graph.weights[mfg.edge_ids])
        else:
            assert mfg.edge_values is None
        assert mfg.edge_weights is None


def by_original_ids(data, batch):
    """Edges of every MFG by original ids, with their weights: what partitions of one graph have in common."""
    return [
        sorted(
            zip(
                data.orig_ids(mfg.src_nodes[mfg.indices.long()]).tolist(),
                data.orig_ids(mfg.dst_nodes[mfg.edge_index()[1]]).tolist(),
                mfg.edge_values.tolist(),
                strict=True,
            )
        )
        for mfg in batch.mfgs
    ]


def edges_on_rank(ctx, path, scheme, prefetch, method):
    data = DistData.load(path, ctx)
    options = {"scheme": scheme, "method": method}
    loader = DistLoader(data, [3, 2, 2], 17, edge_ids=True, prefetch=prefetch, transport="exchange", **options)
    in_place = DistLoader(data, [3, 2, 2], 17, edge_ids=True, transport="shared", **options)
    assert [by_original_ids(data, batch) for batch in in_place] == [by_original_ids(data, batch) for batch in loader]
    loader.set_epoch(0)
    plain_loader = DistLoader(data, [3, 2, 2], 17, transport="exchange", **options)
    found, num_edges = [], 0
    for batch, bare in zip(loader, plain_loader, strict=True):
        check_edges(data, batch, wants_values=True)
        for one, other in zip(batch.mfgs, bare.mfgs, strict=True):
            assert torch.equal(one.indices, other.indices) and other.edge_ids is None and other.edge_values is None
        assert torch.equal(batch.features, bare.features)
        found.append(by_original_ids(data, batch))
        num_edges += batch.num_edges
    assert num_edges > 1000
    loader.close()
    return found


WAYS = [(0, "uniform"), (0, "weighted"), (2, "uniform"), (2, "weighted")]


@pytest.mark.parametrize(("prefetch", "method"), grid(WAYS, gate=[WAYS[1], WAYS[2]], several=True))
def test_edges_have_their_ids_and_weights_in_both_schemes_on_two_ranks(tmp_path, prefetch, method):
    path = draw_weighted(tmp_path, 2).path
    hybrid, vanilla = (
        run_distributed(2, edges_on_rank, args=(path, scheme, prefetch, method)) for scheme in ("hybrid", "vanilla")
    )
    assert hybrid == vanilla, "the schemes' weights by original ids"


@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_on_one_rank(weighted, ctx, scheme):
    assert len(edges_on_rank(ctx, weighted.path, scheme, 0, "uniform")) == 6


def test_float64_weights_come_back_bit_for_bit(tmp_path):
    weights = np.random.default_rng(3).random(NUM_EDGES) / 3
    path = draw_partition(tmp_path, 2, weights=weights).path
    hybrid, vanilla = (run_distributed(2, edges_on_rank, args=(path, s, 0, "uniform")) for s in ("hybrid", "vanilla"))
    assert hybrid == vanilla


@pytest.mark.parametrize(
    ("options", "has_ids", "has_values"),
    [
        ({}, False, False),
        ({"edge_ids": True}, True, True),
        ({"edge_ids": True, "edge_values": False}, True, False),
        ({"edge_values": True}, True, True),
    ],
)
def test_what_is_asked_for_is_in_the_batch(weighted, ctx, options, has_ids, has_values):
    batch = next(iter(DistLoader(DistData.load(weighted.path, ctx), [3, 2], 10, **options)))
    assert [mfg.edge_ids is not None for mfg in batch.mfgs] == [has_ids] * 2
    assert [mfg.edge_values is not None for mfg in batch.mfgs] == [has_values] * 2


def test_without_stored_weights_edge_ids_come_alone(plain, ctx):
    data = DistData.load(plain.path, ctx)
    for batch in DistLoader(data, [3, 2], 30, edge_ids=True):
        check_edges(data, batch, wants_values=False)


@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_values_of_a_partition_without_weights_are_refused(plain, ctx, scheme):
    with pytest.raises(
        ValueError, match=r"^edge_values is True, but the graph has no edge weights; partition an input"
    ):
        DistLoader(DistData.load(plain.path, ctx), [3, 2], 10, edge_values=True, scheme=scheme)


def exchanges_on_rank(ctx, path):
    data = DistData.load(path, ctx)
    before = ctx.comm.stats()
    steps = sum(1 for _ in DistLoader(data, [3, 2, 2], 17, edge_ids=True, scheme="vanilla", transport="exchange"))
    after = ctx.comm.stats()
    calls = {p: after[p]["calls"] - before.get(p, {"calls": 0})["calls"] for p in ("sample_ids", "sample_reply")}
    return steps, calls


def test_edge_ids_travel_in_the_replies_that_there_are(tmp_path):
    for steps, calls in run_distributed(2, exchanges_on_rank, args=(draw_weighted(tmp_path, 2).path,)):
        assert calls == {"sample_ids": 2 * steps, "sample_reply": 2 * steps}


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["device", "pinned"])
@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_on_a_gpu_they_are_those_of_the_cpu(weighted, ctx, scheme, placement):
    data = DistData.load(weighted.path, ctx)
    on_cpu = DistLoader(data, [3, 2], 40, edge_ids=True, scheme=scheme)
    on_gpu = DistLoader(data, [3, 2], 40, edge_ids=True, scheme=scheme, device="cuda", placement=placement, prefetch=1)
    for wanted, found in zip(on_cpu, on_gpu, strict=True):
        for one, other in zip(wanted.mfgs, found.mfgs, strict=True):
            assert other.edge_values.is_cuda and torch.equal(one.edge_ids, other.edge_ids.cpu())
            assert torch.equal(one.edge_values, other.edge_values.cpu())


# --- own seeds


def test_own_seeds_take_the_place_of_a_split(plain, ctx):
    data = DistData.load(plain.path, ctx)
    seeds = torch.tensor([200, 3, 77, 14, 9])
    loader = DistLoader(data, seeds=seeds, fanouts=[3], batch_size=2, shuffle=False)
    batches = list(loader)
    assert len(loader) == 3 and torch.cat([batch.seeds.long() for batch in batches]).tolist() == seeds.tolist()
    assert torch.cat([batch.labels for batch in batches]).tolist() == data.labels_of(seeds).tolist()
    shuffled = [batch.seeds.tolist() for batch in DistLoader(data, [3], 2, seeds=seeds.numpy())]
    assert sorted(itertools.chain(*shuffled)) == sorted(seeds.tolist()) and shuffled != [[200, 3], [77, 14], [9]]


def test_labels_of_seeds_without_a_label_are_minus_one(tmp_path, ctx):
    drawn = draw_partition(tmp_path, 1)
    data = DistData.load(drawn.path, ctx)
    data.labels = data.labels.clone()
    data.labels[7] = -1
    [batch] = DistLoader(data, [3], 5, seeds=[7, 8], shuffle=False)
    assert batch.labels.tolist() == [-1, int(data.labels[8])]


def seeds_on_rank(ctx, path, seeds_of):
    data = DistData.load(path, ctx)
    try:
        loader = DistLoader(data, [3, 2], 4, seeds=seeds_of(ctx.rank, data.own_range), scheme="vanilla", prefetch=1)
    except ValueError as error:
        return str(error)
    return [(batch.seeds.tolist(), batch.num_global_seeds, batch.loss_weight) for batch in loader]


def first_own(rank, own_range):
    return list(range(own_range[0], own_range[0] + (6 if rank == 0 else 0)))


def test_a_rank_may_have_no_seeds_of_its_own(tmp_path):
    first, second = run_distributed(2, seeds_on_rank, args=(draw_partition(tmp_path, 2).path, first_own))
    assert [entry[1:] for entry in first] == [(4, 1.0), (2, 1.0)]
    assert second == [([], 4, 0.0), ([], 2, 0.0)]


def foreign(rank, own_range):
    return [own_range[0], own_range[1] if rank == 0 else own_range[0] + 1]


def only_rank_0(rank, own_range):
    return [own_range[0]] if rank == 0 else None


def none_anywhere(rank, own_range):
    return []


@pytest.mark.parametrize(
    ("seeds_of", "message"),
    [
        (
            foreign,
            "seeds of rank 0 holds node {hi}, which is rank 1's; expected its own nodes 0 to {last} (data.own_range).",
        ),
        (only_rank_0, "seeds is given on rank 0 but not on rank 1; pass it on all ranks (it may be empty) or on none."),
        (none_anywhere, "seeds is empty on all 2 rank(s); pass own nodes on one rank at least."),
    ],
)
def test_seeds_that_one_rank_refuses_are_refused_on_all(tmp_path, seeds_of, message):
    path = draw_partition(tmp_path, 2).path
    with DistContext(LocalCommunicator()) as local:
        hi = int(DistData.load(path, local).book.part_ranges[1])
    wanted = message.format(hi=hi, last=hi - 1)
    assert run_distributed(2, seeds_on_rank, args=(path, seeds_of)) == [wanted] * 2


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([3, 240], "seeds holds 240; expected node ids of the partition, 0 to 239"),
        ([-1, 3], "seeds holds -1; expected node ids of the partition"),
        ([5, 3, 5], "seeds holds node 5 2 times; expected each node once"),
        ([1.5, 2.0], r"seeds is torch.float32 of shape \(2,\); expected a list of integer node ids"),
        (torch.ones(240, dtype=torch.bool), r"of a mask pass mask.nonzero\(\).flatten\(\)"),
        ([[1, 2]], r"of shape \(1, 2\); expected a list"),
    ],
)
def test_seeds_that_are_no_own_nodes_are_refused(plain, ctx, seeds, message):
    with pytest.raises(ValueError, match=message):
        DistLoader(DistData.load(plain.path, ctx), [3], 4, seeds=seeds)


def test_seeds_beside_a_split_are_refused(plain, ctx):
    with pytest.raises(ValueError, match="split is 'val' beside seeds, which take its place; pass one of them"):
        DistLoader(DistData.load(plain.path, ctx), [3], 4, seeds=[1], split="val")


def test_a_loader_of_own_seeds_is_resumed_where_it_stood(plain, ctx):
    data = DistData.load(plain.path, ctx)
    whole, part = (DistLoader(data, [3], 3, seeds=list(range(20))) for _ in range(2))
    wanted = [batch.seeds.tolist() for batch in whole]
    part.resume(whole.position(0, 2))
    assert [batch.seeds.tolist() for batch in part] == wanted[2:]


# --- full batches


def drop_on_rank(ctx, path, batch_size):
    data = DistData.load(path, ctx)
    if ctx.rank == 1:
        data._splits["train"] = data.split("train")[:9]
    try:
        loader = DistLoader(data, [2], batch_size, drop_last=True)
    except ValueError as error:
        return str(error)
    sizes = [(batch.seeds.numel(), batch.num_global_seeds, batch.step) for batch in [*loader, *loader]]
    assert len(loader) * 2 == len(sizes)
    return sizes


def test_drop_last_makes_full_batches_on_every_rank(tmp_path):
    path = draw_partition(tmp_path, 2, num_train=40).path
    assert run_distributed(2, drop_on_rank, args=(path, 4)) == [[(4, 8, step) for step in range(4)]] * 2


def test_drop_last_that_leaves_no_step_is_refused(tmp_path):
    path = draw_partition(tmp_path, 2, num_train=40).path
    message = (
        "drop_last leaves no step: rank 1 has 9 seeds and batch_size is 10; pass a batch_size of at most 9, or "
        "drop_last=False."
    )
    assert run_distributed(2, drop_on_rank, args=(path, 10)) == [message] * 2


def test_drop_last_leaves_out_other_seeds_in_every_epoch(plain, ctx):
    data = DistData.load(plain.path, ctx)
    loader = DistLoader(data, [2], 10, drop_last=True)  # 101 train nodes
    first, second = ({seed for batch in loader for seed in batch.seeds.tolist()} for _ in range(2))
    assert len(loader) == 10 and len(first) == len(second) == 100 and first != second


def test_a_loader_that_drops_is_resumed_where_it_stood_and_at_its_end(plain, ctx):
    data = DistData.load(plain.path, ctx)
    whole, part, ended = (DistLoader(data, [2], 30, drop_last=True) for _ in range(3))
    wanted = [batch.seeds.tolist() for batch in whole]
    part.resume(whole.position(0, 1))
    assert [batch.seeds.tolist() for batch in part] == wanted[1:] and part.num_steps(0) == 2
    position = whole.position(0, 3)
    assert position.remaining.numel() == 0, "what was dropped is not still to come"
    ended.resume(position)
    assert list(ended) == []
    assert [batch.step for batch in ended] == [3, 4, 5]


# --- transform


def doubled(batch):
    assert batch.labels is not None
    batch.features = batch.features * 2
    batch.extra = batch.labels + batch.step
    return batch


def transform_on_rank(ctx, path, prefetch):
    data = DistData.load(path, ctx)
    plain_loader = DistLoader(data, [3, 2], 17)
    loader = DistLoader(data, [3, 2], 17, transform=doubled, prefetch=prefetch)
    for batch, bare in zip(loader, plain_loader, strict=True):
        assert torch.equal(batch.features, bare.features * 2)
        assert torch.equal(batch.extra, bare.labels + bare.step)
    loader.close()
    return len(loader)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_sees_every_complete_batch(tmp_path, prefetch):
    steps = run_distributed(2, transform_on_rank, args=(draw_partition(tmp_path, 2).path, prefetch))
    assert steps == [3, 3]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_a_transform_returns_is_the_batch(plain, ctx, prefetch):
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    data = DistData.load(plain.path, ctx)
    made = list(DistLoader(data, [3, 2], 40, transform=interop.pyg.to_data, prefetch=prefetch))
    assert [type(one).__name__ for one in made] == ["Data"] * 3
    assert made[0].x.shape == (made[0].num_nodes, 6) and made[0].y.shape == (40,)


def failing(batch):
    if batch.step == 2:
        raise KeyError("made up")
    return batch


def silent(batch):
    batch.features = None


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    ("transform", "steps", "message"),
    [
        (failing, 2, r"^rank 0, step 2: transform raised KeyError: 'made up'$"),
        (silent, 0, r"^rank 0, step 0: transform returned None; let it return the batch\.$"),
    ],
)
def test_an_exception_of_a_transform_names_the_step(plain, ctx, transform, steps, message, prefetch):
    taken = []
    with pytest.raises(RuntimeError, match=message) as caught:
        for batch in DistLoader(DistData.load(plain.path, ctx), [2], 10, transform=transform, prefetch=prefetch):
            taken.append(batch.step)
    assert len(taken) == steps
    assert transform is silent or isinstance(caught.value.__cause__, KeyError)


# --- the signature


def test_every_option_is_an_argument_of_its_own_with_the_same_default():
    parameters = dict(inspect.signature(DistLoader).parameters)
    assert list(parameters)[:3] == ["data", "fanouts", "batch_size"]
    assert {p.kind for p in list(parameters.values())[3:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters.pop("data").default is inspect.Parameter.empty and parameters.pop("seeds").default is None
    assert {name: p.default for name, p in parameters.items()} == {
        field.name: field.default for field in dataclasses.fields(LoaderOptions)
    }


def test_options_arrive(plain, ctx):
    given = {"edge_ids": True, "edge_values": False, "drop_last": True, "transform": doubled, "rng_seed": 7}
    given |= {"shuffle": False, "replace": True, "prefetch": 1, "scheme": "vanilla", "feature_dtype": torch.float64}
    loader = DistLoader(DistData.load(plain.path, ctx), [2], 4, **given)
    assert {name: getattr(loader.options, name) for name in given} == given


def test_an_option_that_there_is_not_is_named(plain, ctx):
    with pytest.raises(TypeError, match="shufle"):
        DistLoader(DistData.load(plain.path, ctx), [2], 4, shufle=False)


def test_what_is_no_partition_is_refused():
    spec = SubgraphSpec("frontier", 40, 10)
    for make in (lambda: SubgraphLoader(None, spec), lambda: DistLoader(None, [2], 4), lambda: WalkLoader(None, None)):
        with pytest.raises(ValueError, match=r"^data is a NoneType; expected the partition that fsd.DistData.load"):
            make()

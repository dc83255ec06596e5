"""DistLoader: steps, shuffling, empty batches, prefetching's ends, and what loading refuses."""

import itertools
import json
import logging
import threading
from logging.handlers import BufferingHandler

import numpy as np
import pytest
import torch

from fastsample_dist import DistData, DistLoader, SubgraphLoader, SubgraphSpec
from fastsample_dist.partition.write import checks as partition_checks
from fastsample_dist.pipeline.epoch_plan import epoch_permutation
from fastsample_dist.pipeline.lookahead import Prefetcher
from fastsample_dist.testing import RankError, run_distributed
from fastsample_dist.train.inference import layerwise
from fastsample_dist.train.models import GraphSAGE
from tests.parts import FEATURE_DIM, NUM_CLASSES, draw_partition
from tests.waiting import ENOUGH_S, NEVER_S

NO_FLAGS = [
    ("rails", 3), ("shuffle", None), ("drop_last", "no"), ("replace", None), ("layer_dependency", None),
    ("edge_ids", 3), ("edge_values", "no"),
]  # fmt: skip


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), 1)


def seeds_of(loader):
    return [batch.seeds.tolist() for batch in loader]


def test_an_epoch_has_every_seed_once(drawn, ctx):
    data = DistData.load(drawn.path, ctx)
    loader = DistLoader(data, [2], 10)
    seeds = seeds_of(loader)
    assert len(seeds) == len(loader) == 11
    assert sorted(itertools.chain(*seeds)) == data.split("train").tolist()


def test_epochs_differ_and_repeat_by_number(drawn, ctx):
    loader = DistLoader(DistData.load(drawn.path, ctx), [2], 10)
    first, second = seeds_of(loader), seeds_of(loader)
    loader.set_epoch(0)
    assert first != second and seeds_of(loader) == first


def test_steps_are_numbered_through_the_epochs(drawn, ctx):
    loader = DistLoader(DistData.load(drawn.path, ctx), [2], 30)
    assert [[b.step for b in loader] for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_without_shuffling_seeds_are_ascending(drawn, ctx):
    loader = DistLoader(DistData.load(drawn.path, ctx), [2], 10, shuffle=False)
    seeds = list(itertools.chain(*seeds_of(loader)))
    assert seeds == sorted(seeds)


def test_the_permutation_depends_on_seed_epoch_and_rank():
    orders = {tuple(epoch_permutation(50, *key).tolist()) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}
    assert len(orders) == 4


def test_stored_float16_features_arrive_as_float32(tmp_path, ctx):
    data = DistData.load(draw_partition(tmp_path, 1, feature_dtype="float16").path, ctx)
    batch = next(iter(DistLoader(data, [2], 10)))
    assert data.features.dtype == torch.float16 and batch.features.dtype == torch.float32


def uneven_rank(ctx, path, prefetch):
    data = DistData.load(path, ctx)
    if ctx.rank == 1:  # rank 1 runs out of seeds after its first batch
        data._splits["train"] = data.split("train")[:3]
    loader = DistLoader(data, [2, 2], 4, scheme="vanilla", prefetch=prefetch)
    return [(b.seeds.numel(), b.num_global_seeds, tuple(b.features.shape), b.labels.numel()) for b in loader]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_rank_without_seeds_takes_part_with_empty_batches(tmp_path, prefetch):
    drawn = draw_partition(tmp_path, 2, num_train=40)
    full, short = run_distributed(2, uneven_rank, args=(drawn.path, prefetch))
    assert [batch[:2] for batch in full] == [(4, 7), (4, 4), (4, 4), (4, 4), (4, 4)]
    assert [batch[:2] for batch in short] == [(3, 7), (0, 4), (0, 4), (0, 4), (0, 4)]
    assert all(batch[2] == (0, 6) and batch[3] == 0 for batch in short[1:])


def leaving_rank(ctx, path, stop_after):
    loader = DistLoader(DistData.load(path, ctx), [3, 3], 5, scheme="vanilla", prefetch=2)
    taken = 0
    for _ in loader:
        taken += 1
        if taken == stop_after:
            break
    ctx.comm.barrier()
    rest = len([batch.step for batch in loader])
    loader.close()
    return taken, rest, [t.name for t in threading.enumerate() if t.name == "fastsample-prefetch"]


def test_leaving_a_prefetching_loader_early_hangs_nobody_and_leaves_no_thread(tmp_path):
    drawn = draw_partition(tmp_path, 2)
    assert run_distributed(2, leaving_rank, args=(drawn.path, 3)) == [(3, 11, []), (3, 11, [])]


def iterate_again(ctx, path, kind, options):
    """(epoch and step of a first batch, those of the iteration that followed, what the first iterator said then)."""
    data = DistData.load(path, ctx)
    if kind == "subgraphs":
        spec = SubgraphSpec(method="frontier", budget=50, frontier_size=10)
        loader = SubgraphLoader(data, spec, num_layers=2, steps_per_epoch=11, **options)
    else:
        loader = DistLoader(data, [3, 3], 5, scheme="vanilla", **options)
    earlier = iter(loader)
    first = next(earlier)
    rest = [(batch.epoch, batch.step) for batch in loader]
    with pytest.raises(ValueError) as refused:
        next(earlier)
    loader.close()
    alive = [thread.name for thread in threading.enumerate() if thread.name == "fastsample-prefetch"]
    return (first.epoch, first.step), rest, str(refused.value), alive


@pytest.mark.parametrize("kind", ["DistLoader", "subgraphs"])
@pytest.mark.parametrize(
    "options",
    [
        {"prefetch": 2, "transport": "exchange", "exchange": "paired"},
        {"prefetch": 2, "transport": "exchange"},
        {"prefetch": 2},
        {"prefetch": 0, "transport": "exchange"},
    ],
    ids=["paired", "exchange", "shared", "made when asked for"],
)
def test_another_iteration_ends_the_one_under_way(tmp_path, kind, options):
    drawn = draw_partition(tmp_path, 2)
    found = run_distributed(2, iterate_again, args=(drawn.path, kind, options))
    assert found[0] == found[1]
    first, rest, said, alive = found[0]
    assert first == (0, 0) and rest == [(1, 11 + step) for step in range(11)] and alive == []
    assert said == (
        "this iteration of epoch 0 was ended by a later one of the same "
        f"{'SubgraphLoader' if kind == 'subgraphs' else kind}; expected one at a time: finish it first, or make a "
        "loader for each."
    )


def closing_rank(ctx, path):
    loader = DistLoader(DistData.load(path, ctx), [3, 3], 5, scheme="vanilla", prefetch=2)
    batches = iter(loader)
    next(batches)
    loader.close()
    return [thread.name for thread in threading.enumerate() if thread.name == "fastsample-prefetch"]


def test_closing_a_loader_ends_its_iteration(tmp_path):
    assert run_distributed(2, closing_rank, args=(draw_partition(tmp_path, 2).path,)) == [[], []]


def raising_rank(ctx, path):
    loader = DistLoader(DistData.load(path, ctx), [3, 3], 5, prefetch=2)
    for batch in loader:
        if ctx.rank == 1 and batch.step == 4:
            raise KeyError("made up")
        ctx.comm.all_reduce(torch.ones(1), purpose="gradients")


def test_an_exception_on_one_rank_ends_all_while_prefetching(tmp_path):
    drawn = draw_partition(tmp_path, 2)
    with pytest.raises(RankError) as failed:
        run_distributed(2, raising_rank, args=(drawn.path,), timeout_s=ENOUGH_S, comm_timeout_s=NEVER_S)
    text = str(failed.value)
    assert text.startswith("rank 1 of 2 failed:") and "made up" in text
    assert "rank 0 of 2 failed:" in text and "because a peer ended" in text


def test_the_prefetcher_goes_no_further_than_permitted():
    made = []
    prefetcher = Prefetcher(lambda n: made.append(n) or n, range(100), 2, timeout_s=ENOUGH_S)
    batches = iter(prefetcher)
    assert [next(batches), next(batches), next(batches)] == [0, 1, 2]
    prefetcher.close()
    assert made == [0, 1, 2, 3, 4]


def test_the_prefetcher_passes_an_exception_on():
    def make(number):
        if number == 2:
            raise ZeroDivisionError("made up")
        return number

    prefetcher = Prefetcher(make, range(5), 1, timeout_s=ENOUGH_S)
    taken = []
    with pytest.raises(ZeroDivisionError, match="made up"):
        for number in prefetcher:
            taken.append(number)
    prefetcher.close()
    assert taken == [0, 1]


def load_error(ctx, path):
    try:
        DistData.load(path, ctx)
    except ValueError as error:
        return str(error)
    return None


def test_parts_that_do_not_fit_the_ranks_are_refused_on_all(tmp_path):
    drawn = draw_partition(tmp_path, 4)
    message = f"{drawn.path} has 4 parts but world_size is 3; start 4 ranks or partition with --num-parts 3."
    assert run_distributed(3, load_error, args=(drawn.path,)) == [message] * 3


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.unlink(), "features.npy"),
        (lambda file: file.write_bytes(file.read_bytes()[:-8]), "features.npy"),
        (lambda file: file.write_bytes(file.read_bytes()[:-8] + b"12345678"), "features.npy"),
    ],
    ids=["missing", "truncated", "altered"],
)
def test_a_damaged_file_of_one_part_is_refused_by_name_on_all_ranks(tmp_path, damage, words):
    drawn = draw_partition(tmp_path, 2)
    damage(drawn.path / "part-1" / "features.npy")
    errors = run_distributed(2, load_error, args=(drawn.path,))
    assert errors[0] == errors[1] and words in errors[0] and "part-1" in errors[0]


def test_an_altered_topology_is_refused_by_name(tmp_path, ctx):
    copy = draw_partition(tmp_path, 1)
    file = copy.path / "topology" / "indices.npy"
    file.write_bytes(file.read_bytes()[:-4] + b"\x01\x00\x00\x00")
    with pytest.raises(ValueError, match="indices.npy"):
        DistData.load(copy.path, ctx)


def test_a_newer_format_version_is_refused(tmp_path, ctx):
    drawn = draw_partition(tmp_path, 1)
    manifest = json.loads((drawn.path / "manifest.json").read_text())
    (drawn.path / "manifest.json").write_text(json.dumps({**manifest, "version": 7}))
    with pytest.raises(ValueError, match="version 7"):
        DistData.load(drawn.path, ctx)


def train_on_some(ctx, path, empty, scheme):
    """(batches, warnings) where the train split is empty on these ranks."""
    data, logged = DistData.load(path, ctx), BufferingHandler(capacity=100)
    if ctx.rank in empty:
        data._splits["train"] = data.split("train")[:0]
    logging.getLogger("fastsample_dist.pipeline").addHandler(logged)
    loader = DistLoader(data, [2, 2], 4, scheme=scheme, rng_seed=3)
    batches = [(batch.seeds.tolist(), batch.num_global_seeds, batch.loss_weight) for batch in loader]
    return batches, [record.getMessage() for record in logged.buffer]


@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_a_rank_without_train_nodes_takes_part_with_empty_batches(tmp_path, scheme):
    drawn = draw_partition(tmp_path, 2, num_train=10)
    (trains, warned), (idle, silent) = run_distributed(2, train_on_some, args=(drawn.path, [1], scheme))
    assert [len(seeds) for seeds, _, _ in trains] == [4, 1] and [entry[1:] for entry in trains] == [(4, 1.0), (1, 1.0)]
    assert idle == [([], 4, 0.0), ([], 1, 0.0)] and silent == []
    assert len(warned) == 1
    assert warned[0].startswith("the train split is empty on rank(s) 1 (seeds per rank: [5, 0]): they take part with")


def refused_everywhere(ctx, path):
    with pytest.raises(ValueError) as refused:
        train_on_some(ctx, path, [0, 1], "hybrid")
    return str(refused.value)


def test_a_train_split_that_is_empty_on_all_ranks_is_refused(tmp_path):
    drawn = draw_partition(tmp_path, 2, num_train=10)
    said = "the train split is empty on all 2 rank(s); expected at least one seed: add train nodes, or name another"
    said += " split."
    assert run_distributed(2, refused_everywhere, args=(drawn.path,)) == [said] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected an integer >= 1"),
        ({"prefetch": -1}, "prefetch is -1; expected 0"),
        ({"scheme": "both"}, "scheme is 'both'; expected 'hybrid' or 'vanilla'"),
        ({"split": "dev"}, "has no split 'dev'"),
        ({"fanouts": []}, "fanouts is empty"),
        ({"fanouts": {2: 1}}, r"fanouts is {2: 1}; expected one fanout"),
        ({"fanouts": "ab"}, "fanouts is 'ab'; expected one fanout"),
        ({"batch_size": True}, "batch_size is True; expected an integer >= 1"),
        ({"rng_seed": None}, "rng_seed is None; expected an integer from 0 to 2"),
        ({"rng_seed": 1.5}, "rng_seed is 1.5; expected an integer from 0 to 2"),
        ({"scheme": []}, r"scheme is \[\]; expected 'hybrid' or 'vanilla'"),
        ({"split": []}, r"has no split \[\]"),
        ({"method": {}}, "method is {}; expected 'uniform'"),
        ({"feature_dtype": torch.int32}, "feature_dtype is torch.int32; expected None, or torch.float32"),
        ({"device": "meta"}, 'device is "meta"; expected "cpu", "cuda"'),
        ({"prefetch": True}, "prefetch is True; expected 0"),
        *[({name: value}, f"{name} is {value!r}; expected True or False") for name, value in NO_FLAGS],
        ({"seeds": "abc"}, "seeds is a str; expected a tensor or list of integer node ids"),
        ({"seeds": [None]}, "seeds is a list; expected a tensor or list of integer node ids"),
    ],
)
def test_wrong_options_are_refused(drawn, ctx, options, message):
    data = DistData.load(drawn.path, ctx)
    with pytest.raises(ValueError, match=message) as refused:
        DistLoader(data, **{"fanouts": [2], "batch_size": 4, **options})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("epoch", [None, -1, "a", 1.5])
def test_an_epoch_that_is_none_is_refused(drawn, ctx, epoch):
    loader = DistLoader(DistData.load(drawn.path, ctx), [2], 4)
    for call in (loader.set_epoch, loader.num_steps, lambda epoch: loader.position(epoch, 0)):
        with pytest.raises(ValueError, match=f"epoch is {epoch!r}; expected an integer >= 0"):
            call(epoch)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_features_that_an_older_release_has_stored_too_wide_are_refused(ctx, tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(partition_checks, "check_feature_dtype", lambda *given: None)
    data = DistData.load(draw_partition(tmp_path, 1, feature_dtype=dtype).path, ctx)
    spec = SubgraphSpec(method="frontier", budget=50, frontier_size=10)
    message = (
        f"parts has features of type {dtype}, of which no batch can be made; partition the graph again with --feat"
    )
    for use in (
        lambda: DistLoader(data, [2], 4),
        lambda: SubgraphLoader(data, spec, num_layers=2),
        lambda: layerwise(GraphSAGE(FEATURE_DIM, 4, NUM_CLASSES, 2), data),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    assert data.features.local.tables[0].rows.dtype == getattr(torch, dtype)  # they can still be read as they are


def test_orig_ids_takes_what_makes_a_tensor(drawn, ctx):
    data = DistData.load(drawn.path, ctx)
    expected = data.graph.orig_ids[[5, 2]]
    for ids in ([5, 2], (5, 2), np.array([5, 2], np.uint32), torch.tensor([5, 2], dtype=torch.int32)):
        assert torch.equal(data.orig_ids(ids), expected)
    assert data.orig_ids([]).shape == (0,)
    with pytest.raises(ValueError, match="node ids are a str; expected a tensor or list of integers"):
        data.orig_ids("ab")


def test_orig_ids_refuses_an_unknown_node(drawn, ctx):
    with pytest.raises(ValueError, match="expected 0 to 239"):
        DistData.load(drawn.path, ctx).orig_ids(torch.tensor([240]))

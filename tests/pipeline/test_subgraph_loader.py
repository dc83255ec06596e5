"""SubgraphLoader: the same subgraphs on any number of ranks and parts, what a step communicates, resuming, refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fastsample_dist import (
    DistContext,
    DistData,
    DistLoader,
    FeatureCache,
    SubgraphLoader,
    SubgraphSpec,
    Trainer,
)
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.pipeline import subgraph_loader
from fastsample_dist.pipeline.position import LoaderPosition
from fastsample_dist.pipeline.subgraph_stages import OnceEach
from fastsample_dist.testing import run_distributed
from tests.train.task import FEATURE_DIM, make_model, make_task

SPEC = SubgraphSpec("frontier", 40, 10, rng_seed=2**40 + 1)
PER_STEP, STEPS = 4, 5
PAIRED = {"transport": "exchange", "exchange": "paired"}
COMBINED = {"transport": "exchange", "exchange": "combined"}
CACHE = {"cache": FeatureCache(8000, "presample")}
WAYS = {
    "default": {},
    "prefetch": {"prefetch": 2},
    "paired": PAIRED,
    "combined": COMBINED,
    "combined, prefetch": COMBINED | {"prefetch": 2},
    "cache": PAIRED | CACHE,
    "keeping cache": PAIRED | {"cache": FeatureCache(8000, "presample", lookahead=2)},
}
ONE_OF_RANK_1 = {
    "spec": replace(SPEC, budget=41),
    "num_layers": 2,
    "subgraphs_per_step": 8,
    "steps_per_epoch": 6,
    "split": "val",
    "locality": "own",
    "roots": [3, 5],
    "prefetch": 1,
}
OF_RANK_0 = {"roots": [3, 4]}
NAMED = {"spec": "budget"}
FEW = {"spec": SubgraphSpec("node", 6, weights="none"), "subgraphs_per_step": 1, "locality": "own"}
CLUSTERS = {"spec": SubgraphSpec("cluster", clusters_per_batch=1), "locality": "own", "steps_per_epoch": None}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The same graph in as many parts."""
    return {parts: make_task(tmp_path_factory.mktemp(f"parts-{parts}"), parts) for parts in (2, 4)}


def make_loader(data, **options):
    given = {"spec": SPEC, "subgraphs_per_step": PER_STEP, "steps_per_epoch": STEPS} | options
    return SubgraphLoader(data, given.pop("spec"), given.pop("num_layers", 3), **given)


def test_an_epoch_s_input_nodes_for_a_cache_are_sampled_as_they_are_counted(tasks, monkeypatch):
    """The list of them all would be as large as an epoch's batches."""
    sampled, inputs = [], subgraph_loader.sampled_inputs
    monkeypatch.setattr(
        subgraph_loader, "sampled_inputs", lambda *args: (sampled.append(1) or nodes for nodes in inputs(*args))
    )
    with DistContext(LocalCommunicator()) as ctx:
        sample = make_loader(DistData.load(tasks[2].path, ctx))._workload().sample
        nodes = iter(sample(0, 0))
        first = next(nodes)
        assert len(sampled) == 1 and torch.equal(first, first.unique())
        assert len(list(nodes)) == STEPS - 1


def facts_of(data, batch):
    """(step, loss nodes of all ranks, what every node of this rank's batch is), by original ids: a node's features,
    whether it has a loss and which label, the sources of its edges and their weights.
    """
    square, seeds = batch.mfgs[0], batch.seeds.numel()
    assert all(mfg is square for mfg in batch.mfgs[:-1]) and batch.mfgs[-1].num_dst == seeds
    assert torch.equal(batch.input_nodes, square.src_nodes) and torch.equal(batch.seeds, square.src_nodes[:seeds])
    orig = data.orig_ids(square.src_nodes).tolist()
    ends, sources = square.indptr.tolist(), square.indices.tolist()
    weights = [None] * len(sources) if square.edge_weights is None else square.edge_weights.tolist()
    nodes = []
    for place, node in enumerate(orig):
        row = range(ends[place], ends[place + 1])
        edges = sorted((orig[sources[edge]], weights[edge]) for edge in row)
        label = int(batch.labels[place]) if place < seeds else None
        nodes.append((node, label is not None, label, tuple(edges), tuple(batch.features[place].tolist())))
    return batch.step, batch.num_global_seeds, nodes


def epochs_of(data, loader, epochs=1):
    return [facts_of(data, batch) for _ in range(epochs) for batch in loader]


def united(by_rank):
    """The ranks' facts as those of one rank with all their nodes."""
    return [
        (steps[0][0], steps[0][1], sorted((node for _, _, nodes in steps for node in nodes), key=repr))
        for steps in zip(*by_rank, strict=True)
    ]


def alone(path, work, **options):
    """What `work(data, loader)` finds in one process."""
    with DistContext(LocalCommunicator()) as ctx:
        data = DistData.load(path, ctx)
        return work(data, make_loader(data, **options))


@pytest.fixture(scope="module")
def expected(tasks):
    """By locality the batches of two epochs that one process makes on 4 parts."""
    return {
        locality: united([alone(tasks[4].path, lambda data, loader: epochs_of(data, loader, 2), locality=locality)])
        for locality in (None, "own")
    }


def refusal(action):
    try:
        action()
    except ValueError as error:
        return str(error)
    return ""


def train(data, **options):
    model = make_model("sage", num_layers=3)
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.01), data.ctx)
    loader = make_loader(data, **options)
    losses = [trainer.run_epoch(loader).loss for _ in range(2)]
    return [parameter.detach() for parameter in model.parameters()], losses


def make_on_two_ranks(ctx, path, clustered, position):
    """All that two ranks find; of clusters on a partition that has some."""
    data, found = DistData.load(path, ctx), {"batches": {}, "stats": {}, "rows": {}}
    for name, options in WAYS.items():
        loader = make_loader(data, **options)
        ctx.comm.reset_stats()
        found["batches"][name] = epochs_of(data, loader, 2)
        found["stats"][name], found["rows"][name] = ctx.comm.stats(), loader.rows
        loader.close()
    found["own"] = epochs_of(data, make_loader(data, locality="own"), 2)
    resumed = make_loader(data)
    resumed.resume(position)
    found["resumed"] = epochs_of(data, resumed)
    found["walk"] = epochs_of(data, make_loader(data, spec=SubgraphSpec("walk", 30, count_subgraphs=8)))
    found["trained"] = train(data)
    of_clusters = make_loader(DistData.load(clustered, ctx), **CLUSTERS | PAIRED)
    ctx.comm.reset_stats()
    found["clusters"], found["stats"]["clusters"] = epochs_of(of_clusters.data, of_clusters), ctx.comm.stats()
    found["steps"] = len(make_loader(data, **FEW, steps_per_epoch=None))
    own = ONE_OF_RANK_1 if ctx.rank else OF_RANK_0
    found["said"] = {
        name: refusal(lambda name=name: make_loader(data, **({name: own[name]} if name in own else {})))
        for name in ONE_OF_RANK_1
    }
    return found


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    """In 4 parts and 12 clusters."""
    return make_task(tmp_path_factory.mktemp("clustered"), 4, clusters=12)


@pytest.fixture(scope="module")
def two(tasks, clustered):
    """By rank what two ranks find on 4 parts; they resume one process's run."""
    position = alone(tasks[4].path, lambda data, loader: loader.position(1, STEPS + 2))
    return run_distributed(2, make_on_two_ranks, args=(tasks[4].path, clustered.path, position))


def make_batches(ctx, path):
    data = DistData.load(path, ctx)
    return epochs_of(data, make_loader(data), 2), epochs_of(data, make_loader(data, locality="own"), 2)


# --- the same batches


def test_the_features_and_labels_are_those_of_the_nodes(tasks, expected):
    features, labels = tasks[4].features, tasks[4].labels
    assert len(expected[None]) == 2 * STEPS
    for _, num_seeds, nodes in expected[None]:
        assert sum(has_loss for _, has_loss, *_ in nodes) == num_seeds > 0
        for node, has_loss, label, _, row in nodes:
            assert row == tuple(features[node].tolist())
            assert not has_loss or label == labels[node]


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_make_the_batches_of_one_process(two, expected, way):
    assert united([found["batches"][way] for found in two]) == expected[None]


def test_four_ranks_make_the_batches_of_one_process(tasks, expected):
    ranks = run_distributed(4, make_batches, args=(tasks[4].path,))
    assert united([batches for batches, _ in ranks]) == expected[None]
    assert united([own for _, own in ranks]) == expected["own"]


def test_two_parts_give_the_batches_of_four(tasks, expected):
    assert united([alone(tasks[2].path, lambda data, loader: epochs_of(data, loader, 2))]) == expected[None]


def test_the_ranks_share_out_the_subgraphs_by_number(tasks, two):
    def sizes(batches):
        return [len(nodes) for _, _, nodes in batches]

    whole = alone(tasks[4].path, epochs_of)
    first, second = (found["batches"]["default"][:STEPS] for found in two)
    assert [a + b for a, b in zip(sizes(first), sizes(second), strict=True)] == sizes(whole)
    assert all(sizes(first)) and all(sizes(second))


def test_ranks_with_locality_make_the_batches_of_one_process(two, expected):
    assert united([found["own"] for found in two]) == expected["own"] != expected[None]


@pytest.mark.parametrize("roots", [None, range(0, 200, 3)], ids=["all", "some"])
def test_with_locality_the_parts_take_turns_and_nodes_are_drawn_of_one_part(tasks, roots):
    def parts_of_batches(data, loader):
        batches = list(loader)
        assert all(node in (roots or range(200)) for batch in batches for node in batch.input_nodes.tolist())
        return [data.book.nid2part(batch.input_nodes).unique().tolist() for batch in batches]

    options = {"spec": SubgraphSpec("node", 20, weights="none"), "subgraphs_per_step": 1, "locality": "own"}
    assert alone(tasks[4].path, parts_of_batches, **options, roots=roots and list(roots)) == [[0], [1], [2], [3], [0]]


def test_parts_draw_by_keys_of_their_own(tasks):
    def keys(data, loader):
        return {sampler.spec.rng_seed for sampler in loader._sampler._samplers.values()}

    assert len(alone(tasks[4].path, keys, locality="own")) == 4


def test_with_locality_an_epoch_has_every_train_node_in_one_subgraph_of_any_part_on_average(tasks, two):
    def work(data, loader):
        own, degrees, found = data.split("train"), data.graph.in_degrees(), 0.0
        for part in range(4):
            begin, end = data.book.part2range(part)
            shares = torch.where((own >= begin) & (own < end), degrees[own] / degrees[begin:end].sum(), 0)
            found += float((1 - (1 - shares.double()) ** FEW["spec"].budget).sum())
        return math.ceil(4 * own.numel() / found), len(loader)

    needed, steps = alone(tasks[4].path, work, **FEW, steps_per_epoch=None)
    assert steps == needed > 4
    assert [found["steps"] for found in two] == [steps] * 2


def test_clusters_of_ones_own_parts_fetch_nothing_and_an_epoch_has_every_node_once(clustered, two):
    stats = [found["stats"]["clusters"] for found in two]
    assert all(found[purpose]["bytes_sent"] == 0 for found in stats for purpose in ("feature_ids", "feature_rows"))
    whole = alone(clustered.path, epochs_of, **CLUSTERS)
    assert united([found["clusters"] for found in two]) == united([whole])
    assert len(whole) == 3 and sorted(node for *_, nodes in whole for node, *_ in nodes) == list(range(200))


def test_ranks_that_count_inclusion_weigh_edges_as_one_process(tasks, two):
    spec = SubgraphSpec("walk", 30, count_subgraphs=8)
    whole = united([alone(tasks[4].path, epochs_of, spec=spec)])
    assert united([found["walk"] for found in two]) == whole
    assert any(weight != 1 for _, _, nodes in whole for *_, edges, _ in nodes for _, weight in edges)


# --- training


def test_two_ranks_train_the_parameters_of_one_process(tasks, two):
    parameters, losses = alone(tasks[4].path, lambda data, loader: train(data))
    for found in two:
        trained, own_losses = found["trained"]
        assert own_losses == pytest.approx(losses, abs=1e-12)
        torch.testing.assert_close(trained, parameters, rtol=0, atol=1e-9)
        assert all(map(torch.equal, trained, two[0]["trained"][0]))


def test_a_step_without_labelled_nodes_trains_nothing_and_gives_no_nan(tmp_path):
    task = make_task(tmp_path, 1)
    options = {"spec": replace(SPEC, budget=4, frontier_size=2), "subgraphs_per_step": 1, "steps_per_epoch": 12}

    def work(data, _):
        data._splits["train"] = data.split("train")[:2]
        loader = make_loader(data, **options)
        seeds = [(batch.seeds.numel(), batch.num_global_seeds, batch.loss_weight) for batch in loader]
        return seeds, train(data, **options)

    seeds, (parameters, losses) = alone(task.path, work)
    assert (0, 1, 0.0) in seeds
    assert all(bool(torch.isfinite(parameter).all()) for parameter in parameters) and np.isfinite(losses).all()


def test_an_empty_subgraph_is_an_empty_batch(tmp_path):
    raw = RawGraph(
        name="no edges", num_nodes=6, undirected=True, edge_index=np.empty((2, 0), dtype=np.int64),
        features=np.ones((6, 3), dtype=np.float32), labels=np.zeros(6, dtype=np.int64), num_classes=2,
        splits={name: np.arange(6) for name in ("train", "val", "test")},
    )  # fmt: skip
    build_partition(raw, PartitionOptions(num_parts=1, method="random", seed=1), tmp_path / "parts")
    spec = SubgraphSpec("node", 5, weights="none")
    [batch] = alone(tmp_path / "parts", lambda data, loader: list(loader), spec=spec, steps_per_epoch=1)
    assert batch.features.shape == (0, 3) and batch.seeds.numel() == batch.mfgs[0].num_edges == 0


# --- what it costs


def test_a_step_is_two_payload_exchanges_and_one_count(two):
    """Loss nodes are counted with the plan of the exchange."""
    steps = 2 * STEPS
    for found in two:
        stats, rows = found["stats"]["paired"], found["rows"]["paired"]
        assert {purpose: counts["calls"] for purpose, counts in stats.items()} == {
            "feature_ids": steps, "feature_rows": steps, "counts": steps, "setup": 2,
        }  # fmt: skip
        assert stats["counts"]["bytes_sent"] == steps * 24
        assert stats["feature_rows"]["bytes_received"] == rows.exchanged * FEATURE_DIM * 8
        assert stats["feature_ids"]["bytes_sent"] == rows.exchanged * 4


def test_every_row_is_asked_for_once(two):
    """Two subgraphs of a rank's batch share nodes."""
    nodes = [node for found in two for _, _, batch in found["batches"]["paired"] for node, *_ in batch]
    distinct = [node for found in two for _, _, batch in found["batches"]["paired"] for node in {n for n, *_ in batch}]
    asked = sum(sum(vars(found["rows"]["paired"]).values()) for found in two)
    assert asked == len(distinct) < len(nodes)


def test_one_subgraph_per_rank_needs_no_second_look(tasks):
    def kinds(data, loader):
        return [type(stage) for stage in loader._stages]

    assert OnceEach in alone(tasks[4].path, kinds)
    assert OnceEach not in alone(tasks[4].path, kinds, subgraphs_per_step=1)


def test_combined_exchanges_are_one_a_step(two):
    for found in two:
        stats = found["stats"]["combined"]
        assert stats["feature_rows"]["calls"] == 2 * (STEPS + 2) and stats["feature_ids"]["calls"] == 0
        assert stats["counts"]["calls"] == 2 * STEPS


def test_a_cache_is_filled_with_rows_of_other_subgraphs(two):
    for name in ("cache", "keeping cache"):
        assert all(found["rows"][name].cached > 0 for found in two)
        assert sum(found["rows"][name].exchanged for found in two) < sum(
            found["rows"]["paired"].exchanged for found in two
        )


def test_a_cache_is_made_for_the_rows_of_an_epoch(tasks):
    def work(data, loader):
        [*expected] = (batch.input_nodes.unique().tolist() for batch in loader)
        assert [nodes.tolist() for nodes in loader._workload().sample(0, 0)] == expected

    alone(tasks[4].path, work)


# --- epochs and positions


def test_by_default_an_epoch_shows_every_labelled_node_once_on_average(tasks):
    def work(data, loader):
        return len(loader), loader.subgraphs_per_step, sum(batch.seeds.numel() for batch in loader)

    steps, per_step, visited = alone(tasks[4].path, work, steps_per_epoch=None, subgraphs_per_step=None)
    num_train = len(tasks[4].node_task.splits["train"])
    assert per_step == 4 and steps > 1
    assert 0.7 * num_train < visited < 1.3 * num_train + 4 * 40  # a step too many at most


def test_the_roots_of_ego_networks_are_the_nodes_of_the_split(tasks):
    def work(data, loader):
        epoch = [batch.seeds for batch in loader]
        assert {seeds.numel() for seeds in epoch} == {loader.subgraphs_per_step}
        assert torch.equal(torch.cat(epoch).unique().long(), data.split("train"))

    options = {"spec": SubgraphSpec("ego", depth=1, fanout=2), "subgraphs_per_step": 7, "steps_per_epoch": None}
    alone(tasks[4].path, work, **options)
    alone(tasks[4].path, work, **options | {"subgraphs_per_step": 4, "locality": "own"})


def test_two_ranks_resume_the_run_of_one_process_in_the_middle_of_an_epoch(two, expected):
    assert united([found["resumed"] for found in two]) == expected[None][STEPS + 2 :]


def test_a_resumed_epoch_has_the_steps_that_are_left(tasks):
    def work(data, loader):
        loader.resume(loader.position(1, STEPS + 2))
        steps = [loader.num_steps(epoch) for epoch in (1, 2)]
        made = [[batch.step for batch in loader] for _ in range(2)]
        loader.set_epoch(1)
        with pytest.raises(ValueError, match=r"^epoch is 0; expected an integer >= 1"):
            loader.set_epoch(0)
        loader.resume(loader.position(1, 2 * STEPS))
        return steps, made, list(loader)

    steps, made, rest = alone(tasks[4].path, work)
    assert steps == [STEPS - 2, STEPS] and rest == []
    assert made == [list(range(STEPS + 2, 2 * STEPS)), list(range(2 * STEPS, 3 * STEPS))]


def test_positions_of_another_kind_or_epoch_are_refused(tasks):
    def work(data, loader):
        seeds = DistLoader(data, [2, 2], 40)
        with pytest.raises(ValueError, match=r"^the position is that of a loader of seeds but this loader makes"):
            loader.resume(seeds.position(0, 1))
        with pytest.raises(ValueError, match=r"^the position is that of a loader of subgraphs but this loader makes"):
            seeds.resume(loader.position(0, 1))
        with pytest.raises(ValueError, match=r"^step is 11; expected 0 to 5, the steps of epoch 0 and the one after"):
            loader.resume(LoaderPosition(0, 11, torch.empty(0, dtype=torch.int64), "subgraphs"))

    alone(tasks[4].path, work)


# --- refusals


@pytest.mark.parametrize("name", ONE_OF_RANK_1)
def test_an_option_of_one_rank_is_refused_on_all(two, name):
    said = [found["said"][name] for found in two]
    assert said[0] == said[1]
    assert said[0].startswith(f"SubgraphLoader: ranks differ in {NAMED.get(name, name)}: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "vanilla"}, r"scheme is 'vanilla', under which every visit of a subgraph would cost 2 exchanges"),
        ({"scheme": "other"}, r"scheme is 'other'; expected 'hybrid'"),
        ({"spec": "frontier"}, r"spec is a str; expected a fsd.SubgraphSpec"),
        ({"num_layers": 0}, r"num_layers is 0; expected an integer from 1"),
        ({"subgraphs_per_step": 0}, r"subgraphs_per_step is 0; expected an integer from 1"),
        ({"steps_per_epoch": 1.5}, r"steps_per_epoch is 1\.5; expected an integer"),
        ({"prefetch": None}, r"prefetch is None; expected 0 \(off\) or the number of batches"),
        ({"prefetch": 1.5}, r"prefetch is 1\.5; expected 0 \(off\) or the number of batches"),
        ({"device": "gpu"}, r"device is 'gpu'; expected \"cpu\", \"cuda\", or one GPU such as \"cuda:1\""),
        ({"feature_dtype": "bf16"}, r"feature_dtype is 'bf16'; expected None, or torch.float32, torch.float64"),
        ({"transform": 3}, r"transform is 3; expected None or a function"),
        ({"locality": "near"}, r"locality is 'near'; expected None or 'own'"),
        ({"split": "other"}, r".* has no split 'other'"),
        ({"roots": [-1]}, r"roots holds node ids from -1 to -1; expected 0 to"),
        ({"roots": [True, False]}, r"roots is torch\.bool; expected integer node ids; of a mask pass roots\.nonzero"),
        ({"roots": [], "locality": "own"}, r"roots is empty; expected at least one node"),
        (
            {"roots": [0], "locality": "own"},
            r"roots has no node in part 1 \(nodes \d+ to \d+\), but with locality 'own'",
        ),
        ({"roots": [1.5]}, r"roots is torch\.float32; expected integer node ids"),
        ({"spec": SubgraphSpec("cluster"), "roots": [1]}, r"roots is given but method is 'cluster'"),
        ({"spec": SubgraphSpec("cluster")}, r".* has no clusters, which method 'cluster' is made of; partition with"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(tasks, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        alone(tasks[4].path, lambda data, loader: None, **options)


def test_with_locality_ego_networks_of_a_split_that_a_part_lacks_are_refused(tasks):
    def work(data, _):
        data._splits["train"] = data.split("train")[:3]
        message = (
            r"^the train split has no node in part 1 \(nodes \d+ to \d+\), but with locality 'own' subgraphs begin"
        )
        with pytest.raises(ValueError, match=message):
            make_loader(data, spec=SubgraphSpec("ego", depth=1, fanout=2), locality="own", steps_per_epoch=None)

    alone(tasks[4].path, work)


@pytest.mark.gpu
def test_batches_for_a_gpu_are_those_for_the_cpu(tasks):
    def on_gpu(data, _):
        loader = make_loader(data, device="cuda", prefetch=2)
        batches = list(loader)
        assert {tensor.device.type for batch in batches for tensor in batch.tensors()} == {"cuda"}
        assert all(batch.mfgs[0] is batch.mfgs[1] for batch in batches)
        return [facts_of(data, batch.to("cpu")) for batch in batches]

    assert alone(tasks[4].path, on_gpu) == alone(tasks[4].path, epochs_of)

"""SkipGram: ranks change no bit, the gradient is that of the dense formula, three exchanges, the negatives' law."""

import shutil
import sys
import time

import numpy as np
import pytest
import torch

from fastsample_dist import (
    CSCGraph,
    DistContext,
    DistData,
    DistLoader,
    SkipGram,
    SkipGramCheckpointer,
    SkipGramOptions,
    WalkLoader,
)
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.ops.reference.embedding import skipgram_loss
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.pipeline.walk_loader import WalkBatch
from fastsample_dist.sampling import transit
from fastsample_dist.testing import run_distributed
from fastsample_dist.testing.statistics import pearson_p
from fastsample_dist.train import NonFiniteError, skipgram
from fastsample_dist.train.skipgram import Negatives, window_pairs
from tests.grids import grid
from tests.parts import draw_partition

APP = transit.DeepWalk(5)
SMALL = {"dim": 20, "window": 2, "negatives": 2, "rng_seed": 3, "lr": 0.05}
STEP = ("embedding_ids", "embedding_rows", "embedding_gradients")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """240 nodes in 4 parts, directed, some isolated: walks of all lengths."""
    return draw_partition(tmp_path_factory.mktemp("drawn"), 4, num_edges=700)


@pytest.fixture
def ctx():
    with DistContext(LocalCommunicator()) as context:
        yield context


def make(ctx, path, batch_size=40, **options):
    data = DistData.load(path, ctx)
    loader = WalkLoader(data, APP, walks_per_node=2, batch_size=batch_size, rng_seed=9)
    return data, loader, SkipGram(data, SkipGramOptions(**{**SMALL, **options}))


def trained(ctx, path, options, epochs=2):
    """(original ids, both rows of own nodes, moments, losses by epoch, pairs)."""
    data, loader, model = make(ctx, path, **options)
    stats = model.fit(loader, epochs)
    lo, hi = data.own_range
    moments = () if model._moments is None else tuple(moment.numpy() for moment in model._moments)
    return (
        data.graph.orig_ids[lo:hi].numpy(), model.table.numpy(), moments, [one.loss for one in stats],
        [(one.pairs, one.steps, one.epoch) for one in stats],
    )  # fmt: skip


def by_original_id(results):
    """The tables of all ranks as one, and its other results, which ranks have alike."""
    ids = np.concatenate([one[0] for one in results]).argsort()
    columns = list(zip(*((one[1], *one[2]) for one in results), strict=True))
    tables = [np.concatenate(column).reshape(len(ids), 2, -1)[ids] for column in columns]
    assert all(one[3:] == results[0][3:] for one in results)
    return tables, results[0][3:]


@pytest.mark.parametrize("optimizer", grid(["adam", "sgd"], gate=["adam"]))
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_equal_one_process_bit_for_bit(drawn, world_size, optimizer):
    options = {"optimizer": optimizer}
    expected, facts = by_original_id(run_distributed(1, trained, args=(drawn.path, options)))
    found, same = by_original_id(run_distributed(world_size, trained, args=(drawn.path, options)))
    assert same[0] == pytest.approx(facts[0], rel=1e-12) and same[1] == facts[1] and facts[1][0][1] == 3
    assert len(found) == (3 if optimizer == "adam" else 1)
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    assert all(table.dtype == np.float32 and np.abs(table).max() > 0 for table in found)


class StoppedError(Exception):
    """In place of a kill."""


def interrupted(ctx, path, folder, last_step):
    """Train with a checkpoint after every second step, and stop in the one after `last_step`."""
    _, loader, model = make(ctx, path)
    step = model.step

    def stopping(batch):
        if batch.step > last_step:
            raise StoppedError
        return step(batch)

    model.step = stopping
    with pytest.raises(StoppedError):
        model.fit(loader, 2, checkpoints=SkipGramCheckpointer(model, loader, folder, every=2))


def resumed(ctx, path, folder):
    """(step resumed at, what `trained` returns)."""
    data, loader, model = make(ctx, path)
    checkpoints = SkipGramCheckpointer(model, loader, folder, every=2)
    step = checkpoints.begin()
    stats = model.fit(loader, 2, checkpoints=checkpoints)
    lo, hi = data.own_range
    return (
        data.graph.orig_ids[lo:hi].numpy(), model.table.numpy(), tuple(moment.numpy() for moment in model._moments),
        [one.loss for one in stats], [(one.pairs, one.steps, one.epoch) for one in stats], step,
    )  # fmt: skip


@pytest.mark.parametrize(("at", "saved_by", "resumed_by"), [(2, 1, 4), (4, 2, 1)], ids=["first-epoch", "second-epoch"])
def test_a_resumed_run_equals_an_uninterrupted_one(drawn, ctx, tmp_path, at, saved_by, resumed_by):
    def on_ranks(world_size, function, *args):
        if world_size == 1:
            return [function(ctx, drawn.path, *args)]
        return run_distributed(world_size, function, args=(drawn.path, *args))

    expected, (losses, facts) = by_original_id(on_ranks(1, trained, {}))
    on_ranks(saved_by, interrupted, tmp_path, at - 1)
    found, (last_losses, last_facts, step) = by_original_id(on_ranks(resumed_by, resumed, tmp_path))
    assert step == at
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    assert last_facts == facts[-len(last_facts) :]
    assert last_losses == pytest.approx(losses[-len(last_losses) :], rel=1e-12)
    assert sorted(file.name for file in tmp_path.glob("step-*")) == ["step-000000006.ckpt"]
    assert len(list(tmp_path.glob("part-*/step-*.ckpt"))) == 4


def test_a_checkpoint_of_another_run_is_refused_in_one_line(drawn, ctx, tmp_path):
    interrupted(ctx, drawn.path, tmp_path / "run", 1)
    for batch_size, options, reason in (
        (40, {"dim": 24}, "made with dim 20 but this run has dim 24"),
        (41, {}, "made with batch_size 40 but this run has batch_size 41"),
    ):
        _, loader, model = make(ctx, drawn.path, batch_size, **options)
        with pytest.raises(ValueError, match=reason):
            SkipGramCheckpointer(model, loader, tmp_path / "run").begin()
    (tmp_path / "other").mkdir()
    other = draw_partition(tmp_path / "other", 4, num_edges=701)
    _, loader, model = make(ctx, other.path)
    with pytest.raises(ValueError, match=r"made on another partition .*; pass that one"):
        SkipGramCheckpointer(model, loader, tmp_path / "run").begin()
    _, loader, model = make(ctx, drawn.path)
    [file] = (tmp_path / "run" / "part-3").glob("step-000000002.ckpt")
    file.write_bytes(file.read_bytes()[:-1])
    before = model.table.clone()
    with pytest.raises(ValueError, match=r"part-3/step-000000002.ckpt cannot be read \(it holds \d+ bytes, expected"):
        SkipGramCheckpointer(model, loader, tmp_path / "run").begin()
    assert torch.equal(model.table, before) and loader.epoch == 0


def test_a_checkpoint_of_other_walks_is_refused(drawn, ctx, tmp_path, monkeypatch):
    interrupted(ctx, drawn.path, tmp_path, 1)
    monkeypatch.setattr(sys.modules[__name__], "APP", transit.DeepWalk(6))
    _, loader, model = make(ctx, drawn.path)
    with pytest.raises(
        ValueError, match=r"made with DeepWalk.length 5 but this run has DeepWalk.length 6; pass the same, or start in"
    ):
        SkipGramCheckpointer(model, loader, tmp_path).begin()
    monkeypatch.setattr(sys.modules[__name__], "APP", transit.Node2Vec(5))
    _, loader, model = make(ctx, drawn.path)
    with pytest.raises(ValueError, match='made with app "DeepWalk" but this run has app "Node2Vec"; pass the same'):
        SkipGramCheckpointer(model, loader, tmp_path).begin()


def test_a_checkpoint_that_cannot_be_written_stops_nothing(drawn, ctx, tmp_path, caplog):
    _, loader, model = make(ctx, drawn.path)
    checkpoints = SkipGramCheckpointer(model, loader, tmp_path / "run")
    for files in checkpoints._part_files.values():
        shutil.rmtree(files.directory)
        files.directory.write_text("no directory")
    assert len(model.fit(loader, 1, checkpoints=checkpoints)) == 1
    assert "could not be written" in caplog.text and not list((tmp_path / "run").glob("step-*"))
    assert SkipGramCheckpointer.begin(checkpoints) is None


def test_files_of_parts_stay_while_the_runs_file_names_them(drawn, ctx, tmp_path, caplog):
    """The file of one part cannot be written, again and again, while those of the others can."""
    interrupted(ctx, drawn.path, tmp_path, 1)
    _, loader, model = make(ctx, drawn.path)
    checkpoints = SkipGramCheckpointer(model, loader, tmp_path, every=1)
    assert checkpoints.begin() == 2

    def refuse(step, content):
        raise RuntimeError("no room")

    checkpoints._part_files[3].write = refuse
    model.fit(loader, 2, checkpoints=checkpoints)
    assert caplog.text.count("no room") == 6
    assert [file.name for file in sorted((tmp_path / "part-0").iterdir())] == [
        "step-000000002.ckpt",
        "step-000000006.ckpt",
    ]  # what no run's file names is deleted with the next checkpoint
    _, loader, model = make(ctx, drawn.path)
    assert SkipGramCheckpointer(model, loader, tmp_path).begin() == 2


def dense_pairs(model, batch):
    """Centre and context rows of a batch in a table of all nodes, pair after pair, from the definition."""
    window, centers, contexts = model.options.window, [], []
    for walk, sample in zip(batch.walks.tolist(), batch.sample_ids.tolist(), strict=True):
        for i, centre in enumerate(walk):
            for j in range(max(0, i - window), min(len(walk), i + window + 1)):
                if i == j or centre < 0 or walk[j] < 0:
                    continue
                number = torch.tensor([i * (2 * window + 1) + j - i + window])
                drawn = model._negatives.draw(torch.tensor([sample]), number, batch.epoch)[0].tolist()
                centers.append(2 * centre)
                contexts.append([2 * node + 1 for node in (walk[j], *drawn)])
    return torch.tensor(centers), torch.tensor(contexts)


@pytest.mark.parametrize("negatives", [0, 3])
def test_the_gradient_is_that_of_the_dense_formula(drawn, ctx, negatives):
    _, loader, model = make(ctx, drawn.path, batch_size=120, optimizer="sgd", lr=1.0, negatives=negatives)
    model.table.copy_(torch.randn(model.table.shape, generator=torch.Generator().manual_seed(1)) / 5)
    batch = next(iter(loader))
    rows = model.table.double().requires_grad_()
    centers, contexts = dense_pairs(model, batch)
    loss = skipgram_loss(rows, centers, contexts)
    (loss / batch.num_global_walks).backward()
    num_pairs, losses = model.step(batch)
    assert num_pairs == len(centers)
    assert losses == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(model.table, (rows - rows.grad).detach().float(), rtol=1e-5, atol=1e-6)


def exchanges(ctx, path):
    _, loader, model = make(ctx, path)
    before = ctx.comm.stats()
    steps = len([model.step(batch) for batch in loader])
    after = ctx.comm.stats()
    calls = {purpose: count["calls"] - before.get(purpose, {"calls": 0})["calls"] for purpose, count in after.items()}
    moved = {purpose: (after[purpose]["bytes_sent"], after[purpose]["bytes_received"]) for purpose in STEP}
    return steps, {purpose: count for purpose, count in calls.items() if count}, moved


def test_a_step_is_three_exchanges(drawn):
    results = run_distributed(2, exchanges, args=(drawn.path,))
    for steps, calls, moved in results:
        assert calls == {**dict.fromkeys(STEP, steps), "counts": steps}
        assert moved["embedding_rows"] == moved["embedding_gradients"][::-1]  # as many rows go back as were asked for
        assert moved["embedding_rows"][1] == moved["embedding_ids"][0] // 4 * 4 * SMALL["dim"] > 0
    assert results[0][2]["embedding_ids"] == results[1][2]["embedding_ids"][::-1]


def test_the_window_and_the_numbers_of_its_pairs():
    centre, context, number = window_pairs(4, 2)
    expected = [(i, j) for i in range(4) for j in range(4) if i != j and abs(i - j) <= 2]
    assert list(zip(centre.tolist(), context.tolist(), strict=True)) == expected
    assert number.tolist() == [i * 5 + j - i + 2 for i, j in expected]
    longer = {(i, j): n for i, j, n in torch.stack(window_pairs(9, 2), dim=1).tolist()}
    assert [longer[pair] for pair in expected] == number.tolist()  # a walk's pairs are numbered without its end


@pytest.mark.parametrize("relabelled", [False, True])
def test_negatives_have_the_law_of_degree_to_three_quarters(relabelled):
    """Chi-square, fixed seed; false-alarm rate 1e-4 each."""
    degrees = torch.tensor([0, 1, 3, 10, 40, 2])
    orig_ids = torch.tensor([4, 0, 5, 1, 3, 2]) if relabelled else None
    indptr = torch.tensor([0, *degrees.cumsum(0).tolist()])
    graph = CSCGraph(indptr, torch.zeros(int(indptr[-1]), dtype=torch.int32), orig_ids=orig_ids)
    drawer = Negatives(graph, SkipGramOptions(negatives=2, rng_seed=5))
    drawn = drawer.draw(torch.arange(20_000), torch.arange(20_000) % 7, epoch=1)
    found = torch.bincount(drawn.flatten(), minlength=6)
    law = degrees.double() ** 0.75
    assert found[0] == 0
    assert pearson_p(found[1:].tolist(), (40_000 * law / law.sum())[1:].tolist()) > 1e-4


def test_negatives_do_not_depend_on_the_numbering():
    degrees, orig_ids = torch.tensor([2, 1, 3, 5]), torch.tensor([2, 0, 3, 1])
    pairs = torch.arange(500), torch.arange(500)

    def drawn(row_lengths, ids):
        indptr = torch.tensor([0, *row_lengths.cumsum(0).tolist()])
        graph = CSCGraph(indptr, torch.zeros(11, dtype=torch.int32), orig_ids=ids)
        return Negatives(graph, SkipGramOptions(negatives=3)).draw(*pairs, epoch=0)

    assert torch.equal(orig_ids[drawn(degrees[orig_ids], orig_ids)], drawn(degrees, None))


def saved(ctx, path, folder):
    data, loader, model = make(ctx, path)
    model.fit(loader, 1)
    model.save(folder / "rows.npy")
    lo, hi = data.own_range
    return data.graph.orig_ids[lo:hi].numpy(), model.embeddings().numpy(), sorted(p.name for p in folder.iterdir())


def test_saved_by_original_id(drawn, tmp_path):
    results = run_distributed(2, saved, args=(drawn.path, tmp_path))
    found = np.load(tmp_path / "rows.npy")
    assert found.shape == (240, SMALL["dim"]) and found.dtype == np.float32
    for ids, rows, names in results:
        assert np.array_equal(found[ids], rows)
        assert names == ["rows.npy"]


def cannot_save(ctx, path, folder):
    _, _, model = make(ctx, path)
    with pytest.raises(ValueError, match="missing"):
        model.save(folder / "missing" / "rows.npy")
    ctx.comm.barrier()
    return True


def test_a_file_that_cannot_be_written_is_reported_on_all_ranks(drawn, tmp_path):
    assert run_distributed(2, cannot_save, args=(drawn.path, tmp_path)) == [True, True]


def other_options(ctx, path):
    with pytest.raises(ValueError, match="SkipGram: ranks differ in dim: 20 on rank 0; 21 on rank 1"):
        make(ctx, path, dim=20 + ctx.rank)
    return True


def test_ranks_with_other_options_are_refused(drawn):
    assert run_distributed(2, other_options, args=(drawn.path,)) == [True, True]


def other_intervals(ctx, path, folder):
    _, loader, model = make(ctx, path)
    with pytest.raises(ValueError, match="SkipGramCheckpointer: ranks differ in every: 2 on rank 0; None on rank 1"):
        SkipGramCheckpointer(model, loader, folder, every=None if ctx.rank else 2)
    return True


def other_epochs(ctx, path):
    _, loader, model = make(ctx, path)
    differing = "SkipGram.fit: ranks differ in epochs: 1 on rank 0; 2 on rank 1; start all ranks with the same"
    with pytest.raises(ValueError, match=differing):
        model.fit(loader, 1 + ctx.rank)
    loader.set_epoch(ctx.rank)
    with pytest.raises(ValueError, match="WalkLoader: ranks differ in epoch: 0 on rank 0; 1 on rank 1; in first step"):
        model.run_epoch(loader)
    return model.num_updates


def test_ranks_that_would_train_for_other_epochs_are_refused(drawn):
    assert run_distributed(2, other_epochs, args=(drawn.path,)) == [0, 0]


def ended_by_one(ctx, path):
    _, loader, model = make(ctx, path)
    return len(model.fit(loader, 3, (lambda _: True) if ctx.rank == 1 else None))


def test_one_ranks_callback_ends_training_on_all(drawn):
    assert run_distributed(2, ended_by_one, args=(drawn.path,)) == [1, 1]


def test_ranks_that_would_save_after_other_steps_are_refused(drawn, tmp_path):
    assert run_distributed(2, other_intervals, args=(drawn.path, tmp_path)) == [True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim is 0; expected an integer >= 1"),
        ({"window": 0}, "window is 0"),
        ({"negatives": -1}, "negatives is -1"),
        ({"optimizer": "lion"}, "optimizer is 'lion'; expected 'adam' or 'sgd'"),
        ({"lr": 0.0}, "lr is 0.0; expected a positive number"),
        ({"lr": "0.01"}, "lr is '0.01'; expected a positive number"),
        ({"lr": True}, "lr is True; expected a positive number"),
        ({"epsilon": float("inf")}, "epsilon is inf; expected a positive number"),
        ({"betas": (0.9, 1.0)}, "betas is .*; expected two numbers of at least 0 and below 1"),
        ({"betas": (0.9,)}, "betas is .*; expected two numbers"),
        ({"betas": 0.9}, "betas is 0.9; expected two numbers"),
        ({"rng_seed": -1}, "rng_seed is -1"),
        ({"rng_seed": 2**63}, r"rng_seed is 9223372036854775808; expected an integer from 0 to 2\*\*63 - 1"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        SkipGramOptions(**options)


def test_what_is_no_argument_of_a_skipgram_is_refused(drawn, ctx, tmp_path):
    data, loader, model = make(ctx, drawn.path)
    for call, message in (
        (lambda: SkipGram(drawn.path), "data is a .*Path; expected the partition that fsd.DistData.load"),
        (lambda: SkipGram(data, 64), "options is a int; expected an object of SkipGramOptions, such as"),
        (lambda: SkipGram(data, {}), "options is a dict; expected an object of SkipGramOptions, such as"),
        (
            lambda: SkipGram(data, graph=data),
            "graph is a DistData; expected an object of CSCGraph, such as data.graph.",
        ),
        (lambda: model.fit(DistLoader(data, [2], 5), 1), "loader is a DistLoader; expected an object of WalkLoader"),
        (lambda: model.fit(loader, 2.0), "epochs is 2.0; expected an integer >= 0"),
        (lambda: SkipGramCheckpointer(loader, model, tmp_path), "model is a WalkLoader; expected an object of SkipG"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_table_that_memory_cannot_hold_is_refused(drawn, ctx):
    with pytest.raises(ValueError, match=r"take .* GB on rank 0, but .* GB of memory are free; use more machines"):
        make(ctx, drawn.path, dim=2**40)


def test_the_ranks_of_a_machine_share_its_memory(drawn, ctx, monkeypatch):
    _, _, model = make(ctx, drawn.path)
    needed = sum(table.nbytes for table in model.tables())
    monkeypatch.setattr(skipgram, "available_bytes", lambda: needed + 1)
    make(ctx, drawn.path)
    ctx.local_world_size = 2
    with pytest.raises(ValueError, match=r"are free, 0\.0 GB for each of the 2 ranks of this machine; use more mach"):
        make(ctx, drawn.path)
    monkeypatch.setattr(skipgram, "available_bytes", lambda: 2 * needed)
    make(ctx, drawn.path)


def noting(ctx, path, log):
    """Write down when this rank measures what is free, and when it takes memory."""
    random_rows = skipgram.ops.random_rows

    def note(text):
        with log.open("a") as file:
            file.write(f"{text}\n")

    def available():
        time.sleep(0.3 * ctx.rank)  # long enough for another rank to go ahead
        note("measures")
        return 10**9

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skipgram, "available_bytes", available)
        patch.setattr(
            skipgram.ops, "random_rows", lambda *args, **options: note("takes") or random_rows(*args, **options)
        )
        make(ctx, path)


def test_no_rank_takes_memory_before_all_have_measured_what_is_free(drawn, tmp_path):
    """Else what one has taken counts twice for the others."""
    run_distributed(2, noting, args=(drawn.path, tmp_path / "log"))
    assert (tmp_path / "log").read_text().split() == ["measures"] * 2 + ["takes"] * 2


def test_a_loss_that_is_no_number_ends_training(drawn, ctx):
    _, loader, model = make(ctx, drawn.path)
    model.table[5] = torch.nan
    with pytest.raises(NonFiniteError, match="the loss of epoch 0 is nan; .* smaller lr than 0.05"):
        model.fit(loader, 1)
    assert ctx.comm.step == -1


def test_training_ends_where_the_callback_says(drawn, ctx):
    _, loader, model = make(ctx, drawn.path)
    assert [one.epoch for one in model.fit(loader, 5, lambda stats: np.bool_(stats.epoch == 1))] == [0, 1]
    assert [one.epoch for one in model.fit(loader, 3)] == [2]


def test_batches_without_pairs(drawn, ctx):
    _, _, model = make(ctx, drawn.path)
    before = model.table.clone()
    for walks in (torch.full((2, 6), -1), torch.empty(0, 6, dtype=torch.int64)):
        walks[:, :1] = 3
        sizes = (len(walks), 0, 0, 0)
        pairs, losses = model.step(WalkBatch(walks, torch.arange(len(walks)), sizes, 0, 0, len(walks)))
        assert pairs == 0 and losses == 0.0
    assert torch.equal(model.table, before)


def test_embeddings_find_communities(tmp_path, ctx):
    """Two cliques of 12 joined by one edge: nodes of one are nearer to each other than to the other's."""
    size = 12
    own = [(i, j) for i in range(size) for j in range(size) if i != j]
    edges = [*own, *((i + size, j + size) for i, j in own), (0, size), (size, 0)]
    raw = RawGraph(name="cliques", num_nodes=2 * size, undirected=True, edge_index=np.array(edges).T)
    build_partition(raw, PartitionOptions(num_parts=2, method="random", seed=1), tmp_path / "parts")
    data = DistData.load(tmp_path / "parts", ctx)
    model = SkipGram(data, SkipGramOptions(dim=8, window=3, negatives=3, lr=0.05))
    stats = model.fit(WalkLoader(data, transit.Node2Vec(8), 10, 24), 5)
    assert stats[-1].loss < stats[0].loss
    rows = torch.nn.functional.normalize(model.embeddings()[data.graph.orig_ids.argsort()], dim=1)
    near = rows @ rows.T
    assert near[:size, :size].mean() > near[:size, size:].mean() + 0.5

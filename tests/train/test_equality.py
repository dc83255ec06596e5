"""P ranks equal one process: the same parameters after 3 steps in float64, dropout on, as one process computes on the
union of the ranks' batches, in original ids, on the graph that was never partitioned."""

import math

import pytest
import torch

from fastsample_dist import DistContext, DistData, DistLoader, PinSAGESampler
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.sampling.neighbor import NeighborSampler
from fastsample_dist.testing import mpi_missing_reason, run_distributed, run_mpi
from fastsample_dist.train.metrics import seed_loss
from fastsample_dist.train.trainer import Trainer
from tests.train.task import make_model, make_task

FANOUTS, RNG_SEED, STEPS, LR = (4, 3), 2**40 + 1, 3, 0.01
DEEP = {"fanouts": (3, 3, 2), "residual": True, "norm": "layer"}
WALKS = {"num_walks": 6, "walk_length": 3, "num_neighbors": 4, "num_layers": 2, "rng_seed": RNG_SEED}
needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=f"no MPI here: {mpi_missing_reason()}")


class Recorder:
    """A loader that keeps the original ids of every step's seeds."""

    def __init__(self, loader):
        self.loader, self.epoch, self.seeds = loader, loader.epoch, []

    def __iter__(self):
        for batch in self.loader:
            self.seeds.append(self.loader.data.orig_ids(batch.seeds))
            yield batch


def sampling_of(graph, kind, fanouts):
    """The sampler of a model: PinSAGE has walks in place of fanouts."""
    if kind == "pinsage":
        return PinSAGESampler(graph, **WALKS)
    return NeighborSampler(graph, fanouts, rng_seed=RNG_SEED)


def train_rank(ctx, path, kind, scheme, last_seeds=5, fanouts=FANOUTS, **options):
    """One epoch of STEPS steps. The last of several ranks runs out of seeds after the first, or has none at all."""
    data = DistData.load(path, ctx)
    if ctx.rank > 0 and ctx.rank == ctx.world_size - 1:
        data._splits["train"] = data.split("train")[:last_seeds]
    batch_size = math.ceil(120 / ctx.world_size / STEPS)
    how = (
        {"sampler": sampling_of(data.graph, kind, ())} if kind == "pinsage" else {"fanouts": fanouts, "scheme": scheme}
    )
    loader = Recorder(DistLoader(data, batch_size=batch_size, rng_seed=RNG_SEED, **how))
    model = make_model(kind, seed=ctx.rank, num_layers=len(fanouts), **options)  # all continue with rank 0's parameters
    ctx.comm.reset_stats()
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=LR), ctx)
    stats = trainer.run_epoch(loader)
    return [p.detach() for p in model.parameters()], loader.seeds, stats, ctx.comm.stats()


def train_one_process(task, kind, seeds_of_ranks, fanouts=FANOUTS, **options):
    """The oracle: (parameters, mean loss over all seeds)."""
    model = make_model(kind, seed=0, num_layers=len(fanouts), **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    sampler, losses = sampling_of(task.graph, kind, fanouts), []
    for step, parts in enumerate(zip(*seeds_of_ranks, strict=True)):
        seeds = torch.cat(parts)
        batch = sampler.sample(seeds, step)
        loss = seed_loss(model(batch.mfgs, task.features[batch.input_nodes.long()]), task.labels[seeds], seeds.numel())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((float(loss.detach()), seeds.numel()))
    mean = sum(loss * count for loss, count in losses) / sum(count for _, count in losses)
    return [p.detach() for p in model.parameters()], mean


def assert_equal_to_one_process(task, kind, results, **options):
    expected, mean_loss = train_one_process(task, kind, [seeds for _, seeds, _, _ in results], **options)
    for parameters, seeds, stats, _ in results:
        assert len(seeds) == stats.steps == STEPS
        assert abs(stats.loss - mean_loss) < 1e-12
        torch.testing.assert_close(parameters, expected, rtol=0, atol=1e-9)
        assert all(map(torch.equal, parameters, results[0][0]))  # ranks agree to the last bit


@pytest.fixture(scope="module")
def torch_run(tmp_path_factory):
    """(task, results by rank) of a run under torch.distributed; each run is made once."""

    def run(world_size, kind, scheme):
        key = (world_size, kind, scheme)
        if key not in made:
            task = make_task(tmp_path_factory.mktemp("task"), world_size)
            made[key] = task, run_distributed(world_size, train_rank, args=(task.path, kind, scheme))
        return made[key]

    made = {}
    return run


@pytest.mark.parametrize(
    ("world_size", "kind", "scheme"),
    [
        (2, "sage", "hybrid"),
        (3, "gat", "hybrid"),
        (2, "pinsage", "hybrid"),
        pytest.param(2, "gcn", "vanilla", marks=pytest.mark.grid),
        (4, "sage", "vanilla"),
    ],
)
def test_torch_ranks_equal_one_process(torch_run, world_size, kind, scheme):
    task, results = torch_run(world_size, kind, scheme)
    assert_equal_to_one_process(task, kind, results)


@pytest.mark.parametrize("scheme", ["hybrid", "vanilla"])
def test_a_rank_without_train_nodes_changes_nothing(tmp_path, scheme):
    task = make_task(tmp_path, 2)
    results = run_distributed(2, train_rank, args=(task.path, "sage", scheme, 0))
    assert all(seeds.numel() == 0 for seeds in results[1][1])
    assert_equal_to_one_process(task, "sage", results)


def train_deep_rank(ctx, path):
    return train_rank(ctx, path, "sage", "hybrid", **DEEP)


def test_ranks_with_norm_and_residual_equal_one_process(tmp_path):
    """The middle layer keeps its width, so it has a residual; dropout is on."""
    task = make_task(tmp_path, 2)
    assert_equal_to_one_process(task, "sage", run_distributed(2, train_deep_rank, args=(task.path,)), **DEEP)


@needs_mpi
def test_mpi_ranks_equal_one_process(tmp_path):
    task = make_task(tmp_path, 2)
    results = run_mpi(2, train_rank, args=(task.path, "sage", "hybrid"))
    assert_equal_to_one_process(task, "sage", results)
    assert results[0][3]["gradients"]["calls"] == STEPS  # one flat sum a step


def test_gradients_are_counted_to_the_byte(torch_run):
    _, results = torch_run(2, "sage", "hybrid")
    for parameters, _, _, counts in results:
        gradient_bytes = sum(parameter.nbytes for parameter in parameters)
        assert counts["gradients"]["bytes_sent"] == counts["gradients"]["bytes_received"] == STEPS * gradient_bytes
        moved = counts["parameters"]["bytes_sent"] + counts["parameters"]["bytes_received"]
        assert gradient_bytes < moved < gradient_bytes + 100  # once, and the sizes that are compared first


def test_one_process_moves_no_gradients(tmp_path):
    task = make_task(tmp_path, 1)
    with DistContext(LocalCommunicator()) as ctx:
        _, _, stats, counts = train_rank(ctx, task.path, "sage", "hybrid")
    assert stats.gradients_s == 0 and not {"gradients", "parameters"} & set(counts)

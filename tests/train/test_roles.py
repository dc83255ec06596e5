"""Training with roles: whoever samples and trains, the parameters are those of one process with the same groups."""

from itertools import pairwise

import pytest
import torch

from fastsample_dist import DistContext, DistData, DistLoader, Roles
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.pipeline import factored
from fastsample_dist.testing import mpi_missing_reason, run_distributed, run_mpi
from fastsample_dist.train.trainer import Trainer
from tests.train.group_oracle import plan_of, train_groups
from tests.train.task import make_model, make_task

PARTS, BATCH, FANOUTS, EPOCHS = 4, 8, (4, 3), 2
OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}
CASES = {"1": ("gcn", "momentum", 1), "0": ("sage", "adam", 0), "3": ("gat", "adam", 3)}  # by staleness
SPLITS = {2: {"1+1": ("profit", "always", "never")}, 4: {"1+3": ("never",), "2+2": ("always",), "3+1": ("profit",)}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), PARTS, dtype="float32").path


def one_process(path, case, meetings=()):
    """Parameters and losses of the oracle, whose segments end at epochs and at `meetings`, steps counted from 1."""
    kind, optimizer, staleness = CASES[case]
    with DistContext(LocalCommunicator()) as ctx:
        loader, model = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH), make_model(kind).float()
        steps = plan_of(loader, 0)[0].num_steps
        ends = sorted({*meetings, *(epoch * steps for epoch in range(EPOCHS + 1))})
        segments = [(first // steps, first % steps, first % steps + end - first) for first, end in pairwise(ends)]
        losses = train_groups(model, OPTIMIZERS[optimizer](model.parameters()), loader, segments, staleness)
        return [parameter.detach() for parameter in model.parameters()], losses


@pytest.fixture(scope="module")
def expected(path):
    return {case: one_process(path, case) for case in CASES}


def make_run(ctx, path, case, roles, **options):
    """(trainer, loader)"""
    kind, optimizer, staleness = CASES[case]
    model = make_model(kind).float()
    has_roles = {} if roles == "none" else {"staleness": staleness}
    loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles=roles, **has_roles)
    return Trainer(model, OPTIMIZERS[optimizer](model.parameters()), ctx, **options), loader


def parameters_of(trainer):
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def all_splits(ctx, path):
    """Parameters, losses and tallies of all splits and cases, on one rank."""
    found = {}
    for split, modes in SPLITS[ctx.world_size].items():
        for mode in modes:
            factored.switching_of = lambda roles, mode=mode: mode
            for case in CASES:
                trainer, loader = make_run(ctx, path, case, split)
                losses, tallies = [], []
                for _ in range(EPOCHS):
                    stats, tally = trainer.run_epoch(loader), loader.executor.tally
                    losses.append(stats.loss)
                    tallies.append((tally.sampled, tally.trained, tally.stood_by, stats.steps))
                found[split, mode, case] = parameters_of(trainer), losses, tallies
    return found


needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=f"no MPI here: {mpi_missing_reason()}")
UNDER_MPI = pytest.param(run_mpi, 2, marks=[needs_mpi, pytest.mark.grid])


@pytest.mark.parametrize(("start", "world_size"), [(run_distributed, 2), (run_distributed, 4), UNDER_MPI])
def test_parameters_are_those_of_one_process_bit_for_bit(path, expected, start, world_size):
    ranks = start(world_size, all_splits, args=(path,))
    for split, mode, case in ranks[0]:
        found, (parameters, losses) = [rank[split, mode, case] for rank in ranks], expected[case]
        for rank in found:
            assert all(map(torch.equal, rank[0], parameters)), (split, mode, case)
            assert rank[1] == losses
        trainers, switched = Roles.parse(split).trainers, 0
        for tallies in zip(*(rank[2] for rank in found), strict=True):
            sampled, trained, stood_by, steps = zip(*tallies, strict=True)
            assert sum(sampled[trainers:]) == sum(trained) == steps[0] * PARTS and len(set(steps)) == 1
            assert stood_by == (0,) * trainers + trained[trainers:]
            switched += sum(stood_by)
        assert mode == "profit" or (switched > 0) == (mode == "always")


def plain_ranks(ctx, path):
    """In double precision: parameters with and without roles, and after one epoch of each."""
    found = []
    for kinds in (("none", "none"), ("2+2", "2+2"), ("2+2", "none"), ("none", "2+2")):
        model = make_model("sage")
        trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.02), ctx)
        for epoch, roles in enumerate(kinds):
            loader = DistLoader(DistData.load(path, ctx), FANOUTS, BATCH, roles=roles, feature_dtype=torch.float64)
            loader.set_epoch(epoch)
            loss = trainer.run_epoch(loader).loss
        found.append((parameters_of(trainer), loss))
    return found


def test_without_delay_it_is_plain_training_to_the_order_of_additions(path):
    """An epoch without roles after one with them also needs rank 0's optimizer on all ranks."""
    for plain, *others in run_distributed(4, plain_ranks, args=(path,)):
        for parameters, loss in others:
            for found, known in zip(parameters, plain[0], strict=True):
                torch.testing.assert_close(found, known, rtol=1e-9, atol=1e-12)
            assert loss == pytest.approx(plain[1], rel=1e-12)

"""Training with roles on several machines: the parameters are those of one process with the same groups.

Machines are made up: runs of ranks stand for those of one machine each.
"""

import os
import re
import signal
import time
from itertools import combinations

import pytest
import torch

from fastsample_dist import DistData, DistLoader, FeatureCache, NeighborSampler, Roles
from fastsample_dist.comm.machine import OTHER_MACHINE, Machines
from fastsample_dist.pipeline import factored
from fastsample_dist.testing import RankError, mpi_missing_reason, run_distributed, run_mpi
from fastsample_dist.train.finite import FiniteGuard
from fastsample_dist.train.trainer import Trainer
from tests.pipeline.test_factored import merged, of_plain_ranks, of_tasks
from tests.shared_memory import named_segments
from tests.train.task import make_model, make_task
from tests.train.test_roles import BATCH, CASES, EPOCHS, FANOUTS, PARTS, make_run, one_process, parameters_of
from tests.train.test_roles_ending import train
from tests.waiting import ENOUGH_S, NEVER_S


def machines_of(num_ranks, size):
    """Ranks 0 .. size - 1 are on the first machine, and so on."""
    pairs = [pair for pair in combinations(range(num_ranks), 2) if pair[0] // size != pair[1] // size]
    return Machines(num_ranks, dict.fromkeys(pairs, OTHER_MACHINE))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), PARTS, dtype="float32").path


RUNS = [("profit", case) for case in CASES] + [("always", "1"), ("never", "3")]
needs_mpi = pytest.mark.skipif(mpi_missing_reason() is not None, reason=f"no MPI here: {mpi_missing_reason()}")


def all_runs(ctx, path, runs=RUNS):
    """By switching and case: parameters, losses and tallies, on one rank."""
    ctx._machines, found = machines_of(4, 2), {}
    for mode, case in runs:
        factored.switching_of = lambda roles, mode=mode: mode
        trainer, loader = make_run(ctx, path, case, "1+1")
        losses, tallies = [], []
        for _ in range(EPOCHS):
            stats, tally = trainer.run_epoch(loader), loader.executor.tally
            losses.append(stats.loss)
            tallies.append((tally.sampled, tally.trained, tally.stood_by, stats.steps))
        found[mode, case] = parameters_of(trainer), losses, tallies
        loader.close()
    return found


@pytest.fixture(scope="module")
def runs(path):
    return run_distributed(4, all_runs, args=(path,), timeout_s=ENOUGH_S)


@pytest.fixture(scope="module")
def expected(path):
    return {case: one_process(path, case) for case in CASES}


@pytest.mark.parametrize(("mode", "case"), RUNS)
def test_parameters_are_those_of_one_process_bit_for_bit(expected, runs, mode, case):
    parameters, losses = expected[case]
    for rank in runs:
        assert all(map(torch.equal, rank[mode, case][0], parameters)) and rank[mode, case][1] == losses


def test_every_machine_does_its_own_tasks(runs):
    for mode, case in RUNS:
        for tallies in zip(*(rank[mode, case][2] for rank in runs), strict=True):
            sampled, trained, stood_by, steps = zip(*tallies, strict=True)
            own_tasks = steps[0] * PARTS // 2
            assert sampled == (0, own_tasks, 0, own_tasks) and stood_by == (0, trained[1], 0, trained[3])
            assert trained[0] + trained[1] == trained[2] + trained[3] == own_tasks
            assert mode != "always" or sum(stood_by) > 0
            assert mode != "never" or sum(stood_by) == 0


@needs_mpi
@pytest.mark.grid
def test_mpi_parameters_are_those_of_one_process(path, expected):
    run = ("profit", "1")
    for rank in run_mpi(4, all_runs, args=(path, [run]), timeout_s=ENOUGH_S):
        assert all(map(torch.equal, rank[run][0], expected["1"][0])) and rank[run][1] == expected["1"][1]


def two_samplers(ctx, path):
    ctx._machines = machines_of(6, 3)
    trainer, loader = make_run(ctx, path, "1", Roles(2, 1, queue_bytes=20_000))
    return [trainer.run_epoch(loader).loss for _ in range(EPOCHS)], parameters_of(trainer), loader.executor.tally


def test_several_samplers_with_little_room_wait_for_nothing_that_does_not_come(tmp_path):
    """Room for a few of the tasks of a group."""
    path = make_task(tmp_path, 6, dtype="float32").path
    parameters, losses = one_process(path, "1")
    found = run_distributed(6, two_samplers, args=(path,), timeout_s=ENOUGH_S)
    for rank in found:
        assert all(map(torch.equal, rank[1], parameters)) and rank[0] == losses
    assert all(found[sampler][2].sampled > 0 for sampler in (1, 2, 4, 5))


# ---- batches, rows and counts; stops and positions ----


def batches(ctx, path):
    """Of plain ranks and of tasks, with and without a cache; where rows came from, and what was counted."""
    ctx._machines, data, found = machines_of(4, 2), DistData.load(path, ctx), {}
    plain = DistLoader(data, FANOUTS, BATCH, rails=False)
    ctx.comm.reset_stats()
    found["plain"] = of_plain_ranks(plain, ctx.rank), ctx.comm.stats(), plain.rows
    for name, cache in (("none", None), ("cache", FeatureCache(capacity_bytes=2000, policy="degree"))):
        loader = DistLoader(data, FANOUTS, BATCH, roles="1+1", cache=cache)
        ctx.comm.reset_stats()
        found[name] = of_tasks(loader, 0)[0], ctx.comm.stats(), loader.rows
        report = loader.cache_report(0)
        found[name, "report"] = report.cached, loader.rails, loader.exchange
        loader.close()
    found["position"] = plain.position(0, 2), DistLoader(data, FANOUTS, BATCH, roles="1+1").position(0, 2)
    return found


@pytest.fixture(scope="module")
def made(path):
    return run_distributed(4, batches, args=(path,), timeout_s=ENOUGH_S)


@pytest.mark.parametrize("cache", ["none", "cache"])
def test_tasks_have_the_batches_of_plain_ranks(made, cache):
    assert merged([rank[cache][0] for rank in made]) == merged([rank["plain"][0] for rank in made])
    for rank in made:
        cached, *kinds = rank[cache, "report"]
        assert (cached > 0) == (cache == "cache") or not rank[cache][0]
        assert kinds == [False, "paired"]


def test_rows_cross_once_and_are_counted_by_the_samplers(made):
    """A task lacks the rows of the other machine, as a plain rank does, less what the cache holds."""
    plain, without, cached = ([rank[name] for rank in made] for name in ("plain", "none", "cache"))
    lacked = sum(rows.exchanged for *_, rows in plain)
    assert sum(rows.exchanged for *_, rows in without) == lacked
    assert sum(rows.exchanged + rows.cached for *_, rows in cached) == lacked
    for of_tasks_ in (without, cached):
        exchanged = sum(rows.exchanged for *_, rows in of_tasks_)
        bytes_of = [stats.get("feature_rows", {"bytes_received": 0})["bytes_received"] for _, stats, _ in of_tasks_]
        row_bytes = sum(stats["feature_rows"]["bytes_received"] for _, stats, _ in plain) // lacked
        assert bytes_of[0] == bytes_of[2] == 0 and sum(bytes_of) == exchanged * row_bytes


def test_a_position_is_that_of_plain_ranks(made):
    for rank in made:
        one, other = rank["position"]
        assert (one.epoch, one.step, one.of) == (other.epoch, other.step, other.of)
        assert torch.equal(one.remaining, other.remaining)
    assert made[0]["position"][0].remaining.numel() > 0


def stop_and_resume(ctx, path, directory):
    """A run that a signal to a sampler of the second machine stops, resumed; and one that was not stopped."""
    ctx._machines = machines_of(4, 2)
    found = {"whole": train(ctx, path, directory / "whole", "1+1", staleness=1)}
    for roles in ("1+1", "none"):
        first = train(ctx, path, directory / roles, "1+1", staleness=1, stop_after=3)
        staleness = 1 if roles != "none" else 0
        found[roles] = first, train(ctx, path, directory / roles, roles, staleness=staleness)
    first = train(ctx, path, directory / "one", "1+1", staleness=1, stop_after=3)
    ctx._machines = Machines(4)
    found["one machine"] = first, train(ctx, path, directory / "one", "2+2", staleness=1)
    return found


def test_a_stop_ends_all_machines_after_the_same_group_and_others_take_over(tmp_path):
    path = make_task(tmp_path, PARTS, dtype="float64").path
    results = run_distributed(4, stop_and_resume, ENOUGH_S, (path, tmp_path))
    for rank, found in enumerate(results):
        steps = found["whole"][2]
        assert steps == (list(range(len(steps))) if rank in (0, 2) else [])
        first, second = found["1+1"]
        assert first[3] and all(map(torch.equal, second[0], found["whole"][0]))
        assert (first[2] + second[2] == steps and 3 < len(first[2]) < len(steps)) or not steps
        first, second = found["one machine"]
        assert first[3] and all(map(torch.equal, second[0], found["whole"][0]))
        assert found["none"][0][3] and found["none"][1][1][-1][:2] == found["whole"][1][-1][:2]


# ---- failures ----


def outcome(ctx, path, sampler, on_train):
    """What `run_epoch` raises on this rank, in one line; the loader is used up."""
    data, model = DistData.load(path, ctx), make_model("sage").float()
    loader = DistLoader(data, batch_size=BATCH, roles="1+1", sampler=sampler(data.graph), transform=on_train)
    try:
        Trainer(model, torch.optim.Adam(model.parameters()), ctx).run_epoch(loader)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


class AtStep:
    """A sampler that calls something before it samples step 2."""

    def __init__(self, graph, call):
        self.sampler, self.call = NeighborSampler(graph, FANOUTS), call

    def sample(self, seeds, step=0):
        if step == 2:
            self.call()
        return self.sampler.sample(seeds, step)


LATE_S = 0.5


def no_disk():
    raise OSError("no disk")


def find_out_late(are_finite):
    """A guard that takes long to find out that gradients are not finite: the other machine knows first."""

    def slow(self, gradients):
        finite = are_finite(self, gradients)
        time.sleep(0 if finite else LATE_S)
        return finite

    return slow


def fail_in_turn(ctx, path):
    """By what fails on rank 3, which samples, or rank 2, which trains, what every rank raises."""
    ctx._machines = machines_of(4, 2)

    def failing(batch):
        if ctx.rank == 2 and batch.step == 2:
            raise ArithmeticError("no number")
        return batch

    def spoiled(batch):
        if batch.step == 1 and ctx.rank == 2:
            batch.features[0] = torch.nan
        return batch

    call = no_disk if ctx.rank == 3 else lambda: None
    factored.switching_of = lambda roles: factored.NEVER  # so that rank 2 gets the tasks
    if ctx.rank == 0:
        FiniteGuard.are_finite = find_out_late(FiniteGuard.are_finite)
    return {
        "sampler": outcome(ctx, path, lambda graph: AtStep(graph, call), None),
        "trainer": outcome(ctx, path, lambda graph: NeighborSampler(graph, FANOUTS), failing),
        "not finite": outcome(ctx, path, lambda graph: NeighborSampler(graph, FANOUTS), spoiled),
        "afterwards": outcome(ctx, path, lambda graph: NeighborSampler(graph, FANOUTS), None),
    }


@pytest.fixture(scope="module")
def failures(path):
    return run_distributed(4, fail_in_turn, args=(path,), timeout_s=ENOUGH_S, comm_timeout_s=NEVER_S)


def test_a_failure_is_named_on_all_machines(failures):
    task = r"task \(epoch 0, virtual rank [23], step 2\)"
    for rank, found in enumerate(failures):
        line = rf"RolesError: rank 3 \(sampler\) failed at {task}: OSError: no disk"
        assert re.fullmatch("OSError: no disk" if rank == 3 else line, found["sampler"]), found
        own = r"RuntimeError: rank 2, step 2: transform raised ArithmeticError: no number"
        line = rf"RolesError: rank 2 \(trainer\) failed at {task}: {own}"
        assert re.fullmatch(own if rank == 2 else line, found["trainer"]), found
        assert found["afterwards"] == "done"


def test_a_loss_that_is_not_finite_ends_all_machines_with_one_message(failures):
    [line] = {found["not finite"] for found in failures}
    assert re.match(r"NonFiniteError: step 1: the loss is nan on virtual ranks? [23, ]+; the features of node ", line)


def killed(ctx, path, folder, who):
    """Rank `who` kills itself at step 2; the others write their error."""
    ctx._machines = machines_of(4, 2)

    def kill_self(batch=None):
        if ctx.rank == who and (batch is None or batch.step == 2):
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    factored.switching_of = lambda roles: factored.NEVER
    said = outcome(ctx, path, lambda graph: AtStep(graph, kill_self), None if who == 3 else kill_self)
    (folder / f"{ctx.rank}").write_text(said)
    raise RuntimeError(said)


@pytest.mark.parametrize(("who", "role", "was"), [(3, "sampler", "made"), (2, "trainer", "trained")])
def test_a_rank_that_is_killed_is_named_on_both_machines(path, tmp_path, who, role, was):
    with pytest.raises(RankError, match=f"rank {who} of 4 ended with exit code -9"):
        run_distributed(4, killed, ENOUGH_S, (path, tmp_path, who), comm_timeout_s=NEVER_S)
    task = rf"rank {who} \({role}\) ended while it {was} task \(epoch 0, virtual rank [23], step 2\)"
    for other in sorted({0, 1, 2, 3} - {who}):
        said = (tmp_path / str(other)).read_text()  # the first line that is known, of who sees it end or misses it
        assert re.search(rf"{task}|rank {who} (has ended|was last seen|did not come)", said), (other, said)


@needs_mpi
@pytest.mark.grid
def test_mpi_a_sampler_that_is_killed_is_named_on_both_machines(path, tmp_path):
    with pytest.raises(RankError):
        run_mpi(4, killed, ENOUGH_S, (path, tmp_path, 3), comm_timeout_s=NEVER_S)
    for file in tmp_path.iterdir():  # mpirun may end the others before they have written
        assert re.search(r"rank 3 (\(sampler\) ended while it made task|did not come)", file.read_text())
    assert named_segments() == []


def refusals(ctx, path):
    """What ranks refuse that are not as many on each machine."""
    data, found = DistData.load(path, ctx), []
    for size in (3, 4):
        ctx._machines = machines_of(4, size)
        with pytest.raises(ValueError) as refused:
            DistLoader(data, FANOUTS, BATCH, roles="1+1")
        found.append(str(refused.value))
    return found


def test_ranks_that_are_not_as_many_on_each_machine_are_refused(path):
    ranks = run_distributed(4, refusals, args=(path,), timeout_s=ENOUGH_S)
    assert all(rank == ranks[0] for rank in ranks)
    uneven, one = ranks[0]
    assert uneven.startswith("roles are 1+1 on each machine, but ranks read each other's memory in groups of 1 and 3 (")
    assert one.startswith("roles 1+1 are 2 ranks but world_size is 4; ")


def other_steps(ctx, path):
    """What is said where the machines would meet after other steps, and where samplers would make another epoch."""
    ctx._machines, said = machines_of(4, 2), []
    trainer, loader = make_run(ctx, path, "1", "1+1")
    for epoch, every in ((0, 7 + ctx.rank // 2), (ctx.rank % 2, 7)):
        loader.set_epoch(epoch)
        with pytest.raises(ValueError) as refused:
            trainer.run_epoch(loader, meet_every=[every])
        said.append(str(refused.value))
    return said


def test_ranks_that_would_make_other_steps_or_meet_after_others_are_refused(path):
    ranks = run_distributed(4, other_steps, args=(path,), timeout_s=ENOUGH_S)
    assert all(rank == ranks[0] for rank in ranks)
    meetings, epochs = ranks[0]
    assert "ranks differ in meet_every: (7) on ranks 0, 1; (8) on ranks 2, 3; make the same calls" in meetings
    assert "ranks differ in epoch: 0 on ranks 0, 2; 1 on ranks 1, 3; in first step: 0 on ranks 0, 2; " in epochs

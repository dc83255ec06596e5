"""Ranks with roles when one fails, is interrupted, is killed, or asks to stop."""

import os
import re
import signal
from pathlib import Path

import pytest

from fastsample_dist import DistData, DistLoader, NeighborSampler
from fastsample_dist.pipeline.tasks import RolesError
from fastsample_dist.testing import RankError, run_distributed
from tests.parts import draw_partition
from tests.waiting import ENOUGH_S, NEVER_S

RANKS, BATCH = 3, 9  # 1+2 on three parts


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("drawn"), RANKS).path


class Failing:
    """A sampler of the library that raises at a step."""

    def __init__(self, graph, error):
        self.sampler, self.error = NeighborSampler(graph, [3]), error

    def sample(self, seeds, step=0):
        if step == 1:
            raise self.error
        return self.sampler.sample(seeds, step)


def nothing(*_):
    pass


def outcome(loader, train=nothing, update=nothing):
    """What `run` of a whole epoch raises on this rank."""
    try:
        loader.executor.run(0, 0, len(loader), train, update)
    except BaseException as error:
        return type(error).__name__, str(error)
    return "done", ""


def fail_in_turn(ctx, path):
    """By what fails, what every rank raises; all in one run, each with a loader of its own."""
    data = DistData.load(path, ctx)

    def make(**options):
        options = {"fanouts": [3]} | options
        return DistLoader(data, batch_size=BATCH, roles="1+2", **options)

    def failing(_, batch, version):
        if ctx.rank == 1:
            raise ArithmeticError("no number")

    def not_updating(group):
        raise LookupError(f"group {group}")

    found = {
        "sampler": outcome(make(fanouts=None, sampler=Failing(data.graph, OSError("no disk")))),
        "interrupt": outcome(make(fanouts=None, sampler=Failing(data.graph, KeyboardInterrupt()))),
        "trainer": outcome(make(), train=failing),
        "update": outcome(make(), update=not_updating),
        "transform": outcome(make(transform=lambda batch: None if ctx.rank == 1 else batch)),
    }
    loader = make()
    found["nothing"] = outcome(loader)
    found["afterwards"] = outcome(loader)
    return found


@pytest.fixture(scope="module")
def failures(path):
    return run_distributed(RANKS, fail_in_turn, args=(path,), timeout_s=ENOUGH_S)


TASK = r"task \(epoch 0, virtual rank \d, step \d\)"


@pytest.mark.parametrize(
    ("what", "rank", "own", "line"),
    [
        ("sampler", 2, ("OSError", "no disk"), rf"rank 2 \(sampler\) failed at {TASK}: OSError: no disk"),
        ("interrupt", 2, ("KeyboardInterrupt", ""), r"rank 2 \(sampler\) was interrupted"),
        ("trainer", 1, ("ArithmeticError", "no number"), rf"rank 1 \(trainer\) failed at {TASK}: ArithmeticError: .*"),
        ("update", 0, ("LookupError", "group 0"), r"rank 0 \(trainer\) failed: LookupError: group 0"),
    ],
)
def test_a_rank_that_fails_raises_its_error_and_the_others_say_who_and_where(failures, what, rank, own, line):
    assert failures[rank][what] == own
    for other in set(range(RANKS)) - {rank}:
        kind, message = failures[other][what]
        assert kind == "RolesError" and re.fullmatch(line, message)


def test_a_transform_that_fails_names_rank_and_step(failures):
    kind, message = failures[1]["transform"]
    assert kind == "RuntimeError" and re.fullmatch(r"rank 1, step \d: transform returned None; .*", message)
    for other in (0, 2):
        kind, line = failures[other]["transform"]
        assert kind == "RolesError" and line.startswith("rank 1 (") and message in line


def test_after_a_failure_other_loaders_run_and_one_runs_again(failures):
    assert [(rank["nothing"], rank["afterwards"]) for rank in failures] == [(("done", ""), ("done", ""))] * RANKS


def stop_in_turn(ctx, path):
    """Tasks that were trained before and after a stop, and where the runs ended."""
    data = DistData.load(path, ctx)
    loader = DistLoader(data, [3], BATCH, roles="1+2")
    executor, trained = loader.executor, []
    if ctx.rank == 2:
        executor.request_stop()
    ends = [executor.run(0, 0, len(loader), nothing, nothing)]  # asked for before: no task

    def train(task, batch, version):
        trained.append(task.number)
        if task.number == RANKS:  # the first task of the second group
            executor.request_stop()

    ends.append(executor.run(0, 0, len(loader), train, nothing))
    before, trained = trained, []
    ends.append(
        executor.run(0, ends[-1], len(loader) - ends[-1], lambda task, *_: trained.append(task.number), nothing)
    )
    return ends, before, trained, len(loader)


def test_a_stop_ends_all_ranks_after_the_same_group_and_loses_no_task(path):
    results = run_distributed(RANKS, stop_in_turn, args=(path,), timeout_s=ENOUGH_S)
    [(ends, length)] = {(tuple(ends), length) for ends, _, _, length in results}
    assert ends[0] == 0 and 2 <= ends[1] < length == ends[2]
    before, after = (sorted(number for rank in results for number in rank[which]) for which in (1, 2))
    assert before == list(range(RANKS * ends[1]))
    assert after == list(range(RANKS * ends[1], RANKS * length))


def killed_with_roles(ctx, path, folder, who):
    """Rank `who` kills itself when it has a task of step 1; the others write their error."""
    data = DistData.load(path, ctx)

    class Killed(Failing):
        def sample(self, seeds, step=0):
            if step == 1 and who == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return self.sampler.sample(seeds, step)

    def train(task, batch, version):
        if ctx.rank == who and task.step == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    loader = DistLoader(data, batch_size=BATCH, roles="1+2", sampler=Killed(data.graph, None))
    try:
        while True:  # a trainer may get no task of that step in one epoch
            loader.executor.run(0, 0, len(loader), train, nothing)
    except RolesError as error:
        (folder / f"{ctx.rank}").write_text(str(error))
        raise


@pytest.mark.parametrize(("who", "role", "was"), [(2, "sampler", "made"), (0, "trainer", "trained")])
def test_a_rank_that_is_killed_is_named_with_its_task(path, tmp_path, who, role, was):
    with pytest.raises(RankError, match=f"rank {who} of 3 ended with exit code -9"):
        run_distributed(RANKS, killed_with_roles, ENOUGH_S, (path, tmp_path, who), comm_timeout_s=NEVER_S)
    for other in set(range(RANKS)) - {who}:
        said = Path(tmp_path, str(other)).read_text()
        expected = rf"rank {who} \({role}\) ended while it {was} task \(epoch 0, virtual rank \d, step 1\)"
        assert re.match(expected, said), said

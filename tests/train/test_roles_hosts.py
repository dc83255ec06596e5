"""Training with roles on two hosts with addresses, disks and shared memory of their own, two ranks on each.

No machine is made up here: the ranks prove to each other which of them share one. Results are those of one process.
"""

import os
import re
import signal
from pathlib import Path

import pytest
import torch

from fastsample_dist.bench.epoch.namespaces import missing_reason, namespace_hosts
from fastsample_dist.pipeline import factored
from fastsample_dist.testing import jobs
from fastsample_dist.testing.jobs import RankJob, run_ranks
from tests.train.task import make_task
from tests.train.test_roles import EPOCHS, PARTS, make_run, one_process, parameters_of
from tests.train.test_roles_machines import AtStep, outcome
from tests.waiting import ENOUGH_S, NEVER_S

REASON = missing_reason()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no hosts in namespaces: {REASON}")
KILLED = 3  # the second host's sampler


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"), PARTS, dtype="float32").path


def train(ctx, settings, folder):
    """Losses, parameters, whether this rank sampled, and why it does not read all rows in place."""
    trainer, loader = make_run(ctx, Path(settings["path"]), "1", "1+1")
    losses = [trainer.run_epoch(loader).loss for _ in range(EPOCHS)]
    found = {"sampled": loader.executor.tally.sampled > 0, "reason": loader.sharing.reason}
    return {"losses": losses, "parameters": parameters_of(trainer), **found}


def train_until_killed(ctx, settings, folder):
    """The second host's sampler kills itself at step 2; the others write their error."""

    def kill_self():
        if ctx.rank == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)

    factored.switching_of = lambda roles: factored.NEVER
    said = outcome(ctx, Path(settings["path"]), lambda graph: AtStep(graph, kill_self), None)
    (Path(settings["folder"]) / str(ctx.rank)).write_text(said)
    raise RuntimeError(said)


def run(made, task, **settings):
    """Two ranks on each host; afterwards nothing is left in their shared memory."""
    given = [{"path": str(made.data), **settings}] * 4
    job = RankJob(task=f"{__name__}:{task}", settings=given, deadline_s=ENOUGH_S, timeout_s=NEVER_S)
    try:
        return run_ranks(job, [made.hosts[0]] * 2 + [made.hosts[1]] * 2)
    finally:
        for host in made.hosts:
            assert [*Path(f"/proc/{host.prefix[2]}/root/dev/shm").iterdir()] == []


def test_two_hosts_train_what_one_process_does(forked_ranks, parts, tmp_path):
    parameters, losses = one_process(parts, "1")
    with namespace_hosts(parts, 2, work=tmp_path) as made:
        ranks = run(made, "train")
    for rank in ranks:
        assert rank["losses"] == losses and all(map(torch.equal, rank["parameters"], parameters))
        assert rank["reason"] == "ranks 0, 2: their network namespaces differ (and 3 more pairs of ranks)"
    assert [rank["sampled"] for rank in ranks] == [False, True] * 2


@pytest.mark.grid
def test_a_sampler_of_the_other_host_that_is_killed_is_named(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "PEERS_GRACE_S", ENOUGH_S / 4)
    said = tmp_path / "said"
    said.mkdir()
    with (
        namespace_hosts(parts, 2, work=tmp_path) as made,
        pytest.raises(RuntimeError, match=f"rank {KILLED} of 4 ranks was killed by SIGKILL"),
    ):
        run(made, "train_until_killed", folder=str(said))
    lines = {int(file.name): file.read_text() for file in said.iterdir()}
    assert set(lines) == {0, 1, 2}
    for line in lines.values():  # the first that is known: of who sees it end, or misses it
        as_sampler, as_rank = r"\(sampler\) ended while it made task", "has ended|was last seen|did not come"
        assert re.search(rf"rank {KILLED} ({as_sampler}|{as_rank})", line), line

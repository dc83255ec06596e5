"""One suite of facts (facts_*.py), run over every backend and every small world size, and in sub-groups.

All facts of one (backend, world size) share one start of processes; each is then reported as a test of its own.
Over MPI even the world sizes share a start of four ranks, the first n of which form the group of n: loading torch
in each process costs more than all facts together. The "halves" are two sub-groups of four ranks which check the facts
at the same time, one of them in the opposite order: every collective runs while the other group is in another one.
"""

import traceback
from collections.abc import Iterable

import pytest

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.context import DistContext
from fastsample_dist.testing import mpi_missing_reason, run_distributed, run_mpi
from tests.comm import facts_collectives, facts_counts_and_errors, facts_rows  # noqa: F401 (they register facts)
from tests.comm.oracle import FACTS
from tests.grids import grid

FACT_TIMEOUT_S = 200.0
START_TIMEOUT_S = 300.0
WORLD_SIZES = (1, 2, 3, 4)
STARTS = [("local", 1), *[(backend, size) for backend in ("torch", "mpi") for size in (*WORLD_SIZES, "halves")]]
GATE = [("local", 1), ("torch", 2), ("torch", 3), ("torch", "halves"), ("mpi", 3), ("mpi", "halves")]
HALVES = ([2, 0], [1, 3])


def check_facts(whole: Communicator, names: Iterable[str] = FACTS) -> dict[str, str | None]:
    """Every fact on a fresh communicator; per fact None, or the traceback of a rank where it does not hold."""
    outcomes = {}
    for name in names:
        comm, check = whole.duplicate(), FACTS[name]
        failed = None
        try:
            check(comm)
        except BaseException:
            failed = f"rank {whole.run_rank}:\n{traceback.format_exc()}"
        failures = [text for text in whole.all_gather_object(failed, purpose="outcome") if text is not None]
        outcomes[name] = failures[0] if failures else None
        comm.close()
    return outcomes


def check_context(ctx: DistContext, in_halves: bool) -> dict[str, str | None]:
    return check_halves(ctx.comm) if in_halves else check_facts(ctx.comm)


def check_halves(whole: Communicator) -> dict[str, str | None]:
    """Every fact in both of two sub-groups, which are in different facts at any time."""
    first, second = [whole.split(ranks) for ranks in HALVES]
    own = check_facts(second, reversed(FACTS)) if first is None else check_facts(first)
    by_rank = whole.all_gather_object(own, purpose="outcome")
    (first or second).close()
    return {name: next(filter(None, [outcomes[name] for outcomes in by_rank]), None) for name in FACTS}


def check_mpi_groups(ctx: DistContext) -> dict[int | str, dict[str, str | None]]:
    """The facts on the first 1, 2, 3 and 4 ranks, by group size, and in halves."""
    from mpi4py import MPI

    from fastsample_dist.comm.mpi import MPICommunicator

    outcomes = {}
    for size in WORLD_SIZES:
        group = MPI.COMM_WORLD.Split(0 if ctx.rank < size else MPI.UNDEFINED, ctx.rank)
        if ctx.rank < size:
            comm = MPICommunicator(group, timeout_s=FACT_TIMEOUT_S)
            outcomes[size] = check_facts(comm)
            comm.close()
        ctx.comm.barrier()
    # Some facts end with a failed collective, after which MPI's context would abort: the halves are not of its tree.
    outcomes["halves"] = check_halves(MPICommunicator.over_world(FACT_TIMEOUT_S))
    return outcomes


def start(backend: str, world_size: int | str) -> dict[tuple[str, int | str], dict[str, str | None]]:
    """Outcomes by (backend, world size) of the start that serves this pair."""
    if backend == "local":
        with DistContext.from_env(environ={}) as ctx:
            return {("local", 1): check_facts(ctx.comm)}
    if backend == "mpi":
        by_size = run_mpi(max(WORLD_SIZES), check_mpi_groups, START_TIMEOUT_S)[0]
        return {("mpi", size): outcomes for size, outcomes in by_size.items()}
    in_halves = world_size == "halves"
    number, args = 4 if in_halves else world_size, (in_halves,)
    results = run_distributed(number, check_context, START_TIMEOUT_S, args, comm_timeout_s=FACT_TIMEOUT_S)
    return {("torch", world_size): results[0]}


@pytest.fixture(scope="session")
def outcomes():
    """Looks up the facts' outcomes of a (backend, world size); starts processes when it is first asked for one."""
    known = {}

    def of(backend: str, world_size: int | str) -> dict[str, str | None]:
        if (backend, world_size) not in known:
            try:
                known.update(start(backend, world_size))
            except Exception as error:
                sizes = (*WORLD_SIZES, "halves") if backend == "mpi" else (world_size,)
                failed = dict.fromkeys(FACTS, f"the start failed: {error}")
                known.update({(backend, size): failed for size in sizes})
        return known[backend, world_size]

    return of


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("start_of", grid(STARTS, gate=GATE), ids=[f"{name}-{size}" for name, size in STARTS])
def test_fact(outcomes, start_of, name):
    backend, world_size = start_of
    if backend == "mpi" and mpi_missing_reason() is not None:
        pytest.skip(mpi_missing_reason())
    failure = outcomes(backend, world_size)[name]
    if failure is not None:
        pytest.fail(failure, pytrace=False)

"""Which ranks share a machine, and the memory that they share."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch

from fastsample_dist.comm.machine import OTHER_MACHINE, MachineFacts, Machines, find_machines, read_token
from fastsample_dist.comm.segments import Segment, share_segments
from fastsample_dist.testing import RankError, run_distributed, run_mpi
from fastsample_dist.testing.ranks import mpi_missing_reason
from tests.shared_memory import named_segments


def oracle(world_size, failures):
    """Groups: each rank joins the first group with all of whose members it has passed."""
    groups = []
    for rank in range(world_size):
        for group in groups:
            if all((other, rank) not in failures for other in group):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return tuple(map(tuple, groups))


@pytest.mark.parametrize(
    ("failures", "groups"),
    [
        ([], ((0, 1, 2, 3),)),
        ([(0, 2), (0, 3), (1, 2), (1, 3)], ((0, 1), (2, 3))),
        ([(0, 2)], ((0, 1, 3), (2,))),  # 2 fails with one of the three: it is not with any of them
        ([(0, 1), (1, 2)], ((0, 2, 3), (1,))),
        (list(combinations(range(4), 2)), ((0,), (1,), (2,), (3,))),
    ],
)
def test_ranks_of_a_group_have_all_passed(failures, groups):
    machines = Machines(4, dict.fromkeys(failures, "x"))
    assert machines.groups == groups == oracle(4, failures)
    assert [machines.of(rank) for rank in range(4)] == [next(g for g in groups if rank in g) for rank in range(4)]
    assert machines.shares == (len(groups) < 4) and machines.is_one == (len(groups) == 1)


def test_the_line_names_the_proof_that_is_news_first():
    machines = Machines(3, {(0, 1): OTHER_MACHINE, (0, 2): OTHER_MACHINE, (1, 2): "the token"})
    assert machines.why_apart((0, 5, 7)) == "ranks 5, 7: the token (and 2 more pairs of ranks)"
    assert Machines(2).why_apart((0, 1)) is None and not machines.are_all_apart
    assert Machines(2, {(0, 1): OTHER_MACHINE}).are_all_apart and Machines.apart(3).are_all_apart


def find_as_it_is(ctx):
    return find_machines(ctx.comm)


def test_ranks_of_this_machine_find_each_other():
    assert [found.groups for found in run_distributed(3, find_as_it_is)] == [((0, 1, 2),)] * 3


@pytest.mark.skipif(mpi_missing_reason() is not None, reason=f"no MPI here: {mpi_missing_reason()}")
def test_ranks_under_mpirun_find_each_other_and_share_memory():
    assert [found[0] for found in run_mpi(2, write_and_read, args=((64, 0),))] == [[0.0], [0.0]]


def find_elsewhere(ctx, kind):
    """Rank 2 is elsewhere, as far as the others can see."""

    def read(facts):
        if kind == "token" and 2 in (ctx.rank, facts.descriptor):
            raise PermissionError(13, "Permission denied")
        return "another" if kind == "other token" and ctx.rank == 2 else facts.token

    facts = MachineFacts("boot", "net", os.getpid(), ctx.rank, f"token of {ctx.rank}")
    if ctx.rank == 2:
        facts = replace(facts, **{"boot_id": {"boot_id": "another"}, "network": {"network": "another"}}.get(kind, {}))
        facts = replace(facts, boot_id=None) if kind == "no boot id" else facts
    return find_machines(ctx.comm, facts, read)


LINES = {
    "boot_id": OTHER_MACHINE,
    "network": "their network namespaces differ",
    "no boot id": "a boot id is unknown (/proc/sys/kernel/random/boot_id cannot be read)",
    "token": "the token in the other's memory cannot be read (Permission denied): containers, or other users",
    "other token": "the token in the other's memory is another: process ids of their own",
}


def find_all_ways(ctx):
    return {kind: find_elsewhere(ctx, kind) for kind in LINES}


def test_every_proof_that_fails_keeps_ranks_apart_and_all_ranks_learn_which():
    for found in run_distributed(3, find_all_ways):
        for kind, line in LINES.items():
            assert found[kind].groups == ((0, 1), (2,)), kind
            assert found[kind].why_apart((0, 1, 2)) == f"ranks 0, 2: {line} (and 1 more pairs of ranks)"


def test_a_process_that_is_not_there_has_no_token():
    with pytest.raises(OSError, match="No such file"):
        read_token(MachineFacts("boot", "net", 2**22 + 1, 3, "token"))


ROOT = Path(__file__).resolve().parents[2]
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")  # process ids and a /proc of its own


def container_missing_reason():
    try:
        tried = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return tried.stderr.strip() or None


READ = """
from fastsample_dist.comm.machine import MachineFacts, read_token
try:
    print(read_token(MachineFacts(None, None, {pid}, {descriptor}, "")))
except OSError:
    print("not reached")
"""


def test_the_token_fails_in_a_container():
    if (reason := container_missing_reason()) is not None:
        pytest.skip(f"no namespaces of process ids here: {reason}")
    descriptor, token = os.memfd_create("test"), "t" * 32
    os.write(descriptor, token.encode())
    command = [sys.executable, "-c", READ.format(pid=os.getpid(), descriptor=descriptor)]
    beside, inside = (
        subprocess.run([*prefix, *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        for prefix in ((), CONTAINER)
    )
    os.close(descriptor)
    assert beside == token and inside != token


def write_and_read(ctx, sizes):
    """Rank r writes r + 1 into every segment, at place r; what every rank then sees of each."""
    segments = share_segments(ctx, ctx.rank, ctx.machines(), sizes[ctx.rank])
    for segment in segments.values():
        segment.tensor(torch.float32, (4,))[ctx.rank] = ctx.rank + 1
    ctx.comm.barrier(purpose="test")
    seen = {rank: segment.tensor(torch.float32, (4,)).tolist() for rank, segment in segments.items()}
    return [[float(len(named_segments()))], seen]


def test_ranks_see_each_others_segments_and_none_has_a_name():
    for names, seen in run_distributed(3, write_and_read, args=((64, 0, 16),)):
        assert names == [0.0]
        assert seen == {0: [1.0, 2.0, 3.0, 0.0], 2: [1.0, 2.0, 3.0, 0.0]}


def ask_for_too_much(ctx):
    share_segments(ctx, ctx.rank, ctx.machines(), (1 << 50) if ctx.rank else 0)


def test_memory_that_cannot_be_had_is_refused_on_all_ranks():
    with pytest.raises(RankError, match=r"ValueError: 1125.9TB of memory are to be shared by the ranks of "):
        run_distributed(2, ask_for_too_much)


def test_a_segment_keeps_its_size_and_refuses_what_does_not_fit():
    descriptor = os.memfd_create("test")
    os.posix_fallocate(descriptor, 0, 100)
    segment = Segment(descriptor, 100)
    os.close(descriptor)
    with pytest.raises(ValueError, match=r"13 values of torch.int64 from byte 0 do not fit into a segment of 100"):
        segment.tensor(torch.int64, (13,))
    assert segment.tensor(torch.int64, (2, 0)).shape == (2, 0)
    kept = segment.tensor(torch.int32, (5, 5))
    del segment
    assert int(kept.sum()) == 0  # the memory lives as long as the tensor

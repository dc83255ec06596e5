"""The transport of other ranks' rows: what is agreed on, and that it changes no batch."""

import os
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fastsample_dist import DistData, DistLoader
from fastsample_dist.comm.machine import Machines
from fastsample_dist.comm.segments import share_segments
from fastsample_dist.features.neighbours import map_neighbour
from fastsample_dist.features.tally import FetchTally
from fastsample_dist.graph.storage import features_file
from fastsample_dist.pipeline.transport import choose_transport
from fastsample_dist.testing import RankError, run_distributed
from tests.grids import grid
from tests.parts import draw_partition
from tests.shared_memory import named_segments

CPU = torch.device("cpu")
PAYLOAD = {"sample_ids", "sample_reply", "feature_ids", "feature_rows"}
BROKEN = "the token was made to fail"


def machines_of(*groups):
    """Machines in which only ranks of a group have passed."""
    world_size = sum(map(len, groups))
    apart = Machines.apart(world_size).failures
    together = {(a, b) for group in groups for a in group for b in group}
    return Machines(world_size, {pair: BROKEN for pair in apart if pair not in together})


def batches_of(data, transport, **options):
    """(transport, facts of an epoch's batches, payload purposes with their calls, per step its rows)"""
    comm = data.ctx.comm
    loader = DistLoader(data, [3, 2, 2], 13, transport=transport, exchange="paired", rails=False, **options)
    comm.reset_stats()
    found, rows, before = [], [], FetchTally()
    for batch in loader:
        edges = [(mfg.indptr, mfg.indices, mfg.edge_ids) for mfg in batch.mfgs]
        found.append((batch.step, batch.input_nodes, edges, batch.features))
        rows.append(loader.rows.since(before))
        before = replace(loader.rows)
        assert rows[-1].inputs == batch.input_nodes.numel()
    calls = {purpose: stats["calls"] for purpose, stats in comm.stats().items() if purpose in PAYLOAD}
    return loader.transport, found, calls, rows


def same(one, other):
    """Whether two values are equal, tensors bit for bit."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def run_on_machines(ctx, path, groups, dtype):
    """By scheme: both transports' calls and rows; what differs between them is asserted here."""
    data, found = DistData.load(path, ctx), {}
    ctx._machines = machines_of(*groups)
    for scheme in ("hybrid", "vanilla"):
        options = {"scheme": scheme, "feature_dtype": dtype, "edge_ids": scheme == "vanilla"}
        name, expected, calls, rows = batches_of(data, "exchange", **options)
        other_name, batches, other_calls, other_rows = batches_of(data, "auto", **options)
        assert same(batches, expected)
        found[scheme] = (name, calls, rows), (other_name, other_calls, other_rows), len(batches)
    return found


GROUPS = [
    ((0,),), ((0, 1),), ((0, 1, 2),), ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 3), (2,)), ((0, 1, 2, 3),),
]  # fmt: skip
GATE = [((0, 1),), ((0, 2), (1, 3)), ((0, 1, 3), (2,))]
DTYPES = [("float32", None), ("float16", torch.float32), ("float64", torch.bfloat16), ("int8", torch.float32)]


@pytest.mark.parametrize(("stored", "dtype"), grid(DTYPES, gate=DTYPES[1:2], several=True))
@pytest.mark.parametrize("groups", grid(GROUPS, gate=GATE), ids=str)
def test_ranks_read_in_place_on_their_machine_and_exchange_with_others(tmp_path, groups, stored, dtype):
    """Ranks have two parts each. Rows add up, and what was remote is what is near or still exchanged."""
    world_size = sum(map(len, groups))
    path = draw_partition(tmp_path, 2 * world_size, feature_dtype=stored).path
    for found in run_distributed(world_size, run_on_machines, args=(path, groups, dtype)):
        for scheme, (exchanged, shared, steps) in found.items():
            (_, _, rows), (name, calls, near_rows) = exchanged, shared
            for far, near in zip(rows, near_rows, strict=True):  # step by step
                assert (far.own, far.neighbour, far.exchanged) == (near.own, 0, near.neighbour + near.exchanged)
                assert len(groups) > 1 or near.exchanged == 0
            in_place = len(groups) == 1 and world_size > 1
            hops = 2 * steps if scheme == "vanilla" and not in_place else 0
            sampling = {"sample_ids": hops, "sample_reply": hops} if hops else {}
            rows = {"feature_ids": steps, "feature_rows": steps} if len(groups) > 1 else {}
            assert name == ("shared" if world_size > 1 else "exchange") and calls == {**sampling, **rows}


def choose_without_proof(ctx, path, wanted):
    """(what is chosen or refused, with no pair of ranks that shares a machine)"""
    data = DistData.load(path, ctx)
    ctx._machines = machines_of(*[[rank] for rank in range(ctx.world_size)])
    try:
        found = choose_transport(data, wanted, CPU)
    except ValueError as error:
        return str(error)
    return found.name, found.reason, str(found)


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("halves"), 2)


def test_auto_exchanges_where_a_proof_fails_and_shared_is_refused_alike(halves):
    for name, reason, line in run_distributed(2, choose_without_proof, args=(halves.path, "auto")):
        assert (name, reason) == ("exchange", f"ranks 0, 1: {BROKEN}")
        assert line == f"transport exchange: rows of other ranks are exchanged ({reason})"
    expected = (
        f"transport is 'shared' but no two ranks can read each other's rows in place: ranks 0, 1: {BROKEN}; pass "
        "'exchange' or 'auto'."
    )
    assert run_distributed(2, choose_without_proof, args=(halves.path, "shared")) == [expected] * 2


def choose_in_every_case(ctx, path):
    """By case: (transport, reason)"""
    data = DistData.load(path, ctx)
    seen = {"as it is": choose_transport(data, "auto", CPU)}
    on_nfs = partial(map_neighbour, file_system=lambda _: "nfs4")
    seen["one rank sees a network"] = choose_transport(data, "auto", CPU, on_nfs if ctx.rank else map_neighbour)
    seen["a GPU"] = choose_transport(data, "auto", torch.device("cuda", 0) if ctx.rank else CPU)
    if ctx.rank == 1:
        file = path / features_file(1)
        np.save(file, np.load(file) + 1)
    ctx.comm.barrier(purpose="test")
    seen["a file is altered"] = choose_transport(data, "auto", CPU)
    unverified = DistData.load(path, ctx, verify="never")
    seen["never compared"] = choose_transport(unverified, "auto", CPU)
    return {name: (found.name, found.reason or "") for name, found in seen.items()}


def test_what_is_not_proven_is_not_read_and_all_ranks_say_the_same(tmp_path):
    path = draw_partition(tmp_path, 2).path
    zero, one = run_distributed(2, choose_in_every_case, args=(path,))
    assert zero == one and zero["as it is"] == ("shared", "")
    expected = {
        "one rank sees a network": "is on a network file system (nfs4)",
        "a GPU": "features on cuda:0 are not read by other ranks, nor theirs by it",
        "a file is altered": "is not the file that was compared with the manifest",
        "never compared": "was not compared with the manifest (verify='never')",
    }
    for name, text in expected.items():
        assert zero[name][0] == "exchange" and zero[name][1].startswith("ranks 0, 1: ") and text in zero[name][1]


def die_in_the_middle(ctx, path, folder):
    """Rank 1 is killed while others read its rows; what they are told, and what is then in /dev/shm."""
    loader = DistLoader(DistData.load(path, ctx), [3, 2], 9, transport="shared")
    segments = share_segments(ctx, ctx.rank, ctx.machines(), 1 << 16)
    for batch in loader:
        if (ctx.rank, batch.step) == (1, 1):
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        ctx.comm.barrier(purpose="test")
    except RuntimeError as error:
        seen = int(segments[1].tensor(torch.uint8, (1 << 16,)).sum())  # its memory is still there
        (folder / str(ctx.rank)).write_text(f"{error} {seen} {named_segments()}")
        raise


def test_a_rank_that_is_killed_leaves_nothing_and_the_others_are_told(tmp_path):
    path = draw_partition(tmp_path, 3).path
    with pytest.raises(RankError, match="rank 1 of 3 ended with exit code -9"):
        run_distributed(3, die_in_the_middle, 120.0, (path, tmp_path), comm_timeout_s=60.0)
    for rank in (0, 2):
        text = (tmp_path / str(rank)).read_text()
        assert f"rank {rank}, " in text and ": barrier of test failed" in text and text.endswith(" 0 []")


def test_an_unknown_transport_is_refused(halves, ctx):
    with pytest.raises(ValueError, match=r"transport is 'tcp'; expected 'auto', 'exchange' or 'shared'"):
        DistLoader(DistData.load(halves.path, ctx), [2], 5, transport="tcp")

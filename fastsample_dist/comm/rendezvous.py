"""How the ranks of a torch.distributed run meet, and how a rank that never arrives is named.

Rank 0 serves a TCP store (under torchrun the agent may serve it already). Every rank adds itself under its
number; rank 0 waits until all are there and publishes its verdict: "complete", or which ranks are missing, so
that all that did arrive report the same thing. Without a verdict (rank 0 itself is missing) a rank looks
for itself at its deadline. All waits are short polls, in a thread that ends with the store's connection
(`RunStore`), so that Ctrl-C ends them, and a store that no longer answers.

Ranks of one attempt (restart) of the run meet. torchrun's agents on several hosts count restarts each by itself: a rank
that is started again alone finds the others in the attempt before. So it announces its own, outside that of any, and a
rank that waits in an older one ends: its agent then starts it again, in the same attempt.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from fastsample_dist.comm.deadline import CollectiveError, Deadline
from fastsample_dist.comm.environment import LaunchInfo
from fastsample_dist.comm.handshake import RunStore, address_of, server_of

POLL_S = 0.02
MAX_POLL_S = 0.25
VERDICT_GRACE_S = 2.0  # rank 0 started a little later than the others, so its verdict comes after their deadline
COMPLETE = "complete"
ATTEMPTS = "fastsample_dist/attempts"  # which have begun, of those after the first; each under its number, by a rank

T = TypeVar("T")


def meet(info: LaunchInfo, timeout_s: float) -> RunStore:
    """The store of this run, once every rank has joined it.

    Collective: every rank must call this.

    Args:
      info: this process's launch; a run of one rank needs no address.
      timeout_s: seconds within which all ranks must join.
    Raises:
      RuntimeError: a rank is missing (named), came twice, was started again, or expects another world size; rank 0's
        port is taken; the store does not answer.
    """
    if info.world_size == 1:
        return RunStore(dist.PrefixStore("", dist.HashStore()), info, set())
    deadline = Deadline(timeout_s)
    store = _connect(info, deadline)
    store.store.set_timeout(timedelta(seconds=timeout_s))

    def join(keys: dist.PrefixStore) -> list[int]:
        _join(keys, info)
        return _missing_ranks(keys, info, deadline)

    missing = _ask(store, info, join, deadline)
    if missing:
        raise _not_joined(info, missing, timeout_s)
    return store


def all_gather_once(store: RunStore, info: LaunchInfo, own: T, timeout_s: float) -> list[T]:
    """Every rank's object, by rank, before there is a communicator. Pickled, so only among processes that trust each
    other.

    Collective: every rank must call this, once. Rank 0 returns last, since the store may end with its process.

    Args:
      store: where the ranks have met.
      info: this process's launch.
      own: this rank's object.
      timeout_s: seconds for all ranks to give theirs.
    Raises:
      RuntimeError: a rank did not, or was started again; the store does not answer.
    """
    if info.world_size == 1:
        return [own]
    deadline = Deadline(timeout_s)

    def gather(keys: dist.PrefixStore) -> list[T]:
        keys.set(f"gathered/{info.rank}", pickle.dumps(own))
        gathered = []
        for rank in range(info.world_size):
            if not _await_key(keys, info, f"gathered/{rank}", deadline.remaining_s):
                raise RuntimeError(
                    f"rank {info.rank}: rank {rank} joined but did not report what it has; see its error."
                )
            gathered.append(pickle.loads(keys.get(f"gathered/{rank}")))
        keys.set(f"read/{info.rank}", "1")
        if info.rank == 0:
            _await_informed(keys, info, "read", range(1, info.world_size))
        return gathered

    return _ask(store, info, gather, deadline)


def board_store(info: LaunchInfo, timeout_s: float) -> tuple[RunStore, str]:
    """A connection of its own to the run's store, for the status board, and who serves that store.

    Args:
      info: this process's launch, of a run that has met.
      timeout_s: seconds for the connection.
    """
    return RunStore.connect(info, Deadline(timeout_s), f"fastsample_dist/board-{info.attempt}"), server_of(info)


def _ask(store: RunStore, info: LaunchInfo, call: Callable[[dist.PrefixStore], T], deadline: Deadline) -> T:
    """`RunStore.ask` while joining."""
    try:
        return store.ask(call, deadline)
    except dist.DistError as error:
        raise _lost(info, error) from error
    except CollectiveError as error:
        raise RuntimeError(f"rank {info.rank}: joining {error}.") from None


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _lost(info: LaunchInfo, error: Exception) -> RuntimeError:
    return RuntimeError(
        f"rank {info.rank}: the meeting point at {address_of(info)} was lost ({_first_line(error)}); rank 0 "
        "ended, see its error."
    )


def _not_joined(info: LaunchInfo, missing: list[int], timeout_s: float) -> RuntimeError:
    names = ", ".join(map(str, missing))
    return RuntimeError(
        f"rank {info.rank}: rank{'s' if len(missing) > 1 else ''} {names} of {info.world_size} did not join at "
        f"{address_of(info)} within {timeout_s:g} s; start them, or check that they use this address and reach it."
    )


def _connect(info: LaunchInfo, deadline: Deadline) -> RunStore:
    """Serve the store (rank 0 without an agent) or connect to it once something listens there."""
    serves = info.rank == 0 and not info.agent_store
    if not serves:
        _await_listener(info, deadline)
    return RunStore.connect(info, deadline, f"fastsample_dist/attempt-{info.attempt}", serves=serves)


def _await_listener(info: LaunchInfo, deadline: Deadline) -> None:
    """Return once a connection to the meeting point succeeds.

    torch's own client blocks and prints a warning per try; this one is interruptible and silent.
    """
    said: OSError | None = None
    while deadline.remaining_s > 0.0:
        try:
            socket.create_connection((info.master_addr, info.master_port), timeout=1.0).close()
            return
        except OSError as error:
            said = error
            time.sleep(MAX_POLL_S)
    if info.agent_store:
        raise RuntimeError(
            f"rank {info.rank}: torchrun's store at {address_of(info)} did not answer within "
            f"{deadline.timeout_s:g} s ({said}); check MASTER_ADDR and MASTER_PORT."
        )
    raise _not_joined(info, [0], deadline.timeout_s) from said


def _join(store: dist.PrefixStore, info: LaunchInfo) -> None:
    """Announce the attempt, add this rank; refuse a second process of the same rank, or a different world size."""
    for attempt in range(1, info.attempt + 1):  # those in which no rank came so far, too
        _attempts(store).compare_set(str(attempt), "", str(info.rank))
    size = store.compare_set("world_size", "", str(info.world_size)).decode()
    if size != str(info.world_size):
        raise RuntimeError(
            f"rank {info.rank}: started for {info.world_size} ranks, but the run at {address_of(info)} has "
            f"{size}; give all ranks the same world size, or another MASTER_PORT."
        )
    if store.add(f"joins/{info.rank}", 1) > 1:
        raise RuntimeError(
            f"rank {info.rank}: this rank has joined {address_of(info)} already, in another process or in an earlier "
            "DistContext of this one; give every process its own RANK, keep one DistContext for the whole run, or "
            "choose another MASTER_PORT."
        )
    store.set(f"joined/{info.rank}", "1")


def _missing_ranks(store: dist.PrefixStore, info: LaunchInfo, deadline: Deadline) -> list[int]:
    """Ranks that had not joined by the deadline; empty as soon as all are there."""
    if info.rank != 0:
        verdict = _await_key(store, info, "verdict", deadline.remaining_s + VERDICT_GRACE_S)
        if verdict:
            said = store.get("verdict").decode()
            store.set(f"informed/{info.rank}", "1")
            return [] if said == COMPLETE else [int(rank) for rank in said.split(",")]
        missing = [rank for rank in range(info.world_size) if not store.check([f"joined/{rank}"])]
        if missing:
            store.delete_key(f"joined/{info.rank}")  # who comes later does not find this rank any more
        return missing
    present = {0}
    pause_s = POLL_S
    while len(present) < info.world_size and deadline.remaining_s > 0.0:
        waiting_for = next(rank for rank in range(info.world_size) if rank not in present)
        if _is_set(store, info, f"joined/{waiting_for}"):
            present.add(waiting_for)
            continue
        time.sleep(min(pause_s, deadline.remaining_s))
        pause_s = min(2 * pause_s, MAX_POLL_S)
    missing = [rank for rank in range(info.world_size) if rank not in present and not store.check([f"joined/{rank}"])]
    store.set("verdict", ",".join(map(str, missing)) or COMPLETE)
    if missing:
        _await_informed(store, info, "informed", [rank for rank in range(1, info.world_size) if rank not in missing])
    return missing


def _await_informed(store: dist.PrefixStore, info: LaunchInfo, key: str, ranks: Iterable[int]) -> None:
    """Keep the store up until these ranks have set their key, but not for long."""
    grace = Deadline(VERDICT_GRACE_S)
    for rank in ranks:
        _await_key(store, info, f"{key}/{rank}", grace.remaining_s)


def _attempts(store: dist.PrefixStore) -> dist.Store:
    """The part of the store that all attempts share, from that of one."""
    return dist.PrefixStore(ATTEMPTS, store.underlying_store)


def _is_set(store: dist.PrefixStore, info: LaunchInfo, key: str) -> bool:
    """Whether `key` is set.

    Raises:
      RuntimeError: a later attempt has begun.
    """
    attempts, following = _attempts(store), str(info.attempt + 1)
    if attempts.check([following]):
        raise RuntimeError(
            f"rank {info.rank}: rank {attempts.get(following).decode()} was started again while this rank joined "
            f"attempt {info.attempt} of the run; that attempt ends: torchrun starts this rank again too, as far as its "
            "--max-restarts allows."
        )
    return store.check([key])


def _await_key(store: dist.PrefixStore, info: LaunchInfo, key: str, timeout_s: float) -> bool:
    """Poll until `key` is set; False when the time is up."""
    deadline = Deadline(timeout_s)
    pause_s = POLL_S
    while not _is_set(store, info, key):
        if deadline.remaining_s == 0.0:
            return False
        time.sleep(min(pause_s, deadline.remaining_s))
        pause_s = min(2 * pause_s, MAX_POLL_S)
    return True

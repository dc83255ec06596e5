"""What the facts about communicators share: the registry, and the rows that every rank can compute.

A fact is a function of a communicator that all ranks call. Oracle of the row exchanges: every row is computed from
(source, destination, index), so the receiver knows what must come.
"""

import torch

from fastsample_dist.comm.base import Communicator

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
FACTS = {}


def fact(function):
    FACTS[function.__name__] = function
    return function


# ---- the oracle ----


def count_between(src: int, dst: int) -> int:
    """Uneven, with zeros: 0 to 4 rows."""
    return (3 * src + 5 * dst + src * dst) % 5


def rows_between(src: int, dst: int, dtype=torch.int64, width: int = 3, count: int | None = None) -> torch.Tensor:
    """The rows that `src` sends to `dst`: small integers, exact in every dtype."""
    count = count_between(src, dst) if count is None else count
    values = torch.arange(count * width).reshape(count, width) * 7 + src * 31 + dst * 11
    return (values % 2 if dtype is torch.bool else values % 100).to(dtype)


def sent_by(comm: Communicator, **form) -> tuple[torch.Tensor, list[int]]:
    pieces = [rows_between(comm.rank, dst, **form) for dst in range(comm.world_size)]
    return torch.cat(pieces), [len(piece) for piece in pieces]


def expected_at(comm: Communicator, **form) -> tuple[torch.Tensor, list[int]]:
    pieces = [rows_between(src, comm.rank, **form) for src in range(comm.world_size)]
    return torch.cat(pieces), [len(piece) for piece in pieces]


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert torch.equal(got, expected)


def others(comm: Communicator) -> list[int]:
    return [peer for peer in range(comm.world_size) if peer != comm.rank]


def named(comm: Communicator) -> str:
    """How messages name this rank: by its number in the run, with its group when that is a part of the run."""
    whole = comm.run_ranks == tuple(range(comm.world_size))
    group = "" if whole else f" (group of ranks {', '.join(map(str, sorted(comm.run_ranks)))})"
    return f"rank {comm.run_ranks[comm.rank]}{group}"


def counted(calls: int, sent: int, received: int) -> dict[str, int]:
    return {"calls": calls, "bytes_sent": sent, "bytes_received": received}

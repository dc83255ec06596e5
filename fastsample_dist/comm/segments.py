"""Memory that ranks of one machine share: a memfd each, mapped by all of them.

A memfd is reached through its owner's process (machine.py), so it never has a name: nothing can be left in /dev/shm,
however a process ends. The memory is freed when the last process that maps it has closed it or is gone. Its size is
sealed, so that no access can fault because another process has cut it.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from fastsample_dist.comm.agree import Joined, agree
from fastsample_dist.comm.machine import Machines, descriptor_path
from fastsample_dist.memory_sizes import available_bytes, format_size

PURPOSE = "setup"
S = TypeVar("S", bound="Segment")


class Segment:
    """A mapped segment; every rank of the machine sees the same bytes, zeros at first.

    Args:
      descriptor: of the memfd; may be closed afterwards.
      num_bytes: of it, at least 1.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._mapped = mmap.mmap(descriptor, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0) -> Tensor:
        """A tensor over the segment's memory, which lives as long as the tensor.

        Args:
          offset: bytes before it.
        Raises:
          ValueError: it does not fit.
        """
        count = math.prod(shape)
        if offset < 0 or offset + count * dtype.itemsize > self.num_bytes:
            raise ValueError(
                f"{count} values of {dtype} from byte {offset} do not fit into a segment of {self.num_bytes} bytes."
            )
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._mapped, dtype=dtype, count=count, offset=offset).view(shape)


class GrowingSegment(Segment):
    """A segment whose memory is taken piece by piece: until then its pages are not there, and writing may fail."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        super().__init__(descriptor, num_bytes)
        self._descriptor = os.dup(descriptor)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def take(self, offset: int, num_bytes: int) -> None:
        """Take the memory of a piece now, so that writing to it cannot fail later. Its contents stay as they are.

        Raises:
          ValueError: there is not enough memory.
        """
        _take(self._descriptor, offset, num_bytes)


def share_segments(ctx: Joined, rank: int, machines: Machines, num_bytes: int) -> Mapping[int, Segment]:
    """Make a segment on every rank that wants one, and map those of all ranks of this machine.

    Collective: every rank must call this, each with its own size. Purpose "setup".

    Args:
      ctx: what has joined the run.
      rank: this one.
      machines: ranks by machine.
      num_bytes: of this rank's segment; 0: it makes none. The memory is taken now, so that writing cannot fail later.
    Returns:
      The segments of this rank's machine, by the rank that made them.
    Raises:
      ValueError: on all ranks: there is not enough memory on one of them, or a segment cannot be reached.
      RuntimeError: the collective failed or passed its deadline.
    """
    sizes: list[int] = ctx.comm.all_gather_object(num_bytes, purpose=PURPOSE)
    wanted = {peer: sizes[peer] for peer in machines.of(rank)}
    agree(ctx, lambda: _check_room(sum(wanted.values())))  # before any page is taken: the system would kill processes
    return _share(ctx, wanted, rank, Segment)


def share_growing_segment(ctx: Joined, rank: int, machines: Machines, num_bytes: int) -> GrowingSegment:
    """A segment of the first rank of this machine, mapped by all of its ranks. Collective: every rank must call this.

    Args:
      ctx, rank, machines: as of `share_segments`.
      num_bytes: the most that it can hold, at least 1; no memory is taken for it now.
    Raises:
      ValueError: on all ranks: it cannot be had or reached on one of them.
      RuntimeError: the collective failed or passed its deadline.
    """
    first = machines.of(rank)[0]
    return _share(ctx, {first: num_bytes}, rank, GrowingSegment)[first]


def _share(ctx: Joined, wanted: Mapping[int, int], rank: int, kind: type[S]) -> dict[int, S]:
    """Segments of this kind by the rank that makes them, for sizes by rank; 0: none. Collective."""
    num_bytes = wanted.get(rank, 0)
    made: list[int] = []  # this rank's memfd
    try:
        agree(ctx, lambda: made.append(_create(num_bytes, kind)) if num_bytes else None)
        places = ctx.comm.all_gather_object((os.getpid(), sum(made)), purpose=PURPOSE)
        # when all agree, all have opened: the descriptor may go
        return agree(ctx, lambda: {peer: _open(*places[peer], size, kind) for peer, size in wanted.items() if size > 0})
    finally:
        for descriptor in made:
            os.close(descriptor)


def share_tensors(ctx: Joined, rank: int, machines: Machines, own: Tensor) -> dict[int, Tensor]:
    """The tensors of all ranks of this machine, by rank; each is copied once, into memory that all of them map.

    Collective: every rank must call this, each with its own tensor. Purpose "setup".

    Args:
      ctx, rank, machines: as for `share_segments`.
      own: of any dtype and shape, in host memory.
    Raises:
      ValueError: on all ranks: there is not enough memory on one of them.
      RuntimeError: the collective failed or passed its deadline.
    """
    kinds: list[tuple[torch.dtype, tuple[int, ...]]] = ctx.comm.all_gather_object(
        (own.dtype, tuple(own.shape)), purpose=PURPOSE
    )
    segments = share_segments(ctx, rank, machines, own.nbytes)
    shared = {
        peer: segments[peer].tensor(*kinds[peer])
        if peer in segments
        else torch.empty(kinds[peer][1], dtype=kinds[peer][0])
        for peer in machines.of(rank)
    }
    shared[rank].copy_(own)
    ctx.comm.barrier(purpose=PURPOSE)
    return shared


def _check_room(num_bytes: int) -> None:
    free = available_bytes()
    if num_bytes > free:
        raise ValueError(
            f"{format_size(num_bytes)} of memory are to be shared by the ranks of a machine, but {format_size(free)} "
            "are free; ask for less, or free memory."
        )


def _create(num_bytes: int, kind: type[Segment]) -> int:
    """The descriptor of a new memfd of this size; its memory is taken now unless the segment grows.

    Raises:
      ValueError: there is not enough memory.
    """
    descriptor = os.memfd_create("fastsample", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, num_bytes)
        if not issubclass(kind, GrowingSegment):
            _take(descriptor, 0, num_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _take(descriptor: int, offset: int, num_bytes: int) -> None:
    try:
        os.posix_fallocate(descriptor, offset, num_bytes)
    except OSError as error:
        raise ValueError(
            f"{format_size(num_bytes)} of memory to be shared by the ranks of a machine cannot be had "
            f"({error.strerror}); ask for less, or free memory."
        ) from error


def _open(pid: int, descriptor: int, num_bytes: int, kind: type[S]) -> S:
    opened = os.open(descriptor_path(pid, descriptor), os.O_RDWR | os.O_CLOEXEC)
    try:
        return kind(opened, num_bytes)
    finally:
        os.close(opened)

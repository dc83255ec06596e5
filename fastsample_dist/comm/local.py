"""The communicator of a run with one process: every collective is the identity, counted like any other."""

from __future__ import annotations

from torch import Tensor

from fastsample_dist.comm.base import DEFAULT_MAX_MESSAGE_BYTES, Communicator
from fastsample_dist.comm.counters import Counters
from fastsample_dist.comm.deadline import DEFAULT_TIMEOUT_S, Deadline
from fastsample_dist.comm.rows import Segments


class LocalCommunicator(Communicator):
    """Collectives of one rank.

    Args:
      timeout_s: part of the interface; nothing here waits.
      max_message_bytes: longest message of one round, as everywhere.
      counters: shared counters, a new set when None.
    """

    _moves_cuda_tensors = True

    def __init__(
        self,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        counters: Counters | None = None,
    ) -> None:
        super().__init__(0, 1, timeout_s=timeout_s, max_message_bytes=max_message_bytes, counters=counters)

    def _exchange(self, into: Segments, out: Segments, deadline: Deadline) -> None:
        into.buffer.copy_(out.buffer)

    def _reduce(self, flat: Tensor, op: str, deadline: Deadline) -> None:
        """Nothing to do: one rank's sum, maximum and minimum are its own values."""

    def _broadcast(self, flat: Tensor, src: int, deadline: Deadline) -> None:
        """Nothing to do: the source is this rank."""

    def _barrier(self, deadline: Deadline) -> None:
        """Nobody to wait for."""

    def _duplicate(self, lane: str, deadline: Deadline) -> LocalCommunicator:
        return LocalCommunicator(
            timeout_s=self.timeout_s, max_message_bytes=self.max_message_bytes, counters=self._counters
        )

    def _split(self, members: tuple[int, ...], lane: str, deadline: Deadline) -> LocalCommunicator:
        return LocalCommunicator(timeout_s=self.timeout_s, max_message_bytes=self.max_message_bytes)

    def _close(self) -> None:
        """Nothing to release."""

    def _leave(self) -> None:
        """Nothing to release."""

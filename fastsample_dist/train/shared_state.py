"""State of a run that rank 0 alone has, such as a checkpoint that it read, given to all ranks."""

from __future__ import annotations

import io
from typing import Any

import torch

from fastsample_dist.comm.base import Communicator
from fastsample_dist.pipeline.position import PURPOSE


def broadcast_state(comm: Communicator, state: dict[str, Any] | None) -> dict[str, Any] | None:
    """Rank 0's state on all ranks, its tensors on the CPU; None where rank 0 has none. Purpose "checkpoint".

    Collective: every rank must call this; the others' `state` is not looked at.

    Args:
      comm: the ranks' communicator.
      state: what torch.save takes and torch.load(weights_only=True) reads: tensors, numbers, strings, and lists and
        dictionaries of them.
    """
    buffer = io.BytesIO()
    if comm.rank == 0 and state is not None:
        torch.save(state, buffer)
    num_bytes = comm.all_gather_object(buffer.tell(), purpose=PURPOSE)[0]
    if num_bytes == 0:
        return None
    payload = torch.empty(num_bytes, dtype=torch.uint8)
    if comm.rank == 0:
        payload.copy_(torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8))
    comm.broadcast(payload, purpose=PURPOSE)
    return torch.load(io.BytesIO(payload.numpy()), map_location="cpu", weights_only=True)

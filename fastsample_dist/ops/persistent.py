"""The persistent kernel: one launch draws the neighbours of all hops (PGSampler, section III; csrc/cuda/
persistent_sampler.cu). The batches are those of the other kernels, bit for bit.

It draws uniformly, with or without replacement, any fanouts; methods "weighted" and "labor" are sampled hop by hop.
Beside the scratch of a batch it takes 8 bytes per hop and slot of the id table, 8 per destination of the hops after the
first, and 4 or 8 (int32 or int64 ids) per pick and for 512 more picks of every warp; 8 more per pick with edge ids or
with a fanout above 32.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastsample_dist.ops import checks, cuda
from fastsample_dist.ops.cuda_batch import Queue

_QUEUE_WORDS, _END_WORD = 80, 64  # the last words of the state; see fs_cuda_persistent_sizes
_NOT_RUN, _DONE, _STUCK, _FULL = -1, 0, 1, 2
MOST_FETCH = 32
cuda.DECLARED.values(
    FS_CUDA_QUEUE_WORDS=_QUEUE_WORDS, FS_CUDA_QUEUE_END_WORD=_END_WORD, FS_CUDA_QUEUE_DONE=_DONE,
    FS_CUDA_QUEUE_STUCK=_STUCK, FS_CUDA_QUEUE_FULL=_FULL,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """How the warps share the tasks. Never changes a result.

    Attributes:
      least_fetch, most_fetch: tasks that a warp takes from the queue at once; between the two it takes its share of
        those that wait.
      timeout_s: after so long in which no task was begun or finished, the kernel ends and the batch is refused. So does
        the cooperative kernel when a block has waited so long at a barrier.
    Raises:
      ValueError: least_fetch below 1, most_fetch below least_fetch, a negative timeout_s.
    """

    least_fetch: int = 1
    most_fetch: int = MOST_FETCH
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        checks.require(
            1 <= self.least_fetch <= self.most_fetch,
            f"least_fetch is {self.least_fetch} and most_fetch {self.most_fetch}; expected 1 or more, ascending.",
        )
        checks.require(0 <= self.timeout_s < 10**9, f"timeout_s is {self.timeout_s}; expected 0 to 10**9 seconds.")

    def arguments(self) -> Queue:
        """The options as the library takes them."""
        return Queue(self.least_fetch, self.most_fetch, int(self.timeout_s * 1e9))


def check_end(state: list[int]) -> None:
    """Report a kernel that gave up.

    Args:
      state: state words of a finished batch.
    Raises:
      RuntimeError: not every task was done; the line shows the state of the queue.
    """
    end, block, warp, task, tickets, tasks, finished = state[-_QUEUE_WORDS + _END_WORD :][:7]
    if end in (_DONE, _NOT_RUN):
        return
    reason = "nothing was done for too long" if end == _STUCK else "its queue is full"
    need = "waits for" if end == _STUCK else "has no room for"
    raise RuntimeError(
        f"sample_mfg: the persistent kernel gave up because {reason}: {finished} of {tasks} tasks are finished, "
        f"{tickets} tickets handed out, and warp {warp} of block {block} {need} task {task}; pass a larger timeout_s, "
        "or kernel='per_hop'."
    )

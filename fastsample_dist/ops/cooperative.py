"""The cooperative kernel: one launch for all hops of a batch, with barriers of its grid where other kernels would end
(csrc/cuda/cooperative_sampler.cu). The batches are those of the other kernels, bit for bit.

It draws uniformly, with or without replacement, any fanouts. All its blocks are on the device at once: a device that
others hold blocks of, by MPS for example, may have too little room, and then the launch is an error.
"""

from __future__ import annotations

from fastsample_dist.ops import cuda

_BARRIER_WORDS, _END_WORD = 32, 16  # the last words of the state; see fs_cuda_cooperative_sizes
_HOLDS = -1
cuda.DECLARED.values(FS_CUDA_BARRIER_WORDS=_BARRIER_WORDS, FS_CUDA_BARRIER_END_WORD=_END_WORD)


def check_end(state: list[int]) -> None:
    """Report a kernel that gave up.

    Args:
      state: state words of a finished batch.
    Raises:
      RuntimeError: a block did not come to a barrier in time; the line shows which.
    """
    barrier, block, arrived, blocks = state[-_BARRIER_WORDS + _END_WORD :][:4]
    if barrier == _HOLDS:
        return
    raise RuntimeError(
        f"sample_mfg: the cooperative kernel gave up because block {block} waited too long at barrier {barrier}, to "
        f"which {arrived} of {blocks} blocks had come; pass a larger timeout_s, or kernel='per_hop'."
    )

"""How the host learns what kernels have counted: words that they leave in pinned host memory, and an event behind them.

A copy of a few words costs the host 25 us while kernels run (an H100, torch 2.11), a kernel that writes them to the
host as much as any launch, and nothing where it is part of a recorded graph.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from fastsample_dist.ops import cuda

cuda.DECLARED.functions(fs_cuda_publish_words=(c_void_p, c_void_p, c_int64, c_void_p))


class HostWords:
    """Words in host memory that kernels of a device write.

    Args:
      device: of the kernels.
      count: int64 words.
    Attributes:
      address: of the first word.
    """

    def __init__(self, device: torch.device, count: int) -> None:
        is_gpu, self._count = device.type == "cuda", count
        self._words = torch.empty(count, dtype=torch.int64, pin_memory=is_gpu).numpy()
        self.address: int = self._words.ctypes.data
        self._event = torch.cuda.Event() if is_gpu else None

    def enqueue(self, words: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        """Enqueue the copy of as many words, int64 on the device, behind what the current stream has been given.

        Args:
          words: at least as many; complete when that is done.
          stream: the current one, where the caller knows it.
        """
        cuda.call("fs_cuda_publish_words", words, words.data_ptr(), self.address, self._count, stream=stream)

    def mark(self, stream: torch.cuda.Stream | None) -> None:
        """What has been enqueued on the current stream so far is what `read` waits for."""
        if self._event is not None:
            self._event.record(stream)

    def read(self) -> list[int]:
        """Wait for what was marked, and for nothing that is enqueued later; the words."""
        if self._event is not None:
            self._event.synchronize()
        return self._words.tolist()


_FREE: dict[tuple[torch.device, int], list[HostWords]] = {}  # read, and kept for the next: making one takes 20 us
_MADE: list[HostWords] = []  # all of them: a kernel may still write to one that nobody waits for any more


def read_back(words: Tensor, count: int, stream: torch.cuda.Stream | None = None) -> Callable[[], list[int]]:
    """Begin to bring words to the host, behind what the current stream has been given.

    Args:
      words: int64 on the device.
      count: how many of them, from the first on.
      stream: the current one, where the caller knows it.
    Returns:
      What waits for them, and for nothing that is enqueued later; to be called once.
    """
    device = words.device
    stream = cuda.current_stream(device) if stream is None else stream
    free = _FREE.setdefault((device, count), [])
    try:
        host = free.pop()
    except IndexError:
        host = HostWords(device, count)
        _MADE.append(host)
    host.enqueue(words, stream)
    host.mark(stream)

    def wait() -> list[int]:
        found = host.read()
        free.append(host)
        return found

    return wait

"""DeviceRun: a call of an individual application on a device, its arrays apart from the work that fills them.

Arrays are made once. What fills them may be recorded where samples have one width: it reads nothing back, and begins by
setting whatever it counts on, so that running it again makes the samples of what roots, ids and draw are by then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from fastsample_dist.ops import checks, cuda
from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.read_back import read_back
from fastsample_dist.ops.transit_sample import IndividualApp, SampledSteps, TransitRequest

GROUPED = ("transit", "transit_flat")  # schedules
SAMPLE_BITS = 40  # of a failure's word, below the step
NO_FAILURE = -1

cuda.DECLARED.values(FS_CUDA_SAMPLE_BITS=SAMPLE_BITS)


class DeviceRun(ABC):
    """The arrays of a call, and the work that fills them.

    Args:
      app: the application.
      roots: int64 [num_samples, app.num_roots], in host or device memory; nodes, or -1: none.
      sample_ids: int64 [num_samples], 0 or more.
      request: key and schedule, "auto" being "sample"; threads and blocks are not read.
      device: that samples.
    Attributes:
      roots, sample_ids: as given, on the device.
    """

    def __init__(
        self, app: IndividualApp, roots: Tensor, sample_ids: Tensor, request: TransitRequest, device: torch.device
    ) -> None:
        self.roots = checks.matrix("roots", roots.to(device), (torch.int64,))
        self.sample_ids = checks.vector("sample_ids", sample_ids.to(device), (torch.int64,), roots.shape[0])
        self._app, self._words = app, {"dtype": torch.int64, "device": device}
        self._asked = layouts.RequestArguments(
            self.roots.data_ptr(), self.sample_ids.data_ptr(), roots.shape[0], 0, request.rng_seed, request.step, 1,
            layouts.Schedule[request.schedule.upper()],
        )  # fmt: skip
        self._failure = torch.empty(1, **self._words)

    @abstractmethod
    def enqueue(self) -> None:
        """Enqueue on the current stream what needs no answer: of samples of one width the kernels of all steps."""

    @abstractmethod
    def finish(self) -> SampledSteps:
        """The samples on the device, in the run's own arrays; waits for the kernels.

        Raises:
          AppFailedError: the first met by (step, position in the call).
        """

    def copy(self) -> Callable[[], SampledSteps]:
        """Begin to copy samples of one width, behind what the current stream has been given.

        Returns:
          What waits for them, as `finish`.
        """
        vertices, failure = self._copied(), read_back(self._failure, 1)
        return lambda: self._finished(vertices, *failure())

    @abstractmethod
    def _copied(self) -> Tensor:
        """The vertices of samples of one width, elsewhere in memory, as `_finished` takes them."""

    @abstractmethod
    def _finished(self, vertices: Tensor, word: int) -> SampledSteps:
        """The samples; raises what the failure's word says, once the kernels are done."""


def differ_in_length(app: IndividualApp) -> bool:
    """Whether samples have no width in common."""
    return bool(app.until_done) or takes_all(app)


def takes_all(app: IndividualApp) -> bool:
    """Whether the last step takes all neighbours."""
    return len(app.sample_sizes) > 0 and app.sample_sizes[-1] == layouts.ALL_NEIGHBORS


def first_failure(word: int) -> tuple[int, int]:
    """(step, position in the call) of a failure's word."""
    return word >> SAMPLE_BITS, word & ((1 << SAMPLE_BITS) - 1)


def offsets_of(lengths: Tensor) -> Tensor:
    """Where samples of these lengths begin, and the end."""
    offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def total_and_longest(lengths: Tensor) -> tuple[int, int]:
    """Sum and largest of some lengths, 0 of none; waits for them once."""
    if lengths.numel() == 0:
        return 0, 0
    total, longest = torch.stack((lengths.sum(), lengths.max())).tolist()
    return total, longest

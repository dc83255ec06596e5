"""Which kernel samples a kind of batch: the one that was fastest here.

All give the same bits, so trying costs only time. The first batches of a kind (such as how neighbours are drawn, and
the number of seeds up to a power of two) go to the kernels in turn; after some of each that do not count, the medians
of a few decide, and the fastest one samples the rest; one whose scratch does not fit is not tried again.
Times come from marks on the device's stream that are read when they have been passed: nothing waits for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Generic, TypeVar

from fastsample_dist.ops import checks
from fastsample_dist.ops.cuda import OutOfMemory, Timer
from fastsample_dist.ops.sample_spec import SampleSpec

PER_HOP, PERSISTENT, COOPERATIVE = KERNELS = ("per_hop", "persistent", "cooperative")
CHOICES = (*KERNELS, "auto")

_Kind, _Result = TypeVar("_Kind"), TypeVar("_Result")


def check_kernel(kernel: str) -> None:
    """Refuse an unknown name of a kernel.

    Raises:
      ValueError: the name is not one of CHOICES.
    """
    checks.require(
        kernel in CHOICES, f"kernel is {kernel!r}; expected 'auto', 'per_hop', 'persistent' or 'cooperative'."
    )


def serves(kernel: str, spec: SampleSpec) -> bool:
    """Whether a kernel of KERNELS samples such batches: one launch for all hops draws some methods only."""
    return kernel == PER_HOP or spec.traits.one_launch


def check_served(kernel: str, spec: SampleSpec) -> None:
    """Refuse a kernel of CHOICES that does not sample such batches.

    Raises:
      ValueError: a method that the kernel does not draw.
    """
    checks.require(
        kernel == "auto" or serves(kernel, spec),
        f"method is {spec.method!r}, but kernel {kernel!r} draws uniformly only; pass kernel='auto' or 'per_hop'.",
    )


@dataclass(frozen=True)
class BatchKind:
    """Batches that are alike.

    Attributes:
      spec: how neighbours are drawn; without the generator's key and threads, which change no time.
      most_seeds: the batches have at most so many seeds, and more than half of it.
    """

    spec: SampleSpec
    most_seeds: int


@dataclass(frozen=True)
class KernelReport(Generic[_Kind]):
    """What was measured for one kind of batch.

    Attributes:
      kind: the batches.
      kernel: that samples them from now on (of applications the schedule), or None while they are tried.
      medians_ms: per kernel, of the batches that count; empty where nothing was measured.
      num_batches: per kernel, how many counted.
    """

    kind: _Kind
    kernel: str | None
    medians_ms: dict[str, float]
    num_batches: dict[str, int]


@dataclass
class _Contest:
    tried: tuple[str, ...]  # the preferred one first, without those whose scratch did not fit
    times: dict[str, list[float]]
    begun: dict[str, int]
    unread: list[tuple[str, object, object]] = field(default_factory=list)
    winner: str | None = None

    @classmethod
    def of(cls, kernels: Sequence[str]) -> _Contest:
        """Before the first batch; the first kernel is preferred."""
        return cls(tuple(kernels), {kernel: [] for kernel in kernels}, dict.fromkeys(kernels, 0))


class KernelChoice(Generic[_Kind]):
    """Decides per kind of batch, which is anything that can be a key.

    Args:
      timer: of the device that samples.
      warm_up: batches of each kernel that do not count.
      trials: batches of each kernel that do.
    Raises:
      ValueError: a negative warm_up, trials below 1.
    """

    def __init__(self, timer: Timer, *, warm_up: int = 2, trials: int = 7) -> None:
        checks.require(warm_up >= 0, f"warm_up is {warm_up}; expected 0 or more.")
        checks.require(trials >= 1, f"trials is {trials}; expected 1 or more.")
        self._timer, self._warm_up, self._trials = timer, warm_up, trials
        self._contests: dict[_Kind, _Contest] = {}

    def run(self, kind: _Kind, kernels: Callable[[], Sequence[str]], enqueue: Callable[[str], _Result]) -> _Result:
        """Enqueue one batch.

        Args:
          kind: of the batch.
          kernels: asked at the first batch of a kind; those that sample it, first the one that is preferred where
            nothing has been measured.
          enqueue: enqueues it with the kernel of this name.
        Returns:
          What `enqueue` returns.
        """
        if kind not in self._contests:
            self._contests[kind] = _Contest.of(kernels())
        contest = self._contests[kind]
        self._read(contest)
        if contest.winner is not None:
            return enqueue(contest.winner)
        preferred = contest.tried[0]
        kernel = min(contest.tried, key=lambda name: contest.begun[name])  # in turn, the preferred one first
        if contest.begun[kernel] == self._warm_up + self._trials:  # the device is not yet done with them
            return enqueue(preferred)
        start = self._timer.mark()
        try:
            result = enqueue(kernel)
        except OutOfMemory:
            if kernel == preferred:
                raise
            contest.tried = tuple(name for name in contest.tried if name != kernel)
            contest.winner = preferred if contest.tried == (preferred,) else None
            return enqueue(preferred)
        contest.begun[kernel] += 1
        if contest.begun[kernel] > self._warm_up:
            contest.unread.append((kernel, start, self._timer.mark()))
        return result

    def report(self) -> list[KernelReport[_Kind]]:
        """What is known, by kind of batch in order of first appearance."""
        return [
            KernelReport(
                kind,
                contest.winner,
                {kernel: median(times) for kernel, times in contest.times.items() if times},
                {kernel: len(times) for kernel, times in contest.times.items()},
            )
            for kind, contest in self._contests.items()
        ]

    def _read(self, contest: _Contest) -> None:
        """Take in the times of batches that are done, and decide when all are."""
        if contest.winner is not None:
            return
        waiting = []
        for kernel, start, stop in contest.unread:
            elapsed = self._timer.elapsed_ms(start, stop)
            if elapsed is None:
                waiting.append((kernel, start, stop))
            else:
                contest.times[kernel].append(elapsed)
        contest.unread = waiting
        if all(len(contest.times[name]) == self._trials for name in contest.tried):
            contest.winner = min(contest.tried, key=lambda name: median(contest.times[name]))  # of equals, the first


@functools.lru_cache(maxsize=1024)
def kind_of(spec: SampleSpec, num_seeds: int) -> BatchKind:
    """The kind that a batch belongs to."""
    return BatchKind(replace(spec, rng_seed=0, num_threads=None), most_of(num_seeds))


def most_of(count: int) -> int:
    """The power of two up to which counts are alike."""
    return 1 << max(0, count - 1).bit_length()

"""Making batches before they are asked for, by wrapping a loader's stages, which know nothing of it.

Two ways, used together. A thread makes the next batches in the background (`look_ahead`, Prefetcher). And where
sampling needs no communication, the thread samples several of them at once, each in a thread of the CPU
(GroupedSample). A third is in fetch_ahead.py: with or without a thread, batches are sampled two steps before the
exchange that completes them.

Permission, not a queue length, decides how far ahead the thread goes: it may make batch t only after batch
t - depth was taken. When all ranks stop at the same batch, their threads have therefore been allowed, and finish,
the same collectives, and a loader left early hangs nobody. (A batch stands for the same collectives on all ranks,
combined exchanges included.) When the consumer leaves by an exception, too, what was permitted is finished first, at
most `prefetch` batches; where another rank takes part no more, their collectives fail or pass their deadline. The
thread is a daemon: it never keeps a process alive. An interrupt can come while it is being started or joined; it is
then still at work when the interpreter ends, which would unwind it inside of torch and abort the process. So what is
at work then is abandoned, and waited for up to EXIT_S; a batch that takes longer is left in the middle, once the call
that it is in returns. Nor may the thread be the last that holds the batches, and free them then: until it has been
joined they are held here. For a GPU it works on a stream of its own (streams.py).
"""

from __future__ import annotations

import atexit
import ctypes
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from fastsample_dist.comm.base import Communicator
from fastsample_dist.device.clock import Lap
from fastsample_dist.device.streams import Lane
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.fetch_ahead import combine_fetches, sample_ahead
from fastsample_dist.pipeline.stages import Sample, Stage, place, run_stages
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.sampling.sampler import Sampler, can_sample_many, payload_exchanges

EXIT_S = 1.0  # for a batch under way when the interpreter ends
CALL_S = 30.0  # then for the call that it is in: milliseconds, but for a machine that stalls
Given = TypeVar("Given")
Made = TypeVar("Made")


class GroupedSample:
    """Samples several steps of an epoch at once, ahead of their turn; then hands out one after another.

    Args:
      sample: the stage that it replaces; its sampler has `sample_many`.
      steps: of the epoch, which are run in this order.
      size: steps sampled at once; fewer at the epoch's end.
    """

    def __init__(self, sample: Sample, steps: Sequence[StepInput], size: int) -> None:
        self._sample, self._steps, self._size = sample, steps, size
        self._sampled: deque[MiniBatch] = deque()
        self._num_sampled = 0

    def run(self, given: StepInput, batch: None) -> MiniBatch:
        """See Stage."""
        if self._sampled:
            return self._sampled.popleft()
        steps = self._steps[self._num_sampled : self._num_sampled + self._size]
        self._num_sampled += len(steps)
        stage = self._sample
        if len(steps) == 1:
            return stage.run(given, None)
        begin = stage.clock.mark()
        with stage.comm.watch.span("sample", given.step, stage.clock):
            sampled = stage.sampler.sample_many([one.seeds.to(stage.id_dtype) for one in steps], given.step)
        lap = Lap(stage.clock, begin, stage.clock.mark(), len(steps))
        if len(sampled) != len(steps):
            raise ValueError(
                f"{place(stage.comm, given)}: sample_many of the sampler returned {len(sampled)} batches for "
                f"{len(steps)} steps; expected one for each."
            )
        self._sampled.extend(stage.begun(one, batch, lap) for one, batch in zip(steps, sampled, strict=True))
        return self._sampled.popleft()


class CheckHandOver:
    """Refuses what a prefetch thread cannot hand to another stream: only the tensors of a MiniBatch are known."""

    def run(self, given: StepInput, batch: Any) -> MiniBatch:
        """See Stage."""
        if not isinstance(batch, MiniBatch):
            raise ValueError(
                f"step {given.step}: transform returned a {type(batch).__name__}; with prefetch on a GPU it must "
                "return a MiniBatch; convert in the loop, or pass prefetch=0."
            )
        return batch


def group_size(sampler: Sampler, device: torch.device, depth: int, num_threads: int) -> int:
    """Steps that are worth sampling at once: one per thread of the CPU, as many as are made ahead; 1 on a GPU, and for
    a sampler that exchanges with other ranks or makes one batch at a time.
    """
    if arrays.runs_kernels(device) or payload_exchanges(sampler) > 0 or not can_sample_many(sampler):
        return 1
    return max(1, min(depth, num_threads))


def epoch_stages(stages: Sequence[Stage], steps: Sequence[StepInput], *, group: int, combined: bool) -> list[Stage]:
    """A loader's stages as they make one epoch.

    Args:
      stages: of the loader, a Sample first.
      steps: of the epoch, run in this order.
      group: steps sampled at once, see `group_size`.
      combined: fetch by one exchange a step.
    """
    stages = list(stages)
    if group > 1:
        stages[0] = GroupedSample(stages[0], steps, group)
    return combine_fetches(stages, steps) if combined else sample_ahead(stages, steps)


def look_ahead(
    stages: Sequence[Stage],
    comm: Communicator,
    steps: Sequence[StepInput],
    *,
    depth: int,
    lane: Lane,
    device: torch.device,
) -> Prefetcher[StepInput, Any]:
    """The batches of an epoch, made ahead.

    Args:
      stages: of the epoch.
      comm: that the stages use, and nobody else at the same time.
      steps: of the epoch.
      depth: batches made ahead of the one being used, at least 1.
      lane: where the thread's work goes.
      device: where the batches are.
    """
    stages = list(stages)
    if arrays.runs_kernels(device):
        stages.append(CheckHandOver())
    return Prefetcher(partial(run_stages, stages, comm), steps, depth, comm.timeout_s, lane)


class _Raised:
    """An exception on its way from the thread to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Prefetcher(Generic[Given, Made]):
    """Iterator over make(given) for every given, made up to `depth` ahead in order.

    Args:
      make: called in the background thread, one at a time, in the order of `given`.
      given: inputs.
      depth: batches made ahead of the one being used, at least 1.
      timeout_s: how long `close` waits for the batches already permitted.
      lane: where the thread's work goes, and how the consumer receives it; None: to the CPU.
    """

    def __init__(
        self, make: Callable[[Given], Made], given: Iterable[Given], depth: int, timeout_s: float,
        lane: Lane | None = None,
    ) -> None:  # fmt: skip
        self._make, self._given, self._timeout_s = make, list(given), timeout_s
        self._lane = lane or Lane()
        self._permitted, self._stopping = depth, False
        self._changed = threading.Condition()  # guards the two above
        self._ended = threading.Event()  # is_alive is wrong after a join that Ctrl-C interrupted (Python 3.11)
        self._made: queue.SimpleQueue[tuple[Made, Any] | _Raised] = queue.SimpleQueue()
        self._num_threads = torch.get_num_threads()  # a new thread would start from OpenMP's default
        self._lane.start()
        self._thread = threading.Thread(target=self._work, name="fastsample-prefetch", daemon=True)
        _AT_WORK.add(self)
        self._thread.start()

    def __iter__(self) -> Iterator[Made]:
        for _ in self._given:
            made = self._made.get()
            if isinstance(made, _Raised):
                raise made.error
            self._lane.receive(*made)
            with self._changed:
                self._permitted += 1
                self._changed.notify()
            yield made[0]

    def close(self) -> None:
        """Let the thread finish what it was permitted, then end it.

        Raises:
          RuntimeError: it did not end within timeout_s.
        """
        if not self._stop(self._timeout_s):
            raise RuntimeError(f"the prefetch thread did not finish its batches within {self._timeout_s:g} s.")
        _AT_WORK.discard(self)

    def abandon(self) -> bool:
        """End the thread after the batch under way, permitted or not; wait for up to EXIT_S.

        Returns:
          Whether it has ended.
        """
        return self._stop(EXIT_S, permitted=0)

    def cut_short(self) -> None:
        """End the thread after the call under way, in the middle of a batch; wait for up to CALL_S."""
        thread = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))
        self._stop(CALL_S)

    def _stop(self, wait_s: float, permitted: int | None = None) -> bool:
        """Whether the thread has ended within wait_s seconds."""
        with self._changed:
            self._stopping = True
            self._permitted = self._permitted if permitted is None else permitted
            self._changed.notify()
        if self._thread.ident is None:  # an interrupt came before it ran; abandoned, it touches nothing of torch then
            return True
        if not self._ended.wait(wait_s):
            return False
        self._thread.join(wait_s)
        return True

    def _work(self) -> None:
        try:
            with self._changed:
                if self._stopping and self._permitted == 0:  # abandoned before it ran: the interpreter may be ending
                    return
            torch.set_num_threads(self._num_threads)
            with self._lane.working():
                for number, given in enumerate(self._given):
                    with self._changed:
                        self._changed.wait_for(lambda number=number: number < self._permitted or self._stopping)
                        if number >= self._permitted:
                            return
                    self._made.put((self._make(given), self._lane.made()))
        except BaseException as error:  # the consumer raises it: this thread has nobody to report to
            self._made.put(_Raised(error))
        finally:
            self._ended.set()


_AT_WORK: set[Prefetcher] = set()  # and those whose `close` was interrupted


@atexit.register
def _abandon_all() -> None:
    """End the threads that are still at work when the interpreter ends."""
    for prefetcher in list(_AT_WORK):
        if not prefetcher.abandon():
            prefetcher.cut_short()

"""An epoch with roles, event by event: the oracle of the formulas in pipeline/roles.py.

Every stage takes its constant time, stretched where more ranks work than there are cores (each gets an equal share).
Samplers claim tasks in order as long as the queue has a place; trainers take the lowest task that is sampled and whose
group may be begun; rank 0 makes the update as soon as its hands are free; samplers become standby trainers once all
tasks are sampled, and take a task if the profit is positive.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastsample_dist.pipeline.roles import EpochShape, Roles, StageTimes, switching_profit

SAMPLE, TRAIN, UPDATE = "sample", "train", "update"


@dataclass
class Work:
    """What a rank does: seconds left alone on its cores, and how many cores it keeps busy."""

    kind: str
    task: int
    left_s: float
    cores: float = 1.0


class Simulation:
    """One epoch.

    Args:
      times: of the stages.
      shape: of the epoch.
      roles: who samples and who trains; `switching` is that of `shape`.
    """

    def __init__(self, times: StageTimes, shape: EpochShape, roles: Roles) -> None:
        self._times, self._shape, self._roles = times, shape, roles
        self._group_size = shape.group_size or roles.trainers
        self._places = shape.capacity or shape.tasks
        self._work: list[Work | None] = [None] * roles.ranks
        self._ready: set[int] = set()
        self._done: set[int] = set()
        self._claimed = self._sampled = 0
        self._group = 0  # whose update is next
        self.switched = 0  # tasks of standbys

    def run(self) -> float:
        """Seconds until the last update."""
        now = 0.0
        while self._group * self._group_size < self._shape.tasks:
            while any([self._begin(rank) for rank, work in enumerate(self._work) if work is None]):
                pass
            working = [work for work in self._work if work is not None]
            share = min(1.0, self._shape.cores / sum(work.cores for work in working))
            passed = min(work.left_s for work in working)
            now += passed / share
            for rank, work in enumerate(self._work):
                if work is not None:
                    work.left_s -= passed
                    if work.left_s <= 1e-12:
                        self._work[rank] = None
                        self._end(work)
        return now

    def _begin(self, rank: int) -> bool:
        """Whether the rank has found something to do."""
        if rank == 0 and all(task in self._done for task in self._tasks_of(self._group)):
            self._work[0] = Work(UPDATE, self._group, self._times.update_s)
        elif not self._roles.is_sampler(rank):
            self._take(rank, self._trainer_s(), self._trainer_cores())
        elif self._claimed < self._shape.tasks:
            if self._claimed - len(self._done) < self._places:
                self._work[rank] = Work(SAMPLE, self._claimed, self._times.sampler_s)
                self._claimed += 1
        elif self._shape.switching and self._sampled == self._shape.tasks and self._profit() > 0:
            self.switched += self._take(rank, self._times.standby_s, 1.0)
        return self._work[rank] is not None

    def _end(self, work: Work) -> None:
        if work.kind == SAMPLE:
            self._ready.add(work.task)
            self._sampled += 1
        elif work.kind == TRAIN:
            self._done.add(work.task)
        else:
            self._group += 1

    def _take(self, rank: int, seconds: float, cores: float) -> bool:
        task = min(self._ready, default=None)
        if task is None or task // self._group_size > self._group + self._shape.staleness:
            return False
        self._ready.remove(task)
        self._work[rank] = Work(TRAIN, task, seconds, cores)
        return True

    def _profit(self) -> float:
        end = (self._group + self._shape.staleness + 1) * self._group_size
        begin = self._group * self._group_size
        remaining = sum(task not in self._done for task in range(begin, min(end, self._shape.tasks)))
        active = [self._trainer_s()] * self._roles.trainers
        active += [
            self._times.standby_s
            for work in self._work[self._roles.trainers :]
            if work is not None and work.kind == TRAIN
        ]
        return switching_profit(remaining, active, self._times.standby_s)

    def _tasks_of(self, group: int) -> range:
        return range(group * self._group_size, min((group + 1) * self._group_size, self._shape.tasks))

    def _trainer_s(self) -> float:
        stages = (self._times.trainer_fetch_s, self._times.train_s)
        return max(stages) if self._shape.fetches_ahead else sum(stages)

    def _trainer_cores(self) -> float:
        """Of a trainer at work: more than one while it fetches ahead."""
        whole = self._times.trainer_fetch_s + self._times.train_s
        return whole / self._trainer_s() if self._trainer_s() else 1.0

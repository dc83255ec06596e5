"""Which ranks sample and which train, chosen from the times of the stages (GNNLab, section 5.3). Pure: nothing is run.

A task is the batch of one virtual rank in one step; M tasks make an epoch. Ts, Tf, Tt: seconds to sample one, to fetch
its features, to train it, each measured on one rank. R ranks either all do everything (time sharing) or S of them
sample and T train (factored), with a queue of tasks between them.

- Time sharing: M / R * (Ts + Tf + Tt); max(Ts + Tf, Tt) in place of the sum where batches are made ahead.
- Factored: M * max(Ts / S, trainer / T), trainer = Tf' + Tt, or max(Tf', Tt) where features are fetched ahead; Tf' with
  the cache that the freed memory allows. Filling and draining the pipeline adds one sampling or one training.
- Skew: where several ranks train at the same time, each of them for the same update, it waits for the slowest one: in
  a step of time sharing, and in a group without staleness.
- Cores: C cores do no more than C seconds of work a second, so no epoch takes less than M * (Ts + Tf + Tt) / C.
- Groups: an update is over a group of V tasks, and tasks of group u begin when group u - 1 - staleness is done. `_pace`
  follows trainers through that rule: 3 trainers and groups of 4 need two rounds a group, with staleness 0.
- Switching: a sampler helps to train once all tasks of the epoch are sampled. At pace p_s of the samplers and p_t of
  the trainers, p_s > p_t, that is the case at t1 = M / p_s; n = M - p_t * t1 tasks are left, which S + T ranks do at
  p_all: the epoch takes t1 + n / p_all. If a standby is as fast as a trainer and no group is cut short, p_all
  = (S + T) / trainer and the sum is M * (Ts + trainer) / R: that of time sharing. So switching gives back what
  factoring loses, and factoring wins by Tf' < Tf, by overlap, or not at all. A queue of Q places holds the samplers
  back: they are done when M - Q tasks are trained, and only Q tasks are left to share.

Beside an event by event simulation (tests/bench/roles) predictions of 50 groups and more are within 5 % where a group
has a task for every rank that trains and every rank a core, two where it fetches ahead; beyond that within a third.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fastsample_dist.ops import checks

if TYPE_CHECKING:
    from rich.table import Table

ROLES_NONE, ROLES_AUTO = "none", "auto"
QUEUE_BYTES = 1 << 30
LEAST_QUEUE_BYTES = 4096  # a page
_PACE_GROUPS = 256  # over half of which the pace of trainers is taken; it repeats after a few groups


@dataclass(frozen=True)
class StageTimes:
    """Seconds per task on one rank: medians.

    Attributes:
      sample_s, fetch_s, train_s: sampling, fetching features, forward and backward, where every rank does all three; of
        ranks that slow each other down, of one that works alone (see EpochShape.cores).
      fetch_factored_s: fetching on a rank that only trains; None: `fetch_s`.
      standby_train_s: fetching and training on a sampler's rank; None: `fetch_s` + `train_s`.
      handover_s: copying a sampled task into the queue; only with roles.
      update_s: one update of the parameters, per group.
      sum_s: summing gradients over ranks, per step of time sharing; roles have the sum in their update.
      skew_s: by which the slowest of ranks that work at the same time on a task each is behind their mean.
    Raises:
      ValueError: a time is negative or not finite.
    """

    sample_s: float
    fetch_s: float
    train_s: float
    fetch_factored_s: float | None = None
    standby_train_s: float | None = None
    handover_s: float = 0.0
    update_s: float = 0.0
    sum_s: float = 0.0
    skew_s: float = 0.0

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if seconds is not None and not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
                raise ValueError(f"{name} is {seconds!r}; expected seconds >= 0.")

    @property
    def sampler_s(self) -> float:
        """Of a task on a sampler."""
        return self.sample_s + self.handover_s

    @property
    def trainer_fetch_s(self) -> float:
        """Of a task's features on a trainer."""
        return self.fetch_s if self.fetch_factored_s is None else self.fetch_factored_s

    @property
    def standby_s(self) -> float:
        """Of a task on a standby trainer."""
        return self.fetch_s + self.train_s if self.standby_train_s is None else self.standby_train_s


@dataclass(frozen=True)
class Roles:
    """How many ranks sample and how many train. Ranks 0 .. trainers - 1 train, the others sample.

    Attributes:
      samplers, trainers: numbers of ranks, >= 1 each.
      switching: samplers train, too, once all tasks of the epoch are sampled and where it pays.
      queue_bytes: of shared memory for sampled tasks, at most.
      times: of the stages; `standby_s` is read, for the profit of switching. None: what a sampler needed for tasks
        before, or what the trainers need. To choose roles by times that are known: `choose_roles`.
    Raises:
      ValueError: no sampler, no trainer, queue_bytes < LEAST_QUEUE_BYTES, or times of another type.
    Source: GNNLab, section 5.
    """

    samplers: int
    trainers: int
    switching: bool = True
    queue_bytes: int = QUEUE_BYTES
    times: StageTimes | None = None

    def __post_init__(self) -> None:
        checks.make_plain(self)
        for name, least in (("samplers", 1), ("trainers", 1), ("queue_bytes", LEAST_QUEUE_BYTES)):
            checks.whole(name, getattr(self, name), least)
        checks.flag("switching", self.switching)
        if self.times is not None and not isinstance(self.times, StageTimes):
            raise ValueError(f"times is {self.times!r}; expected StageTimes or None.")

    def __str__(self) -> str:
        """As on the command line: "1+3"."""
        return f"{self.samplers}+{self.trainers}"

    @property
    def ranks(self) -> int:
        """Of both kinds."""
        return self.samplers + self.trainers

    def is_sampler(self, rank: int) -> bool:
        """Whether a rank samples."""
        return rank >= self.trainers

    @classmethod
    def parse(cls, text: str) -> Roles:
        """Roles from "samplers+trainers".

        Args:
          text: such as "1+3".
        Raises:
          ValueError: it is not of that form, or one of the numbers is 0.
        """
        found = re.fullmatch(r"(\d+)\+(\d+)", text.strip())
        if found is None:
            raise ValueError(f"roles {text!r} is not SAMPLERS+TRAINERS; pass two numbers, such as 1+3, none or auto.")
        samplers, trainers = map(int, found.groups())
        if not samplers or not trainers:
            raise ValueError(f"roles {text!r} needs at least 1 sampler and 1 trainer; pass numbers >= 1, none or auto.")
        return cls(samplers, trainers)

    def check(self, world_size: int) -> None:
        """Refuse another number of ranks.

        Args:
          world_size: of the run.
        Raises:
          ValueError: samplers + trainers is another.
        """
        if self.ranks != world_size:
            raise ValueError(
                f"roles {self} are {self.ranks} ranks but world_size is {world_size}; start {self.ranks} ranks or pass "
                "numbers that add up, none or auto."
            )


def as_roles(wanted: str | Roles) -> str | Roles:
    """What an option of roles means: "none", "auto" or Roles.

    Args:
      wanted: one of these, or "S+T".
    Raises:
      ValueError: none of them.
    """
    if isinstance(wanted, Roles) or wanted in (ROLES_NONE, ROLES_AUTO):
        return wanted
    if not isinstance(wanted, str):
        raise ValueError(f"roles is {wanted!r}; expected 'none', 'auto', 'S+T' such as '1+3', or Roles.")
    return Roles.parse(wanted)


@dataclass(frozen=True)
class EpochShape:
    """What an epoch is, whoever does it.

    Attributes:
      tasks: M, of the epoch.
      cores: how many ranks can work at the same time as if each were alone: the machine's cores / threads per rank,
        fewer where ranks share what is behind the cores; inf: a device each.
      group_size: V, tasks of an update; None: as many as ranks train.
      staleness: groups that may be begun before the parameters of the one before them are there.
      capacity: places in the queue, tasks in a trainer's hands included; None: as many as tasks.
      prefetches: time sharing makes batches ahead.
      fetches_ahead: trainers fetch a task's features while they train another, as GNNLab's do; ours do not.
      switching: samplers train, too, once everything is sampled.
    """

    tasks: int
    cores: float = math.inf
    group_size: int | None = None
    staleness: int = 0
    capacity: int | None = None
    prefetches: bool = False
    fetches_ahead: bool = False
    switching: bool = True


@dataclass(frozen=True)
class Row:
    """A prediction.

    Attributes:
      roles: None: time sharing.
      seconds: of an epoch.
      limit: what holds it up: "samplers", "trainers", "cores", or "ranks" of time sharing.
    """

    roles: Roles | None
    seconds: float
    limit: str

    @property
    def name(self) -> str:
        """ "none" or "1+3"."""
        return ROLES_NONE if self.roles is None else str(self.roles)


@dataclass(frozen=True)
class Choice:
    """Made by `choose_roles`.

    Attributes:
      chosen: None: time sharing.
      rows: time sharing first, then 1, 2, ... samplers.
      paper: number of samplers by the paper's rule.
      times, shape: that the predictions are made of.
    """

    chosen: Roles | None
    rows: tuple[Row, ...]
    paper: int
    times: StageTimes
    shape: EpochShape

    def __str__(self) -> str:
        """One line for a log."""
        name = ROLES_NONE if self.chosen is None else str(self.chosen)
        seconds = ", ".join(f"{row.name} {row.seconds:.3g} s" for row in self.rows)
        return f"roles auto: {name} (predicted: {seconds}; GNNLab's rule: {self.paper} samplers)"

    def table(self) -> Table:
        """For a console: seconds of an epoch as predicted, for every split."""
        from rich.table import Table

        stages = (("sample", self.times.sampler_s), ("fetch", self.times.fetch_s), ("train", self.times.train_s))
        shown = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in stages)
        table = Table(title=f"roles: {shown} ms a task")
        for column in ("roles", "seconds", "ratio", "limit", ""):
            table.add_column(column, justify="left" if column in ("limit", "") else "right")
        for row in self.rows:
            notes = ["chosen"] if row.roles == self.chosen else []
            if row.roles is not None and row.roles.samplers == self.paper:
                notes.append("GNNLab's ceil(R / (K + 1))")
            ratio = row.seconds / self.rows[0].seconds if self.rows[0].seconds else 1.0
            table.add_row(row.name, f"{row.seconds:.3f}", f"{ratio:.2f}x", row.limit, ", ".join(notes))
        return table


def predict_time_sharing(times: StageTimes, shape: EpochShape, ranks: int) -> float:
    """Seconds of an epoch in which every rank samples, fetches and trains.

    Args:
      times: of the stages.
      shape: of the epoch; its groups, queue and switching do not matter here.
      ranks: R >= 1.
    """
    return _time_sharing(times, shape, ranks).seconds


def predict_factored(times: StageTimes, shape: EpochShape, samplers: int, trainers: int) -> float:
    """Seconds of an epoch with roles: see the top of this file.

    Args:
      times: of the stages.
      shape: of the epoch.
      samplers, trainers: S, T >= 1.
    """
    return _factored(times, shape, Roles(samplers, trainers, shape.switching)).seconds


def paper_samplers(times: StageTimes, ranks: int) -> int:
    """GNNLab's number of samplers, ceil(R / (K + 1)) with K = Tt / Ts, for comparison.

    Tt is the trainer's time of a task: the longer one of fetching and training, which overlap there (section 7.3).

    Args:
      times: of the stages.
      ranks: R >= 2.
    Source: GNNLab, section 5.3.
    """
    trainer_s = max(times.trainer_fetch_s, times.train_s)
    whole = times.sampler_s + trainer_s
    return min(ranks - 1, max(1, math.ceil(ranks * times.sampler_s / whole))) if whole else 1


def choose_roles(times: StageTimes, shape: EpochShape, ranks: int) -> Choice:
    """The split with the shortest predicted epoch; time sharing unless a split is shorter.

    Args:
      times: of the stages.
      shape: of the epoch.
      ranks: R >= 1; one rank has no split.
    """
    rows = [_time_sharing(times, shape, ranks)]
    rows += [_factored(times, shape, Roles(s, ranks - s, shape.switching)) for s in range(1, ranks)]
    best = min(rows, key=lambda row: row.seconds)  # the first of equals
    return Choice(best.roles, tuple(rows), paper_samplers(times, max(ranks, 2)), times, shape)


def switching_profit(remaining: int, active_times: Sequence[float], standby_s: float) -> float:
    """P = M_r / sum(1 / T_i) - T_standby: seconds won if a standby trainer takes a task; it does where P > 0.

    Args:
      remaining: M_r, tasks not yet trained that may be trained now.
      active_times: T_i, seconds per task of every rank that trains now; without one the profit is inf.
      standby_s: seconds per task of the standby.
    Source: GNNLab, section 5.3, with each trainer's own time in place of one T_t for all.
    """
    if not active_times:
        return math.inf
    if min(active_times) <= 0:
        return -standby_s
    return remaining / sum(1 / seconds for seconds in active_times) - standby_s


def _time_sharing(times: StageTimes, shape: EpochShape, ranks: int) -> Row:
    made_s = times.sample_s + times.fetch_s
    work_s = made_s + times.train_s
    steps = math.ceil(shape.tasks / ranks)
    step_s = max(made_s, times.train_s) if shape.prefetches else work_s
    filling_s = work_s - step_s if steps else 0.0  # the first batch is not hidden, nor what is left of the last one
    by_ranks, by_cores = filling_s + steps * step_s, shape.tasks * work_s / shape.cores
    together_s = times.update_s * max(1.0, ranks / shape.cores) + times.sum_s  # all ranks update at the same time
    together_s += times.skew_s if ranks > 1 else 0.0
    return Row(None, max(by_ranks, by_cores) + steps * together_s, "ranks" if by_ranks >= by_cores else "cores")


def _factored(times: StageTimes, shape: EpochShape, roles: Roles) -> Row:
    """Fluid phases: the queue fills, is held full where it has fewer places than tasks, and is drained."""
    shape = replace(shape, group_size=shape.group_size or roles.trainers)
    tasks, cores, sampler_s = shape.tasks, shape.cores, times.sampler_s
    stages = (times.trainer_fetch_s, times.train_s)
    trainer_s = max(stages) if shape.fetches_ahead else sum(stages)
    work_s = sampler_s + sum(stages)
    crew = [trainer_s] * roles.trainers
    train_pace = _pace(crew, shape, times.update_s + _skew(times, shape, crew))
    sample_pace = roles.samplers / sampler_s if sampler_s else math.inf
    core_pace = _core_pace(work_s + times.update_s / shape.group_size, cores)
    if not tasks or train_pace == math.inf == sample_pace:
        return Row(roles, 0.0, "trainers")
    if sample_pace <= train_pace:
        pace, limit = min((sample_pace, "samplers"), (core_pace, "cores"))
        return Row(roles, tasks / pace + sum(stages) + times.update_s, limit)

    at_work = train_pace * sum(stages)  # trainers' mean, those that wait for their group left out
    share = min(1.0, cores / (roles.samplers + at_work))
    places = min(tasks, shape.capacity or tasks)
    at_first = min(roles.trainers, shape.group_size)
    seconds = sampler_s * math.ceil(at_first / roles.samplers)  # until all that train at first have a task
    filling_s = places / (share * (sample_pace - train_pace))
    sampled_s = tasks / (share * sample_pace)
    if sampled_s <= filling_s:
        seconds += sampled_s
        left = tasks - share * train_pace * sampled_s
    else:
        held = tasks - share * sample_pace * filling_s  # tasks that wait for a place
        seconds += filling_s + held / min(train_pace, core_pace)
        left = float(places)
    standbys = _standbys(times, shape, crew, roles.samplers) if roles.switching else 0
    crew += [times.standby_s] * standbys
    train_s = _mean_s([sum(stages)] * roles.trainers + [times.standby_s] * standbys)
    between_s = times.update_s + _skew(times, shape, crew)  # the groups, where nobody trains without staleness
    core_train_pace = _core_pace(train_s + between_s / shape.group_size * (1 if shape.staleness else cores), cores)
    last_pace = min(_pace(crew, shape, between_s), core_train_pace)
    is_of_cores = share < 1 or last_pace == core_train_pace
    last_group = tasks % shape.group_size
    last_rounds_s = math.ceil(last_group / len(crew)) * trainer_s - last_group / last_pace  # others have nothing to do
    return Row(roles, seconds + left / last_pace + max(0.0, last_rounds_s), "cores" if is_of_cores else "trainers")


def _skew(times: StageTimes, shape: EpochShape, crew: Sequence[float]) -> float:
    """Seconds for which a group waits for the slowest of those that train it."""
    return times.skew_s if min(len(crew), shape.group_size) > 1 and not shape.staleness else 0.0


def _core_pace(work_s: float, cores: float) -> float:
    """Tasks a second that the cores allow."""
    return cores / work_s if work_s else math.inf


def _mean_s(task_s: Sequence[float]) -> float:
    """Seconds per task of ranks that take tasks whenever they are free."""
    return len(task_s) / sum(1 / seconds for seconds in task_s) if min(task_s) > 0 else 0.0


def _standbys(times: StageTimes, shape: EpochShape, crew: list[float], samplers: int) -> int:
    """How many samplers find a profit in training while all tasks of the groups that may be begun are to be done."""
    window = (shape.staleness + 1) * shape.group_size
    count = 0
    while count < samplers and switching_profit(window, crew + [times.standby_s] * count, times.standby_s) > 0:
        count += 1
    return count


def _pace(task_s: Sequence[float], shape: EpochShape, update_s: float) -> float:
    """Tasks a second of ranks that never wait for a sampler: each takes the next task as soon as it may be begun.

    A task of group u may be begun when group u - 1 - staleness has been done and its update made, which the first rank
    does as soon as its hands are free.

    Args:
      task_s: seconds per task of each rank.
      shape: group size and staleness.
      update_s: of an update.
    """
    size, groups = shape.group_size, _PACE_GROUPS + shape.staleness
    free = [0.0] * len(task_s)
    done: list[float] = []  # when a group's last task is done, for those of which all are begun
    updated = [0.0]  # when the parameters are there that groups 0, 1, ... follow
    last, task = 0.0, 0
    while len(updated) <= groups:
        rank = min(range(len(free)), key=lambda r: (free[r], r > 0, task_s[r]))
        group, pending = task // size, len(updated) - 1
        if rank == 0 and pending < len(done) and done[pending] <= free[0]:
            free[0] += update_s
            updated.append(free[0])
        elif group - shape.staleness < len(updated):
            begin = max(free[rank], updated[max(0, group - shape.staleness)])
            free[rank] = begin + task_s[rank]
            last = max(last, free[rank])
            task += 1
            if task % size == 0:
                done.append(last)
        else:  # the update that is to come first is made by rank 0 once the group is done
            free[rank] = free[0] if rank else done[pending]
    seconds = updated[-1] - updated[len(updated) // 2]
    return (len(updated) - 1 - len(updated) // 2) * size / seconds if seconds > 0 else math.inf

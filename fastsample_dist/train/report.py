"""What a training run reports: rank 0's console, an epoch's line, the communication table, files of figures."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastsample_dist import command
from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.machine import Machines
from fastsample_dist.comm.names import rank_names
from fastsample_dist.device.placement import Placement
from fastsample_dist.features.cache import CacheReport
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.roles import Roles
from fastsample_dist.train.callbacks import Callback, EpochReport, Run
from fastsample_dist.train.epoch_records import RECORDED
from fastsample_dist.train.metrics import CommStats, CommTally, EpochStats
from fastsample_dist.train.report_sums import tasks_text
from fastsample_dist.train.writers import FigureWriter, JsonLinesWriter, TensorBoardWriter

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

logger = logging.getLogger(__name__)

REPORT_COLUMNS = 110  # of a file or a pipe


def make_console(ctx: DistContext) -> Console:
    """Where rank 0 prints, with a progress bar on a terminal; the other ranks' is quiet. See command.make_console."""
    pty_of_mpirun = ctx.launcher == "openmpi"  # its ranks write to a terminal of their own, wherever the output goes
    on_terminal = ctx.rank == 0 and sys.stdout.isatty() and not pty_of_mpirun
    width = None if on_terminal else REPORT_COLUMNS
    return command.make_console(quiet=ctx.rank != 0, force_terminal=on_terminal, width=width)


def device_lines(ctx: DistContext, places: Sequence[Placement]) -> list[str]:
    """Rank 0's device and where the tables that it reads are, and why; nothing for a CPU that was asked for.

    Args:
      ctx: the rank's context.
      places: of a loader.
    """
    if ctx.device.type != "cuda":
        return [] if ctx.device_reason == "asked for" else [f"device {ctx.device}: {ctx.device_reason}"]
    name = torch.cuda.get_device_name(ctx.device)
    return [f"device {ctx.device}: {name} ({ctx.device_reason})", *map(str, places)]


def device_figures(ctx: DistContext, loader: BatchLoader) -> dict[str, object]:
    """The same as JSON values, with what kernel "auto" measured: {"device", "device_name", "device_reason", "places":
    [{"table", "where", "bytes", "why"}], "kernels": [{"fanouts", "most_seeds", "kernel", "medians_ms"}]}.
    """
    is_gpu = ctx.device.type == "cuda"
    return {
        "device": str(ctx.device),
        "device_name": torch.cuda.get_device_name(ctx.device) if is_gpu else None,
        "device_reason": ctx.device_reason,
        "places": [
            {"table": place.name, "where": place.where, "bytes": place.num_bytes, "why": place.why}
            for place in loader.places
        ],
        "kernels": [
            {
                "fanouts": report.kind.spec.fanouts, "most_seeds": report.kind.most_seeds, "kernel": report.kernel,
                "medians_ms": report.medians_ms,
            }
            for report in loader.kernel_report()
        ],
    }  # fmt: skip


def cache_figures(loader: BatchLoader, epoch: int | None = None) -> dict[str, Any] | None:
    """A loader's cache report over all ranks as JSON values; None where no cache was asked for.

    Collective: every rank must call this. Purpose "metrics".

    Args:
      loader: with or without a cache.
      epoch: whose; None: of all epochs that were made.
    """
    if loader.options.cache is None:
        return None
    comm = loader.data.ctx.comm
    return CacheReport.total(comm.all_gather_object(loader.cache_report(epoch), purpose="metrics")).as_json()


def hit_rates(cache: Mapping[str, Any]) -> str:
    """ "65.8 % (oracle 66.2 %)"; a rate that is not known is a dash."""
    hits, oracle = (
        "-" if rate is None else f"{100 * rate:.1f} %" for rate in (cache["hit_rate"], cache["oracle_hit_rate"])
    )
    return f"{hits} (oracle {oracle})"


def roles_of(loader: BatchLoader) -> Roles | None:
    """The roles of a loader's ranks; None where every rank does everything."""
    return None if loader.executor is None else loader.executor.roles


def roles_line(roles: Roles, machines: Machines) -> str:
    """ "roles 1+3: ranks 0-2 train, rank 3 samples", and whether samplers help to train."""
    samplers = [rank for group in machines.groups for rank in group[roles.trainers :]]
    groups = [sorted({*range(machines.world_size)} - {*samplers}), sorted(samplers)]
    train, sample = (rank_names(group) for group in groups)
    verbs = ("train" if len(groups[0]) > 1 else "trains", "sample" if len(groups[1]) > 1 else "samples")
    standby = "" if roles.switching else "; samplers do not help to train"
    where = "" if machines.is_one else f" on each of {len(machines.groups)} machines"
    return f"roles {roles}{where}: {train} {verbs[0]}, {sample} {verbs[1]}{standby}"


def epoch_line(stats: EpochStats, measured: Mapping[str, Any]) -> str:
    """Loss, what was measured and where the time went.

    Args:
      stats: of the epoch.
      measured: by name, such as {"val_acc": 0.7}; empty where the epoch was not evaluated. "cache": its report;
        "roles": see RoleFigures. What is no number, such as a list, stands in the files alone.
    """
    measured = dict(measured)
    cache, roles = measured.pop("cache", None), measured.pop("roles", None)
    numbers = {name: value for name, value in measured.items() if isinstance(value, int | float)}
    names = {name: name.replace("val_acc", "val").replace("_", " ", 1) for name in numbers}
    found = "".join(f"  {names[name]} {value:.4f}" for name, value in numbers.items())
    parts = {"sample": stats.sample_s, "fetch": stats.fetch_s, "compute": stats.compute_s}
    shown = ", ".join(f"{name} {seconds:.2f}" for name, seconds in (*parts.items(), ("gradients", stats.gradients_s)))
    hits = "" if cache is None else f"  cache hits {hit_rates(cache)}"
    tasks = "" if roles is None else f"  batches {tasks_text(roles)}"
    return f"loss {stats.loss:.4f}{found}{hits}{tasks}  {stats.seconds:.2f} s ({shown})"


def comm_table(stats: CommStats, steps: int) -> Table:
    """Calls and bytes by purpose; 1 MB is 10^6 bytes."""
    from rich.table import Table

    table = Table(title=f"communication of rank 0 in {steps} training steps")
    for column in ("purpose", "calls", "MB sent", "MB received", "calls/step", "kB sent/step", "kB received/step"):
        table.add_column(column, justify="left" if column == "purpose" else "right")
    for purpose, counts in sorted(stats.items()):
        calls, sent, received = counts["calls"], counts["bytes_sent"], counts["bytes_received"]
        table.add_row(
            purpose, str(calls), f"{sent / 1e6:.2f}", f"{received / 1e6:.2f}", f"{calls / steps:.2f}",
            f"{sent / 1e3 / steps:.1f}", f"{received / 1e3 / steps:.1f}",
        )  # fmt: skip
    return table


def epoch_table(epochs: Sequence[Mapping[str, Any]]) -> Table:
    """Every epoch's figures, for the end of a run on a terminal.

    Args:
      epochs: fields of EpochStats, with "val_acc" or other metrics where the epoch was evaluated, and "cache" and
        "roles" where there are.
    """
    from rich.table import Table

    measured = list(dict.fromkeys(name for figures in epochs for name in figures if name.startswith("val_")))
    figures_shown = ["loss", *(measured or ["val_acc"])]
    names = ("epoch", *figures_shown, "seconds", "sample_s", "fetch_s", "compute_s", "gradients_s")
    table = Table(title="epochs")
    texts = {"cache": ("cache hits", hit_rates), "roles": ("batches", tasks_text)}
    texts = {name: text for name, text in texts.items() if any(name in figures for figures in epochs)}
    for name in (*names, *(title for title, _ in texts.values())):
        table.add_column(name, justify="right")
    for figures in epochs:
        values = [figures.get(name) for name in names[1:]]
        cells = [
            "" if value is None else f"{value:.4f}" if i < len(figures_shown) else f"{value:.2f}"
            for i, value in enumerate(values)
        ]
        cells += [text(figures[name]) if name in figures else "" for name, (_, text) in texts.items()]
        table.add_row(str(int(figures["epoch"]) + 1), *cells)
    return table


def logged(report: EpochReport) -> dict[str, Any]:
    """An epoch's figures for its line and for curves: all but those of the test split, which end a run, and records."""
    return {
        name: value for name, value in report.figures.items() if not name.startswith("test_") and name not in RECORDED
    }


class ConsoleReport(Callback):
    """A progress bar over the steps, and a line per epoch.

    Args:
      console: of rank 0; the others' is quiet.
      progress: on that console; the callback starts and stops it.
      name: of what is trained, beside the bar.
    """

    def __init__(self, console: Console, progress: Progress, name: str) -> None:
        self._console, self._progress, self._name = console, progress, name

    def on_begin(self, run: Run) -> None:
        """Show the bar."""
        self._epochs = run.epochs
        self._progress.start()
        steps = sum(map(run.loader.num_steps, range(run.loader.epoch, run.epochs)))
        self._bar = self._progress.add_task(self._name, total=steps)

    def on_update(self, step: int) -> None:
        """Advance it."""
        self._progress.advance(self._bar)

    def on_epoch(self, report: EpochReport) -> None:
        """Print the epoch's line."""
        measured = {name: value for name, value in logged(report).items() if name != "lr"}
        number = report.stats.epoch + 1
        self._console.print(f"epoch {number}/{self._epochs}  {epoch_line(report.stats, measured)}")

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


class History(Callback):
    """Gathers the figures of every epoch.

    Args:
      epochs: the list to add to, such as one that a checkpoint keeps; None begins a new one.
    Attributes:
      epochs: per epoch the fields of EpochStats and the report's figures, as JSON values.
    """

    def __init__(self, epochs: list[dict[str, Any]] | None = None) -> None:
        self.epochs = [] if epochs is None else epochs

    def on_epoch(self, report: EpochReport) -> None:
        """Add the epoch."""
        self.epochs.append(asdict(report.stats) | report.figures)


class TrainingTally(Callback):
    """Counts the steps and the communication of training, that of other callbacks after an epoch left out; first in the
    list.

    Args:
      tally: what it adds to.
    """

    def __init__(self, tally: CommTally) -> None:
        self._tally = tally
        self._open = ExitStack()
        self._first_step: int | None = None

    @property
    def steps(self) -> int:
        """Steps that this process has made, the same on all ranks."""
        return 0 if self._first_step is None else self._run.step - self._first_step

    def on_begin(self, run: Run) -> None:
        """Keep the run."""
        self._run = run

    def on_epoch_begin(self, epoch: int) -> None:
        """Count from here."""
        if self._first_step is None:  # not in on_begin: a resumed run's step is set in that of a later callback
            self._first_step = self._run.step
        self._open.enter_context(self._tally)

    def on_epoch(self, report: EpochReport) -> None:
        """Count to here."""
        self._open.close()

    def close(self) -> None:
        """Count what an epoch that was ended early has done."""
        self._open.close()


class CacheFigures(Callback):
    """Adds "cache" to the figures of every epoch where the loader has a cache; before those that print or log."""

    def on_begin(self, run: Run) -> None:
        """Keep the loader."""
        self._loader = run.loader

    def on_epoch(self, report: EpochReport) -> None:
        """Add the epoch's report. Collective: every rank must call this."""
        found = cache_figures(self._loader, report.stats.epoch)
        if found is not None:
            report.figures["cache"] = found


class RoleFigures(Callback):
    """Adds "roles" to the figures of every epoch of ranks with roles; before those that print or log.

    {"samplers", "trainers": numbers of ranks; "sampled", "trained": batches by rank, trainers first, of an epoch that
    was resumed those of the rest; "standby": how many of the trained samplers have trained}
    """

    def on_begin(self, run: Run) -> None:
        """Keep the loader."""
        self._loader = run.loader

    def on_epoch(self, report: EpochReport) -> None:
        """Add the epoch's counts. Collective: every rank must call this. Purpose "metrics"."""
        executor = getattr(self._loader, "executor", None)
        if executor is None:
            return
        own = (executor.is_sampler, executor.tally.sampled, executor.tally.trained)
        of_ranks = self._loader.data.ctx.comm.all_gather_object(own, purpose="metrics")
        samples, sampled, trained = zip(*sorted(of_ranks, key=lambda found: found[0]), strict=True)
        trainers = samples.count(False)
        report.figures["roles"] = {
            "samplers": samples.count(True), "trainers": trainers, "sampled": list(sampled), "trained": list(trained),
            "standby": sum(trained[trainers:]),
        }  # fmt: skip


class EpochFigures(Callback):
    """The figures of every epoch, in the files that are wanted; writes on rank 0 only.

    A file that cannot be written does not end the run: one warning names it, its figures are kept in memory and tried
    again after every epoch, and a second warning at the end says what is missing.

    Args:
      ctx: the rank's context.
      jsonl: file of JSON lines, or None.
      tensorboard: directory of event files, or None.
    Raises:
      OSError, RuntimeError: as the writers.
    """

    def __init__(self, ctx: DistContext, *, jsonl: Path | None = None, tensorboard: Path | None = None) -> None:
        self._writers: list[FigureWriter] = []
        self._warned: set[FigureWriter] = set()
        if ctx.rank == 0 and jsonl is not None:
            self._writers.append(JsonLinesWriter(jsonl))
        if ctx.rank == 0 and tensorboard is not None:
            self._writers.append(TensorBoardWriter(tensorboard))

    def on_epoch(self, report: EpochReport) -> None:
        """Write the epoch's figures."""
        for writer in self._writers:
            try:
                figures = logged(report) if writer.draws_curves else report.figures
                writer.write({**asdict(report.stats), **figures}, report.step)
            except OSError as error:
                self._warn(writer, error)

    def close(self) -> None:
        """Finish the files. A second call does nothing."""
        while self._writers:
            writer = self._writers.pop()
            try:
                writer.close()
            except OSError:
                missing = len(writer.file.waiting)
                logger.warning("%s %s lacks the last %d epoch(s).", writer.option, writer.file.path, missing)

    def _warn(self, writer: FigureWriter, error: OSError) -> None:
        if writer in self._warned:
            return
        self._warned.add(writer)
        logger.warning(
            "%s %s cannot be written (%s); training continues and tries again after every epoch.",
            writer.option, writer.file.path, error.strerror,
        )  # fmt: skip

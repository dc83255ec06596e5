"""Checkpointer: saves a run every so many steps and when it is stopped, and resumes it.

A checkpoint holds the model, the optimizer, where the loader stands (position.py: the seeds of the epoch still to come,
by original id), the epoch's totals so far, every rank's torch generators, values of the caller, and what identifies the
run: partition, world size, options. Sampling, dropout and shuffling draw from counter-based generators keyed by
(rng_seed, step) and (rng_seed, epoch, rank), so their state is the position itself.

Rank 0 alone reads and writes files; what it read goes to the others by broadcast, so the directory may be on its
machine only. On the same world size the parameters become those of a run that was never interrupted, bit for bit; on
another each remaining seed of the epoch is seen exactly once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.ops import checks
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.position import PURPOSE, SEEDS, LoaderPosition
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.train.callbacks import Callback, EpochReport, Meeting, Run
from fastsample_dist.train.checkpoint_files import CheckpointFiles
from fastsample_dist.train.generators import generator_states, set_generator_states
from fastsample_dist.train.metrics import EpochTotals
from fastsample_dist.train.shared_state import broadcast_state
from fastsample_dist.train.stop import StopSignal
from fastsample_dist.train.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """Where and when to save, and what must be the same when the run is resumed.

    Attributes:
      directory: of this run's checkpoints and no other's; a name becomes a Path.
      every: steps between two checkpoints, at least 1.
      keep: how many of the newest stay, at least 1.
      options: what shapes the run (learning rate, fanouts, seed, ...), as JSON values; a checkpoint made with others
        is refused. The world size and the batch size need not be among them.
      may_change: names of options that may differ nevertheless.
    Raises:
      ValueError: every or keep is no integer >= 1, directory no path, options no values by name, may_change no list.
    """

    directory: str | Path
    every: int = 100
    keep: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    may_change: Collection[str] = ()

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name), 1))
        if not isinstance(self.directory, str | os.PathLike):
            raise ValueError(f"directory is {self.directory!r}; expected a path, such as 'saved'.")
        object.__setattr__(self, "directory", Path(self.directory))
        if not isinstance(self.options, Mapping):
            raise ValueError(f"options is {self.options!r}; expected values by name, such as {{'lr': 0.01}}.")
        if isinstance(self.may_change, str) or not isinstance(self.may_change, Collection):
            raise ValueError(f"may_change is {self.may_change!r}; expected a list of names, such as ['lr'].")


@dataclass(frozen=True)
class Resumed:
    """What a run was resumed from.

    Attributes:
      path: the checkpoint, as rank 0 names it.
      epoch, step: the epoch under way and the global step of the next batch.
      world_size: of the run that wrote it.
    """

    path: str
    epoch: int
    step: int
    world_size: int


class Checkpointer(Callback):
    """Saves and restores one trainer with one loader; a callback of `Trainer.fit`, called last.

    Args:
      trainer: whose model and optimizer are saved.
      loader: of the train split.
      settings: where, when, what.
      stop: asked after every step whether to stop.
    Attributes:
      kept: the caller's values (JSON), saved with every checkpoint and restored by `begin`.
      carried: totals of the part of the epoch that was done before the run was resumed.
      resumed: what `begin` resumed the run from; None after a fresh start.
      stopped: all ranks have agreed to stop; the checkpoint is written, or a warning said why not.
      last_path: on rank 0, the newest checkpoint that is known to be good; None before the first.
    Raises:
      ValueError: settings of another type.
    """

    agrees = True

    def __init__(
        self, trainer: Trainer, loader: BatchLoader, settings: CheckpointSettings, stop: StopSignal | None = None
    ) -> None:
        self.kept: dict[str, Any] = {}
        self.carried = EpochTotals()
        self.resumed: Resumed | None = None
        self.stopped = False
        self.last_path: Path | None = None
        if not isinstance(settings, CheckpointSettings):
            found = type(settings).__name__
            raise ValueError(f"settings is a {found}; expected CheckpointSettings(directory, ...).")
        self._trainer, self._loader, self._settings = trainer, loader, settings
        self._stop = stop or StopSignal()
        self._ctx = loader.data.ctx
        self._files = CheckpointFiles(Path(settings.directory), settings.keep)
        self._epoch = self._step = 0
        self._saved_step = -1
        self._begun = False
        self._in_epoch = False  # after a step of an epoch that has not been ended

    def begin(self, *, resume: bool, attempt: int = 0) -> Resumed | None:
        """Resume from the newest valid checkpoint, or start afresh.

        Collective: every rank must call this, with the same arguments, before the first step.

        Args:
          resume: resume from the checkpoint that is there, if any. Without it the directory must have none.
          attempt: which restart of this launch this is (LaunchInfo.attempt). From 1 on, the run resumes from the
            checkpoints of its earlier attempts by itself.
        Returns:
          What it resumes from; None: it starts afresh.
        Raises:
          ValueError: on all ranks: they differ in `every`, the directory cannot be written or holds another run's
            checkpoints, none of them is valid, or the one to resume from is of another partition, model, optimizer or
            options.
        """
        agree_on(self._ctx.comm, "Checkpointer", {"every": self._settings.every})
        found = agree(self._ctx, lambda: self._choose(resume, attempt) if self._ctx.rank == 0 else None)
        shared = broadcast_state(self._ctx.comm, found and {"path": str(found[0]), "content": found[1]})
        self._begun = True
        if shared is None:
            return None
        path, content = shared["path"], shared["content"]
        settings, data = self._settings, self._loader.data
        agree(self._ctx, lambda: check_same_run(path, content, self._identity(), data.path, settings.may_change))
        self._restore(path, content)
        self.resumed = Resumed(path, content["epoch"], content["step"], content["world_size"])
        return self.resumed

    @property
    def meet_every(self) -> int:
        """See Callback."""
        return self._settings.every

    def on_begin(self, run: Run) -> None:
        """Pass on how far the resumed run had got.

        Raises:
          ValueError: `begin` was not called.
        """
        if not self._begun:
            raise ValueError("a Checkpointer was passed to fit before it was begun; call begin(resume=...) first.")
        run.carried, run.step = self.carried, self._step
        self._stop.calls(run.request_meeting)

    def on_step(self, batch: MiniBatch | Meeting) -> bool:
        """Save when it is time to.

        Collective: every rank must call this, after every step, with roles at every meeting.

        Returns:
          Whether all ranks stop here. A checkpoint of this step is then written, or a warning says why not.
        """
        self._epoch, self._step, self._in_epoch = batch.epoch, batch.step + 1, True
        self.stopped = self._stop.agreed(self._ctx.comm)
        if self.stopped or self._step % self._settings.every == 0:
            self.save()
        return self.stopped

    def on_epoch(self, report: EpochReport) -> bool:
        """Note that an epoch is done, with all that the caller keeps of it.

        Collective: every rank must call this.

        Returns:
          Whether all ranks stop here, as `on_step`.
        """
        self.carried = EpochTotals()
        self._epoch, self._in_epoch, self._saved_step = report.stats.epoch + 1, False, -1
        self.stopped = self._stop.agreed(self._ctx.comm)
        if self.stopped:
            self.save()
        return self.stopped

    def on_end(self) -> None:
        """Save the last step. Collective: as `save`."""
        self.save()

    def save(self) -> None:
        """Write a checkpoint of the latest finished step, unless there is one already.

        When it cannot be written, that is a warning on rank 0: training continues and the earlier checkpoints are
        untouched.

        Collective: every rank must call this, after the same step.
        """
        if self._saved_step == self._step:
            return
        self._saved_step = self._step
        position = self._loader.position(self._epoch, self._step)
        totals = self._trainer.totals() if self._in_epoch else self.carried
        own = {kind: state.numpy().tobytes() for kind, state in generator_states(self._ctx.device).items()}
        generators = self._ctx.comm.all_gather_object(own, purpose=PURPOSE)  # torch 2.4 warns of a tensor in a pickle
        if self._ctx.rank > 0:
            return
        content = {
            **self._identity(),
            "world_size": self._ctx.world_size,
            "launch": launch_id(os.environ),
            "state": self._trainer.state(),
            "epoch": position.epoch,
            "step": position.step,
            "step_in_epoch": totals.steps,
            "remaining": position.remaining,
            "of": position.of,
            "totals": asdict(totals),
            "generators": [
                {kind: torch.frombuffer(bytearray(state), dtype=torch.uint8) for kind, state in states.items()}
                for states in generators
            ],
            "kept": self.kept,
        }
        try:
            self.last_path = self._files.write(position.step, content)
        except RuntimeError as error:
            logger.warning("%s", error)

    def _identity(self) -> dict[str, Any]:
        return identity(self._loader.data.manifest, self._settings.options)

    def _choose(self, resume: bool, attempt: int) -> tuple[Path, dict[str, Any]] | None:
        """On rank 0: the checkpoint to resume from."""
        self._files.prepare()
        found = self._files.newest() if resume or attempt > 0 else None
        of_this_launch = found is not None and found[1]["launch"] == launch_id(os.environ)
        if resume or of_this_launch:
            return found
        if paths := self._files.paths():
            raise ValueError(
                f"{self._settings.directory} holds checkpoints already, up to {paths[-1].name}; resume from them, or "
                "choose another directory."
            )
        return None

    def _restore(self, path: str, content: dict[str, Any]) -> None:
        try:
            self._trainer.load_state(content["state"])
            of = content.get("of", SEEDS)  # releases that knew seeds alone did not say so
            self._loader.resume(LoaderPosition(content["epoch"], content["step"], content["remaining"], of))
        except ValueError as error:
            raise ValueError(f"{path} does not fit: {error}") from error
        if content["world_size"] == self._ctx.world_size:
            set_generator_states(content["generators"][self._ctx.rank], self._ctx.device)
        self.kept, self.carried = content["kept"], EpochTotals(**content["totals"])
        self._epoch, self._step, self._saved_step = content["epoch"], content["step"], content["step"]
        self.last_path = Path(path)


def identity(manifest: Manifest, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint and the run that resumes from it must have in common.

    Args:
      manifest: of the partition.
      options: what shapes the run, as JSON values.
    """
    return {
        "graph": manifest.name,
        "num_parts": manifest.num_parts,
        "partition": fingerprint(manifest),
        "options": dict(options),
    }


def check_same_run(
    path: str, content: Mapping[str, Any], now: Mapping[str, Any], data_path: Path,
    may_change: Collection[str] | None = None,
) -> None:  # fmt: skip
    """Refuse a checkpoint of another run.

    Args:
      path: of the checkpoint, for messages.
      content: of it; as `identity` among others.
      now: the `identity` of this run.
      data_path: its partition, for messages.
      may_change: names of options that may differ nevertheless; None: nobody can allow that of any.
    Raises:
      ValueError: another partition, another option; names both values.
    """
    if content["partition"] != now["partition"]:
        raise ValueError(
            f"{path} was made on another partition ({content['graph']}, {content['num_parts']} parts) than "
            f"{data_path} ({now['graph']}, {now['num_parts']} parts); pass that one, or start in another checkpoint "
            "directory."
        )
    names = [name for name in now["options"] | content["options"] if name not in (may_change or ())]
    for name in sorted(names, key=lambda name: name != "sampler"):  # others differ because samplers do
        then, is_now = (json.dumps(found["options"].get(name)) for found in (content, now))
        if then != is_now:
            allowing = ", or --allow-new-lr (may_change=['lr'])" if name == "lr" and may_change is not None else ""
            raise ValueError(
                f"{path} was made with {name} {then} but this run has {name} {is_now}; pass the same{allowing}, or "
                "start in another checkpoint directory."
            )


def fingerprint(manifest: Manifest) -> str:
    """What identifies a partition: the SHA-256 over its ranges and its files' hashes."""
    hashes = {name: record["sha256"] for name, record in manifest.files.items()}
    text = json.dumps([manifest.part_ranges, hashes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def launch_id(environ: Mapping[str, str]) -> str:
    """What all attempts of one launch by torchrun share, on the machine of rank 0: its run id, or else its agent."""
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    return run_id if run_id != "none" else f"{socket.gethostname()}:{os.getppid()}"

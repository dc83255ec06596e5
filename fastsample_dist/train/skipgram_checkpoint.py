"""SkipGramCheckpointer: saves embeddings in training every so many steps and after every epoch, and resumes them.

A checkpoint is a file per part, with its rows and their moments, and one file of the run: where the walks stand, the
number of updates, the epoch's totals so far, and what identifies the run. The rank that holds a part writes its file;
rank 0 writes the run's after all of these are there, so a run's file always has its parts. As parts, not ranks, cut the
walks and hold the rows, a checkpoint is resumed by any number of ranks that divides the number of parts, and the rows
become those of a run that was never interrupted, bit for bit.

    DIR/step-000000100.ckpt             of the run; on rank 0's machine
    DIR/part-0/step-000000100.ckpt      of a part; where the rank that holds it can read and write
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.ops import checks
from fastsample_dist.pipeline.data import own_parts
from fastsample_dist.pipeline.position import PURPOSE, LoaderPosition
from fastsample_dist.pipeline.walk_loader import WalkLoader
from fastsample_dist.sampling.transit.app_sampler import app_facts
from fastsample_dist.train.checkpoint import check_same_run, fingerprint, identity
from fastsample_dist.train.checkpoint_files import CheckpointFiles, DamagedCheckpointError, decode
from fastsample_dist.train.protocol import check_kind
from fastsample_dist.train.shared_state import broadcast_state
from fastsample_dist.train.skipgram import EpochSoFar, SkipGram

logger = logging.getLogger(__name__)


class SkipGramCheckpointer:
    """Saves and resumes one SkipGram with one WalkLoader; passed to `SkipGram.fit`.

    Collective: every rank must construct this, with the same arguments.

    Args:
      model: whose rows and moments are saved.
      loader: of its walks.
      directory: of this run's checkpoints and no other's. Saving takes as much memory again as a part's rows.
      every: steps between two checkpoints; None: after every epoch alone.
    Attributes:
      so_far: of the epoch under way, what was done before the run was resumed: pairs and loss on rank 0 alone.
    Raises:
      ValueError: `every` is below 1, or not the same on all ranks; a directory that cannot be written (on all ranks).
    """

    def __init__(self, model: SkipGram, loader: WalkLoader, directory: str | Path, every: int | None = None) -> None:
        check_kind("model", model, SkipGram, "fsd.SkipGram(data)")
        check_kind("loader", loader, WalkLoader, "fsd.WalkLoader(data, transit.DeepWalk(80))")
        self._model, self._loader, self._data, self._ctx = model, loader, model.data, model.data.ctx
        self._directory, self._every = Path(directory), every
        self.so_far = EpochSoFar()
        self._saved_step = -1
        self._run_files = CheckpointFiles(self._directory, keep=1)
        parts = own_parts(self._data.manifest.num_parts, self._ctx)
        self._part_files = {part: CheckpointFiles(self._directory / f"part-{part}", keep=None) for part in parts}
        self._named_step = -1  # on rank 0, of the checkpoint that the run's file names; -1: there is none
        agree(self._ctx, self._prepare)
        agree_on(self._ctx.comm, "SkipGramCheckpointer", {"every": every})

    def begin(self) -> int | None:
        """Resume from the newest checkpoint, if there is one.

        Collective: every rank must call this, before the first step.

        Returns:
          The global step of the next batch; None: there is no checkpoint, the run starts afresh.
        Raises:
          ValueError: on all ranks: the checkpoint is of another partition, options or walks, or a file of a part is
            missing or damaged.
        """
        newest = agree(self._ctx, lambda: self._run_files.newest() if self._ctx.rank == 0 else None)
        shared = broadcast_state(self._ctx.comm, newest and {"path": str(newest[0]), "content": newest[1]})
        if shared is None:
            return None
        path, content = shared["path"], shared["content"]
        parts = agree(self._ctx, lambda: self._checked_parts(path, content))
        position = LoaderPosition(content["epoch"], content["step"], content["remaining"])
        try:
            self._loader.resume(position)
        except ValueError as error:
            raise ValueError(f"{path} does not fit: {error}") from error
        for part, tables in parts.items():
            for own, saved in zip(self._tables(part), tables, strict=True):
                own.copy_(saved)
        self._model.num_updates = content["updates"]
        so_far = EpochSoFar(**content["so_far"])
        self.so_far = so_far if self._ctx.rank == 0 else EpochSoFar(so_far.steps)  # once over all ranks
        self._saved_step = self._named_step = position.step
        return position.step

    def on_step(self, epoch: int, step: int, so_far: EpochSoFar) -> None:
        """Save when it is time to.

        Collective: every rank must call this, after every step.

        Args:
          epoch: under way.
          step: global step of the next batch.
          so_far: of the epoch, on this rank.
        """
        if self._every is not None and step % self._every == 0:
            self._save(epoch, step, so_far)

    def on_epoch(self, epoch: int, step: int) -> None:
        """Save an epoch's end.

        Collective: every rank must call this, after every epoch.

        Args:
          epoch: the next one.
          step: its first global step.
        """
        self.so_far = EpochSoFar()
        self._save(epoch, step, self.so_far)

    def _save(self, epoch: int, step: int, so_far: EpochSoFar) -> None:
        """Write a checkpoint. When that fails, it is a warning on rank 0: training continues, and the checkpoint before
        is as it was: the files of parts stay until the run's file names later ones, those that it never named until
        the next checkpoint.
        """
        position = self._loader.position(epoch, step)
        failure = None
        try:
            if step != self._saved_step:  # an epoch's last step may have been saved; its rows are the same
                for part, files in self._part_files.items():
                    files.write(step, {"partition": self._partition, "tables": [*self._tables(part)]})
        except RuntimeError as error:
            failure = str(error)
        own = (failure, asdict(so_far), self._named_step)
        failures, sums, named = zip(*self._ctx.comm.all_gather_object(own, purpose=PURPOSE), strict=True)
        for files in self._part_files.values():
            files.delete_before(step, keep=named[0])
        failure = next((line for line in failures if line is not None), None)
        if failure is None:
            self._saved_step = step
        if self._ctx.rank > 0:
            return
        content = {
            **self._identity(),
            "epoch": position.epoch, "step": position.step, "remaining": position.remaining,
            "updates": self._model.num_updates,
            "so_far": {
                "steps": so_far.steps,
                "pairs": sum(of_rank["pairs"] for of_rank in sums),
                "loss": sum(of_rank["loss"] for of_rank in sums),
            },
        }  # fmt: skip
        try:
            if failure is not None:
                raise RuntimeError(failure)
            self._run_files.write(step, content)
            self._named_step = step
        except RuntimeError as error:
            logger.warning("%s", error)

    def _prepare(self) -> None:
        if self._every is not None:
            checks.whole("every", self._every, 1)
        for files in (*([self._run_files] if self._ctx.rank == 0 else []), *self._part_files.values()):
            files.prepare()

    @property
    def _partition(self) -> str:
        return fingerprint(self._data.manifest)

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint and the run that resumes from it must have in common."""
        loader = self._loader
        walks = {
            **app_facts(loader.app), "walks_per_node": loader.walks_per_node,
            "batch_size": loader.batch_size, "walk_seed": loader.rng_seed, "shuffle": loader.shuffle,
        }  # fmt: skip
        return identity(self._data.manifest, {**asdict(self._model.options), **walks})

    def _checked_parts(self, path: str, content: dict[str, Any]) -> dict[int, list[Tensor]]:
        """The saved tables of this rank's parts; refuses a checkpoint of another run."""
        check_same_run(path, content, self._identity(), self._data.path)
        return {part: self._read_part(files, content) for part, files in self._part_files.items()}

    def _read_part(self, files: CheckpointFiles, content: dict[str, Any]) -> list[Tensor]:
        path = files.directory / f"step-{content['step']:09}.ckpt"
        try:
            saved = decode(path)
        except (DamagedCheckpointError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValueError(
                f"{path} cannot be read ({reason}) but the run's checkpoint needs it; put the file of that run there, "
                "or start in another checkpoint directory."
            ) from error
        if saved["partition"] != content["partition"]:
            raise ValueError(f"{path} was made on another partition than the run's checkpoint; put that run's there.")
        return saved["tables"]

    def _tables(self, part: int) -> list[Tensor]:
        """Rows of a part, and their moments: views of the model's."""
        lo, hi = (2 * (end - self._data.own_range[0]) for end in self._data.book.part2range(part))
        return [table[lo:hi] for table in self._model.tables()]

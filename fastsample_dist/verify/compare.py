"""k ranks against one process, step by step: seeds, in-neighbours, input nodes, features, labels, summed gradients.

The ranks (rank.py) make a few mini-batches through their loaders; one process (reference.py) computes what they must
be. All but gradients must be equal; those are compared within a tolerance, because the ranks' sums are rounded in
another order than one process's. The first difference is named by ranks, scheme, step, rank, hop and original node id.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fastsample_dist.pipeline.schemes import SCHEMES
from fastsample_dist.pipeline.transport import AUTO
from fastsample_dist.testing.jobs import RankJob, ranks_ended
from fastsample_dist.verify.content import FEATURES, Content, batch_content, first_difference
from fastsample_dist.verify.rank import content_file, gradient_file
from fastsample_dist.verify.reference import OneProcess, VerifySettings

RANK_TASK = "fastsample_dist.verify.rank:verify_rank"
TIMEOUT_S = 600.0  # of one collective: ranks wait for the one that checks the topology's bytes
TOLERANCE = 1e-10  # of the largest entry: double precision is 1e-16, a gradient sums some ten thousand terms


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the ranks are run.

    Attributes:
      path: the partition.
      schemes: "hybrid", "vanilla" or both.
      prefetch, transport, exchange: of the loaders.
      tolerance: largest gradient error, as a share of the gradient's largest entry.
      checksums: let the ranks compare the files with the manifest first.
      mpirun: program that starts the ranks; None: torch.distributed.
      deadline_s: for all ranks to end.
      rank_paths: the directory that each rank reads, where ranks have copies of their own; None: `path`.
      task: what the ranks run.
    """

    path: Path
    schemes: tuple[str, ...] = SCHEMES
    prefetch: int = 0
    transport: str = AUTO
    exchange: str = "auto"
    tolerance: float = TOLERANCE
    checksums: bool = True
    mpirun: str | None = None
    deadline_s: float = 1800.0
    rank_paths: tuple[Path, ...] | None = None
    task: str = RANK_TASK


class Difference(Exception):  # noqa: N818  # it is a result, not an error of the program
    """The first difference that was found; its text is the line for the user."""


def verify(options: RunOptions, settings: VerifySettings, num_ranks: int) -> dict:
    """Compare a run of so many ranks with one process.

    Returns:
      {"ranks", "schemes", "batches", "tensors", "edges", "gradient_error": largest, as a share of the largest entry,
      "hashes": of every tensor by scheme, rank and step, "seconds"}.
    Raises:
      Difference: the first one.
      ValueError, RuntimeError: the ranks could not be run.
    """
    started = time.perf_counter()
    with ranks_ended(_job(options, settings, num_ranks), mpirun=options.mpirun) as (results, folder):
        comparison = _Comparison(options, settings, num_ranks, folder, results)
        for step in range(settings.steps):
            comparison.compare_step(step)
        return {
            "ranks": num_ranks, "schemes": list(options.schemes), **comparison.counted,
            "gradient_error": comparison.gradient_error, "hashes": results, "seconds": time.perf_counter() - started,
        }  # fmt: skip


def _job(options: RunOptions, settings: VerifySettings, num_ranks: int, keep_features: list | None = None) -> RankJob:
    paths = options.rank_paths or (options.path,) * num_ranks
    common = {
        "common": asdict(settings), "schemes": options.schemes, "prefetch": options.prefetch,
        "transport": options.transport, "exchange": options.exchange,
        "checksums": options.checksums, "keep_features": keep_features,
    }  # fmt: skip
    per_rank = [common | {"path": str(path)} for path in paths]
    timeout_s = min(TIMEOUT_S, options.deadline_s)
    return RankJob(task=options.task, settings=per_rank, deadline_s=options.deadline_s, timeout_s=timeout_s)


class _Comparison:
    """One number of ranks against one process, step by step."""

    def __init__(
        self, options: RunOptions, settings: VerifySettings, num_ranks: int, folder: Path, results: list[dict]
    ) -> None:
        self._options, self._settings, self._num_ranks = options, settings, num_ranks
        self._folder, self._results = folder, results
        self._one = OneProcess(options.path, settings)
        self.counted = {"batches": 0, "tensors": 0, "edges": 0}
        self.gradient_error: float | None = None

    def compare_step(self, step: int) -> None:
        """All ranks' batches of one step in all schemes, then the gradients."""
        seeds = self._one.seeds(step, self._num_ranks)
        for rank in range(self._num_ranks):
            batch = self._one.batch(seeds[rank], step)
            expected = batch_content(batch, self._one.graph.orig_ids)
            for scheme in self._options.schemes:
                self._compare_batch(scheme, rank, step, expected)
                self.counted["batches"] += 1
                self.counted["tensors"] += len(expected.hashes)
                self.counted["edges"] += batch.num_edges
        if self._one.has_features and self._one.has_labels:
            gradient = self._one.gradient(seeds, step).numpy()
            for scheme in self._options.schemes:
                self._compare_gradient(scheme, step, gradient)

    def _where(self, scheme: str, rank: int, step: int) -> str:
        return f"{self._num_ranks} ranks, {scheme}, step {step}, rank {rank}"

    def _compare_batch(self, scheme: str, rank: int, step: int, expected: Content) -> None:
        hashes = self._results[rank][scheme][step]["hashes"]
        if hashes == expected.hashes:
            return
        found = Content.load_arrays(content_file(self._folder, scheme, rank, step))
        difference = first_difference(found, expected.arrays)
        if difference is None:  # the values agree: types or shapes do not
            names = [name for name in expected.hashes if hashes.get(name) != expected.hashes[name]]
            raise Difference(f"{self._where(scheme, rank, step)}: type or shape of {', '.join(names)} differs")
        name, row, text = difference
        if name == FEATURES and row < len(expected.arrays[FEATURES]):
            text += self._values(scheme, rank, step, row)
        raise Difference(f"{self._where(scheme, rank, step)}: {text}")

    def _values(self, scheme: str, rank: int, step: int, row: int) -> str:
        """The values of a feature row that differs: run again, because rows are kept as hashes."""
        seeds = self._one.seeds(step, self._num_ranks)[rank]
        expected = self._one.batch(seeds, step).features[row].numpy()
        settings = replace(self._settings, steps=step + 1)
        again = _job(self._options, settings, self._num_ranks, keep_features=[scheme, rank, step])
        with ranks_ended(again, mpirun=self._options.mpirun) as (_, folder):
            found = np.load(folder / "features.npy")[row]
        columns = np.flatnonzero(found.view(np.uint64) != expected.view(np.uint64))
        if columns.size == 0:
            return ": another value, which a second run did not repeat; suspect memory or the network"
        column = int(columns[0])
        return f": column {column} is {found[column]:.17g}, expected {expected[column]:.17g}"

    def _compare_gradient(self, scheme: str, step: int, expected: np.ndarray) -> None:
        where = f"{self._num_ranks} ranks, {scheme}, step {step}"
        hashes = [result[scheme][step]["gradient"] for result in self._results]
        for rank, other in enumerate(hashes):
            if other != hashes[0]:
                raise Difference(f"{where}, rank {rank}: its summed gradient is not that of rank 0")
        found = np.load(gradient_file(self._folder, scheme, step))
        scale = float(np.abs(expected).max()) or 1.0
        errors = np.abs(found - expected) / scale
        worst = int(errors.argmax())
        if not errors[worst] <= self._options.tolerance:
            raise Difference(
                f"{where}: summed gradient, entry {worst}: {found[worst]:.17g}, expected {expected[worst]:.17g}, off "
                f"by {errors[worst]:.1e} of the largest entry; tolerance {self._options.tolerance:g}"
            )
        self.gradient_error = max(self.gradient_error or 0.0, float(errors[worst]))

"""The command `fastsample-verify`: do k ranks compute, on this partition, what one process computes?

For every number of ranks: start them (verify/rank.py), let each make a few mini-batches through its loader,
and compare with one process (verify/reference.py). Compared exactly: seeds, in-neighbours of every hop, input
nodes, features, labels, in original ids. Compared within --tolerance: the summed gradient of a float64 model with
dropout, because sums of ranks round in another order than one process. The first difference is named by ranks, scheme,
step, rank, hop and original node id. Exit status: 0 when all agree, 1 otherwise.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from fastsample_dist import command as cl
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.pipeline.schemes import SCHEMES
from fastsample_dist.testing.jobs import Job, find_mpirun, ranks_ended
from fastsample_dist.verify.content import FEATURES, Content, batch_content, first_difference
from fastsample_dist.verify.rank import content_file, gradient_file
from fastsample_dist.verify.reference import MODELS, OneProcess, VerifySettings

PROGRAM = "fastsample-verify"
RANK_TASK = "fastsample_dist.verify.rank:verify_rank"
TIMEOUT_S = 600.0  # of one collective: ranks wait for the one that checks the topology's bytes
TOLERANCE = 1e-10  # of the largest entry: double precision is 1e-16, a gradient sums some ten thousand terms


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the ranks are run.

    Attributes:
      path: the partition.
      schemes: "hybrid", "vanilla" or both.
      prefetch: of the loaders.
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
    tolerance: float = TOLERANCE
    checksums: bool = True
    mpirun: str | None = None
    deadline_s: float = 1800.0
    rank_paths: tuple[Path, ...] | None = None
    task: str = RANK_TASK


class Difference(Exception):  # noqa: N818  # it is a result, not an error of the program
    """The first difference that was found; its text is the line for the user."""


def make_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = cl.Parser(
        prog=PROGRAM,
        description="Compare mini-batches (exactly) and gradients of k ranks with one process, on your partition.",
        epilog="exit status: 0 when all agree; else the first difference is printed: ranks, scheme, step, rank, hop, "
        "node. The ranks keep their batches (without features) in the temporary directory meanwhile.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("parts", metavar="PARTS", type=Path, help="directory written by fastsample-partition")
    add("--ranks", type=cl.counts, default=(2,), help="numbers of ranks, each a divisor of the parts (default: 2)")
    add("--steps", type=cl.count, default=3, help="mini-batches per rank (default: %(default)s)")
    add("--batch-size", type=cl.count, default=200, help="seeds per rank and step (default: %(default)s)")
    add("--fanouts", type=cl.fanout_list, default=(15, 10, 5), help="from the seeds outwards (default: 15,10,5)")
    add("--scheme", choices=(*SCHEMES, "both"), default="both", help="(default: %(default)s)")
    add("--prefetch", type=int, default=0, help="batches made ahead (default: %(default)s)")
    add("--split", default="train", help="whose nodes are the seeds (default: %(default)s)")
    add("--model", choices=MODELS, default="sage", help="(default: %(default)s)")
    add("--hidden", type=cl.count, default=32, help="columns of a hidden row (default: %(default)s)")
    add("--seed", type=int, default=0, help="of everything drawn (default: %(default)s)")
    script = 'options of train_sage.py, e.g. "--model gat --fanouts 10,5": those that shape batches and model are taken'
    add("--script", metavar="OPTIONS", help=script)
    tolerance = "of gradients, as a share of the largest entry (default: %(default)g)"
    add("--tolerance", type=cl.share, default=TOLERANCE, help=tolerance)
    add("--mpi", action="store_true", help="start the ranks with mpirun")
    add("--no-checksums", action="store_true", help="do not compare the files with the manifest first")
    add("--deadline-s", type=cl.seconds, default=1800.0, help="for the ranks to end (default: %(default)g)")
    cl.add_json(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return cl.run_command(make_parser(), _run, argv)


def with_script(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments, with what --script says of batches and model in place of this command's own options.

    Raises:
      ValueError: an option in --script has a value that does not fit.
    """
    if args.script is None:
        return args
    parser = cl.Parser(prog="--script", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, kind in (("batch-size", cl.count), ("hidden", cl.count), ("seed", int), ("prefetch", int)):
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--fanouts", type=cl.fanout_list)
    parser.add_argument("--scheme", choices=SCHEMES)
    parser.add_argument("--model", choices=MODELS)
    found, _ = parser.parse_known_args(shlex.split(args.script))
    return argparse.Namespace(**{**vars(args), **vars(found)})


def _run(args: argparse.Namespace) -> tuple[int, dict]:
    args = with_script(args)
    mpirun = find_mpirun() if args.mpi else None
    if args.mpi and mpirun is None:
        raise ValueError("--mpi: mpirun is neither beside this Python nor on PATH; install it or leave --mpi out.")
    plan = Plan(
        path=args.parts, schemes=SCHEMES if args.scheme == "both" else (args.scheme,), prefetch=args.prefetch,
        tolerance=args.tolerance, checksums=not args.no_checksums, mpirun=mpirun, deadline_s=args.deadline_s,
    )  # fmt: skip
    settings = VerifySettings(
        steps=args.steps, batch_size=args.batch_size, fanouts=args.fanouts, split=args.split, rng_seed=args.seed,
        model=args.model, hidden=args.hidden,
    )  # fmt: skip
    check_ranks(plan.path, args.ranks)
    console = Console(width=cl.console_width(), highlight=False, soft_wrap=True)
    runs: list[dict] = []
    results = {"parts": str(plan.path), "settings": asdict(settings), "runs": runs, "ok": True, "difference": None}
    for num_ranks in args.ranks:
        try:
            runs.append(verify(plan, settings, num_ranks))
        except Difference as difference:
            console.print(f"DIFFERS  {difference}", markup=False)
            return 1, results | {"ok": False, "difference": str(difference)}
        console.print(f"pass  {describe(runs[-1])}")
    return 0, results


def check_ranks(path: Path, ranks: Sequence[int]) -> None:
    """Refuse numbers of ranks that do not divide the number of parts.

    Raises:
      ValueError: with those that do; the manifest is missing or damaged.
    """
    num_parts = read_manifest(path).num_parts
    fitting = [number for number in range(1, num_parts + 1) if num_parts % number == 0]
    for number in ranks:
        if number not in fitting:
            raise ValueError(
                f"{path} has {num_parts} parts, which {number} ranks cannot share equally; pass --ranks with "
                f"{', '.join(map(str, fitting))}, or partition with --num-parts {number}."
            )


def describe(run: dict) -> str:
    """One line about a run that agreed."""
    error = run["gradient_error"]
    gradients = "no gradients (features or labels are missing)" if error is None else f"gradients within {error:.1e}"
    return (
        f"{run['ranks']} ranks, {' and '.join(run['schemes'])}: {run['batches']} batches with {run['tensors']} tensors "
        f"and {run['edges']:,} sampled edges equal one process's, {gradients}; {run['seconds']:.1f} s"
    )


def verify(plan: Plan, settings: VerifySettings, num_ranks: int) -> dict:
    """Compare one number of ranks with one process.

    Returns:
      {"ranks", "schemes", "batches", "tensors", "edges", "gradient_error": largest, as a share of the largest entry,
      "hashes": of every tensor by scheme, rank and step, "seconds"}.
    Raises:
      Difference: the first one.
      ValueError, RuntimeError: the ranks could not be run.
    """
    started = time.perf_counter()
    with ranks_ended(_job(plan, settings, num_ranks), mpirun=plan.mpirun) as (results, folder):
        comparison = _Comparison(plan, settings, num_ranks, folder, results)
        for step in range(settings.steps):
            comparison.compare_step(step)
        return {
            "ranks": num_ranks, "schemes": list(plan.schemes), **comparison.counted,
            "gradient_error": comparison.gradient_error, "hashes": results, "seconds": time.perf_counter() - started,
        }  # fmt: skip


def _job(plan: Plan, settings: VerifySettings, num_ranks: int, keep_features: list | None = None) -> Job:
    paths = plan.rank_paths or (plan.path,) * num_ranks
    common = {
        "common": asdict(settings), "schemes": plan.schemes, "prefetch": plan.prefetch, "checksums": plan.checksums,
        "keep_features": keep_features,
    }  # fmt: skip
    per_rank = [common | {"path": str(path)} for path in paths]
    return Job(task=plan.task, settings=per_rank, deadline_s=plan.deadline_s, timeout_s=min(TIMEOUT_S, plan.deadline_s))


class _Comparison:
    """One number of ranks against one process, step by step."""

    def __init__(self, plan: Plan, settings: VerifySettings, num_ranks: int, folder: Path, results: list[dict]) -> None:
        self._plan, self._settings, self._num_ranks = plan, settings, num_ranks
        self._folder, self._results = folder, results
        self._one = OneProcess(plan.path, settings)
        self.counted = {"batches": 0, "tensors": 0, "edges": 0}
        self.gradient_error: float | None = None

    def compare_step(self, step: int) -> None:
        """All ranks' batches of one step in all schemes, then the gradients."""
        seeds = self._one.seeds(step, self._num_ranks)
        for rank in range(self._num_ranks):
            batch = self._one.batch(seeds[rank], step)
            expected = batch_content(batch, self._one.graph.orig_ids)
            for scheme in self._plan.schemes:
                self._compare_batch(scheme, rank, step, expected)
                self.counted["batches"] += 1
                self.counted["tensors"] += len(expected.hashes)
                self.counted["edges"] += batch.num_edges
        if self._one.has_features and self._one.has_labels:
            gradient = self._one.gradient(seeds, step).numpy()
            for scheme in self._plan.schemes:
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
        again = _job(self._plan, settings, self._num_ranks, keep_features=[scheme, rank, step])
        with ranks_ended(again, mpirun=self._plan.mpirun) as (_, folder):
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
        if not errors[worst] <= self._plan.tolerance:
            raise Difference(
                f"{where}: summed gradient, entry {worst}: {found[worst]:.17g}, expected {expected[worst]:.17g}, off "
                f"by {errors[worst]:.1e} of the largest entry; tolerance {self._plan.tolerance:g}"
            )
        self.gradient_error = max(self.gradient_error or 0.0, float(errors[worst]))


if __name__ == "__main__":
    sys.exit(main())

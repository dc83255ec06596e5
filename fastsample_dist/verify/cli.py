"""The command `fastsample-verify`: do k ranks compute, on this partition, what one process computes?

Each number of ranks is started in turn and compared with one process (compare.py). The first difference is printed
and ends the command. Exit status: 0 when all agree, 1 otherwise.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastsample_dist import command as cl
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.pipeline.exchange import EXCHANGES
from fastsample_dist.pipeline.schemes import SCHEMES
from fastsample_dist.pipeline.transport import AUTO, TRANSPORTS
from fastsample_dist.testing.jobs import find_mpirun
from fastsample_dist.train.models import NORMS
from fastsample_dist.verify.compare import TOLERANCE, Difference, RunOptions, verify
from fastsample_dist.verify.reference import MODELS, VerifySettings

PROGRAM = "fastsample-verify"
UNIFORM = "uniform"
# Options of a training script: those that are taken as they are given, and those that are refused where they differ.
TAKEN: dict[str, dict[str, Any]] = {
    "batch-size": {"type": cl.count}, "fanouts": {"type": cl.fanout_list}, "model": {"choices": MODELS},
    "hidden": {"type": cl.count}, "heads": {"type": cl.count}, "dropout": {"type": cl.share},
    "residual": {"action": "store_true"}, "norm": {"choices": tuple(NORMS)}, "seed": {"type": int},
    "scheme": {"choices": SCHEMES}, "prefetch": {"type": int}, "transport": {"choices": TRANSPORTS},
    "exchange": {"choices": EXCHANGES},
}  # fmt: skip
COMPARED: dict[str, dict[str, Any]] = {
    "sampler": {}, "replace": {"action": "store_true"}, "layers": {"type": cl.count},
}  # fmt: skip


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
    add("--transport", choices=TRANSPORTS, default=AUTO, help="of other ranks' rows (default: %(default)s)")
    add("--exchange", choices=EXCHANGES, default="auto", help="how ranks meet to fetch (default: %(default)s)")
    add("--split", default="train", help="whose nodes are the seeds (default: %(default)s)")
    add("--model", choices=MODELS, default="sage", help="(default: %(default)s)")
    add("--hidden", type=cl.count, default=32, help="columns of a hidden row (default: %(default)s)")
    add("--seed", type=int, default=0, help="of everything drawn (default: %(default)s)")
    script = f'options of train_sage.py, e.g. "--model gat --fanouts 10,5"; taken: {", ".join(TAKEN)}'
    add("--script", metavar="OPTIONS", help=f"{script}; refused: samplers other than uniform, replacement")
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
    """The arguments; the options of batches and model in --script (TAKEN) replace this command's own.

    Raises:
      ValueError: an option in --script has a value that does not fit, or shapes batches as this command does not.
    """
    if args.script is None:
        return args
    parser = cl.Parser(prog=PROGRAM, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, how in (*TAKEN.items(), *COMPARED.items()):
        parser.add_argument(f"--{name}", **how)
    try:
        words = shlex.split(args.script)
    except ValueError as error:
        raise ValueError(f"--script is {args.script!r}: {error}; close it.") from error
    try:
        given, _ = parser.parse_known_args(words)
    except ValueError as error:
        raise ValueError(f"--script is {args.script!r}: {error}") from error
    found = {**vars(args), **vars(given)}
    sampler, layers = found.pop("sampler", UNIFORM), found.pop("layers", len(found["fanouts"]))
    if sampler != UNIFORM:
        raise ValueError(f"--script has --sampler {sampler}, but only --sampler {UNIFORM} is compared; leave it out.")
    if found.pop("replace", False):
        raise ValueError("--script has --replace, but only draws without replacement are compared; leave it out.")
    if layers != len(found["fanouts"]):
        raise ValueError(
            f"--script has --layers {layers}, but the model that is compared has one per fanout, "
            f"{len(found['fanouts'])}; give as many --fanouts."
        )
    return argparse.Namespace(**found)


def _run(args: argparse.Namespace) -> tuple[int, dict]:
    args = with_script(args)
    mpirun = find_mpirun() if args.mpi else None
    if args.mpi and mpirun is None:
        raise ValueError("--mpi: mpirun is neither beside this Python nor on PATH; install it or leave --mpi out.")
    options = RunOptions(
        path=args.parts, schemes=SCHEMES if args.scheme == "both" else (args.scheme,), prefetch=args.prefetch,
        tolerance=args.tolerance, checksums=not args.no_checksums, mpirun=mpirun, deadline_s=args.deadline_s,
        transport=args.transport, exchange=args.exchange,
    )  # fmt: skip
    settings = VerifySettings(
        steps=args.steps, batch_size=args.batch_size, fanouts=args.fanouts, split=args.split, rng_seed=args.seed,
        model=args.model, hidden=args.hidden,
        **{name: getattr(args, name) for name in ("dropout", "heads", "residual", "norm") if hasattr(args, name)},
    )  # fmt: skip
    check_ranks(options.path, args.ranks)
    console = cl.make_console(soft_wrap=True)
    runs: list[dict] = []
    results = {"parts": str(options.path), "settings": asdict(settings), "runs": runs, "ok": True, "difference": None}
    for num_ranks in args.ranks:
        try:
            runs.append(verify(options, settings, num_ranks))
        except Difference as difference:
            console.print(f"DIFFERS  {difference}")
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


if __name__ == "__main__":
    sys.exit(main())

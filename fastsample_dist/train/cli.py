"""The command `fastsample-train`: options, one-line refusals, exit status; the work is session.py's.

Every process is one rank and owns one part (or an equal run of parts), whatever starts it:

    torchrun --nproc-per-node 2 -m fastsample_dist.train --data PARTS --epochs 10 --json out.json
    mpirun -n 2 fastsample-train --data PARTS
    fastsample-train --data PARTS

`--from-jsonl` is the exception: it makes the page of an earlier run, in one process that joins no other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch

from fastsample_dist.comm.context import FORWARD_S, DistContext
from fastsample_dist.comm.environment import parse_environment
from fastsample_dist.command import Parser, count, fanout_list, one_line
from fastsample_dist.device.allocator import reuse_freed_memory
from fastsample_dist.files import check_separate, check_writable, write_text
from fastsample_dist.page import require_matplotlib
from fastsample_dist.pipeline.tasks import RolesError
from fastsample_dist.train.config import CHOICES, TrainConfig, option
from fastsample_dist.train.epoch_records import read_records
from fastsample_dist.train.models import NORMS
from fastsample_dist.train.pinsage_config import PINSAGE
from fastsample_dist.train.report_page import render_page
from fastsample_dist.train.session import run
from fastsample_dist.train.subgraph_config import SUBGRAPH_METHODS

PROGRAM = "fastsample-train"
USER_ERRORS = (ValueError, OSError, ImportError)
# Seconds that rank 0 is ahead in refusing: a launcher ends the run when one rank leaves, so that an error which all
# ranks see is printed once.
HEAD_START_S = 3.0
STOPPED = 130  # exit status after Ctrl-C, as a shell reports it


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """A page to make of an earlier run.

    Attributes:
      report: the page.
      from_jsonl: file that the run's --jsonl wrote.
    """

    report: Path
    from_jsonl: Path


def make_parser() -> argparse.ArgumentParser:
    """The command's options; TrainConfig has their defaults."""
    parser = Parser(
        prog=PROGRAM, description="Train a graph neural network on a partitioned graph.", allow_abbrev=False
    )
    add = partial(parser.add_argument, help="(default: %(default)s)")
    add("--data", metavar="PARTS", help="directory written by fastsample-partition")
    add("--scheme", choices=CHOICES["scheme"])
    add("--model", choices=CHOICES["model"])
    add("--device", choices=CHOICES["device"], help="auto: GPUs where every rank has one (default: %(default)s)")
    add("--kernel", choices=CHOICES["kernel"], help="of a GPU, for sampling (default: %(default)s)")
    add("--placement", choices=CHOICES["placement"], help="of a GPU's topology and features (default: %(default)s)")
    add("--transport", choices=CHOICES["transport"], help="shared: read rows of ranks on one machine in place")
    add("--exchange", choices=CHOICES["exchange"], help="how ranks meet to fetch features (default: %(default)s)")
    add("--no-rails", dest="rails", action="store_false", help="ranks of a machine do not fetch for each other")
    add("--epochs", type=count)
    add("--batch-size", type=count, help="seeds per rank and step (default: %(default)s)")
    add("--fanouts", type=fanout_list, help="from the seeds outwards (default: 15,10,5)")
    takes_all = "--eval-fanouts=-1,-1,-1 takes all, not with --replace"
    add("--eval-fanouts", type=fanout_list, help=f"{takes_all} (default: as --fanouts)")
    add("--sampler", choices=CHOICES["sampler"], help="of neighbours, walks or subgraphs; see below (default: uniform)")
    add("--replace", action="store_true", help="draw neighbours with replacement")
    add("--layers", type=count, help="of the model (default: one per fanout)")
    add("--hidden", type=count, help="columns of a hidden row (default: %(default)s)")
    add("--heads", type=count, help="attention heads of gat (default: %(default)s)")
    add("--dropout", type=float)
    add("--residual", action="store_true", help="hidden layers add their input to their result")
    add("--norm", choices=tuple(NORMS), help="of hidden rows, before the activation (default: none)")
    add("--lr", type=float, help="of Adam (default: %(default)s)")
    add("--lr-schedule", choices=CHOICES["lr_schedule"], help="over the epochs (default: %(default)s)")
    add("--lr-step", metavar="EPOCHS", type=count, help="of --lr-schedule step (default: %(default)s)")
    add("--lr-gamma", type=float, help="of --lr-schedule step (default: %(default)s)")
    add("--allow-nonfinite", action="store_true", help="continue when a loss or gradient is NaN or infinite")
    add("--precision", choices=CHOICES["precision"], help="bf16 is autocast (default: %(default)s)")
    add("--eval-every", metavar="EPOCHS", type=int, help="0 never evaluates (default: %(default)s)")
    add("--eval", choices=CHOICES["eval"], help="neighbours in evaluation (default: sampled; of subgraphs: full)")
    add("--prefetch", type=int, help="batches made ahead in the background (default: %(default)s)")
    add("--cache", metavar="SIZE", help="of other ranks' feature rows, such as 20MB or 2GiB (default: no cache)")
    add("--cache-policy", choices=CHOICES["cache_policy"], help="which rows are cached (default: %(default)s)")
    add("--lookahead", metavar="BATCHES", type=int, help="ahead whose rows stay in the cache (default: %(default)s)")
    add("--roles", metavar="none|auto|S+T", help="S ranks of a machine sample for T that train (default: all do both)")
    add("--staleness", metavar="UPDATES", type=int, help="by which gradients are behind, of --roles S+T (default: 0)")
    add("--seed", type=int, help="of parameters, shuffling, sampling, dropout (default: %(default)s)")
    add("--verify", choices=CHOICES["verify"], help="checksums: once per copy, or now again (default: %(default)s)")
    add("--threads", type=count, help="per rank (default: the machine's cores divided among its ranks)")
    add("--timeout-s", type=float, help="longest wait for other ranks (default: %(default)s)")
    add("--json", metavar="FILE", type=Path, help="write the results here too")
    add("--jsonl", metavar="FILE", type=Path, help="add one JSON line per epoch to this file")
    add("--report", metavar="FILE", type=Path, help="write a page of the run's figures (HTML) here")
    add("--from-jsonl", metavar="RUN", type=Path, help="train nothing: make --report of what --jsonl wrote to RUN")
    add("--tensorboard", metavar="DIR", type=Path, help="write the figures of every epoch for TensorBoard")
    add("--trace", metavar="FILE", type=Path, help="write a timeline of all ranks in Chrome's trace format")
    add("--save-model", metavar="FILE", type=Path, help="write the trained model, with FILE.json of how it was built")
    add("--predictions", metavar="DIR", type=Path, help="write the scores of all nodes here, with all neighbours")
    add("--checkpoint-dir", metavar="DIR", type=Path, help="save the run here (default: it is not saved)")
    add("--checkpoint-every", metavar="STEPS", type=count)
    add("--keep", metavar="K", type=count, help="checkpoints that stay (default: %(default)s)")
    add("--resume", action="store_true", help="resume from the newest valid checkpoint in --checkpoint-dir, if any")
    add("--allow-new-lr", action="store_true", help="let --resume continue with another --lr")
    _add_subgraphs(parser)
    _add_walks(parser)
    parser.set_defaults(**{field.name: field.default for field in fields(TrainConfig) if field.default is not MISSING})
    return parser


def _add_subgraphs(parser: argparse.ArgumentParser) -> None:
    """The options of SubgraphConfig."""
    add = parser.add_argument_group(
        "subgraphs",
        f"--sampler {'|'.join(SUBGRAPH_METHODS)} trains on subgraphs: --layers, steps of --subgraphs-per-step; "
        "--batch-size is then that of evaluation, and --fanouts are those of --eval sampled. The other samplers draw "
        "neighbours: weighted by edge weight, labor with shared neighbours.",
    ).add_argument
    add("--budget", metavar="N", type=count, help="visits or draws of a subgraph (default: 8000)")
    add("--frontier-size", metavar="M", type=count, help="walkers of frontier (default: 1000)")
    add("--structure", choices=CHOICES["structure"], help="of frontier: what finds the next walker (default: sums)")
    add("--walk-length", metavar="HOPS", type=count, help="of walk (default: 2), of pinsage (default: 3)")
    add("--clusters-per-batch", metavar="C", type=count, help="clusters in a subgraph of cluster (default: 10)")
    add("--ego-depth", metavar="HOPS", type=count, help="of ego (default: 2)")
    add("--ego-fanout", metavar="N", type=int, help="in-neighbours of every node of ego, -1: all (default: 10)")
    add("--weights", choices=CHOICES["weights"], help="of edges (default: ratio; of ego: none)")
    add("--subgraphs-per-step", metavar="K", type=count, help="over all ranks (default: one per part; of ego: 1000)")
    add("--locality", choices=CHOICES["locality"], help="own: subgraphs begin at one part's nodes, on its rank")


def _add_walks(parser: argparse.ArgumentParser) -> None:
    """The options of PinSAGEConfig."""
    add = parser.add_argument_group(
        "walks",
        f"--sampler {PINSAGE}: a node's neighbours are those that walks from it visit most often, weighted by their "
        "visits; --model pinsage applies the weights, and so do the others. --layers says how many hops.",
    ).add_argument
    add("--num-walks", metavar="N", type=count, help="from every node and hop, of --walk-length (default: 4)")
    add("--num-neighbors", metavar="K", type=count, help="of most visits that are kept (default: 5)")
    add("--end-probability", metavar="P", type=float, help="that a walk ends after a step (default: 0.5)")


def parse_arguments(argv: list[str] | None = None) -> TrainConfig | PageOptions:
    """The configuration that the command line states: of a run, or with --from-jsonl of a page alone.

    Raises:
      ValueError: an unknown option or a value that does not fit.
    """
    parser = make_parser()
    given = vars(parser.parse_args(argv))
    lines = given.pop("from_jsonl")
    if lines is not None:
        others = [name for name, value in given.items() if name != "report" and value != parser.get_default(name)]
        if others or given["report"] is None:
            found = f"not with {', '.join(map(option, others))}" if others else "which is missing"
            raise ValueError(f"--from-jsonl RUN goes with --report FILE only, {found}; see {PROGRAM} --help.")
        return PageOptions(report=given["report"], from_jsonl=lines)
    if given["data"] is None:
        parser.error("the following arguments are required: --data")
    return TrainConfig(**given)


def write_page(options: PageOptions) -> None:
    """Make the page of an earlier run.

    Raises:
      ValueError: the page cannot be written, or would replace the records; these cannot be read, or are damaged.
      ImportError: matplotlib is not installed.
    """
    require_matplotlib("--report", "--jsonl")
    check_separate([("--from-jsonl", options.from_jsonl), ("--report", options.report)])
    check_writable("--report", options.report)
    write_text(options.report, render_page(read_records(options.from_jsonl)))


def refuse(error: BaseException, rank: int) -> int:
    """Print a refusal as one line and return the exit status."""
    if rank > 0:
        time.sleep(HEAD_START_S)
    line = one_line(error)
    if isinstance(error, torch.cuda.OutOfMemoryError):
        line = f"{line.split('. ', 1)[0]}; take a smaller --batch-size or --hidden, or --placement pinned."
    print(f"error: {line}", file=sys.stderr, flush=True)
    return 1


def leave_refused(ctx: DistContext, error: BaseException, rank: int) -> NoReturn:
    """End this process, under MPI the run, by a refusal in one line and exit status 1.

    Args:
      rank: this one, of a refusal that all ranks see; 0: the line is this rank's alone.
    """
    status = refuse(error, rank)
    if ctx.comm.abort_ends_process:  # under MPI nothing else ends the other ranks
        time.sleep(FORWARD_S)
        ctx.comm.abort()
    raise SystemExit(status) from error


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status. Refusals, failed collectives and Ctrl-C are one line each."""
    try:
        return _run(argv)
    except KeyboardInterrupt:
        environment = parse_environment(os.environ)
        who = f"rank {environment.rank} was " if environment.world_size > 1 else ""
        sys.stderr.write(f"{PROGRAM}: {who}interrupted.\n")  # one call: ranks write at the same time
        return STOPPED


def _run(argv: list[str] | None) -> int:
    reuse_freed_memory()
    rank = 0
    try:
        rank = parse_environment(os.environ).rank
        config = parse_arguments(argv)
        if isinstance(config, PageOptions):
            if rank == 0:  # also where a launcher started several
                write_page(config)
            return 0
        ctx = DistContext.from_env(timeout_s=config.timeout_s, device=config.device)
    except (*USER_ERRORS, RuntimeError) as error:  # RuntimeError: a rank or a package is missing
        return refuse(error, rank)
    with ctx:
        try:
            return STOPPED if run(config, ctx).stopped else 0
        except (*USER_ERRORS, RuntimeError) as error:
            failed = ctx.comm.failure is not None or isinstance(error, RolesError)  # of which rank 0 may have died
            known = (*USER_ERRORS, torch.cuda.OutOfMemoryError)
            if not failed and not isinstance(error, known):
                raise  # a bug, not a failed run: its traceback matters
            leave_refused(ctx, error, 0 if failed else rank)  # failures differ between ranks, refusals do not


if __name__ == "__main__":
    sys.exit(main())

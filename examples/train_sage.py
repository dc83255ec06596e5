"""Train GraphSAGE, GCN or GAT on a partitioned graph.

One script for every launcher; each process is one rank and owns one part (or an equal run of parts):

    torchrun --nproc-per-node 2 examples/train_sage.py --data PARTS --scheme hybrid --epochs 10 --json out.json
    mpirun -n 2 python examples/train_sage.py --data PARTS
    python examples/train_sage.py --data PARTS --device cuda

With --device cuda every rank samples, fetches and trains on a GPU of its own; topology and features go to its memory,
or into pinned host memory where they do not fit (--placement). The mini-batches are those of the CPU; losses differ by
the rounding of the matrix products alone.

Evaluation sees sampled neighbours, as many as --eval-fanouts says (the training fanouts by default; -1 is all), or with
--eval full all of them, layer by layer.
Rank 0 prints; what it reports of communication are its own counts, evaluation left out.

With --checkpoint-dir the run saves itself every --checkpoint-every steps, at its end, and at Ctrl-C or SIGTERM, which
then ends it with status 130 (a second Ctrl-C ends it at once). --resume goes on from the newest valid checkpoint; under
torchrun --max-restarts a run whose rank was killed does so by itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import torch
from rich.console import Console
from rich.progress import Progress

from fastsample_dist import DistContext, DistData, DistLoader
from fastsample_dist.comm.device import DEVICES
from fastsample_dist.comm.environment import parse_environment
from fastsample_dist.comm.trace import Trace
from fastsample_dist.graph.placement import CHOICES as PLACES
from fastsample_dist.ops.kernel_choice import CHOICES as KERNELS
from fastsample_dist.ops.sample_spec import METHODS
from fastsample_dist.pipeline.data import agree
from fastsample_dist.pipeline.executor import SCHEMES
from fastsample_dist.sampling.base import MiniBatch
from fastsample_dist.train.checkpoint import Checkpointer, CheckpointSettings
from fastsample_dist.train.inference import accuracy as full_accuracy
from fastsample_dist.train.inference import layerwise
from fastsample_dist.train.memory import reuse_freed_memory
from fastsample_dist.train.metrics import CommTally, payload_exchanges
from fastsample_dist.train.models import GAT, GCN, GraphSAGE, check_fanouts
from fastsample_dist.train.outputs import check_writable, write_json
from fastsample_dist.train.report import (
    EpochFigures,
    comm_table,
    device_figures,
    device_lines,
    epoch_line,
    epoch_table,
    make_console,
)
from fastsample_dist.train.stop import StopSignal
from fastsample_dist.train.trainer import PRECISIONS, Trainer

MODELS = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}
USER_ERRORS = (ValueError, OSError, ImportError)
# Seconds that rank 0 is ahead in refusing: a launcher ends the run when one rank leaves, so that an error which all
# ranks see is printed once.
HEAD_START_S = 3.0
FORWARD_S = 0.5  # for mpirun to pass on what was printed: an abort drops what is still under way
STOPPED = 130  # exit status after Ctrl-C, as a shell reports it
SHAPING_OPTIONS = (
    "model", "layers", "hidden", "heads", "dropout", "lr", "fanouts", "sampler", "replace", "precision", "seed",
)  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, like every other refusal of this script."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see --help.")


def fanout_list(text: str) -> tuple[int, ...]:
    """Argument type: "15,10,5" -> (15, 10, 5)."""
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of fanouts such as 15,10,5") from None


def fanout_text(fanouts: tuple[int, ...]) -> str:
    """(15, 10, 5) -> "15,10,5"."""
    return ",".join(map(str, fanouts))


def count(text: str) -> int:
    """Argument type: an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer of at least 1")
    return int(text)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The script's options."""
    parser = Parser(description="Train a graph neural network on a partitioned graph.", allow_abbrev=False)
    add = partial(parser.add_argument, help="(default: %(default)s)")
    add("--data", metavar="PARTS", required=True, help="directory written by fastsample-partition")
    add("--scheme", choices=SCHEMES, default="hybrid")
    add("--model", choices=MODELS, default="sage")
    add("--device", choices=DEVICES, default="cpu", help="auto: GPUs where every rank has one (default: %(default)s)")
    add("--kernel", choices=KERNELS, default="auto", help="of a GPU, for sampling (default: %(default)s)")
    add("--placement", choices=PLACES, default="auto", help="of a GPU's topology and features (default: %(default)s)")
    add("--epochs", type=count, default=10)
    add("--batch-size", type=count, default=1000, help="seeds per rank and step (default: %(default)s)")
    add("--fanouts", type=fanout_list, default=(15, 10, 5), help="from the seeds outwards (default: 15,10,5)")
    add("--eval-fanouts", type=fanout_list, help="--eval-fanouts=-1,-1,-1 takes all (default: as --fanouts)")
    add("--sampler", choices=METHODS, default="uniform", help="weighted: by edge weight; labor: shared neighbours")
    add("--replace", action="store_true", help="draw neighbours with replacement")
    add("--layers", type=count, default=3)
    add("--hidden", type=count, default=256, help="columns of a hidden row (default: %(default)s)")
    add("--heads", type=count, default=4, help="attention heads of gat (default: %(default)s)")
    add("--dropout", type=float, default=0.5)
    add("--lr", type=float, default=0.006, help="of Adam (default: %(default)s)")
    add("--precision", choices=PRECISIONS, default="fp32", help="bf16 is autocast (default: %(default)s)")
    add("--eval-every", metavar="EPOCHS", type=int, default=1, help="0 never evaluates (default: %(default)s)")
    add("--eval", choices=("sampled", "full"), default="sampled", help="neighbours in evaluation (default: sampled)")
    add("--prefetch", type=int, default=0, help="batches made ahead in the background (default: %(default)s)")
    add("--seed", type=int, default=0, help="of parameters, shuffling, sampling, dropout (default: %(default)s)")
    add("--threads", type=count, help="per rank (default: the machine's cores divided among its ranks)")
    add("--timeout-s", type=float, default=600.0, help="longest wait for other ranks (default: %(default)s)")
    add("--json", metavar="FILE", type=Path, help="write the results here too")
    add("--jsonl", metavar="FILE", type=Path, help="add one JSON line per epoch to this file")
    add("--tensorboard", metavar="DIR", type=Path, help="write the figures of every epoch for TensorBoard")
    add("--trace", metavar="FILE", type=Path, help="write a timeline of all ranks in Chrome's trace format")
    add("--checkpoint-dir", metavar="DIR", type=Path, help="save the run here (default: it is not saved)")
    add("--checkpoint-every", metavar="STEPS", type=count, default=100)
    add("--keep", metavar="K", type=count, default=3, help="checkpoints that stay (default: %(default)s)")
    add("--resume", action="store_true", help="go on from the newest valid checkpoint in --checkpoint-dir, if any")
    args = parser.parse_args(argv)
    if args.resume and args.checkpoint_dir is None:
        parser.error("--resume needs the --checkpoint-dir to resume from")
    if args.replace and args.sampler == "labor":
        parser.error("--sampler labor takes every edge at most once; leave out --replace")
    args.eval_fanouts = args.eval_fanouts or args.fanouts
    return args


def set_threads(threads: int | None, ctx: DistContext) -> int:
    """Intra-op threads of this rank: as asked, else its share of the machine, within what it may use."""
    share = (os.cpu_count() or 1) // ctx.local_world_size
    torch.set_num_threads(threads or max(1, min(share, len(os.sched_getaffinity(0)))))
    return torch.get_num_threads()


def check_outputs(args: argparse.Namespace) -> None:
    """All files that the options name."""
    for option in ("json", "jsonl", "trace"):
        if getattr(args, option) is not None:
            check_writable(f"--{option}", getattr(args, option))
    if args.tensorboard is not None:
        if find_spec("tensorboard") is None:
            raise ValueError("--tensorboard needs a package; pip install 'fastsample_dist[tensorboard]'.")
        args.tensorboard.mkdir(parents=True, exist_ok=True)


def open_data(args: argparse.Namespace, ctx: DistContext) -> DistData:
    """The partition, after everything that can be refused without it."""
    for fanouts in (args.fanouts, args.eval_fanouts):
        check_fanouts(len(fanouts), args.layers)
    agree(ctx, lambda: check_outputs(args) if ctx.rank == 0 else None)
    data = DistData.load(args.data, ctx)
    if data.features is None or data.labels is None:
        raise ValueError(f"{args.data} lacks features or labels; partition an input with features.npy and labels.npy.")
    if args.sampler == "weighted" and data.graph.weights is None:
        raise ValueError(f"{args.data} lacks edge weights for --sampler weighted; partition one with edge_weight.npy.")
    return data


def make_loaders(args: argparse.Namespace, data: DistData) -> dict[str, DistLoader]:
    """Loaders by split, those for evaluation only where it is wanted."""
    make = partial(
        DistLoader, data, batch_size=args.batch_size, scheme=args.scheme, rng_seed=args.seed, prefetch=args.prefetch,
        feature_dtype=torch.bfloat16 if args.precision == "bf16" else None, method=args.sampler, replace=args.replace,
        kernel=args.kernel, placement=args.placement,
    )  # fmt: skip
    loaders = {"train": make(args.fanouts, split="train")}
    if args.eval_every > 0 and args.eval == "sampled":
        loaders |= {split: make(args.eval_fanouts, split=split, shuffle=False) for split in ("val", "test")}
    return loaders


def make_trainer(args: argparse.Namespace, data: DistData) -> Trainer:
    """The model with an optimizer, the same on every rank."""
    torch.manual_seed(args.seed)
    heads = {"num_heads": args.heads} if args.model == "gat" else {}
    model = MODELS[args.model](data.feature_dim, args.hidden, data.num_classes, args.layers, args.dropout, **heads)
    model.to(data.ctx.device)  # drawn on the CPU, so that every device starts from the same parameters
    return Trainer(model, torch.optim.Adam(model.parameters(), lr=args.lr), data.ctx, precision=args.precision)


def begin_checkpoints(
    args: argparse.Namespace, trainer: Trainer, loader: DistLoader, stop: StopSignal | None, console: Console
) -> Checkpointer | None:
    """What saves the run, taken up where an earlier one stands; None without --checkpoint-dir."""
    if args.checkpoint_dir is None:
        return None
    options = {name: getattr(args, name) for name in SHAPING_OPTIONS}
    settings = CheckpointSettings(
        directory=args.checkpoint_dir, every=args.checkpoint_every, keep=args.keep, options=options
    )
    checkpoints = Checkpointer(trainer, loader, settings, stop)
    attempt = parse_environment(os.environ).attempt
    resumed = checkpoints.begin(resume=args.resume, attempt=attempt)
    if resumed is not None:
        done = f"epoch {resumed.epoch + 1}, {resumed.step} steps done"
        console.print(f"resumed from {resumed.path}: {done}", soft_wrap=True)
        if resumed.world_size != loader.data.ctx.world_size:
            console.print(f"it was written by {resumed.world_size} rank(s), now there are {loader.data.ctx.world_size}")
    elif args.resume or attempt > 0:
        console.print(f"no checkpoint in {args.checkpoint_dir}: starting from the beginning", soft_wrap=True)
    return checkpoints


def evaluate(
    args: argparse.Namespace, trainer: Trainer, loaders: dict[str, DistLoader], splits: list[str], progress: Progress
) -> dict[str, float]:
    """Accuracy by split. Collective: every rank must call this."""
    if args.eval == "sampled":
        return {split: trainer.evaluate(loaders[split]) for split in splits}
    data = loaders["train"].data
    bar = progress.add_task("evaluation", total=None)
    scores = layerwise(
        trainer.model, data, args.batch_size,
        on_batch=lambda done, total: progress.update(bar, completed=done, total=total),
    )  # fmt: skip
    progress.remove_task(bar)
    return {split: full_accuracy(scores, data, split) for split in splits}


def make_progress(console: Console) -> Progress:
    """Bars on a terminal, nothing in a log."""
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def last_known(epochs: list[dict], name: str) -> float | None:
    """The latest epoch's figure of that name."""
    return next((epoch[name] for epoch in reversed(epochs) if name in epoch), None)


def train(args: argparse.Namespace, ctx: DistContext) -> int:
    """Train, evaluate and report; returns the exit status. Collective: every rank must call this."""
    threads = set_threads(args.threads, ctx)
    data = open_data(args, ctx)
    loaders, trainer = make_loaders(args, data), make_trainer(args, data)
    console = make_console(ctx)
    if args.trace is not None:
        ctx.comm.watch.trace = Trace.start(ctx.comm)
    console.print(f"{args.model} on {data.manifest.name}: {data.num_nodes} nodes, {data.manifest.num_edges} edges")
    for line in device_lines(ctx, loaders["train"].places):
        console.print(line, soft_wrap=True)
    with nullcontext() if args.checkpoint_dir is None else StopSignal() as stop:
        checkpoints = begin_checkpoints(args, trainer, loaders["train"], stop, console)
        steps = sum(map(loaders["train"].num_steps, range(loaders["train"].epoch, args.epochs)))
        console.print(f"{args.scheme}, {ctx.world_size} rank(s), {threads} thread(s) each, {steps} steps")
        epochs = [] if checkpoints is None else checkpoints.kept.setdefault("epochs", [])
        tallies = {"training": CommTally(ctx.comm), "evaluation": CommTally(ctx.comm)}
        run_epochs(args, trainer, loaders, checkpoints, epochs=epochs, tallies=tallies, console=console)
        if checkpoints is not None and checkpoints.stopped:
            where = checkpoints.last_path or "the beginning"
            console.print(f"stopped; --resume goes on from {where}", soft_wrap=True)
            return STOPPED
    if console.is_terminal:
        console.print(epoch_table(epochs))
    training, evaluation = tallies["training"].stats, tallies["evaluation"]
    accuracy = {split: last_known(epochs, f"{split}_acc") for split in ("val", "test")}
    if args.eval_every > 0:
        if accuracy["test"] is None:  # nothing was left to train
            with evaluation, make_progress(console) as progress:
                accuracy |= evaluate(args, trainer, loaders, ["test"], progress)
        fanouts = (
            "all neighbours" if args.eval == "full" else f"neighbours sampled with {fanout_text(args.eval_fanouts)}"
        )
        console.print(f"test accuracy {accuracy['test']:.4f} (over all ranks; {fanouts})")
    if ctx.world_size > 1 and steps > 0:
        console.print(comm_table(training, steps))
        console.print(f"payload exchanges per step: {payload_exchanges(training) / steps:g}")
    if args.json is not None and ctx.rank == 0:
        options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
        results = {
            "epochs": epochs, "val_acc": accuracy["val"], "test_acc": accuracy["test"], "world_size": ctx.world_size,
            "scheme": args.scheme, "steps": steps, "comm": training, "comm_evaluation": evaluation.stats,
            "threads": threads, "options": options, "kernel": args.kernel,
            **device_figures(ctx, loaders["train"]),
            "resumed": None if checkpoints is None or checkpoints.resumed is None else asdict(checkpoints.resumed),
        }  # fmt: skip
        write_json(args.json, results)
    if ctx.comm.watch.trace is not None:
        ctx.comm.watch.trace.write(args.trace, ctx.comm)
    return 0


def run_epochs(
    args: argparse.Namespace,
    trainer: Trainer,
    loaders: dict[str, DistLoader],
    checkpoints: Checkpointer | None,
    *,
    epochs: list[dict],
    tallies: dict[str, CommTally],
    console: Console,
) -> None:
    """The epochs still to come, each reported and added to `epochs`. Collective: every rank must call this."""
    loader, ctx = loaders["train"], loaders["train"].data.ctx
    figures = EpochFigures(ctx, jsonl=args.jsonl, tensorboard=args.tensorboard)
    with closing(figures), make_progress(console) as progress:
        bar = progress.add_task(args.model, total=sum(map(loader.num_steps, range(loader.epoch, args.epochs))))

        done = 0

        def on_step(batch: MiniBatch) -> bool:
            nonlocal done
            done = batch.step + 1
            progress.advance(bar)
            return checkpoints is not None and checkpoints.after_step(batch)

        for number in range(loader.epoch + 1, args.epochs + 1):
            with tallies["training"]:
                stats = trainer.run_epoch(loader, on_step, carried=checkpoints and checkpoints.carried)
            if checkpoints is not None and checkpoints.stopped:
                return
            epochs.append(asdict(stats))
            is_last = number == args.epochs
            if args.eval_every > 0 and (number % args.eval_every == 0 or is_last):
                with tallies["evaluation"], ctx.comm.watch.span("evaluate"):
                    found = evaluate(args, trainer, loaders, ["val", "test"] if is_last else ["val"], progress)
                epochs[-1] |= {f"{split}_acc": value for split, value in found.items()}
            figures.add(stats, done, val_acc=epochs[-1].get("val_acc"))
            console.print(f"epoch {number}/{args.epochs}  {epoch_line(stats, epochs[-1].get('val_acc'))}")
            if checkpoints is not None and checkpoints.end_epoch():
                return
    if checkpoints is not None:
        checkpoints.save()


def refuse(error: BaseException, rank: int) -> int:
    """Print a refusal as one line and return the exit status."""
    if rank > 0:
        time.sleep(HEAD_START_S)
    line = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, torch.cuda.OutOfMemoryError):
        line = f"{line.split('. ', 1)[0]}; take a smaller --batch-size or --hidden, or --placement pinned."
    print(f"error: {line}", file=sys.stderr, flush=True)
    return 1


def main(argv: list[str] | None = None) -> int:
    """Run the script; returns the exit status."""
    reuse_freed_memory()
    rank = 0
    try:
        rank = parse_environment(os.environ).rank
        args = parse_arguments(argv)
        ctx = DistContext.from_env(timeout_s=args.timeout_s, device=args.device)
    except (*USER_ERRORS, RuntimeError) as error:  # RuntimeError: a rank or a package is missing
        return refuse(error, rank)
    with ctx:
        try:
            return train(args, ctx)
        except (*USER_ERRORS, torch.cuda.OutOfMemoryError) as error:
            status = refuse(error, rank)
            if ctx.comm.abort_ends_process:  # under MPI nothing else ends the other ranks
                time.sleep(FORWARD_S)
                ctx.comm.abort()
            raise SystemExit(status) from error


if __name__ == "__main__":
    sys.exit(main())

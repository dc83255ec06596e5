"""run: one training run from the opened partition to its last report, as the command `fastsample-train` does it.

open the data -> loaders, model, trainer -> (resume) -> Trainer.fit with callbacks (evaluation, reports, checkpoints)
-> results
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fastsample_dist import __version__
from fastsample_dist.comm.agree import PURPOSE as SETUP
from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.environment import parse_environment
from fastsample_dist.comm.trace import Trace
from fastsample_dist.files import check_separate, check_writable, write_json, write_text
from fastsample_dist.ops.sample_methods import METHODS
from fastsample_dist.page import require_matplotlib
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.pipeline.roles import ROLES_NONE
from fastsample_dist.pipeline.seeds import check_counts
from fastsample_dist.pipeline.subgraph_loader import SubgraphLoader
from fastsample_dist.pipeline.transport import SHARED
from fastsample_dist.progress import make_progress
from fastsample_dist.sampling.sampler import HopwiseSampler, Sampler
from fastsample_dist.train.callbacks import Callback
from fastsample_dist.train.checkpoint import Checkpointer, CheckpointSettings, fingerprint
from fastsample_dist.train.config import TrainConfig, option
from fastsample_dist.train.epoch_records import RankRecords, run_facts
from fastsample_dist.train.evaluation import Evaluation, neighbours_seen, score_names, scores_line
from fastsample_dist.train.metrics import CommTally, payload_exchanges
from fastsample_dist.train.objectives import METRICS
from fastsample_dist.train.report import (
    CacheFigures,
    ConsoleReport,
    EpochFigures,
    History,
    RoleFigures,
    TrainingTally,
    cache_figures,
    comm_table,
    device_figures,
    device_lines,
    epoch_table,
    make_console,
    roles_line,
    roles_of,
)
from fastsample_dist.train.report_page import render_page
from fastsample_dist.train.saved import build_model, check_directory, description_of, save_model, write_predictions
from fastsample_dist.train.schedules import make_schedule
from fastsample_dist.train.stop import StopSignal
from fastsample_dist.train.trainer import Trainer

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
      model: with the trained parameters.
      stopped: by Ctrl-C or SIGTERM, before its last step; the run can be resumed.
      report: what `--json` writes; {} when the run was stopped.
    """

    model: nn.Module
    stopped: bool
    report: dict[str, Any] = field(default_factory=dict)


def run(config: TrainConfig, ctx: DistContext, callbacks: Sequence[Callback] = ()) -> RunResult:
    """Train, evaluate and report; rank 0 prints.

    Collective: every rank must call this, with the same configuration.

    Args:
      config: what to do. `device` and `timeout_s` are those of the context, which is made already.
      ctx: the rank's context.
      callbacks: called after evaluation and before the run's own reports and checkpoint, so that figures that they add
        to an epoch's report are printed and logged.
    Raises:
      ValueError: an input, an option or a file is refused (on all ranks); results that cannot be written are refused
        when everything else is done.
      RuntimeError: a collective failed or passed its deadline; names rank, step and purpose.
    """
    agree_on(ctx.comm, "options", config.shared())
    threads = set_threads(config.threads, ctx)
    data = open_data(config, ctx)
    loaders, trainer = make_loaders(config, data), make_trainer(config, data)
    console = make_console(ctx)
    if config.trace is not None:
        ctx.comm.watch.trace = Trace.start(ctx.comm)
    print_opening(console, config, loaders["train"])
    with nullcontext() if config.checkpoint_dir is None else StopSignal() as stop:
        checkpoints = begin_checkpoints(config, trainer, loaders["train"], stop, console)
        print_roles(console, trainer, loaders["train"])
        planned = sum(map(loaders["train"].num_steps, range(loaders["train"].epoch, config.epochs)))
        console.print(f"{config.scheme}, {ctx.world_size} rank(s), {threads} thread(s) each, {planned} steps")
        if isinstance(loaders["train"], SubgraphLoader):
            console.print(str(loaders["train"]), soft_wrap=True)
        progress = make_progress(console)
        training, evaluation = (
            CommTally(ctx.comm),
            Evaluation(config, trainer, loaders, progress, hopwise_sampler(config, data)),
        )
        counted = TrainingTally(training)
        history = History(None if checkpoints is None else checkpoints.kept.setdefault("epochs", []))
        trainer.fit(
            loaders["train"], config.epochs,
            [
                counted, CacheFigures(), RoleFigures(), evaluation, *callbacks,
                RankRecords(ctx, training, run_facts(config, loaders["train"], threads)), history,
                EpochFigures(ctx, jsonl=config.jsonl, tensorboard=config.tensorboard),
                ConsoleReport(console, progress, config.model), *([] if checkpoints is None else [checkpoints]),
            ],
        )  # fmt: skip
        if checkpoints is not None and checkpoints.stopped:
            where = checkpoints.last_path or "the beginning"
            console.print(f"stopped; --resume resumes from {where}", soft_wrap=True)
            return RunResult(trainer.model, stopped=True)
    if console.is_terminal:
        console.print(epoch_table(history.epochs))
    measured = final_scores(config, evaluation, history.epochs, score_names(data), console)
    if ctx.world_size > 1 and counted.steps > 0:
        console.print(comm_table(training.stats, counted.steps))
        train, per_step = loaders["train"], payload_exchanges(training.stats) / counted.steps
        resolved = f"transport {train.transport}, exchange {train.exchange}{', rails' if train.rails else ''}"
        console.print(f"payload exchanges per step: {per_step:g} ({resolved})")
    report = {
        "epochs": history.epochs, "val_acc": None, "test_acc": None, **measured, "world_size": ctx.world_size,
        "scheme": config.scheme, "steps": counted.steps, "comm": training.stats,
        "comm_evaluation": evaluation.tally.stats, "threads": threads, "options": config.as_json(),
        "kernel": config.kernel, "transport": loaders["train"].transport, "exchange": loaders["train"].exchange,
        "rails": loaders["train"].rails, "roles": str(roles_of(loaders["train"]) or ROLES_NONE),
        **device_figures(ctx, loaders["train"]), "cache": cache_figures(loaders["train"]),
        "resumed": None if checkpoints is None or checkpoints.resumed is None else asdict(checkpoints.resumed),
    }  # fmt: skip
    write_results(ctx, result_writes(config, trainer, data, report))
    return RunResult(trainer.model, stopped=False, report=report)


def print_opening(console: Console, config: TrainConfig, loader: BatchLoader) -> None:
    """What is trained on what, and where its rows come from."""
    data, ctx = loader.data, loader.data.ctx
    console.print(f"{config.model} on {data.manifest.name}: {data.num_nodes} nodes, {data.manifest.num_edges} edges")
    for line in device_lines(ctx, loader.places):
        console.print(line, soft_wrap=True)
    if ctx.world_size > 1:
        console.print(str(loader.sharing), soft_wrap=True)
    if loader.cache is not None:
        console.print(str(loader.cache), soft_wrap=True)


def print_roles(console: Console, trainer: Trainer, loader: BatchLoader) -> None:
    """Choose the roles of ranks where that is asked for, and name them. Collective: every rank must call this."""
    choice = trainer.settle_roles(loader)
    if choice is not None:
        console.print(choice.table())
    roles = roles_of(loader)
    if roles is not None:
        console.print(roles_line(roles, loader.sharing.machines))


def final_scores(
    config: TrainConfig, evaluation: Evaluation, epochs: list[dict], names: list[str], console: Console
) -> dict[str, float | None]:
    """The last epoch's scores, measured now where it has none. Collective: every rank must call this.

    Args:
      config: whether anything is measured.
      evaluation: measures.
      epochs: what is known already.
      names: of the scores.
      console: gets the line of the test split.
    """
    measured = {name: last_known(epochs, name) for name in names}
    if config.eval_every > 0:
        last = epochs[-1] if epochs else {}
        if not all(name in last for name in names):  # nothing was left to train, or a callback ended it early
            with evaluation.progress:
                measured |= evaluation.measure(["val", "test"])
        console.print(f"{scores_line(measured)} (over all ranks; {neighbours_seen(config)})")
    return measured


def write_results(ctx: DistContext, writes: Sequence[Callable[[], object]]) -> None:
    """Carry out all writes; a file that is refused keeps none of the others from being written.

    Collective: every rank must call this, with as many writes.

    Raises:
      ValueError: one or more were refused on some rank (on all ranks); names the file of each.
    """
    refusals = []
    for write in writes:
        try:
            agree(ctx, write)
        except ValueError as error:
            refusals.append(str(error))
    if refusals:
        raise ValueError("; ".join(refusals))


def set_threads(threads: int | None, ctx: DistContext) -> int:
    """Intra-op threads of this rank: as asked, else its share of the machine, within what it may use."""
    share = (os.cpu_count() or 1) // ctx.local_world_size
    torch.set_num_threads(threads or max(1, min(share, len(os.sched_getaffinity(0)))))
    return torch.get_num_threads()


def check_outputs(config: TrainConfig) -> None:
    """All files that the options name."""
    names = ("json", "jsonl", "report", "trace", "save_model")
    files = [(option(name), getattr(config, name)) for name in names if getattr(config, name) is not None]
    if config.save_model is not None:
        files.append(("the description of --save-model", description_of(config.save_model)))
    check_separate(files)
    for name, file in files:
        check_writable(name, file)
    if config.report is not None:
        try:
            require_matplotlib("--report", "--jsonl")
        except ImportError as error:  # ranks agree on ValueErrors
            raise ValueError(str(error)) from error
    if config.tensorboard is not None:
        if find_spec("tensorboard") is None:
            raise ValueError("--tensorboard needs a package; pip install 'fastsample_dist[tensorboard]'.")
        check_directory("--tensorboard", config.tensorboard)


def open_data(config: TrainConfig, ctx: DistContext) -> DistData:
    """The partition, after everything that can be refused without it."""
    agree(ctx, lambda: check_outputs(config) if ctx.rank == 0 else None)
    if config.predictions is not None:
        agree(ctx, lambda: check_directory("--predictions", config.predictions))  # every rank writes
    data = DistData.load(config.data, ctx, verify=config.verify)
    if data.features is None or data.labels is None:
        raise ValueError(
            f"{config.data} lacks features or labels; partition an input with features.npy and labels.npy."
        )
    check_splits(config, data)
    if METHODS[config.neighbour_method].weighted and data.graph.weights is None:
        raise ValueError(
            f"{config.data} lacks edge weights for --sampler {config.sampler}; partition one with edge_weight.npy."
        )
    return data


def check_splits(config: TrainConfig, data: DistData) -> None:
    """The splits that are trained on and measured are there, and none is empty on all ranks, before anything is
    trained. Collective: every rank must call this.
    """
    splits = ("train", *(("val", "test") if config.eval_every > 0 else ()))

    def sizes() -> list[int]:
        found = []
        for split in splits:
            with _offering_no_evaluation(split):
                found.append(data.split(split).numel())
        return found

    per_rank = data.ctx.comm.all_gather_object(agree(data.ctx, sizes), purpose=SETUP)
    for split, counts in zip(splits, zip(*per_rank, strict=True), strict=True):
        with _offering_no_evaluation(split):
            check_counts(split, counts)


@contextmanager
def _offering_no_evaluation(split: str) -> Iterator[None]:
    """What is refused of a split that is only measured names the option that does without."""
    try:
        yield
    except ValueError as error:
        hint = "" if split == "train" else "; or pass --eval-every 0, which trains without measuring"
        raise ValueError(f"{str(error).removesuffix('.')}{hint}.") from error


def make_loaders(config: TrainConfig, data: DistData) -> dict[str, BatchLoader]:
    """Loaders by split; those for evaluation only if there is one that samples."""
    how = {
        "prefetch": config.prefetch, "feature_dtype": torch.bfloat16 if config.precision == "bf16" else None,
        "placement": config.placement, "transport": config.transport, "exchange": config.exchange,
        "rails": config.rails,
    }  # fmt: skip
    make = partial(DistLoader, data, batch_size=config.batch_size, rng_seed=config.seed, **how)
    sampler = hopwise_sampler(config, data)
    if config.has_subgraphs:
        train: BatchLoader = SubgraphLoader(
            data, config.subgraph_spec, config.layers, subgraphs_per_step=config.subgraphs_per_step,
            locality=config.locality, cache=config.feature_cache(), **how,
        )  # fmt: skip
    else:
        train = make(
            split="train", cache=config.feature_cache(), roles=config.roles, staleness=config.staleness,
            **drawing(config, sampler, config.fanouts),
        )  # fmt: skip
    loaders = {"train": train}
    if config.eval_every > 0 and config.eval == "sampled":
        # rows that follow the training batches are of no use to others, nor those in front of rows that are not read
        is_apart = train.cache is not None and train.cache.is_front and config.transport != SHARED
        evaluate = partial(make, shuffle=False, cache=None if config.lookahead or is_apart else train.cache)
        drawn = drawing(config, sampler, config.eval_fanouts)
        loaders |= {split: evaluate(split=split, **drawn) for split in ("val", "test")}
    return loaders


def drawing(config: TrainConfig, sampler: Sampler | None, fanouts: tuple[int, ...]) -> dict[str, Any]:
    """The options of DistLoader that say how its batches are drawn."""
    if sampler is not None:
        return {"sampler": sampler}
    return {
        "fanouts": fanouts, "scheme": config.scheme, "method": config.neighbour_method, "replace": config.replace,
        "kernel": config.kernel,
    }  # fmt: skip


def hopwise_sampler(config: TrainConfig, data: DistData) -> HopwiseSampler | None:
    """What says who the neighbours are, of training and of evaluation; None: the rows of the graph."""
    return config.pinsage_sampler(data.graph, config.layers, config.seed) if config.has_walks else None


def make_trainer(config: TrainConfig, data: DistData) -> Trainer:
    """The model with an optimizer, the same on every rank."""
    torch.manual_seed(config.seed)
    model = build_model(**built_from(config, data))
    model.to(data.ctx.device)  # drawn on the CPU, so that every device starts from the same parameters
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    schedule = make_schedule(
        config.lr_schedule, optimizer, epochs=config.epochs, step_epochs=config.lr_step, gamma=config.lr_gamma
    )
    return Trainer(
        model, optimizer, data.ctx, precision=config.precision, metrics=METRICS[data.task], scheduler=schedule,
        allow_nonfinite=config.allow_nonfinite,
    )  # fmt: skip


def built_from(config: TrainConfig, data: DistData) -> dict[str, Any]:
    """What the model is built from: the arguments of `build_model`."""
    return {
        "model": config.model, "feature_dim": data.feature_dim, "hidden": config.hidden,
        "num_outputs": data.num_outputs, "layers": config.layers, "dropout": config.dropout, "heads": config.heads,
        "residual": config.residual, "norm": config.norm,
    }  # fmt: skip


def result_writes(
    config: TrainConfig, trainer: Trainer, data: DistData, report: dict[str, Any]
) -> list[Callable[[], object]]:
    """Functions that write the trained model, its predictions, the report, its page and the timeline, as requested; all
    ranks call them.
    """
    writes: list[Callable[[], object]] = []
    comm, is_first = data.ctx.comm, data.ctx.rank == 0
    if config.save_model is not None:
        manifest = data.manifest
        built = built_from(config, data) | {
            "task": data.task, "num_classes": data.num_classes, "fanouts": config.fanouts, "seed": config.seed,
            "sampler": config.sampler, **(config.pinsage_shaping() if config.has_walks else {}),
            "partition": manifest.name, "partition_sha256": fingerprint(manifest),
            "versions": {"fastsample_dist": __version__, "torch": torch.__version__},
        }  # fmt: skip
        writes.append(lambda: save_model(config.save_model, trainer.model, built) if is_first else None)
    if config.predictions is not None:
        writes.append(
            lambda: write_predictions(
                trainer.model, data, config.predictions, config.batch_size, sampler=hopwise_sampler(config, data)
            )
        )
    # Ranks need not name the same of these files: those of rank 0 are written, and all ranks make the calls.
    writes.append(lambda: write_json(config.json, report) if is_first and config.json else None)
    writes.append(
        lambda: write_text(config.report, render_page(report["epochs"])) if is_first and config.report else None
    )
    if comm.watch.trace is not None:
        writes.append(lambda: comm.watch.trace.write(config.trace, comm))
    return writes


def begin_checkpoints(
    config: TrainConfig, trainer: Trainer, loader: BatchLoader, stop: StopSignal | None, console: Console
) -> Checkpointer | None:
    """What saves the run, resumed where an earlier one left off; None without checkpoint_dir."""
    if config.checkpoint_dir is None:
        return None
    settings = CheckpointSettings(
        directory=config.checkpoint_dir, every=config.checkpoint_every, keep=config.keep,
        options=config.shaping(), may_change=("lr",) if config.allow_new_lr else (),
    )  # fmt: skip
    checkpoints = Checkpointer(trainer, loader, settings, stop)
    attempt = parse_environment(os.environ).attempt
    resumed = checkpoints.begin(resume=config.resume, attempt=attempt)
    if resumed is not None:
        if config.allow_new_lr:
            trainer.set_learning_rate(config.lr)
        done = f"epoch {resumed.epoch + 1}, {resumed.step} steps done"
        console.print(f"resumed from {resumed.path}: {done}", soft_wrap=True)
        if resumed.world_size != loader.data.ctx.world_size:
            console.print(f"it was written by {resumed.world_size} rank(s), now there are {loader.data.ctx.world_size}")
    elif config.resume or attempt > 0:
        console.print(f"no checkpoint in {config.checkpoint_dir}: starting from the beginning", soft_wrap=True)
    return checkpoints


def last_known(epochs: list[dict], name: str) -> float | None:
    """The latest epoch's figure of that name."""
    return next((epoch[name] for epoch in reversed(epochs) if name in epoch), None)

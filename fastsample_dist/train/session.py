"""run: one training run from the opened partition to its last report, as the command `fastsample-train` does it.

open the data -> loaders, model, trainer -> (resume) -> epochs with evaluation and checkpoints -> results
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fastsample_dist import __version__
from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.environment import parse_environment
from fastsample_dist.comm.trace import Trace
from fastsample_dist.files import check_writable, naming_file, write_json
from fastsample_dist.ops.sample_methods import METHODS
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.train.checkpoint import Checkpointer, CheckpointSettings, fingerprint
from fastsample_dist.train.config import TrainConfig, option
from fastsample_dist.train.inference import layerwise, measure
from fastsample_dist.train.metrics import CommTally, payload_exchanges
from fastsample_dist.train.objectives import METRICS
from fastsample_dist.train.report import (
    EpochFigures,
    comm_table,
    device_figures,
    device_lines,
    epoch_line,
    epoch_table,
    make_console,
    make_progress,
)
from fastsample_dist.train.saved import build_model, check_directory, description_of, save_model, write_predictions
from fastsample_dist.train.schedules import make_schedule
from fastsample_dist.train.stop import StopSignal
from fastsample_dist.train.trainer import Trainer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


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


def run(config: TrainConfig, ctx: DistContext) -> RunResult:
    """Train, evaluate and report; rank 0 prints.

    Collective: every rank must call this, with the same configuration.

    Args:
      config: what to do. `device` and `timeout_s` are those of the context, which is made already.
      ctx: the rank's context.
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
    console.print(f"{config.model} on {data.manifest.name}: {data.num_nodes} nodes, {data.manifest.num_edges} edges")
    for line in device_lines(ctx, loaders["train"].places):
        console.print(line, soft_wrap=True)
    with nullcontext() if config.checkpoint_dir is None else StopSignal() as stop:
        checkpoints = begin_checkpoints(config, trainer, loaders["train"], stop, console)
        steps = sum(map(loaders["train"].num_steps, range(loaders["train"].epoch, config.epochs)))
        console.print(f"{config.scheme}, {ctx.world_size} rank(s), {threads} thread(s) each, {steps} steps")
        epochs = [] if checkpoints is None else checkpoints.kept.setdefault("epochs", [])
        tallies = {"training": CommTally(ctx.comm), "evaluation": CommTally(ctx.comm)}
        run_epochs(config, trainer, loaders, checkpoints, epochs=epochs, tallies=tallies, console=console)
        if checkpoints is not None and checkpoints.stopped:
            where = checkpoints.last_path or "the beginning"
            console.print(f"stopped; --resume goes on from {where}", soft_wrap=True)
            return RunResult(trainer.model, stopped=True)
    if console.is_terminal:
        console.print(epoch_table(epochs))
    training, evaluation = tallies["training"].stats, tallies["evaluation"]
    measured = {name: last_known(epochs, name) for name in score_names(data)}
    if config.eval_every > 0:
        if None in [value for name, value in measured.items() if name.startswith("test_")]:  # nothing was left to train
            with evaluation, make_progress(console) as progress:
                measured |= evaluate(config, trainer, loaders, ["test"], progress)
        console.print(f"{scores_line(measured)} (over all ranks; {neighbours_seen(config)})")
    if ctx.world_size > 1 and steps > 0:
        console.print(comm_table(training, steps))
        console.print(f"payload exchanges per step: {payload_exchanges(training) / steps:g}")
    report = {
        "epochs": epochs, "val_acc": None, "test_acc": None, **measured, "world_size": ctx.world_size,
        "scheme": config.scheme, "steps": steps, "comm": training, "comm_evaluation": evaluation.stats,
        "threads": threads, "options": config.as_json(), "kernel": config.kernel,
        **device_figures(ctx, loaders["train"]),
        "resumed": None if checkpoints is None or checkpoints.resumed is None else asdict(checkpoints.resumed),
    }  # fmt: skip
    writes = model_writes(config, trainer, data)
    if config.json is not None:
        writes.append(lambda: write_json(config.json, report) if ctx.rank == 0 else None)
    if ctx.comm.watch.trace is not None:
        writes.append(lambda: ctx.comm.watch.trace.write(config.trace, ctx.comm))
    write_results(ctx, writes)
    return RunResult(trainer.model, stopped=False, report=report)


def write_results(ctx: DistContext, writes: Sequence[Callable[[], object]]) -> None:
    """Carry out all writes; a file that is refused keeps none of the others from being written.

    Collective: every rank must call this, with as many writes.

    Raises:
      ValueError: one or more were refused on some rank (on all ranks); names the first one's file.
    """
    refusals = []
    for write in writes:
        try:
            agree(ctx, write)
        except ValueError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def set_threads(threads: int | None, ctx: DistContext) -> int:
    """Intra-op threads of this rank: as asked, else its share of the machine, within what it may use."""
    share = (os.cpu_count() or 1) // ctx.local_world_size
    torch.set_num_threads(threads or max(1, min(share, len(os.sched_getaffinity(0)))))
    return torch.get_num_threads()


def check_outputs(config: TrainConfig) -> None:
    """All files that the options name."""
    for name in ("json", "jsonl", "trace", "save_model"):
        if getattr(config, name) is not None:
            check_writable(option(name), getattr(config, name))
    if config.save_model is not None:
        check_writable("--save-model", description_of(config.save_model))
    if config.tensorboard is not None:
        if find_spec("tensorboard") is None:
            raise ValueError("--tensorboard needs a package; pip install 'fastsample_dist[tensorboard]'.")
        with naming_file(config.tensorboard):
            config.tensorboard.mkdir(parents=True, exist_ok=True)


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
    if METHODS[config.sampler].weighted and data.graph.weights is None:
        raise ValueError(
            f"{config.data} lacks edge weights for --sampler {config.sampler}; partition one with edge_weight.npy."
        )
    return data


def make_loaders(config: TrainConfig, data: DistData) -> dict[str, DistLoader]:
    """Loaders by split, those for evaluation only where it is wanted."""
    make = partial(
        DistLoader, data, batch_size=config.batch_size, scheme=config.scheme, rng_seed=config.seed,
        prefetch=config.prefetch, feature_dtype=torch.bfloat16 if config.precision == "bf16" else None,
        method=config.sampler, replace=config.replace, kernel=config.kernel, placement=config.placement,
    )  # fmt: skip
    loaders = {"train": make(config.fanouts, split="train")}
    if config.eval_every > 0 and config.eval == "sampled":
        loaders |= {split: make(config.eval_fanouts, split=split, shuffle=False) for split in ("val", "test")}
    return loaders


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
    }  # fmt: skip


def model_writes(config: TrainConfig, trainer: Trainer, data: DistData) -> list[Callable[[], object]]:
    """What writes the trained model and its predictions, where they are wanted; for all ranks to call."""
    writes: list[Callable[[], object]] = []
    if config.save_model is not None:
        manifest = data.manifest
        built = built_from(config, data) | {
            "task": data.task, "num_classes": data.num_classes, "fanouts": config.fanouts, "seed": config.seed,
            "partition": manifest.name, "partition_sha256": fingerprint(manifest),
            "versions": {"fastsample_dist": __version__, "torch": torch.__version__},
        }  # fmt: skip
        is_first = data.ctx.rank == 0
        writes.append(lambda: save_model(config.save_model, trainer.model, built) if is_first else None)
    if config.predictions is not None:
        writes.append(lambda: write_predictions(trainer.model, data, config.predictions, config.batch_size))
    return writes


def begin_checkpoints(
    config: TrainConfig, trainer: Trainer, loader: DistLoader, stop: StopSignal | None, console: Console
) -> Checkpointer | None:
    """What saves the run, resumed where an earlier one stands; None without checkpoint_dir."""
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


def evaluate(
    config: TrainConfig, trainer: Trainer, loaders: dict[str, DistLoader], splits: list[str], progress: Progress
) -> dict[str, float]:
    """What is measured, as "<split>_<metric>". Collective: every rank must call this."""
    if config.eval == "sampled":
        return by_name({split: trainer.evaluate(loaders[split]) for split in splits})
    data = loaders["train"].data
    bar = progress.add_task("evaluation", total=None)
    scores = layerwise(
        trainer.model, data, config.batch_size,
        on_batch=lambda done, total: progress.update(bar, completed=done, total=total),
    )  # fmt: skip
    progress.remove_task(bar)
    return by_name({split: measure(scores, data, split, METRICS[data.task]) for split in splits})


def by_name(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """{"val": {"acc": 0.7}} -> {"val_acc": 0.7}."""
    return {f"{split}_{name}": value for split, values in found.items() for name, value in values.items()}


def score_names(data: DistData) -> list[str]:
    """Names of all that a run on these labels measures."""
    return [f"{split}_{name}" for split in ("val", "test") for name in METRICS[data.task]]


def scores_line(measured: dict[str, float | None]) -> str:
    """ "test accuracy 0.7312", or what else was measured of the test split."""
    found = {name.removeprefix("test_"): value for name, value in measured.items() if name.startswith("test_")}
    return "test " + ", ".join(f"{'accuracy' if name == 'acc' else name} {value:.4f}" for name, value in found.items())


def neighbours_seen(config: TrainConfig) -> str:
    """What evaluation sees, in words."""
    if config.eval == "full":
        return "all neighbours"
    return f"neighbours sampled with {','.join(map(str, config.eval_fanouts))}"


def last_known(epochs: list[dict], name: str) -> float | None:
    """The latest epoch's figure of that name."""
    return next((epoch[name] for epoch in reversed(epochs) if name in epoch), None)


def run_epochs(
    config: TrainConfig,
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
    figures = EpochFigures(ctx, jsonl=config.jsonl, tensorboard=config.tensorboard)
    with closing(figures), make_progress(console) as progress:
        bar = progress.add_task(config.model, total=sum(map(loader.num_steps, range(loader.epoch, config.epochs))))

        done = 0

        def on_step(batch: MiniBatch) -> bool:
            nonlocal done
            done = batch.step + 1
            progress.advance(bar)
            return checkpoints is not None and checkpoints.after_step(batch)

        for number in range(loader.epoch + 1, config.epochs + 1):
            rate = {"lr": trainer.learning_rate} if config.lr_schedule != "constant" else {}
            with tallies["training"]:
                stats = trainer.run_epoch(loader, on_step, carried=checkpoints and checkpoints.carried)
            if checkpoints is not None and checkpoints.stopped:
                return
            epochs.append(asdict(stats) | rate)
            is_last = number == config.epochs
            if config.eval_every > 0 and (number % config.eval_every == 0 or is_last):
                with tallies["evaluation"], ctx.comm.watch.span("evaluate"):
                    found = evaluate(config, trainer, loaders, ["val", "test"] if is_last else ["val"], progress)
                epochs[-1] |= found
            shown = {name: value for name, value in epochs[-1].items() if name.startswith("val_")}
            figures.add(stats, done, **shown, **rate)
            console.print(f"epoch {number}/{config.epochs}  {epoch_line(stats, shown)}")
            if checkpoints is not None and checkpoints.end_epoch():
                return
    if checkpoints is not None:
        checkpoints.save()

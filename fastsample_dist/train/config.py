"""TrainConfig: every option of a training run, as one value that validates itself.

The command `fastsample-train` has one option per field (`eval_fanouts` is `--eval-fanouts`), so messages name fields as
the command does.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from fastsample_dist.device.choice import DEVICES
from fastsample_dist.device.placement import CHOICES as PLACES
from fastsample_dist.features.cache import NONE, FeatureCache
from fastsample_dist.features.policies import MOST_AHEAD, POLICIES
from fastsample_dist.memory_sizes import parse_bytes
from fastsample_dist.ops import checks
from fastsample_dist.ops.kernel_choice import CHOICES as KERNELS
from fastsample_dist.ops.sample_methods import METHODS
from fastsample_dist.ops.sample_spec import SampleSpec
from fastsample_dist.pipeline.exchange import EXCHANGES
from fastsample_dist.pipeline.roles import ROLES_AUTO, ROLES_NONE, as_roles
from fastsample_dist.pipeline.schemes import HYBRID, SCHEMES
from fastsample_dist.pipeline.transport import AUTO, TRANSPORTS
from fastsample_dist.sampling.subgraph_spec import OF_METHOD, SubgraphSpec
from fastsample_dist.train.models import NORMS, check_fanouts
from fastsample_dist.train.pinsage_config import OF_PINSAGE, PINSAGE, PinSAGEConfig
from fastsample_dist.train.saved import MODELS
from fastsample_dist.train.schedules import SCHEDULES
from fastsample_dist.train.subgraph_config import SUBGRAPH_CHOICES, SUBGRAPH_METHODS
from fastsample_dist.train.trainer import PRECISIONS

EVALUATIONS = ("sampled", "full")
CHOICES = {
    "scheme": SCHEMES, "model": tuple(MODELS), "device": DEVICES, "kernel": KERNELS, "placement": PLACES,
    "exchange": EXCHANGES,
    # a view: a method that is registered later is a choice, too
    "sampler": ChainMap({PINSAGE: OF_PINSAGE}, OF_METHOD, METHODS),
    "precision": PRECISIONS, "eval": EVALUATIONS, "verify": ("once", "full"),
    "lr_schedule": SCHEDULES, "norm": NORMS, "transport": TRANSPORTS, "cache_policy": POLICIES, **SUBGRAPH_CHOICES,
}  # fmt: skip
AT_LEAST_ONE = (
    "epochs", "batch_size", "layers", "hidden", "heads", "checkpoint_every", "keep", "lr_step",
    "subgraphs_per_step", "num_walks", "num_neighbors",
)  # fmt: skip
AT_LEAST_ZERO = ("eval_every", "prefetch", "cache", "lookahead", "staleness")
FILES = ("json", "jsonl", "report", "tensorboard", "trace", "checkpoint_dir", "save_model", "predictions")
SHAPING = (
    "model", "layers", "hidden", "heads", "dropout", "lr", "fanouts", "sampler", "replace", "precision", "seed",
)  # fmt: skip
"""Fields that a checkpoint and the run that resumes from it must have in common."""
OF_NEIGHBOURS = ("fanouts", "replace")
"""Those among them that shape neither subgraphs nor walks."""
OWN = (
    "data", "kernel", "placement", "threads", "timeout_s", "json", "jsonl", "report", "tensorboard", "keep", "verify",
)  # fmt: skip
"""Fields in which ranks may differ: paths, and choices of one machine that change no result."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(PinSAGEConfig):
    """What `fastsample_dist.train.run` is to do.

    Attributes:
      data: directory written by fastsample-partition.
      scheme: "hybrid" or "vanilla".
      model: "sage", "gcn", "gat" or "pinsage".
      device: "cpu", "cuda" or "auto"; for the caller, who makes the context.
      kernel: for sampling on a GPU: "auto", "per_hop", "persistent" or "cooperative".
      placement: of a GPU's topology and features: "auto", "device" or "pinned".
      transport: of other ranks' rows: "auto", "exchange" or "shared"; see LoaderOptions.
      exchange: how ranks meet to fetch features: "auto", "combined" or "paired".
      rails: a row that several ranks of a machine need from another crosses the network once; see LoaderOptions.
      epochs: to train, including those of a run that is resumed.
      batch_size: seeds per rank and step.
      fanouts: neighbours per node, from the seeds outwards; -1 takes all. Of subgraphs in `eval` "sampled" alone.
      eval_fanouts: the same for evaluation; None: `fanouts`.
      sampler: one of ops.sample_methods.METHODS, such as "uniform"; or one of the methods of SubgraphSpec, such as
        "frontier", which trains on subgraphs; or "pinsage", whose neighbours are what walks visit. Their options: see
        SubgraphConfig and PinSAGEConfig.
      replace: draw neighbours with replacement.
      layers: of the model, one per fanout; None: as many as fanouts.
      hidden: columns of a hidden row.
      heads: attention heads of "gat".
      dropout: probability, at least 0 and below 1.
      residual: hidden layers whose rows keep their width add their input to their result.
      norm: "layer": LayerNorm in every hidden layer; None: none.
      lr: learning rate of Adam, where the schedule begins.
      precision: "fp32" or "bf16".
      eval_every: epochs between evaluations; 0 never evaluates.
      eval: "sampled" sees sampled neighbours, "full" all of them, layer by layer; of "pinsage" neighbourhoods that are
        sampled once per node and layer. None: "sampled", and "full" of a run on subgraphs.
      prefetch: batches made ahead in the background.
      cache: bytes of other ranks' feature rows that are kept, or a size such as "2GiB"; None or 0: none. See
        features/cache.py.
      cache_policy: which rows, of a cache: one of features.policies.POLICIES.
      lookahead: batches ahead of their turn whose rows stay in the cache once they have been fetched; 0 to 100.
      roles: of ranks: "none": every rank samples and trains; "S+T", such as "1+3": S ranks sample and T train
        (pipeline/tasks.py); "auto": what is predicted to be fastest, after measuring the stages.
      staleness: with roles, updates by which every gradient is behind.
      seed: of parameters, shuffling, sampling and dropout.
      threads: per rank; None: the machine's cores divided among its ranks.
      timeout_s: longest wait for other ranks; for the caller, who makes the context.
      json: file for the results, or None.
      jsonl: file that gets one JSON line per epoch, or None.
      report: file for a page of the run's figures (HTML), or None.
      tensorboard: directory for TensorBoard's event files, or None.
      trace: file for a timeline in Chrome's trace format, or None.
      checkpoint_dir: directory for checkpoints; None saves none.
      checkpoint_every: steps between two checkpoints.
      keep: how many of the newest checkpoints are kept.
      resume: resume from the newest valid checkpoint in `checkpoint_dir`, if any.
      lr_schedule: "constant"; "cosine" and "linear" fall from `lr` towards 0 over all epochs; "step" multiplies by
        `lr_gamma` every `lr_step` epochs.
      lr_step, lr_gamma: of "step".
      allow_new_lr: a run that is resumed continues with this `lr`; otherwise one that differs is refused.
      allow_nonfinite: continue when a loss or gradient is NaN or infinite, with a warning.
      verify: "once" compares the partition's checksums once per copy, "full" at every start.
      save_model: file for the trained model (load_model reads it), or None.
      predictions: directory for the scores of all nodes, computed with all neighbours, or None.
    Raises:
      ValueError: a value out of range, or values that contradict each other.
    """

    data: Path
    scheme: str = "hybrid"
    model: str = "sage"
    device: str = "cpu"
    kernel: str = "auto"
    placement: str = "auto"
    transport: str = AUTO
    exchange: str = "auto"
    rails: bool = True
    epochs: int = 10
    batch_size: int = 1000
    fanouts: tuple[int, ...] = (15, 10, 5)
    eval_fanouts: tuple[int, ...] | None = None
    sampler: str = "uniform"
    replace: bool = False
    layers: int | None = None
    hidden: int = 256
    heads: int = 4
    dropout: float = 0.5
    residual: bool = False
    norm: str | None = None
    lr: float = 0.006
    precision: str = "fp32"
    eval_every: int = 1
    eval: str | None = None
    prefetch: int = 0
    cache: int | str | None = None
    cache_policy: str = "auto"
    lookahead: int = 0
    roles: str = ROLES_NONE
    staleness: int = 0
    seed: int = 0
    threads: int | None = None
    timeout_s: float = 600.0
    json: Path | None = None
    jsonl: Path | None = None
    report: Path | None = None
    tensorboard: Path | None = None
    trace: Path | None = None
    checkpoint_dir: Path | None = None
    checkpoint_every: int = 100
    keep: int = 3
    resume: bool = False
    lr_schedule: str = "constant"
    lr_step: int = 10
    lr_gamma: float = 0.1
    allow_new_lr: bool = False
    allow_nonfinite: bool = False
    verify: str = "once"
    save_model: Path | None = None
    predictions: Path | None = None

    def __post_init__(self) -> None:
        self._normalise()
        self._check_values()
        if self.lookahead > 0 and not self.cache:
            raise ValueError(f"--lookahead is {self.lookahead} without a cache; pass --cache SIZE too.")
        if self.lookahead > MOST_AHEAD:
            raise ValueError(f"--lookahead is {self.lookahead}; expected at most {MOST_AHEAD} batches.")
        if self.cache_policy not in ("auto", NONE) and not self.cache:
            raise ValueError(f"--cache-policy is {self.cache_policy} without a cache; pass --cache SIZE too.")
        if self.resume and self.checkpoint_dir is None:
            raise ValueError("--resume needs the --checkpoint-dir to resume from; see --help.")
        self._refuse_unread()
        self.refuse_ignored(self.sampler)
        if self.replace and (self.has_subgraphs or not METHODS[self.neighbour_method].replaceable):
            raise ValueError(
                f"--sampler {self.sampler} takes every edge at most once; leave out --replace; see --help."
            )
        self._check_drawing()
        self._check_roles()

    @property
    def has_subgraphs(self) -> bool:
        """Whether it trains on subgraphs."""
        return self.sampler in SUBGRAPH_METHODS

    @property
    def subgraph_spec(self) -> SubgraphSpec:
        """Of a run on subgraphs: how they are drawn and weighted."""
        return self.spec_of(self.sampler, self.seed)

    @property
    def has_walks(self) -> bool:
        """Whether neighbours are what walks visit."""
        return self.sampler == PINSAGE

    @property
    def neighbour_method(self) -> str:
        """How neighbours are drawn: of a run on subgraphs those of evaluation; walks take edges uniformly."""
        return "uniform" if self.has_subgraphs or self.has_walks else self.sampler

    def _check_values(self) -> None:
        """Refuse a value that is out of range or of another kind, whatever the others are."""
        optional = {field.name for field in fields(self) if field.default is None}
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if not (value is None and name in optional) and (not isinstance(value, str) or value not in choices):
                raise ValueError(f"{option(name)} is {value!r}; expected one of {', '.join(choices)}.")
        for field in fields(self):
            if isinstance(field.default, bool):
                checks.flag(option(field.name), getattr(self, field.name))
        checks.whole(option("seed"), self.seed, 0, checks.LARGEST)
        if self.threads is not None:
            checks.whole(option("threads"), self.threads, 1, checks.MOST_THREADS)
        for name, least in (*((name, 1) for name in AT_LEAST_ONE), *((name, 0) for name in AT_LEAST_ZERO)):
            value = getattr(self, name)
            if not (value is None and name in optional) and (type(value) is not int or value < least):
                raise ValueError(f"{option(name)} is {value!r}; expected an integer >= {least}.")
        for name, is_right, expected in (
            ("lr", lambda value: 0 <= value < math.inf, "a number >= 0"),
            ("dropout", lambda value: 0 <= value < 1, "a probability of at least 0 and below 1"),
            ("lr_gamma", lambda value: 0 < value <= 1, "a factor above 0 and at most 1"),
            ("end_probability", lambda value: 0 <= value <= 1, "a probability of 0 to 1"),
            ("timeout_s", lambda value: value > 0, "a number of seconds > 0"),
        ):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (value is None and name in optional) and not (is_number and is_right(value)):
                raise ValueError(f"{option(name)} is {value!r}; expected {expected}.")

    def _refuse_unread(self) -> None:
        """Refuse an option that nothing reads without another."""
        for needed, is_there, names in (
            ("--checkpoint-dir DIR", self.checkpoint_dir is not None, ("checkpoint_every", "keep", "allow_new_lr")),
            ("--lr-schedule step", self.lr_schedule == "step", ("lr_step", "lr_gamma")),
            ("--model gat", self.model == "gat", ("heads",)),
        ):
            for name in names:
                value = getattr(self, name)
                if not is_there and value != getattr(TrainConfig, name):
                    raise ValueError(
                        f"{option(name)} is {value!r} without {needed}, where nothing reads it; pass that too, or "
                        "leave it out; see --help."
                    )

    def _check_drawing(self) -> None:
        """Refuse what does not fit of subgraphs and of fanouts, where these are read."""
        if self.has_subgraphs:
            _ = self.subgraph_spec  # refuses
            if self.scheme != HYBRID:
                raise ValueError(
                    f"--scheme is {self.scheme} but --sampler {self.sampler} draws subgraphs, which needs the topology "
                    f"on every rank; pass --scheme {HYBRID}."
                )
            usual = TrainConfig.fanouts
            given = [name for name in ("fanouts", "eval_fanouts") if getattr(self, name) != usual]
            if self.eval == "full" and given:
                raise ValueError(
                    f"{option(given[0])} is {','.join(map(str, getattr(self, given[0])))} but --sampler {self.sampler} "
                    "draws no neighbours, and evaluation sees all; leave it out (--layers sets the depth), or pass "
                    "--eval sampled."
                )
        if self.has_walks:
            names = ("fanouts", "eval_fanouts", "replace", "kernel")
            defaults = {field.name: field.default for field in fields(TrainConfig)} | {"eval_fanouts": self.fanouts}
            given = {option(name): getattr(self, name) for name in names if getattr(self, name) != defaults[name]}
            return self.refuse_for_walks(self.layers, self.scheme, given)
        drawn = [] if self.has_subgraphs else [self.fanouts]
        for fanouts in (*drawn, *([self.eval_fanouts] if drawn or self.eval == "sampled" else [])):
            check_fanouts(len(fanouts or ()), self.layers)
            SampleSpec(fanouts=fanouts, method=self.neighbour_method, replace=self.replace, rng_seed=self.seed)

    def _check_roles(self) -> None:
        """Refuse roles where ranks cannot share the work, and a staleness that they would not have."""
        try:
            wanted = as_roles(self.roles)
        except ValueError as error:
            raise ValueError(f"--{error}") from None
        if self.staleness > 0 and wanted in (ROLES_NONE, ROLES_AUTO):
            raise ValueError(
                f"--staleness is {self.staleness} with --roles {self.roles}, but without roles no gradient is behind; "
                "pass --roles S+T, such as 1+3, or leave --staleness out."
            )
        if wanted == ROLES_NONE:
            return
        if self.has_subgraphs:
            raise ValueError(
                f"--roles is {self.roles} but --sampler {self.sampler} draws subgraphs, which ranks with roles do not "
                "share; leave --roles out, or pass a sampler of neighbours."
            )
        if self.scheme != HYBRID:
            raise ValueError(
                f"--roles is {self.roles} but --scheme {self.scheme} leaves every rank with its own part of the "
                f"topology, and any rank may make any batch; pass --scheme {HYBRID}."
            )

    def _normalise(self) -> None:
        """Convert lists to tuples, strings to paths, numbers to Python's; fill in what follows from other fields."""
        checks.make_plain(self)
        for name in ("fanouts", "eval_fanouts"):
            given = getattr(self, name)
            is_left_out = given is None and name == "eval_fanouts"
            if isinstance(given, str) or not (is_left_out or isinstance(given, Iterable)):
                raise ValueError(f"{option(name)} is {given!r}; expected one fanout per layer, such as (15, 10, 5).")
        values: dict[str, Any] = {"fanouts": tuple(map(checks.plain, self.fanouts))}
        values["layers"] = len(values["fanouts"]) if self.layers is None else self.layers
        values["eval_fanouts"] = tuple(map(checks.plain, self.eval_fanouts or ())) or values["fanouts"]
        if self.eval is None:
            values["eval"] = "full" if self.has_subgraphs else "sampled"
        for name in ("data", *FILES):
            given = getattr(self, name)
            if not (given is None and name in FILES) and not isinstance(given, str | PathLike):
                raise ValueError(f"{option(name)} is {given!r}; expected a path.")
            values[name] = None if given is None else Path(given)
        if isinstance(self.cache, str):
            try:
                values["cache"] = parse_bytes(self.cache)
            except ValueError as error:
                raise ValueError(f"--cache: {error}") from None
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def feature_cache(self) -> FeatureCache | None:
        """The cache that the fields describe; None without one."""
        return FeatureCache(self.cache, self.cache_policy, lookahead=self.lookahead) if self.cache else None

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    def shared(self) -> dict[str, Any]:
        """What must be the same on all ranks, by the command's options; of a file only whether there is one."""
        names = [field.name for field in fields(self) if field.name not in OWN]
        return {option(name): self._fact(name) for name in names}

    def shaping(self) -> dict[str, Any]:
        """What a checkpoint and the run that resumes from it must have in common, as JSON values.

        The schedule, residual, norm, staleness, subgraphs and walks only where there are some, so that checkpoints of
        releases without them can be resumed. Roles shape nothing: results are the same.
        """
        has_fanouts = not (self.has_subgraphs or self.has_walks)
        names = [name for name in SHAPING if has_fanouts or name not in OF_NEIGHBOURS]
        names += [name for name in ("residual", "norm", "staleness") if getattr(self, name)]
        if self.lr_schedule != "constant":
            names += ["lr_schedule", *(("lr_step", "lr_gamma") if self.lr_schedule == "step" else ("epochs",))]
        subgraphs = self.subgraph_shaping(self.sampler, self.seed) if self.has_subgraphs else {}
        walks = self.pinsage_shaping() if self.has_walks else {}
        return {name: getattr(self, name) for name in names} | subgraphs | walks

    def _fact(self, name: str) -> Any:
        value = getattr(self, name)
        return value if name not in FILES else "given" if value is not None else None


def option(field: str) -> str:
    """The command's option of a field."""
    return "--" + field.replace("_", "-")

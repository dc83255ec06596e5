"""LoaderOptions: all that a DistLoader can be asked for besides its data and seeds, checked once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from fastsample_dist.ops import SampleSpec, checks
from fastsample_dist.pipeline.batch_options import BatchOptions
from fastsample_dist.pipeline.roles import ROLES_AUTO, ROLES_NONE, Roles, as_roles
from fastsample_dist.pipeline.schemes import HYBRID, REGISTRY
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.sampler import Sampler, payload_exchanges
from fastsample_dist.sampling.transit.app import App
from fastsample_dist.sampling.transit.app_sampler import app_facts, check_trainable

OF_SCHEMES = ("scheme", "method", "replace", "layer_dependency", "edge_ids", "edge_values", "kernel")
"""Options that only the samplers of the schemes read: beside `sampler` or `app` they would be ignored."""


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(BatchOptions):
    """What a DistLoader can be asked for besides its data and own seeds: these, and those of BatchOptions.

    Attributes:
      fanouts: neighbours per node and hop, hop order from the seeds outwards; one per model layer. None: `sampler`.
      batch_size: seeds per rank and step, an integer >= 1.
      sampler: any object with `sample(seeds, step) -> MiniBatch` (sampling/sampler.py), in place of fanouts. It gets
        int64 seeds in host memory, none of them on a rank that has run out, and leaves features and labels to the
        loader. All ranks pass one of the same class.
      app: an application of sampling/transit that gives mini-batches (LADIES, FastGCN, KHop, MVS, one of your own), in
        place of fanouts; hybrid scheme. All ranks pass the same. A GPU samples it; those of your own need the extra
        `[apps-cuda]` there.
      split: "train", "val" or "test".
      scheme: one of schemes.REGISTRY; all give the same batches.
      rng_seed: key of sampling and shuffling, 0 .. 2**63 - 1; beside `sampler` of shuffling alone.
      shuffle: permute the seeds anew every epoch.
      drop_last: make only the steps in which every rank has a full batch; the other seeds of the epoch are left out.
      method, replace, layer_dependency: how neighbours are drawn, see `SampleSpec`. "weighted" builds alias tables in
        every rank: 8 bytes per edge of the graph (hybrid) or of the rank's own rows (vanilla).
      edge_ids: every MFG has `edge_ids`, the positions of its edges in the partition's edges (`data.graph.indices`).
        Under vanilla the replies to other ranks are then int64.
      edge_values: every MFG has `edge_values`, the stored weights of its edges; `edge_ids` come with them. None: where
        edge_ids is True and the partition has weights.
      kernel: of a GPU, for sampling: "auto", "per_hop", "persistent" or "cooperative". Never changes a batch.
      roles: "none"; "S+T" or Roles: S ranks of each machine sample and T train (factored.py), with scheme "hybrid";
        "auto": as a trainer finds to be fastest, and none on several machines or on GPUs without transport "shared".
        With roles the samplers work ahead of the trainers, and `prefetch`, `exchange` and `rails` are not read; of
        ranks with GPUs the samplers sample there, and the trainers read features in host memory through `cache`.
        Never changes a batch.
      staleness: with roles other than "auto", updates by which the parameters that a batch is trained at are behind, 0
        or more.
    Raises:
      ValueError: not exactly one of fanouts, sampler and app; a value out of range, an unknown name; an option that
        `sampler` or `app` would ignore; roles beside a sampler that exchanges, staleness without roles or with "auto".
    """

    fanouts: Sequence[int] | None = None
    batch_size: int | None = None
    sampler: Sampler | None = None
    app: App | None = None
    split: str = "train"
    scheme: str = "hybrid"
    rng_seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    method: str = "uniform"
    replace: bool = False
    layer_dependency: bool = False
    edge_ids: bool = False
    edge_values: bool | None = None
    kernel: str = "auto"
    roles: str | Roles = ROLES_NONE
    staleness: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_batch_size(self.batch_size)
        object.__setattr__(self, "roles", as_roles(self.roles))
        checks.one_of("scheme", self.scheme, REGISTRY)
        for name in ("shuffle", "drop_last", "edge_ids"):
            checks.flag(name, getattr(self, name))
        if self.edge_values is not None:
            checks.flag("edge_values", self.edge_values)
        if self.app is not None:
            self._check_app()
        elif self.sampler is None:
            _check_fanouts(self.fanouts)
        else:
            self._check_sampler()
        _ = self.spec  # refuses rng_seed, and how neighbours are drawn
        arrays.check_kernel(self.kernel, spec=self.spec)
        self._check_roles()

    @cached_property
    def spec(self) -> SampleSpec:
        """How the samplers of the schemes draw."""
        return SampleSpec(
            fanouts=() if self.fanouts is None else self.fanouts, method=self.method, replace=self.replace,
            rng_seed=self.rng_seed, layer_dependency=self.layer_dependency,
            edge_ids=self.edge_ids or bool(self.edge_values),
        )  # fmt: skip

    @property
    def has_own_sampler(self) -> bool:
        """Whether batches come from a sampler or an application that the user gave."""
        return self.sampler is not None or self.app is not None

    @property
    def neighbour_spec(self) -> SampleSpec | None:
        """See BatchOptions."""
        return None if self.fanouts is None else self.spec

    def facts(self) -> dict[str, object]:
        """See BatchOptions."""
        fanouts = None if self.fanouts is None else self.spec.fanouts
        app = {"app": None} if self.app is None else app_facts(self.app)
        return super().facts() | {"fanouts": fanouts, **app, "roles": repr(self.roles)}

    def wants_edge_values(self, has_weights: bool) -> bool:
        """Whether batches have the stored weights of their edges, on a graph with or without any."""
        return self.edge_ids and has_weights if self.edge_values is None else self.edge_values

    def _check_sampler(self) -> None:
        sampler = self.sampler
        if isinstance(sampler, type):
            raise ValueError(f"sampler is the class {sampler.__qualname__}; pass an object of it.")
        if not callable(getattr(sampler, "sample", None)):
            raise ValueError(
                f"sampler is a {type(sampler).__qualname__}; expected an object with sample(seeds, step) -> MiniBatch."
            )
        if not _takes_seeds_and_step(sampler.sample):
            raise ValueError(
                f"{type(sampler).__qualname__}.sample cannot be called with (seeds, step); expected "
                "sample(seeds, step) -> MiniBatch: step is the number that a sampler's draws are keyed by."
            )
        if self.fanouts is not None:
            raise ValueError("fanouts and sampler are both given; pass one of them: a sampler brings its own fanouts.")
        self._refuse_ignored("sampler")

    def _check_app(self) -> None:
        for name in ("fanouts", "sampler"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} and app are both given; pass one of them.")
        if self.scheme != HYBRID:
            raise ValueError(
                f"scheme is {self.scheme!r} beside app; expected {HYBRID!r}: an application reads whatever row it "
                "likes, and every step of it would cost two exchanges where ranks hold their own rows alone."
            )
        check_trainable(self.app)
        self._refuse_ignored("app")

    def _check_roles(self) -> None:
        checks.whole("staleness", self.staleness, 0)
        if self.roles == ROLES_NONE:
            if self.staleness:
                raise ValueError(
                    f"staleness is {self.staleness} without roles, which alone delay updates; pass roles, such as "
                    "'1+1', or staleness=0."
                )
            return
        if self.staleness and self.roles == ROLES_AUTO:
            raise ValueError(
                f"staleness is {self.staleness} with roles 'auto', which may choose none, and without roles no update "
                "is delayed: measured times would decide what is trained; pass roles, such as '1+1', or staleness=0."
            )
        found = None if self.scheme == HYBRID else f"scheme {self.scheme!r}"
        if payload_exchanges(self.sampler):
            found = f"a sampler that makes {payload_exchanges(self.sampler)} exchanges"
        if found is not None:
            raise ValueError(
                f"roles are {self.roles} beside {found}, but ranks with roles sample on their own; pass "
                f"scheme={HYBRID!r}, a sampler that reads everything locally, or roles={ROLES_NONE!r}."
            )

    def _refuse_ignored(self, beside: str) -> None:
        """Refuse options that the sampler or application given would ignore."""
        defaults = {field.name: field.default for field in fields(self)}
        for name in OF_SCHEMES:
            value = getattr(self, name)
            if value != defaults[name]:
                raise ValueError(
                    f"{name} is {value!r} beside {beside}, which would ignore it; give it to the {beside}, or leave "
                    f"{name} out."
                )


def _check_batch_size(batch_size: int | None) -> None:
    if batch_size is None:
        raise ValueError("batch_size is not given; pass the seeds per rank and step, such as batch_size=1000.")
    checks.whole("batch_size", batch_size, 1)


def _check_fanouts(fanouts: Sequence[int] | None) -> None:
    expected = "one fanout per model layer, such as [15, 10, 5]"
    if fanouts is None:
        raise ValueError(f"neither fanouts nor sampler is given; pass {expected}, sampler= or app=.")
    if not hasattr(fanouts, "__len__"):
        raise ValueError(f"fanouts is {fanouts!r}; expected {expected}.")
    if len(fanouts) == 0:
        raise ValueError(f"fanouts is empty; pass {expected}.")


def _takes_seeds_and_step(function: Callable[..., object]) -> bool:
    """Whether it can be called with two positional arguments, as far as its signature says."""
    try:
        inspect.signature(function).bind(None, 0)
    except TypeError:
        return False
    except ValueError:  # compiled functions may have none
        return True
    return True

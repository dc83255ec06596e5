"""Which compiled form of an application samples for it.

An application whose functions are those of a built-in one runs by that one's kernel in the compiled core; any other by
Numba (compile_cpu.py). Both are put into the core's engine, which gives the samples of plain.py bit for bit.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.sampling.transit.app import App
from fastsample_dist.sampling.transit.binding import BoundApp
from fastsample_dist.sampling.transit.collective import CollectiveEngine, collective_kind
from fastsample_dist.sampling.transit.device_apps import DeviceAppEngine
from fastsample_dist.sampling.transit.device_collective import DeviceCollectiveEngine
from fastsample_dist.sampling.transit.device_engine import DeviceEngine
from fastsample_dist.sampling.transit.engine import Engine
from fastsample_dist.sampling.transit.individual import IndividualEngine
from fastsample_dist.sampling.transit.subgraphs import MVS
from fastsample_dist.sampling.transit.walks import PPR, DeepWalk, KHop, MultiRW, Node2Vec

BUILT_IN, NUMBA = "built-in", "numba"


def forms_of(bound: BoundApp) -> list[str]:
    """The compiled forms that there are of an application, the preferred one first: its own kernel, Numba's. Of one
    that is not built in always Numba's, which is refused with the extra's name where Numba is missing.
    """
    if built_in_kind(bound) is None:
        return [NUMBA]
    return [BUILT_IN, NUMBA] if importlib.util.find_spec("numba") is not None else [BUILT_IN]


@dataclass(frozen=True)
class _BuiltIn:
    """A built-in application: its class, and the kernels of picks by weight and without."""

    app: type[App]
    weighted: NextKind
    uniform: NextKind


_PICKS = (NextKind.WEIGHTED, NextKind.UNIFORM)
_BUILT_IN = (
    _BuiltIn(DeepWalk, *_PICKS),
    _BuiltIn(KHop, *_PICKS),
    _BuiltIn(PPR, NextKind.PPR, NextKind.PPR),
    _BuiltIn(Node2Vec, NextKind.NODE2VEC, NextKind.NODE2VEC),
    _BuiltIn(MultiRW, NextKind.MULTI_RW, NextKind.MULTI_RW),
    _BuiltIn(MVS, NextKind.ALL, NextKind.ALL),
)


def built_in_kind(bound: BoundApp) -> NextKind | None:
    """The core's kernel for an application, by its functions, state and parameters; None: it is a user's own."""
    if bound.collective:
        return collective_kind(bound)
    functions = (bound.next, bound.step_transits, bound.initial)
    for entry in _BUILT_IN:
        own = entry.app
        if functions != (own.next, own.step_transits, own.initial) or bound.app.state != own.state:
            continue
        if own is MVS and type(bound.app).sample_size is not MVS.sample_size:
            return None  # the kernel takes all neighbours, whatever the sample size
        has_slots = bound.weighted and bound.graph.num_edges > 0  # without edges there is nothing to pick either way
        return entry.weighted if has_slots else entry.uniform
    return None


def make_device_engine(bound: BoundApp, device: torch.device) -> Engine:
    """An engine that samples by the kernels of a GPU: its own, or those that call a user's functions.

    Raises:
      ImportError: a user's application, and what compiles it is missing or too old.
      NotOnGpusError: a collective application asks for what only the CPU has.
      ValueError: it cannot be compiled; tables that fit nowhere.
    """
    kind = built_in_kind(bound)
    if bound.collective:
        return DeviceCollectiveEngine(bound, NextKind.CALLBACK if kind is None else kind, device)
    return DeviceAppEngine(bound, device) if kind is None else DeviceEngine(bound, kind, device)


def make_engine(bound: BoundApp, form: str, copy_indices: bool = False) -> Engine:
    """An engine for one of forms_of.

    Args:
      copy_indices: an individual application reads the neighbours from a copy in huge pages.
    Raises:
      ImportError: Numba is wanted and missing.
      ValueError: a function that Numba cannot compile, or tables that do not fit into memory.
    """
    if bound.collective:
        return CollectiveEngine(bound, built_in=form == BUILT_IN)
    return IndividualEngine(bound, built_in_kind(bound) if form == BUILT_IN else None, copy_indices)

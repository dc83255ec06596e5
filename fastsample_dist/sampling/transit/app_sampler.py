"""AppSampler: mini-batches of an application, for DistLoader and for anything else that takes a Sampler.

A collective application that records the edges of its steps (LADIES, FastGCN) makes one sample of the batch: its roots
are the seeds, its MFGs the batch's. Of an individual application every seed is a sample of its own, under its original
id, and the edges are those from picks to their transits; a vertex that is the transit of several samples has one row,
with the picks of all of them. Hop k's rows hold the picks of steps 0 to k, as GraphSAGE's layers share theirs: the
seeds, which are transits at step 0 alone, have neighbours in every layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.device.placement import Table, choose_places, measured_room
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampledHops
from fastsample_dist.sampling import arrays
from fastsample_dist.sampling.mfg import DrawKey, MiniBatch, assemble, orig_ids_of
from fastsample_dist.sampling.sampler import as_node_ids
from fastsample_dist.sampling.transit.app import ALL, COLLECTIVE, INF, NULL, App
from fastsample_dist.sampling.transit.binding import STEP_RECORDS, check_methods
from fastsample_dist.sampling.transit.params import Params
from fastsample_dist.sampling.transit.sampler import TransitSampler
from fastsample_dist.sampling.transit.samples import Samples


def check_trainable(app: object) -> None:
    """Refuse an application that gives no mini-batches.

    Raises:
      TypeError: no application, or one with a value in place of a method.
      ValueError: one that records no edges, or whose samples are not batches of the seeds they are given.
    """
    if not isinstance(app, App):
        hint = "an object of it, such as app()" if isinstance(app, type) else "an application, such as transit.LADIES()"
        raise TypeError(f"app is {app!r}; expected {hint}.")
    check_methods(app)
    name = type(app).__name__
    if app.sampling_type == COLLECTIVE:
        if app.record not in STEP_RECORDS:
            raise ValueError(
                f"{name} has record {app.record!r}, which makes no layers into the seeds; expected an application with "
                "record 'to_new' or 'to_union', such as transit.LADIES; fsd.TransitSampler gives its samples."
            )
    elif app.steps() == INF or app.step_transits is not None:
        raise ValueError(
            f"{name} has no layers: expected a number of steps, each from the picks of the step before, such as "
            "transit.KHop; fsd.TransitSampler gives its samples."
        )


class AppSampler:
    """A Sampler of an application's mini-batches.

    Args:
      graph: in-neighbour lists, in host memory.
      app: see check_trainable.
      rng_seed: 0 .. 2**63 - 1.
      sample_id: of the batch, where it is one collective sample: a rank's number. One process that samples the same
        seeds under the same id and step makes the same batch.
      num_threads: never changes a batch.
      device: None or "cpu"; or a GPU, which samples and has the batches; see TransitSampler. Never changes a batch.
    Raises:
      TypeError, ValueError, ImportError: see check_trainable and TransitSampler.
    """

    def __init__(
        self,
        graph: CSCGraph,
        app: App,
        rng_seed: int = 0,
        sample_id: int = 0,
        num_threads: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_trainable(app)
        self.graph, self.app, self.rng_seed, self.sample_id = graph, app, rng_seed, sample_id
        self._sampler = TransitSampler(graph, app, rng_seed, num_threads, device)
        self._orig_ids = graph.orig_ids
        self._looks_up = arrays.runs_kernels(self.device)
        if self._looks_up and graph.orig_ids is not None and app.sampling_type != COLLECTIVE:
            [place] = choose_places([Table("original ids", graph.orig_ids.nbytes)], measured_room(self.device))
            self._orig_ids = place.put(graph.orig_ids)

    @property
    def device(self) -> torch.device:
        """Where batches are made."""
        return self._sampler.device

    def of_sample(self, sample_id: int) -> AppSampler:
        """The same sampler for another sample id."""
        other = copy(self)
        other.sample_id = sample_id
        return other

    def sample(self, seeds: Tensor | Sequence[int], step: int = 0) -> MiniBatch:
        """The mini-batch of these seeds; see Sampler.

        Raises:
          ValueError: a seed twice, or outside the graph.
          RuntimeError: what the application did wrong.
        """
        graph = self.graph
        nodes = as_node_ids(seeds, graph.indices.dtype, graph.num_nodes).cpu()
        if self.app.sampling_type == COLLECTIVE:
            return self._of_one_sample(nodes, step)
        ids = orig_ids_of(nodes, graph.orig_ids)
        return self._merged(nodes.to(self.device), self._sampler.sample(nodes.long()[:, None], step, ids))

    def _of_one_sample(self, nodes: Tensor, step: int) -> MiniBatch:
        [batch] = self._sampler.sample(nodes.long()[None], step, [self.sample_id]).mini_batches()
        if batch.seeds.numel() != nodes.numel():
            distinct, counts = nodes.unique(return_counts=True)
            twice = int(distinct[counts.argmax()])
            raise ValueError(f"seeds holds node {twice} {int(counts.max())} times; expected each node once.")
        return batch

    def _merged(self, nodes: Tensor, samples: Samples) -> MiniBatch:
        """The mini-batch of many samples with a root each.

        Every step adds edges from the rows of its transits, and sorts all so far by row; a pick's local id is its row
        in the next step.
        """
        transits, owners = samples.roots, torch.arange(nodes.numel(), device=nodes.device)[:, None]
        rows, sources, hops = owners[:0, 0], nodes[:0], SampledHops(nodes, [], [], [])
        for k, picks in enumerate(samples.steps):
            made, before = torch.nonzero(picks.reshape(-1) != NULL).squeeze(1), rows.numel()
            rows = torch.cat([rows, self._owners(k, transits, owners, picks).reshape(-1)[made]])
            sources = torch.cat([sources, picks.reshape(-1)[made].to(nodes.dtype)])
            by_row, order = torch.sort(rows, stable=True)
            bounds = torch.arange(nodes.numel() + 1, device=nodes.device)
            hops.indptrs.append(torch.searchsorted(by_row, bounds))
            nodes, local = ops.compact(nodes, sources[order])
            hops.indices.append(local)
            if k + 1 < len(samples.steps):
                places = torch.empty_like(order)
                places[order] = local.long()
                transits, owners = picks, picks.new_full(picks.shape, NULL)
                owners.view(-1)[made] = places[before:]
        found = SampledHops(nodes, hops.indptrs, hops.indices, [])
        draw = DrawKey(self.rng_seed, samples.draw.step)
        return assemble(found, self._orig_ids, draw, look_up=self._looks_up)

    def _owners(self, k: int, transits: Tensor, rows: Tensor, picks: Tensor) -> Tensor:
        """The row of every slot's transit, of the shape of picks; any number in slots without a pick.

        Args:
          transits, rows: int64 [S, transits] of step k, and their rows.
        """
        size = self.app.sample_size(k)
        if size != ALL:
            return rows.repeat_interleave(size, 1)
        indptr, known = self.graph.indptr, transits.clamp(min=0).cpu()
        degrees = (indptr[known + 1] - indptr[known]).to(rows.device).masked_fill(transits == NULL, 0)
        is_slot = torch.arange(picks.shape[1], device=rows.device) < degrees.sum(1, keepdim=True)
        owners = torch.zeros_like(picks)
        owners[is_slot] = rows.reshape(-1).repeat_interleave(degrees.reshape(-1))
        return owners


COMPUTED = ("needs", "par")  # by an application of the values that it was made with


def app_facts(app: App) -> dict[str, Any]:
    """What ranks and checkpoints compare of an application, by name: its class under "app", then the values that it was
    made with, such as "Node2Vec.p", and last those that it computes of them. Numbers, text and None.
    """
    name = type(app).__qualname__
    attributes = sorted(vars(app), key=lambda attribute: (attribute in COMPUTED, attribute))
    return {"app": name} | {f"{name}.{attribute}": _fact(getattr(app, attribute)) for attribute in attributes}


def _fact(value: Any) -> Any:
    """A value that can be compared and shown: what is no number or text as text, of arrays a digest."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if value is None or isinstance(value, str | int | float) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        array = np.ascontiguousarray(value.numpy(force=True) if isinstance(value, Tensor) else value)
        return f"{array.dtype}{list(array.shape)}:{hashlib.sha256(array.tobytes()).hexdigest()[:16]}"
    if isinstance(value, Params):
        return _text({name: getattr(value, name) for name, _ in value.kinds})
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_text(own)}" for name, own in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    if is_dataclass(value) and not isinstance(value, type):
        return _text({field.name: getattr(value, field.name) for field in fields(value)})
    if value is None or isinstance(value, str | int | float | np.generic):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)

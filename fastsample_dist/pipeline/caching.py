"""Making a loader's cache of feature rows.

    candidates   nodes whose rows this rank does not read in place
    scores       of the policy (features/policies.py), for the loader's seeds and sampler
    set          the candidates of the highest scores, as many as fit with the table that finds them
    load         ids to the owners, rows back, in slices, straight into their slots: purposes "cache_ids", "cache_rows"

The set is a function of topology, seeds and policy: neither threads nor devices change it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.comm.agree import agree
from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.machine import Machines
from fastsample_dist.comm.owners import ask_owners
from fastsample_dist.device.pinned import pinned_copy
from fastsample_dist.device.placement import DEVICE, PINNED, Table, choose_places, measured_room
from fastsample_dist.features.cache import FeatureCache, MadeCache
from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.features.keeping import dense_slots
from fastsample_dist.features.policies import Lookahead, Workload, resolve, score
from fastsample_dist.features.sharers import Sharers
from fastsample_dist.features.source import CachedRows
from fastsample_dist.graph import hotness
from fastsample_dist.ops.locate_rows import slots_bytes
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.epoch_plan import StepInput
from fastsample_dist.pipeline.lookahead import group_size
from fastsample_dist.progress import reporting
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.sampling.sampler import Sampler

SLICE_BYTES = 256 << 20  # of rows that are loaded at a time, on every rank


@dataclass(frozen=True, kw_only=True)
class CacheTask:
    """For what a cache is made.

    Attributes:
      data: the opened partition.
      workload: of this rank.
      features: placed for the device, reading what is read in place, over the context's communicator.
      machines: ranks by machine, where those of a machine read each other's rows in place; None: none do.
    """

    data: DistData
    workload: Workload
    features: DistFeatures
    machines: Machines | None = None


def shared_cache(cache: MadeCache, task: CacheTask) -> MadeCache:
    """The cache of another loader. Collective: every rank must call this.

    Raises:
      ValueError: on all ranks: it is of other data, or on another device.
    """

    def check() -> None:
        found, wanted = cache.features, task.features
        if found.comm is not wanted.comm or found.device != wanted.device or found.book is not wanted.book:
            raise ValueError(
                "the cache given is that of a loader of other data or on another device; pass a FeatureCache, or the "
                "cache of a loader of the same DistData."
            )

    agree(task.data.ctx, check)
    if cache.rule is not None:
        raise ValueError(
            "the cache given looks ahead, so its rows follow the batches of its own loader; pass a FeatureCache."
        )
    return replace(cache, score_s=0.0, load_s=0.0)


def make_cache(description: FeatureCache, task: CacheTask) -> MadeCache:
    """A cache, filled. Collective: every rank must call this. Purposes "setup", "cache_ids" and "cache_rows".

    Args:
      description: of it.
      task: for what it is made.
    Raises:
      ValueError: on all ranks: no room for one row, less memory than the capacity, a policy that does not fit.
      RuntimeError: a collective failed or passed its deadline.
    """
    features, ctx = task.features, task.data.ctx
    candidates = _candidates(features)
    sharers = Sharers(ctx, None if features.device.type == "cuda" else task.machines)
    no_nodes = torch.empty(0, dtype=torch.int64)
    empty = MadeCache(features=features, description=description, nodes=no_nodes, sharers=sharers)
    if not description.is_on:
        return replace(empty, why_empty="its policy is none" if description.policy == "none" else "its capacity is 0")
    # A capacity that cannot be is refused where there is nothing to cache, too: what works on one rank works on many.
    fitting = agree(ctx, lambda: _rows_that_fit(description, task, sharers))
    why = _why_empty(candidates, ctx.comm)
    if why:
        return replace(empty, why_empty=why)
    agree(ctx, lambda: _check_lookahead(description, sharers))
    begin_s = time.perf_counter()
    policy = resolve(description.policy, task.workload.spec)
    scores = sharers.sum(agree(ctx, lambda: cache_scores(description, task)))
    orig_ids = hotness.original_ids(task.data.graph)
    window = description.lookahead
    order = hotness.hottest(scores, orig_ids, features.book.num_nodes if window else fitting, candidates)
    nodes = order[:fitting]
    rule = Lookahead(order, orig_ids, nodes.numel(), window) if window else None
    scored_s = time.perf_counter()
    reading = _load(features, nodes, description, sharers, shown=ctx.rank == 0)
    loaded_s = time.perf_counter()
    return replace(
        empty, features=reading, policy=policy, nodes=nodes.sort().values, rule=rule, num_bytes=_cache_bytes(reading),
        score_s=scored_s - begin_s, load_s=loaded_s - scored_s,
    )  # fmt: skip


def sampled_inputs(sampler: Sampler, steps: Sequence[StepInput], device: torch.device) -> Iterator[Tensor]:
    """Input nodes of each of a rank's batches. Collective where the sampler is.

    Args:
      sampler: makes them.
      steps: of an epoch.
      device: where the sampler works.
    """
    threads = torch.get_num_threads()
    at_once = group_size(sampler, device, threads, threads)
    for lo in range(0, len(steps), at_once):
        yield from (batch.input_nodes for batch in _sampled(sampler, steps[lo : lo + at_once]))


def _sampled(sampler: Sampler, steps: Sequence[StepInput]) -> list[MiniBatch]:
    if len(steps) == 1:
        return [sampler.sample(steps[0].seeds, steps[0].step)]
    return sampler.sample_many([one.seeds for one in steps], steps[0].step)


def cache_scores(description: FeatureCache, task: CacheTask) -> Tensor:
    """How often this rank will want each node's row, int64 [num_nodes]. Collective where sampling is."""
    epochs = description.presample_epochs
    trained = [(epoch, epoch * task.workload.steps_per_epoch) for epoch in range(epochs)]
    return score(description.policy, task.workload, presample_epochs=epochs, trained=trained)


def _candidates(features: DistFeatures) -> Tensor:
    """bool [num_nodes]; whose rows are neither in the device's memory nor read in place."""
    able = torch.ones(features.book.num_nodes, dtype=torch.bool)
    for begin, end in in_place(features):
        able[begin:end] = False
    return able


def in_place(features: DistFeatures) -> list[tuple[int, int]]:
    """Ranges (begin, end) of nodes whose rows need no cache; own rows that a GPU reads over the bus do."""
    near = [(table.first_node, table.end_node) for table in features.neighbours]
    own = [features.book.part2range(features.comm.rank)] if features.local.is_resident else []
    return [*own, *near]


def _why_empty(candidates: Tensor, comm: Communicator) -> str:
    """Why there is nothing to cache; "" where there is. Collective: every rank must call this, and gets the same."""
    some = comm.all_reduce(torch.tensor([bool(candidates.any())], dtype=torch.int64), op="max", purpose="setup")
    if bool(some):
        return ""
    return "one rank owns all rows" if comm.world_size == 1 else "every rank reads all rows in place"


def _check_lookahead(description: FeatureCache, sharers: Sharers) -> None:
    """Refuse rows that follow one rank's batches in a cache of several.

    Raises:
      ValueError: with what to pass.
    """
    if description.lookahead and len(sharers.ranks) > 1:
        raise ValueError(
            f"the cache's lookahead is {description.lookahead} but {len(sharers.ranks)} ranks of a machine share the "
            "cache; pass transport='exchange', or lookahead=0."
        )


def _rows_that_fit(description: FeatureCache, task: CacheTask, sharers: Sharers) -> int:
    """Rows for which the capacity has room, with what finds them.

    Raises:
      ValueError: there is not one; less memory than the capacity.
    """
    features = task.features
    num_nodes, device, row_bytes = features.book.num_nodes, features.device, features.local.row_bytes
    fixed = 0 if features.local.is_resident else 4 * features.local.num_rows  # ops.RowCache's places

    def cost(count: int) -> int:
        slots = 4 * num_nodes if description.lookahead else slots_bytes(count, num_nodes, device)
        return count * row_bytes + slots + fixed

    if cost(1) > description.capacity_bytes:
        raise ValueError(
            f"the cache's capacity_bytes is {description.capacity_bytes} but one row takes {cost(1)} with what finds "
            "it; choose at least that."
        )
    if device.type == "cuda":
        if description.lookahead:
            raise ValueError(f"the cache's lookahead is {description.lookahead} on {device}; expected 0 on a GPU.")
        where = DEVICE if description.device is None else PINNED
        room = measured_room(device, ranks_on_host=task.data.ctx.local_world_size)
        room = room.at_most(task.data.table_bytes_left(device))
        choose_places([Table("cache", description.capacity_bytes, where)], room)
    else:
        description.check_memory(sharers.caches_on_host)
    # what finds the rows is of one kind up to a quarter of the nodes and of another beyond: each grows with the rows
    quarter = num_nodes // 4
    fits = [
        low + bisect_right(range(low, high + 1), description.capacity_bytes, key=cost) - 1
        for low, high in ((1, quarter), (quarter + 1, num_nodes))
        if low <= high and cost(low) <= description.capacity_bytes
    ]
    return max(fits)


def _cache_bytes(features: DistFeatures) -> int:
    """Memory of the rows and of what finds them."""
    own, others = features.local.cache, features.cache
    return (0 if own is None else own.num_bytes) + (0 if others is None else others.rows.nbytes + others.slots.nbytes)


def _load(
    features: DistFeatures, nodes: Tensor, description: FeatureCache, sharers: Sharers, *, shown: bool
) -> DistFeatures:
    """The features with the rows of `nodes` cached. Collective: every rank must call this.

    Rows are in the order of node ids; where the cache looks ahead, in that of `nodes`.
    """
    num_nodes = features.book.num_nodes
    lo, hi = features.book.part2range(features.comm.rank)
    is_own = (nodes >= lo) & (nodes < hi)  # those that a GPU reads over the bus
    own, (others, places) = nodes[is_own], nodes[~is_own].sort()
    rows, memory = sharers.rows(features.local.no_rows(), others.numel(), num_nodes)
    share = sharers.own_share(others.numel())
    load_rows(features, others[share], rows[share], shown)
    if features.device.type == "cuda" and description.device is not None:
        rows = pinned_copy(rows.cpu(), features.device)
    if description.lookahead:
        slots, rows = dense_slots(nodes, num_nodes), rows[places.argsort()]
    elif memory is None:
        slots = ops.CachedSlots.of(others, num_nodes, features.device)
    else:
        slots = sharers.slots(others, num_nodes, memory)
    with_own = features.with_cache(own) if own.numel() else features
    holds = others.numel() > 0 or description.lookahead > 0  # one that looks ahead is there without a row, too
    return with_own.reading(features.neighbours, CachedRows(slots, rows) if holds else None)


def load_rows(features: DistFeatures, nodes: Tensor, into: Tensor, shown: bool) -> Tensor:
    """Rows of other ranks' nodes, from their owners. Collective: every rank must call this, with its own nodes.

    Args:
      features: whose.
      nodes: int64 [n], ascending, none of them own.
      into: [n, dim], stored dtype; row i becomes that of nodes[i].
      shown: report progress on standard error where there is more than one slice.
    Returns:
      `into`.
    """
    comm, at_once = features.comm, max(1, SLICE_BYTES // max(1, features.local.row_bytes))
    slices = torch.tensor([-(-nodes.numel() // at_once)], dtype=torch.int64)
    num_slices = int(comm.all_reduce(slices, op="max", purpose="setup"))
    with reporting("cached rows", shown and num_slices > 1) as on_slice:
        for number in range(num_slices):
            span = slice(number * at_once, (number + 1) * at_once)
            ids = nodes[span].to(features.device)
            request = ask_owners(ids, features.book.part_ranges, comm, purpose="cache_ids")
            # ids ascend, so what comes grouped by owner is in their order
            into[span] = request.reply_rows(features.serve(request.asked, None), purpose="cache_rows")
            on_slice(number + 1, num_slices)
    return into

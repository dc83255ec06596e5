"""SkipGram: node embeddings from walks, trained by skip-gram with negative sampling on all ranks at once.

DeepWalk (Perozzi et al., KDD'14) and node2vec (Grover & Leskovec, KDD'16) train word2vec (Mikolov et al., NIPS 2013,
equation 4) on walks: a pair (centre, context) of nodes near each other in a walk adds

    softplus(-<in[centre], out[context]>) + sum over its negatives of softplus(<in[centre], out[negative]>)

Pairs. Every walk position i is a centre; its contexts are the positions j != i with |i - j| <= window, all of them
(word2vec shrinks the window at random instead). Pairs are ordered by (i, j); pair (i, j) of a walk has the number
i * (2 * window + 1) + j - i + window.

Negatives are drawn in proportion to degree^0.75, the degree being the length of a node's row in the graph walked on:
from an alias table over all nodes ordered by original id, under (rng_seed, epoch, sample id of the walk, number of the
pair). A draw may hit the pair's own nodes, as in the paper's expectation.

Rows. Rank r holds the rows of its own nodes, in[v] as row 2 v and out[v] as row 2 v + 1. A step is exactly three
payload exchanges: `embedding_ids` to the owners, `embedding_rows` back, `embedding_gradients` to the owners.

Order of sums. Each part's walks are one batch with rows of its own (a node that several parts need comes several
times). `ops.skipgram_gradients` sums a batch's gradient of a row as centre, then as context, by walk, pair and
negative; the owner adds the batches' gradients in the order of parts, which is that of (rank, position). As parts, not
ranks, cut the walks (pipeline/walk_loader.py), one process and any number of ranks make the same batches and the same
sums: the same bits.

The loss of a step is the mean over its walks (of all ranks) of the sum over a walk's pairs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.comm.owners import Request, ask_owners
from fastsample_dist.graph.csc import CSCGraph, id_dtype
from fastsample_dist.memory_sizes import available_bytes
from fastsample_dist.ops import checks
from fastsample_dist.pipeline.data import DistData, check_data
from fastsample_dist.pipeline.iterations import agree_on_epoch
from fastsample_dist.pipeline.original_order import write_in_order
from fastsample_dist.pipeline.walk_loader import WalkBatch, WalkLoader, check_same_nodes
from fastsample_dist.train.finite import NonFiniteError
from fastsample_dist.train.protocol import check_kind
from fastsample_dist.train.stop import any_rank_stops

IDS, ROWS, GRADIENTS = "embedding_ids", "embedding_rows", "embedding_gradients"  # the purposes of a step's exchanges
METRICS, SAVING = "metrics", "embedding_file"
OPTIMIZERS = ("adam", "sgd")
POWER = 0.75  # of the degree, in the law of negatives (Mikolov et al., section 2.2)


@dataclass(frozen=True, kw_only=True)
class SkipGramOptions:
    """How embeddings are trained; the same on all ranks.

    Attributes:
      dim: columns of a row.
      window: largest distance of a context from its centre, in steps of the walk.
      negatives: per pair.
      optimizer: "adam" (torch.optim.SparseAdam: moments of a row move when the row has a gradient, corrected by the
        number of steps; three times the memory) or "sgd".
      lr: learning rate. The loss is a mean over walks, so "sgd" needs 0.025 * (walks of a step) for word2vec's step.
      betas, epsilon: of Adam.
      rng_seed: of first rows and negatives, 0 .. 2**63 - 1.
    """

    dim: int = 128
    window: int = 10
    negatives: int = 1
    optimizer: str = "adam"
    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    rng_seed: int = 0

    def __post_init__(self) -> None:
        checks.make_plain(self)
        for name, least in (("dim", 1), ("window", 1), ("negatives", 0)):
            checks.whole(name, getattr(self, name), least)
        checks.whole("rng_seed", self.rng_seed, 0, checks.LARGEST)
        checks.one_of("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("lr", "epsilon"):
            checks.positive(name, getattr(self, name))
        betas = self.betas if isinstance(self.betas, tuple | list) else ()
        if len(betas) != 2 or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas is {self.betas!r}; expected two numbers of at least 0 and below 1.")
        object.__setattr__(self, "betas", tuple(map(float, betas)))


@dataclass(frozen=True, kw_only=True)
class EmbeddingStats:
    """One epoch of training.

    Attributes:
      epoch: its number.
      loss: mean over the pairs of all ranks, negatives included; before their step's update.
      pairs: of all ranks.
      steps: updates.
      seconds: wall clock of this rank; of a resumed epoch since then.
      walk_s: of them, waiting for walks.
    """

    epoch: int
    loss: float
    pairs: int
    steps: int
    seconds: float
    walk_s: float


@dataclass(frozen=True)
class EpochSoFar:
    """Sums over the steps of an epoch that are done.

    Attributes:
      steps: updates.
      pairs, loss: over this rank's batches; in a checkpoint over those of all ranks.
    """

    steps: int = 0
    pairs: int = 0
    loss: float = 0.0


class Saves(Protocol):
    """What saves a SkipGram on its way: a SkipGramCheckpointer (skipgram_checkpoint.py)."""

    so_far: EpochSoFar

    def on_step(self, epoch: int, step: int, so_far: EpochSoFar) -> None:
        """Called after every step."""

    def on_epoch(self, epoch: int, step: int) -> None:
        """Called after every epoch, with the next one and its first step."""


class SkipGram:
    """Embeddings of all nodes, split between ranks by part; in host memory and computed there, whatever the device.

    Collective: every rank must construct this, with the same options.

    Args:
      data: the opened partition.
      options: how to train.
      graph: walked on, if not data.graph: its degrees are those of the negatives' law.
    Attributes:
      table: float32 [2 * own nodes, dim]; row 2 i is the embedding of own node i, row 2 i + 1 its row as a context.
      num_updates: steps that have moved rows.
    Raises:
      ValueError: an argument of another kind; options that ranks do not have alike; tables larger than this rank's
        share of the memory that is free, or a graph of other nodes than the partition's (on all ranks).
    """

    def __init__(
        self, data: DistData, options: SkipGramOptions | None = None, *, graph: CSCGraph | None = None
    ) -> None:
        check_data(data)
        self.data, self.options = data, SkipGramOptions() if options is None else options
        check_kind("options", self.options, SkipGramOptions, "fsd.SkipGramOptions(dim=64)")
        if graph is not None:
            check_kind("graph", graph, CSCGraph, "data.graph.transposed()")
        agree_on(data.ctx.comm, "SkipGram", asdict(self.options))
        self._negatives = Negatives(data.graph if graph is None else graph, self.options)
        self._row_ranges = 2 * data.rank_book.part_ranges  # of the table's rows, by rank
        self._id_dtype = id_dtype(2 * data.num_nodes)
        self.num_updates = 0
        self._batch_rows = torch.empty(2, 0, self.options.dim)
        # Before any rank takes memory: what is free is shared out among those that ask.
        agree(data.ctx, lambda: self._check_memory(graph))
        self.table, self._moments = agree(data.ctx, self._first_rows)

    def fit(
        self,
        loader: WalkLoader,
        epochs: int,
        on_epoch: Callable[[EmbeddingStats], object] | None = None,
        checkpoints: Saves | None = None,
    ) -> list[EmbeddingStats]:
        """Train until `epochs` epochs of the loader are done.

        Collective: every rank must call this, with the same arguments.

        Args:
          loader: of the walks; begins with `loader.epoch`.
          epochs: in all, those before `loader.epoch` included.
          on_epoch: called after every epoch, on every rank; when it returns True, on any of them, training ends on all.
          checkpoints: of this model and loader; saves on the way. Begun before, it has resumed both.
        Returns:
          What `run_epoch` returned, by epoch.
        Raises:
          ValueError: what is no WalkLoader, or no number of epochs; ranks that differ in the epochs.
          NonFiniteError, RuntimeError: as `run_epoch`.
        """
        check_kind("loader", loader, WalkLoader, "fsd.WalkLoader(data, transit.DeepWalk(80))")
        epochs = checks.whole("epochs", epochs, 0)
        agree_on(self.data.ctx.comm, "SkipGram.fit", {"epochs": epochs, "loader.epoch": loader.epoch})
        done = []
        for epoch in range(loader.epoch, epochs):
            loader.set_epoch(epoch)
            done.append(self.run_epoch(loader, checkpoints))
            stop = on_epoch is not None and checks.plain(on_epoch(done[-1])) is True
            if any_rank_stops(self.data.ctx.comm, stop):
                break
        return done

    def run_epoch(self, loader: WalkLoader, checkpoints: Saves | None = None) -> EmbeddingStats:
        """Train on every batch of one epoch; of one that was resumed, on those that are left.

        Collective: every rank must call this, with loaders of the same arguments.

        Raises:
          ValueError: on all ranks, they would make other steps.
          NonFiniteError: on all ranks, the epoch's loss is NaN or infinite.
          RuntimeError: a collective failed or passed its deadline; names rank, step and purpose.
        """
        begin_s, walk_s = time.perf_counter(), 0.0
        epoch, comm = loader.epoch, self.data.ctx.comm
        before = EpochSoFar() if checkpoints is None else checkpoints.so_far
        steps, pairs, loss = before.steps, before.pairs, before.loss
        first_step, num_steps = loader.first_step(epoch), loader.num_steps(epoch)
        agree_on_epoch(comm, type(loader).__name__, epoch, first_step, num_steps)
        end_step = first_step + num_steps
        batches = iter(loader)
        try:
            while True:
                asked_s = time.perf_counter()
                batch = next(batches, None)
                walk_s += time.perf_counter() - asked_s
                if batch is None:
                    break
                comm.step = batch.step
                num_pairs, batch_loss = self.step(batch)
                steps, pairs, loss = steps + 1, pairs + num_pairs, loss + batch_loss
                if checkpoints is not None:
                    checkpoints.on_step(epoch, batch.step + 1, EpochSoFar(steps, pairs, loss))
        finally:
            comm.step = -1
        totals = torch.tensor([loss, pairs], dtype=torch.float64)
        loss, pairs = comm.all_reduce(totals, purpose=METRICS).tolist()
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"the loss of epoch {epoch} is {loss}; expected a finite number: start again with a smaller lr than "
                f"{self.options.lr}."
            )
        if checkpoints is not None:
            checkpoints.on_epoch(epoch + 1, end_step)
        seconds = time.perf_counter() - begin_s
        return EmbeddingStats(
            epoch=epoch, loss=loss / max(pairs, 1), pairs=int(pairs), steps=steps, seconds=seconds, walk_s=walk_s
        )

    def step(self, batch: WalkBatch) -> tuple[int, float]:
        """One update from the walks of all ranks.

        Collective: every rank must call this, with its batch of the same step. Three payload exchanges.

        Returns:
          (pairs of this rank, the sum of their losses before the update).
        Raises:
          RuntimeError: a collective failed or passed its deadline.
        """
        parts = [self._pairs(walks, ids, batch.epoch) for walks, ids in batch.parts()]
        request = ask_owners(torch.cat([part.ids for part in parts]), self._row_ranges, self.data.ctx.comm, purpose=IDS)
        rows, grads = self._fetch(request)
        # The batch's rows stand grouped by owner; those of different parts are different rows, though of one node.
        places = [place.int() for place in request.places.split([part.ids.numel() for part in parts])]
        centers = torch.cat([place[part.centers] for place, part in zip(places, parts, strict=True)])
        contexts = torch.cat([place[part.contexts] for place, part in zip(places, parts, strict=True)])
        _, loss = ops.skipgram_gradients(rows, centers, contexts, 1.0 / max(batch.num_global_walks, 1), out=grads)
        self._update(request, grads)
        return centers.numel(), float(loss)

    def embeddings(self) -> Tensor:
        """The rows of own nodes, float32 [own nodes, dim]: row i is node data.own_range[0] + i. A view of the table."""
        return self.table.view(-1, 2, self.options.dim)[:, 0]

    def tables(self) -> list[Tensor]:
        """The table and, of "adam", both of its moments, each float32 [2 * own nodes, dim]: what training changes."""
        return [self.table, *(self._moments or ())]

    def save(self, path: str | Path) -> None:
        """Write the embeddings of all nodes by original id: .npy, float32 [num_nodes, dim].

        Rank 0 writes; the file appears complete. Collective: every rank must call this.

        Raises:
          ValueError: on all ranks, when rank 0 cannot write; names the file.
          RuntimeError: a collective failed or passed its deadline.
        """
        lo, rows = self.data.own_range[0], self.embeddings()
        write_in_order(
            self.data, lambda nodes, _: rows[nodes - lo].contiguous(), path, torch.float32, self.options.dim,
            purpose=SAVING,
        )  # fmt: skip

    @property
    def _num_tables(self) -> int:
        """The rows' own, and of "adam" two of moments."""
        return 3 if self.options.optimizer == "adam" else 1

    def _check_memory(self, graph: CSCGraph | None) -> None:
        """Refuse a graph of other nodes, and tables that this rank's share of the machine's memory cannot hold."""
        if graph is not None:
            check_same_nodes(graph, self.data)
        (lo, hi), ctx, options = self.data.own_range, self.data.ctx, self.options
        needed, free = 4 * 2 * (hi - lo) * options.dim * self._num_tables, available_bytes()
        room = free // ctx.local_world_size
        if needed > room:
            ranks = ctx.local_world_size
            share = f", {room / 1e9:.1f} GB for each of the {ranks} ranks of this machine" if ranks > 1 else ""
            raise ValueError(
                f"embeddings of {hi - lo} nodes with dim {options.dim} and optimizer {options.optimizer!r} "
                f"take {needed / 1e9:.1f} GB on rank {ctx.rank}, but {free / 1e9:.1f} GB of memory are free{share}; "
                "use more machines, a smaller dim, or optimizer 'sgd'."
            )

    def _first_rows(self) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """in-rows uniform in [-1/2, 1/2) / dim by original id, out-rows 0 (as word2vec begins); moments 0."""
        lo, hi = self.data.own_range
        shape = (2 * (hi - lo), self.options.dim)
        table = torch.zeros(shape)
        table[0::2] = ops.random_rows(
            self.data.graph.orig_ids[lo:hi], self.options.dim, rng_seed=self.options.rng_seed,
            bound=0.5 / self.options.dim,
        )  # fmt: skip
        return table, None if self._num_tables == 1 else (torch.zeros(shape), torch.zeros(shape))

    def _pairs(self, walks: Tensor, sample_ids: Tensor, epoch: int) -> _Pairs:
        """The pairs of one part's walks with their negatives, over the batch's own rows."""
        first, second, numbers = window_pairs(walks.shape[1], self.options.window)
        exists = walks != -1
        walk, pair = (exists[:, first] & exists[:, second]).nonzero(as_tuple=True)
        negatives = self._negatives.draw(sample_ids[walk], numbers[pair], epoch)
        # Rows in order of first appearance: each position as centre, each as context, then the negatives.
        is_used = torch.zeros_like(exists)
        is_used[walk, first[pair]] = True  # (i, j) is a pair where (j, i) is
        nodes = walks[is_used]
        rows = torch.cat([2 * nodes, 2 * nodes + 1, 2 * negatives.flatten() + 1]).to(self._id_dtype)
        ids, local = ops.compact(rows[:0], rows)
        as_center, as_context, as_negative = local.long().split([nodes.numel(), nodes.numel(), negatives.numel()])
        place = is_used.flatten().cumsum(0).view_as(is_used) - 1
        centers = as_center[place[walk, first[pair]]]
        seen = as_context[place[walk, second[pair]]]
        contexts = torch.cat([seen.unsqueeze(1), as_negative.view(negatives.shape)], dim=1)
        return _Pairs(ids, centers, contexts)

    def _fetch(self, request: Request) -> tuple[Tensor, Tensor]:
        """(the rows asked for, room for their gradients), both grouped by owner; replies to the others on the way."""
        lo = int(self._row_ranges[self.data.ctx.rank])
        received = request.reply_rows(ops.gather_rows(self.table, request.asked - lo), purpose=ROWS)
        (begin, end), count = request.own_span, request.places.numel()
        if self._batch_rows.shape[1] < count:  # kept between steps: new memory for each costs a quarter of its time
            self._batch_rows = torch.empty(2, count + count // 8, self.options.dim)
        rows, grads = self._batch_rows[:, :count]
        torch.index_select(self.table, 0, request.own - lo, out=rows[begin:end])
        rows[:begin], rows[end:] = received[:begin], received[begin:]
        return rows, grads

    def _update(self, request: Request, grads: Tensor) -> None:
        """Send gradients to the owners, add up own rows' in the order of (rank, position) and move the rows."""
        received = request.send_rows(grads, purpose=GRADIENTS)
        ids = request.by_rank(request.own, request.asked) - int(self._row_ranges[self.data.ctx.rank])
        places = request.by_rank(torch.arange(*request.own_span), -1 - torch.arange(received.shape[0]))
        rows, slots = ops.compact(ids[:0], ids)
        self.num_updates += 1
        ops.update_rows(
            self.table, self._moments, ops.RowGradients(rows.long(), slots.int(), places, grads, received), self._rule()
        )

    def _rule(self) -> ops.RowRule:
        options = self.options
        if self._moments is None:
            return ops.RowRule(step_size=options.lr)
        return ops.RowRule.adam(options.lr, options.betas, options.epsilon, self.num_updates)


@dataclass(frozen=True)
class _Pairs:
    """A part's pairs. ids [num_rows]: rows of the whole table, each once; centers, contexts: places in `ids`."""

    ids: Tensor
    centers: Tensor
    contexts: Tensor


class Negatives:
    """Draws nodes by degree^0.75 for pairs. Memory: 16 bytes per node of the graph.

    Args:
      graph: whose row lengths are the degrees; with orig_ids or numbered by original ids. Without any edge all nodes
        are alike.
      options: with rng_seed and the number of draws per pair.
    """

    def __init__(self, graph: CSCGraph, options: SkipGramOptions) -> None:
        self._nodes = None if graph.orig_ids is None else graph.orig_ids.argsort()  # by original id
        degrees = graph.in_degrees() if self._nodes is None else graph.in_degrees()[self._nodes]
        weights = degrees.double() ** POWER if graph.num_edges else torch.ones(graph.num_nodes, dtype=torch.float64)
        self._table = ops.alias_tables(torch.tensor([0, graph.num_nodes]), weights).table
        self._options = options

    def draw(self, sample_ids: Tensor, numbers: Tensor, epoch: int) -> Tensor:
        """Node ids, int64 [num_pairs, negatives], for pairs by their walk's sample id and their number in the walk."""
        options = self._options
        drawn = ops.alias_draws(
            self._table, sample_ids, numbers, options.negatives, rng_seed=options.rng_seed, step=epoch
        )
        return drawn if self._nodes is None else self._nodes[drawn]


@lru_cache(maxsize=8)
def window_pairs(num_positions: int, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """(centre, context, number), int64 [num_pairs] each: the pairs of a walk's positions, in their order."""
    centre, context = torch.meshgrid(torch.arange(num_positions), torch.arange(num_positions), indexing="ij")
    centre, context = centre.flatten(), context.flatten()
    is_pair = (centre != context) & ((centre - context).abs() <= window)
    centre, context = centre[is_pair], context[is_pair]
    return centre, context, centre * (2 * window + 1) + context - centre + window

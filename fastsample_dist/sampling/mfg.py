"""What samplers return: message flow graphs (MFGs) and the mini-batch that holds them.

An MFG is the bipartite graph of one layer (FastSample, section 3.1): edges from its source nodes to its
destination nodes, as CSC over local ids. The source nodes are the destinations first, then the new ones in order
of first appearance in the edge list, so the rows of a layer's output line up with the next layer's sources. In
subgraph training the destinations are all of the sources, and one MFG serves every layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastsample_dist import ops
from fastsample_dist.device.choice import numbered
from fastsample_dist.device.clock import Lap
from fastsample_dist.ops import DropoutKey, SampledHops

OWN_TENSORS = (
    "indptr", "indices", "src_nodes", "edge_ids", "edge_values", "edge_weights", "row_sums",
)  # fmt: skip
"""Those of one MFG alone."""


@dataclass(frozen=True, eq=False)
class DrawKey:
    """What every random choice of one step depends on besides the node: rng_seed and the global step."""

    rng_seed: int = 0
    step: int = 0

    def dropout(self, layer: int) -> DropoutKey:
        """Key of the dropout masks behind layer `layer`."""
        return DropoutKey(rng_seed=self.rng_seed, step=self.step, layer=layer)


@dataclass(frozen=True, eq=False)
class MFG:
    """One layer's message flow graph.

    Attributes:
      indptr: int64 [num_dst + 1]; CSC offsets.
      indices: int32 | int64 [num_edges]; local source ids, 0 .. num_src - 1.
      src_nodes: same dtype, [num_src]; node ids of the graph. src_nodes[:num_dst] are the destinations.
      num_dst: number of destination nodes.
      orig_ids: int64 [num_nodes of the graph]; original id of every node, None when ids are original.
      draw: rng_seed and step of the batch.
      edge_ids: int64 [num_edges]; position of every edge in the graph's `indices` (so graph.weights[edge_ids] are the
        edges' weights), or None when the sampler was not asked for them.
      known_orig_ids: int64 [num_dst or more]; original ids of the first source nodes, the destinations among them,
        where they were looked up with the batch (on a GPU), else None.
      checked: a sampler made the edges, so that they are known to be right and operators need not check them again,
        which on a GPU would mean waiting.
      edge_values: [num_edges], dtype of the graph's weights: what the graph stores for every edge; None when it was not
        asked for. The models of fastsample_dist.train do not read it.
      edge_weights: float [num_edges], 0 or more; coefficients that the sampler computed (LADIES, subgraph ratios,
        PinSAGE): how many edges each one stands for, which models take into account; None: the sampler sets none.
      includes_dst: every row holds an edge from the destination to itself already, its coefficient included, so that a
        model adds no term of its own for it.
      row_sums: float [num_dst], above 0 where a row has edges; what a row's coefficients add up to when none is left
        out, such as the in-degree in the whole graph: what means divide by. None: the sum of those that are there.
      derived: what models have computed of the edges alone and keep for the other layers that share this MFG.
    Raises:
      ValueError: edge_weights is not one floating-point number per edge, row_sums not one per destination.
    """

    indptr: Tensor
    indices: Tensor
    src_nodes: Tensor
    num_dst: int
    orig_ids: Tensor | None = None
    draw: DrawKey = field(default_factory=DrawKey)
    edge_ids: Tensor | None = None
    known_orig_ids: Tensor | None = None
    checked: bool = False
    edge_values: Tensor | None = None
    edge_weights: Tensor | None = None
    includes_dst: bool = False
    row_sums: Tensor | None = None
    derived: dict[tuple[str, torch.dtype], Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.edge_weights is not None:
            _check_numbers("edge_weights", self.edge_weights, self.num_edges, "one coefficient per edge")
        if self.row_sums is not None:
            _check_numbers("row_sums", self.row_sums, self.num_dst, "one sum per destination")

    @classmethod
    def of_sampler(cls, **fields: Any) -> MFG:
        """An MFG as a sampler made it, `checked`: in a third of the constructor's time, which counts in small batches.

        Args:
          fields: indptr, indices, src_nodes, num_dst, orig_ids, draw; others where they are not the defaults.
        """
        mfg = object.__new__(cls)
        mfg.__dict__.update(fields, checked=True, derived={})  # the class is frozen
        return mfg

    @property
    def num_src(self) -> int:
        """Number of source nodes, the destinations among them."""
        return self.src_nodes.numel()

    @property
    def num_edges(self) -> int:
        """Number of sampled edges."""
        return self.indices.numel()

    @property
    def dst_nodes(self) -> Tensor:
        """Node ids of the destinations, [num_dst]."""
        return self.src_nodes[: self.num_dst]

    @property
    def dst_orig_ids(self) -> Tensor:
        """Original ids of the destinations, int64 [num_dst]: the key of their dropout masks. Looked up on each use,
        unless they came with the batch.
        """
        if self.known_orig_ids is not None:
            return self.known_orig_ids[: self.num_dst]
        return orig_ids_of(self.dst_nodes, self.orig_ids)

    def edge_index(self) -> Tensor:
        """Every edge's ends as local ids, int64 [2, num_edges]: sources 0 .. num_src - 1 in the first row, destinations
        0 .. num_dst - 1 in the second, in the order of `indices`.
        """
        dst = torch.arange(self.num_dst, device=self.indptr.device)
        return torch.stack([self.indices.long(), dst.repeat_interleave(self.indptr.diff(), output_size=self.num_edges)])

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> MFG:
        """The same MFG with its tensors on a device, the ids that it needs of `orig_ids` among them."""
        device = numbered(device)
        if self.indptr.device == device:
            return self
        return self._put(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> MFG:
        """The same MFG in pinned host memory, the ids that it needs of `orig_ids` too."""
        return self._put(Tensor.pin_memory)

    def _put(self, put: Callable[[Tensor], Tensor]) -> MFG:
        """A copy with every tensor of its own put elsewhere; `orig_ids` is the whole graph's and stays behind."""
        own = {name: getattr(self, name) for name in OWN_TENSORS}
        moved = {name: put(tensor) for name, tensor in own.items() if tensor is not None}
        return replace(self, **moved, orig_ids=None, known_orig_ids=put(self.dst_orig_ids))


@dataclass(eq=False)
class MiniBatch:
    """Everything one step of one rank computes on.

    Attributes:
      seeds: [num_seeds] node ids whose output is wanted, dtype of the graph's ids.
      mfgs: one per layer; mfgs[0] is the input side, mfgs[-1] the seed side. A subgraph's batch may hold one MFG that
        all layers share.
      input_nodes: [num_inputs] node ids whose features the first layer reads (mfgs[0].src_nodes; the seeds
        when there is no hop).
      draw: rng_seed and global step.
      features: [num_inputs, feature_dim] or None before they are fetched.
      labels: int64 [num_seeds], -1 for a seed without a label; float32 [num_seeds, columns], NaN: not known, when they
        are not classes; or None.
      epoch: epoch of the loader.
      num_global_seeds: seeds of this step summed over all ranks, the loss is divided by it; 0 in a sampler's own batch,
        whose seeds are all that there are.
      sampling, fetching: when the batch was sampled and its features were fetched; None before.
      seed_weights: float32 [num_seeds]; what every seed's loss is multiplied by, such as (mean of P over all nodes with
        a loss) / P(seed) where a sampler draws seeds with unequal probabilities P; None: 1 each.
    """

    seeds: Tensor
    mfgs: list[MFG]
    input_nodes: Tensor
    draw: DrawKey
    features: Tensor | None = None
    labels: Tensor | None = None
    epoch: int = 0
    num_global_seeds: int = 0
    sampling: Lap | None = None
    fetching: Lap | None = None
    seed_weights: Tensor | None = None

    if TYPE_CHECKING:  # a loader's `transform` may add attributes

        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def sample_s(self) -> float:
        """Seconds that sampling took. On a GPU reading them waits until it is done."""
        return 0.0 if self.sampling is None else self.sampling.seconds

    @property
    def fetch_s(self) -> float:
        """Seconds that the feature fetch took; as `sample_s`."""
        return 0.0 if self.fetching is None else self.fetching.seconds

    @property
    def step(self) -> int:
        """Global step, part of every draw's key."""
        return self.draw.step

    @property
    def num_edges(self) -> int:
        """Sampled edges over all hops."""
        return sum(mfg.num_edges for mfg in self.mfgs)

    @property
    def loss_weight(self) -> float:
        """Own seeds / seeds of this step over all ranks; 0 for an empty batch.

        A mean over this rank's seeds times this weight, summed over ranks, is the mean over the seeds of all ranks; so
        gradients are summed over ranks (where DDP averages them, multiply by the number of ranks too). The mean over
        the seeds of an empty batch is NaN, which no weight can repair: `mean_loss` gives 0 there.

        Raises:
          ValueError: the seeds have weights, which do not apply to a mean any more.
        """
        own = self.seeds.numel()
        if self.seed_weights is not None:
            raise ValueError(
                "the seeds have weights (seed_weights) but the loss is a single number; compute one loss per seed "
                '(reduction="none") for mean_loss.'
            )
        return own / self._num_seeds_of_step if own else 0.0

    def mean_loss(self, losses: Tensor) -> Tensor:
        """This rank's share of the mean loss over the step's seeds of all ranks.

        Summed over ranks, shares and their gradients are those of one process with all seeds. An empty batch gives 0
        with gradients of 0, never NaN. Where the seeds have weights (`seed_weights`), losses are multiplied by them
        first; the sum is divided by the number of seeds as ever.

        Args:
          losses: float [num_seeds], or [num_seeds, ...] for the mean over further dimensions too: one loss per seed,
            as loss functions give them with reduction="none". 16-bit floats are widened to float32.
        Returns:
          Scalar.
        Raises:
          ValueError: the loss is a scalar already, or not one row per seed; seed_weights is not one number per seed.
        """
        own = self.seeds.numel()
        if losses.dim() == 0 or losses.shape[0] != own or (own > 0 and losses.numel() == 0):
            raise ValueError(
                f"losses has shape {tuple(losses.shape)}; expected one row for each of the {own} seeds; compute the "
                'loss with reduction="none".'
            )
        wide = losses.float() if losses.dtype in (torch.bfloat16, torch.float16) else losses
        if self.seed_weights is not None:
            _check_numbers("seed_weights", self.seed_weights, own, "one weight per seed")
            wide = wide * self.seed_weights.to(wide.dtype).view(-1, *[1] * (wide.dim() - 1))
        return wide.sum() / (max(1, self._num_seeds_of_step) * max(1, losses[:1].numel()))

    @property
    def _num_seeds_of_step(self) -> int:
        own = self.seeds.numel()
        if 0 < self.num_global_seeds < own:
            raise ValueError(
                f"num_global_seeds is {self.num_global_seeds} but this rank alone has {own} seeds; set it to the seeds "
                "of all ranks in this step, as DistLoader does."
            )
        return self.num_global_seeds or own

    def tensors(self) -> list[Tensor]:
        """The tensors of this batch alone, its further attributes among them: what the graph's batches share is left
        out.
        """
        own = [value for value in vars(self).values() if isinstance(value, Tensor)]
        for mfg in {id(mfg): mfg for mfg in self.mfgs}.values():
            own += [getattr(mfg, name) for name in (*OWN_TENSORS, "known_orig_ids")]
        return [tensor for tensor in own if tensor is not None]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> MiniBatch:
        """A copy of the batch whose tensors are on a device; tensors that are there already are shared.

        Args:
          device: where to.
          non_blocking: copies from pinned memory (`pin_memory`) to a GPU do not wait.
        Raises:
          RuntimeError: a GPU that this process cannot use.
        """
        device = numbered(device)
        return self._put(
            lambda tensor: tensor.to(device, non_blocking=non_blocking), stays=lambda mfg: mfg.indptr.device == device
        )

    def pin_memory(self) -> MiniBatch:
        """A copy of the batch in pinned host memory, for copies to a GPU that do not wait.

        Raises:
          RuntimeError: there is no GPU, or the batch is not in host memory.
        """
        if not torch.cuda.is_available():
            raise RuntimeError("pin_memory() needs a GPU, and torch finds none; leave the call out on this machine.")
        return self._put(Tensor.pin_memory, stays=lambda mfg: False)

    def _put(self, put: Callable[[Tensor], Tensor], stays: Callable[[MFG], bool]) -> MiniBatch:
        """A copy with all tensors put elsewhere; those that share memory are put once and still do."""
        moved, put = copy.copy(self), _sharing(put)
        moved.input_nodes = put(self.input_nodes)  # first: the other ids of nodes are parts of them
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, put(value))
        once = {id(mfg): mfg for mfg in self.mfgs}  # layers that share one MFG still do
        put_once = {key: mfg if stays(mfg) else mfg._put(put) for key, mfg in once.items()}
        moved.mfgs = [put_once[id(mfg)] for mfg in self.mfgs]
        return moved


def _sharing(put: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`put`, but the begin of a vector that was put before is the begin of its copy."""
    done: dict[tuple[int, torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}  # keeps them, and so their addresses

    def put_once(tensor: Tensor) -> Tensor:
        if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.numel() == 0:
            return put(tensor)
        key = (tensor.data_ptr(), tensor.dtype, tensor.device)
        if key in done and done[key][0].numel() >= tensor.numel():
            return done[key][1][: tensor.numel()]
        copied = put(tensor)
        if copied is not tensor:
            done[key] = tensor, copied
        return copied

    return put_once


def _check_numbers(name: str, given: Tensor, count: int, meaning: str) -> None:
    """Refuse what is given unless it is `count` floating-point numbers."""
    if given.shape != (count,) or not given.is_floating_point():
        raise ValueError(
            f"{name} is {given.dtype} of shape {tuple(given.shape)}; expected a floating dtype of shape ({count},), "
            f"{meaning}."
        )


def check_batch(batch: object) -> None:
    """Refuse what is no mini-batch.

    Raises:
      ValueError: as said.
    """
    if not isinstance(batch, MiniBatch):
        raise ValueError(f"batch is a {type(batch).__name__}; expected a MiniBatch, as samplers and loaders give it.")


def orig_ids_of(nodes: Tensor, orig_ids: Tensor | None) -> Tensor:
    """Original ids of nodes, int64 [n], on their device.

    Args:
      nodes: ids of the graph, [n].
      orig_ids: int64, original id of every node, None when ids are original; for nodes on a GPU it may be in pinned
        host memory, which is read over the bus.
    """
    if orig_ids is None:
        return nodes.long()
    if orig_ids.device == nodes.device:
        return orig_ids.index_select(0, nodes)
    return ops.gather_rows(orig_ids, nodes, checked=False)  # they were sampled, so they are in range


def assemble(
    hops: SampledHops,
    orig_ids: Tensor | None,
    draw: DrawKey,
    *,
    look_up: bool = False,
    edge_values: Sequence[Tensor] | None = None,
) -> MiniBatch:
    """The mini-batch of sampled hops.

    Args:
      hops: hop 0 at the seeds.
      orig_ids: int64, original id of every node of the graph, None when ids are original.
      draw: rng_seed and step.
      look_up: look up the destinations' original ids now, once for all layers: for a GPU, where that is work of the
        stream that samples, and the model's stream waits for nothing.
      edge_values: per hop, the stored weights of its edges; None without.
    Returns:
      MiniBatch with mfgs from the input side to the seed side, without features and labels.
    """
    nodes = hops.nodes
    num_dst = [indptr.numel() - 1 for indptr in hops.indptrs]
    none = [None] * len(num_dst)
    edge_ids, values, weights = (column or none for column in (hops.edge_ids, edge_values, hops.edge_weights))
    destinations = [nodes[:count] for count in num_dst]
    known = orig_ids_of(destinations[-1], orig_ids) if look_up and num_dst else None
    mfgs, src_nodes = [], nodes
    for hop in reversed(range(len(num_dst))):
        indptr, indices = hops.indptrs[hop], hops.indices[hop]
        mfgs.append(
            MFG.of_sampler(
                indptr=indptr, indices=indices, src_nodes=src_nodes, num_dst=num_dst[hop], orig_ids=orig_ids, draw=draw,
                edge_ids=edge_ids[hop], known_orig_ids=known, edge_values=values[hop], edge_weights=weights[hop],
            )
        )  # fmt: skip
        src_nodes = destinations[hop]
    return MiniBatch(seeds=src_nodes, mfgs=mfgs, input_nodes=nodes, draw=draw)

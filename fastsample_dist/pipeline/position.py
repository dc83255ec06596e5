"""Where a loader stands in its sequence of batches, written so that another number of ranks can resume there.

What is left of an epoch after some steps is a list of original node ids: the first seed left of every rank, then the
second of every rank, and so on. Each rank of a resumed run picks its own nodes out of that list. On the same number of
ranks it gets back its old order; on another the order mixes the old ranks' seeds evenly, so that half the ranks with
twice the batch size make the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsample_dist.comm.base import Communicator
from fastsample_dist.ops import checks

PURPOSE = "checkpoint"
SEEDS, SUBGRAPHS = "seeds", "subgraphs"


@dataclass(frozen=True)
class LoaderPosition:
    """Between two batches.

    Attributes:
      epoch: the epoch under way.
      step: global step of the next batch.
      remaining: int64 original ids of this epoch's seeds still to come, over all ranks; empty when the epoch's last
        batch is done. Of subgraphs always empty: they follow from the step.
      of: what the loader makes batches of: "seeds" or "subgraphs".
    Raises:
      ValueError: an epoch or a step that is no integer >= 0, remaining ids of another type.
    """

    epoch: int
    step: int
    remaining: Tensor
    of: str = SEEDS

    def __post_init__(self) -> None:
        for name in ("epoch", "step"):
            checks.whole(name, getattr(self, name), 0)
        checks.tensors(remaining=self.remaining)
        checks.vector("remaining", self.remaining, (torch.int64,))


def check_position(position: LoaderPosition, wanted: str) -> None:
    """Refuse what is no position, and that of another kind of loader.

    Args:
      position: as given.
      wanted: what the loader that is to resume makes batches of.
    Raises:
      ValueError: as said.
    """
    if not isinstance(position, LoaderPosition):
        raise ValueError(f"position is {position!r}; expected a LoaderPosition, as loader.position(epoch, step) gives.")
    if position.of != wanted:
        raise ValueError(
            f"the position is that of a loader of {position.of} but this loader makes batches of {wanted}; resume with "
            "the loader of the run that is to be continued."
        )


def gather_in_turn(own: Sequence[Tensor], comm: Communicator) -> Tensor:
    """On rank 0 the ranks' lists, one entry of each in turn; on the others an empty tensor. Purpose "checkpoint".

    Collective: every rank must call this.

    Args:
      own: int64 [n] each, n may differ between lists; as many lists on all ranks.
      comm: the ranks' communicator.
    """
    sizes = [entries.numel() for entries in own]
    nobody = [0] * (comm.world_size - 1)
    joined = own[0] if len(own) == 1 else torch.cat([*own])
    rows, counts = comm.all_to_all_rows(joined, [sum(sizes), *nobody], purpose=PURPOSE)
    if len(own) > 1:
        lengths = comm.all_to_all_rows(torch.tensor(sizes), [len(own), *nobody], purpose=PURPOSE)[0]
        counts = lengths.tolist() or [0]
    return in_turn(rows.split(counts))


def in_turn(lists: Sequence[Tensor]) -> Tensor:
    """The first entry of every list, then the second of every list, and so on; one list at least.

    Of one list it is that list. Memory, of several: the result, and 24 bytes per entry of the longest.
    """
    if len(lists) == 1:
        return lists[0]
    lengths = torch.tensor([len(entries) for entries in lists])
    longest = int(lengths.max())
    places = torch.zeros(longest + 1, dtype=torch.int64)  # of every turn's next entry
    takers = len(lists) - torch.bincount(lengths, minlength=longest + 1).cumsum(0)  # lists that have such a turn
    torch.cumsum(takers[:-1], 0, out=places[1:])
    del takers
    result = lists[0].new_empty(int(lengths.sum()))
    for entries in lists:
        turns = places[: len(entries)]
        result[turns] = entries
        turns += 1
    return result


def pick_own(remaining: Tensor, own_orig_ids: Tensor) -> Tensor:
    """Places in `own_orig_ids` of the remaining ids that are there, in the order of `remaining`.

    Args:
      remaining: int64 [n].
      own_orig_ids: int64 [m], unique.
    Returns:
      int64 [number of ids in both].
    """
    if own_orig_ids.numel() == 0:
        return own_orig_ids.new_empty(0)
    ascending, places = own_orig_ids.sort()
    found = torch.searchsorted(ascending, remaining).clamp(max=ascending.numel() - 1)
    return places[found[ascending[found] == remaining]]

"""How rows of other ranks come to a rank: by exchange, or read where they lie on the machine that the ranks share.

"shared" reads what the ranks of a machine provably share (comm/machine.py, features/neighbours.py) in place, and
exchanges with other machines only; "exchange" reads nothing in place; "auto" is "shared" where the proofs hold for at
least one pair of ranks. Batches are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fastsample_dist.comm.machine import PURPOSE, Machines
from fastsample_dist.features.neighbours import RankFiles, map_neighbour
from fastsample_dist.features.source import MOST_TABLES, RowRange
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.graph.storage import features_file, scales_file
from fastsample_dist.pipeline.data import DistData, own_parts

logger = logging.getLogger(__name__)

AUTO, EXCHANGE, SHARED = TRANSPORTS = ("auto", "exchange", "shared")


@dataclass(frozen=True)
class Transport:
    """What the ranks have agreed on. Made by `choose_transport`.

    Attributes:
      name: "exchange" or "shared".
      machines: ranks by machine: those that read each other's rows in place.
      neighbours: rows of the other ranks of this rank's machine; none where the partition has no features.
      reason: which proof failed first, and between which ranks; None where none did or none was asked for.
    """

    name: str
    machines: Machines
    neighbours: tuple[RowRange, ...] = ()
    reason: str | None = None

    @property
    def reads_all(self) -> bool:
        """Whether every rank reads all other ranks' rows and topology in place: nothing is asked for."""
        return self.name == SHARED and self.machines.is_one

    def __str__(self) -> str:
        """One line for a report."""
        what = "rows of other ranks are exchanged"
        if self.name == SHARED:
            what = "rows of ranks on the same machine are read in place"
        return f"transport {self.name}: {what}" + ("" if self.reason is None else f" ({self.reason})")


def choose_transport(
    data: DistData,
    wanted: str,
    device: torch.device,
    map_rows: Callable[[RankFiles, Manifest], list[RowRange]] = map_neighbour,
) -> Transport:
    """Agree on a transport. Collective: every rank must call this, with the same `wanted`. Purpose "setup".

    Args:
      data: the opened partition.
      wanted: one of TRANSPORTS.
      device: where this rank reads rows.
      map_rows: maps what another rank of the machine has reported, or refuses it (ValueError).
    Returns:
      Transport; the same but for `neighbours` on all ranks.
    Raises:
      ValueError: on all ranks: "shared" is wanted and no two ranks share a machine; names the first proof that failed.
      RuntimeError: a collective failed or passed its deadline.
    """
    ctx, rank = data.ctx, data.ctx.rank
    if wanted == EXCHANGE or ctx.world_size == 1:
        return Transport(EXCHANGE if wanted == AUTO else wanted, Machines.apart(ctx.world_size))
    machines, found = ctx.machines(), {}
    files: list[RankFiles] = ctx.comm.all_gather_object(_own_files(data, device), purpose=PURPOSE)
    refused: dict[int, str] = {}
    for other in machines.of(rank):
        if other != rank:
            try:
                found[other] = _map_rank(data, (files[rank], files[other]), map_rows)
            except (ValueError, OSError) as error:
                refused[other] = str(error)
    machines = machines.without_refused(ctx.comm.all_gather_object(refused, purpose=PURPOSE))
    reason = machines.why_apart(ctx.comm.run_ranks)
    if machines.shares:
        tables = [table for other in machines.of(rank) if other != rank for table in found[other]]
        return Transport(SHARED, machines, tuple(tables), reason)
    if wanted == SHARED:
        raise ValueError(
            f"transport is 'shared' but no two ranks can read each other's rows in place: {reason}; pass 'exchange' or "
            "'auto'."
        )
    return Transport(EXCHANGE, machines, reason=reason)


def report_fallback(transport: Transport, wanted: str, rank: int) -> None:
    """Log, once on rank 0, why "auto" has become "exchange" on a machine that several ranks share."""
    if rank == 0 and wanted == AUTO and transport.name == EXCHANGE and transport.reason is not None:
        level = logging.INFO if transport.machines.are_all_apart else logging.WARNING
        logger.log(level, "%s", transport)


def _own_files(data: DistData, device: torch.device) -> RankFiles:
    """What this rank reports of its rows."""
    refusal = None
    parts = own_parts(data.manifest.num_parts, data.ctx)
    if device.type != "cpu":
        refusal = f"features on {device} are not read by other ranks, nor theirs by it"
    states = {part: data.verified.get(features_file(part)) for part in parts} if data.features is not None else {}
    scales = {part: data.verified.get(scales_file(part)) for part in parts} if data.manifest.feature_scales else {}
    return RankFiles(str(data.path.resolve()), states, refusal, scales)


def _map_rank(
    data: DistData,
    files: tuple[RankFiles, RankFiles],
    map_rows: Callable[[RankFiles, Manifest], list[RowRange]],
) -> list[RowRange]:
    """The rows of another rank, given what this one and that one have reported.

    Raises:
      ValueError: a proof failed.
    """
    for reported in files:
        if reported.refusal is not None:
            raise ValueError(reported.refusal)
    most = data.ctx.local_world_size * len(files[0].states)
    if most > MOST_TABLES:
        raise ValueError(f"the machine holds {most} parts; at most {MOST_TABLES} tables are read in place")
    return map_rows(files[1], data.manifest)

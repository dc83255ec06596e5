"""Rows that the ranks hold by their own nodes, brought together in the order of original ids, chunk by chunk.

What is written for a user (embeddings, walks) is one file over original ids. Rank 0 gets a run of original ids at a
time, so that no process ever holds all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.comm.agree import agree
from fastsample_dist.files import complete_file
from fastsample_dist.graph.npy_files import NpyWriter
from fastsample_dist.pipeline.data import DistData

RowsOf = Callable[[Tensor, int], Tensor]


def write_in_order(
    data: DistData,
    rows_of: RowsOf,
    path: str | Path,
    dtype: torch.dtype,
    width: int,
    *,
    repetitions: int = 1,
    chunk_nodes: int = 1 << 14,
    purpose: str,
    on_chunk: Callable[[int, int], object] | None = None,
) -> None:
    """Write a .npy file [repetitions * num_nodes, width] whose row num_nodes * r + i is original node i's of turn r.

    Rank 0 writes; the file appears complete. Collective: every rank must call this, with the same arguments.

    Args:
      data: whose nodes.
      rows_of: called with own nodes (int64 [n], ascending by original id) and r, gives their rows [n, width].
      path: on rank 0; the other ranks' is not used.
      dtype: of the rows.
      width: columns.
      repetitions: turns.
      chunk_nodes: original ids that rank 0 gets at a time.
      purpose: what the bytes are counted as.
      on_chunk: called on rank 0 after every chunk with (rows done, rows in all).
    Raises:
      ValueError: on all ranks, when rank 0 cannot write; names the file.
      RuntimeError: `rows_of` was refused on this rank; a collective failed or passed its deadline.
    """
    num_rows = repetitions * data.num_nodes
    numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype

    def write() -> None:
        chunks = _chunks(data, rows_of, repetitions, chunk_nodes, purpose)
        done = 0
        try:
            if data.ctx.rank > 0:
                for _ in chunks:
                    pass
                return
            with complete_file(path) as partial, NpyWriter(partial, numpy_dtype, (num_rows, width)) as file:
                for rows in chunks:
                    file.append(rows.numpy())
                    done += len(rows)
                    if on_chunk is not None:
                        on_chunk(done, num_rows)
        except (ValueError, OSError):  # `agree` waits for all, so who cannot write still takes part in what is left
            for _ in chunks:
                pass
            raise

    agree(data.ctx, write)


def _chunks(data: DistData, rows_of: RowsOf, repetitions: int, chunk_nodes: int, purpose: str) -> Iterator[Tensor]:
    """On rank 0 the rows of one run of original ids after the other; on the others nothing of use."""
    lo, hi = data.own_range
    comm, own = data.ctx.comm, data.graph.orig_ids[lo:hi]
    orig_ids, order = own.sort()
    bounds = np.arange(0, data.num_nodes + chunk_nodes, chunk_nodes).clip(max=data.num_nodes)
    ends = torch.searchsorted(orig_ids, torch.from_numpy(bounds)).tolist()
    del orig_ids
    to_first = [0] * comm.world_size
    for turn in range(repetitions):
        for first, last in pairwise(ends):
            try:
                rows = rows_of(lo + order[first:last], turn)
            except (ValueError, OSError) as error:  # of this rank alone, in the middle of what all do
                raise RuntimeError(f"rank {comm.run_rank}: {purpose} cannot be made: {error}") from error
            to_first[0] = last - first
            plan = comm.plan_rows(to_first)
            ids = comm.exchange_rows(own[order[first:last]], plan, purpose=purpose)
            yield comm.exchange_rows(rows, plan, purpose=purpose)[ids.argsort()]

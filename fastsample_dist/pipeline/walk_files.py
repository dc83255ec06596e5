"""write_walks: the walks of one epoch of WalkLoader as a .npy file, for tools that read walks (word2vec and others)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fastsample_dist.comm.agree import agree, agree_on
from fastsample_dist.files import complete_file
from fastsample_dist.graph.csc import CSCGraph, id_dtype
from fastsample_dist.graph.npy_files import NpyWriter
from fastsample_dist.ops import checks
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.original_order import write_in_order
from fastsample_dist.pipeline.walk_loader import check_walks
from fastsample_dist.progress import reporting
from fastsample_dist.sampling.transit.app import NULL, App
from fastsample_dist.sampling.transit.app_sampler import app_facts
from fastsample_dist.sampling.transit.sampler import TransitSampler

CHUNK_NODES = 1 << 14
PURPOSE = "walk_file"


def write_walks(
    source: DistData | CSCGraph,
    app: App,
    path: str | Path,
    walks_per_node: int = 10,
    *,
    rng_seed: int = 0,
    epoch: int = 0,
    progress: bool = True,
) -> None:
    """Write .npy [walks_per_node * num_nodes, length + 1]: row num_nodes * r + v is walk r from node v.

    Node ids are original ones, the root first, -1 behind the end of a walk; int32 where they fit, else int64. Row s is
    the walk that WalkLoader gives sample id s in this epoch. The file appears complete, under another name until then.
    Memory: 2^14 walks; and 8 bytes per own node, or per node of a graph with orig_ids, 33 while these are sorted.

    Collective where `source` is DistData: every rank must call this, with the same arguments; rank 0 writes.

    Args:
      source: an opened partition, or a graph. Walks go against its edges; of a graph g along them is g.transposed().
      app: an application of individual walks with a fixed number of steps, such as transit.Node2Vec(80).
      path: of the file.
      walks_per_node: at least 1.
      rng_seed, epoch: as of WalkLoader.
      progress: show it, on standard error: a bar on a terminal, a line per tenth elsewhere.
    Raises:
      ValueError: an application that makes no such walks, a number out of range; with DistData, on all ranks, a file
        that cannot be written, or ranks that were asked for different walks.
      OSError: without, the same.
      RuntimeError: with DistData, walks that do not fit into this rank's memory; a collective failed or passed its
        deadline.
    """
    data = source if isinstance(source, DistData) else None
    if data is None and not isinstance(source, CSCGraph):
        raise ValueError(f"source is a {type(source).__name__}; expected fsd.DistData.load(path, ctx), or a CSCGraph.")
    graph = source.graph if isinstance(source, DistData) else source

    def check() -> TransitSampler:
        checks.whole("walks_per_node", walks_per_node, 1)
        checks.whole("epoch", epoch, 0)
        check_walks(app)
        if app.steps() == float("inf"):
            raise ValueError(f"{type(app).__qualname__} has walks of any length; expected a fixed number of steps.")
        return TransitSampler(graph, app, rng_seed=rng_seed)

    sampler = check() if data is None else agree(data.ctx, check)
    if data is not None:
        facts = {**app_facts(app), "walks_per_node": walks_per_node, "rng_seed": rng_seed, "epoch": epoch}
        agree_on(data.ctx.comm, "write_walks", facts)
    dtype, width = id_dtype(graph.num_nodes), int(app.steps()) + 1
    orig_ids = graph.orig_ids

    def rows_of(nodes: Tensor, turn: int) -> Tensor:
        ids = nodes if orig_ids is None else orig_ids[nodes]
        walks = sampler.sample(nodes, step=epoch, sample_ids=ids + graph.num_nodes * turn).vertices
        if orig_ids is not None:
            walks = torch.where(walks == NULL, NULL, orig_ids[walks.clamp(min=0)])
        return walks.to(dtype)

    with reporting("walks", progress and (data is None or data.ctx.rank == 0)) as on_chunk:
        if data is not None:
            write_in_order(
                data, rows_of, path, dtype, width, repetitions=walks_per_node, chunk_nodes=CHUNK_NODES, purpose=PURPOSE,
                on_chunk=on_chunk,
            )  # fmt: skip
            return
        num_nodes, done = graph.num_nodes, 0
        num_walks = walks_per_node * num_nodes
        order = None if orig_ids is None else orig_ids.argsort()
        shape, numpy_dtype = (num_walks, width), torch.empty(0, dtype=dtype).numpy().dtype
        with complete_file(path) as partial, NpyWriter(partial, numpy_dtype, shape) as file:
            for turn in range(walks_per_node):
                for first in range(0, num_nodes, CHUNK_NODES):
                    last = min(first + CHUNK_NODES, num_nodes)
                    nodes = torch.arange(first, last) if order is None else order[first:last]
                    file.append(rows_of(nodes, turn).numpy())
                    done += nodes.numel()
                    on_chunk(done, num_walks)

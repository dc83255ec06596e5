"""What gives pyg_epoch.py its batches: PyG's NeighborLoader, and GraphLearn-for-PyTorch's DistNeighborLoader.

GraphLearn's ranks hold one part of a partition each: its features, and its rows of the topology or, as GraphLearn's
graph_caching has it, all of it. They ask each other by torch's RPC (TensorPipe) for the features of other parts and,
where the topology is split, for neighbours of their nodes. Ids are those of the partition, in which every part's nodes
are consecutive.
"""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from fastsample_dist.graph import storage
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.labels import CLASSIFICATION
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.interop import pyg

if TYPE_CHECKING:
    from torch_geometric.data import Data


class NeighborBatches:
    """One rank's share of the batches of PyG's NeighborLoader, which every rank draws from the whole graph.

    Args:
      args: the command line of pyg_epoch.py.
      rank, world_size: this process, and how many there are.
    Attributes:
      graph, seeds: what is sampled, and from which nodes.
      loader: of batches, new ones every time it is iterated.
      steps: how many of them every rank takes.
      feature_dim, num_classes: of the task.
    """

    def __init__(self, args: argparse.Namespace, rank: int, world_size: int) -> None:
        manifest = storage.read_manifest(args.data)
        if manifest.num_parts != 1:
            raise ValueError(
                f"{args.data} has {manifest.num_parts} parts; expected 1: PyG's ranks hold the whole graph."
            )
        self.features, self.labels, seeds = task_of(args.data, manifest, 0)
        fewest = seeds.numel() // world_size  # of any rank: all make as many steps
        self.steps = -(-fewest // args.batch_size)
        order = torch.randperm(seeds.numel(), generator=torch.Generator().manual_seed(args.seed))
        self.graph, self.seeds = storage.load_topology(args.data, manifest), seeds[order][rank::world_size]
        self.loader = pyg.neighbor_loader(
            self.graph, self.seeds, fanouts=args.fanouts, batch_size=args.batch_size, workers=0
        )
        self.feature_dim, self.num_classes = self.features.shape[1], int(self.labels.max()) + 1

    def rows(self, batch: Data) -> tuple[Tensor, Tensor]:
        """Features of all nodes of a batch, and labels of its seeds."""
        return self.features[batch.n_id], self.labels[batch.n_id[: batch.batch_size]]

    def close(self) -> None:
        """Nothing is left running."""


class GraphLearnBatches:
    """The batches of GraphLearn's DistNeighborLoader for the training nodes of one part; see NeighborBatches.

    Collective: every rank must make one, and close it. Needs torch's default process group.
    """

    def __init__(self, args: argparse.Namespace, rank: int, world_size: int) -> None:
        try:
            import graphlearn_torch as glt
        except (ImportError, OSError) as error:
            raise ImportError(
                f"--loader graphlearn needs graphlearn_torch, which cannot be imported ({error}); "
                "put the directory it was installed in on PYTHONPATH."
            ) from error
        manifest = storage.read_manifest(args.data)
        if world_size < 2 or manifest.num_parts != world_size:
            raise ValueError(
                f"{args.data} has {manifest.num_parts} parts and there are {world_size} ranks; expected as many "
                "of both, 2 or more."
            )
        features, labels, seeds = task_of(args.data, manifest, rank)
        known: list[Any] = [None] * world_size  # a host has the files of its own part only
        dist.all_gather_object(known, (seeds.numel(), labels))
        all_labels = torch.cat([theirs for _, theirs in known])
        self.steps = -(-min(number for number, _ in known) // args.batch_size)
        lo, hi = manifest.part_ranges[rank : rank + 2]
        self.graph, self.seeds = storage.load_topology(args.data, manifest), seeds[: self.steps * args.batch_size]
        self.feature_dim, self.num_classes = features.shape[1], int(all_labels.max()) + 1
        book = glt.partition.RangePartitionBook(
            list(zip(manifest.part_ranges[:-1], manifest.part_ranges[1:], strict=True)), rank
        )
        held = (lo, hi) if args.split_topology else (0, manifest.num_nodes)
        rows = glt.data.Topology(rows_of(self.graph, *held), input_layout="CSC", layout="CSC")
        data = glt.distributed.DistDataset(
            world_size, rank, glt.data.Graph(rows, "CPU"), glt.data.Feature(features, book.id2index, with_gpu=False),
            whole_node_labels=all_labels, node_pb=book, edge_dir="in", graph_caching=not args.split_topology,
        )  # fmt: skip
        # torchrun's promise of a store at tcp://: RPC would look for one at its own port
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        place = {"master_addr": os.environ["MASTER_ADDR"], "master_port": agreed_port(rank)}
        if args.sampling_processes:
            torch.multiprocessing.set_start_method("spawn")  # as it starts them; their queues take the default
            workers = glt.distributed.MpDistSamplingWorkerOptions(
                num_workers=args.sampling_processes, worker_devices=torch.device("cpu"), channel_size="1GB", **place
            )
        else:
            workers = glt.distributed.CollocatedDistSamplingWorkerOptions(**place)
        glt.distributed.init_worker_group(world_size, rank, "trainers")
        self.loader = glt.distributed.DistNeighborLoader(
            data, list(args.fanouts), self.seeds, batch_size=args.batch_size, shuffle=True, edge_dir="in",
            collect_features=True, to_device=torch.device("cpu"), worker_options=workers,
            random_seed=args.seed + rank + 1,  # without one it asks the system for a seed at every node
        )  # fmt: skip

    def rows(self, batch: Data) -> tuple[Tensor, Tensor]:
        """Features of all nodes of a batch, and labels of its seeds; both came with it."""
        return batch.x, batch.y[: batch.batch_size]

    def close(self) -> None:
        """End the sampler when no rank needs it any more."""
        dist.barrier()
        self.loader.shutdown()


def task_of(path: Path, manifest: Manifest, part: int) -> tuple[Tensor, Tensor, Tensor]:
    """A part's features, labels and training nodes.

    Raises:
      ValueError: they are not those of a classification with float32 features.
    """
    own = storage.load_part(path, manifest, part)
    seeds = own.splits.get("train")
    if own.features is None or own.features.dtype != torch.float32 or manifest.task != CLASSIFICATION or seeds is None:
        raise ValueError(f"{path} lacks float32 features, classes or training nodes; expected all three.")
    return own.features, own.labels, seeds


def rows_of(graph: CSCGraph, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """(indices, indptr), int64, of all nodes, in which those outside lo .. hi - 1 have no neighbours."""
    first, end = int(graph.indptr[lo]), int(graph.indptr[hi])
    return graph.indices[first:end].long(), (graph.indptr - first).clamp_(0, end - first)


def agreed_port(rank: int) -> int:
    """A port that was free on rank 0's machine. Collective."""
    found = [0]
    if rank == 0:
        with socket.create_server(("", 0)) as server:
            found = [server.getsockname()[1]]
    dist.broadcast_object_list(found)
    return found[0]

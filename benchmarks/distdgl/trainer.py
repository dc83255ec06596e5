"""One DistDGL trainer: DistGraph, DistNodeDataLoader sampling in this process, gradients by DDP over gloo.

After an error it leaves with os._exit: DGL's own exit handler would wait forever for the other trainers.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import dgl
import torch
import torch.distributed as dist
from settings import GRAPH_NAME, EventWriter, Settings
from torch.nn.parallel import DistributedDataParallel
from training import Worker, build_model, run_epochs, seed_everything

INTERFACE = "eth0"


def received_bytes() -> int:
    """Return the bytes that have reached this namespace's interface, headers included."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, values = line.partition(":")
        if name.strip() == INTERFACE:
            return int(values.split()[0])
    raise RuntimeError(f"/proc/self/net/dev has no {INTERFACE}; the machine's namespace is not set up")


def common_steps(num_seeds: int, batch_size: int) -> int:
    """Return the smallest number of mini-batches on any rank. Collective: every rank must call this.

    node_split's parts differ by one seed at most, which can still be one mini-batch more.
    """
    steps = torch.tensor([-(-num_seeds // batch_size)])
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)
    return int(steps)


def train(settings: Settings, machine: int, rank: int, num_classes: int, emit: EventWriter) -> None:
    """Join the servers and the other trainers, then train. Collective: every trainer must call this."""
    torch.set_num_threads(1)
    seed_everything(settings.seed + rank)
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])
    g = dgl.distributed.DistGraph(GRAPH_NAME)
    emit("ready", rank=rank, at_s=time.monotonic())
    book = g.get_partition_book()
    if book.partid != machine:
        raise RuntimeError(f"machine {machine} was given part {book.partid}; expected part {machine}")
    dist.init_process_group(
        "gloo", rank=rank, world_size=settings.num_trainers, timeout=timedelta(seconds=settings.deadline_s)
    )
    train_ids = dgl.distributed.node_split(g.ndata["train_mask"], book, force_even=True)
    sampler = dgl.dataloading.NeighborSampler(settings.dgl_fanouts)
    loader = dgl.dataloading.DistNodeDataLoader(
        g, train_ids, sampler, batch_size=settings.batch_size, shuffle=True, drop_last=False
    )
    features, labels = g.ndata["feat"], g.ndata["label"]
    torch.manual_seed(settings.seed)  # the same initial parameters on every rank
    model = DistributedDataParallel(build_model(settings, features.shape[1], num_classes))
    seed_everything(settings.seed + rank)
    worker = Worker(
        rank=rank,
        steps=common_steps(len(train_ids), settings.batch_size),
        loader=loader,
        fetch=lambda input_nodes, seeds: (features[input_nodes], labels[seeds]),
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=settings.lr),
        barrier=dist.barrier,
        count_remote=lambda ids: int((book.nid2partid(ids) != machine).sum()),
        received_bytes=received_bytes,
    )
    run_epochs(worker, settings, emit)
    dist.barrier()
    dist.destroy_process_group()
    emit("done", rank=rank)


def main() -> None:
    """Train as the settings file says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True)
    parser.add_argument("--machine", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--num-classes", type=int, required=True)
    parser.add_argument("--events-fd", type=int, required=True)
    args = parser.parse_args()
    try:
        train(Settings.read(args.settings), args.machine, args.rank, args.num_classes, EventWriter(args.events_fd))
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()

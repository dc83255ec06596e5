"""One-process DGL on the same graph: no servers, no network, and DGL's fused sampler."""

from __future__ import annotations

import argparse
import time

import dgl
import numpy as np
import torch
from graph_input import GraphInput, read_graph
from settings import EventWriter, Settings
from training import Worker, build_model, run_epochs, seed_everything


def build_worker(settings: Settings, data: GraphInput) -> Worker:
    """Return the worker that trains on the whole graph in this process."""
    g = dgl.graph((torch.from_numpy(data.src), torch.from_numpy(data.dst)), num_nodes=data.num_nodes)
    g = g.formats("csc")  # builds the one format that in-neighbour sampling reads and drops the others
    g.create_formats_()
    train_ids = torch.from_numpy(data.train_idx)
    features, labels = torch.from_numpy(data.features), torch.from_numpy(data.labels)
    sampler = dgl.dataloading.NeighborSampler(settings.dgl_fanouts, fused=True)
    loader = dgl.dataloading.DataLoader(
        g, train_ids, sampler, batch_size=settings.batch_size, shuffle=True, drop_last=False, num_workers=0
    )
    model = build_model(settings, features.shape[1], data.num_classes)
    return Worker(
        rank=0,
        steps=-(-len(train_ids) // settings.batch_size),
        loader=loader,
        fetch=lambda input_nodes, seeds: (features[input_nodes], labels[seeds]),
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=settings.lr),
        barrier=lambda: None,
        count_remote=lambda ids: 0,
        received_bytes=lambda: 0,
    )


def main() -> None:
    """Train as the settings file says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True)
    parser.add_argument("--events-fd", type=int, required=True)
    args = parser.parse_args()
    settings = Settings.read(args.settings)
    emit = EventWriter(args.events_fd)
    torch.set_num_threads(1)
    seed_everything(settings.seed)
    np.random.seed(settings.seed)  # noqa: NPY002  DGL's loader shuffles with this global generator
    data = read_graph(settings.graph)
    emit("graph", facts=data.facts())
    worker = build_worker(settings, data)
    del data  # the edge list; DGL holds its own copy
    emit("ready", rank=0, at_s=time.monotonic())
    run_epochs(worker, settings, emit)
    emit("done", rank=0)


if __name__ == "__main__":
    main()

"""A sampler of your own: neighbours by importance, with coefficients that correct for the choice.

A neighbour u of v is picked, independently of the others, with probability p(u) = min(1, fanout * w(u) / sum of w), w
being the edge's weight. Its coefficient 1 / p(u) says how many edges it stands for, so the weighted mean of the picks,
which the models take, estimates the mean over all neighbours. An edge of weight 0 counts as none.

    torchrun --nproc-per-node 2 examples/own_sampler.py PARTS     # parts with edge weights, features and labels
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F

import fastsample_dist as fsd
from fastsample_dist.sampling.layered import LayeredSampler, Picks
from fastsample_dist.train.cli import leave_refused
from fastsample_dist.train.models import GraphSAGE

FANOUTS = [10, 5]


class ImportanceHops:
    """What one hop picks: all that a sampler of your own needs to define."""

    def __init__(self, graph: fsd.CSCGraph, fanouts: list[int], rng_seed: int = 0) -> None:
        if graph.weights is None:
            raise ValueError("the graph has no edge weights; partition an input with edge_weight.npy.")
        self.graph, self.fanouts, self.rng_seed = graph, fanouts, rng_seed

    def probabilities(self, edges: slice, fanout: int) -> torch.Tensor:
        """The sampler's law, float64 [degree]: how probable each edge of one row is."""
        weights = self.graph.weights[edges].double()
        return (fanout * weights / weights.sum().clamp(min=1e-300)).clamp(max=1.0)

    def neighbors(self, nodes: torch.Tensor, hop: int, step: int) -> Picks:
        """Picks of every node. The random numbers are keyed by seed, step, hop and original id: same seed, same picks,
        in any batch, on any rank, of any partition."""
        counts, edge_ids, edge_weights = [0], [], []
        for node in nodes.tolist():
            first, end = self.graph.indptr[node : node + 2].tolist()
            orig_id = node if self.graph.orig_ids is None else int(self.graph.orig_ids[node])
            p = self.probabilities(slice(first, end), self.fanouts[hop])
            random = np.random.Generator(np.random.Philox(key=self.rng_seed, counter=[0, step, hop, orig_id]))
            taken = torch.from_numpy(random.random(end - first)) < p
            counts.append(int(taken.sum()))
            edge_ids.append(first + taken.nonzero()[:, 0])
            edge_weights.append(1 / p[taken])
        picked = torch.cat([torch.empty(0, dtype=torch.int64), *edge_ids])
        weights = torch.cat([torch.empty(0, dtype=torch.float64), *edge_weights]).float()
        return Picks(torch.tensor(counts).cumsum(0), self.graph.indices[picked], picked, edge_weights=weights)


def make_sampler(graph: fsd.CSCGraph, fanouts: list[int], rng_seed: int = 0) -> LayeredSampler:
    """Seeds in, mini-batch out: what DistLoader takes."""
    hops = ImportanceHops(graph, fanouts, rng_seed)
    return LayeredSampler(hops, len(fanouts), rng_seed=rng_seed, orig_ids=graph.orig_ids)


def train(parts: str, ctx: fsd.DistContext) -> None:
    """Train GraphSAGE with the sampler."""
    data = fsd.DistData.load(parts, ctx)
    if data.task != "classification":
        raise ValueError(
            f'{parts} has labels for {data.task}; expected data.task "classification"; pass parts with classes.'
        )
    loader = fsd.DistLoader(data, sampler=make_sampler(data.graph, FANOUTS), batch_size=200)
    torch.manual_seed(0)
    model = GraphSAGE(data.feature_dim, 32, data.num_classes, num_layers=len(FANOUTS))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        losses = []
        for mb in loader:
            loss = mb.mean_loss(F.cross_entropy(model(mb.mfgs, mb.features), mb.labels, reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                ctx.comm.all_reduce(parameter.grad, purpose="gradients")
            optimizer.step()
            losses.append(loss.item())
        total = ctx.comm.all_reduce(torch.tensor(losses), purpose="metrics")
        if ctx.rank == 0:
            print(f"loss {total.mean().item():.4f}", flush=True)


def main(parts: str) -> None:
    """Train on parts; what they lack is one line."""
    with fsd.DistContext.from_env() as ctx:
        try:
            train(parts, ctx)
        except ValueError as error:  # refused by all ranks, such as parts without edge weights
            leave_refused(ctx, error, ctx.rank)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", help="directory written by fastsample-partition, with edge weights")
    main(parser.parse_args().parts)

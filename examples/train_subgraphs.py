"""Train GraphSAGE on subgraphs drawn by frontier sampling (or by nodes, edges, walks, clusters, ego networks).

torchrun --nproc-per-node 2 examples/train_subgraphs.py PARTS --budget 8000
python examples/train_subgraphs.py PARTS --method walk --layers 4

All layers of a step run on one subgraph per part, so a layer more costs no neighbours more. Evaluation uses all
neighbours, layer by layer. Rank 0 prints. `fastsample-train --sampler frontier` is the command with everything else.
"""

import argparse

import torch

import fastsample_dist as fsd
from fastsample_dist.train.cli import leave_refused
from fastsample_dist.train.inference import layerwise, measure
from fastsample_dist.train.models import GraphSAGE
from fastsample_dist.train.objectives import METRICS


def train(args: argparse.Namespace, ctx: fsd.DistContext) -> None:
    """Train, and print the accuracies."""
    data = fsd.DistData.load(args.parts, ctx)
    if data.task != "classification":
        raise ValueError(
            f'{args.parts} has labels for {data.task}; expected data.task "classification"; pass parts with classes.'
        )
    spec = fsd.SubgraphSpec(args.method, args.budget, args.frontier_size, rng_seed=args.seed)
    loader = fsd.SubgraphLoader(data, spec, args.layers, prefetch=2)
    torch.manual_seed(args.seed)
    model = GraphSAGE(data.feature_dim, args.hidden, data.num_classes, args.layers)
    trainer = fsd.Trainer(model, torch.optim.Adam(model.parameters(), lr=args.lr), ctx)
    for _ in range(args.epochs):
        stats = trainer.run_epoch(loader)
        if ctx.rank == 0:
            print(f"epoch {stats.epoch + 1}  {stats.steps} steps  loss {stats.loss:.6f}", flush=True)
    scores = layerwise(model, data, 1000)
    found = {split: measure(scores, data, split, METRICS[data.task])["acc"] for split in ("val", "test")}
    if ctx.rank == 0:
        print(f"val accuracy {found['val']:.4f}  test accuracy {found['test']:.4f}", flush=True)


def main(argv: list[str] | None = None) -> None:
    """Train with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", help="directory written by fastsample-partition (of cluster: with --clusters)")
    parser.add_argument("--method", choices=["frontier", "node", "edge", "walk", "cluster", "ego"], default="frontier")
    parser.add_argument("--budget", type=int, default=8000, help="visits of a subgraph")
    parser.add_argument("--frontier-size", type=int, default=1000, help="walkers of --method frontier")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.006)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    with fsd.DistContext.from_env() as ctx:
        try:
            train(args, ctx)
        except ValueError as error:  # refused by all ranks, such as a budget below the walkers
            leave_refused(ctx, error, ctx.rank)


if __name__ == "__main__":
    main()

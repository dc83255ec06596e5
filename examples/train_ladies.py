"""Train GraphSAGE or GCN on the layers that LADIES or FastGCN draws, or, to compare, on sampled neighbours.

torchrun --nproc-per-node 2 examples/train_ladies.py PARTS --sizes 2000,2000,2000
python examples/train_ladies.py PARTS --sampler neighbor --fanouts 15,10,5

A rank's batch is one sample of the application: so many nodes per layer, whatever the degrees, and coefficients on the
edges, which the models apply. Evaluation uses all neighbours, layer by layer. Rank 0 prints.
"""

import argparse
import json
from pathlib import Path

import torch

import fastsample_dist as fsd
from fastsample_dist.comm.agree import agree
from fastsample_dist.files import check_writable
from fastsample_dist.sampling import transit
from fastsample_dist.train.cli import leave_refused
from fastsample_dist.train.inference import layerwise, measure
from fastsample_dist.train.models import GCN, GraphSAGE
from fastsample_dist.train.objectives import METRICS


def numbers(text: str) -> tuple[int, ...]:
    """Integers from "15,10,5"."""
    return tuple(map(int, text.split(",")))


def train(args: argparse.Namespace, ctx: fsd.DistContext) -> None:
    """Train, and print the accuracies."""
    if args.json is not None:  # rank 0 writes it
        agree(ctx, lambda: check_writable("--json", args.json) if ctx.rank == 0 else None)
    layers = args.fanouts if args.sampler == "neighbor" else args.sizes
    app = {"ladies": transit.LADIES, "fastgcn": transit.FastGCN, "neighbor": lambda fanouts: None}[args.sampler](layers)
    data = fsd.DistData.load(args.parts, ctx)
    if data.task != "classification":
        raise ValueError(
            f'{args.parts} has labels for {data.task}; expected data.task "classification"; pass parts with classes.'
        )
    given = {"fanouts": layers} if app is None else {"app": app}
    loader = fsd.DistLoader(data, batch_size=args.batch_size, rng_seed=args.seed, **given)
    torch.manual_seed(args.seed)
    model = {"sage": GraphSAGE, "gcn": GCN}[args.model](data.feature_dim, args.hidden, data.num_classes, len(layers))
    trainer = fsd.Trainer(model, torch.optim.Adam(model.parameters(), lr=args.lr), ctx)
    report = {"sampler": args.sampler, "layers": layers, "seed": args.seed, "ranks": ctx.world_size, "epochs": []}
    for _ in range(args.epochs):
        stats = trainer.run_epoch(loader)
        report["epochs"].append({"epoch": stats.epoch, "loss": stats.loss, "sample_s": stats.sample_s})
        if ctx.rank == 0:
            print(f"epoch {stats.epoch + 1}  loss {stats.loss:.6f}", flush=True)
    scores = layerwise(model, data, args.batch_size)
    for split in ("val", "test"):
        report[f"{split}_acc"] = measure(scores, data, split, METRICS[data.task])["acc"]
    if ctx.rank == 0:
        print(f"val accuracy {report['val_acc']:.4f}  test accuracy {report['test_acc']:.4f}", flush=True)
        if args.json is not None:
            args.json.write_text(json.dumps(report, indent=2))


def main(argv: list[str] | None = None) -> None:
    """Train with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", help="directory written by fastsample-partition")
    parser.add_argument("--sampler", choices=["ladies", "fastgcn", "neighbor"], default="ladies")
    parser.add_argument("--sizes", type=numbers, default=(2000, 2000, 2000), help="nodes drawn per layer")
    parser.add_argument("--fanouts", type=numbers, default=(15, 10, 5), help="of --sampler neighbor")
    parser.add_argument("--batch-size", type=int, default=1000, help="seeds per rank and step")
    parser.add_argument("--model", choices=["sage", "gcn"], default="sage")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.006)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)

    with fsd.DistContext.from_env() as ctx:
        try:
            train(args, ctx)
        except ValueError as error:  # refused by all ranks, such as parts whose labels are no classes
            leave_refused(ctx, error, ctx.rank)


if __name__ == "__main__":
    main()

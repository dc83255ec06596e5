"""node2vec embeddings of a partitioned graph, and what a linear classifier makes of them, on any number of ranks.

torchrun --nproc-per-node 2 examples/train_node2vec.py PARTS     # or: mpirun -n 2 python examples/... PARTS

Every rank walks from its own nodes and holds their embeddings; the result is the same on any number of ranks that
divides the number of parts. The classifier is a logistic regression, trained on the train nodes' labels; its weight
decay is the one with the best accuracy on the val nodes. It sees the embeddings, the input features, or both.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F

import fastsample_dist as fsd
from fastsample_dist.comm.agree import agree
from fastsample_dist.files import check_writable
from fastsample_dist.sampling import transit
from fastsample_dist.train.cli import leave_refused


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", help="directory written by fastsample-partition, with classes and splits")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--walk-length", type=int, default=20, help="steps of a walk")
    parser.add_argument("--walks-per-node", type=int, default=10)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--negatives", type=int, default=1)
    parser.add_argument("--p", type=float, default=1.0, help="1 / p: weight of stepping back")
    parser.add_argument("--q", type=float, default=1.0, help="1 / q: weight of stepping further away")
    parser.add_argument("--batch-size", type=int, default=512, help="walks per part and step")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--checkpoint", metavar="DIR", help="save every epoch there; resume from what is there")
    parser.add_argument("--save", metavar="FILE", type=Path, default="embeddings.npy", help=".npy by original id")
    return parser.parse_args()


def standardised(rows, ctx):
    """Columns of mean 0 and variance 1 over all ranks' rows."""
    moments = torch.stack([torch.ones_like(rows), rows, rows * rows]).double().sum(1)
    count, total, squares = ctx.comm.all_reduce(moments, purpose="standardise")
    mean = total / count
    deviation = (squares / count - mean * mean).clamp(min=1e-12).sqrt()
    return ((rows - mean) / deviation).float()


def accuracy(weight, rows, data, split, ctx):
    """Share of a split's nodes, over all ranks, that the classifier gets right."""
    nodes = data.split(split)
    guesses = (rows[nodes - data.own_range[0]] @ weight[:-1] + weight[-1]).argmax(1)
    counts = torch.tensor([int((guesses == data.labels_of(nodes)).sum()), nodes.numel()])
    right, seen = ctx.comm.all_reduce(counts, purpose="metrics").tolist()
    return right / seen


def train_classifier(rows, data, ctx, decay, steps=200):
    """Weights [columns + 1, classes] of a logistic regression on the train nodes of all ranks, by Adam."""
    nodes = data.split("train")
    x, labels = rows[nodes - data.own_range[0]], data.labels_of(nodes)
    num_train = int(ctx.comm.all_reduce(torch.tensor(nodes.numel()), purpose="metrics"))
    weight = torch.zeros(rows.shape[1] + 1, data.num_classes, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.05, weight_decay=decay)
    for _ in range(steps):
        loss = F.cross_entropy(x @ weight[:-1] + weight[-1], labels, reduction="sum") / num_train
        (weight.grad,) = torch.autograd.grad(loss, weight)
        ctx.comm.all_reduce(weight.grad, purpose="gradients")
        optimizer.step()
    return weight.detach()


def evaluate(rows, data, ctx):
    """(val, test) accuracy with the weight decay that is best on the val nodes."""
    rows = standardised(rows, ctx)
    found = []
    for decay in (1e-4, 1e-3, 1e-2):
        weight = train_classifier(rows, data, ctx, decay)
        found.append(tuple(accuracy(weight, rows, data, split, ctx) for split in ("val", "test")))
    return max(found)


def train(args, ctx):
    """Embeddings, and a line per table of what the classifier makes of it."""

    def say(text):
        """Print on rank 0."""
        if ctx.rank == 0:
            print(text, flush=True)

    agree(ctx, lambda: check_writable("--save", args.save) if ctx.rank == 0 else None)  # rank 0 writes it
    data = fsd.DistData.load(args.parts, ctx)
    app = transit.Node2Vec(args.walk_length, p=args.p, q=args.q)
    walks = fsd.WalkLoader(data, app, args.walks_per_node, args.batch_size, prefetch=2)
    model = fsd.SkipGram(
        data, fsd.SkipGramOptions(dim=args.dim, window=args.window, negatives=args.negatives, lr=args.lr)
    )
    checkpoints = None
    if args.checkpoint is not None:
        checkpoints = fsd.SkipGramCheckpointer(model, walks, args.checkpoint)
        step = checkpoints.begin()
        say(f"{args.checkpoint}: {'nothing to resume' if step is None else f'resumed at step {step}'}")
    model.fit(
        walks, args.epochs, lambda epoch: say(f"epoch {epoch.epoch + 1}  loss {epoch.loss:.6f}  {epoch.seconds:.1f} s"),
        checkpoints,
    )  # fmt: skip
    model.save(args.save)
    say(f"{args.save}: {data.num_nodes} rows of {args.dim}")
    if data.task != "classification":
        say(f"no classifier: {args.parts} has labels for {data.task}, not classes")
        return

    embeddings = model.embeddings()
    tables = {"embeddings": embeddings}
    if data.features is not None:
        features = data.features.fetch(torch.arange(*data.own_range), torch.float32)
        tables |= {"features": features, "both": torch.cat([embeddings, features], dim=1)}
    for name, rows in tables.items():
        val, test = evaluate(rows, data, ctx)
        say(f"{name}: val accuracy {val:.4f}, test accuracy {test:.4f}")


if __name__ == "__main__":
    options = arguments()
    with fsd.DistContext.from_env() as context:
        try:
            train(options, context)
        except ValueError as error:  # refused by all ranks, such as a checkpoint of other walks
            leave_refused(context, error, context.rank)

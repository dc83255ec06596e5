"""A complete distributed training loop to copy: every process is one rank and trains on its own nodes.

torchrun --nproc-per-node 2 examples/distributed_loop.py PARTS     # or: mpirun -n 2 python examples/... PARTS
"""

import argparse

import torch
import torch.nn.functional as F

import fastsample_dist as fsd
from fastsample_dist.train.models import GraphSAGE

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("parts", help="directory written by fastsample-partition")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=1000, help="seeds per rank and step")
parser.add_argument("--save", metavar="FILE", default="model.pt")
args = parser.parse_args()
fanouts = [15, 10]

with fsd.DistContext.from_env(device="auto") as ctx:
    data = fsd.DistData.load(args.parts, ctx)
    if not (data.feature_dim and data.num_classes):
        raise SystemExit(f"error: {args.parts} lacks features, or labels that are classes; expected both.")
    train = fsd.DistLoader(data, fanouts, args.batch_size, split="train")
    test = fsd.DistLoader(data, fanouts, args.batch_size, split="test", shuffle=False)

    torch.manual_seed(0)  # every rank begins with the same parameters
    model = GraphSAGE(data.feature_dim, 64, data.num_classes, num_layers=len(fanouts)).to(ctx.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    for epoch in range(args.epochs):
        epoch_loss = torch.zeros((), device=ctx.device)
        for mb in train:
            losses = F.cross_entropy(model(mb.mfgs, mb.features), mb.labels, reduction="none")  # one per seed
            loss = mb.mean_loss(losses)  # this rank's share of the mean over all ranks' seeds
            optimizer.zero_grad()
            loss.backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            summed = ctx.comm.all_reduce(torch.cat([grad.view(-1) for grad in gradients]), purpose="gradients")
            for gradient, total in zip(gradients, summed.split([grad.numel() for grad in gradients]), strict=True):
                gradient.copy_(total.view_as(gradient))
            optimizer.step()
            epoch_loss += loss.detach()
        epoch_loss = ctx.comm.all_reduce(epoch_loss, purpose="metrics").item() / len(train)
        if ctx.rank == 0:
            print(f"epoch {epoch + 1}  loss {epoch_loss:.6f}", flush=True)

    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=ctx.device)
    with torch.no_grad():
        for mb in test:
            correct = model(mb.mfgs, mb.features).argmax(1) == mb.labels
            counts += torch.stack([correct.sum(), torch.tensor(correct.numel(), device=ctx.device)])
    right, seen = ctx.comm.all_reduce(counts, purpose="metrics").tolist()
    if ctx.rank == 0:
        print(f"test accuracy {right / seen:.4f}", flush=True)
        torch.save(model.state_dict(), args.save)

"""Test accuracy of PinSAGE, and of DGL's layer of PinSAGE on the same mini-batches.

    python benchmarks/pinsage_accuracy.py --data PARTS1 --epochs 10 --seeds 0,1,2 --json FILE

One process. Both models see the same walks: every batch of the loader, made by PinSAGESampler, goes to ours as MFGs and
to DGL's as blocks (`interop.dgl.to_blocks`). DGL has the layer of its example of PinSAGE (WeightedSAGEConv: ReLU(Q h),
weighted sum by u_mul_e, ReLU(W [n | h]), rows divided by their norm; the last layer without ReLU and norm, as ours),
with torch's dropout in place of ours. The table has the accuracies after the last epoch; every node of a split has its
neighbourhood once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastsample_dist as fsd
from fastsample_dist.bench.conditions import conditions
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.command import Parser, add_json, count, run_command
from fastsample_dist.interop import dgl
from fastsample_dist.train.models import PinSAGE, layer_widths

EVAL_STEP = 2**40  # of the walks that accuracy is measured on


class DglLayer(nn.Module):
    """WeightedSAGEConv of DGL's example, without the activation of its result."""

    def __init__(self, in_width: int, hidden: int, out_width: int) -> None:
        super().__init__()
        self.message, self.linear = nn.Linear(in_width, hidden), nn.Linear(hidden + in_width, out_width)
        for linear in (self.message, self.linear):
            nn.init.xavier_uniform_(linear.weight, gain=nn.init.calculate_gain("relu"))
            nn.init.zeros_(linear.bias)

    def forward(self, block: Any, rows: Tensor) -> Tensor:
        """[num_src, in_width] -> [num_dst, out_width]."""
        function = dgl.require_dgl("pinsage_accuracy.py").function
        with block.local_scope():
            block.srcdata["n"] = F.relu(self.message(rows))
            block.update_all(function.u_mul_e("n", dgl.COEFFICIENTS, "m"), function.sum("m", "n"))
            return self.linear(torch.cat([block.dstdata["n"], rows[: block.num_dst_nodes()]], 1))


class DglModel(nn.Module):
    """A stack of these layers."""

    def __init__(self, in_dim: int, hidden: int, num_classes: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        widths = [in_dim] + [hidden] * (num_layers - 1) + [num_classes]
        self.layers = nn.ModuleList(DglLayer(width, hidden, out_width) for width, out_width in pairwise(widths))
        self.dropout = dropout

    def forward(self, blocks: list[Any], rows: Tensor) -> Tensor:
        """[num_inputs, in_dim] -> [num_seeds, num_classes]."""
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            rows = layer(block, rows)
            if number + 1 < len(self.layers):
                rows = F.dropout(F.normalize(F.relu(rows), dim=1), self.dropout, self.training)
        return rows


def logits(model: nn.Module, batch: fsd.MiniBatch, features: Tensor) -> Tensor:
    """Of either model."""
    return model(batch.mfgs if isinstance(model, PinSAGE) else dgl.to_blocks(batch), features)


def train(
    model: nn.Module, data: fsd.DistData, sampler: fsd.PinSAGESampler, args: argparse.Namespace, seed: int
) -> dict:
    """{"seed", "loss" of every epoch, "val_acc", "test_acc"}."""
    loader = fsd.DistLoader(data, sampler=sampler, batch_size=args.batch_size, rng_seed=seed)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=args.lr), []
    for _ in range(args.epochs):
        total = 0.0
        model.train()
        for batch in loader:
            features = batch.features.float()
            loss = F.cross_entropy(logits(model, batch, features), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.seeds.numel()
        losses.append(total / data.split("train").numel())
        print(f"{type(model).__name__} seed {seed} epoch {len(losses)}: loss {losses[-1]:.4f}", flush=True)
    found = {f"{split}_acc": accuracy(model, data, sampler, split) for split in ("val", "test")}
    return {"seed": seed, "loss": losses, **found}


@torch.no_grad()
def accuracy(model: nn.Module, data: fsd.DistData, sampler: fsd.PinSAGESampler, split: str) -> float:
    """Share of a split's nodes whose class has the largest score."""
    model.eval()
    correct, nodes = 0, data.split(split)
    for own in nodes.split(1000):
        batch = sampler.sample(own, EVAL_STEP)
        features = data.features.fetch(batch.input_nodes, torch.float32)
        correct += int((logits(model, batch, features).argmax(1) == data.labels_of(own)).sum())
    return correct / nodes.numel()


def markdown(result: dict) -> str:
    """One table: a row per model, mean and range over the seeds."""
    lines = ["| layers by | seeds | loss | val | test | test, lowest to highest |", "|---|---|---|---|---|---|"]
    for name, title in (("ours", "fastsample_dist PinSAGE"), ("dgl", "DGL's messages, the same walks")):
        runs = result[name]
        loss = statistics.mean(run["loss"][-1] for run in runs)
        val, test = ([run[f"{split}_acc"] for run in runs] for split in ("val", "test"))
        lines.append(
            f"| {title} | {len(runs)} | {loss:.4f} | {statistics.mean(val):.4f} | {statistics.mean(test):.4f} "
            f"| {min(test):.4f} - {max(test):.4f} |"
        )
    return "\n".join(lines)


def measure(args: argparse.Namespace) -> tuple[int, dict]:
    """Run the comparison; returns (exit status, figures for --json)."""
    torch.set_num_threads(args.threads)
    dgl.require_dgl("pinsage_accuracy.py")
    dgl.set_num_threads(args.threads)
    result: dict = {"conditions": conditions(args.threads), "ours": [], "dgl": []}
    with fsd.DistContext(LocalCommunicator()) as ctx:
        data = fsd.DistData.load(args.data, ctx)
        for seed in map(int, args.seeds.split(",")):
            sampler = fsd.PinSAGESampler(data.graph, num_layers=args.layers, rng_seed=seed, num_threads=args.threads)
            for name, kind in (("ours", PinSAGE), ("dgl", DglModel)):
                torch.manual_seed(seed)
                shape = (data.feature_dim, args.hidden, data.num_classes, args.layers)
                layer_widths(*shape)  # refuses sizes
                result[name].append(train(kind(*shape, args.dropout), data, sampler, args, seed))
    print(f"\n{markdown(result)}")
    return 0, result


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pinsage_accuracy.py", description="Accuracy of PinSAGE, and of DGL's layer on the same walks."
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="a partition of one part, with features and labels")
    add("--epochs", type=count, default=10, help="(default: %(default)s)")
    add("--seeds", default="0,1,2", help="one run of each model each (default: %(default)s)")
    add("--batch-size", type=count, default=1000, help="(default: %(default)s)")
    add("--layers", type=count, default=3, help="(default: %(default)s)")
    add("--hidden", type=count, default=256, help="(default: %(default)s)")
    add("--dropout", type=float, default=0.5, help="(default: %(default)s)")
    add("--lr", type=float, default=0.006, help="of Adam (default: %(default)s)")
    add("--threads", type=count, default=1, help="(default: %(default)s)")
    add_json(parser, "write all figures")
    return parser


if __name__ == "__main__":
    sys.exit(run_command(_parser(), measure, None))

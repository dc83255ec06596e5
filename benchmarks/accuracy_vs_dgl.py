"""Test accuracy of GraphSAGE trained with DGL's NeighborSampler, and beside it by examples/train_sage.py on P ranks.

    python benchmarks/accuracy_vs_dgl.py --graph DIR --epochs 10 --seeds 0,1,2 --mlp --json FILE \
        [--ours parts-1,parts-2,parts-4 --torchrun PATH]

Needs an environment with dgl (1.1.3 works with current torch: `pip install --no-deps dgl==1.1.3`, then packaging,
scipy, networkx, requests, tqdm, psutil); --ours starts the torchrun of an environment with fastsample_dist.

Protocol, the same on both sides: mean GraphSAGE, ReLU and dropout between layers, Adam; every epoch shuffles the train
nodes and uses all of them in batches of --batch-size; with P ranks a step's P batches together have --batch-size
seeds (--batch-per-rank: each rank's), so that every row makes the same number of steps. The graph is read as
undirected where its meta.json says so. The table has the accuracies after the last epoch: with --eval sampled
neighbours are drawn as in training, with --eval full all of them are used (DGL's side: layer by layer). --mlp adds the
same network without neighbours: what the features alone achieve.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # DGL's environment need not have fastsample_dist: these modules need nothing else
from fastsample_dist.command import Parser, add_json, fanout_list, run_command  # noqa: E402
from fastsample_dist.testing.supervisor import run_process  # noqa: E402

DGL_HINT = "dgl is not installed here; run `pip install --no-deps dgl==1.1.3` in an environment of its own"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyperparameters that both sides share; fanouts in hop order from the seeds outwards, one per layer."""

    epochs: int
    batch_size: int
    fanouts: tuple[int, ...]
    hidden: int
    dropout: float
    lr: float
    eval_mode: str

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more.")
        if not self.fanouts or any(fanout < 1 and fanout != -1 for fanout in self.fanouts):
            raise ValueError(f"fanouts is {self.fanouts}; expected positive numbers or -1, one per layer.")

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.fanouts)


@dataclass(frozen=True, kw_only=True)
class InputGraph:
    """An npy input directory in memory.

    Attributes:
      name: its name.
      edges: int64 [2, E]; row 0: sources, row 1: destinations.
      undirected: every edge counts in both directions.
      features: float32 [N, D].
      labels: int64 [N].
      splits: {"train" | "val" | "test": int64 node ids}.
      num_classes: labels are below it.
    """

    name: str
    edges: Tensor
    undirected: bool
    features: Tensor
    labels: Tensor
    splits: dict[str, Tensor]
    num_classes: int


class SageOrMlp(nn.Module):
    """Layers with ReLU and dropout between them; without neighbours (`mlp`) or DGL's mean SAGEConv."""

    def __init__(self, task: InputGraph, recipe: Recipe, *, mlp: bool) -> None:
        super().__init__()
        dims = [task.features.shape[1], *[recipe.hidden] * (recipe.num_layers - 1), task.num_classes]
        pairs = list(itertools.pairwise(dims))
        if mlp:
            self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        else:
            conv = _dgl().nn.SAGEConv
            self.layers = nn.ModuleList(conv(*pair, aggregator_type="mean") for pair in pairs)
        self.dropout = recipe.dropout

    def forward(self, blocks: list[Any] | None, rows: Tensor) -> Tensor:
        """Logits; `blocks` holds a DGL block (or the whole graph) per layer, None for the MLP."""
        for i, layer in enumerate(self.layers):
            rows = layer(rows) if blocks is None else layer(blocks[i], rows)
            if i + 1 < len(self.layers):
                rows = F.dropout(F.relu(rows), self.dropout, self.training)
        return rows


class Training:
    """One network, trained and evaluated; how batches are made depends on whether it has neighbours."""

    def __init__(self, task: InputGraph, recipe: Recipe, graph: Any | None) -> None:
        self.task, self.recipe, self.graph = task, recipe, graph

    def run(self, seed: int) -> dict[str, Any]:
        """Train from `seed`: {"seed", "epochs": [...], "val_acc", "test_acc", "steps"}; prints a line per epoch."""
        torch.manual_seed(seed)
        if self.graph is not None:
            _dgl().seed(seed)
        model = SageOrMlp(self.task, self.recipe, mlp=self.graph is None)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.recipe.lr)
        epochs, steps = [], 0
        for epoch in range(1, self.recipe.epochs + 1):
            start, total, count = time.perf_counter(), 0.0, 0
            model.train()
            for inputs, seeds, blocks in self._batches(self.task.splits["train"], shuffle=True):
                loss = F.cross_entropy(model(blocks, self.task.features[inputs]), self.task.labels[seeds])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total, count, steps = total + loss.item() * len(seeds), count + len(seeds), steps + 1
            seconds = time.perf_counter() - start
            record = {"epoch": epoch, "loss": total / count, "seconds": seconds, **self._evaluate(model)}
            epochs.append(record)
            print(
                f"{'mlp' if self.graph is None else 'dgl'} seed {seed} epoch {epoch:3}: loss {record['loss']:.4f}, "
                f"val {record['val_acc']:.4f}, test {record['test_acc']:.4f}, {seconds:.1f} s",
                flush=True,
            )
        last = epochs[-1]
        return {
            **{"seed": seed, "epochs": epochs, "steps": steps},
            **{"val_acc": last["val_acc"], "test_acc": last["test_acc"]},
        }

    def _batches(self, nids: Tensor, *, shuffle: bool) -> Any:
        """(input nodes, seeds, blocks) of every batch; the last one may be short, none is dropped."""
        if self.graph is None:
            order = nids[torch.randperm(len(nids))] if shuffle else nids
            return ((batch, batch, None) for batch in order.split(self.recipe.batch_size))
        # DGL lists fanouts from the input layer to the seeds, the reverse of hop order.
        sampler = _dgl().dataloading.NeighborSampler(list(reversed(self.recipe.fanouts)))
        return _dgl().dataloading.DataLoader(
            self.graph, nids, sampler, batch_size=self.recipe.batch_size, shuffle=shuffle, drop_last=False
        )

    @torch.no_grad()
    def _evaluate(self, model: SageOrMlp) -> dict[str, float]:
        model.eval()
        whole = None
        if self.graph is not None and self.recipe.eval_mode == "full":
            whole = model([self.graph] * self.recipe.num_layers, self.task.features).argmax(dim=1)
        result = {}
        for split in ("val", "test"):
            nids = self.task.splits[split]
            if whole is not None:
                correct = int((whole[nids] == self.task.labels[nids]).sum())
            else:
                correct = sum(
                    int((model(blocks, self.task.features[inputs]).argmax(dim=1) == self.task.labels[seeds]).sum())
                    for inputs, seeds, blocks in self._batches(nids, shuffle=False)
                )
            result[f"{split}_acc"] = correct / len(nids)
        return result


def read_task(directory: Path) -> InputGraph:
    """Read an npy input directory that has features, labels and three splits.

    Raises:
      ValueError: one of its files is missing or unreadable.
    """
    try:
        meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
        columns = ("edge_index", "features", "labels", "train_idx", "val_idx", "test_idx")
        data = {column: torch.from_numpy(np.load(directory / f"{column}.npy")) for column in columns}
    except (OSError, ValueError) as error:
        raise ValueError(f"{directory} must be an npy directory with features, labels and splits ({error}).") from error
    labels = data["labels"].long()
    return InputGraph(
        name=meta["name"],
        edges=data["edge_index"].long(),
        undirected=meta["undirected"],
        features=data["features"].float(),
        labels=labels,
        splits={split: data[f"{split}_idx"].long() for split in ("train", "val", "test")},
        num_classes=meta.get("num_classes") or int(labels.max()) + 1,
    )


def dgl_graph(task: InputGraph) -> Any:
    """The task's topology as a DGL graph: both directions and no duplicates if it is undirected."""
    dgl = _dgl()
    graph = dgl.graph((task.edges[0], task.edges[1]), num_nodes=len(task.labels))
    if not task.undirected:
        return graph
    both = dgl.to_bidirected(graph)  # merges duplicates as well
    return both.formats(["csc"])


def majority_accuracy(task: InputGraph) -> float:
    """Test accuracy of always naming the most frequent class of the train split."""
    top = int(torch.bincount(task.labels[task.splits["train"]]).argmax())
    return float((task.labels[task.splits["test"]] == top).float().mean())


def ours_command(parts: Path, recipe: Recipe, seed: int, report: Path, args: argparse.Namespace) -> list[str]:
    """Command line that trains on a finished partition with one rank per part.

    Raises:
      ValueError: the partition has no readable manifest, or the batch does not divide among its parts.
    """
    try:
        num_parts = int(json.loads((parts / "manifest.json").read_text(encoding="utf-8"))["num_parts"])
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{parts} has no readable manifest.json ({error}); pass outputs of fastsample-partition."
        ) from None
    batch_size = recipe.batch_size
    if not args.batch_per_rank:
        batch_size, rest = divmod(batch_size, num_parts)
        if rest:
            raise ValueError(
                f"batch size {recipe.batch_size} does not divide among the {num_parts} parts of {parts}; "
                "pass --batch-per-rank or another --batch-size."
            )
    eval_fanouts = recipe.fanouts if recipe.eval_mode == "sampled" else (-1,) * recipe.num_layers
    options = {
        **{"data": parts, "scheme": args.scheme, "model": "sage", "epochs": recipe.epochs, "seed": seed},
        **{"layers": recipe.num_layers, "hidden": recipe.hidden, "dropout": recipe.dropout, "lr": recipe.lr},
        **{"fanouts": ",".join(map(str, recipe.fanouts)), "eval-fanouts": ",".join(map(str, eval_fanouts))},
        **{"eval-every": recipe.epochs, "batch-size": batch_size, "threads": args.threads, "json": report},
    }
    words = [f"--{name}={value}" for name, value in options.items()]  # "=": a value may begin with "-"
    script = str(ROOT / "examples" / "train_sage.py")
    return [args.torchrun, "--standalone", "--nproc-per-node", str(num_parts), script, *words]


def run_ours(parts: Path, recipe: Recipe, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train on one partition by examples/train_sage.py; its report with "seed" and "command" added.

    Raises:
      RuntimeError: the command fails; the message has the end of its output.
      TimeoutError: it outlives --timeout-s.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ours_command(parts, recipe, seed, report, args)
        done = run_process(command, deadline_s=args.timeout_s)
        if done.returncode != 0 or not report.is_file():
            tail = (done.stderr or done.stdout).strip().splitlines()[-15:]
            raise RuntimeError("\n".join([f"{' '.join(command)} ended with status {done.returncode}:", *tail]))
        result = json.loads(report.read_text(encoding="utf-8"))
    print(
        f"ours {result['scheme']} on {result['world_size']} ranks, seed {seed}: val {result['val_acc']:.4f}, "
        f"test {result['test_acc']:.4f}, {result['steps']} steps",
        flush=True,
    )
    return {**result, "seed": seed, "command": " ".join(command)}


def markdown(result: dict[str, Any]) -> str:
    """One table: a row per way of training, mean and range over the seeds of the last epoch's accuracies."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in result["dgl"]:
        rows.setdefault("DGL NeighborSampler, 1 process", []).append(run)
    for run in result["ours"]:
        rows.setdefault(f"fastsample_dist {run['scheme']}, {run['world_size']} rank(s)", []).append(run)
    for run in result["mlp"]:
        rows.setdefault("features only (MLP), 1 process", []).append(run)
    lines = ["| trained by | seeds | steps | val | test | test, lowest to highest |", "|---|---|---|---|---|---|"]
    for name, runs in rows.items():
        val, test = ([run[f"{split}_acc"] for run in runs] for split in ("val", "test"))
        lines.append(
            f"| {name} | {len(runs)} | {runs[0]['steps']} | {statistics.mean(val):.4f} | {statistics.mean(test):.4f} "
            f"| {min(test):.4f} - {max(test):.4f} |"
        )
    lines.append(f"| most frequent class | - | - | - | {result['majority']:.4f} | - |")
    return "\n".join(lines)


def conditions(recipe: Recipe, task: InputGraph, args: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {
        **{"commit": commit.stdout.strip() or None, "graph": task.name, "python": platform.python_version()},
        **{"torch": torch.__version__, "dgl": _dgl().__version__, "threads": args.threads, "cpus": os.cpu_count()},
        **{"recipe": vars(recipe), "seeds": args.seeds, "batch_per_rank": args.batch_per_rank},
    }


def _dgl() -> Any:
    try:
        import dgl
        import dgl.dataloading
        import dgl.nn
        import dgl.utils
    except ImportError as error:
        raise RuntimeError(f"{DGL_HINT} ({error}).") from error
    return dgl


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accuracy_vs_dgl.py", description="Accuracy of GraphSAGE by DGL's sampler and by fastsample_dist."
    )
    parser.add_argument("--graph", type=Path, required=True, help="npy input directory")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", default="0,1,2", help="one run each (default %(default)s)")
    parser.add_argument(
        "--batch-size", type=int, default=1000, help="seeds per step, all ranks together (default 1000)"
    )
    parser.add_argument("--batch-per-rank", action="store_true", help="--batch-size counts per rank instead")
    parser.add_argument(
        "--fanouts", type=fanout_list, default=(15, 10, 5), help="per hop from the seeds outwards (default 15,10,5)"
    )
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=0.006)
    parser.add_argument("--eval", choices=("sampled", "full"), default="sampled", help="neighbours in evaluation")
    parser.add_argument("--mlp", action="store_true", help="train without neighbours as well")
    parser.add_argument("--ours", default="", help="comma-separated partitions; a run of train_sage.py on each")
    parser.add_argument("--scheme", choices=("hybrid", "vanilla"), default="hybrid", help="of --ours")
    parser.add_argument("--torchrun", default="torchrun", help="of an environment with fastsample_dist")
    parser.add_argument("--timeout-s", type=float, default=7200.0, help="per run of --ours (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="per process, on both sides (default %(default)s)")
    add_json(parser, "write all figures")
    return parser


def measure(args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Run the comparison; returns (exit status, figures for --json)."""
    torch.set_num_threads(args.threads)
    recipe = Recipe(
        epochs=args.epochs,
        batch_size=args.batch_size,
        fanouts=args.fanouts,
        hidden=args.hidden,
        dropout=args.dropout,
        lr=args.lr,
        eval_mode=args.eval,
    )
    seeds = [int(seed) for seed in args.seeds.split(",")]
    partitions = [Path(name) for name in args.ours.split(",") if name]
    for parts in partitions:  # a wrong partition is found before the first hour of training
        ours_command(parts, recipe, 0, Path("report.json"), args)
    task = read_task(args.graph)
    result: dict[str, Any] = {"conditions": conditions(recipe, task, args), "majority": majority_accuracy(task)}
    _dgl().utils.set_num_threads(args.threads)  # its OpenMP is not torch's
    graph = dgl_graph(task)
    result["dgl"] = [Training(task, recipe, graph).run(seed) for seed in seeds]
    result["mlp"] = [Training(task, recipe, None).run(seed) for seed in seeds] if args.mlp else []
    result["ours"] = [run_ours(parts, recipe, seed, args) for parts in partitions for seed in seeds]
    print(f"\n{markdown(result)}")
    return 0, result


if __name__ == "__main__":
    sys.exit(run_command(_parser(), measure, None))

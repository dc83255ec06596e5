"""Thirty epochs leave a rank's memory and open files where they were after three."""

import os
from pathlib import Path

import psutil
import pytest
import torch

from fastsample_dist import DistData, DistLoader
from fastsample_dist.testing import run_distributed
from fastsample_dist.train.trainer import Trainer
from tests.grids import grid
from tests.train.task import make_model, make_task

# Epochs. One reading alone also shows what the kernel does with pages, and a thread that is ending.
EARLY, LATE = (3, 4, 5), (28, 29, 30)
TOLERANCE = 0.02


def figures() -> tuple[int, int, int]:
    """(bytes of own memory, open files, threads) of this process.

    Own memory is anonymous, resident or swapped out: pages of mapped files come and go as the kernel likes.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own_kb = sum(int(status[name].split()[0]) for name in ("RssAnon", "VmSwap"))
    return own_kb * 1024, len(list(Path(f"/proc/{os.getpid()}/fd").iterdir())), psutil.Process().num_threads()


def thirty_epochs(ctx, path, prefetch):
    torch.set_num_threads(1)
    data = DistData.load(path, ctx)
    model = make_model("sage")
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=0.01), ctx)
    train = DistLoader(data, [4, 4], 10, split="train", prefetch=prefetch)
    test = DistLoader(data, [4, 4], 10, split="test", prefetch=prefetch, shuffle=False)
    seen = {}
    for epoch in range(1, 31):
        trainer.run_epoch(train)
        trainer.evaluate(test)
        if epoch in EARLY + LATE:
            seen[epoch] = figures()
    return seen


@pytest.mark.parametrize("prefetch", grid([0, 2], gate=[2]))
def test_memory_and_files_of_every_rank_stay(tmp_path, prefetch):
    path = make_task(tmp_path, 2, num_nodes=400).path
    for seen in run_distributed(2, thirty_epochs, timeout_s=300, args=(path, prefetch)):
        early, late = ([seen[epoch] for epoch in epochs] for epochs in (EARLY, LATE))
        assert min(memory for memory, *_ in late) <= max(memory for memory, *_ in early) * (1 + TOLERANCE)
        assert late[-1][1] == early[0][1]
        assert min(threads for *_, threads in late) <= max(threads for *_, threads in early)

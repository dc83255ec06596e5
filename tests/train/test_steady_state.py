"""Thirty epochs leave a rank's memory and open files where they were after three."""

import os
from pathlib import Path

import psutil
import pytest
import torch

from fastsample_dist import DistData, DistLoader
from fastsample_dist.testing import run_distributed
from fastsample_dist.train.trainer import Trainer
from tests.train.task import make_model, make_task

TOLERANCE = 0.02


def figures() -> tuple[int, int, int]:
    """(resident bytes, open files, threads) of this process."""
    me = psutil.Process()
    return me.memory_info().rss, len(list(Path(f"/proc/{os.getpid()}/fd").iterdir())), me.num_threads()


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
        if epoch in (3, 30):
            seen[epoch] = figures()
    return seen


@pytest.mark.parametrize("prefetch", [0, 2])
def test_memory_and_files_of_every_rank_stay(tmp_path, prefetch):
    path = make_task(tmp_path, 2, num_nodes=400).path
    for seen in run_distributed(2, thirty_epochs, timeout_s=300, args=(path, prefetch)):
        (memory, files, threads), (later_memory, later_files, later_threads) = seen[3], seen[30]
        assert later_memory <= memory * (1 + TOLERANCE)
        assert (later_files, later_threads) == (files, threads)

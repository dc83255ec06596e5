"""The loop of the README without Trainer: a rank whose last batch is empty disturbs nothing."""

import math

import pytest
import torch
import torch.nn.functional as F

from fastsample_dist import DistContext, DistData, DistLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.testing import run_distributed
from tests.train.task import make_model, make_task


def plain_loop(ctx, path, batch_size):
    """(means of all steps over the seeds of all ranks, parameters, seeds of the last batch)."""
    loader = DistLoader(DistData.load(path, ctx), (-1, -1), batch_size, shuffle=False)
    model, losses = make_model("sage", dropout=0.0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for mb in loader:
        loss = mb.mean_loss(F.cross_entropy(model(mb.mfgs, mb.features), mb.labels, reduction="none"))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = ctx.comm.all_reduce(parameter.grad, purpose="gradients")
        optimizer.step()
        losses.append(float(ctx.comm.all_reduce(loss.detach(), purpose="metrics")))
    return losses, [parameter.detach() for parameter in model.parameters()], mb.seeds.numel()


def test_an_empty_last_batch_gives_the_mean_of_one_process(tmp_path):
    """123 train nodes: one rank has one more than the other, and is alone in the second step."""
    for parts in (1, 2):
        (tmp_path / str(parts)).mkdir()
        make_task(tmp_path / str(parts), parts, num_nodes=205)
    found = run_distributed(2, plain_loop, args=(tmp_path / "2" / "parts", 61))
    assert sorted(last for *_, last in found) == [0, 1]
    (losses, parameters, _), (other_losses, other_parameters, _) = found
    assert losses == other_losses and all(map(math.isfinite, losses))
    assert all(map(torch.equal, parameters, other_parameters))
    expected, expected_parameters = one_process(tmp_path)
    assert losses == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(parameters, expected_parameters, rtol=0, atol=1e-12)


def one_process(folder):
    """The same two steps on all seeds: the first 61 of each rank, then the one that is left."""
    with DistContext(LocalCommunicator()) as ctx:
        data, two = DistData.load(folder / "1" / "parts", ctx), DistData.load(folder / "2" / "parts", ctx)
        (mb,) = DistLoader(data, (-1, -1), 1000, shuffle=False)
        rows = {node: row for row, node in enumerate(data.orig_ids(mb.seeds).tolist())}
        own = [[rows[node] for node in two.orig_ids(nodes).tolist()] for nodes in split_by_part(two)]
    model, losses = make_model("sage", dropout=0.0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in (slice(0, 61), slice(61, 122)):
        chosen = own[0][step] + own[1][step]
        loss = F.cross_entropy(model(mb.mfgs, mb.features)[chosen], mb.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(chosen) == 1
    return losses, [parameter.detach() for parameter in model.parameters()]


def split_by_part(data):
    nodes = data.split("train")
    parts = data.book.nid2part(nodes)
    return [nodes[parts == part] for part in range(2)]

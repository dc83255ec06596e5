"""Gradients of several ranks: DDP and the flat sum agree, wrong models are refused, failures are named."""

import os
import signal
import threading

import pytest
import torch
from torch import nn

from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.testing import RankError, run_distributed
from fastsample_dist.train.gradients import DDPGradients, FlatGradients, LocalGradients, wrap_model
from tests.waiting import ENOUGH_S, NEVER_S, wait_until

INTERRUPT_S = 2.0  # after which a backward pass waits for the other rank


def make_net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(300, 1000), nn.ReLU(), nn.Linear(1000, 3)).double()  # 2.4 MB: two DDP buckets


def both_ways(ctx):
    results = []
    for wrapper in (DDPGradients, FlatGradients):
        net = make_net(seed=ctx.rank)
        gradients = wrapper(net, ctx.comm)
        torch.manual_seed(10 + ctx.rank)
        for _ in range(2):  # DDP orders its buckets anew after the first step
            net.zero_grad(set_to_none=True)
            gradients.backward(gradients.module(torch.randn(4, 300, dtype=torch.float64)).square().sum())
        results.append([parameter.grad.clone() for parameter in net.parameters()])
        assert gradients.wait_s > 0
    return results


def test_ddp_and_flat_sums_are_equal_and_the_same_on_every_rank():
    (ddp, flat), (peer_ddp, _) = run_distributed(2, both_ways)
    torch.testing.assert_close(ddp, flat, rtol=1e-13, atol=1e-13)
    assert all(map(torch.equal, ddp, peer_ddp))


def sums(ctx):
    net = nn.Linear(1, 1, bias=False)
    gradients = wrap_model(net, ctx)
    gradients.backward(gradients.module(torch.tensor([[10.0**ctx.rank]])).sum())
    return type(gradients), net.weight.grad.item()


def test_gradients_are_summed_not_averaged():
    assert run_distributed(3, sums) == [(DDPGradients, 111.0)] * 3


def starting_point(ctx):
    net = make_net(seed=ctx.rank)
    net.register_buffer("scale", torch.full((2,), 2**40 + 1 - ctx.rank, dtype=torch.int64))  # no float holds it
    net.register_buffer("share", torch.full((2,), 0.1 + ctx.rank))
    wrap_model(net, ctx)
    return list(net.state_dict().values())


def test_every_rank_starts_from_rank_0s_parameters_and_buffers():
    buffers = [torch.full((2,), 2**40 + 1), torch.full((2,), 0.1)]
    expected = [*make_net(seed=0).state_dict().values(), *buffers]
    for state in run_distributed(2, starting_point):
        assert len(state) == len(expected) and all(map(torch.equal, sorted_by_size(state), sorted_by_size(expected)))


def sorted_by_size(tensors):
    return sorted(tensors, key=torch.Tensor.numel)


def rehearsed(ctx):
    """What a rehearsal leaves: (a draw of torch's generator, buffers)."""
    torch.manual_seed(ctx.rank)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    gradients, buffers = wrap_model(net, ctx), [buffer.clone() for buffer in net.buffers()]
    torch.manual_seed(7)
    gradients.rehearse(lambda: gradients.module(torch.ones(5, 3)).sum())
    assert all(map(torch.equal, net.buffers(), buffers))
    return torch.rand(1).item()


def test_a_rehearsal_draws_nothing_and_leaves_buffers_as_they_are():
    torch.manual_seed(7)
    assert run_distributed(2, rehearsed) == [torch.rand(1).item()] * 2


def unlike(ctx):
    with pytest.raises(ValueError) as refusal:
        wrap_model(nn.Linear(2 + ctx.rank, 1), ctx)
    return str(refusal.value)


def test_models_of_different_sizes_are_refused_on_every_rank():
    message = "the model has [3, 4] parameters on the ranks; build the same model on every rank."
    assert run_distributed(2, unlike) == [message] * 2


class Branches(nn.Module):
    """The sum of those of its branches that are named."""

    def __init__(self):
        super().__init__()
        for name in ("first", "second"):
            setattr(self, name, nn.Linear(1, 1, bias=False))
        self.third = nn.Linear(1000, 1000, bias=False)  # 4 MB: a DDP bucket of its own

    def forward(self, rows, names):
        return sum(getattr(self, name)(rows) for name in names).sum()


def unreached(ctx):
    """Gradients of the branches after each of some steps, by both ways to sum them."""
    steps = (["first", "second"], ["first"], (["first"], ["second"])[ctx.rank], ["first", "second"])
    found = []
    for wrapper in (DDPGradients, FlatGradients):
        net = Branches()
        gradients = wrapper(net, ctx.comm)
        for names in steps:
            gradients.backward(gradients.module(torch.full((1, 1), 10.0**ctx.rank), names))
            found.append([parameter.grad.sum().item() for parameter in net.parameters()])
    return found


def test_a_parameter_without_gradient_takes_part_with_zeros_and_none_keeps_that_of_the_step_before():
    expected = [[11.0, 11.0, 0.0], [11.0, 0.0, 0.0], [1.0, 10.0, 0.0], [11.0, 11.0, 0.0]]
    assert run_distributed(2, unreached) == [2 * expected] * 2


def frozen(ctx, wrapper):
    net, found = nn.Linear(1, 1), []
    net.bias.requires_grad_(False)
    gradients = wrapper(net, ctx.comm)
    for name in ("weight", "bias"):
        parameter = getattr(net, name)
        parameter.requires_grad_(not parameter.requires_grad)
        with pytest.raises(ValueError) as refusal:
            gradients.backward(gradients.module(torch.ones(1, 1)).sum())
        parameter.requires_grad_(not parameter.requires_grad)
        found.append(str(refusal.value))
    return found


@pytest.mark.parametrize("wrapper", [DDPGradients, FlatGradients])
def test_parameters_that_are_frozen_later_or_no_more_are_refused_by_name(wrapper):
    for weight, bias in run_distributed(2, frozen, args=(wrapper,)):
        assert weight.startswith("requires_grad of weight is False but was True when the Trainer was made, ")
        assert bias.startswith("requires_grad of bias is True but was False when the Trainer was made, ")
        assert bias.endswith("; set it before, or make another Trainer.")


def sparse(ctx, wrapper):
    net = nn.Sequential(nn.Embedding(3, 2, sparse=True), nn.Linear(2, 1))
    gradients = wrapper(net, ctx.comm)
    with pytest.raises(ValueError) as refusal:
        gradients.backward(gradients.module(torch.tensor([1])).sum())
    return str(refusal.value)


@pytest.mark.parametrize("wrapper", [DDPGradients, FlatGradients])
def test_a_sparse_gradient_is_refused_by_name(wrapper):
    for message in run_distributed(2, sparse, args=(wrapper,)):
        assert message == (
            "the gradient of 0.weight is sparse, which several ranks cannot sum; build the model with sparse=False, or "
            "train in one process."
        )


def leave_before_backward(ctx):
    gradients = wrap_model(make_net(seed=0), ctx)
    loss = gradients.module(torch.ones(1, 300, dtype=torch.float64)).sum()
    ctx.comm.step = 7
    if ctx.rank == 1:
        raise KeyError("made up")
    gradients.backward(loss)


def test_a_lost_peer_is_reported_with_rank_step_and_purpose():
    with pytest.raises(RankError, match="rank 0, step 7: all_reduce of gradients"):
        run_distributed(2, leave_before_backward, timeout_s=ENOUGH_S)


def leave_after_the_first_step(ctx):
    """What the other rank reports at its second forward pass, before which DDP orders its buckets."""
    gradients, rows = wrap_model(make_net(seed=0), ctx), torch.ones(1, 300, dtype=torch.float64)
    gradients.backward(gradients.module(rows).sum())
    if ctx.rank == 1:
        ctx.comm.abort()
        return None
    ctx.comm.step = 1
    with pytest.raises(RuntimeError) as raised:
        gradients.module(rows)
    assert str(raised.value) == f"{ctx.comm.failure}."
    ctx.comm.abort()
    return ctx.comm.failure


def test_a_peer_lost_before_the_second_step_is_reported_with_rank_step_and_purpose():
    message = run_distributed(2, leave_after_the_first_step, ENOUGH_S, comm_timeout_s=NEVER_S)[0]
    assert message.startswith("rank 0, step 1: barrier of bucket_order failed because a peer ended")


def meetings(ctx):
    gradients, rows = wrap_model(make_net(seed=0), ctx), torch.ones(1, 300, dtype=torch.float64)
    for _ in range(3):
        with torch.no_grad():
            gradients.module(rows)
        gradients.backward(gradients.module(rows).sum())
    return ctx.comm.stats()["bucket_order"]


def test_ranks_meet_once_for_the_order_of_their_buckets():
    assert run_distributed(2, meetings) == [{"calls": 1, "bytes_sent": 0, "bytes_received": 0}] * 2


def test_one_process_uses_the_model_as_it_is():
    net = make_net(seed=0)
    with DistContext(LocalCommunicator()) as ctx:
        gradients = wrap_model(net, ctx)
        assert type(gradients) is LocalGradients and gradients.module is net and ctx.comm.stats() == {}


# ---- what goes wrong inside a hook of torch's


def reduce_beside_a_rank_that_left(ctx):
    net = make_net(seed=0)
    gradients = DDPGradients(net, ctx.comm)
    if ctx.rank == 1:
        ctx.comm.abort()
        return None
    ctx.comm.step = 3
    with pytest.raises(RuntimeError) as raised:
        gradients.backward(gradients.module(torch.randn(4, 300, dtype=torch.float64)).square().sum())
    ctx.comm.abort()
    return str(raised.value), raised.value.__cause__, raised.value.__suppress_context__


def test_a_failed_sum_is_one_line_with_rank_step_and_collective():
    message, cause, suppressed = run_distributed(2, reduce_beside_a_rank_that_left)[0]
    assert message.startswith("rank 0, step 3: all_reduce of gradients failed because a peer ended")
    assert "\n" not in message and "callback" not in message
    assert cause is None and suppressed


def interrupt_in_the_hook(ctx):
    net = make_net(seed=0)
    gradients = DDPGradients(net, ctx.comm)

    def interrupted(tensor, purpose):
        raise KeyboardInterrupt

    ctx.comm.all_reduce_start = interrupted
    with pytest.raises(KeyboardInterrupt):
        gradients.backward(gradients.module(torch.randn(4, 300, dtype=torch.float64)).square().sum())
    ctx.comm.abort()


def test_ctrl_c_in_a_hook_stays_ctrl_c():
    run_distributed(2, interrupt_in_the_hook)


def interrupt_the_wait(ctx, over):
    """Rank 0 waits for gradients that rank 1 does not send, and is interrupted."""
    gradients = DDPGradients(make_net(seed=0), ctx.comm)
    if ctx.rank == 1:
        wait_until(over.exists)
        ctx.comm.abort()
        return None
    loss = gradients.module(torch.randn(4, 300, dtype=torch.float64)).square().sum()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(INTERRUPT_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    ctx.comm.step = 3
    with pytest.raises(KeyboardInterrupt):
        gradients.backward(loss)
    over.touch()
    ctx.comm.abort()
    return ctx.comm.failure


def test_ctrl_c_ends_the_wait_for_gradients(tmp_path):
    said = run_distributed(2, interrupt_the_wait, ENOUGH_S, args=(tmp_path / "over",), comm_timeout_s=NEVER_S)[0]
    assert said == "rank 0, step 3: all_reduce of gradients was interrupted"


def fail_by_itself(ctx):
    net = make_net(seed=0)
    gradients = DDPGradients(net, ctx.comm)
    loss = gradients.module(torch.randn(4, 300, dtype=torch.float64)).square().sum()
    loss.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gradients.backward(loss)
    ctx.comm.abort()


def test_an_error_of_the_models_own_passes_as_it_is():
    run_distributed(2, fail_by_itself)

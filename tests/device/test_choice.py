"""Which device ranks agree on: the rule on made-up machines, and ranks that really ask each other."""

import socket

import pytest
import torch

from fastsample_dist import CSCGraph, NeighborSampler
from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.device import choice as device
from fastsample_dist.device.choice import DeviceError, DeviceReport, agree_device
from fastsample_dist.testing import run_distributed

CPU = torch.device("cpu")
TWO = DeviceReport("a", ("gpu-0", "gpu-1"))
NONE = DeviceReport("b", refusal="torch sees no CUDA device; check the driver")


def devices_of(reports, wanted="cuda"):
    return [agree_device(wanted, reports, rank)[0] for rank in range(len(reports))]


def test_ranks_of_a_machine_take_its_gpus_in_turn():
    reports = [TWO, TWO, DeviceReport("b", ("gpu-2",))]
    assert devices_of(reports) == [torch.device("cuda", number) for number in (0, 1, 0)]


def test_a_gpu_that_only_its_rank_sees_is_number_0():
    reports = [DeviceReport("a", ("gpu-0",)), DeviceReport("a", ("gpu-1",))]
    assert devices_of(reports) == [torch.device("cuda", 0)] * 2


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_more_ranks_than_gpus_are_refused_on_all_ranks_alike(rank):
    line = 'device is "cuda" but rank 2 on a: 3 ranks share 2 GPU\\(s\\); start at most one rank per GPU; or use "cpu".'
    with pytest.raises(DeviceError, match=f"^{line}$"):
        agree_device("cuda", [TWO] * 3, rank)


def test_gpus_that_overlap_are_refused():
    reports = [TWO, DeviceReport("a", ("gpu-1",))]
    with pytest.raises(DeviceError, match="rank 1 on a: its GPUs overlap other ranks' there"):
        agree_device("cuda", reports, 1)


def test_one_rank_without_a_gpu_is_named_to_all():
    with pytest.raises(DeviceError, match='^device is "cuda" but rank 1 on b: torch sees no CUDA device; check the'):
        agree_device("cuda", [TWO, NONE], 0)


def test_auto_takes_gpus_only_where_every_rank_has_one():
    assert devices_of([TWO, TWO], "auto") == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert agree_device("auto", [TWO, TWO], 0)[1] == "every rank has a GPU"
    assert devices_of([TWO, NONE], "auto") == [CPU, CPU]
    assert agree_device("auto", [TWO, NONE], 0)[1] == "rank 1 on b: torch sees no CUDA device; check the driver"


def test_a_run_of_one_process_names_no_rank():
    with pytest.raises(DeviceError, match='^device is "cuda" but torch sees no CUDA device'):
        agree_device("cuda", [NONE], 0)


def test_a_missing_cuda_library_is_a_refusal(monkeypatch):
    def missing():
        raise ImportError("libfastsample_cuda.so is not in lib; install the CUDA toolkit.")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("fastsample_dist.ops.cuda.core", missing)
    assert device.cuda_refusal() == "libfastsample_cuda.so is not in lib; install the CUDA toolkit"


def test_torch_without_cuda_and_a_driver_that_is_missing_are_told_apart(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert "install a CUDA build of torch" in device.cuda_refusal()
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "check the driver" in device.cuda_refusal()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_refused_wherever_it_is_named(name):
    graph = CSCGraph(torch.tensor([0, 1]), torch.tensor([0]))
    for use in (
        lambda: DistContext(LocalCommunicator(), device=name),
        lambda: NeighborSampler(graph, [1], device=name),
    ):
        with pytest.raises(DeviceError, match=f'^device is "{name}" but torch sees no CUDA device.*; or use "cpu".$'):
            use()


def test_a_number_beyond_the_gpus_is_refused(monkeypatch):
    monkeypatch.setattr(device, "cuda_refusal", lambda: "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert (device.numbered("cuda"), device.numbered("cuda:0")) == (torch.device("cuda", 1), torch.device("cuda", 0))
    with pytest.raises(DeviceError, match=r'device is "cuda:2" but torch sees 2 CUDA device\(s\); choose one of them'):
        device.numbered("cuda:2")


# ---- real ranks ----


def ask_again(ctx, wanted: list[str]) -> tuple[str, str]:
    """Join again, over a port of its own, with each rank's choice; rank 0 says that it has a GPU, rank 1 has none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = ctx.comm.all_gather_object(probe.getsockname()[1], purpose="port")[0]
    ctx.close()
    with pytest.MonkeyPatch.context() as monkeypatch:
        gpus, refusal = (("gpu-0",), "") if ctx.rank == 0 else ((), "no driver")
        report = DeviceReport("here", gpus, refusal)
        monkeypatch.setattr("fastsample_dist.comm.context.own_report", lambda: report)
        environ = {"RANK": str(ctx.rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        try:
            with DistContext.from_env(environ=environ, device=wanted[ctx.rank]) as again:
                return str(again.device), again.device_reason
        except RuntimeError as error:
            return "refused", str(error)


def test_ranks_refuse_cuda_together():
    refused = ("refused", 'device is "cuda" but rank 1 on here: no driver; or use "cpu".')
    assert run_distributed(2, ask_again, args=(["cuda", "cuda"],)) == [refused] * 2


def test_ranks_fall_back_to_the_cpu_together():
    assert run_distributed(2, ask_again, args=(["auto", "auto"],)) == [("cpu", "rank 1 on here: no driver")] * 2


@pytest.mark.parametrize("wanted", [["cpu", "cuda"], ["auto", "cpu"]])
def test_ranks_that_want_different_devices_are_refused_at_once(wanted):
    line = (
        f"the ranks ask for different devices: {wanted[0]} on rank 0; {wanted[1]} on rank 1; ask for the same one "
        "(--device, device=) on all."
    )
    assert run_distributed(2, ask_again, args=(wanted,)) == [("refused", line)] * 2


@pytest.mark.gpu
def test_a_context_takes_the_gpu():
    with DistContext.from_env(environ={}, device="auto") as ctx:
        assert ctx.device == torch.device("cuda", 0) == torch.device("cuda", torch.cuda.current_device())


def ask_for_cuda(ctx) -> tuple[str, str]:
    """As `ask_again`, with what the ranks really have."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = ctx.comm.all_gather_object(probe.getsockname()[1], purpose="port")[0]
    ctx.close()
    size = ctx.world_size
    environ = {"RANK": str(ctx.rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    try:
        with DistContext.from_env(environ=environ, device="cuda") as again:
            return str(again.device), again.device_reason
    except RuntimeError as error:
        return "refused", str(error)


@pytest.mark.gpu
def test_more_ranks_than_this_machine_has_gpus_are_refused():
    found = run_distributed(torch.cuda.device_count() + 1, ask_for_cuda)
    assert len(set(found)) == 1 and found[0][0] == "refused" and "start at most one rank per GPU" in found[0][1]

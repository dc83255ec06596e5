"""Which device a rank computes on: all ranks report what each of them has, and decide by the same rule.

So "cuda" is refused on every rank with one and the same line when one rank cannot, and "auto" never leaves some ranks
on GPUs and others on the CPU. `agree_device` is the rule, on values alone. A rank takes GPU number local_rank of those
that its machine's ranks see; where the launcher shows every rank a GPU of its own (srun --gpus-per-task), that one.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch

CPU, CUDA, AUTO = "cpu", "cuda", "auto"
DEVICES = (CPU, CUDA, AUTO)


class DeviceError(RuntimeError):
    """The device that was asked for cannot be used; all ranks raise it together."""


@dataclass(frozen=True)
class DeviceReport:
    """The GPUs of one rank.

    Attributes:
      host: its machine.
      gpus: what identifies the GPUs that the process sees, by number.
      refusal: why none of them can be used; "" where they can.
    """

    host: str
    gpus: tuple[str, ...] = ()
    refusal: str = ""


def check_device(device: str) -> str:
    """`device` as it is.

    Raises:
      ValueError: not one of DEVICES.
    """
    if device not in DEVICES:
        raise ValueError(f'device is {device!r}; expected "cpu", "cuda" or "auto".')
    return device


def numbered(device: torch.device | str) -> torch.device:
    """The device with its number, "cuda" alone being the current GPU.

    Raises:
      ValueError: what torch knows no device of.
      DeviceError: a GPU that this process cannot use.
    """
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f'device is {device!r}; expected "cpu", "cuda", or one GPU such as "cuda:1".') from None
    if device.type != CUDA:
        return device
    refusal = cuda_refusal()
    if not refusal and device.index is not None and device.index >= torch.cuda.device_count():
        refusal = f"torch sees {torch.cuda.device_count()} CUDA device(s); choose one of them"
    if refusal:
        raise DeviceError(f'device is "{device}" but {refusal}; or use "cpu".')
    return torch.device(CUDA, torch.cuda.current_device() if device.index is None else device.index)


def computing(device: torch.device | str) -> torch.device:
    """The device with its number, one that batches can be made on.

    Raises:
      ValueError: neither the CPU nor a GPU.
      DeviceError: a GPU that this process cannot use.
    """
    found = numbered(device)
    if found.type not in (CPU, CUDA):
        raise ValueError(f'device is "{found}"; expected "cpu", "cuda", or one GPU such as "cuda:1".')
    return found


def own_report() -> DeviceReport:
    """What this process has."""
    refusal = cuda_refusal()
    return DeviceReport(socket.gethostname(), () if refusal else _visible_gpus(), refusal)


def cuda_refusal() -> str:
    """Why this process cannot compute on a GPU, with what to do about it; "" where it can."""
    if not torch.backends.cuda.is_built():
        return "torch sees no CUDA device: it was built without CUDA; install a CUDA build of torch"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device; check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"
    from fastsample_dist.ops import cuda

    try:
        cuda.core()
    except ImportError as error:
        return " ".join(str(error).rstrip(".").split())
    return ""


def agree_device(wanted: str, reports: Sequence[DeviceReport], rank: int) -> tuple[torch.device, str]:
    """The device of a rank, the same kind on all ranks.

    Args:
      wanted: "cuda" or "auto".
      reports: of all ranks, by rank.
      rank: this one.
    Returns:
      (device, why it is that one).
    Raises:
      DeviceError: "cuda" is wanted and some rank cannot; names the first such rank.
    """
    without = [(peer, report.refusal) for peer, report in enumerate(reports) if report.refusal]
    numbers, refusals = ([], without) if without else _numbers(reports)
    if not refusals:
        return torch.device(CUDA, numbers[rank]), "asked for" if wanted == CUDA else "every rank has a GPU"
    peer, refusal = refusals[0]
    named = f"rank {peer} on {reports[peer].host}: {refusal}" if len(reports) > 1 else refusal
    if wanted == CUDA:
        raise DeviceError(f'device is "cuda" but {named}; or use "cpu".')
    return torch.device(CPU), named


def _numbers(reports: Sequence[DeviceReport]) -> tuple[list[int], list[tuple[int, str]]]:
    """The number of every rank's GPU, and the ranks that have none, with the reason."""
    numbers, refusals = [], []
    for rank, own in enumerate(reports):
        beside = [peer for peer, report in enumerate(reports) if report.host == own.host]
        local_rank = 0 if _each_sees_its_own([reports[peer].gpus for peer in beside]) else beside.index(rank)
        if local_rank > 0 and any(reports[peer].gpus != own.gpus for peer in beside):
            refusals.append((rank, "its GPUs overlap other ranks' there; show all ranks of a machine the same GPUs"))
        elif local_rank >= len(own.gpus):
            shared = f"{len(beside)} ranks share {len(own.gpus)} GPU(s)"
            refusals.append((rank, f"{shared}; start at most one rank per GPU"))
        numbers.append(local_rank)
    return numbers, refusals


def _each_sees_its_own(visible: Sequence[tuple[str, ...]]) -> bool:
    """Whether several processes see GPUs and no two of them the same one."""
    listed = [gpu for gpus in visible for gpu in gpus]
    return len(visible) > 1 and all(visible) and len(set(listed)) == len(listed)


def _visible_gpus() -> tuple[str, ...]:
    properties = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return tuple(str(getattr(found, "uuid", number)) for number, found in enumerate(properties))

"""Where the tables that GPU kernels read are placed: in device memory, or in host memory read over the bus.

The rule, for tables in the order given (topology before features):
  1. a table whose place was chosen by the user is placed there, or refused where it does not fit;
  2. any other is placed in device memory while it fits into what is free there minus the reserve (RESERVE_SHARE of the
     device's memory unless stated), which is left to batches, model and workspace;
  3. what does not fit there is placed in pinned host memory, which kernels read over the bus by unified addressing
     (UVA), and refused where the host lacks the memory.
`choose_places` is that rule on numbers alone; `measured_room` asks the device and the host for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fastsample_dist.device.pinned import pinned_copy
from fastsample_dist.memory_sizes import available_bytes, format_size

AUTO, DEVICE, PINNED, HOST = "auto", "device", "pinned", "host"
CHOICES = (AUTO, DEVICE, PINNED)
RESERVE_SHARE = 0.1


@dataclass(frozen=True)
class Table:
    """A table to be placed.

    Attributes:
      name: for the report: "topology", "features".
      num_bytes: its size.
      choice: "auto", or the place that the user wants: "device" or "pinned".
    """

    name: str
    num_bytes: int
    choice: str = AUTO


@dataclass(frozen=True)
class Room:
    """Memory that tables may fill.

    Attributes:
      device: whose kernels will read the tables; on the CPU every table stays where it is.
      device_bytes: free on the device.
      reserve_bytes: of these, left to everything else.
      host_bytes: that this process may pin.
    """

    device: torch.device
    device_bytes: int = 0
    reserve_bytes: int = 0
    host_bytes: int = 0

    def at_most(self, num_bytes: int | None) -> Room:
        """Room for so many bytes of tables on the device at most (None: no limit); what is cut off is reserve first."""
        cut = 0 if num_bytes is None else max(0, self.device_bytes - max(0, num_bytes))
        reserve = max(0, self.reserve_bytes - cut)
        return replace(self, device_bytes=self.device_bytes - cut, reserve_bytes=reserve)


@dataclass(frozen=True)
class Placement:
    """Where a table is; str() is one line for a report.

    Attributes:
      name: of the table.
      where: "device", "pinned", or "host": in memory or mapped, for kernels of the CPU.
      device: whose kernels read it.
      num_bytes: its size.
      why: in a few words.
    """

    name: str
    where: str
    device: torch.device
    num_bytes: int
    why: str

    def __str__(self) -> str:
        places = {
            DEVICE: f"memory of {self.device}",
            PINNED: f"pinned host memory, read by {self.device} over the bus",
            HOST: "host memory",
        }
        return f"{self.name}: {format_size(self.num_bytes)} in {places[self.where]} ({self.why})"

    def put(self, tensor: Tensor) -> Tensor:
        """The tensor in this place: itself where it is there already, else a copy."""
        return pinned_copy(tensor, self.device) if self.where == PINNED else tensor.to(self.device)


def choose_places(tables: Sequence[Table], room: Room) -> list[Placement]:
    """Where each table goes by the rule in the module's text; numbers in, values out.

    Args:
      tables: those that gain most from device memory first.
      room: what may be filled.
    Returns:
      A Placement per table.
    Raises:
      ValueError: an unknown choice, a table that fits nowhere or not where it was wanted, a choice without a GPU.
    """
    for table in tables:
        if table.choice not in CHOICES:
            raise ValueError(f"the place of the {table.name} is {table.choice!r}; expected {', '.join(CHOICES)}.")
    if room.device.type != "cuda":
        return [_on_host(table, room.device) for table in tables]
    left = {DEVICE: room.device_bytes, PINNED: room.host_bytes}
    found: dict[int, Placement] = {}
    for number in sorted(range(len(tables)), key=lambda i: tables[i].choice == AUTO):  # what the user chose comes first
        placement = _placed(tables[number], room, left)
        left[placement.where] -= placement.num_bytes
        found[number] = placement
    return [found[number] for number in range(len(tables))]


def measured_room(device: torch.device | str, reserve_bytes: int | None = None, ranks_on_host: int = 1) -> Room:
    """What a device and its host have left now.

    Args:
      device: whose kernels will read; the CPU has no room to fill.
      reserve_bytes: device memory to leave free; None takes RESERVE_SHARE of the device's memory.
      ranks_on_host: processes that pin tables on this host: each may take its share.
    Returns:
      Room. Memory that torch's allocator holds but does not use counts as free. A limit of this process
      (torch.cuda.set_per_process_memory_fraction, where torch can be asked for it) counts as all that there is.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return Room(device)
    free, total = torch.cuda.mem_get_info(device)
    used = torch.cuda.memory_allocated(device)
    free += torch.cuda.memory_reserved(device) - used
    limit = int(total * _process_share(device))
    reserve = int(limit * RESERVE_SHARE) if reserve_bytes is None else reserve_bytes
    return Room(device, max(0, min(free, limit - used)), reserve, available_bytes() // ranks_on_host)


def _process_share(device: torch.device) -> float:
    """Of a device's memory, what this process may allocate."""
    share = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # not in torch 2.4
    return 1.0 if share is None else share(device)


def _on_host(table: Table, device: torch.device) -> Placement:
    if table.choice != AUTO:
        raise ValueError(
            f"the {table.name} cannot be placed in {table.choice} memory: the device is {device}; choose a CUDA device."
        )
    return Placement(table.name, HOST, device, table.num_bytes, f"for kernels of the {device.type.upper()}")


def _placed(table: Table, room: Room, left: dict[str, int]) -> Placement:
    size = table.num_bytes
    fit = max(0, left[DEVICE] - room.reserve_bytes)
    state = f"{format_size(fit)} free there, {format_size(room.reserve_bytes)} more kept for batches"
    if table.choice == AUTO and size <= fit:
        return Placement(table.name, DEVICE, room.device, size, state)
    where = PINNED if table.choice == AUTO else table.choice
    if size > left[where]:
        raise ValueError(_refusal(table, where, room, left))
    why = "asked for" if table.choice != AUTO else f"the device's memory is too small: {state}"
    return Placement(table.name, where, room.device, size, why)


def _refusal(table: Table, where: str, room: Room, left: dict[str, int]) -> str:
    device, host = (format_size(left[place]) for place in (DEVICE, PINNED))
    remedy = "choose pinned or auto" if where == DEVICE else "use more ranks, or a smaller stored type"
    return (
        f"{table.name} takes {format_size(table.num_bytes)} of {where} memory, but {device} are free on "
        f"{room.device} and {host} can be pinned on the host; {remedy}."
    )

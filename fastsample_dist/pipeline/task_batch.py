"""Mini-batches as bytes, from the process that samples them to the one that trains on them.

`pack` gives a batch's head (everything but its tensors, pickled) and the tensors' memory as buffers; who copies the
buffers into memory that the other process maps (pipeline/task_queue.py) gives both to `unpack` there, whose batch reads
its tensors in that memory. Tensors that overlap in memory do so afterwards: the node ids of a sampled batch, of which
every layer's sources are a prefix, travel once. Tables of the graph, such as the original ids of all nodes, which both
processes have, are named, not copied. What models keep of an MFG (`MFG.derived`) stays behind.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastsample_dist.device.clock import Clock, Lap
from fastsample_dist.sampling.mfg import MFG, MiniBatch

_ALIGN = 16  # of a buffer's begin within its storage: no element type of a batch is wider

Place = tuple[int, int, torch.dtype, tuple[int, ...]]  # of a tensor: buffer, byte in it, dtype, shape


def pack(batch: MiniBatch, tables: Sequence[Tensor] = ()) -> tuple[bytes, list[memoryview]]:
    """A batch as (head, buffers).

    Args:
      batch: of any sampler; one on a GPU is copied to the host. It must not be changed while the buffers are in use.
      tables: tensors that the receiving process has too, such as graph.orig_ids.
    Returns:
      Bytes, and one-dimensional memoryviews of bytes over the batch's memory.
    Raises:
      ValueError: the batch has an attribute that cannot be pickled.
    """
    if batch.input_nodes.device.type != "cpu":
        batch = batch.to("cpu")
    written = io.BytesIO()
    pickler = _Pickler(written, tables)
    try:
        pickler.dump(batch)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the batch of step {batch.step} cannot be handed to another process ({error}); let the sampler add only "
            "tensors and plain values to it."
        ) from error
    places, buffers = _spans(pickler.tensors)
    return pickle.dumps((places, written.getvalue()), protocol=5), buffers


def unpack(head: bytes | memoryview, buffers: Sequence[memoryview], tables: Sequence[Tensor] = ()) -> MiniBatch:
    """The batch that was packed; its tensors read the buffers, so they are valid as long as these are.

    Args:
      head: of `pack`.
      buffers: of the same bytes as those of `pack`; writable, each at an address that 16 divides.
      tables: this process's, in the same order.
    """
    places, pickled = pickle.loads(head)
    tensors = [_tensor_at(buffers, place) for place in places]
    return _Unpickler(io.BytesIO(pickled), tensors, tables).load()


class _Pickler(pickle.Pickler):
    """Pickles a batch without its tensors, which are collected."""

    def __init__(self, file: io.BytesIO, tables: Sequence[Tensor]) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []
        self._tables = {_identity(table): number for number, table in enumerate(tables)}

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        """Name tables and tensors; the rest is pickled."""
        if type(obj) is not Tensor or obj.layout != torch.strided or obj.device.type != "cpu":
            return None
        if obj.numel() and _identity(obj) in self._tables:
            return "table", self._tables[_identity(obj)]
        self.tensors.append(obj.detach().contiguous())
        return "tensor", len(self.tensors) - 1

    def reducer_override(self, obj: Any) -> Any:
        """MFGs without what was derived of them; laps as their seconds, since marks of a GPU stay with it."""
        if type(obj) is MFG:
            return copyreg.__newobj__, (MFG,), vars(obj) | {"derived": {}}
        if type(obj) is Lap:
            return Lap, (Clock(), 0.0, obj.seconds)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor], tables: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._named = {"tensor": tensors, "table": tables}

    def persistent_load(self, pid: tuple[str, int]) -> Tensor:
        """The tensor of a name that persistent_id gave."""
        kind, number = pid
        return self._named[kind][number]


def _identity(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _spans(tensors: Sequence[Tensor]) -> tuple[list[Place], list[memoryview]]:
    """Where every tensor is in the buffers, and these: one for every run of memory that tensors cover together."""
    runs: list[list[Any]] = []  # [storage, first byte, end]
    places: list[Place] = [(0, 0, tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    found = {
        number: (tensor.untyped_storage(), tensor.storage_offset() * tensor.itemsize)
        for number, tensor in enumerate(tensors)
        if tensor.numel() > 0
    }
    for number in sorted(found, key=lambda number: (found[number][0].data_ptr(), found[number][1])):
        storage, first = found[number]
        if not runs or runs[-1][0].data_ptr() != storage.data_ptr() or first > runs[-1][2]:
            runs.append([storage, first // _ALIGN * _ALIGN, first])
        run = runs[-1]
        run[2] = max(run[2], first + tensors[number].nbytes)
        places[number] = (len(runs) - 1, first - run[1], *places[number][2:])
    return places, [_bytes_of(storage, first, end) for storage, first, end in runs]


def _bytes_of(storage: torch.UntypedStorage, first: int, end: int) -> memoryview:
    own = torch.empty(0, dtype=torch.uint8).set_(storage, first, (end - first,))
    return memoryview(own.numpy())


def _tensor_at(buffers: Sequence[memoryview], place: Place) -> Tensor:
    buffer, first, dtype, shape = place
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffers[buffer], dtype=dtype, count=count, offset=first).view(shape)

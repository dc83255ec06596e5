"""CapturedSampler: the per-hop kernels of one batch size, recorded once as a CUDA graph and replayed for every step.

Everything that the kernels need lies at fixed places. Where the seeds are, the step, and where the batch is to go are
words of host memory that the first kernel reads; the batch's arrays, as large as their bounds, are written by every
replay again, and the last kernel copies them, as long as they have become, into memory that outlives the next replay.
Replaying saves the launches of a batch, which is most of the time of a small one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import sizeof
from typing import Protocol

import torch
from torch import Tensor

from fastsample_dist.ops import checks, cuda
from fastsample_dist.ops.cuda_batch import EnqueuedBatch, Replay, Request
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.ops.read_back import HostWords
from fastsample_dist.ops.sample_spec import SampleSpec
from fastsample_dist.ops.sampling_graph import SampledHops

WARM_UPS = 2  # runs before recording, so that modules are loaded
_RECORDING = threading.Lock()  # torch's captures begin by a wait for the device, which would break another's


class Recorder(Protocol):
    """What records device work."""

    def record(self, enqueue: Callable[[], object]) -> None:
        """Record the work that `enqueue` enqueues, into arrays that every replay writes again."""
        ...

    def replay(self) -> None:
        """Enqueue the recorded work on the current stream."""
        ...

    def follow(self) -> torch.cuda.Stream | None:
        """Make the current stream, which is returned, wait for what the stream of the call before was given: it reads
        the arrays, too.
        """
        ...


class CudaGraphRecorder:
    """Records into a torch.cuda.CUDAGraph.

    Args:
      device: that the work runs on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._graph, self._stream = device, torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)

    def record(self, enqueue: Callable[[], object]) -> None:
        """See Recorder. Other threads may enqueue work on the GPU and allocate memory meanwhile, and record when it is
        done. They may neither wait for the whole device nor draw torch's random numbers on it.

        The stream is one of this device: without it torch.cuda.graph takes one of the device of its first recording.
        """
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                enqueue()
        torch.cuda.current_stream(self._device).wait_stream(side)
        own_thread = {"stream": side, "capture_error_mode": "thread_local"}
        with _RECORDING, torch.cuda.device(self._device), torch.cuda.graph(self._graph, **own_thread):
            enqueue()

    def replay(self) -> None:
        """See Recorder."""
        self._graph.replay()

    def follow(self) -> torch.cuda.Stream:
        """See Recorder. What one stream is given follows in order already."""
        stream = torch.cuda.current_stream(self._device)
        if stream != self._stream:
            stream.wait_stream(self._stream)
            self._stream = stream
        return stream


class CapturedSampler:
    """Samples batches of one size by replaying recorded kernels.

    Args:
      graph: on a GPU.
      spec: how neighbours are drawn, as for `ops.sample_mfg`.
      num_seeds: seeds of every batch.
      max_bytes: most device memory that the recorded batch may take.
      recorder: None records a CUDA graph.
    Raises:
      ValueError: num_seeds out of range; the batch's bounds need more than max_bytes.
    """

    def __init__(
        self,
        graph: CudaSamplingGraph,
        spec: SampleSpec,
        num_seeds: int,
        *,
        max_bytes: int = 4 << 30,
        recorder: Recorder | None = None,
    ) -> None:
        num_seeds = checks.whole("num_seeds", num_seeds, 0)
        self.graph, self.spec, self.num_seeds = graph, spec, num_seeds
        needed = graph.batch_bytes(num_seeds, spec)
        checks.require(
            needed <= max_bytes,
            f"a batch of {num_seeds} seeds may take {needed} bytes but max_bytes is {max_bytes}; raise it, take fewer "
            "seeds or smaller fanouts, or sample without recording.",
        )
        checks.require(
            num_seeds <= graph.num_rows, f"num_seeds is {num_seeds} but the graph has {graph.num_rows} nodes."
        )
        # Seeds that any graph takes, for recording: the first rows. The arrays are copied onto themselves.
        first_rows = torch.arange(num_seeds, dtype=graph.dtype, device=graph.device)
        replay = torch.zeros(sizeof(Replay) // 8, dtype=torch.int64, pin_memory=graph.device.type == "cuda")
        self._replay = Replay.from_address(replay.data_ptr())
        self._replay.ids = first_rows.data_ptr()
        table = graph.new_table(num_seeds, spec)  # its own: replays of other samplers may run meanwhile
        self._batch = graph.enqueue(first_rows, spec, 0, replay=replay, table=table)
        self._state = HostWords(graph.device, self._batch.layout.sizes.state_words)

        def enqueue() -> None:
            graph.enqueue_into(self._batch)
            graph.hand_out(self._batch, self._state)

        self._recorder = CudaGraphRecorder(graph.device) if recorder is None else recorder
        self._recorder.record(enqueue)

    def sample(self, seeds: Tensor, step: int = 0) -> SampledHops:
        """All hops of one mini-batch; see `ops.sample_mfg`. The current stream may be another one in every call.

        Raises:
          ValueError: another number of seeds than was recorded; else as `ops.sample_mfg`.
        """
        seeds = self.graph.on_device("seeds", seeds)
        if seeds.numel() != self.num_seeds:
            raise ValueError(
                f"seeds has {seeds.numel()} entries, but {self.num_seeds} were recorded; sample other sizes without "
                "recording."
            )
        step = checks.whole("step", step, 0, checks.LARGEST)
        recorded, replay = self._batch, self._replay
        stream, memory = cuda.current_stream(self.graph.device), torch.empty_like(recorded.memory)
        # The replay before has read its own: its batch has been waited for.
        replay.step, replay.ids = step, seeds.data_ptr()
        replay.moved_by = memory.data_ptr() - recorded.memory.data_ptr()
        request = Request(seeds, self.spec, step, kernel=recorded.request.kernel)
        batch = EnqueuedBatch(request, recorded.layout, memory, recorded.workspace, None)
        try:
            self._recorder.replay()
            self._state.mark(stream)
            return self.graph.finish(batch, self._state.read)
        except BaseException:  # an interrupt, perhaps before the batch has been waited for
            self._state.mark(stream)
            self._state.read()
            raise

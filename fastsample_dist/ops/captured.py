"""CapturedSampler: the per-hop kernels of one batch size, recorded once as a CUDA graph and replayed for every step.

Everything that the kernels need lies at fixed places: seeds and step are copied there before a replay, and the batch's
arrays, as large as their bounds, are written by every replay again. Replaying saves the launches of a batch, which is
most of the time of a small one; a batch is copied out, at the size of its bounds, so that it outlives the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from fastsample_dist.ops import checks
from fastsample_dist.ops.cuda_batch import read_back
from fastsample_dist.ops.cuda_sampling import CudaSamplingGraph
from fastsample_dist.ops.sample_spec import SampleSpec
from fastsample_dist.ops.sampling_graph import SampledHops

WARM_UPS = 2  # runs before recording, so that modules are loaded


class Recorder(Protocol):
    """What records device work."""

    def record(self, enqueue: Callable[[], object]) -> None:
        """Record the work that `enqueue` enqueues, into arrays that every replay writes again."""
        ...

    def replay(self) -> None:
        """Enqueue the recorded work on the current stream."""
        ...

    def mark_reads(self) -> None:
        """What the current stream has been given so far reads the recorded work's arrays."""
        ...

    def wait_for_reads(self) -> None:
        """Make the current stream wait for what was marked last."""
        ...


class CudaGraphRecorder:
    """Records into a torch.cuda.CUDAGraph.

    Args:
      device: that the work runs on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._graph, self._reads = device, torch.cuda.CUDAGraph(), torch.cuda.Event()

    def record(self, enqueue: Callable[[], object]) -> None:
        """See Recorder."""
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                enqueue()
        torch.cuda.current_stream(self._device).wait_stream(side)
        with torch.cuda.device(self._device), torch.cuda.graph(self._graph):
            enqueue()

    def replay(self) -> None:
        """See Recorder."""
        self._graph.replay()

    def mark_reads(self) -> None:
        """See Recorder."""
        self._reads.record(torch.cuda.current_stream(self._device))

    def wait_for_reads(self) -> None:
        """See Recorder."""
        torch.cuda.current_stream(self._device).wait_event(self._reads)


class CapturedSampler:
    """Samples batches of one size by replaying recorded kernels.

    Args:
      graph: on a GPU.
      spec: how neighbours are drawn, as for `ops.sample_mfg`.
      num_seeds: seeds of every batch.
      max_bytes: most device memory that the recorded batch may take.
      recorder: None records a CUDA graph.
    Raises:
      ValueError: the batch's bounds need more than max_bytes.
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
        self.graph, self.spec, self.num_seeds = graph, spec, num_seeds
        needed = graph.batch_bytes(num_seeds, spec)
        checks.require(
            needed <= max_bytes,
            f"a batch of {num_seeds} seeds may take {needed} bytes but max_bytes is {max_bytes}; raise it, take fewer "
            "seeds or smaller fanouts, or sample without recording.",
        )
        # Seeds that any graph takes, for recording: the first rows.
        checks.require(
            num_seeds <= graph.num_rows, f"num_seeds is {num_seeds} but the graph has {graph.num_rows} nodes."
        )
        self._seeds = torch.arange(num_seeds, dtype=graph.dtype, device=graph.device)
        self._step = torch.zeros(1, dtype=torch.int64, device=graph.device)
        self._recorder = CudaGraphRecorder(graph.device) if recorder is None else recorder
        table = graph.new_table(num_seeds, spec)  # its own: replays of other samplers may run meanwhile
        self._batch = graph.enqueue(self._seeds, spec, 0, step_on_device=self._step, table=table)
        self._recorder.record(lambda: graph.enqueue_into(self._batch))
        self._recorder.mark_reads()

    def sample(self, seeds: Tensor, step: int = 0) -> SampledHops:
        """All hops of one mini-batch; see `ops.sample_mfg`. The current stream may be another one in every call.

        Raises:
          ValueError: another number of seeds than was recorded; else as `ops.sample_mfg`.
        """
        seeds = self.graph.row_ids("seeds", seeds)
        checks.require(
            seeds.numel() == self.num_seeds,
            f"seeds has {seeds.numel()} entries, but {self.num_seeds} were recorded; sample other sizes without "
            "recording.",
        )
        checks.require(step >= 0, f"step is {step}; expected 0 or more.")
        self._recorder.wait_for_reads()  # the copies of the batch before, on whichever stream
        self._seeds.copy_(seeds, non_blocking=True)
        self._step.fill_(step)
        self._recorder.replay()
        state = read_back(self._batch.state)
        copy = replace(self._batch, memory=self._batch.memory.clone())
        self._recorder.mark_reads()
        return self.graph.finish(copy, state)

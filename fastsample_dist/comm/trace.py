"""A timeline of what every rank did, in Chrome's trace format (load it at ui.perfetto.dev or chrome://tracing).

A rank notes spans (name, begin, length, thread) in memory. To put the ranks on one clock, all take their zero right
after one barrier, so the error is the time between their leaving it (tens of microseconds on one machine). `write`
gathers the spans at rank 0.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fastsample_dist.comm.protocol import Gathers
from fastsample_dist.files import write_text

MAX_EVENTS = 1_000_000  # per rank, about 200 MB; later spans are counted, not kept


class Trace:
    """Spans of one rank. Attach it to a communicator: `comm.watch.trace = Trace.start(comm)`.

    Collective: every rank must call `start` and `write`.

    Attributes:
      dropped: spans beyond MAX_EVENTS.
    """

    def __init__(self, zero_ns: int = 0) -> None:
        self.dropped = 0
        self._zero_ns = zero_ns
        self._events: list[tuple[str, str, int, int, int, int]] = []

    @classmethod
    def start(cls, comm: Gathers) -> Trace:
        """A trace whose zero is now, on all ranks alike. Collective: every rank must call this."""
        comm.barrier(purpose="trace")
        return cls(time.perf_counter_ns())

    def add(self, name: str, category: str, begin_ns: int, step: int) -> None:
        """Note a span that ends now and began at `begin_ns` (time.perf_counter_ns)."""
        if len(self._events) >= MAX_EVENTS:
            self.dropped += 1
            return
        length_ns = time.perf_counter_ns() - begin_ns
        self._events.append((name, category, begin_ns - self._zero_ns, length_ns, threading.get_native_id(), step))

    @contextmanager
    def span(
        self, name: str, category: str = "stage", step: int = -1, finish: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Note what happens in the block, also when it raises; `finish` waits until what was begun there is done."""
        begin_ns = time.perf_counter_ns()
        try:
            yield
            if finish is not None:
                finish()
        finally:
            self.add(name, category, begin_ns, step)

    def write(self, path: str | Path, comm: Gathers) -> None:
        """Write all ranks' spans to one file; it appears complete. Collective: every rank must call this.

        Args:
          path: of the JSON file; used on rank 0.
          comm: over all ranks.
        Raises:
          OSError: the file cannot be written (rank 0); it names the file.
        """
        names = {threading.main_thread().native_id: "main"}
        own = (socket.gethostname(), names, self._events, self.dropped)
        everybody = comm.all_gather_object(own, purpose="trace")
        if comm.rank != 0:
            return
        write_text(path, json.dumps({"traceEvents": list(_chrome_events(everybody)), "displayTimeUnit": "ms"}))


def _chrome_events(everybody: list[tuple]) -> Iterator[dict]:
    """Metadata and complete ("X") events; process = rank, times in microseconds."""
    for rank, (host, names, events, dropped) in enumerate(everybody):
        title = f"rank {rank} on {host}" + (f" ({dropped} later spans not kept)" if dropped else "")
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": title}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        for thread in sorted({event[4] for event in events}):
            yield {
                "ph": "M", "name": "thread_name", "pid": rank, "tid": thread,
                "args": {"name": names.get(thread, "background")},
            }  # fmt: skip
        for name, category, begin_ns, length_ns, thread, step in events:
            yield {
                "ph": "X", "name": name, "cat": category, "pid": rank, "tid": thread, "ts": begin_ns / 1e3,
                "dur": length_ns / 1e3, **({"args": {"step": step}} if step >= 0 else {}),
            }  # fmt: skip

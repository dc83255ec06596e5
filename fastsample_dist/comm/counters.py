"""Calls and bytes by purpose, shared by a communicator and its duplicates."""

from __future__ import annotations

import threading


class Counters:
    """Calls and bytes by purpose; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, list[int]] = {}

    def add(self, purpose: str, bytes_sent: int, bytes_received: int, *, calls: int = 1) -> None:
        """Add a call of `purpose` and the bytes it moved; calls=0: they came with another purpose's."""
        with self._lock:
            total = self._totals.setdefault(purpose, [0, 0, 0])
            total[0] += calls
            total[1] += bytes_sent
            total[2] += bytes_received

    def snapshot(self) -> dict[str, dict[str, int]]:
        """{purpose: {"calls", "bytes_sent", "bytes_received"}}, a copy."""
        with self._lock:
            names = ("calls", "bytes_sent", "bytes_received")
            return {purpose: dict(zip(names, total, strict=True)) for purpose, total in self._totals.items()}

    def reset(self) -> None:
        """Forget everything counted so far."""
        with self._lock:
            self._totals.clear()

"""What long work reports while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# Of partitioning; "adjacency" where it is made in files, "order" where another order of the nodes is asked for,
# "cluster" with clusters.
STEPS = ("topology", "adjacency", "order", "assign", "balance", "cluster", "write", "measure")


class Progress:
    """What partitioning, checking and measuring report to; this one shows nothing, that of the command line does."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Surrounds each step (partitioning: STEPS) in turn."""
        yield

    def bytes_total(self, count: int) -> None:
        """How many bytes the running step is going to report, at most."""

    def bytes_done(self, count: int) -> None:
        """This many more of them are done."""

    def memory_held(self, count: int) -> None:
        """Bytes that this process and one that it started hold together now; called while that one works."""

"""What the modules below `Communicator` need of one; they cannot import it, because it is made of them."""

from __future__ import annotations

from typing import Protocol


class Gathers(Protocol):
    """Ranks that can wait for each other and exchange objects; see Communicator."""

    rank: int
    run_ranks: tuple[int, ...]

    def barrier(self, *, purpose: str = "barrier") -> None:
        """See Communicator."""

    def all_gather_object(self, obj: object, *, purpose: str) -> list:
        """See Communicator."""

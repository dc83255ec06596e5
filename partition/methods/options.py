"""The options of streaming methods: how often they go over the nodes, in which order, and what they hold meanwhile."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from fastsample_dist.ops import checks
from fastsample_dist.partition.methods import METHODS

ORDERS = ("given", "bfs")  # ascending ids; breadth first (order.py)


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """What methods read that name it (`Method.reads`).

    Attributes:
      passes: over the nodes, at least 1; None: as many as the method takes by default.
      order: one of ORDERS, in which the nodes come.
      buffer: bytes of the graph that the method may hold; None: its default.
    """

    passes: int | None = None
    order: str = ORDERS[0]
    buffer: int | None = None

    def check(self, method: str | None = None) -> None:
        """Refuse values that there are not and, for a method, options that it does not read.

        Args:
          method: its name; None: any.
        Raises:
          ValueError: one of these.
        """
        for name in ("passes", "buffer"):
            value = getattr(self, name)
            if value is not None:
                checks.whole(name, value, 1)
        checks.one_of("order", self.order, ORDERS)
        for name in self.given() if method is not None else ():
            if name not in METHODS[method].reads:
                readers = ", ".join(other.name for other in METHODS.values() if name in other.reads)
                raise ValueError(
                    f"{name} does not go with method {method}; leave it out, or take one that reads it: {readers}."
                )

    def given(self) -> dict[str, int | str]:
        """The options that are not left at their defaults."""
        defaults = {item.name: item.default for item in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    def read_by(self, method: str) -> StreamOptions:
        """The options that a method reads, the others left at their defaults."""
        return StreamOptions(**{name: value for name, value in self.given().items() if name in METHODS[method].reads})

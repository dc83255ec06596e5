"""FetchTally: where the rows of fetches came from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from fastsample_dist.ops import Located


@dataclass
class FetchTally:
    """Rows by where they were read; together they are the nodes that were asked for.

    Attributes:
      own: of the rank's own nodes.
      neighbour: of other ranks' nodes, read where they lie.
      cached: copies in a cache.
      kept: copies that an earlier batch has left.
      exchanged: received from their owners.
    """

    own: int = 0
    neighbour: int = 0
    cached: int = 0
    kept: int = 0
    exchanged: int = 0

    @classmethod
    def of(cls, located: Located) -> FetchTally:
        """Of one fetch."""
        return cls(located.num_own, located.num_near, located.num_cached, 0, sum(located.counts))

    @property
    def inputs(self) -> int:
        """All rows."""
        return sum(asdict(self).values())

    def add(self, other: FetchTally) -> None:
        """Count another's rows too."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def since(self, before: FetchTally) -> FetchTally:
        """What has been added since it was `before`."""
        return FetchTally(**{name: value - getattr(before, name) for name, value in asdict(self).items()})

"""How much memory may be used, and how large pieces of work may be to stay within it.

The limit is on the resident memory of the process. What it holds already (Python, torch) and the arrays with an entry
per node come off first; the rest is for edges, a piece or a bucket at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastsample_dist.memory_sizes import format_size

DEFAULT_SHARE = 0.8  # of what is available
NODE_BYTES = 18  # per node at the widest place: offsets, ids and parts of `random`; old and new ids while writing
LEVELLED_NODE_BYTES = 24  # with a method whose parts are levelled: offsets, parts, splits, ids of the nodes of parts
PIECE_EDGE_BYTES = 80  # per listed edge of a piece: as read, as 64-bit ids, as keys in both directions
WRITE_EDGE_BYTES = 48  # per edge of a piece of rows: as read, renamed, and their offsets
SLACK_BYTES = 48 << 20  # allocator, libraries' own buffers, a chunk of features
BASE_SPREAD_BYTES = 8 << 20  # the program itself differs by this much from run to run (5 MB seen): added to the least
MIN_PIECE, MAX_PIECE, MAX_BUCKET = 1 << 16, 1 << 21, 1 << 25  # edges; larger ones are no faster


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """Sizes of the pieces of work.

    Attributes:
      limit: bytes this process may hold.
      base: bytes it holds before the work.
      base_is: what these are, for messages.
      num_nodes: of the graph.
      sort_edge_bytes: per edge of a bucket that is being sorted.
      row_edge_bytes: per edge of the longest row where it is written.
      node_bytes: per node at the widest place.
      edge_map_bytes: of an entry of the edge map; 0 without.
    """

    limit: int
    base: int
    num_nodes: int
    sort_edge_bytes: int
    row_edge_bytes: int = WRITE_EDGE_BYTES
    node_bytes: int = NODE_BYTES
    edge_map_bytes: int = 0
    base_is: str = "the program itself"

    @property
    def rest(self) -> int:
        """Bytes left for edges."""
        return self.limit - self.base - SLACK_BYTES - self.node_bytes * self.num_nodes

    @property
    def piece_edge_bytes(self) -> int:
        """Memory per listed edge of a piece: in both directions, of this piece and the one before."""
        return PIECE_EDGE_BYTES + 4 * self.edge_map_bytes

    @property
    def piece_edges(self) -> int:
        """Listed edges to read at a time."""
        return max(MIN_PIECE, min(MAX_PIECE, self.rest // self.piece_edge_bytes))

    @property
    def bucket_edges(self) -> int:
        """Edges of a bucket, unless one row has more."""
        return max(MIN_PIECE, min(MAX_BUCKET, self.rest // self.sort_edge_bytes))

    @property
    def write_edges(self) -> int:
        """Edges to rename and write at a time, unless one row has more."""
        return max(MIN_PIECE, min(MAX_PIECE, self.rest // WRITE_EDGE_BYTES))

    def least(self, longest_row: int = 0) -> int:
        """The smallest limit that can work, given the most edges of one node."""
        fixed = self.limit - self.rest
        row = max(self.sort_edge_bytes, self.row_edge_bytes) * longest_row
        return fixed + max(MIN_PIECE * max(self.piece_edge_bytes, self.sort_edge_bytes), row)

    def check(self, longest_row: int = 0, edges: str = "in-edges") -> None:
        """Refuse a limit that cannot work.

        Args:
          longest_row: the most edges of one node.
          edges: what they are called.
        Raises:
          ValueError: it is below `least`.
        """
        least = self.least(longest_row)
        if self.limit < least:
            enough = format_size(least + BASE_SPREAD_BYTES)
            known = f" with a node of {longest_row} {edges}" if longest_row else ""
            raise ValueError(
                f"the memory limit is {format_size(self.limit)} but {self.num_nodes} nodes{known} take at least "
                f"{enough} ({format_size(self.base)} of it {self.base_is}); pass --memory-limit {enough} or more."
            )

"""How many nodes the id tables of a graph's batches have room for.

A batch could bring far more nodes than it does: it is bounded by its fanouts, as if no two rows shared a neighbour. A
table for all that can come is then large: 888 MB on a graph of 111 million nodes. So large tables are made for as many
nodes as batches of their kind have had, and where one finds too little room the batch is sampled again with room for
all (csrc/cuda/id_table.cuh: table_room). Sizes change no result.
"""

from __future__ import annotations

from fastsample_dist.ops.kernel_choice import BatchKind, kind_of
from fastsample_dist.ops.sample_spec import SampleSpec

ALL = 0  # room for all nodes that can come
FIRST_SHARE = 64  # before anything is known, a table has room for one in so many of the graph's nodes


class TableRoom:
    """The rooms of one graph's tables.

    Args:
      num_rows: nodes of the graph.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._most: dict[BatchKind, int] = {}  # nodes of the largest batch so far

    def expected(self, spec: SampleSpec, num_seeds: int) -> int:
        """Nodes that a batch is expected to have at most: a power of two."""
        most = self._most.get(kind_of(spec, num_seeds))
        if most is None:
            most = max(2 * num_seeds, self._num_rows // FIRST_SHARE)
        return 1 << max(0, most - 1).bit_length()

    def note(self, spec: SampleSpec, num_seeds: int, num_nodes: int) -> None:
        """Take in how many nodes a batch had."""
        kind = kind_of(spec, num_seeds)
        if num_nodes > self._most.get(kind, 0):
            self._most[kind] = num_nodes

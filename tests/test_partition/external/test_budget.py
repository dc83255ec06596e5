"""The plan of pieces."""

import pytest

from fastsample_dist.memory_sizes import parse_bytes
from fastsample_dist.partition.external import budget as memory
from fastsample_dist.partition.external.budget import MemoryBudget


@pytest.mark.parametrize("num_nodes", [1, 10**6, 10**8])
@pytest.mark.parametrize("longest_row", [0, 10**3, 10**7])
def test_least_is_the_least(num_nodes, longest_row):
    def plan(limit: int) -> MemoryBudget:
        return MemoryBudget(limit=limit, base=230_000_000, num_nodes=num_nodes, sort_edge_bytes=16)

    least = plan(10**9).least(longest_row)
    plan(least).check(longest_row)
    with pytest.raises(ValueError, match="take at least"):
        plan(least - 1).check(longest_row)


def test_limit_that_is_stated_works_when_the_program_is_a_little_larger():
    facts = {"num_nodes": 1000, "sort_edge_bytes": 16}
    with pytest.raises(ValueError) as caught:
        MemoryBudget(limit=10**7, base=230_000_000, **facts).check()
    stated = parse_bytes(str(caught.value).split("pass --memory-limit ")[1].split(" ")[0])
    MemoryBudget(limit=stated, base=234_000_000, **facts).check()


def test_pieces_fit_into_the_rest():
    plan = MemoryBudget(limit=10**9, base=230_000_000, num_nodes=10**6, sort_edge_bytes=16)
    assert plan.bucket_edges * 16 <= plan.rest
    assert plan.piece_edges * memory.PIECE_EDGE_BYTES <= plan.rest
    assert plan.write_edges * memory.WRITE_EDGE_BYTES <= plan.rest

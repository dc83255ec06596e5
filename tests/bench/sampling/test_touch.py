"""The touch limit: the reads are those that were asked for, however they are requested."""

import pytest
import torch

from fastsample_dist.bench.sampling.touch import HUGE_PAGE, Prefetch, TouchLimit, huge_page_bytes, read_sum

MASK = 2**64 - 1


def oracle(first, second, num_reads, seed):
    """The sum by definition: positions from a mix of the counter, elements as unsigned integers."""
    total = 0
    columns = [(x.tolist(), 2 ** (8 * x.element_size())) for x in (first, second)]
    for counter in range(seed, seed + num_reads):
        word = counter * 0x9E3779B97F4A7C15 & MASK
        word ^= word >> 32
        word = word * 0xD6E8FEB86659FD93 & MASK
        turned = (word << 32 | word >> 32) & MASK
        for (values, modulus), drawn in zip(columns, (word, turned), strict=True):
            total += values[drawn * len(values) >> 64] % modulus
    return total & MASK


@pytest.mark.parametrize("first", [torch.int32, torch.int64])
@pytest.mark.parametrize("second", [torch.int32, torch.int64])
def test_the_sum_is_that_of_the_elements_drawn(first, second):
    one, other = torch.arange(-50, 951).to(first), torch.arange(7, 260).to(second) * 3
    found = read_sum(one, other, 500, threads=1, way=Prefetch(8, 1), seed=2**40)
    assert found == oracle(one, other, 500, 2**40)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_the_sum_depends_on_neither_threads_nor_prefetching(threads):
    one, other = torch.arange(1000, dtype=torch.int32), torch.arange(64)
    sums = {
        read_sum(one, other, 5000, threads=threads, way=Prefetch(ahead, level), seed=3)
        for ahead in (0, 5, 128)
        for level in (1, 2)
    }
    assert sums == {oracle(one, other, 5000, 3)}


def test_positions_cover_the_arrays():
    counts = torch.zeros(16, dtype=torch.int64)
    for place in range(16):  # which elements are read: one of them is 1, the others 0
        marked = torch.zeros(16, dtype=torch.int64)
        marked[place] = 1
        counts[place] = read_sum(marked, torch.zeros(1, dtype=torch.int64), 1600, threads=1, way=Prefetch(0, 1), seed=0)
    assert int(counts.sum()) == 1600
    assert int(counts.min()) > 50 and int(counts.max()) < 150  # 100 expected, standard deviation 10


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (torch.empty(0, dtype=torch.int32), torch.ones(1), "arrays of 0 and 1 elements; expected at least 1"),
        (torch.ones(1, dtype=torch.int16), torch.ones(1), "elements of 2 bytes; expected 4 or 8"),
    ],
)
def test_refusals(first, second, message):
    with pytest.raises(ValueError, match=message):
        read_sum(first, second, 10, threads=1, way=Prefetch(0, 1), seed=0)


@pytest.mark.parametrize(
    ("dtype", "num_distinct", "num_bytes"),
    [(torch.int32, 1000, 2048 * 8), (torch.int32, 1024, 2048 * 8), (torch.int32, 1025, 4096 * 8),
     (torch.int64, 1000, 2048 * 16), (torch.int32, 1, 2 * 8)],
)  # fmt: skip
def test_the_table_has_twice_the_slots_of_a_batch(dtype, num_distinct, num_bytes):
    limit = TouchLimit(torch.zeros(10, dtype=dtype), num_distinct)
    assert limit.table.numel() * limit.table.element_size() == num_bytes
    assert limit.table.data_ptr() % HUGE_PAGE == 0


def test_tuning_gives_a_way_and_rates_are_positive():
    limit = TouchLimit(torch.zeros(1000, dtype=torch.int32), 100)
    way = limit.tune(1)
    assert way.level in (1, 2) and way.ahead >= 0
    assert limit.rate(1000, 1, way, 0) > 0


def test_huge_pages_are_at_most_the_tensor():
    tensor = torch.ones(1 << 16)
    found = huge_page_bytes(tensor)
    assert found is None or 0 <= found <= tensor.numel() * 4

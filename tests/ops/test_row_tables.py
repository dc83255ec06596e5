"""gather_rows and merge_rows on CUDA: the CPU's bits from every kind of table, and what becomes of a bad id."""

import re

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import RowCache, row_tables
from tests.grids import grid

NARROW = (torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.float32, torch.float64)
SCHEDULES = grid(range(4), gate=[0, 3])


def draw(shape, dtype):
    """Values of every kind that a type has, except NaN."""
    values = torch.randn(shape) * 50
    return values.to(dtype) if dtype.is_floating_point else (values.abs() % 100).to(dtype)


def misaligned(tensor, num_bytes):
    """The same values in memory that begins `num_bytes` after an aligned place."""
    memory = torch.zeros(tensor.nbytes + 256, dtype=torch.uint8, device=tensor.device)
    start = -memory.data_ptr() % 128 + num_bytes
    found = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return found.copy_(tensor)


def set_schedule(device, seed):
    if device.is_emulated:
        device.set_schedule(seed)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(5)


@pytest.mark.parametrize("dtype", [*NARROW, torch.int64, torch.bool])
@pytest.mark.parametrize(
    "shape",
    grid([(50, 7), (50, 128), (50,), (50, 2, 3), (50, 0), (50, 100), (50, 602)], gate=[(50, 7), (50, 128), (50,)]),
)
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_gathered_rows_are_the_cpus(cuda_device, dtype, shape, id_dtype):
    rows = draw(shape, torch.int64).bool() if dtype == torch.bool else draw(shape, dtype)
    ids = torch.randint(0, 50, (37,)).to(id_dtype)
    gathered = cuda_device.kernel("gather_rows")(cuda_device.put(rows), cuda_device.put(ids))
    assert torch.equal(gathered.cpu(), ops.gather_rows(rows, ids))


@pytest.mark.parametrize("offset", grid([1, 2, 4, 8, 16, 48, 64, 100], gate=[1, 16, 100]))
@pytest.mark.parametrize("width", [1, 3, 16, 31, 32, 33, 64, 128, 129, 1000])
def test_any_alignment_and_width(cuda_device, offset, width):
    rows = draw((20, width), torch.uint8)
    ids = torch.randint(0, 20, (23,))
    table = misaligned(cuda_device.put(rows), offset)
    gathered = cuda_device.kernel("gather_rows")(table, cuda_device.put(ids))
    assert torch.equal(gathered.cpu(), rows[ids])


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("count", [1, 63, 700])
def test_any_number_of_ids_under_any_schedule(cuda_device, count, seed):
    set_schedule(cuda_device, seed)
    rows, ids = draw((90, 20), torch.float32), torch.randint(0, 90, (count,), dtype=torch.int32)
    gathered = cuda_device.kernel("gather_rows")(cuda_device.put(rows), cuda_device.put(ids))
    assert torch.equal(gathered.cpu(), rows[ids.long()])


def test_gathering_no_ids_gives_no_rows(cuda_device):
    ids = cuda_device.put(torch.empty(0, dtype=torch.int64))
    assert cuda_device.kernel("gather_rows")(cuda_device.put(torch.rand(4, 3)), ids).shape == (0, 3)


@pytest.mark.parametrize("place_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("width", [8, 25, 130])
def test_cached_rows_come_from_the_cache_and_the_others_from_the_table(cuda_device, dtype, width, place_dtype):
    rows, copies = draw((60, width), dtype), draw((13, width), dtype)  # unlike the table's, to be told apart
    cached = torch.randperm(60)[:13]
    places = torch.full((60,), -1, dtype=place_dtype)
    places[cached] = torch.arange(13, dtype=place_dtype)
    ids = torch.randint(0, 60, (80,))
    expected = torch.where((places[ids] >= 0)[:, None], copies[places[ids].clamp(min=0).long()], rows[ids])
    put = cuda_device.put
    gathered = cuda_device.kernel("gather_rows")(put(rows), put(ids), put(copies), put(places))
    assert torch.equal(gathered.cpu(), expected)
    merged = cuda_device.kernel("merge_rows")(
        put(rows), put(rows[:0]), put(ids), torch.float64, put(copies), put(places)
    )
    assert torch.equal(merged.cpu(), expected.double())


def test_a_slot_beyond_the_cache_is_read_from_the_table(cuda_device):
    rows, put = torch.rand(5, 4), cuda_device.put
    places = put(torch.tensor([9, -1, 0, 1, -7]))
    gathered = cuda_device.kernel("gather_rows")(put(rows), put(torch.arange(5)), put(rows[2:3]), places)
    assert torch.equal(gathered.cpu(), rows)


def test_a_cache_of_ids_holds_their_rows():
    table, ids = torch.rand(9, 3), torch.tensor([7, 2])
    cache = RowCache.of(table, ids, "cpu")
    assert torch.equal(cache.rows, table[ids]) and cache.places.tolist() == [-1, -1, 1, -1, -1, -1, -1, 0, -1]
    assert cache.num_bytes == 2 * 12 + 9 * 4
    assert torch.equal(ops.gather_rows(table, torch.arange(9), cache), table)
    assert torch.equal(ops.merge_rows(table, table[:0], torch.arange(9), None, cache), table)


def test_a_cache_of_repeated_ids_is_refused():
    with pytest.raises(ValueError, match="the ids to be cached repeat"):
        RowCache.of(torch.rand(9, 3), torch.tensor([2, 2]), "cpu")


@pytest.mark.parametrize(
    ("rows", "places", "message"),
    [
        (torch.rand(2, 4), torch.zeros(9, dtype=torch.int64), r"rows of shape \(4,\); expected .* shape \(3,\)"),
        (torch.rand(2, 3).half(), torch.zeros(9, dtype=torch.int64), "holds torch.float16 rows"),
        (torch.rand(2, 3), torch.zeros(8, dtype=torch.int64), r"places are torch.int64 of shape \(8,\).*\(9,\)"),
        (torch.rand(2, 3), torch.zeros(9), "places are torch.float32"),
    ],
)
def test_a_cache_that_does_not_fit_its_table_is_refused(rows, places, message):
    with pytest.raises(ValueError, match=message):
        ops.gather_rows(torch.rand(9, 3), torch.tensor([0]), RowCache(rows, places))


@pytest.mark.parametrize("in_dtype", NARROW)
@pytest.mark.parametrize("out_dtype", [None, torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [37, 64])
def test_merged_rows_are_the_cpus(cuda_device, in_dtype, out_dtype, width):
    values = draw((50, width), in_dtype)
    own, fetched, places = values[:20], values[20:], torch.randint(-30, 20, (70,))
    dtype = out_dtype or in_dtype
    merged = cuda_device.kernel("merge_rows")(
        cuda_device.put(own), cuda_device.put(fetched), cuda_device.put(places), dtype
    )
    assert torch.equal(merged.cpu(), ops.merge_rows(own, fetched, places, out_dtype)) and merged.dtype == dtype


@pytest.mark.parametrize("in_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [5, 16])
def test_fetched_rows_may_be_converted_already(cuda_device, in_dtype, width):
    own, fetched = draw((20, width), in_dtype), draw((30, width), torch.bfloat16)
    places = torch.randint(-30, 20, (70,))
    merged = cuda_device.kernel("merge_rows")(
        cuda_device.put(own), cuda_device.put(fetched), cuda_device.put(places), torch.bfloat16
    )
    assert torch.equal(merged.cpu(), ops.merge_rows(own, fetched, places, torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_16_bit_values_convert_as_on_the_cpu(cuda_device, dtype, out_dtype):
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).reshape(256, 256)
    merged = cuda_device.kernel("merge_rows")(
        cuda_device.put(every), cuda_device.put(every[:0]), cuda_device.put(torch.arange(256)), out_dtype
    )
    expected = ops.merge_rows(every, every[:0], torch.arange(256), out_dtype)
    assert torch.equal(merged.cpu().view(torch.uint8), expected.view(torch.uint8))


def test_any_float32_rounds_to_bfloat16_as_on_the_cpu(cuda_device):
    bits = torch.randint(-(2**31), 2**31 - 1, (100, 40), dtype=torch.int32)
    bits[:8] = bits[:8] & 0x007FFFFF | 0x7F800000  # infinities and NaN
    values = bits.view(torch.float32)
    merged = cuda_device.kernel("merge_rows")(
        cuda_device.put(values), cuda_device.put(values[:0]), cuda_device.put(torch.arange(100)), torch.bfloat16
    )
    expected = ops.merge_rows(values, values[:0], torch.arange(100), torch.bfloat16)
    assert torch.equal(merged.cpu().view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
def test_tables_of_any_alignment_are_merged(cuda_device, offset):
    own, fetched = draw((20, 16), torch.int8), draw((30, 16), torch.int8)
    places = torch.randint(-30, 20, (33,))
    table = misaligned(cuda_device.put(fetched), offset)
    for dtype in (torch.int8, torch.float32):
        merged = cuda_device.kernel("merge_rows")(cuda_device.put(own), table, cuda_device.put(places), dtype)
        assert torch.equal(merged.cpu(), ops.merge_rows(own, fetched, places, dtype))


@pytest.mark.parametrize("seed", SCHEDULES)
@pytest.mark.parametrize("ids", [[0, -1, 3, 50, -9], [2**40, 0], [-(2**63)]])
def test_the_first_bad_id_is_refused_in_the_cpus_words(cuda_device, ids, seed):
    set_schedule(cuda_device, seed)
    rows, ids = torch.rand(50, 2), torch.tensor(ids)
    with pytest.raises(ValueError) as on_cpu:
        ops.gather_rows(rows, ids)
    with pytest.raises(ValueError) as on_cuda:
        cuda_device.kernel("gather_rows")(cuda_device.put(rows), cuda_device.put(ids))
    assert str(on_cuda.value) == str(on_cpu.value)


@pytest.mark.parametrize("places", [[0, -4, 9], [1, 5], [2**63 - 1, -(2**63)]])
def test_the_first_bad_place_is_refused_in_the_cpus_words(cuda_device, places):
    own, fetched, places = torch.rand(5, 2), torch.rand(3, 2), torch.tensor(places)
    with pytest.raises(ValueError) as on_cpu:
        ops.merge_rows(own, fetched, places)
    with pytest.raises(ValueError) as on_cuda:
        cuda_device.kernel("merge_rows")(
            cuda_device.put(own), cuda_device.put(fetched), cuda_device.put(places), torch.float32
        )
    assert str(on_cuda.value) == str(on_cpu.value)


@pytest.mark.parametrize("place", [5, (1 << 48) + 7, 2 << 48, -4, 2**62])
@pytest.mark.parametrize("checked", [True, False])
def test_a_bad_place_beside_near_tables_is_refused_in_the_cpus_words(cuda_device, place, checked):
    own, fetched, near, places = torch.rand(5, 2), torch.rand(3, 2), torch.rand(7, 2), torch.tensor([0, place])
    with pytest.raises(ValueError) as on_cpu:
        ops.merge_rows(own, fetched, places, near=[near])
    put = cuda_device.put
    with pytest.raises(ValueError) as on_cuda:
        cuda_device.kernel("merge_rows")(
            put(own), put(fetched), put(places), torch.float32, None, None, checked, [put(near)]
        ).cpu()
        ops.raise_deferred_errors(device_of(cuda_device))
    assert str(on_cuda.value).startswith(str(on_cpu.value))


def gather_unchecked(device, rows, ids):
    return device.kernel("gather_rows")(device.put(rows), device.put(ids), None, None, False)


def device_of(cuda_device):
    return cuda_device.put(torch.zeros(1)).device


def test_an_unchecked_bad_id_gives_zeros_and_the_next_call_raises(cuda_device):
    rows = torch.rand(50, 3) + 1
    gathered = gather_unchecked(cuda_device, rows, torch.tensor([7, 50, -1])).cpu()
    assert torch.equal(gathered, torch.stack([rows[7], torch.zeros(3), torch.zeros(3)]))
    with pytest.raises(ValueError, match=r"gather_rows: id (50|-1) at position [12]; expected 0 to 49 \(in an earlier"):
        gather_unchecked(cuda_device, rows, torch.tensor([7]))
    assert torch.equal(gather_unchecked(cuda_device, rows, torch.tensor([7])).cpu(), rows[7:8])  # reported once


@pytest.mark.parametrize("seed", range(9))
def test_two_bad_places_at_once_never_mix_in_the_report(cuda_device, seed):
    """Under every schedule the report is that of one bad place: its position, and the last place of its own table."""
    set_schedule(cuda_device, seed)
    near, put = [torch.rand(rows, 2) for rows in (3, 7)], cuda_device.put
    tables, rows = torch.arange(120) % 3, torch.arange(120) + 5
    places = ops.place_in(tables, rows)
    cuda_device.kernel("merge_rows")(
        put(torch.rand(5, 2)), put(torch.rand(0, 2)), put(places), torch.float32, None, None, False, [*map(put, near)]
    ).cpu()
    with pytest.raises(ValueError, match="in an earlier call") as refused:
        ops.raise_deferred_errors(device_of(cuda_device))
    place, position, least, largest = map(int, re.findall(r"-?\d+", str(refused.value).split("(")[0]))
    last_rows = torch.tensor([5, 3, 7]) - 1
    assert place == int(places[position])
    assert (least, largest) == (0, int(ops.place_in(tables[position], last_rows[tables[position]])))
    ops.raise_deferred_errors(device_of(cuda_device))


def test_a_mailbox_that_is_being_written_is_left_alone(cuda_device):
    """The host reads a report when its first word is there, and empties the mailbox by that word alone."""
    device = device_of(cuda_device)
    mailbox = row_tables._mailbox(device)
    mailbox[0] = row_tables._MAILBOX_TAKEN
    ops.raise_deferred_errors(device)
    assert int(mailbox[0]) == row_tables._MAILBOX_TAKEN
    mailbox[:] = torch.tensor([row_tables.GATHER_ROWS, 9, 4, 0, 8])
    with pytest.raises(ValueError, match="gather_rows: id 9 at position 4; expected 0 to 8"):
        ops.raise_deferred_errors(device)
    assert mailbox.tolist() == [0, 9, 4, 0, 8]


def test_deferred_errors_can_be_asked_for(cuda_device):
    own, fetched, put = torch.rand(5, 2), torch.rand(3, 2), cuda_device.put
    cuda_device.kernel("merge_rows")(
        put(own), put(fetched), put(torch.tensor([0, -4])), torch.bfloat16, None, None, False
    ).cpu()
    device = device_of(cuda_device)
    with pytest.raises(ValueError, match="merge_rows: place -4 at position 1; expected -3 to 4"):
        ops.raise_deferred_errors(device)
    ops.raise_deferred_errors(device)


def test_a_checked_call_leaves_no_note(cuda_device):
    with pytest.raises(ValueError, match="id 9 at position 0"):
        cuda_device.kernel("gather_rows")(cuda_device.put(torch.rand(5, 2)), cuda_device.put(torch.tensor([9])))
    ops.raise_deferred_errors(device_of(cuda_device))


def test_a_table_that_the_device_cannot_read_is_refused():
    with pytest.raises(ValueError, match="rows is on cpu and the ids on cuda:1; place it on cuda:1 or in pinned"):
        row_tables.check_table("rows", torch.rand(3, 2), torch.device("cuda:1"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_pinned_rows_are_read_over_the_bus(dtype):
    rows, ids = draw((5000, 100), dtype), torch.randint(0, 5000, (3000,))
    cache = RowCache.of(rows, torch.randperm(5000)[:700], "cuda")
    pinned = rows.pin_memory()
    assert torch.equal(ops.gather_rows(pinned, ids.cuda()).cpu(), rows[ids])
    assert torch.equal(ops.gather_rows(pinned, ids.cuda(), cache).cpu(), rows[ids])
    merged = ops.merge_rows(pinned, cache.rows[:0], ids.cuda(), torch.bfloat16, cache)
    assert torch.equal(merged.cpu(), ops.merge_rows(rows, rows[:0], ids, torch.bfloat16))
    with pytest.raises(ValueError, match="rows is on cpu and the ids on cuda:0"):
        ops.gather_rows(rows, ids.cuda())


@pytest.mark.parametrize("seed", grid(range(40), gate=range(8)))
def test_random_tables_places_and_caches(cuda_device, seed):
    draws = torch.Generator().manual_seed(seed)

    def number(least, most):
        return int(torch.randint(least, most + 1, (), generator=draws))

    set_schedule(cuda_device, seed)
    dtype, width = NARROW[number(0, len(NARROW) - 1)], number(1, 150)
    out_dtype = (dtype, torch.float32, torch.float64, torch.bfloat16)[number(0, 3)]
    own, fetched = draw((number(1, 40), width), dtype), draw((number(0, 20), width), dtype)
    near = [draw((number(0, 9), width), dtype) for _ in range(number(0, 4))]
    every = [ops.place_in(table, torch.arange(len(rows))) for table, rows in enumerate([own, *near])]
    every = torch.cat([*every, torch.arange(-len(fetched), 0)])
    places = every[torch.randint(0, len(every), (number(0, 200),), generator=draws)]
    cached = torch.randperm(own.shape[0], generator=draws)[: number(0, own.shape[0])]
    table = misaligned(cuda_device.put(own), number(0, 8) * dtype.itemsize)
    cache = RowCache.of(own, cached, table.device)
    merged = cuda_device.kernel("merge_rows")(
        table, cuda_device.put(fetched), cuda_device.put(places), out_dtype, cache.rows, cache.places, True,
        [misaligned(cuda_device.put(rows), number(0, 8) * dtype.itemsize) for rows in near],
    )  # fmt: skip
    assert torch.equal(merged.cpu(), ops.merge_rows(own, fetched, places, out_dtype, near=near))


@pytest.mark.parametrize("seed", grid(range(24), gate=range(6)))
@pytest.mark.parametrize("out_dtype", [torch.int8, torch.float32, torch.float64, torch.bfloat16])
def test_random_scaled_tables_places_and_caches(cuda_device, out_dtype, seed):
    """Every alignment of tables with scales of their own and of packed ones: the CPU's bits."""
    draws = torch.Generator().manual_seed(seed)

    def number(least, most):
        return int(torch.randint(least, most + 1, (), generator=draws))

    def table(num_rows, packed):
        made = ops.RowTable(draw((num_rows, width), torch.int8), torch.rand(num_rows))
        if not packed:
            return made
        return ops.RowTable.packed(misaligned(made.take(torch.arange(num_rows)), number(0, 8)))

    set_schedule(cuda_device, seed)
    width = 4 * number(1, 40) if seed % 2 else number(1, 150)
    own, near = table(number(1, 40), False), [table(number(0, 9), seed % 3 > 0) for _ in range(number(0, 4))]
    fetched = table(number(0, 20), False)
    fetched = fetched.take(torch.arange(fetched.num_rows))
    every = [ops.place_in(index, torch.arange(each.num_rows)) for index, each in enumerate([own, *near])]
    every = torch.cat([*every, torch.arange(-len(fetched), 0)])
    places = every[torch.randint(0, len(every), (number(0, 200),), generator=draws)]
    cache = RowCache.of(own, torch.randperm(own.num_rows, generator=draws)[: number(0, own.num_rows)], "cpu")
    put = cuda_device.put
    merged = cuda_device.kernel("merge_rows")(
        put(own.rows), put(fetched), put(places), out_dtype, put(cache.rows), put(cache.places), True,
        [put(each.rows) for each in near], [put(each.scale_bytes()) for each in (own, *near)],
    )  # fmt: skip
    assert torch.equal(merged.cpu(), ops.merge_rows(own, fetched, places, out_dtype, near=near))


def test_a_cache_of_scaled_rows_is_packed_and_read_in_place_of_them(cuda_device):
    table, copies = (ops.RowTable(draw((9, 8), torch.int8), torch.rand(9)) for _ in range(2))  # to be told apart
    cache, places = RowCache.of(copies, torch.tensor([7, 2]), "cpu"), torch.arange(9)
    assert cache.rows.shape == (2, 12) and cache.num_bytes == 2 * 12 + 9 * 4
    expected = table.values(places)
    expected[[7, 2]] = copies.values(torch.tensor([7, 2]))
    put = cuda_device.put
    merged = cuda_device.kernel("merge_rows")(
        put(table.rows), put(table.no_rows()), put(places), torch.float32, put(cache.rows), put(cache.places), True,
        None, [put(table.scale_bytes())],
    )  # fmt: skip
    assert torch.equal(merged.cpu(), expected)


def test_a_bad_place_beside_scaled_tables_gives_zeros(cuda_device):
    table, put = ops.RowTable(draw((5, 8), torch.int8) + 1, torch.rand(5) + 1), cuda_device.put
    arguments = put(table.rows), put(table.no_rows()), put(torch.tensor([4, -1, 5]))
    scales = [put(table.scale_bytes())]
    with pytest.raises(ValueError, match="merge_rows: place -1 at position 1; expected 0 to 4"):
        cuda_device.kernel("merge_rows")(*arguments, torch.float32, None, None, True, None, scales)
    merged = cuda_device.kernel("merge_rows")(*arguments, torch.float32, None, None, False, None, scales).cpu()
    assert torch.equal(merged, torch.cat([table.values(torch.tensor([4])), torch.zeros(2, 8)]))
    with pytest.raises(ValueError, match="in an earlier call"):
        ops.raise_deferred_errors(device_of(cuda_device))

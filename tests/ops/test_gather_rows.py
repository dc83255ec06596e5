"""gather_rows and merge_rows against their oracles; on CUDA in test_row_tables.py."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import cuda, library, reference
from tests.grids import grid

NARROW = (torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", [*NARROW, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(50, 7), (50, 128), (50,), (50, 2, 3), (50, 0)])
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_gather_rows_equals_the_oracle(dtype, shape, id_dtype):
    rows = (torch.rand(shape) * 100).to(dtype)
    ids = torch.randint(0, 50, (80,)).to(id_dtype)
    assert torch.equal(ops.gather_rows(rows, ids), reference.gather_rows(rows, ids))


def test_gather_rows_of_no_ids_is_empty():
    assert ops.gather_rows(torch.rand(4, 3), torch.empty(0, dtype=torch.int64)).shape == (0, 3)


@pytest.mark.parametrize("bad", [-1, 50])
def test_gather_rows_refuses_an_id_outside(bad):
    with pytest.raises(ValueError, match=f"id {bad} at position 1; expected 0 to 49"):
        ops.gather_rows(torch.rand(50, 2), torch.tensor([0, bad]))


def test_rows_that_require_a_gradient_are_refused():
    rows, ids = torch.rand(5, 2, requires_grad=True), torch.tensor([3, 0])
    with pytest.raises(
        ValueError, match=r"rows requires a gradient, which gather_rows does not have; pass rows\.detach"
    ):
        ops.gather_rows(rows, ids)
    with pytest.raises(ValueError, match=r"own requires a gradient, which merge_rows does not have; pass own\.detach"):
        ops.merge_rows(rows, torch.rand(0, 2), ids)
    with torch.no_grad():
        assert torch.equal(ops.gather_rows(rows, ids), rows[ids])
    assert torch.equal(ops.gather_rows(rows.detach(), ids), rows[ids])


@pytest.mark.parametrize("in_dtype", NARROW)
@pytest.mark.parametrize("out_dtype", [None, torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_merge_rows_equals_the_oracle(in_dtype, out_dtype, isa, use_isa):
    use_isa(isa)
    values = torch.randn(50, 37) * 50 if in_dtype.is_floating_point else torch.randint(0, 100, (50, 37))
    own, fetched = values[:20].to(in_dtype), values[20:].to(in_dtype)
    places = torch.randint(-30, 20, (70,))
    merged = ops.merge_rows(own, fetched, places, out_dtype)
    expected = reference.merge_rows(own, fetched, places, out_dtype)
    assert torch.equal(merged, expected) and merged.dtype == expected.dtype


def places_in(tables, num_fetched, count):
    """Random places of tables of these sizes, and of fetched rows."""
    every = [ops.place_in(number, torch.arange(size)) for number, size in enumerate(tables)]
    every = torch.cat([*every, torch.arange(-num_fetched, 0)])
    return every[torch.randint(0, len(every), (count,))]


@pytest.mark.parametrize("in_dtype", [torch.float16, torch.float32, torch.int8])
@pytest.mark.parametrize("out_dtype", grid([None, torch.float32, torch.bfloat16], gate=[None, torch.bfloat16]))
@pytest.mark.parametrize("count", grid([0, 70, 70_000], gate=[70, 70_000]))
@pytest.mark.parametrize("num_near", grid([1, 3, 63], gate=[3]))
def test_merge_rows_reads_near_tables(in_dtype, out_dtype, count, num_near):
    """70,000 rows of 160 or 80 bytes: the larger ones are written past the caches."""
    sizes = [20, *(torch.arange(num_near) % 4).tolist()]
    own, fetched, *near = ((torch.randn(size, 40) * 9).to(in_dtype) for size in (20, 5, *sizes[1:]))
    places = places_in(sizes, 5, count)
    merged = ops.merge_rows(own, fetched, places, out_dtype, near=near)
    assert torch.equal(merged, reference.merge_rows(own, fetched, places, out_dtype, near))


@pytest.mark.parametrize(
    ("place", "largest"),
    [(5, 4), ((1 << 48) + 7, (1 << 48) + 6), (2 << 48, (1 << 48) + 6), (-4, 4), (2**62, (1 << 48) + 6)],
)
def test_a_place_outside_near_tables_is_refused(place, largest):
    with pytest.raises(ValueError, match=f"merge_rows: place {place} at position 1; expected -3 to {largest}"):
        ops.merge_rows(torch.rand(5, 2), torch.rand(3, 2), torch.tensor([0, place]), near=[torch.rand(7, 2)])


@pytest.mark.parametrize(
    ("near", "message"),
    [
        ([torch.rand(7, 3)], "a near table is torch.float32 of width 3; expected own's torch.float32 and 2"),
        ([torch.rand(7, 2).half()], "a near table is torch.float16 of width 2; expected own's torch.float32 and 2"),
        ([torch.rand(7)], r"a near table has shape \(7,\); expected \[n, width\], contiguous"),
        ([torch.rand(1, 2)] * 64, "merge_rows: 65 tables; expected 1 to 64"),
    ],
)
def test_near_tables_that_do_not_fit_are_refused(near, message):
    with pytest.raises(ValueError, match=message):
        ops.merge_rows(torch.rand(5, 2), torch.rand(3, 2), torch.tensor([0]), near=near)


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_merge_rows_takes_fetched_rows_that_are_converted_already(isa, use_isa):
    use_isa(isa)
    own, fetched = torch.randn(20, 37), torch.randn(30, 37).bfloat16()
    places = torch.randint(-30, 20, (70,))
    merged = ops.merge_rows(own, fetched, places, torch.bfloat16)
    assert torch.equal(merged, reference.merge_rows(own, fetched, places, torch.bfloat16))
    with pytest.raises(ValueError, match=r"fetched of own's dtype or torch.float32"):
        ops.merge_rows(own, fetched, places, torch.float32)


@pytest.mark.parametrize(("width", "dtype"), [(100, torch.float32), (25, torch.float32), (8, torch.bfloat16)])
def test_merge_rows_of_a_table_larger_than_the_caches(width, dtype):
    """From 8 MiB on, rows of a multiple of 16 bytes are written past the caches."""
    count = (9 << 20) // (width * dtype.itemsize)
    own, fetched = torch.randn(500, width).to(dtype), torch.randn(300, width).to(dtype)
    places = torch.randint(-300, 500, (count,))
    expected = torch.where((places >= 0)[:, None], own[places.clamp(min=0)], fetched[(-1 - places).clamp(min=0)])
    assert torch.equal(ops.merge_rows(own, fetched, places), expected)


def test_every_float16_converts_exactly():
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).reshape(256, 256)
    merged = ops.merge_rows(every, every[:0], torch.arange(256), torch.float32)
    assert torch.equal(torch.nan_to_num(merged, nan=-7.5), torch.nan_to_num(every.float(), nan=-7.5))
    assert torch.equal(merged.isnan(), every.isnan())


def test_float32_rounds_to_bfloat16_as_torch_does():
    values = torch.randint(-(2**31), 2**31 - 1, (500, 40), dtype=torch.int32).view(torch.float32)
    merged = ops.merge_rows(values, values[:0], torch.arange(500), torch.bfloat16)
    assert torch.equal(merged.nan_to_num(nan=3.0), values.bfloat16().nan_to_num(nan=3.0))


@pytest.mark.parametrize("bad", [-4, 5])
def test_merge_rows_refuses_a_place_outside(bad):
    with pytest.raises(ValueError, match=f"place {bad} at position 0; expected -3 to 4"):
        ops.merge_rows(torch.rand(5, 2), torch.rand(3, 2), torch.tensor([bad]))


def test_merge_rows_refuses_a_conversion_it_lacks():
    with pytest.raises(ValueError, match="cannot convert torch.float32 to torch.int8"):
        ops.merge_rows(torch.rand(5, 2), torch.rand(3, 2), torch.tensor([0]), torch.int8)


def test_the_cuda_library_loads_without_a_device_or_says_how_to_build_it():
    if (library.LIBRARY_DIR / "libfastsample_cuda.so").exists():
        assert cuda.core().fs_cuda_abi_version() == library.ABI_VERSION
    else:
        with pytest.raises(ImportError, match=r"install the CUDA toolkit \(nvcc\)"):
            cuda.core()


def draw_scaled(num_rows, width, packed):
    """A table of every number and of scales from the smallest to the largest."""
    numbers = torch.randint(-128, 128, (num_rows, width), dtype=torch.int8)
    scales = torch.exp(torch.empty(num_rows).uniform_(-60, 60))
    scales[::5] = 0
    table = ops.RowTable(numbers, scales)
    return ops.RowTable.packed(table.take(torch.arange(num_rows))) if packed else table


@pytest.mark.parametrize("out_dtype", [None, torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("packs", [(False, False), (True, False, True), (False, True)], ids=str)
@pytest.mark.parametrize("width", [1, 7, 64, 100, 602])
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_scaled_rows_are_merged_from_tables_of_either_kind(out_dtype, packs, width, isa, use_isa):
    use_isa(isa)
    sizes = [20, 9, 0][: len(packs)]
    own, *near = (draw_scaled(size, width, packed) for size, packed in zip(sizes, packs, strict=True))
    fetched = draw_scaled(6, width, False).take(torch.arange(6))
    places = places_in(sizes, 6, 50)
    merged = ops.merge_rows(own, fetched, places, out_dtype, near=near)
    expected = reference.merge_rows(own, fetched, places, out_dtype, near)
    assert torch.equal(merged, expected) and merged.dtype == (out_dtype or torch.int8)
    assert merged.shape == (50, width + 4 if out_dtype is None else width)


@pytest.mark.parametrize("out_dtype", [None, torch.float32, torch.float64, torch.bfloat16])
def test_a_scaled_row_has_the_same_bits_wherever_it_is_read(out_dtype):
    table = draw_scaled(70, 37, False)
    every = torch.arange(70)
    packed = table.take(every)
    own = ops.merge_rows(table, packed[:0], every, out_dtype)
    near = ops.merge_rows(table, packed[:0], ops.place_in(1, every), out_dtype, near=[ops.RowTable.packed(packed)])
    received = ops.merge_rows(table, packed, -1 - every, out_dtype)
    assert torch.equal(own, near) and torch.equal(own, received)
    assert torch.equal(own, packed if out_dtype is None else table.values(every).to(out_dtype))


def test_a_scaled_row_alone_is_read_whatever_its_strides():
    table = draw_scaled(1, 6, False)
    rows, scales = (bytes_.as_strided(bytes_.shape, (1, 1)) for bytes_ in (table.rows, table.scale_bytes()))
    places, fetched = torch.tensor([0, 0]), table.no_rows()
    merged = ops.merge_rows(ops.RowTable(rows, scales), fetched, places, torch.float32)
    assert torch.equal(merged, ops.merge_rows(table, fetched, places, torch.float32))


def test_int8_rows_without_scales_stay_integers():
    rows = torch.randint(-128, 128, (9, 5), dtype=torch.int8)
    assert torch.equal(ops.merge_rows(rows, rows[:0], torch.arange(9), torch.float32), rows.float())


def test_the_fake_of_scaled_rows_has_the_kernels_shapes():
    table = draw_scaled(5, 3, False)
    fetched = table.take(torch.arange(2))
    for dtype in (torch.int8, torch.float32):
        arguments = (table.rows, fetched, torch.tensor([4, -1]), dtype, None, None, True, None, [table.scale_bytes()])
        torch.library.opcheck(torch.ops.fastsample.merge_rows.default, arguments, test_utils="test_faketensor")


def test_scaled_tables_that_do_not_fit_are_refused():
    table, places = draw_scaled(5, 3, False), torch.tensor([0])
    fetched = table.take(places)
    with pytest.raises(ValueError, match="1 of 2 tables have scales; expected all of them or none"):
        ops.merge_rows(table, fetched, places, near=[table.rows])
    with pytest.raises(ValueError, match=r"own is torch.int8 of width 3, fetched torch.int8 of width 3"):
        ops.merge_rows(table, table.rows, places, torch.float32)
    with pytest.raises(ValueError, match=r"place 5 at position 0; expected -1 to 4"):
        ops.merge_rows(table, fetched, torch.tensor([5]))
    for rows, scales in ((table.rows.short(), table.scales), (table.rows, table.scales[:4])):
        with pytest.raises(ValueError, match="expected int8 rows and one float32 scale for each"):
            ops.RowTable(rows, scales)


def test_row_tables_know_their_bytes_and_join():
    table, plain = draw_scaled(5, 3, False), ops.RowTable(torch.rand(5, 3))
    assert (table.dim, table.num_rows, table.row_bytes, table.nbytes, table.dtype) == (3, 5, 7, 35, torch.float32)
    assert (plain.row_bytes, plain.nbytes, plain.is_scaled) == (12, 60, False)
    assert table.no_rows().shape == (0, 7) and plain.no_rows().shape == (0, 3)
    joined = ops.RowTable.joined([table, ops.RowTable.packed(table.take(torch.arange(5)))])
    every = torch.arange(5)
    assert torch.equal(joined.values(torch.arange(10)), table.values(torch.cat([every, every])))

"""aggregate against the oracle: exact forward, gradcheck backward, and independence of threads and vector width."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import library, reference
from fastsample_dist.ops.column_tiles import theorem_columns
from fastsample_dist.ops.layer_cores import CPU
from fastsample_dist.ops.library import Aggregation
from tests.ops.graphs import random_mfg

REDUCTIONS = ("sum", "mean", "max")
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [0, 1, 3])
def test_aggregate_equals_the_oracle(isa, reduce, dtype, heads, use_isa):
    use_isa(isa)
    indptr, indices = random_mfg(12, 30, 90)
    x = torch.randn(30, 51).to(dtype)
    weights = torch.randn(90, heads).to(dtype) if heads else None
    found = ops.aggregate(indptr, indices, x, weights, reduce=reduce)
    assert torch.equal(found, reference.aggregate(indptr, indices, x, weights, reduce=reduce))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_aggregate_wider_than_a_tile_equals_the_oracle(reduce):
    indptr, indices = random_mfg(5, 8, 20)
    x, weights = torch.randn(8, 1100), torch.randn(20, 2)
    found = ops.aggregate(indptr, indices, x, weights, reduce=reduce)
    assert torch.equal(found, reference.aggregate(indptr, indices, x, weights, reduce=reduce))


# Below one vector, whole vectors, one column more, two tiles of registers of every instruction set, and their rests.
WIDTHS = (1, 5, 16, 33, 48, 64, 100, 129, 193, 256, 257, 530)


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_any_width_equal_the_oracle(isa, dtype, use_isa):
    use_isa(isa)
    indptr, indices = random_mfg(6, 9, 30)
    for width in WIDTHS:
        x, weights = torch.randn(9, width).to(dtype), torch.randn(30).to(dtype)
        for edge_weights in (None, weights):
            found = ops.aggregate(indptr, indices, x, edge_weights, reduce="mean")
            assert torch.equal(found, reference.aggregate(indptr, indices, x, edge_weights, reduce="mean")), width


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_any_width_are_sums_in_the_order_of_the_edges(isa, dtype, use_isa):
    use_isa(isa)
    indptr, indices = random_mfg(6, 9, 30)
    degrees = indptr.diff()
    dsts = torch.repeat_interleave(torch.arange(6), degrees)
    by_source = indices.long().argsort(stable=True)
    lists = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(indices.long(), minlength=9).cumsum(0)])
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    factors = (1 / degrees[dsts].to(exact))[by_source]
    for width in WIDTHS:
        x, grad = torch.zeros(9, width, dtype=dtype, requires_grad=True), torch.randn(6, width).to(dtype)
        ops.aggregate(indptr, indices, x, reduce="mean").backward(grad)
        expected = reference.aggregate(lists, dsts[by_source], grad.to(exact), factors, reduce="sum")
        assert torch.equal(x.grad, expected.to(dtype)), width


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [0, 1, 3])
def test_no_tile_and_no_order_of_tiles_changes_a_bit(reduce, dtype, heads):
    indptr, indices = random_mfg(50, 70, 900)
    weights = torch.randn(900, heads).to(dtype) if heads else None
    x, grad = torch.randn(70, 345).to(dtype), torch.randn(50, 345).to(dtype)

    def both(**tiles):
        leaf = x.clone().requires_grad_()
        out = ops.aggregate(indptr, indices, leaf, weights, reduce=reduce, **tiles)
        out.backward(grad)
        return out.detach(), leaf.grad

    expected = both()
    torch.set_num_threads(2)
    for tiles in (
        {"tile": 1}, {"tile": 16}, {"tile": 100}, {"tile": 1000}, {"tile": "theorem"}, {"tiles_outer": True},
        {"tile": 24, "tiles_outer": True}, {"tile": 64, "tiles_outer": True}, {"tile": 512, "tiles_outer": True},
    ):  # fmt: skip
        assert all(torch.equal(a, b) for a, b in zip(expected, both(**tiles), strict=True)), tiles
    torch.set_num_threads(1)


def test_the_theorem_cuts_rows_so_that_a_part_of_all_fits_the_cache():
    assert theorem_columns(8000, 512, 8, cache_bytes=2**18) == 4  # the paper's figures: 125 parts
    assert theorem_columns(6100, 1024, 4, cache_bytes=2**20) == 32  # 42 in whole cache lines
    assert theorem_columns(100, 512, 4, cache_bytes=2**20) == 512  # all rows fit
    assert theorem_columns(100, 512, 4, num_threads=4, cache_bytes=2**20) == 128  # a part for every thread
    assert theorem_columns(10**9, 3, 4, cache_bytes=2**20) == 1


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_int64_ids_give_the_same_rows(reduce):
    indptr, indices = random_mfg(12, 30, 90)
    x = torch.randn(30, 9)
    assert torch.equal(
        ops.aggregate(indptr, indices, x, reduce=reduce), ops.aggregate(indptr, indices.long(), x, reduce=reduce)
    )


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("heads", [0, 1, 2])
def test_gradients(reduce, heads):
    indptr, indices = random_mfg(5, 9, 20)
    x = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(20, heads, dtype=torch.float64, requires_grad=True) if heads else None
    assert torch.autograd.gradcheck(
        lambda x, w: ops.aggregate(indptr, indices, x, w, reduce=reduce), (x, weights), check_undefined_grad=False
    )


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_equal_autograd_through_the_oracle(reduce, dtype):
    indptr, indices = random_mfg(12, 30, 90)
    grads = []
    for function in (ops.aggregate, reference.aggregate):
        torch.manual_seed(0)
        x = torch.randn(30, 16).to(dtype).requires_grad_()
        weights = torch.randn(90).to(dtype).requires_grad_()
        out = function(indptr, indices, x, weights, reduce=reduce)
        out.backward(torch.randn(12, 16).to(dtype))
        grads.append((x.grad, weights.grad))
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2}[dtype]
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_threads_and_vector_width_never_change_a_bit(reduce, weighted, use_isa):
    indptr, indices = random_mfg(3000, 5000, 30_000)
    results = []
    for threads, isa in ((1, "baseline"), (2, "avx2"), (4, "avx512")):
        torch.manual_seed(1)
        use_isa(isa)
        torch.set_num_threads(threads)
        x = torch.randn(5000, 40, requires_grad=True)
        weights = torch.randn(30_000, 4, requires_grad=True) if weighted else None
        out = ops.aggregate(indptr, indices, x, weights, reduce=reduce)
        out.backward(torch.randn(3000, 40))
        results.append((out.detach(), x.grad, *([weights.grad] if weighted else [])))
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_max_keeps_a_nan_and_gives_the_gradient_to_the_first_of_equals():
    x = torch.tensor([[1.0, float("nan")], [1.0, 2.0], [0.5, 9.0]], requires_grad=True)
    out = ops.aggregate(torch.tensor([0, 3]), torch.tensor([0, 1, 2]), x, reduce="max")
    out.sum().backward()
    assert out[0, 0] == 1 and out[0, 1].isnan() and x.grad.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_no_destinations():
    out = ops.aggregate(torch.tensor([0]), torch.empty(0, dtype=torch.int32), torch.rand(3, 4), reduce="mean")
    assert out.shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": torch.tensor([0, 30])}, "edge 1 has source 30; expected 0 to 29"),
        ({"indptr": torch.tensor([0, 1, 1])}, "indptr runs from 0 to 1; expected 0 to 2"),
        ({"x": torch.rand(30, 4).half()}, "x is torch.float16"),
        ({"x": torch.rand(30)}, r"x is torch.float32 of shape \(30,\); expected two dimensions"),
        ({"weights": torch.rand(3)}, r"weights has shape \(3,\); expected 2 rows, one per edge"),
        ({"weights": torch.rand(2, 3)}, "4 columns cannot be split between 3 heads"),
        ({"tile": -1}, "tile is -1; expected a number of columns, or 0 for as many as registers hold"),
        ({"reduce": "prod"}, "reduce is 'prod'; expected 'sum', 'mean' or 'max'"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    arguments = {
        "indptr": torch.tensor([0, 1, 2]), "indices": torch.tensor([0, 1]), "x": torch.rand(30, 4), **change,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        ops.aggregate(**arguments)
    with pytest.raises(ValueError, match=message):
        ops.aggregate(**{"tile": "theorem"} | arguments)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_aggregate_concat_equals_the_oracle(reduce, dtype):
    indptr, indices = random_mfg(12, 30, 90)
    x, weights = torch.randn(30, 51).to(dtype), torch.randn(90, 3).to(dtype)
    found = ops.aggregate_concat(indptr, indices, x, weights, reduce=reduce)
    assert torch.equal(found, reference.aggregate_concat(indptr, indices, x, weights, reduce=reduce))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_aggregate_concat_are_those_of_cat(reduce, dtype):
    indptr, indices = random_mfg(12, 30, 90)
    grads = []
    for function in (ops.aggregate_concat, lambda *a, **k: torch.cat([a[2][:12], ops.aggregate(*a, **k)], 1)):
        torch.manual_seed(0)
        x = torch.randn(30, 16).to(dtype).requires_grad_()
        weights = torch.randn(90, 2).to(dtype).requires_grad_()
        out = function(indptr, indices, x, weights, reduce=reduce)
        out.backward(torch.randn(12, 32).to(dtype))
        grads.append((x.grad, weights.grad))
    assert all(torch.equal(found, expected) for found, expected in zip(*grads, strict=True))


def test_aggregate_concat_passes_gradcheck():
    indptr, indices = random_mfg(5, 9, 20)
    x = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ops.aggregate_concat(indptr, indices, x), (x,))


def test_aggregate_concat_without_destinations():
    out = ops.aggregate_concat(torch.tensor([0]), torch.empty(0, dtype=torch.int32), torch.rand(3, 4))
    assert out.shape == (0, 8)


def test_aggregate_concat_refuses_fewer_rows_than_destinations():
    with pytest.raises(ValueError, match="x has 1 rows; expected one for each of the 2 destinations, or more"):
        ops.aggregate_concat(torch.tensor([0, 1, 1]), torch.tensor([0]), torch.rand(1, 4))


@pytest.mark.parametrize("isa", ["baseline", "avx512"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_the_gradient_of_both_halves_in_one_pass_has_the_bits_of_two(isa, dtype, reduce, weighted, use_isa):
    use_isa(isa)
    indptr, indices = random_mfg(12, 30, 90)
    grad = torch.randn(12, 2 * 51).to(dtype)
    weights = torch.rand(90).to(dtype) if weighted else None
    x = torch.zeros(30, 51, dtype=dtype).requires_grad_()
    ops.aggregate_concat(indptr, indices, x, weights, reduce=reduce).backward(grad)
    found = torch.empty_like(x)
    spec = Aggregation(
        indptr.data_ptr(), indices.data_ptr(), 12, 30, 90, library.type_code(indices), library.REDUCE_CODES[reduce],
        library.address(weights), 1, 51, library.type_code(x), 2,
    )  # fmt: skip
    CPU.aggregate_concat_backward(spec, grad, found)
    assert torch.equal(found, x.grad)


def test_the_gradient_of_both_halves_refuses_what_it_does_not_know():
    indptr, indices = random_mfg(12, 30, 90)
    rows = torch.zeros(30, 8)
    for num_src, reduce, message in ((30, "max", "expected sum or mean"), (5, "sum", "12 destinations but 5 sources")):
        spec = Aggregation(
            indptr.data_ptr(), indices.data_ptr(), 12, num_src, 90, library.type_code(indices),
            library.REDUCE_CODES[reduce], None, 1, 4, library.type_code(rows), 1,
        )  # fmt: skip
        with pytest.raises(ValueError, match=message):
            CPU.aggregate_concat_backward(spec, rows, rows)

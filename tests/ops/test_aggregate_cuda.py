"""aggregate on CUDA: the CPU's bits, forward and backward, for every dtype, shape and schedule; its refusals."""

import pytest
import torch

from fastsample_dist import ops
from tests.ops.graphs import random_mfg

REDUCTIONS = ("sum", "mean", "max")
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
NUM_DST, NUM_SRC, NUM_EDGES = 12, 30, 90


def same_bits(a, b):
    """Equal, NaN included."""
    return a.dtype == b.dtype and torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def on_both(cuda_device, name, *arguments, **options):
    """(the CPU operator's results, the CUDA kernel's)."""

    def put(value):
        if isinstance(value, list):
            return [put(part) for part in value]
        return cuda_device.put(value) if isinstance(value, torch.Tensor) else value

    expected = getattr(torch.ops.fastsample, name)(*arguments, **options)
    found = cuda_device.kernel(name)(*(put(value) for value in arguments), **options)
    return expected, [result.cpu() for result in found]


def assert_forward_and_backward_equal(cuda_device, indptr, indices, x, weights, reduce):
    """aggregate and aggregate_backward; returns the CPU's aggregate."""
    expected, found = on_both(cuda_device, "aggregate", indptr, indices, x, weights, reduce)
    assert all(same_bits(*pair) for pair in zip(expected, found, strict=True))
    grad = torch.randn(indptr.numel() - 1, x.shape[1]).to(x.dtype)
    gradients = on_both(
        cuda_device, "aggregate_backward", grad, [indptr, indices], x, weights, expected[1], reduce, [True, True]
    )
    assert all(same_bits(*pair) for pair in zip(*gradients, strict=True))
    return expected[0]


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [0, 1, 3])
@pytest.mark.parametrize("width", [51, 24])
def test_equals_the_cpu_with_gradients(cuda_device, reduce, dtype, heads, width):
    """51 columns are read one by one; 24 in packs of 16 bytes, or of the widest that fits into a head."""
    indptr, indices = random_mfg(NUM_DST, NUM_SRC, NUM_EDGES)
    x = torch.randn(NUM_SRC, width).to(dtype)
    weights = torch.randn(NUM_EDGES, heads).to(dtype) if heads else None
    assert_forward_and_backward_equal(cuda_device, indptr, indices, x, weights, reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("width", [1, 2, 6, 130, 602])
def test_equals_the_cpu_for_every_number_of_lanes(cuda_device, reduce, width):
    """One lane per row, parts of a warp, and more columns than a warp takes at once."""
    indptr, indices = random_mfg(5, 8, 20)
    assert_forward_and_backward_equal(cuda_device, indptr, indices.long(), torch.randn(8, width), None, reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("schedule", [1, 2, 3])
def test_no_schedule_changes_a_bit(emulated_device, reduce, schedule):
    emulated_device.set_schedule(schedule)
    indptr, indices = random_mfg(40, 60, 400, seed=schedule)
    x, weights = torch.randn(60, 20), torch.randn(400, 2)
    assert_forward_and_backward_equal(emulated_device, indptr, indices, x, weights, reduce)


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_equal_the_cpu(cuda_device, seed):
    draw = torch.Generator().manual_seed(seed)
    num_dst, num_src, num_edges, heads, head_width = (
        int(torch.randint(low, high, (1,), generator=draw))
        for low, high in ((1, 30), (1, 40), (0, 120), (1, 5), (1, 9))
    )
    dtype, reduce = DTYPES[seed % 3], REDUCTIONS[seed // 3 % 3]
    indptr, indices = random_mfg(num_dst, num_src, num_edges, seed)
    x = torch.randn(num_src, heads * head_width, generator=draw).to(dtype)
    weights = torch.randn(num_edges, heads, generator=draw).to(dtype)
    assert_forward_and_backward_equal(cuda_device, indptr, indices, x, weights, reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_one_destination_and_one_source_with_all_edges(cuda_device, reduce):
    """A hub at either end: the longest lists."""
    x = torch.randn(9, 5)
    into_one = (torch.tensor([0, 0, 300, 300]), torch.randint(0, 9, (300,)))
    out_of_one = (torch.arange(301), torch.full((300,), 7))
    for indptr, indices in (into_one, out_of_one):
        assert_forward_and_backward_equal(cuda_device, indptr, indices, x, torch.randn(300), reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_nan_infinities_and_equals_are_handled_as_on_the_cpu(cuda_device, reduce):
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 1.0, -1.0])
    x = special[torch.randint(0, 8, (NUM_SRC, 12), generator=torch.Generator().manual_seed(2))]
    indptr, indices = random_mfg(NUM_DST, NUM_SRC, NUM_EDGES)
    out = assert_forward_and_backward_equal(cuda_device, indptr, indices, x, None, reduce)
    assert out.isnan().any() and not out.isnan().all()


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize(
    ("num_dst", "num_src", "num_edges", "width"), [(0, 3, 0, 4), (4, 3, 0, 4), (0, 0, 0, 4), (2, 3, 5, 0)]
)
def test_nothing_to_add_equals_the_cpu(cuda_device, reduce, num_dst, num_src, num_edges, width):
    indptr = torch.linspace(0, num_edges, num_dst + 1).long()
    indices = torch.arange(num_edges, dtype=torch.int32) % max(num_src, 1)
    x = torch.randn(num_src, width)
    out = assert_forward_and_backward_equal(cuda_device, indptr, indices, x, None, reduce)
    assert out.shape == (num_dst, width) and out[:, :0].numel() == 0


def test_rows_at_odd_addresses_equal_the_cpu(cuda_device):
    """A column range of wider rows: the gradient that aggregate_concat sends back."""
    indptr, indices = random_mfg(NUM_DST, NUM_SRC, NUM_EDGES)
    wide, x = torch.randn(NUM_DST, 25), torch.randn(NUM_SRC, 8)
    arguments = ([indptr, indices], x, None, torch.empty(0, 0, dtype=torch.int64), "mean", [True, False])
    expected = torch.ops.fastsample.aggregate_backward(wide[:, 3:11], *arguments)
    edges, *others = arguments
    edges, wide = [cuda_device.put(tensor) for tensor in edges], cuda_device.put(wide)
    others = [cuda_device.put(value) if isinstance(value, torch.Tensor) else value for value in others]
    found = cuda_device.kernel("aggregate_backward")(wide[:, 3:11], edges, *others)
    assert torch.equal(found[0].cpu(), expected[0]) and found[1].numel() == 0


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_aggregate_concat_equals_the_cpu(cuda_device, reduce, dtype):
    indptr, indices = random_mfg(NUM_DST, NUM_SRC, NUM_EDGES)
    x, weights = torch.randn(NUM_SRC, 24).to(dtype), torch.randn(NUM_EDGES, 3).to(dtype)
    expected, found = on_both(cuda_device, "aggregate_concat", indptr, indices, x, weights, reduce)
    assert all(same_bits(*pair) for pair in zip(expected, found, strict=True))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("function", [ops.aggregate, ops.aggregate_concat])
def test_autograd_equals_the_cpu(cuda_device, function, reduce):
    indptr, indices = random_mfg(NUM_DST, NUM_SRC, NUM_EDGES)
    x, weights, grad = torch.randn(NUM_SRC, 8), torch.randn(NUM_EDGES, 2), torch.randn(NUM_DST, 16)

    def gradients(put):
        leaves = [put(tensor).requires_grad_() for tensor in (x, weights)]
        out = function(put(indptr), put(indices), *leaves, reduce=reduce)
        out.backward(put(grad)[:, : out.shape[1]])
        return [out.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)]

    expected = gradients(torch.clone)
    with cuda_device.operators():
        found = gradients(cuda_device.put)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


WRONG_EDGES = [
    ([0, 1, 2], [0, 30], "edge 1 has source 30; expected 0 to 29"),
    ([0, 1, 2], [-1, 3], "edge 0 has source -1; expected 0 to 29"),
    ([0, 1, 1], [0, 1], "indptr runs from 0 to 1; expected 0 to 2"),
    ([1, 1, 2], [0, 1], "indptr runs from 1 to 2; expected 0 to 2"),
    ([0, 3, 2], [0, 1], "indptr decreases at row 1"),
    ([0, 2**40, 2], [0, 1], "indptr decreases at row 1"),
    ([0, -(2**40), 2], [0, 1], "indptr decreases at row 0"),
]


@pytest.mark.parametrize(("indptr", "indices", "message"), WRONG_EDGES)
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_wrong_edges_are_refused_in_the_cpus_words(cuda_device, indptr, indices, message, id_dtype):
    edges = [cuda_device.put(torch.tensor(indptr)), cuda_device.put(torch.tensor(indices, dtype=id_dtype))]
    x = cuda_device.put(torch.rand(30, 4))
    with pytest.raises(ValueError, match=f"^aggregate: {message}"):
        cuda_device.kernel("aggregate")(*edges, x, None, "sum")
    with pytest.raises(ValueError, match=message):
        cuda_device.kernel("aggregate_backward")(x[:2], edges, x, None, edges[0], "sum", [True, False])


@pytest.mark.parametrize(("indptr", "indices", "message"), WRONG_EDGES)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_wrong_edges_that_were_called_checked_are_passed_over(cuda_device, indptr, indices, message, reduce):
    """Nothing is read or written outside the tensors (the sanitizers' run of this test sees it); results are finite."""
    edges = [cuda_device.put(torch.tensor(indptr)), cuda_device.put(torch.tensor(indices))]
    x, weights = cuda_device.put(torch.ones(30, 4)), cuda_device.put(torch.ones(2))
    out, arg = cuda_device.kernel("aggregate")(*edges, x, weights, reduce, True)
    needs = [True, True]
    grads = cuda_device.kernel("aggregate_backward")(torch.ones_like(out), edges, x, weights, arg, reduce, needs, True)
    assert all(tensor.isfinite().all() for tensor in (out, *grads))


def test_the_good_edges_beside_a_wrong_one_count(cuda_device):
    edges = cuda_device.put(torch.tensor([0, 3])), cuda_device.put(torch.tensor([0, 99, 2]))
    x = cuda_device.put(torch.tensor([[1.0], [2.0], [4.0]]))
    assert cuda_device.kernel("aggregate")(*edges, x, None, "sum", True)[0].tolist() == [[5.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.rand(30, 4).half()}, "x is torch.float16"),
        ({"weights": torch.rand(3)}, r"weights has shape \(3,\); expected 2 rows, one per edge"),
        ({"weights": torch.rand(2, 3)}, "4 columns cannot be split between 3 heads"),
        ({"reduce": "prod"}, "reduce is 'prod'; expected 'sum', 'mean' or 'max'"),
    ],
)
def test_wrong_arguments_are_refused(cuda_device, change, message):
    arguments = {
        "indptr": torch.tensor([0, 1, 2]), "indices": torch.tensor([0, 1]), "x": torch.rand(30, 4), "weights": None,
        "reduce": "sum", **change,
    }  # fmt: skip
    put = [cuda_device.put(value) if isinstance(value, torch.Tensor) else value for value in arguments.values()]
    with pytest.raises(ValueError, match=message):
        cuda_device.kernel("aggregate")(*put)


def test_checked_edges_are_not_looked_at_again(emulated_device):
    """One launch of the sum; one more where the edges have to be looked at."""
    indptr, indices = random_mfg(NUM_DST, NUM_SRC, NUM_EDGES)
    x, launches = torch.randn(NUM_SRC, 4), []
    for checked in (True, False):
        before = emulated_device.num_launches()
        emulated_device.kernel("aggregate")(indptr, indices, x, None, "mean", checked)
        launches.append(emulated_device.num_launches() - before)
    assert launches == [1, 2]


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_agrees_with_torch_sparse(cuda_device, reduce):
    indptr, indices = random_mfg(NUM_DST, NUM_SRC, NUM_EDGES)
    x, weights = torch.randn(NUM_SRC, 16), torch.rand(NUM_EDGES)
    edge_index = torch.stack([torch.repeat_interleave(indptr.diff()), indices.long()])
    matrix = torch.sparse_coo_tensor(edge_index, weights, (NUM_DST, NUM_SRC), check_invariants=True)
    expected = matrix @ x
    if reduce == "mean":
        expected = expected / indptr.diff().clamp(min=1).unsqueeze(1)
    put = [cuda_device.put(tensor) for tensor in (indptr, indices, x, weights)]
    torch.testing.assert_close(cuda_device.kernel("aggregate")(*put, reduce)[0].cpu(), expected)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_agrees_with_torch_geometric(cuda_device, reduce):
    utils = pytest.importorskip("torch_geometric.utils", reason="torch_geometric is not installed")
    indptr, indices = random_mfg(NUM_DST, NUM_SRC, NUM_EDGES)
    x, grad = torch.randn(NUM_SRC, 16, requires_grad=True), torch.randn(NUM_DST, 16)
    edge_dst = torch.repeat_interleave(indptr.diff())
    expected = utils.scatter(x[indices.long()], edge_dst, dim_size=NUM_DST, reduce=reduce)
    expected.backward(grad)
    edges = [cuda_device.put(indptr), cuda_device.put(indices)]
    rows = cuda_device.put(x.detach())
    out, arg = cuda_device.kernel("aggregate")(*edges, rows, None, reduce)
    grads = cuda_device.kernel("aggregate_backward")(
        cuda_device.put(grad), edges, rows, None, arg, reduce, [True, False]
    )  # fmt: skip
    torch.testing.assert_close(out.cpu(), expected.detach())
    torch.testing.assert_close(grads[0].cpu(), x.grad)


@pytest.mark.long
@pytest.mark.gpu
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_a_hundred_runs_give_the_cpus_bits(reduce):
    """Hubs at both ends, many blocks: what the emulator is too slow for."""
    num_dst, num_src, num_edges = 20_000, 50_000, 400_000
    dst = (torch.rand(num_edges) ** 4 * num_dst).long()
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(dst, minlength=num_dst).cumsum(0)
    edges = [indptr, (torch.rand(num_edges) ** 4 * num_src).int()]
    x, weights, grad = torch.randn(num_src, 100), torch.randn(num_edges, 4), torch.randn(num_dst, 100)
    expected, arg = torch.ops.fastsample.aggregate(*edges, x, weights, reduce)
    gradients = torch.ops.fastsample.aggregate_backward(grad, edges, x, weights, arg, reduce, [True, True])
    expected = [tensor.cuda() for tensor in (expected, *gradients)]
    edges, x, weights, grad, arg = [t.cuda() for t in edges], x.cuda(), weights.cuda(), grad.cuda(), arg.cuda()
    for _ in range(100):
        found = torch.ops.fastsample.aggregate(*edges, x, weights, reduce)[0]
        grads = torch.ops.fastsample.aggregate_backward(grad, edges, x, weights, arg, reduce, [True, True])
        assert all(torch.equal(*pair) for pair in zip((found, *grads), expected, strict=True))


@pytest.mark.long
@pytest.mark.gpu
def test_rows_beyond_two_to_the_31_elements():
    num_src, width = 2**26, 40
    x = torch.zeros(num_src, width, dtype=torch.bfloat16, device="cuda")
    x[-1] = 3
    edges = [torch.tensor([0, 2]).cuda(), torch.tensor([num_src - 1, 0]).cuda()]
    out, arg = torch.ops.fastsample.aggregate(*edges, x, None, "sum")
    grad_x, _ = torch.ops.fastsample.aggregate_backward(out, edges, x, None, arg, "sum", [True, False])
    assert out.unique().tolist() == [3] and torch.equal(grad_x[-1], out[0]) and int(grad_x.count_nonzero()) == 2 * width

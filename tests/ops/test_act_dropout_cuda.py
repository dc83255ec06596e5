"""act_dropout on CUDA: the CPU's masks and bits."""

import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops.act_dropout import arguments
from fastsample_dist.ops.layer_cores import CPU, CUDA

KEY = [2**41 + 3, 2**32 + 9, 2**31 + 1]
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
SHAPES = [(6, 1), (5, 16), (3, 130), (2, 300), (70, 7)]


def run(kernel, put, x, node_ids, grad, threshold, activation):
    """(y, grad_x) on the host."""
    draw = (put(node_ids), threshold, activation, KEY)
    y = kernel("act_dropout")(put(x), *draw)
    grad_x = kernel("act_dropout_backward")(put(grad), y, *draw)
    return y.cpu(), grad_x.cpu()


def cpu_kernel(name):
    return getattr(torch.ops.fastsample, name)


def assert_equal_to_the_cpu(cuda_device, *case):
    found, expected = run(cuda_device.kernel, cuda_device.put, *case), run(cpu_kernel, torch.clone, *case)
    assert all(torch.equal(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0)) for a, b in zip(found, expected, strict=True))
    return found


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threshold", [0, 6554, 65535])
def test_equals_the_cpu_with_gradients(cuda_device, activation, dtype, shape, threshold):
    x, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    assert_equal_to_the_cpu(cuda_device, x, torch.randint(0, 2**60, shape[:1]), grad, threshold, activation)


@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_nan_and_infinities_are_handled_as_on_the_cpu(cuda_device, activation):
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.0])
    x = special[torch.randint(0, 6, (9, 40), generator=torch.Generator().manual_seed(0))]
    y, _ = assert_equal_to_the_cpu(cuda_device, x, torch.arange(9), torch.randn(9, 40), 32768, activation)
    assert y.isnan().any() and y.isinf().any()


@pytest.mark.parametrize("schedule", [1, 2])
def test_no_schedule_changes_a_bit(emulated_device, schedule):
    emulated_device.set_schedule(schedule)
    x = torch.randn(20, 150)
    assert_equal_to_the_cpu(emulated_device, x, torch.arange(20), torch.randn(20, 150), 32768, "relu")


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(256 * 3 + 7, 20), (256, 300), (5, 1), (0, 4)])
def test_sums_of_the_gradient_equal_the_cpus(cuda_device, activation, dtype, shape):
    y, grad, node_ids = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.arange(shape[0])
    real = torch.promote_types(dtype, torch.float32)

    def rows_and_sums(core, put):
        tensors = [
            put(tensor) for tensor in (y, grad, node_ids, torch.empty_like(y), torch.full(shape[1:], 3, dtype=real))
        ]
        on_y, on_grad, ids, grad_x, sums = tensors
        core.act_dropout_backward(arguments(on_y, ids, 30000, activation, KEY), on_y, on_grad, grad_x, sums)
        return grad_x.cpu(), sums.cpu()

    found, expected = rows_and_sums(CUDA, cuda_device.put), rows_and_sums(CPU, torch.clone)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_nothing_to_drop(cuda_device, shape):
    assert_equal_to_the_cpu(cuda_device, torch.ones(shape), torch.arange(shape[0]), torch.ones(shape), 100, "relu")


@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_autograd_equals_the_cpu(cuda_device, activation):
    values, node_ids, grad = torch.randn(7, 33), torch.arange(7), torch.randn(7, 33)
    key = ops.DropoutKey(rng_seed=3, step=4, layer=1)

    def gradient(put):
        x = put(values).requires_grad_()
        ops.act_dropout(x, put(node_ids), key, p=0.4, activation=activation).backward(put(grad))
        return x.grad.cpu()

    expected = gradient(torch.clone)
    with cuda_device.operators():
        assert torch.equal(gradient(cuda_device.put), expected)


def test_wrong_arguments_are_refused(cuda_device):
    x, kernel = cuda_device.put(torch.rand(2, 2)), cuda_device.kernel("act_dropout")
    with pytest.raises(ValueError, match="node_ids has 3 entries; expected 2"):
        kernel(x, cuda_device.put(torch.arange(3)), 100, "relu", KEY)
    with pytest.raises(ValueError, match="activation is 'elu'; expected 'relu' or 'identity'"):
        kernel(x, cuda_device.put(torch.arange(2)), 100, "elu", KEY)
    with pytest.raises(ValueError, match="drop threshold 65536; expected 0 to 65535"):
        kernel(x, cuda_device.put(torch.arange(2)), 65536, "relu", KEY)


@pytest.mark.gpu
def test_tensors_on_two_devices_are_refused():
    with pytest.raises(ValueError, match="x is on cuda:0 and node_ids on cpu; they must be on one device"):
        ops.act_dropout(torch.rand(2, 2).cuda(), torch.arange(2), ops.DropoutKey(rng_seed=0, step=0, layer=0), p=0.5)

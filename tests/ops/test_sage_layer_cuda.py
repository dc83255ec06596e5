"""sage_layer on CUDA: under the emulator, where the matrix products are the CPU's, the CPU's bits; else their like."""

import pytest
import torch

from fastsample_dist import ops
from tests.ops.graphs import random_mfg

NUM_DST, NUM_SRC, NUM_EDGES = 21, 40, 130
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
KEY = ops.DropoutKey(rng_seed=2**41 + 3, step=9, layer=1)
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 4e-2}


def layer_and_gradients(put, tensors, node_ids, p):
    """[y, gradients of x, weight and bias, and of the coefficients if there are any] on the host."""
    indptr, indices, *rest = (put(tensor) for tensor in tensors)
    leaves = [tensor.requires_grad_() for tensor in rest]
    hidden = {} if node_ids is None else {"node_ids": put(node_ids), "key": KEY, "p": p}
    y = ops.sage_layer(indptr, indices, *leaves[:3], edge_weights=leaves[3] if len(leaves) > 3 else None, **hidden)
    y.backward(torch.ones_like(y) / 8)
    return [y.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)]


def on_both(cuda_device, dtype, hidden, p, weighted=False):
    indptr, indices = random_mfg(NUM_DST, NUM_SRC, NUM_EDGES)
    tensors = [indptr, indices, *(torch.randn(*shape).to(dtype) for shape in ((NUM_SRC, 12), (9, 24), (9,)))]
    if weighted:
        tensors.append(torch.rand(NUM_EDGES).to(dtype))
    node_ids = torch.randperm(NUM_DST) + 2**33 if hidden else None
    expected = layer_and_gradients(torch.clone, tensors, node_ids, p)
    with cuda_device.operators():
        return expected, layer_and_gradients(cuda_device.put, tensors, node_ids, p)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True], ids=["mean", "coefficients"])
@pytest.mark.parametrize(("hidden", "p"), [(False, 0.0), (True, 0.0), (True, 0.5)])
def test_equals_the_cpu_with_gradients(cuda_device, dtype, hidden, p, weighted):
    expected, found = on_both(cuda_device, dtype, hidden, p, weighted)
    if cuda_device.is_emulated:
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    else:
        torch.testing.assert_close(found, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("schedule", [1, 2, 3])
def test_no_schedule_changes_a_bit(emulated_device, schedule):
    emulated_device.set_schedule(schedule)
    expected, found = on_both(emulated_device, torch.float32, True, 0.5)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_no_destinations(cuda_device):
    indptr, indices = torch.tensor([0]), torch.empty(0, dtype=torch.int32)
    tensors = [cuda_device.put(tensor) for tensor in (indptr, indices, torch.rand(3, 4), torch.rand(5, 8))]
    y, _ = cuda_device.kernel("sage_layer")(*tensors, None, None, [0, 0, 0, 0])
    assert y.shape == (0, 5)


def test_refuses_what_does_not_fit(cuda_device):
    indptr, indices = random_mfg(NUM_DST, NUM_SRC, NUM_EDGES)
    edges, x = [cuda_device.put(indptr), cuda_device.put(indices)], cuda_device.put(torch.rand(NUM_SRC, 4))
    kernel, rest = cuda_device.kernel("sage_layer"), (None, None, [0, 0, 0, 0])
    with pytest.raises(ValueError, match="expected torch.float32 with 8 columns"):
        kernel(*edges, x, cuda_device.put(torch.rand(5, 7)), *rest)
    with pytest.raises(ValueError, match=f"edge .* has source .*; expected 0 to {NUM_DST - 1}"):
        kernel(*edges, x[:NUM_DST], cuda_device.put(torch.rand(5, 8)), *rest)

"""The models on CUDA: forward and backward, every operator's kernel; under the emulator the CPU's bits."""

from dataclasses import replace

import pytest
import torch

from fastsample_dist.train.metrics import seed_loss
from tests.train.task import KINDS, make_model
from tests.train.test_models import make_batch


def on_device(mfg, put):
    """The MFG with its tensors where kernels read them."""
    tensors = {name: put(getattr(mfg, name)) for name in ("indptr", "indices", "src_nodes", "orig_ids")}
    return replace(mfg, **tensors)


def logits_and_gradients(kind, dtype, put, seeds=range(30, 60, 2), vouched=True):
    """One step of training with dropout, and of evaluation: logits and gradients on the host."""
    batch = make_batch(seeds=seeds, dtype=dtype)
    mfgs = [on_device(mfg, put) for mfg in batch.mfgs]
    if not vouched:  # as edges from elsewhere
        mfgs = [replace(mfg, checked=False) for mfg in mfgs]
    features = put(batch.features).requires_grad_()
    model = make_model(kind, dropout=0.5).to(features)
    found = []
    for is_training in (True, False):
        model.train(is_training).zero_grad()
        features.grad = None
        logits = model(mfgs, features)
        seed_loss(logits, put(batch.labels), 15).backward()
        found += [logits.detach(), features.grad, *(parameter.grad.clone() for parameter in model.parameters())]
    return [tensor.cpu() for tensor in found]


def assert_as_on_the_cpu(cuda_device, kind, dtype, **options):
    expected = logits_and_gradients(kind, dtype, torch.clone, **options)
    with cuda_device.operators():
        found = logits_and_gradients(kind, dtype, cuda_device.put, **options)
    if cuda_device.is_emulated:
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    else:
        tolerance = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 5e-2}[dtype]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_logits_and_gradients_equal_the_cpus(cuda_device, kind, dtype):
    assert_as_on_the_cpu(cuda_device, kind, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_equals_the_cpus(cuda_device, kind):
    assert_as_on_the_cpu(cuda_device, kind, torch.float32, seeds=[])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schedule", [1, 2])
def test_no_schedule_changes_a_bit(emulated_device, kind, schedule):
    emulated_device.set_schedule(schedule)
    assert_as_on_the_cpu(emulated_device, kind, torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampled_batch_is_not_looked_at_again(emulated_device, kind, monkeypatch):
    """No layer waits for the device to say that its edges are right: the sampler made them."""

    looks = []
    monkeypatch.setattr("fastsample_dist.ops.layer_cores.CudaCore.check_edges", lambda *_: looks.append("looked"))
    with emulated_device.operators():
        logits_and_gradients(kind, torch.float32, torch.clone)
        assert looks == []
        logits_and_gradients(kind, torch.float32, torch.clone, vouched=False)
        assert looks != []


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_does_not_wait_for_the_device(kind):
    batch = make_batch(dtype=torch.float32)
    mfgs, features = [on_device(mfg, torch.Tensor.cuda) for mfg in batch.mfgs], batch.features.cuda().requires_grad_()
    model, labels = make_model(kind, dropout=0.5).to(features), batch.labels.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        seed_loss(model(mfgs, features), labels, 15).backward()
        waited = None
    except RuntimeError as error:  # torch's, of an operation that waits
        waited = str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert waited is None and features.grad is not None

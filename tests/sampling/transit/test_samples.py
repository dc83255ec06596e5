"""What sampling returns: padded, ragged, by steps."""

import pytest
import torch

from fastsample_dist.sampling.mfg import DrawKey
from fastsample_dist.sampling.transit import Samples

IDS = torch.arange(3)


@pytest.fixture(params=["padded", "ragged"])
def samples(request):
    """Two roots; steps of 1 and 2 picks."""
    if request.param == "ragged":  # the second sample took part in no step, the third in one
        flat = torch.tensor([5, -1, 6, 7, -1, 8, 9, 4, 3, -1])
        return Samples(flat, torch.tensor([0, 5, 7, 10]), 2, [1, 2], IDS, DrawKey(3, 4))
    rows = torch.tensor([[5, -1, 6, 7, -1], [8, 9, -1, -1, -1], [4, 3, -1, -1, -1]])
    return Samples.of_steps(rows[:, :2], [rows[:, 2:3], rows[:, 3:]], IDS, DrawKey(3, 4))


def test_samples_can_be_read_in_every_form(samples):
    assert samples.vertices.tolist() == [[5, -1, 6, 7, -1], [8, 9, -1, -1, -1], [4, 3, -1, -1, -1]]
    assert samples.roots.tolist() == [[5, -1], [8, 9], [4, 3]]
    assert [step.tolist() for step in samples.steps] == [[[6], [-1], [-1]], [[7, -1], [-1, -1], [-1, -1]]]
    assert samples.indptr.tolist() == [0, 3, 5, 7]
    assert samples.nodes.tolist() == [5, 6, 7, 8, 9, 4, 3]
    assert (len(samples), samples.num_steps, samples.mfgs) == (3, 2, None)


def test_mini_batches_need_recorded_edges(samples):
    with pytest.raises(ValueError, match="records no edges; set its record"):
        samples.mini_batches()


@pytest.mark.parametrize("widths", [[], [0, 0]])
def test_no_samples_and_no_steps(widths):
    none = torch.empty(0, 2, dtype=torch.int64)
    out = Samples.of_steps(none, [none[:, :width] for width in widths], IDS[:0], DrawKey())
    assert (out.indptr.tolist(), out.nodes.numel(), len(out.steps), out.vertices.shape) == ([0], 0, len(widths), (0, 2))

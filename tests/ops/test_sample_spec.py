"""SampleSpec: which fanouts it takes."""

import numpy as np
import pytest
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.ops import SampleSpec
from fastsample_dist.pipeline.options import LoaderOptions
from fastsample_dist.sampling.neighbor import NeighborSampler

RING = CSCGraph(torch.arange(6), torch.tensor([1, 2, 3, 4, 0]))


@pytest.mark.parametrize("fanout", [10.9, 10.0, np.float32(3), True, np.bool_(True), "5", None, float("nan")])
def test_a_fanout_that_is_no_integer_is_refused(fanout):
    for make in (
        lambda: SampleSpec(fanouts=(4, fanout)),
        lambda: NeighborSampler(RING, [4, fanout]),
        lambda: LoaderOptions(fanouts=[4, fanout], batch_size=1),
    ):
        with pytest.raises(ValueError, match=r"^fanouts holds .*; expected integers: -1 \(all neighbours\), 0 or more"):
            make()


@pytest.mark.parametrize("fanouts", [np.array([3, -1]), (np.int64(3), np.int8(-1)), torch.tensor([3, -1]), [3, -1]])
def test_any_integer_type_is_taken(fanouts):
    spec = SampleSpec(fanouts=tuple(fanouts))
    assert spec.fanouts == (3, -1) and {type(fanout) for fanout in spec.fanouts} == {int}

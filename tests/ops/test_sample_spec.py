"""SampleSpec: which fanouts it takes, and that copies are equal."""

import copy
import dataclasses
import pickle

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


@pytest.mark.parametrize("copied", [lambda spec: pickle.loads(pickle.dumps(spec)), copy.copy, copy.deepcopy])
def test_a_copy_has_the_fields_alone_and_is_described_by_its_own_fanouts(copied):
    spec = SampleSpec(fanouts=(4, 2), rng_seed=3, method="labor", layer_dependency=True, num_threads=2)
    described, known = spec.arguments(5), hash(spec)
    again = copied(spec)
    assert vars(again).keys() == {field.name for field in dataclasses.fields(spec)}
    assert again == spec and hash(again) == known
    del spec
    for given in (described, again.arguments(5)):
        given = {name: getattr(given, name) for name, _ in given._fields_ if name != "fanouts"}
        assert given == {
            "num_hops": 2, "first_hop": 0, "method": 2, "replace": 0, "layer_dependency": 1, "edge_ids": 0,
            "num_threads": 2, "rng_seed": 3, "step": 5,
        }  # fmt: skip
    assert again.arguments(6).fanouts[:2] == [4, 2] and again.arguments(6, hop=1).fanouts[0] == 2

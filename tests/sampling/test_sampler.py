"""What a sampler can do besides `sample` is asked for, and `sample` alone is enough."""

import torch

from fastsample_dist import NeighborSampler
from fastsample_dist.sampling.sampler import can_sample_many, includes_dst, kernel_report, payload_exchanges
from fastsample_dist.testing import conformance_graph


class Least:
    """A sampler that has nothing but `sample`."""

    def sample(self, seeds, step=0):
        return NeighborSampler(conformance_graph(), [2]).sample(seeds, step)


class Able(Least):
    includes_dst = True

    def sample_many(self, seeds, first_step=0):
        return [self.sample(own, first_step + i) for i, own in enumerate(seeds)]

    def num_payload_exchanges(self):
        return 4

    def kernel_report(self):
        return ["a line"]


def capabilities(sampler):
    asked = (can_sample_many, payload_exchanges, kernel_report, includes_dst)
    return [ask(sampler) for ask in asked]


def test_a_sampler_without_capabilities_reads_locally_one_batch_at_a_time():
    assert capabilities(Least()) == [False, 0, [], False]


def test_capabilities_are_those_of_the_sampler():
    assert capabilities(Able()) == [True, 4, ["a line"], True]


def test_the_local_sampler_samples_many_without_an_exchange():
    sampler = NeighborSampler(conformance_graph(), [2])
    assert capabilities(sampler) == [True, 0, [], False]
    assert len(sampler.sample_many([torch.arange(3), torch.arange(2)])) == 2

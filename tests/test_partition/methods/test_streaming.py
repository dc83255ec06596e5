"""`ldg` and `fennel` as methods: the operator is called as the papers say, against the oracle, and passes improve."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import reference
from fastsample_dist.partition.methods import streaming
from tests.test_partition.inputs import draw_raw
from tests.test_partition.methods.requests import drawn, request_of, stored_cut


@pytest.mark.parametrize("score", ["ldg", "fennel"])
@pytest.mark.parametrize("undirected", [False, True])
def test_equals_the_oracle(score, undirected, monkeypatch):
    request = request_of(draw_raw(undirected=undirected), 3, seed=5, passes=2)
    found = streaming.stream_parts(request, score)
    monkeypatch.setattr(ops, "stream_partition", reference.stream_partition)
    assert found.tolist() == streaming.stream_parts(request, score).tolist()


@pytest.mark.parametrize("score", ["ldg", "fennel"])
def test_rule_is_the_papers(score, monkeypatch):
    rules = []

    def note(indptr, indices, parts, rule, **columns):
        rules.append((rule, columns["kinds"]))
        return torch.zeros_like(parts)

    monkeypatch.setattr(ops, "stream_partition", note)
    request = replace(drawn(4, num_nodes=400, num_train=120), passes=3)
    streaming.stream_parts(request, score)
    rule, kinds = rules[0]
    num_pairs = request.graph.num_edges / 2
    assert len(rules) == 3 and rule.score == score
    assert rule.alpha == math.sqrt(4) * num_pairs / 400**1.5
    assert rule.capacities[:3] == (150, math.ceil(1.5 * request.graph.num_edges / 4), 45)
    assert np.flatnonzero(kinds & 1).tolist() == request.splits["train"].tolist()


@pytest.mark.parametrize("score", ["ldg", "fennel"])
def test_more_passes_cut_less(score):
    request = drawn(8, num_nodes=3000)
    once, often = (
        stored_cut(request, streaming.stream_parts(replace(request, passes=passes), score)) for passes in (1, 10)
    )
    assert often < once


def test_methods_are_the_scores():
    request = drawn()
    for assign, score in ((streaming.assign_ldg, "ldg"), (streaming.assign_fennel, "fennel")):
        assert (assign(request) == functools.partial(streaming.stream_parts, score=score)(request)).all()


def test_ten_passes_are_the_default():
    request = drawn(8, num_nodes=3000)
    assert (streaming.assign_ldg(request) == streaming.assign_ldg(replace(request, passes=10))).all()
    assert (streaming.assign_ldg(request) != streaming.assign_ldg(replace(request, passes=9))).any()

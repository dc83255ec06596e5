"""int8 features with scales: every number of ranks, scheme and dtype gives one process's values, bit for bit."""

import numpy as np
import pytest
import torch

from fastsample_dist import DistData, DistLoader
from fastsample_dist.partition.external.scaled_rows import scaled_rows
from fastsample_dist.testing import run_distributed
from fastsample_dist.train.inference import layerwise
from fastsample_dist.train.models import GraphSAGE
from tests.parts import FEATURE_DIM, NUM_CLASSES, draw_partition

CASES = [(1, 1), (2, 2), (4, 4), (2, 4)]  # ranks, parts
OPTIONS = [
    {"scheme": scheme, "feature_dtype": dtype, "prefetch": prefetch, "transport": transport}
    for transport in ("exchange", "auto")
    for scheme in ("hybrid", "vanilla")
    for prefetch, dtype in enumerate((None, torch.float64, torch.bfloat16))
]


def run_rank(ctx, path):
    """(options, (input ids, features) of every batch, rows of other ranks, counters); the scores of own nodes."""
    data, found = DistData.load(path, ctx), []
    for options in OPTIONS:
        loader = DistLoader(data, (4, 3), 40, **options)
        ctx.comm.reset_stats()
        batches = list(loader)
        lo, hi = data.own_range
        remote = sum(int(((mb.input_nodes < lo) | (mb.input_nodes >= hi)).sum()) for mb in batches)
        rows = [(data.orig_ids(mb.input_nodes), mb.features) for mb in batches]
        found.append((options, rows, remote, ctx.comm.stats()))
        loader.close()
    torch.manual_seed(0)
    scores = layerwise(GraphSAGE(FEATURE_DIM, 8, NUM_CLASSES, 2), data, batch_size=50)
    return found, scores, data.orig_ids(torch.arange(*data.own_range))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return {
        parts: draw_partition(tmp_path_factory.mktemp("drawn"), parts, stored_as="int8", num_nodes=200)
        for parts in (1, 2, 4)
    }


@pytest.fixture(scope="module")
def runs(drawn):
    return {case: run_distributed(case[0], run_rank, args=(drawn[case[1]].path,)) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_batches_have_the_values_that_one_process_computes(runs, drawn, case):
    features = drawn[case[1]].features
    numbers, scales = scaled_rows(features, np.arange(len(features)))
    values = torch.from_numpy(numbers.astype(np.float32) * scales[:, None])
    for found, _, _ in runs[case]:
        for options, batches, _, _ in found:
            for nodes, rows in batches:
                assert torch.equal(rows, values[nodes].to(options["feature_dtype"] or torch.float32))


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_a_row_travels_as_its_numbers_and_its_scale(runs, case):
    for found, _, _ in runs[case]:
        for options, _, remote, stats in found:
            travelled = stats.get("feature_rows", {"bytes_received": 0})["bytes_received"]
            assert travelled == (remote * (FEATURE_DIM + 4) if options["transport"] == "exchange" else 0)


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_inference_reads_the_same_values_on_any_number_of_ranks(runs, case):
    (_, expected, ids), *_ = runs[1, 1]
    expected = expected[ids.argsort()]
    for _, scores, nodes in runs[case]:
        assert torch.allclose(scores, expected[nodes], rtol=1e-5, atol=1e-5)

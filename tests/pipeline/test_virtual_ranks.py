"""Seeds and labels of all parts on every rank."""

from itertools import pairwise

import pytest
import torch

from fastsample_dist import DistData, PartitionBook
from fastsample_dist.pipeline.virtual_ranks import VirtualRanks, share_virtual_ranks
from fastsample_dist.testing import run_distributed
from tests.parts import NUM_CLASSES, draw_partition
from tests.waiting import ENOUGH_S

BOOK = PartitionBook(torch.tensor([0, 3, 5]))


@pytest.mark.parametrize("values", [torch.arange(5), torch.arange(10.0).view(5, 2)], ids=["classes", "targets"])
def test_labels_of_any_nodes(values):
    ranks = VirtualRanks({}, [], {0: values[:3], 1: values[3:]}, BOOK)
    for nodes in ([4, 0, 3, 1], [2], []):
        nodes = torch.tensor(nodes, dtype=torch.int64)
        found = ranks.labels_of(nodes)
        assert found.dtype == values.dtype and torch.equal(found, values[nodes])


def shared(ctx, path):
    data = DistData.load(path, ctx)
    own = data.split("train")[5 * ctx.rank :].flip(0)
    ranks = share_virtual_ranks(data, own, ctx.machines())
    nodes = torch.arange(data.num_nodes)
    assert torch.equal(ranks.labels_of(nodes), data.graph.orig_ids % NUM_CLASSES)
    return own, ranks.seeds, ranks.seeds_per_rank, data.book.part_ranges


def test_every_rank_has_the_seeds_of_every_part_in_the_order_given(tmp_path):
    """Two ranks with two parts each."""
    results = run_distributed(2, shared, args=(draw_partition(tmp_path, 4).path,), timeout_s=ENOUGH_S)
    bounds = results[0][3].tolist()
    for _, seeds, counts, _ in results:
        for part, (first, end) in enumerate(pairwise(bounds)):
            own = results[part // 2][0]
            assert torch.equal(seeds[part], own[(own >= first) & (own < end)]) and counts[part] == seeds[part].numel()

"""Every operator is registered with schema, fake kernel and, where it has one, gradient: torch's own opcheck."""

import pytest
import torch

from fastsample_dist import ops
from tests.ops.graphs import random_csc, random_mfg

GRAPH = random_csc()
SEEDS = torch.arange(9, dtype=torch.int32)
INDPTR, INDICES = random_mfg(6, 11, 25)
TABLES = ops.hashed_rows(GRAPH.indptr, GRAPH.indices)


def _x(*shape):
    return torch.randn(*shape, requires_grad=True)


CASES = {
    "sample_mfg": (GRAPH.indptr, GRAPH.indices, GRAPH.orig_ids, [], SEEDS, [3, 2], [0, 0, 0, 1], [7, 1], 1),
    "sample_neighbors": (GRAPH.indptr, GRAPH.indices, None, SEEDS, 3, [0, 0, 0, 1], [7, 1, 0], 1),
    "alias_tables": (torch.tensor([0, 2, 2, 5]), torch.rand(5), 1),
    "hashed_rows": (GRAPH.indptr, GRAPH.indices, 11, 1),
    "has_edges": (GRAPH.indices, TABLES.nodes, TABLES.buckets, torch.arange(5), torch.arange(5), 1),
    "compact": (torch.tensor([4, 2]), torch.tensor([9, 2, 9])),
    "bucket_by_part": (torch.tensor([4, 2, 8]), torch.tensor([0, 5, 10])),
    "locate_rows": (
        torch.tensor([4, 2, 8]),
        [
            torch.tensor([0, 5, 10]), torch.arange(2, dtype=torch.int32), torch.tensor([0, -1], dtype=torch.int32),
            torch.tensor([0, 0]),
        ],
        None, [2, 1, 0],
    ),
    "stream_partition": (
        GRAPH.indptr, GRAPH.indices, torch.full((GRAPH.indptr.numel() - 1,), -1, dtype=torch.int32), [None] * 3,
        torch.full((10,), 99), 3, "ldg", 0.0, 1, False,
    ),
    "bfs_order": (GRAPH.indptr, GRAPH.indices),
    "inclusion_probabilities": (
        torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1]), torch.tensor([2**48, 0]), torch.rand(3), 1, False, 1,
    ),
    "induced_subgraph": (GRAPH.indptr, GRAPH.indices, SEEDS, True, 1),
    "gather_rows": (torch.rand(5, 3), torch.tensor([4, 0])),
    "merge_rows": (torch.rand(5, 3), torch.rand(2, 3), torch.tensor([4, -1]), torch.float32),
    "aggregate": (INDPTR, INDICES, _x(11, 6), _x(25, 2), "mean"),
    "aggregate_concat": (INDPTR, INDICES, _x(11, 6), _x(25), "mean"),
    "aggregate_backward": (
        torch.rand(6, 6), [INDPTR, INDICES], torch.rand(11, 6), torch.rand(25), torch.empty(0, 0, dtype=torch.int64),
        "sum", [True, True],
    ),
    "act_dropout": (_x(4, 8), torch.arange(4), 100, "relu", [1, 2, 3]),
    "sage_layer": (INDPTR, INDICES, _x(11, 6), _x(4, 12), _x(4), torch.arange(6), [1, 2, 3, 100], False, _x(25)),
    "sage_layer_backward": (
        torch.rand(6, 4), [torch.rand(6, 4), torch.rand(6, 12), torch.rand(4, 12), INDPTR, INDICES], torch.arange(6),
        [1, 2, 3, 100], 11, [True] * 4, torch.rand(25), torch.rand(11, 6),
    ),
    "alias_draws": (torch.tensor([[-1, 0], [5, 0]], dtype=torch.int32), torch.arange(3), torch.arange(3), 2, [1, 0]),
    "random_rows": (torch.arange(3), 4, 1, 0.5, torch.float32),
    "skipgram_gradients": (
        torch.rand(5, 3), torch.tensor([4, 0], dtype=torch.int32), torch.tensor([[1, 2], [4, 1]], dtype=torch.int32),
        0.5, 1, torch.rand(5, 3),
    ),
    "update_rows": (
        torch.rand(5, 3), torch.rand(5, 3), torch.rand(5, 3), torch.tensor([4, 1]),
        torch.tensor([1, 0, 1], dtype=torch.int32), torch.tensor([0, 1, -1]), torch.rand(2, 3), torch.rand(1, 3),
        [0.1, 0.1, 0.001, 1e-8],
    ),
    "act_dropout_backward": (torch.rand(4, 8), torch.rand(4, 8), torch.arange(4), 100, "identity", [1, 2, 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name):
    checks = torch.library.opcheck(getattr(torch.ops.fastsample, name).default, CASES[name])
    assert set(checks.values()) == {"SUCCESS"}


def test_every_registered_operator_has_a_case():
    registered = {
        name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("fastsample::")
    }
    assert {name.split(".")[0] for name in registered} == set(CASES)


def test_operators_are_traced_without_a_break(monkeypatch):
    # which torch 2.4 does only when it is asked to, where the shapes of results depend on values
    monkeypatch.setattr(torch._dynamo.config, "capture_dynamic_output_shape_ops", True)
    spec = ops.SampleSpec(fanouts=(3, 2), rng_seed=7)

    def batch(indptr, indices, seeds, x):
        hops = ops.sample_mfg(indptr, indices, seeds, spec, step=3)
        rows = ops.aggregate(*ops.induced_subgraph(indptr, indices, seeds), x[:9], tile="theorem")
        neighbours = ops.sample_neighbors(indptr, indices, seeds, spec, hop=0)
        return hops.nodes, ops.gather_rows(x, hops.nodes) * 2, neighbours, rows

    arguments = (GRAPH.indptr, GRAPH.indices, SEEDS, torch.rand(GRAPH.indptr.numel() - 1, 3))
    compiled = torch.compile(batch, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), batch(*arguments), rtol=0, atol=0)


def test_set_isa_refuses_an_unknown_set():
    with pytest.raises(ValueError, match="instruction set 'sse9' is not available here"):
        ops.set_isa("sse9")

"""Every convolution of dgl.nn on our blocks: forward and backward as on a block that DGL makes of the same edges.

`ON_BLOCKS` and `NOT_ON_BLOCKS` together are dgl.nn's whole list. Those that do not take blocks are refused by DGL
itself, for its own block as for ours, in the words listed beside them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fastsample_dist import interop

SEEDS = [7, 3, 41, 0, 19]  # each has in-edges: some convolutions refuse a destination without one
DIM, EDGE_DIM, NUM_TYPES = 8, 5, 3


@dataclass
class Given:
    """What a convolution computes on; leaves that gradients reach."""

    x: Tensor  # [num_src, DIM]
    num_dst: int
    edge: Tensor  # [num_edges, EDGE_DIM]
    wide_edge: Tensor  # [num_edges, DIM]
    weight: Tensor  # [num_edges], positive
    edge_type: Tensor
    node_type: Tensor

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        return self.x, self.x[: self.num_dst]


Call = Callable[[nn.Module, object, Given], object]


def plain(conv: nn.Module, block: object, given: Given) -> object:
    return conv(block, given.x)


def of_pair(conv: nn.Module, block: object, given: Given) -> object:
    return conv(block, given.pair)


def with_edges(conv: nn.Module, block: object, given: Given) -> object:
    return conv(block, given.x, given.edge)


def with_weights(conv: nn.Module, block: object, given: Given) -> object:
    return conv(block, given.x, edge_weight=given.weight)


def of_types(conv: nn.Module, block: object, given: Given) -> object:
    return conv(block, given.x, given.edge_type)


# name of the class, how it is made, how it is called
ON_BLOCKS: list[tuple[str, Callable, Call]] = [
    ("GraphConv", lambda c: c(DIM, 6), plain),
    ("GraphConv", lambda c: c(DIM, 6, norm="right"), with_weights),
    ("EdgeWeightNorm", lambda c: c(), lambda conv, block, given: conv(block, given.weight)),
    ("GATConv", lambda c: c(DIM, 3, 2), plain),
    ("GATConv", lambda c: c(DIM, 3, 2, residual=True), of_pair),
    ("GATConv", lambda c: c(DIM, 3, 2), lambda conv, block, given: conv(block, given.x, get_attention=True)),
    ("GATv2Conv", lambda c: c(DIM, 3, 2), plain),
    ("GATv2Conv", lambda c: c(DIM, 3, 2), of_pair),
    ("EGATConv", lambda c: c(DIM, EDGE_DIM, 4, 3, 2), lambda conv, block, given: conv(block, given.pair, given.edge)),
    ("EdgeGATConv", lambda c: c(DIM, EDGE_DIM, 3, 2), with_edges),
    ("RelGraphConv", lambda c: c(DIM, 6, NUM_TYPES), of_types),
    ("RelGraphConv", lambda c: c(DIM, 6, NUM_TYPES, regularizer="basis", num_bases=2), of_types),
    ("SAGEConv", lambda c: c(DIM, 6, "mean"), plain),
    ("SAGEConv", lambda c: c(DIM, 6, "gcn"), plain),
    ("SAGEConv", lambda c: c(DIM, 6, "pool"), with_weights),
    ("SAGEConv", lambda c: c(DIM, 6, "lstm"), plain),
    ("GINConv", lambda c: c(nn.Linear(DIM, 6)), with_weights),
    ("GINEConv", lambda c: c(nn.Linear(DIM, 6)), lambda conv, block, given: conv(block, given.x, given.wide_edge)),
    ("GMMConv", lambda c: c(DIM, 6, EDGE_DIM, 2), with_edges),
    ("AGNNConv", lambda c: c(), plain),
    ("NNConv", lambda c: c(DIM, 6, nn.Linear(EDGE_DIM, DIM * 6)), with_edges),
    ("EdgeConv", lambda c: c(DIM, 6), plain),
    ("CFConv", lambda c: c(DIM, EDGE_DIM, 7, 6), with_edges),
    ("DotGatConv", lambda c: c(DIM, 3, 2), plain),
    (
        "HGTConv",
        lambda c: c(DIM, 3, 2, 2, NUM_TYPES, dropout=0.0),
        lambda conv, block, given: conv(block, given.x, given.node_type, given.edge_type),
    ),
]

ONE_NODE_SET = "multiple node types|more than one node types|not homogeneous|not a homogeneous|nodes type list"
TWICE = "must match the size of tensor"  # nodes are destinations too: a second round would need rows for the sources
MATRIX = r"device\(\) received an invalid combination"  # it takes an adjacency matrix where others take a graph
ABSENT = "requires pylibcugraphops"  # NVIDIA's own package; on machines with a GPU only

NOT_ON_BLOCKS: list[tuple[str, Callable, Call, str]] = [
    ("TAGConv", lambda c: c(DIM, 6), plain, ONE_NODE_SET),
    ("SGConv", lambda c: c(DIM, 6, k=2), plain, TWICE),
    ("APPNPConv", lambda c: c(2, 0.1), plain, ONE_NODE_SET),
    ("GatedGraphConv", lambda c: c(DIM, DIM, 2, NUM_TYPES), of_types, ONE_NODE_SET),
    ("ChebConv", lambda c: c(DIM, 6, 2), plain, ONE_NODE_SET),
    ("DenseGraphConv", lambda c: c(DIM, 6), plain, MATRIX),
    ("DenseSAGEConv", lambda c: c(DIM, 6), plain, MATRIX),
    ("DenseChebConv", lambda c: c(DIM, 6, 2), plain, MATRIX),
    (
        "AtomicConv",
        lambda c: c(*(torch.tensor(values) for values in ([1.0, 2.0], [0.0, 1.0], [1.0, 1.0]))),
        lambda conv, block, given: conv(block, given.x[:, :1], given.weight[:, None]),
        ONE_NODE_SET,
    ),
    ("TWIRLSConv", lambda c: c(DIM, 6, 7, 2), plain, ONE_NODE_SET),
    ("TWIRLSUnfoldingAndAttention", lambda c: c(DIM, 1, 1, 2), plain, ONE_NODE_SET),
    ("GCN2Conv", lambda c: c(DIM, 1), lambda conv, block, given: conv(block, given.x, given.x), TWICE),
    (
        "GroupRevRes",  # its group of rows is added to what the inner convolution gives for the destinations
        lambda c: c(SameWidth()),
        plain,
        TWICE,
    ),
    (
        "EGNNConv",
        lambda c: c(DIM, 7, 6, EDGE_DIM),
        lambda conv, block, given: conv(block, given.x, given.x[:, :3], given.edge),
        ONE_NODE_SET,
    ),
    ("PNAConv", lambda c: c(DIM, 6, ["mean", "max"], ["identity"], 1.0), plain, ONE_NODE_SET),
    ("DGNConv", lambda c: c(DIM, 6, ["mean", "max"], ["identity"], 1.0), plain, ONE_NODE_SET),
    ("CuGraphGATConv", lambda c: c(DIM, 3, 2), plain, ABSENT),
    ("CuGraphRelGraphConv", lambda c: c(DIM, 6, NUM_TYPES), of_types, ABSENT),
    ("CuGraphSAGEConv", lambda c: c(DIM, 6), plain, ABSENT),
]


class SameWidth(nn.Module):
    """Sums what comes in over a block's edges; the convolution inside GroupRevRes."""

    def forward(self, block: object, rows: Tensor) -> Tensor:
        import dgl

        with block.local_scope():
            block.srcdata["h"] = rows
            block.update_all(dgl.function.copy_u("h", "m"), dgl.function.sum("m", "h"))
            return block.dstdata["h"]


@pytest.fixture(params=[torch.int32, pytest.param(torch.int64, marks=pytest.mark.grid)], ids=["int32", "int64"])
def mfg(request, draw_batch):
    return draw_batch(SEEDS, [4], request.param)


@pytest.fixture
def blocks(dgl, mfg):
    """(our block, DGL's of the same edges in the same order)."""
    [ours], [only] = interop.dgl.to_blocks(mfg), mfg.mfgs
    src, dst = only.edge_index().to(ours.idtype)
    assert int(only.indptr.diff().min()) > 0, "a destination has no in-edge: some convolutions refuse that"
    return ours, dgl.create_block((src, dst), num_src_nodes=only.num_src, num_dst_nodes=only.num_dst)


def draw_inputs(block) -> Given:
    torch.manual_seed(2)
    rows, edges = block.num_src_nodes(), block.num_edges()

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape).requires_grad_()

    weight = (torch.rand(edges) + 0.5).requires_grad_()
    types = torch.randint(0, NUM_TYPES, (edges,)), torch.arange(rows) % 2
    return Given(leaf(rows, DIM), block.num_dst_nodes(), leaf(edges, EDGE_DIM), leaf(edges, DIM), weight, *types)


def computed(dgl, block, name: str, make: Callable, call: Call) -> dict[str, Tensor]:
    """Outputs, and gradients of a sum of their squares with respect to every input and parameter that there are."""
    given = draw_inputs(block)
    torch.manual_seed(3)
    conv = make(getattr(dgl.nn, name)).eval()
    out = call(conv, block, given)
    found = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    sum(output.square().sum() for output in found.values()).backward()
    leaves = {"x": given.x, "edge": given.edge, "wide_edge": given.wide_edge, "weight": given.weight}
    leaves |= dict(conv.named_parameters())
    return found | {f"gradient of {key}": leaf.grad for key, leaf in leaves.items() if leaf.grad is not None}


@pytest.mark.parametrize(
    ("name", "make", "call"), ON_BLOCKS, ids=[f"{number} {case[0]}" for number, case in enumerate(ON_BLOCKS)]
)
def test_forward_and_backward_are_those_of_dgls_own_block(dgl, blocks, name, make, call):
    ours, theirs = (computed(dgl, block, name, make, call) for block in blocks)
    assert ours.keys() == theirs.keys() and any(key.startswith("gradient") for key in ours)
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-5, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize(("name", "make", "call", "words"), NOT_ON_BLOCKS, ids=[case[0] for case in NOT_ON_BLOCKS])
def test_what_takes_no_block_refuses_dgls_own_as_well(dgl, blocks, name, make, call, words):
    kinds = []
    for block in blocks:
        with pytest.raises(Exception, match=words) as caught:
            computed(dgl, block, name, make, call)
        kinds.append(caught.type)
    assert kinds[0] is kinds[1]


def test_the_lists_hold_every_convolution_that_dgl_has(dgl):
    import dgl.nn.pytorch.conv as convolutions

    listed = {case[0] for case in ON_BLOCKS} | {case[0] for case in NOT_ON_BLOCKS}
    assert listed == set(convolutions.__all__)


def test_an_attention_layer_trains_on_every_block_of_a_batch(dgl, draw_batch):
    torch.manual_seed(0)
    batch = draw_batch([7, 3, 41, 0, 59], [4, 3, 2])  # 59 and others have no in-edge
    layers = [dgl.nn.GATConv(DIM, DIM, 1, allow_zero_in_degree=True) for _ in batch.mfgs]
    rows = leaf = torch.randn(batch.input_nodes.numel(), DIM, requires_grad=True)
    for layer, block in zip(layers, interop.dgl.to_blocks(batch), strict=True):
        rows = layer(block, rows).flatten(1)
    rows.square().sum().backward()
    assert rows.shape == (5, DIM) and bool(leaf.grad.isfinite().all()) and bool(leaf.grad.any())


def test_an_empty_batch_passes_through_an_attention_layer(dgl, draw_batch):
    layer = dgl.nn.GATConv(DIM, 3, 2, allow_zero_in_degree=True)
    for block in interop.dgl.to_blocks(draw_batch([], [4, 3])):
        assert layer(block, torch.empty(0, DIM)).shape == (0, 2, 3)

"""MFG and MiniBatch: their edges as pairs, their way to other devices, and the share of a loss."""

import ast
import dataclasses
import inspect
import re

import pytest
import torch
import torch.nn.functional as F

from fastsample_dist import NeighborSampler, SampleSpec
from fastsample_dist.sampling.mfg import MFG, MiniBatch
from tests.ops.graphs import random_csc

SEEDS = [5, 1, 30]


def draw(seeds=SEEDS, fanouts=(4, 3), **options):
    return NeighborSampler.from_spec(random_csc(), SampleSpec(fanouts=fanouts, rng_seed=9, **options)).sample(seeds, 6)


def complete(batch):
    """A batch with everything that a loader puts into it, and an attribute of the user's own."""
    batch.features = torch.arange(batch.input_nodes.numel() * 2.0).reshape(-1, 2)
    batch.labels = torch.arange(batch.seeds.numel())
    batch.mfgs = [
        dataclasses.replace(
            mfg,
            edge_values=torch.rand(mfg.num_edges),
            edge_weights=torch.rand(mfg.num_edges),
            row_sums=torch.rand(mfg.num_dst),
            includes_dst=True,
        )
        for mfg in batch.mfgs
    ]
    batch.targets, batch.seed_weights = torch.rand(batch.seeds.numel()), torch.rand(batch.seeds.numel())
    return batch


def test_edge_index_lists_local_sources_and_destinations():
    for mfg in draw().mfgs:
        pairs = [
            (int(src), dst)
            for dst in range(mfg.num_dst)
            for src in mfg.indices[int(mfg.indptr[dst]) : int(mfg.indptr[dst + 1])]
        ]
        edge_index = mfg.edge_index()
        assert edge_index.dtype == torch.int64 and edge_index.shape == (2, mfg.num_edges) and mfg.num_edges > 0
        assert list(map(tuple, edge_index.t().tolist())) == pairs


def test_edge_index_of_an_empty_batch():
    assert [tuple(mfg.edge_index().shape) for mfg in draw([]).mfgs] == [(2, 0), (2, 0)]


def test_samplers_of_neighbours_set_no_coefficients_and_add_no_self_edges():
    batch = draw()
    assert all(mfg.edge_weights is mfg.row_sums is None and not mfg.includes_dst for mfg in batch.mfgs)
    assert batch.seed_weights is None


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        (lambda count: torch.ones(count + 1), r"torch.float32 of shape \(\d+,\)"),
        (lambda count: torch.ones(count, 2), r"torch.float32 of shape \(\d+, 2\)"),
        (lambda count: torch.ones(count, dtype=torch.int64), r"torch.int64 of shape \(\d+,\)"),
    ],
    ids=["one too many", "two columns", "integers"],
)
def test_coefficients_that_are_not_one_number_per_edge_are_refused(weights, found):
    mfg = draw().mfgs[0]
    with pytest.raises(ValueError, match=rf"^edge_weights is {found}; expected a floating dtype of shape \(\d+,\)"):
        dataclasses.replace(mfg, edge_weights=weights(mfg.num_edges))


@pytest.mark.parametrize("sums", [torch.ones(4), torch.ones(3, 1), torch.ones(3, dtype=torch.int64)])
def test_row_sums_that_are_not_one_number_per_destination_are_refused(sums):
    message = rf"^row_sums is {sums.dtype} of shape {re.escape(str(tuple(sums.shape)))}; expected a floating dtype of "
    with pytest.raises(ValueError, match=message + r"shape \(3,\), one sum per destination\.$"):
        dataclasses.replace(draw().mfgs[-1], row_sums=sums)


def test_to_moves_every_tensor_and_leaves_the_batch_as_it_was():
    batch = complete(draw(edge_ids=True))
    moved = batch.to("meta", non_blocking=True)
    # per MFG: indptr, indices, src_nodes, edge ids, edge values, edge weights, row sums, original ids
    assert len(moved.tensors()) == 6 + 8 * len(batch.mfgs)
    assert all(mfg.includes_dst for mfg in moved.mfgs)
    assert {tensor.device.type for tensor in moved.tensors()} == {"meta"}
    assert moved.targets.device.type == "meta" and moved.mfgs[0].dst_orig_ids.device.type == "meta"
    assert {tensor.device.type for tensor in batch.tensors()} == {"cpu"}
    assert (moved.step, moved.num_global_seeds, moved.mfgs[0].draw) == (6, 0, batch.mfgs[0].draw)


def test_an_mfg_of_a_sampler_has_every_field_that_the_constructor_sets():
    basic = ("indptr", "indices", "src_nodes", "num_dst", "orig_ids", "draw")
    fields = {name: vars(draw().mfgs[0])[name] for name in basic}
    fields |= {"edge_weights": torch.ones(fields["indices"].numel()), "includes_dst": True}
    found, expected = MFG.of_sampler(**fields), MFG(**fields, checked=True)
    for field in dataclasses.fields(MFG):
        assert getattr(found, field.name) is getattr(expected, field.name) or field.name == "derived", field.name
    assert found.derived == {} and found.derived is not MFG.of_sampler(**fields).derived
    assert dataclasses.replace(found, includes_dst=False).edge_weights is fields["edge_weights"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.num_dst = 0


def test_an_mfg_that_layers_share_is_moved_once():
    batch = draw()
    batch.mfgs = [batch.mfgs[0], batch.mfgs[0], batch.mfgs[1]]
    first, second, last = batch.to("meta").mfgs
    assert first is second and first is not last
    assert len(batch.tensors()) == len(draw().tensors())


def test_to_where_the_batch_is_shares_its_tensors():
    batch = complete(draw())
    same = batch.to("cpu")
    assert all(a is b for a, b in zip(same.tensors(), batch.tensors(), strict=True))
    same.features = None
    assert batch.features is not None


def test_ids_that_layers_share_are_copied_once():
    """As a sampler gives them: every layer's nodes are the first of the input nodes, its known ids of all known ids."""
    batch, copied = complete(draw()), []
    known = batch.mfgs[0].dst_orig_ids
    batch.mfgs = [dataclasses.replace(mfg, known_orig_ids=known[: mfg.num_dst]) for mfg in batch.mfgs]
    moved = batch._put(lambda tensor: copied.append(tensor) or tensor.clone(), lambda mfg: False)
    for name in ("input_nodes", "seeds"):
        assert torch.equal(getattr(moved, name), getattr(batch, name))
    for one, other in zip(moved.mfgs, batch.mfgs, strict=True):
        assert torch.equal(one.src_nodes, other.src_nodes) and torch.equal(one.dst_orig_ids, other.dst_orig_ids)
        assert one.src_nodes.data_ptr() == moved.input_nodes.data_ptr() != batch.input_nodes.data_ptr()
    addresses = [tensor.data_ptr() for tensor in copied]
    assert len(set(addresses)) == len(addresses)


def test_to_a_device_that_is_not_there_is_refused_in_one_line():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError, match=r'^device is "cuda" but [^\n]*$'):
        draw().to("cuda")


def test_pin_memory_without_a_gpu_says_so():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError, match=r"^pin_memory\(\) needs a GPU, and torch finds none"):
        draw().pin_memory()


@pytest.mark.gpu
def test_a_pinned_batch_goes_to_a_gpu_and_computes_there():
    batch = complete(draw(edge_ids=True))
    pinned = batch.pin_memory()
    assert all(tensor.is_pinned() for tensor in pinned.tensors())
    there = pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert all(tensor.is_cuda for tensor in there.tensors())
    back = there.to("cpu")
    for one, other in zip(batch.mfgs, back.mfgs, strict=True):
        assert torch.equal(one.edge_index(), other.edge_index()) and torch.equal(one.edge_values, other.edge_values)
        assert torch.equal(one.edge_weights, other.edge_weights) and torch.equal(one.row_sums, other.row_sums)
        assert torch.equal(one.dst_orig_ids, other.dst_orig_ids)
    assert torch.equal(batch.features, back.features) and torch.equal(batch.targets, back.targets)


def test_moving_keeps_the_key_of_dropout():
    batch = draw()
    moved = batch.mfgs[0].to("meta")
    assert moved.orig_ids is None and moved.known_orig_ids.shape == batch.mfgs[0].dst_orig_ids.shape


def shares(num_seeds, loss_of):
    """Loss and gradients summed over batches of these sizes, as ranks would sum them; every batch's own loss too."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3).double()
    rows, labels = torch.randn(sum(num_seeds), 4, dtype=torch.float64), torch.arange(sum(num_seeds)) % 3
    total, losses, first = 0.0, [], 0
    for count in num_seeds:
        batch = draw(list(range(count)))
        batch.num_global_seeds = sum(num_seeds)
        own = slice(first, first + count)
        loss = loss_of(batch, layer(rows[own]), labels[own])
        loss.backward()
        total, first = total + loss.item(), first + count
        losses.append(loss.item())
    return total, layer.weight.grad, losses


def share(batch, logits, labels):
    return batch.mean_loss(F.cross_entropy(logits, labels, reduction="none"))


def test_shares_sum_to_the_mean_over_all_ranks_and_an_empty_one_is_zero():
    whole, whole_gradient, _ = shares([9], share)
    split, gradient, losses = shares([5, 0, 4], share)
    assert split == pytest.approx(whole, rel=1e-12) and losses[1] == 0.0
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-12, atol=1e-12)


def test_the_weight_makes_a_mean_a_share():
    def weighted(batch, logits, labels):
        return F.cross_entropy(logits, labels) * batch.loss_weight

    assert shares([5, 4], weighted)[0] == pytest.approx(shares([9], share)[0], rel=1e-12)


def test_weights_multiply_the_losses_of_their_seeds():
    batch = draw()
    batch.seed_weights = torch.tensor([0.5, 2.0, 0.0])
    assert batch.mean_loss(torch.tensor([1.0, 2.0, 6.0])).item() == (0.5 * 1 + 2 * 2) / 3
    of_columns = batch.mean_loss(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]]).double())
    assert of_columns.item() == (0.5 * 3 + 2 * 7) / 6
    batch.num_global_seeds = 5
    assert batch.mean_loss(torch.tensor([1.0, 2.0, 6.0])).item() == pytest.approx(4.5 / 5)


def test_shares_of_seeds_with_weights_sum_to_one_process():
    torch.manual_seed(1)
    weights, given = torch.rand(9), []

    def weighted(batch, logits, labels):
        first = sum(given)
        given.append(labels.numel())
        batch.seed_weights = weights[first : first + labels.numel()]
        return share(batch, logits, labels)

    whole, whole_gradient, _ = shares([9], weighted)
    given.clear()
    split, gradient, losses = shares([5, 0, 4], weighted)
    assert split == pytest.approx(whole, rel=1e-12) and losses[1] == 0.0
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-12, atol=1e-12)


def test_a_mean_of_seeds_with_weights_is_refused():
    batch = draw()
    batch.seed_weights = torch.ones(3)
    with pytest.raises(ValueError, match=r"^the seeds have weights \(seed_weights\) but the loss is a single number; "):
        batch.loss_weight  # noqa: B018


@pytest.mark.parametrize("weights", [torch.ones(4), torch.ones(3, 1), torch.ones(3, dtype=torch.int64)])
def test_seed_weights_that_are_not_one_number_per_seed_are_refused(weights):
    batch = draw()
    batch.seed_weights = weights
    with pytest.raises(ValueError, match=r"^seed_weights is .*; expected a floating dtype of shape \(3,\), one weight"):
        batch.mean_loss(torch.ones(3))


def test_an_empty_batch_has_weight_0_and_gradients_of_0():
    batch = draw([])
    batch.num_global_seeds = 7
    layer = torch.nn.Linear(4, 3)
    loss = batch.mean_loss(
        F.cross_entropy(layer(torch.empty(0, 4)), torch.empty(0, dtype=torch.int64), reduction="none")
    )
    loss.backward()
    assert batch.loss_weight == 0.0 and loss.item() == 0.0
    assert torch.equal(layer.weight.grad, torch.zeros(3, 4))


def test_a_batch_of_a_sampler_alone_has_all_seeds_there_are():
    batch = draw()
    assert batch.loss_weight == 1.0 and draw([]).loss_weight == 0.0
    assert batch.mean_loss(torch.tensor([1.0, 2.0, 6.0])).item() == 3.0
    assert batch.mean_loss(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])).item() == 4.0, (
        "the mean over columns too"
    )


def test_half_precision_is_widened():
    batch = draw()
    assert batch.mean_loss(torch.ones(3, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("losses", [torch.tensor(1.0), torch.ones(4), torch.ones(3, 0), torch.ones(0)])
def test_what_is_not_one_loss_per_seed_is_refused(losses):
    with pytest.raises(
        ValueError, match=r"one row for each of the 3 seeds; compute the loss with reduction=\"none\"\.$"
    ):
        draw().mean_loss(losses)


def test_a_step_with_fewer_seeds_than_this_rank_has_is_refused():
    batch = draw()
    batch.num_global_seeds = 2
    with pytest.raises(ValueError, match="num_global_seeds is 2 but this rank alone has 3 seeds"):
        batch.loss_weight  # noqa: B018


def test_checkers_know_that_a_transform_adds_attributes():
    (batch,) = (node for node in ast.parse(inspect.getsource(MiniBatch)).body)
    (block,) = (node for node in batch.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING" and block.body[0].name == "__setattr__"
    assert MiniBatch.__setattr__ is object.__setattr__  # at run time there is none

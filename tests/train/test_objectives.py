"""Losses and metrics of one's own and by task: ranks' shares add up to the mean of one process, metrics are exact."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastsample_dist import DistContext, DistData, DistLoader
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.sampling.mfg import DrawKey, MiniBatch
from fastsample_dist.testing import RankError, run_distributed
from fastsample_dist.train.models import GraphSAGE
from fastsample_dist.train.objectives import (
    METRICS,
    MetricSums,
    SumMetric,
    as_metric,
    check_reduction,
    loss_share,
    multilabel_loss,
    regression_loss,
)
from fastsample_dist.train.trainer import Trainer
from tests.train.task import make_model, make_targets, make_task

OUTPUTS = torch.tensor([[0.5, -1.0], [2.0, 0.25], [-0.5, 1.0], [0.0, 3.0], [1.0, 1.5]], dtype=torch.float64)
CLASSES = torch.tensor([0, 1, 1, 1, 0])
NAN = math.nan
BINARY = torch.tensor([[1, 0], [0, NAN], [NAN, 1], [1, 1], [0, 0]], dtype=torch.float64)
REALS = torch.tensor([[0.25, -2.0], [NAN, 1.0], [0.5, NAN], [1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)


def batch_of(labels, num_global_seeds, seed_weights=None):
    seeds = torch.arange(labels.shape[0])
    batch = MiniBatch(seeds=seeds, mfgs=[], input_nodes=seeds, draw=DrawKey(0, 0), labels=labels)
    batch.num_global_seeds, batch.seed_weights = num_global_seeds, seed_weights
    return batch


def per_class(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="none")


@pytest.mark.parametrize(
    ("loss_fn", "labels"),
    [
        (None, CLASSES),
        (F.cross_entropy, CLASSES),
        (nn.CrossEntropyLoss(), CLASSES),
        (per_class, CLASSES),
        (multilabel_loss, BINARY),
        (regression_loss, REALS),
        (lambda out, y: F.mse_loss(out[:, 0], y.double(), reduction="none"), CLASSES),
        (lambda out, y: (out - y.nan_to_num()).square(), REALS),
    ],
    ids=["default", "mean", "module", "per-seed", "multilabel", "regression", "mse", "matrix"],
)
def test_shares_and_gradients_of_ranks_add_up_to_one_process(loss_fn, labels):
    """Five seeds on three ranks: 3, 2 and none."""

    def share(rows):
        outputs = OUTPUTS[rows].clone().requires_grad_()
        loss = loss_share(loss_fn, outputs, batch_of(labels[rows], 5))
        loss.backward()
        return loss.item(), outputs.grad

    whole, gradient = share(slice(0, 5))
    parts = [share(slice(*rows)) for rows in ((0, 3), (3, 5), (5, 5))]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole, rel=1e-14) and parts[2][0] == 0.0
    torch.testing.assert_close(torch.cat([grad for _, grad in parts]), gradient, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("loss_fn", [None, per_class], ids=["default", "per-seed"])
def test_the_weights_of_seeds_multiply_their_losses(loss_fn):
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0])

    def share(rows):
        batch = batch_of(CLASSES[rows], 5)
        batch.seed_weights = weights[rows]
        return loss_share(loss_fn, OUTPUTS[rows], batch).item()

    expected = float((per_class(OUTPUTS, CLASSES) * weights.double()).sum() / 5)
    assert share(slice(0, 5)) == pytest.approx(expected, rel=1e-14)
    assert share(slice(0, 3)) + share(slice(3, 5)) + share(slice(5, 5)) == pytest.approx(expected, rel=1e-14)


def test_a_single_number_for_seeds_with_weights_is_refused():
    batch = batch_of(CLASSES, 5)
    batch.seed_weights = torch.ones(5)
    for of_batch in (check_reduction, loss_share):
        with pytest.raises(ValueError, match=r"^the seeds have weights .* compute one loss per seed"):
            of_batch(F.cross_entropy, OUTPUTS, batch)


def test_the_losses_by_task_leave_out_what_is_missing():
    bce = F.binary_cross_entropy_with_logits
    expected = [
        bce(OUTPUTS[0], BINARY[0]), bce(OUTPUTS[1, :1], BINARY[1, :1]), bce(OUTPUTS[2, 1:], BINARY[2, 1:]),
        bce(OUTPUTS[3], BINARY[3]), bce(OUTPUTS[4], BINARY[4]),
    ]  # fmt: skip
    torch.testing.assert_close(multilabel_loss(OUTPUTS, BINARY), torch.stack(expected))
    torch.testing.assert_close(multilabel_loss(OUTPUTS, BINARY.nan_to_num(-1)), torch.stack(expected))
    squares = [(0.0625 + 1.0) / 2, 0.5625, 1.0, (1.0 + 1.0) / 2, (1.0 + 2.25) / 2]
    torch.testing.assert_close(regression_loss(OUTPUTS, REALS), torch.tensor(squares, dtype=torch.float64))


def test_a_missing_target_has_no_gradient():
    outputs = OUTPUTS.clone().requires_grad_()
    (multilabel_loss(outputs, BINARY).sum() + regression_loss(outputs, BINARY).sum()).backward()
    assert outputs.grad.isfinite().all()
    assert (outputs.grad == 0).tolist() == BINARY.isnan().tolist()


def test_accuracy_is_that_of_the_nodes_with_a_label():
    sums = METRICS["classification"]["acc"].sums(torch.eye(4), torch.tensor([0, -1, 3, -1]))
    assert sums.tolist() == [1, 2]


@pytest.mark.parametrize("weights", [None, torch.ones(3)], ids=["plain", "of weighted seeds"])
@pytest.mark.parametrize("labels", [[0, -1, 1], [0, 2, -1]])
def test_a_label_that_is_no_column_is_refused(weights, labels):
    batch = batch_of(torch.tensor(labels), 3, seed_weights=weights)
    expected = rf"labels of the seeds are -1 to {max(labels)}; expected 0 to 1, the columns that the model gives"
    with pytest.raises(ValueError, match=expected):
        loss_share(None, OUTPUTS[:3], batch)


@pytest.mark.parametrize("loss", [multilabel_loss, regression_loss])
def test_a_model_of_another_width_is_refused(loss):
    with pytest.raises(ValueError, match=r"the model gives \(5, 1\) but labels are \(5, 2\); build it with data.num_"):
        loss(OUTPUTS[:, :1], BINARY)


@pytest.mark.parametrize(
    "loss_fn",
    [nn.CrossEntropyLoss(reduction="sum"), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]))],
    ids=["sum", "weighted mean"],
)
def test_a_single_number_that_is_no_mean_over_the_seeds_is_refused(loss_fn):
    with pytest.raises(ValueError, match=r"so it is not the mean over the seeds .*; return one loss per seed"):
        check_reduction(loss_fn, OUTPUTS, batch_of(CLASSES, 5))


@pytest.mark.parametrize("spread", [1.0, 0.03], ids=["trained", "first outputs"])  # which have nearly equal losses
@pytest.mark.parametrize("weights", [[1.0, 2, 3, 4, 5, 6], [1.0, 1, 1, 1, 1, 10]])
def test_a_weighted_mean_over_many_seeds_is_refused(weights, spread):
    loss_fn = nn.CrossEntropyLoss(weight=torch.tensor(weights))
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        outputs = spread * torch.randn(1000, 6, generator=generator)
        labels = torch.randint(0, 6, (1000,), generator=generator)
        check_reduction(F.cross_entropy, outputs, batch_of(labels, 1000))
        with pytest.raises(ValueError, match="it is not the mean over the seeds"):
            check_reduction(loss_fn, outputs, batch_of(labels, 1000))


def test_a_loss_that_is_no_tensor_is_refused():
    with pytest.raises(ValueError, match="loss_fn gives a float; expected a tensor: one loss per seed, or their mean"):
        check_reduction(lambda outputs, labels: 0.5, OUTPUTS, batch_of(CLASSES, 5))


@pytest.mark.parametrize("loss_fn", [F.cross_entropy, per_class])
def test_means_and_losses_per_seed_pass_the_check(loss_fn):
    check_reduction(loss_fn, OUTPUTS, batch_of(CLASSES, 5))


def measured(metrics, outputs, labels):
    sums = MetricSums(metrics)
    for rows in (slice(0, 3), slice(3, 3), slice(3, 5)):
        sums.add(outputs[rows], labels[rows])
    return sums.values(LocalCommunicator())


def test_the_metrics_by_task_are_those_of_all_seeds_at_once():
    assert measured(METRICS["classification"], OUTPUTS, CLASSES) == {"acc": 3 / 5}
    # predicted: [1 0] [1 1] [0 1] [0 1] [1 1]; labels: [1 0] [0 -] [- 1] [1 1] [0 0]
    assert measured(METRICS["multilabel"], OUTPUTS, BINARY) == {"f1": 6 / (6 + 3 + 1), "label_acc": 4 / 8}
    errors = (OUTPUTS - REALS)[~REALS.isnan()]
    expected = {"rmse": errors.square().mean().sqrt().item(), "mae": errors.abs().mean().item()}
    assert measured(METRICS["regression"], OUTPUTS, REALS) == pytest.approx(expected, rel=1e-12)


def test_metrics_of_ones_own_are_means_over_seeds_or_functions_of_sums():
    first = as_metric(lambda outputs, labels: outputs[:, 0] > 0)
    largest = SumMetric(lambda outputs, labels: torch.tensor([outputs.sum(), 1.0]), lambda sums: sums[0])
    found = measured({"positive": first, "total": largest}, OUTPUTS, CLASSES)
    assert found == {"positive": 3 / 5, "total": pytest.approx(OUTPUTS.sum().item())}


def test_a_metric_of_no_functions_is_refused():
    with pytest.raises(ValueError, match="^value is 3; expected a function"):
        SumMetric(lambda outputs, labels: outputs.sum(0), 3)


def test_a_metric_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"a metric gave shape \(5, 2\); expected one value for each of the 5 seeds"):
        as_metric(lambda outputs, labels: outputs).sums(OUTPUTS, CLASSES)


# ---- on ranks ----


def trained(ctx, path, loss_fn, metrics, batch_size, columns=None):
    data = DistData.load(path, ctx)
    model = make_model("sage", dropout=0.0)
    if columns is not None:
        torch.manual_seed(0)
        model = GraphSAGE(data.feature_dim, 16, columns, 2, 0.0).double()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), ctx, loss_fn=loss_fn, metrics=metrics)
    losses = [trainer.run_epoch(DistLoader(data, (-1, -1), batch_size)).loss for _ in range(3)]
    found = trainer.evaluate(DistLoader(data, (-1, -1), 7, split="val", shuffle=False))
    return losses, found, [parameter.detach() for parameter in model.parameters()]


def errors_of(outputs, labels):
    return F.cross_entropy(outputs, labels, label_smoothing=0.2, reduction="none")


def confident(outputs, labels):
    return outputs.softmax(dim=1).amax(dim=1) > 0.5


def assert_ranks_equal_one_process(one, two, *args):
    with DistContext(LocalCommunicator()) as ctx:
        losses, found, parameters = trained(ctx, one, *args[:2], 1000, *args[2:])
    for other in run_distributed(2, trained, args=(two, *args[:2], 1000, *args[2:])):
        assert other[0] == pytest.approx(losses, rel=1e-12)
        assert other[1] == pytest.approx(found, rel=1e-12)
        torch.testing.assert_close(other[2], parameters, rtol=0, atol=1e-10)
    return losses, found


def test_ranks_train_a_loss_of_ones_own_as_one_process_does(tmp_path):
    paths = []
    for parts in (1, 2):
        (tmp_path / str(parts)).mkdir()
        paths.append(make_task(tmp_path / str(parts), parts).path)
    losses, found = assert_ranks_equal_one_process(*paths, errors_of, {"sure": confident})
    assert losses[-1] < losses[0] and found.keys() == {"sure"}


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_ranks_train_other_labels_as_one_process_does(tmp_path, kind):
    paths = [make_targets(tmp_path, parts, kind) for parts in (1, 2)]
    losses, found = assert_ranks_equal_one_process(*paths, None, None, 2)
    assert losses[-1] < losses[0] and isinstance(found, float)


def refused(ctx, path):
    trained(ctx, path, nn.CrossEntropyLoss(reduction="sum"), None, 10)


def test_all_ranks_refuse_a_sum(tmp_path):
    with pytest.raises(RankError) as error:
        run_distributed(2, refused, args=(make_task(tmp_path, 2).path,))
    assert str(error.value).count("so it is not the mean over the seeds and ranks could not share it") >= 2

"""What models and layers of your own must offer, and the checks of it: one clear line where they do not.

    Trainer, checkpoints   any nn.Module called as model(mfgs, features) -> [num_seeds, outputs]
    layerwise              the same, which it gives all neighbours; `num_layers` is the number of its MFGs. With
                           apply_layer too (LayerwiseModel), every node passes every layer once, which is much less work
    LayeredModel           makes a LayerwiseModel of layers (Layer), with activation and dropout between them

An MFG `mfg` has indptr, indices, num_src and num_dst; the first num_dst of its num_src source nodes are its
destinations. mfgs[0] is the input side, mfgs[-1] the seed side; of a subgraph there may be one MFG for all layers.
`mfg.edge_weights`, `mfg.row_sums` and `mfg.includes_dst` are there for models to apply; see MFG.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from fastsample_dist.sampling.mfg import MFG


class Layer(Protocol):
    """One layer, an nn.Module: the rows of an MFG's sources in, the rows of its destinations out."""

    def __call__(self, mfg: MFG, rows: Tensor) -> Tensor:
        """[mfg.num_src, columns in] -> [mfg.num_dst, columns out]; rows[: mfg.num_dst] are the destinations'."""


class LayerwiseModel(Protocol):
    """A model, an nn.Module, that can compute one layer for itself.

    Attributes:
      num_layers: layers, and MFGs of a batch.
      training: as every nn.Module has it, like `parameters`, `train` and `eval`.
    """

    num_layers: int
    training: bool

    def apply_layer(self, number: int, mfg: MFG, rows: Tensor) -> Tensor:
        """One layer with the activation that follows it; for evaluation, so without dropout.

        Args:
          number: of the layer, 0 is next to the features.
          mfg: its edges.
          rows: [mfg.num_src, columns in].
        Returns:
          [mfg.num_dst, columns out].
        """

    def parameters(self) -> Iterator[Tensor]:
        """At least one; rows are computed in its dtype and on its device."""

    def train(self, mode: bool = True) -> nn.Module:
        """As nn.Module."""

    def eval(self) -> nn.Module:
        """As nn.Module."""


def check_call(what: str, module: object, *arguments: str) -> None:
    """Refuse what cannot be called with these arguments.

    Args:
      what: names it in the message, such as "layer 0".
      module: an nn.Module.
      *arguments: their names, for the message.
    Raises:
      ValueError: not an nn.Module, or its forward takes other arguments.
    """
    call = f"{what.split()[0]}({', '.join(arguments)})"
    if not isinstance(module, nn.Module):
        raise ValueError(f"{what} is {type(module).__name__}; expected a torch.nn.Module called as {call}.")
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # compiled: nothing is known of it
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ValueError(
            f"{what} is called as {call} but {type(module).__name__} has forward{signature}; give it that signature."
        ) from None


def check_kind(name: str, value: object, kind: type, such_as: str) -> None:
    """Refuse an argument of another kind.

    Args:
      name: of the argument.
      value: as given.
      kind: that is expected.
      such_as: how one is made, for the message.
    Raises:
      ValueError: as said.
    """
    if not isinstance(value, kind):
        found = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise ValueError(f"{name} is {found}; expected an object of {kind.__name__}, such as {such_as}.")


def check_trained(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: object) -> None:
    """Refuse what a trainer cannot train: no model called as model(mfgs, features), no optimizer, one whose step
    computes the loss itself (LBFGS), where it is computed already, and one that has no parameter of the model; and a
    scheduler that is none, or is of another optimizer, whose learning rate alone it would change.

    Raises:
      ValueError: as said.
    """
    check_call("model", model, "mfgs", "features")
    such_as = "torch.optim.Adam(model.parameters())"
    check_kind("optimizer", optimizer, torch.optim.Optimizer, such_as)
    name = type(optimizer).__name__
    try:
        inspect.signature(type(optimizer).step).bind(optimizer)  # a scheduler replaces that of the object
    except ValueError:  # compiled: nothing is known of it
        pass
    except TypeError:
        raise ValueError(
            f"optimizer is {name}, whose step needs a closure; expected one that steps without, such as {such_as}."
        ) from None
    own = {id(parameter) for parameter in model.parameters()}
    if own.isdisjoint(id(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError(
            f"optimizer is {name} of no parameter of the model, which it would not train; make it of this model, "
            f"such as {such_as}."
        )
    if scheduler is None:
        return
    such_as = "torch.optim.lr_scheduler.StepLR(optimizer, 10)"
    if isinstance(scheduler, type) or not (hasattr(scheduler, "step") and hasattr(scheduler, "state_dict")):
        check_kind("scheduler", scheduler, LRScheduler, such_as)
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError(
            f"scheduler is {type(scheduler).__name__} of another optimizer than the trainer's; make it of the one that "
            f"is passed, such as {such_as}."
        )


def check_loader(loader: object, has: str = "epoch") -> None:
    """Refuse what gives no batches by epoch.

    Args:
      loader: as given; one of the user's own need not be a BatchLoader.
      has: the attribute that is read besides its batches.
    Raises:
      ValueError: as said.
    """
    if isinstance(loader, type) or not (hasattr(loader, "__iter__") and hasattr(loader, has)):
        found = f"the class {loader.__name__}" if isinstance(loader, type) else f"a {type(loader).__name__}"
        raise ValueError(
            f"loader is {found}; expected a loader of batches, such as fsd.DistLoader(data, [10, 5], 1000)."
        )


def check_rows(what: str, rows: object, count: int, unit: str) -> None:
    """Refuse a result that is not one row per node.

    Args:
      what: made it, for the message.
      rows: the result.
      count: rows expected.
      unit: what there is one row for, such as "seed".
    Raises:
      ValueError: not a tensor with that many rows.
    """
    if isinstance(rows, Tensor) and rows.dim() > 0 and rows.shape[0] == count:
        return
    found = f"shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
    raise ValueError(f"{what} returned {found}; expected [{count}, columns], one row per {unit}.")


def check_outputs(model: nn.Module, outputs: object, num_seeds: int, num_columns: int | None) -> None:
    """Refuse what a model returned for a batch if it is not one row per seed.

    Args:
      model: whose outputs they are.
      outputs: what it returned.
      num_seeds: of the batch.
      num_columns: classes, the least that is expected (outputs may be padded); None: any.
    Raises:
      ValueError: another type or shape.
    """
    name = type(model).__name__
    advice = "return a tensor of scores"
    if isinstance(outputs, Tensor):
        advice = "every MFG takes one layer, so pass as many layers as fanouts"
    try:
        check_rows(name, outputs, num_seeds, "seed")
    except ValueError as error:
        raise ValueError(f"{str(error).rstrip('.')}; {advice}.") from None
    if num_columns is not None and (outputs.dim() != 2 or outputs.shape[1] < num_columns):
        raise ValueError(
            f"{name} returned shape {tuple(outputs.shape)} but the partition has {num_columns} classes; build it with "
            f"{num_columns} columns or more (data.num_classes)."
        )


def check_layerwise(model: nn.Module | LayerwiseModel, num_layers: int | None) -> None:
    """Refuse what layer-wise inference cannot compute: neither a LayerwiseModel nor a module of (mfgs, features).

    Args:
      model: the model.
      num_layers: what the caller says of a model that does not say it itself.
    Raises:
      ValueError: names what is lacking.
    """
    name = type(model).__name__
    for lacking in ("parameters", "train", "eval"):
        if not hasattr(model, lacking):
            raise ValueError(f"{name} has no {lacking}; layerwise expects a torch.nn.Module.")
    own = getattr(model, "num_layers", None)
    if own is None and num_layers is None:
        raise ValueError(f"{name} has no num_layers, the number of its MFGs; add it, or pass num_layers to layerwise.")
    if own is not None and num_layers is not None and own != num_layers:
        raise ValueError(f"num_layers is {num_layers} but {name}.num_layers is {own!r}; leave the argument out.")
    count = num_layers if own is None else own
    if not isinstance(count, int) or count < 1:
        what = "num_layers" if own is None else f"{name}.num_layers"
        raise ValueError(f"{what} is {count!r}; expected an integer >= 1.")
    if not hasattr(model, "apply_layer"):
        check_call("model", model, "mfgs", "features")
    else:
        _check_apply_layer(model)
    if next(iter(model.parameters()), None) is None:
        raise ValueError(f"{name} has no parameters; layerwise computes in the dtype and on the device of the first.")


def _check_apply_layer(model: LayerwiseModel) -> None:
    signature = inspect.signature(model.apply_layer)
    try:
        signature.bind(0, None, None)
    except TypeError:
        raise ValueError(
            f"layerwise calls model.apply_layer(number, mfg, rows) but {type(model).__name__} has "
            f"apply_layer{signature}; give it that signature."
        ) from None


def check_same_model(now: Mapping[str, Tensor], then: Mapping[str, Tensor]) -> None:
    """Refuse parameters and buffers of other names or shapes."""
    shapes = [{name: tuple(tensor.shape) for name, tensor in state.items()} for state in (now, then)]
    for name in sorted(shapes[0].keys() | shapes[1].keys()):
        is_now, was_then = (found.get(name, "missing") for found in shapes)
        if is_now != was_then:
            raise ValueError(f"another model: {name} was {was_then} and is {is_now}; build the model that was saved.")

"""Gradients of all ranks, summed: behind one small interface, whatever the backend.

The loss of a rank is divided by the seeds of all ranks (metrics.seed_loss), so the SUM of the ranks' gradients is the
gradient on the union batch. Under torch.distributed, DistributedDataParallel starts the sum of one bucket while the
backward pass computes the next (its averaging is replaced by a communication hook); under MPI one flat buffer is
summed after the backward pass; one process sums nothing. Initial parameters are those of rank 0. Everything goes
through the context's communicator and is counted: purposes "parameters" and "gradients".
"""

# No postponed annotations here: DistributedDataParallel compares those of its hook with the classes themselves.
import inspect
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fastsample_dist.comm.base import Communicator
from fastsample_dist.comm.context import DistContext
from fastsample_dist.device.clock import Clock, Lap, clock_of
from fastsample_dist.train.generators import kept_generators


class LocalGradients:
    """One process: gradients are complete after backward. Also the interface of the other two.

    Args:
      model: the user's model; its parameters are updated in place.
    Attributes:
      model: the same.
      module: what forward is called on while training.
      waiting: when the last backward waited for other ranks' gradients; None: never.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.module = model
        self.waiting: Lap | None = None

    @property
    def wait_s(self) -> float:
        """Seconds that the last backward waited for other ranks' gradients."""
        return 0.0 if self.waiting is None else self.waiting.seconds

    def backward(self, loss: Tensor) -> None:
        """Make the gradient of all ranks' losses the `.grad` of every parameter.

        One that the loss of a rank does not reach takes part with zeros. One process leaves it without a gradient, and
        adds to those that it finds.

        Collective: every rank must call this, once per step.

        Raises:
          RuntimeError: the sum failed or passed its deadline; names rank, step and purpose.
          ValueError: on several ranks, other parameters require gradients than at the start; a sparse gradient.
        """
        loss.backward()

    def rehearse(self, compute_loss: Callable[[], Tensor]) -> None:
        """Make the next step sum gradients as every step of a long run does. Changes no parameter.

        Collective: every rank must call this, before the first step of a resumed run.

        Args:
          compute_loss: the loss of some batch, by `module`; called at most once.
        """


class _SummedGradients(LocalGradients):
    """What those of several ranks share. Collective: every rank must construct this, with the same model.

    Args:
      model: the user's model.
      comm: the ranks' communicator.
    """

    def __init__(self, model: nn.Module, comm: Communicator) -> None:
        super().__init__(model)
        broadcast_parameters(model, comm)
        self._named = [(name, parameter, parameter.requires_grad) for name, parameter in model.named_parameters()]
        self._trained = [parameter for _, parameter, is_trained in self._named if is_trained]
        self._clock = clock_of(next(model.parameters()).device)

    def _forget(self) -> None:
        """Remove the gradients of the step before, those of parameters that no optimizer has among them.

        Raises:
          ValueError: see `backward`.
        """
        for name, parameter, was_trained in self._named:
            if parameter.requires_grad != was_trained:
                raise ValueError(
                    f"requires_grad of {name} is {not was_trained} but was {was_trained} when the Trainer was made, "
                    "which chose then whose gradients ranks sum; set it before, or make another Trainer."
                )
            parameter.grad = None

    def _unreached(self) -> list[nn.Parameter]:
        """Those that this rank's loss has not reached."""
        return [parameter for parameter in self._trained if parameter.grad is None]


class DDPGradients(_SummedGradients):
    """torch.distributed: DistributedDataParallel, its buckets summed by the communicator.

    One message does not pass the communicator: at the second step's forward pass DistributedDataParallel broadcasts
    from rank 0 the order in which gradients became ready (the numbers of the parameters in their buckets), in a wait
    of C++ that names nothing. So ranks meet before it, in a barrier of purpose "bucket_order".

    Collective: every rank must construct this, with the same model.

    Args:
      model: the user's model.
      comm: communicator over a torch process group.
    """

    def __init__(self, model: nn.Module, comm: Communicator) -> None:
        super().__init__(model, comm)
        self.module = DistributedDataParallel(
            model, process_group=comm.process_group, gradient_as_bucket_view=True, **_no_syncs_of_its_own()
        )
        self._buckets = _BucketSum(comm, self._clock, {id(parameter): name for name, parameter, _ in self._named})
        self.module.register_comm_hook(None, self._buckets.start)
        self.module.register_forward_pre_hook(self._buckets.meet)

    def backward(self, loss: Tensor) -> None:
        """See LocalGradients. What backward takes after its last bucket is complete counts as waiting."""
        self._forget()
        try:
            loss.backward()
            if unreached := self._unreached():  # no bucket is complete without them
                torch.autograd.backward(unreached, [torch.zeros_like(parameter) for parameter in unreached])
            self._buckets.finish()
        except RuntimeError as error:
            self._raise_own(error)
            raise
        self.waiting = Lap(self._clock, self._buckets.last, self._clock.mark())

    def _raise_own(self, error: RuntimeError) -> None:
        """Raise what went wrong in a hook: torch wraps it in a message of its own, with the traceback as text."""
        if KeyboardInterrupt.__name__ in str(error):
            raise KeyboardInterrupt from None
        if self._buckets.sparse is not None:
            raise ValueError(_sparse(self._buckets.sparse)) from None
        failure = self._buckets.comm.failure
        if failure is not None:
            raise RuntimeError(f"{failure}.") from None

    def rehearse(self, compute_loss: Callable[[], Tensor]) -> None:
        """See LocalGradients. After its first backward pass DistributedDataParallel rearranges its buckets, and the
        place of a gradient in its bucket decides in which order more than two ranks are summed. What the forward pass
        draws and its buffers are as before."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        with kept_generators(next(self.model.parameters()).device):
            self.backward(compute_loss())
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        self.model.zero_grad(set_to_none=True)


class _BucketSum:
    """The communication hook. It must not know the module: the module's C++ reducer owns the hook, and a cycle through
    C++ is never collected, so the process group's threads would outlive the run and be killed at exit.

    The backward pass waits in C++ for the future that a hook returns, where no Ctrl-C gets through. A bucket of CPU
    memory is summed in place, and gradients are views of their buckets, so its future is complete at once and `finish`
    waits for the sum. On a GPU that wait only orders streams.
    """

    def __init__(self, comm: Communicator, clock: Clock, names: Mapping[int, str]) -> None:
        self.comm, self._clock, self._names = comm, clock, names
        self.last = clock.mark()  # when the last bucket was complete
        self.sparse: str | None = None  # whose gradient was refused
        self._sums: list[Callable[[], None]] = []  # waits for those under way
        self._ordered: bool | None = None  # False: the next forward pass orders the buckets; None: one later than that

    def meet(self, *_: object) -> None:
        """Before a forward pass: wait for all ranks where DistributedDataParallel is about to."""
        if self._ordered is False and torch.is_grad_enabled():
            self._ordered = True
            self.comm.barrier(purpose="bucket_order")

    def start(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        self.last = self._clock.mark()
        if (gradient := bucket.buffer()).is_sparse:  # of one parameter, alone in its bucket
            self.sparse = self._names[id(bucket.parameters()[0])]
            check_dense(self.sparse, gradient)
        if gradient.is_cuda:
            return self.comm.all_reduce_future(gradient, purpose="gradients")
        self._sums.append(self.comm.all_reduce_start(gradient, purpose="gradients"))
        begun: torch.futures.Future[Tensor] = torch.futures.Future()
        begun.set_result(gradient)
        return begun

    def finish(self) -> None:
        """Wait for the sums of a backward pass."""
        while self._sums:
            self._sums.pop(0)()
        if self._ordered is None:
            self._ordered = False


def _no_syncs_of_its_own() -> dict[str, bool]:
    """Options with which DistributedDataParallel broadcasts no parameters or buffers, by this torch's names."""
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return {name: False for name in (buffers, "init_sync") if name in known}


class FlatGradients(_SummedGradients):
    """Any communicator: one sum over all gradients as one vector, after backward.

    Collective: every rank must construct this, with the same model.

    Args:
      model: the user's model.
      comm: the ranks' communicator.
    """

    def __init__(self, model: nn.Module, comm: Communicator) -> None:
        super().__init__(model, comm)
        self._comm = comm

    def backward(self, loss: Tensor) -> None:
        """See LocalGradients."""
        self._forget()
        loss.backward()
        begin = self._clock.mark()
        for parameter in self._unreached():
            parameter.grad = torch.zeros_like(parameter)
        for name, parameter, is_trained in self._named:
            if is_trained:
                check_dense(name, parameter.grad)
        gradients = [parameter.grad for parameter in self._trained]
        _write_back(self._comm.all_reduce(_flat(gradients), purpose="gradients"), gradients)
        self.waiting = Lap(self._clock, begin, self._clock.mark())


def wrap_model(model: nn.Module, ctx: DistContext) -> LocalGradients:
    """Make `model` train on all ranks: DDPGradients under torch.distributed, FlatGradients under MPI.

    Collective: every rank must call this. All ranks continue with rank 0's parameters.

    Args:
      model: the same architecture on every rank, on the context's device.
      ctx: the rank's context.
    Returns:
      What to call forward (`.module`) and `.backward` on; one process gets LocalGradients.
    Raises:
      ValueError: the ranks' models differ in size.
    """
    if ctx.world_size == 1:
        return LocalGradients(model)
    return (DDPGradients if ctx.comm.uses_torch_distributed else FlatGradients)(model, ctx.comm)


def check_dense(name: str, gradient: Tensor | None) -> None:
    """Refuse a sparse gradient, which several ranks cannot sum.

    Args:
      name: of the parameter.
      gradient: of it; None: the loss does not reach it.
    Raises:
      ValueError: it is sparse.
    """
    if gradient is not None and gradient.layout != torch.strided:
        raise ValueError(_sparse(name))


def _sparse(name: str) -> str:
    return (
        f"the gradient of {name} is sparse, which several ranks cannot sum; build the model with sparse=False, or "
        "train in one process."
    )


def broadcast_parameters(model: nn.Module, comm: Communicator) -> None:
    """Give every rank the parameters and buffers of rank 0. Purpose "parameters".

    Collective: every rank must call this.

    Raises:
      ValueError: the ranks' models differ in size (on all ranks).
    """
    by_dtype: dict[torch.dtype, list[Tensor]] = {}  # so that no number is rounded to another type
    for tensor in (*model.parameters(), *model.buffers()):
        by_dtype.setdefault(tensor.dtype, []).append(tensor.detach())
    counts = {str(dtype): sum(tensor.numel() for tensor in tensors) for dtype, tensors in by_dtype.items()}
    sizes = comm.all_gather_object(counts, purpose="parameters")
    if any(found != sizes[0] for found in sizes):
        totals = [sum(found.values()) for found in sizes]
        shown = totals if len(set(totals)) > 1 else sizes
        raise ValueError(f"the model has {shown} parameters on the ranks; build the same model on every rank.")
    for dtype in sorted(by_dtype, key=str):
        _write_back(comm.broadcast(_flat(by_dtype[dtype]), purpose="parameters"), by_dtype[dtype])


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All elements as one vector of the widest of their dtypes."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _write_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """The inverse of `_flat`, in place."""
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))

"""The entry points of which the operators of a model's layers are made, under one set of names for CPU and CUDA.

An operator is written once and gets the core that its tensors belong to. A description of type
`library.Aggregation` borrows the tensors whose addresses it holds; one of type `library.ActDropout` keeps them.
"""

from __future__ import annotations

from ctypes import POINTER, byref, c_int64, c_void_p

import torch
from torch import Tensor

from fastsample_dist.ops import cuda, library
from fastsample_dist.ops.library import ActDropout, Aggregation

cuda.DECLARED.functions(
    fs_cuda_check_edges=(POINTER(Aggregation), c_void_p, c_void_p),
    fs_cuda_aggregate=(POINTER(Aggregation), c_void_p, c_void_p, c_int64, c_void_p, c_void_p),
    fs_cuda_aggregate_backward_workspace=(POINTER(Aggregation), POINTER(c_int64), c_void_p),
    fs_cuda_aggregate_backward=(
        POINTER(Aggregation), c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p,
    ),
    fs_cuda_act_dropout=(POINTER(ActDropout), c_void_p, c_void_p, c_void_p),
    fs_cuda_act_dropout_backward=(POINTER(ActDropout), c_void_p, c_void_p, c_void_p, c_void_p),
    fs_cuda_act_dropout_backward_sums=(
        POINTER(ActDropout), c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
    ),
)  # fmt: skip

SUM_ROWS = 256  # rows whose sums are made one after the other
library.DECLARED.values(FS_SUM_ROWS=SUM_ROWS)


class CpuCore:
    """libfastsample.so. Every aggregation checks its edges."""

    def check_edges(self, spec: Aggregation, indptr: Tensor, indices: Tensor) -> None:
        """Nothing: the calls check."""

    def aggregate(self, spec: Aggregation, x: Tensor, out: Tensor, arg: Tensor) -> None:
        """Fill `out` [num_dst, width], whose rows may be apart, and for "max" arg [num_dst, width]."""
        library.call(
            library.core().fs_aggregate, spec, x.data_ptr(), out.data_ptr(), out.stride(0), arg.data_ptr()
        )  # fmt: skip

    def aggregate_concat(self, spec: Aggregation, x: Tensor, out: Tensor, arg: Tensor) -> None:
        """Fill `out` [num_dst, 2 * width], contiguous, with own rows and aggregates; arg as for `aggregate`."""
        library.call(library.core().fs_aggregate_concat, spec, x.data_ptr(), out.data_ptr(), arg.data_ptr())

    def aggregate_concat_backward(self, spec: Aggregation, grad: Tensor, grad_x: Tensor) -> None:
        """Fill grad_x from grad [num_dst, 2 * width], contiguous; "sum" or "mean"."""
        library.call(library.core().fs_aggregate_concat_backward, spec, grad.data_ptr(), grad_x.data_ptr())

    def aggregate_backward(
        self, spec: Aggregation, x: Tensor | None, arg: Tensor | None, grad: Tensor, grads: tuple[Tensor | None, ...]
    ) -> None:
        """Fill grads, (grad_x, grad_weights) or None where not needed; grad's rows may be apart."""
        library.call(library.core().fs_aggregate_backward, spec, *_grad_pointers(x, arg, grad, grads))

    def act_dropout(self, spec: ActDropout, x: Tensor, y: Tensor) -> None:
        """Fill y, which may be x."""
        library.call(library.core().fs_act_dropout, spec, x.data_ptr(), y.data_ptr())

    def act_dropout_backward(
        self, spec: ActDropout, y: Tensor, grad: Tensor, grad_x: Tensor, sums: Tensor | None = None
    ) -> None:
        """Fill grad_x from the forward result y and its gradient; add the sum of its rows to `sums` [width] if given,
        float64 for float64 rows, else float32.
        """
        core, pointers = library.core(), (y.data_ptr(), grad.data_ptr(), grad_x.data_ptr())
        if sums is None:
            library.call(core.fs_act_dropout_backward, spec, *pointers)
        else:
            library.call(core.fs_act_dropout_backward_sums, spec, *pointers, sums.data_ptr())

    def weight_gradient(
        self, spec: ActDropout, y: Tensor, grad: Tensor, grad_x: Tensor | None, sums: Tensor | None, inputs: Tensor,
        out: Tensor,
    ) -> None:  # fmt: skip
        """`act_dropout_backward`, and fill `out` [width, columns] with grad_x^T inputs, the gradient of the weight.

        On matrix units rows are multiplied while they are in the cache, and grad_x may be None: not asked for.
        """
        if grad_x is not None and not on_matrix_units(grad_x):
            self.act_dropout_backward(spec, y, grad, grad_x, sums)
            weight_product(grad_x, inputs, out)
            return
        pointers = (y.data_ptr(), grad.data_ptr(), library.address(grad_x), library.address(sums), inputs.data_ptr())
        library.call(library.core().fs_weight_gradient, spec, *pointers, inputs.shape[1], out.data_ptr())


class CudaCore:
    """The CUDA library. A call enqueues its work; edges that do not exist are skipped."""

    def check_edges(self, spec: Aggregation, indptr: Tensor, indices: Tensor) -> None:
        """Refuse edges that do not exist, with the CPU's words. Waits for the device.

        Raises:
          ValueError: names the first.
        """
        is_bad = torch.zeros(1, dtype=torch.int32, device=indptr.device)
        cuda.call("fs_cuda_check_edges", indptr, spec, is_bad.data_ptr())
        if is_bad.item():
            indptr, indices = indptr.cpu(), indices.cpu()
            on_host = Aggregation(
                indptr.data_ptr(), indices.data_ptr(), spec.num_dst, spec.num_src, spec.num_edges, spec.id_type,
                spec.reduce, None, 1, 0, spec.type, 1,
            )  # fmt: skip
            library.call(library.core().fs_aggregate, on_host, None, None, 0, None)  # no columns: it only refuses
            raise AssertionError("the CPU accepts edges that the GPU refused")

    def aggregate(self, spec: Aggregation, x: Tensor, out: Tensor, arg: Tensor) -> None:
        """As CpuCore's."""
        cuda.call("fs_cuda_aggregate", x, spec, x.data_ptr(), out.data_ptr(), out.stride(0), arg.data_ptr())

    def aggregate_concat(self, spec: Aggregation, x: Tensor, out: Tensor, arg: Tensor) -> None:
        """As CpuCore's."""
        out[:, : spec.width] = x[: spec.num_dst]
        self.aggregate(spec, x, out[:, spec.width :], arg)

    def aggregate_concat_backward(self, spec: Aggregation, grad: Tensor, grad_x: Tensor) -> None:
        """As CpuCore's."""
        self.aggregate_backward(spec, None, None, grad[:, spec.width :], (grad_x, None))
        grad_x[: spec.num_dst] += grad[:, : spec.width]

    def aggregate_backward(
        self, spec: Aggregation, x: Tensor | None, arg: Tensor | None, grad: Tensor, grads: tuple[Tensor | None, ...]
    ) -> None:
        """As CpuCore's."""
        num_bytes = c_int64(0)
        if grads[0] is not None:
            cuda.call("fs_cuda_aggregate_backward_workspace", grad, spec, byref(num_bytes))
        workspace = torch.empty(num_bytes.value, dtype=torch.uint8, device=grad.device)
        pointers = (*_grad_pointers(x, arg, grad, grads), workspace.data_ptr())
        cuda.call("fs_cuda_aggregate_backward", grad, spec, *pointers)

    def act_dropout(self, spec: ActDropout, x: Tensor, y: Tensor) -> None:
        """As CpuCore's."""
        cuda.call("fs_cuda_act_dropout", x, spec, x.data_ptr(), y.data_ptr())

    def act_dropout_backward(
        self, spec: ActDropout, y: Tensor, grad: Tensor, grad_x: Tensor, sums: Tensor | None = None
    ) -> None:
        """As CpuCore's."""
        pointers = (y.data_ptr(), grad.data_ptr(), grad_x.data_ptr())
        if sums is None:
            cuda.call("fs_cuda_act_dropout_backward", grad, spec, *pointers)
            return
        workspace = sums.new_empty((-(-spec.num_rows // SUM_ROWS), spec.width))
        pointers += (sums.data_ptr(), workspace.data_ptr())
        cuda.call("fs_cuda_act_dropout_backward_sums", grad, spec, *pointers)

    def weight_gradient(
        self, spec: ActDropout, y: Tensor, grad: Tensor, grad_x: Tensor | None, sums: Tensor | None, inputs: Tensor,
        out: Tensor,
    ) -> None:  # fmt: skip
        """As CpuCore's."""
        rows = torch.empty_like(y) if grad_x is None else grad_x
        self.act_dropout_backward(spec, y, grad, rows, sums)
        weight_product(rows, inputs[: rows.shape[0]], out)


def on_matrix_units(rows: Tensor) -> bool:
    """Whether products of such rows run on the processor's matrix units, by this library."""
    return rows.dtype == torch.bfloat16 and rows.device.type == "cpu" and bool(library.core().fs_has_matrix_units())


def weight_product(rows: Tensor, inputs: Tensor, out: Tensor) -> None:
    """Fill `out` [width, columns] with rows^T inputs, both contiguous; as `CpuCore.weight_gradient` for equal rows."""
    if not on_matrix_units(rows):
        torch.mm(rows.t(), inputs, out=out)
        return
    as_they_are = ActDropout(
        None, *rows.shape, library.type_code(rows), library.ACTIVATION_CODES["identity"], 0, library.num_threads(),
    )  # fmt: skip
    CPU.weight_gradient(as_they_are, rows, rows, None, None, inputs, out)


def _grad_pointers(
    x: Tensor | None, arg: Tensor | None, grad: Tensor, grads: tuple[Tensor | None, ...]
) -> tuple[int | None, ...]:
    own = (library.address(x), library.address(arg), grad.data_ptr(), grad.stride(0))
    return *own, *(library.address(tensor) for tensor in grads)


LayerCore = CpuCore | CudaCore
CPU, CUDA = CpuCore(), CudaCore()

// act_dropout: ReLU or identity fused with dropout. The mask is drawn from the node's own stream (core/philox.h, domain
// kDropout), so it is stored nowhere and is the same on every rank and thread.
#include "act_dropout.h"

#include <algorithm>

#include "parallel_rows.h"
#include "row_sums.h"
#include "status.h"
#include "vector/vector_kernels.h"

namespace fs {
namespace {

template <typename Real>
void backward_sums(const FsActDropout& spec, const void* y, const void* grad_y, void* grad_x, Real* sums) {
  RowSums<Real> row_sums(spec);
  const int64_t block_bytes = FS_SUM_ROWS * spec.width * 4;
  parallel_rows(sum_blocks(spec.num_rows), block_bytes, spec.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * FS_SUM_ROWS, last = std::min(first + FS_SUM_ROWS, spec.num_rows);
      vector_kernels().act_dropout_grad(spec, y, grad_y, grad_x, first, last, row_sums.block(block));
    }
  });
  row_sums.add_to(sums);
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_act_dropout(const FsActDropout* spec, const void* x, void* y) {
  const FsStatus status = fs::check_act_dropout("act_dropout", *spec);
  if (status != FS_OK) return status;
  fs::parallel_rows(spec->num_rows, spec->width * 4, spec->num_threads,
                    [&](int64_t begin, int64_t end) { fs::vector_kernels().act_dropout(*spec, x, y, begin, end); });
  return FS_OK;
}

FsStatus fs_act_dropout_backward(const FsActDropout* spec, const void* y, const void* grad_y, void* grad_x) {
  const FsStatus status = fs::check_act_dropout("act_dropout_backward", *spec);
  if (status != FS_OK) return status;
  fs::parallel_rows(spec->num_rows, spec->width * 4, spec->num_threads, [&](int64_t begin, int64_t end) {
    fs::vector_kernels().act_dropout_grad(*spec, y, grad_y, grad_x, begin, end, nullptr);
  });
  return FS_OK;
}

FsStatus fs_act_dropout_backward_sums(const FsActDropout* spec, const void* y, const void* grad_y, void* grad_x,
                                      void* sums) {
  const FsStatus status = fs::check_act_dropout("act_dropout_backward_sums", *spec);
  if (status != FS_OK) return status;
  return fs::guarded("act_dropout_backward_sums", [&] {
    if (spec->type == FS_FLOAT64) {
      fs::backward_sums(*spec, y, grad_y, grad_x, static_cast<double*>(sums));
    } else {
      fs::backward_sums(*spec, y, grad_y, grad_x, static_cast<float*>(sums));
    }
    return FS_OK;
  });
}

}  // extern "C"

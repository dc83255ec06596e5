// act_dropout: ReLU or identity fused with dropout. The mask is drawn from the node's own stream (core/philox.h, domain
// kDropout), so it is stored nowhere and is the same on every rank and thread.
#include "act_dropout.h"

#include "parallel_rows.h"
#include "status.h"
#include "vector/vector_kernels.h"

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
    fs::vector_kernels().act_dropout_grad(*spec, y, grad_y, grad_x, begin, end);
  });
  return FS_OK;
}

}  // extern "C"

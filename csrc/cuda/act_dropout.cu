// act_dropout on CUDA: ReLU or identity fused with dropout, and its gradient; the CPU's masks and bits.
//
// A thread makes one Philox block of a row's stream and handles the eight columns whose variates it gives, sixteen
// apart (core/act_dropout.h): sixteen neighbouring threads read and write sixteen neighbouring columns.
#include "act_dropout.h"
#include "device.cuh"
#include "philox.h"

namespace fs {
namespace {

// Which columns of which row a thread handles: first_column + 16 v, v < 8.
struct BlockPlace {
  int64_t row, first_column;
  uint64_t block;
};

FS_DEVICE BlockPlace block_place(int64_t number, int64_t groups) {
  const int64_t group = number / kDropoutBlocks % groups, lane = number % kDropoutBlocks;
  return {number / kDropoutBlocks / groups, group * kDropoutColumns + lane,
          static_cast<uint64_t>(group * kDropoutBlocks + lane)};
}

FS_HD int64_t groups_of(int64_t width) { return (width + kDropoutColumns - 1) / kDropoutColumns; }

// factors[v]: 0 where the element of column first_column + 16 v is dropped, else the scale.
template <typename Real>
FS_DEVICE void block_factors(const FsActDropout& spec, const BlockPlace& place, Real factors[kDropoutVariates]) {
  const StageKey key = stage_key(spec.rng_seed, kDropout, static_cast<uint32_t>(spec.layer), spec.step);
  const Real scale = dropout_scale<Real>(spec.drop_threshold);
  NodeStream stream(key, static_cast<uint64_t>(spec.node_ids[place.row]), place.block);
  FS_UNROLL for (int v = 0; v < kDropoutVariates; v += 2) {
    const uint32_t word = stream.next();
    factors[v] = (word & 0xFFFFu) >= spec.drop_threshold ? scale : Real(0);
    factors[v + 1] = (word >> 16) >= spec.drop_threshold ? scale : Real(0);
  }
}

template <typename T, bool kBias>
FS_KERNEL void act_dropout_kernel(FsActDropout spec, const T* x, T* y) {
  using Real = typename Arithmetic<T>::type;
  const int64_t groups = groups_of(spec.width), count = spec.num_rows * groups * kDropoutBlocks;
  const T* bias = static_cast<const T*>(spec.bias);
  for (int64_t i = thread_number(); i < count; i += num_threads()) {
    const BlockPlace place = block_place(i, groups);
    if (place.first_column >= spec.width) continue;
    Real factors[kDropoutVariates];
    if (spec.drop_threshold > 0) block_factors(spec, place, factors);
    FS_UNROLL for (int v = 0; v < kDropoutVariates; ++v) {
      const int64_t column = place.first_column + v * kDropoutBlocks;
      if (column >= spec.width) continue;
      const int64_t row_begin = place.row * spec.width;
      const Real value = activate(biased<kBias>(x + row_begin, bias, column), spec.activation == FS_RELU);
      store(y + row_begin + column, spec.drop_threshold > 0 ? dropped(value, factors[v]) : value);
    }
  }
}

// After ReLU the output itself is the mask: it is 0 where the input was not positive and where it dropped.
template <typename T>
FS_KERNEL void grad_by_output_kernel(FsActDropout spec, const T* y, const T* grad_y, T* grad_x) {
  using Real = typename Arithmetic<T>::type;
  const Real scale = dropout_scale<Real>(spec.drop_threshold);
  for (int64_t i = thread_number(); i < spec.num_rows * spec.width; i += num_threads()) {
    const bool passes = spec.activation != FS_RELU || load(y[i]) != Real(0);
    store(grad_x + i, passes ? load(grad_y[i]) * scale : Real(0));
  }
}

template <typename T>
FS_KERNEL void grad_by_draw_kernel(FsActDropout spec, const T* grad_y, T* grad_x) {
  using Real = typename Arithmetic<T>::type;
  const int64_t groups = groups_of(spec.width), count = spec.num_rows * groups * kDropoutBlocks;
  for (int64_t i = thread_number(); i < count; i += num_threads()) {
    const BlockPlace place = block_place(i, groups);
    if (place.first_column >= spec.width) continue;
    Real factors[kDropoutVariates];
    block_factors(spec, place, factors);
    FS_UNROLL for (int v = 0; v < kDropoutVariates; ++v) {
      const int64_t column = place.first_column + v * kDropoutBlocks, at = place.row * spec.width + column;
      if (column < spec.width) store(grad_x + at, load(grad_y[at]) * factors[v]);
    }
  }
}

// partial [blocks][width]: the sums of the rows of every block of FS_SUM_ROWS, row after row; a column a thread.
template <typename T, typename Real>
FS_KERNEL void block_sums_kernel(FsActDropout spec, const T* grad_x, Real* partial) {
  const int64_t count = sum_blocks(spec.num_rows) * spec.width;
  for (int64_t i = thread_number(); i < count; i += num_threads()) {
    const int64_t first = i / spec.width * FS_SUM_ROWS, left = spec.num_rows - first, column = i % spec.width;
    const int64_t last = first + (left < FS_SUM_ROWS ? left : FS_SUM_ROWS);
    Real sum = 0;
    for (int64_t row = first; row < last; ++row) sum += load(grad_x[row * spec.width + column]);
    partial[i] = sum;
  }
}

template <typename Real>
FS_KERNEL void add_blocks_kernel(FsActDropout spec, const Real* partial, Real* sums) {
  const int64_t blocks = sum_blocks(spec.num_rows);
  for (int64_t column = thread_number(); column < spec.width; column += num_threads()) {
    Real sum = sums[column];
    for (int64_t block = 0; block < blocks; ++block) sum += partial[block * spec.width + column];
    sums[column] = sum;
  }
}

int blocks_for_draws(const FsActDropout& spec) {
  return blocks_for(spec.num_rows * groups_of(spec.width) * kDropoutBlocks);
}

template <typename T>
void launch_forward(const FsActDropout& spec, const void* x, void* y, cudaStream_t stream) {
  const auto kernel = spec.bias == nullptr ? act_dropout_kernel<T, false> : act_dropout_kernel<T, true>;
  launch(kernel, blocks_for_draws(spec), stream, spec, static_cast<const T*>(x), static_cast<T*>(y));
}

template <typename T>
void launch_backward(const FsActDropout& spec, const void* y, const void* grad_y, void* grad_x, cudaStream_t stream) {
  const T* grad = static_cast<const T*>(grad_y);
  T* out = static_cast<T*>(grad_x);
  if (spec.activation == FS_RELU || spec.drop_threshold == 0) {
    launch(grad_by_output_kernel<T>, blocks_for(spec.num_rows * spec.width), stream, spec, static_cast<const T*>(y),
           grad, out);
  } else {
    launch(grad_by_draw_kernel<T>, blocks_for_draws(spec), stream, spec, grad, out);
  }
}

template <typename T>
void launch_sums(const FsActDropout& spec, const void* grad_x, void* sums, void* workspace, cudaStream_t stream) {
  using Real = typename Arithmetic<T>::type;
  Real* partial = static_cast<Real*>(workspace);
  launch(block_sums_kernel<T, Real>, blocks_for(sum_blocks(spec.num_rows) * spec.width), stream, spec,
         static_cast<const T*>(grad_x), partial);
  launch(add_blocks_kernel<Real>, blocks_for(spec.width), stream, spec, partial, static_cast<Real*>(sums));
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_act_dropout(const FsActDropout* spec, const void* x, void* y, void* stream) {
  const FsStatus status = fs::check_act_dropout("act_dropout", *spec);
  if (status != FS_OK || spec->num_rows == 0 || spec->width == 0) return status;
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  fs::with_element_type(spec->type, [&](auto value) { fs::launch_forward<decltype(value)>(*spec, x, y, on); });
  return fs::launch_status("act_dropout");
}

FsStatus fs_cuda_act_dropout_backward(const FsActDropout* spec, const void* y, const void* grad_y, void* grad_x,
                                      void* stream) {
  const FsStatus status = fs::check_act_dropout("act_dropout_backward", *spec);
  if (status != FS_OK || spec->num_rows == 0 || spec->width == 0) return status;
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  fs::with_element_type(spec->type,
                        [&](auto value) { fs::launch_backward<decltype(value)>(*spec, y, grad_y, grad_x, on); });
  return fs::launch_status("act_dropout_backward");
}

FsStatus fs_cuda_act_dropout_backward_sums(const FsActDropout* spec, const void* y, const void* grad_y, void* grad_x,
                                           void* sums, void* workspace, void* stream) {
  const FsStatus status = fs_cuda_act_dropout_backward(spec, y, grad_y, grad_x, stream);
  if (status != FS_OK || spec->num_rows == 0 || spec->width == 0) return status;
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  fs::with_element_type(spec->type,
                        [&](auto value) { fs::launch_sums<decltype(value)>(*spec, grad_x, sums, workspace, on); });
  return fs::launch_status("act_dropout_backward_sums");
}

}  // extern "C"

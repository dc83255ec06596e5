// act_dropout and its gradient over a run of rows.
//
// Sixteen neighbouring columns use sixteen neighbouring Philox blocks (core/act_dropout.h): one vector of 32-bit lanes,
// without any shuffle.
#ifndef FS_CPU_VECTOR_DROPOUT_ROWS_H_
#define FS_CPU_VECTOR_DROPOUT_ROWS_H_

#include "act_dropout.h"
#include "philox_lanes.h"
#include "vector_kernels.h"

namespace fs {
namespace {

constexpr int kGroup = kDropoutColumns;
static_assert(kLanes == kDropoutBlocks, "a group's blocks are made side by side");

// factors[c] for the columns of one group: 0 where the element is dropped, else the scale.
template <typename Real>
FS_INLINE void group_factors(StageKey key, uint64_t node, int64_t group, uint32_t threshold, Real scale,
                             Real factors[kGroup]) {
  uint32_t words[4][kLanes];
  philox_lanes(key, node, static_cast<uint64_t>(group) * kLanes, words);
  for (int w = 0; w < 4; ++w) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) {
      factors[32 * w + l] = (words[w][l] & 0xFFFFu) >= threshold ? scale : Real(0);
      factors[32 * w + kLanes + l] = (words[w][l] >> 16) >= threshold ? scale : Real(0);
    }
  }
}

template <typename T, bool kRelu, bool kBias>
void dropout_row(const FsActDropout& spec, StageKey key, int64_t row, const T* x, T* y) {
  using Real = typename Arithmetic<T>::type;
  const int64_t width = spec.width;
  const T* bias = static_cast<const T*>(spec.bias);
  if (spec.drop_threshold == 0) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) store(y + c, activate(biased<kBias>(x, bias, c), kRelu));
    return;
  }
  const Real scale = dropout_scale<Real>(spec.drop_threshold);
  const uint64_t node = static_cast<uint64_t>(spec.node_ids[row]);
  Real factors[kGroup];
  for (int64_t base = 0; base < width; base += kGroup) {
    group_factors(key, node, base / kGroup, spec.drop_threshold, scale, factors);
    const int64_t columns = width - base < kGroup ? width - base : kGroup;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      store(y + base + c, dropped(activate(biased<kBias>(x, bias, base + c), kRelu), factors[c]));
    }
  }
}

template <typename T, bool kRelu>
void dropout_grad_row(const FsActDropout& spec, StageKey key, int64_t row, const T* y, const T* grad_y, T* grad_x) {
  using Real = typename Arithmetic<T>::type;
  const int64_t width = spec.width;
  const Real scale = dropout_scale<Real>(spec.drop_threshold);
  if (kRelu || spec.drop_threshold == 0) {
    // After ReLU the output itself is the mask: it is 0 where the input was not positive and where it dropped.
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const bool passes = !kRelu || load(y[c]) != Real(0);
      store(grad_x + c, passes ? load(grad_y[c]) * scale : Real(0));
    }
    return;
  }
  const uint64_t node = static_cast<uint64_t>(spec.node_ids[row]);
  Real factors[kGroup];
  for (int64_t base = 0; base < width; base += kGroup) {
    group_factors(key, node, base / kGroup, spec.drop_threshold, scale, factors);
    const int64_t columns = width - base < kGroup ? width - base : kGroup;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) store(grad_x + base + c, load(grad_y[base + c]) * factors[c]);
  }
}

template <typename T, bool kRelu>
void dropout_rows(const FsActDropout& spec, const T* x, T* y, int64_t begin, int64_t end) {
  const StageKey key = stage_key(spec.rng_seed, kDropout, static_cast<uint32_t>(spec.layer), spec.step);
  for (int64_t row = begin; row < end; ++row) {
    if (spec.bias == nullptr) {
      dropout_row<T, kRelu, false>(spec, key, row, x + row * spec.width, y + row * spec.width);
    } else {
      dropout_row<T, kRelu, true>(spec, key, row, x + row * spec.width, y + row * spec.width);
    }
  }
}

template <typename T, bool kRelu>
void dropout_grad_rows(const FsActDropout& spec, const T* y, const T* grad_y, T* grad_x, int64_t begin, int64_t end,
                       typename Arithmetic<T>::type* sums) {
  const StageKey key = stage_key(spec.rng_seed, kDropout, static_cast<uint32_t>(spec.layer), spec.step);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * spec.width;
    dropout_grad_row<T, kRelu>(spec, key, row, y == nullptr ? nullptr : y + at, grad_y + at, grad_x + at);
    if (sums == nullptr) continue;
    const T* written = grad_x + at;
#pragma omp simd
    for (int64_t c = 0; c < spec.width; ++c) sums[c] += load(written[c]);
  }
}

template <typename T>
void act_dropout_typed(const FsActDropout& spec, const void* x, void* y, int64_t begin, int64_t end) {
  if (spec.activation == FS_RELU) {
    dropout_rows<T, true>(spec, static_cast<const T*>(x), static_cast<T*>(y), begin, end);
  } else {
    dropout_rows<T, false>(spec, static_cast<const T*>(x), static_cast<T*>(y), begin, end);
  }
}

template <typename T>
void act_dropout_grad_typed(const FsActDropout& spec, const void* y, const void* grad_y, void* grad_x, int64_t begin,
                            int64_t end, void* sums) {
  auto* typed_sums = static_cast<typename Arithmetic<T>::type*>(sums);
  const T* typed_y = static_cast<const T*>(y);
  const T* typed_grad = static_cast<const T*>(grad_y);
  if (spec.activation == FS_RELU) {
    dropout_grad_rows<T, true>(spec, typed_y, typed_grad, static_cast<T*>(grad_x), begin, end, typed_sums);
  } else {
    dropout_grad_rows<T, false>(spec, typed_y, typed_grad, static_cast<T*>(grad_x), begin, end, typed_sums);
  }
}

void act_dropout(const FsActDropout& spec, const void* x, void* y, int64_t begin, int64_t end) {
  if (spec.type == FS_FLOAT32) act_dropout_typed<float>(spec, x, y, begin, end);
  if (spec.type == FS_FLOAT64) act_dropout_typed<double>(spec, x, y, begin, end);
  if (spec.type == FS_BFLOAT16) act_dropout_typed<Bfloat16>(spec, x, y, begin, end);
}

void act_dropout_grad(const FsActDropout& spec, const void* y, const void* grad_y, void* grad_x, int64_t begin,
                      int64_t end, void* sums) {
  if (spec.type == FS_FLOAT32) act_dropout_grad_typed<float>(spec, y, grad_y, grad_x, begin, end, sums);
  if (spec.type == FS_FLOAT64) act_dropout_grad_typed<double>(spec, y, grad_y, grad_x, begin, end, sums);
  if (spec.type == FS_BFLOAT16) act_dropout_grad_typed<Bfloat16>(spec, y, grad_y, grad_x, begin, end, sums);
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_DROPOUT_ROWS_H_

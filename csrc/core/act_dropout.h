// What act_dropout computes for one element, and where its variate is in the node's stream.
//
// A row's columns come in groups of 128, and a group takes 16 Philox blocks of the row's stream. Block l of the group
// gives 8 variates of 16 bits, for the columns 16 v + l (v = 2 * word + half, half 0 is the low one).
#ifndef FS_CORE_ACT_DROPOUT_H_
#define FS_CORE_ACT_DROPOUT_H_

#include "fastsample.h"
#include "number_access.h"
#include "requests.h"

namespace fs {

namespace {

constexpr int kDropoutBlocks = 16;                                  // of a group
constexpr int kDropoutVariates = 8;                                 // of a block
constexpr int kDropoutColumns = kDropoutBlocks * kDropoutVariates;  // of a group
static_assert(FS_DROP_VARIATES == 1 << 16 && kDropoutVariates * 16 == 4 * 32, "a block's four words are its variates");

inline FsStatus check_act_dropout(const char* operation, const FsActDropout& spec) {
  const FsStatus status = check_element_type(operation, spec.type);
  if (status != FS_OK) return status;
  if (spec.activation != FS_IDENTITY && spec.activation != FS_RELU) {
    return fail(FS_INVALID_ARGUMENT, "%s: activation %d; expected identity (0) or relu (1)", operation,
                spec.activation);
  }
  if (spec.drop_threshold >= FS_DROP_VARIATES) {
    return fail(FS_INVALID_ARGUMENT, "%s: drop threshold %u; expected 0 to %d", operation, spec.drop_threshold,
                FS_DROP_VARIATES - 1);
  }
  return FS_OK;
}

template <typename Real>
FS_HD Real dropout_scale(uint32_t threshold) {
  return Real(FS_DROP_VARIATES) / static_cast<Real>(FS_DROP_VARIATES - static_cast<int32_t>(threshold));
}

template <typename Real>
FS_HD Real activate(Real value, bool relu) {
  return relu && value < Real(0) ? Real(0) : value;  // NaN passes
}

// Blocks of FS_SUM_ROWS rows, the last perhaps shorter.
FS_HD int64_t sum_blocks(int64_t num_rows) { return (num_rows + FS_SUM_ROWS - 1) / FS_SUM_ROWS; }

// x[c] + bias[c] in the type of the arithmetic; without a bias nothing is added (that would turn -0 into 0).
template <bool kBias, typename T>
FS_HD typename Arithmetic<T>::type biased(const T* x, const T* bias, int64_t c) {
  if constexpr (kBias) return load(x[c]) + load(bias[c]);
  return load(x[c]);
}

// factor is 0 where the element is dropped, else the scale; a dropped infinity is 0, not NaN.
template <typename Real>
FS_HD Real dropped(Real value, Real factor) {
  return factor == Real(0) ? Real(0) : value * factor;
}

}  // namespace
}  // namespace fs

#endif  // FS_CORE_ACT_DROPOUT_H_

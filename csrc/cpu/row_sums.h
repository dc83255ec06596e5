// Sums of rows by blocks of FS_SUM_ROWS, so that threads may take blocks and do not show in the sums.
#ifndef FS_CPU_ROW_SUMS_H_
#define FS_CPU_ROW_SUMS_H_

#include <stddef.h>

#include <vector>

#include "act_dropout.h"

namespace fs {

template <typename Real>
class RowSums {
 public:
  explicit RowSums(const FsActDropout& spec)
      : width_(spec.width), partial_(static_cast<size_t>(sum_blocks(spec.num_rows) * spec.width)) {}

  // [width], zeros at first: where the rows of a block are added up.
  Real* block(int64_t number) { return partial_.data() + number * width_; }

  void add_to(Real* sums) const {
    for (size_t begin = 0; begin < partial_.size(); begin += static_cast<size_t>(width_)) {
      for (int64_t c = 0; c < width_; ++c) sums[c] += partial_[begin + static_cast<size_t>(c)];
    }
  }

 private:
  int64_t width_;
  std::vector<Real> partial_;
};

}  // namespace fs

#endif  // FS_CPU_ROW_SUMS_H_

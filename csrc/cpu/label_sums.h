// Sums of link weights by label, for one row at a time: a hash table as large as the row needs, so that it stays in the
// first cache for most rows, emptied by the list of the slots that were used.
#ifndef FS_CPU_LABEL_SUMS_H_
#define FS_CPU_LABEL_SUMS_H_

#include <stdint.h>

#include <algorithm>
#include <vector>

#include "mix64.h"

namespace fs {

class LabelSums {
 public:
  static constexpr int64_t kMostLabels = int64_t{1} << 21;  // of one row

  struct Sum {
    int32_t label;
    int64_t weight;
  };

  // Room for the labels of a row.
  void begin(int64_t degree) {
    uint64_t slots = 16;
    while (slots < 2 * static_cast<uint64_t>(std::min(degree, kMostLabels))) slots *= 2;
    if (slots > slots_.size()) slots_.resize(slots, -1);
    mask_ = slots - 1;
  }

  // False: the label is new, and there are kMostLabels already.
  bool add(int32_t label, int64_t weight) {
    uint64_t slot = mix64(static_cast<uint64_t>(label)) & mask_;
    while (slots_[slot] >= 0) {
      Sum& sum = sums_[static_cast<size_t>(slots_[slot])];
      if (sum.label == label) {
        sum.weight += weight;
        return true;
      }
      slot = (slot + 1) & mask_;
    }
    if (static_cast<int64_t>(sums_.size()) == kMostLabels) return false;
    slots_[slot] = static_cast<int32_t>(sums_.size());
    sums_.push_back({label, weight});
    used_.push_back(static_cast<uint32_t>(slot));
    return true;
  }

  // In order of first appearance.
  const std::vector<Sum>& sums() const { return sums_; }

  void clear() {
    for (uint32_t slot : used_) slots_[slot] = -1;
    used_.clear();
    sums_.clear();
  }

 private:
  std::vector<int32_t> slots_;  // position in sums_; -1: empty
  std::vector<uint32_t> used_;
  std::vector<Sum> sums_;
  uint64_t mask_ = 0;
};

}  // namespace fs

#endif  // FS_CPU_LABEL_SUMS_H_

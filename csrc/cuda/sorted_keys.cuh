// Looking up sorted keys.
#ifndef FS_CUDA_SORTED_KEYS_CUH_
#define FS_CUDA_SORTED_KEYS_CUH_

#include "device.cuh"

namespace fs {
namespace {

inline int bits_of(int64_t value) {
  int bits = 0;
  while (bits < 63 && value >> bits != 0) ++bits;
  return bits;
}

// First position in sorted[0 .. count) that does not come before `bound`, or (for kBeyond) that comes after it.
template <bool kBeyond, typename Value>
FS_DEVICE int64_t bound_in(const Value* sorted, int64_t count, Value bound) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (sorted[middle] < bound || (kBeyond && sorted[middle] == bound)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace
}  // namespace fs

#endif  // FS_CUDA_SORTED_KEYS_CUH_

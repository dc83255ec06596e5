// Which table holds a node's row (FsRowIndex): its range's, or a slot of the cache. Hashed slots are pairs {node,
// slot}, node -1: empty; a node is in its home pair or in the next ones up to an empty one.
#ifndef FS_CORE_ROW_INDEX_H_
#define FS_CORE_ROW_INDEX_H_

#include <stdint.h>

#include "fastsample.h"
#include "platform.h"

namespace fs {

// num_slots is a power of two.
FS_HD int64_t home_slot(int64_t node, int64_t num_slots) {
  const uint64_t mixed = static_cast<uint64_t>(node) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio: Fibonacci hashing
  return static_cast<int64_t>((mixed >> 32) & static_cast<uint64_t>(num_slots - 1));
}

// The pair that holds the node, or the empty one where it would be.
template <typename Id>
FS_HD int64_t find_pair(const Id* pairs, int64_t num_slots, int64_t node) {
  int64_t at = home_slot(node, num_slots);
  while (pairs[2 * at] != static_cast<Id>(node) && pairs[2 * at] >= 0) at = (at + 1) & (num_slots - 1);
  return at;
}

// < 0: not cached.
FS_HD int64_t cached_slot(const FsRowIndex& index, int64_t node) {
  switch (index.slot_kind) {
    case FS_SLOTS_DENSE:
      return static_cast<const int32_t*>(index.slots)[node];
    case FS_SLOTS_HASHED32: {
      const int32_t* pairs = static_cast<const int32_t*>(index.slots);
      return pairs[2 * find_pair(pairs, index.num_slots, node) + 1];
    }
    case FS_SLOTS_HASHED64: {
      const int64_t* pairs = static_cast<const int64_t*>(index.slots);
      return pairs[2 * find_pair(pairs, index.num_slots, node) + 1];
    }
    default:
      return -1;
  }
}

}  // namespace fs

#endif  // FS_CORE_ROW_INDEX_H_

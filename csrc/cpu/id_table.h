// The table from node id to local id that relabelling reads once per sampled edge: one cache line per look-up.
//
// A bucket is one line: 32 bytes of keys, 32 bytes of local ids, filled from the first lane on and never emptied by
// itself. An id belongs to its home bucket, or to the next one that has room. Vector code compares all keys of a bucket
// at once (vector/id_lanes.h). The table is at most 3/4 full, so that few look-ups leave their home bucket.
#ifndef FS_CPU_ID_TABLE_H_
#define FS_CPU_ID_TABLE_H_

#include <stdint.h>

#include "platform.h"

namespace fs {

template <typename Id>
struct alignas(64) IdBucket {
  static constexpr int kLanes = 32 / sizeof(Id);
  Id keys[kLanes];    // < 0: empty; then the lanes after it are empty too
  Id locals[kLanes];  // local id of the key
};

// What the kernels see of a table (table_memory.h owns the memory).
template <typename Id>
struct IdTable {
  IdBucket<Id>* buckets;
  int log2_buckets;  // 1 or more
  int64_t limit;     // ids that fill 3/4 of the lanes: grow before one more

  FS_INLINE uint64_t home(Id id) const {
    return (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull) >> (64 - log2_buckets);
  }
  FS_INLINE uint64_t after(uint64_t bucket) const { return (bucket + 1) & ((1ull << log2_buckets) - 1); }
};

}  // namespace fs

#endif  // FS_CPU_ID_TABLE_H_

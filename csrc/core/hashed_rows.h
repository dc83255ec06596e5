// Hashed rows: whether a vertex is in a row, by reading one cache line.
//
// Rows are sorted by original id, which a look-up would have to fetch; a hash needs no order. A row of more than
// kScannedDegree neighbours has buckets of 64 bytes: 16 int32 ids or 8 int64 ids, filled from the front, the rest
// kEmptyId. An id is in bucket mulhi(mix(id), buckets) of its row or, where that is full, in the next one that has
// room, the first following the last. Ids are stored once, however many parallel edges there are, so a row always has
// room for its ids. Shorter rows are scanned in `indices`. Answers are exact.
#ifndef FS_CORE_HASHED_ROWS_H_
#define FS_CORE_HASHED_ROWS_H_

#include <stdint.h>

#include "platform.h"

namespace fs {

constexpr int64_t kScannedDegree = 16;
constexpr int kBucketBytes = 64;
constexpr int kBucketsBits = 28;
constexpr int64_t kMaxHashedEdges = int64_t{1} << (64 - kBucketsBits);  // offsets are below it
constexpr int64_t kMaxBuckets = (int64_t{1} << kBucketsBits) - 1;       // of a row
constexpr int64_t kMaxHashedDegree = kMaxBuckets * 8;                   // which hold them, whatever the type of ids
constexpr int64_t kMaxHashedBuckets = int64_t{1} << 32;                 // of all rows together

// What a step reads of a row: where its neighbours lie, and where its buckets do.
struct HashedNode {
  uint64_t place;   // offset of the row in `indices` << kBucketsBits | number of buckets (0: the row is scanned)
  uint32_t degree;  // neighbours, parallel edges counted each
  uint32_t first;   // the row's first bucket

  FS_HD int64_t begin() const { return static_cast<int64_t>(place >> kBucketsBits); }
  FS_HD uint32_t buckets() const { return static_cast<uint32_t>(place) & ((1u << kBucketsBits) - 1); }
};

static_assert(sizeof(HashedNode) == 16, "a record is uint64_t [2] in the ABI");

template <typename Id>
struct alignas(kBucketBytes) HashedBucket {
  static constexpr int kIds = kBucketBytes / static_cast<int>(sizeof(Id));
  static constexpr Id kEmptyId = -1;

  Id ids[kIds];

  FS_HD bool full() const { return ids[kIds - 1] != kEmptyId; }

  FS_HD bool holds(Id id) const {
    bool found = false;
    for (int i = 0; i < kIds; ++i) found |= ids[i] == id;
    return found;
  }
};

// 32 bits of a vertex that decide about its bucket.
FS_HD uint32_t mix_vertex(int64_t vertex) {
  uint64_t bits = static_cast<uint64_t>(vertex) * 0x9E3779B97F4A7C15ull;
  bits ^= bits >> 32;
  bits *= 0xD6E8FEB86659FD93ull;
  return static_cast<uint32_t>(bits >> 32);
}

// The bucket of a vertex among `buckets` of a row.
FS_HD uint32_t home_bucket(int64_t vertex, uint32_t buckets) {
  return static_cast<uint32_t>(static_cast<uint64_t>(mix_vertex(vertex)) * buckets >> 32);
}

// The rows of a graph whose ids have this type.
template <typename Id>
struct HashedRows {
  const HashedNode* nodes;          // [num_rows]
  const HashedBucket<Id>* buckets;  // of all rows
  const Id* indices;                // of the graph

  // Whether `vertex` is a neighbour of this row. Any vertex may be asked for; one that no id equals is not there.
  FS_HD bool has(const HashedNode& row, int64_t vertex) const {
    const Id id = static_cast<Id>(vertex);
    if (id < 0 || id != vertex) return false;
    const uint32_t num_buckets = row.buckets();
    if (num_buckets == 0) {
      const Id* ids = indices + row.begin();
      bool found = false;
      for (uint32_t i = 0; i < row.degree; ++i) found |= ids[i] == id;
      return found;
    }
    uint32_t at = home_bucket(vertex, num_buckets);
    for (uint32_t seen = 0; seen < num_buckets; ++seen) {  // a row whose buckets are all full is seen whole at most
      const HashedBucket<Id>& bucket = buckets[static_cast<uint64_t>(row.first) + at];
      if (bucket.holds(id)) return true;
      if (!bucket.full()) return false;
      at = at + 1 == num_buckets ? 0 : at + 1;
    }
    return false;
  }

  // The bucket that has(row, vertex) reads first, or the row itself: what is worth a prefetch.
  FS_HD const void* first_read(const HashedNode& row, int64_t vertex) const {
    const uint32_t num_buckets = row.buckets();
    if (num_buckets == 0) return indices + row.begin();
    return buckets + row.first + home_bucket(vertex, num_buckets);
  }
};

}  // namespace fs

#endif  // FS_CORE_HASHED_ROWS_H_

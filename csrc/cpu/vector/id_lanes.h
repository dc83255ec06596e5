// Look-up in an IdTable: all keys of a bucket are compared at once.
#ifndef FS_CPU_VECTOR_ID_LANES_H_
#define FS_CPU_VECTOR_ID_LANES_H_

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#endif

#include "hop_task.h"

namespace fs {
namespace {

// Bit l: keys[l] == id.
FS_INLINE uint32_t equal_lanes(const int32_t* keys, int32_t id) {
#if defined(__AVX2__)
  const __m256i equal =
      _mm256_cmpeq_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(keys)), _mm256_set1_epi32(id));
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(equal)));
#elif defined(__SSE2__)
  const __m128i* halves = reinterpret_cast<const __m128i*>(keys);
  const __m128i wanted = _mm_set1_epi32(id);
  const int low = _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(_mm_load_si128(halves), wanted)));
  const int high = _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(_mm_load_si128(halves + 1), wanted)));
  return static_cast<uint32_t>(low | high << 4);
#else
  uint32_t equal = 0;
  for (int l = 0; l < IdBucket<int32_t>::kLanes; ++l) equal |= static_cast<uint32_t>(keys[l] == id) << l;
  return equal;
#endif
}

FS_INLINE uint32_t equal_lanes(const int64_t* keys, int64_t id) {
#if defined(__AVX2__)
  const __m256i equal =
      _mm256_cmpeq_epi64(_mm256_load_si256(reinterpret_cast<const __m256i*>(keys)), _mm256_set1_epi64x(id));
  return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(equal)));
#else
  uint32_t equal = 0;
  for (int l = 0; l < IdBucket<int64_t>::kLanes; ++l) equal |= static_cast<uint32_t>(keys[l] == id) << l;
  return equal;
#endif
}

// All ones or zero; the compiler cannot know which, and so cannot make a branch of it.
FS_INLINE uint64_t opaque_mask(bool condition) {
  uint64_t mask = -static_cast<uint64_t>(condition);
  __asm__("" : "+r"(mask));
  return mask;
}

// A Relabeling whose fields a loop can keep in registers: nothing of it is ever pointed to.
template <typename Id>
class Labeler {
 public:
  FS_INLINE Labeler(Relabeling<Id>* ids, IdBucket<Id>* spare) : ids_(ids), spare_(reinterpret_cast<uint64_t>(spare)) {
    if (ids != nullptr) read();
  }

  FS_INLINE bool accepts(Id id) const { return static_cast<uint64_t>(static_cast<int64_t>(id)) < num_ids_; }
  FS_INLINE void ask_for(Id id) const { __builtin_prefetch(table_.buckets + table_.home(id)); }

  // Local id of an accepted id; a new one is appended to the nodes. Whether an id is new is as good as random, so both
  // ways are one: the key and the local id are written, to the bucket or to a place that is never read.
  FS_INLINE Id local_id(Id id) {
    uint64_t at = table_.home(id);
    for (;;) {
      IdBucket<Id>& bucket = table_.buckets[at];
      const uint32_t found = equal_lanes(bucket.keys, id), empty = equal_lanes(bucket.keys, Id{-1});
      const uint32_t lanes = found | (empty & static_cast<uint32_t>(opaque_mask(found == 0)));
      if (__builtin_expect(lanes == 0, 0)) {
        at = table_.after(at);
        continue;
      }
      const int lane = __builtin_ctz(lanes);
      const uint64_t is_new = opaque_mask(found == 0);
      const uint64_t fresh = static_cast<uint64_t>(num_nodes_);
      const uint64_t known = static_cast<uint64_t>(bucket.locals[lane]);
      const Id local = static_cast<Id>((fresh & is_new) | (known & ~is_new));
      const uint64_t place = reinterpret_cast<uint64_t>(bucket.keys + lane);
      Id* key = reinterpret_cast<Id*>((place & is_new) | (spare_ & ~is_new));
      key[0] = id;
      key[IdBucket<Id>::kLanes] = local;
      nodes_[num_nodes_] = id;
      num_nodes_ -= static_cast<int64_t>(is_new);
      if (__builtin_expect(num_nodes_ > table_.limit, 0)) {
        write(ids_);
        ids_->grow(ids_);
        read();
      }
      return local;
    }
  }

  // Hands the state back.
  FS_INLINE void write(Relabeling<Id>* ids) const { ids->num_nodes = num_nodes_; }

 private:
  FS_INLINE void read() {
    table_ = ids_->table;
    nodes_ = ids_->nodes;
    num_nodes_ = ids_->num_nodes;
    num_ids_ = ids_->num_ids;
  }

  Relabeling<Id>* ids_;
  uint64_t spare_;  // address of a bucket that is never read
  IdTable<Id> table_ = {};
  Id* nodes_ = nullptr;
  int64_t num_nodes_ = 0;
  uint64_t num_ids_ = 0;
};

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_ID_LANES_H_

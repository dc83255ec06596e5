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
FS_HD uint32_t equal_lanes(const int32_t* keys, int32_t id) {
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

FS_HD uint32_t equal_lanes(const int64_t* keys, int64_t id) {
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

// Local id of `id` (0 or more); a new id is appended to r.nodes.
template <typename Id>
FS_HD Id local_id(Relabeling<Id>& r, Id id) {
  uint64_t at = r.table.home(id);
  for (;;) {
    IdBucket<Id>& bucket = r.table.buckets[at];
    const uint32_t found = equal_lanes(bucket.keys, id);
    if (found != 0) return bucket.locals[__builtin_ctz(found)];
    const uint32_t empty = equal_lanes(bucket.keys, Id{-1});
    if (empty != 0) {
      const int lane = __builtin_ctz(empty);
      const Id local = static_cast<Id>(r.num_nodes);
      bucket.keys[lane] = id;
      bucket.locals[lane] = local;
      r.nodes[r.num_nodes++] = id;
      if (r.num_nodes > r.table.limit) r.grow(&r);
      return local;
    }
    at = r.table.after(at);
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_ID_LANES_H_

// Whether an id is among the ids of a bucket, or of a row of at most kScannedDegree, by comparing all at once: what
// HashedRows::has_by takes in place of PlainLanes.
#ifndef FS_CPU_VECTOR_BUCKET_LANES_H_
#define FS_CPU_VECTOR_BUCKET_LANES_H_

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#endif

#include "hashed_rows.h"

namespace fs {
namespace {

#if defined(__AVX512F__)

struct WideLanes {
  static FS_INLINE bool holds(const HashedBucket<int32_t>& bucket, int32_t id) {
    return _mm512_cmpeq_epi32_mask(_mm512_load_si512(bucket.ids), _mm512_set1_epi32(id)) != 0;
  }
  static FS_INLINE bool holds(const HashedBucket<int64_t>& bucket, int64_t id) {
    return _mm512_cmpeq_epi64_mask(_mm512_load_si512(bucket.ids), _mm512_set1_epi64(id)) != 0;
  }
  // Lanes behind the row are not read.
  static FS_INLINE bool scan(const int32_t* ids, uint32_t count, int32_t id) {
    const __mmask16 lanes = static_cast<__mmask16>((1u << count) - 1);
    return _mm512_mask_cmpeq_epi32_mask(lanes, _mm512_maskz_loadu_epi32(lanes, ids), _mm512_set1_epi32(id)) != 0;
  }
  static FS_INLINE bool scan(const int64_t* ids, uint32_t count, int64_t id) {
    const uint32_t lanes = (1u << count) - 1;
    const __mmask8 low = static_cast<__mmask8>(lanes), high = static_cast<__mmask8>(lanes >> 8);
    const __m512i wanted = _mm512_set1_epi64(id);
    return (_mm512_mask_cmpeq_epi64_mask(low, _mm512_maskz_loadu_epi64(low, ids), wanted) |
            _mm512_mask_cmpeq_epi64_mask(high, _mm512_maskz_loadu_epi64(high, ids + 8), wanted)) != 0;
  }
};

#elif defined(__AVX2__)

struct WideLanes : PlainLanes {
  using PlainLanes::holds;
  static FS_INLINE bool holds(const HashedBucket<int32_t>& bucket, int32_t id) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(bucket.ids);
    const __m256i wanted = _mm256_set1_epi32(id);
    const __m256i low = _mm256_cmpeq_epi32(_mm256_load_si256(halves), wanted);
    const __m256i high = _mm256_cmpeq_epi32(_mm256_load_si256(halves + 1), wanted);
    return _mm256_movemask_epi8(_mm256_or_si256(low, high)) != 0;
  }
  static FS_INLINE bool holds(const HashedBucket<int64_t>& bucket, int64_t id) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(bucket.ids);
    const __m256i wanted = _mm256_set1_epi64x(id);
    const __m256i low = _mm256_cmpeq_epi64(_mm256_load_si256(halves), wanted);
    const __m256i high = _mm256_cmpeq_epi64(_mm256_load_si256(halves + 1), wanted);
    return _mm256_movemask_epi8(_mm256_or_si256(low, high)) != 0;
  }
};

#elif defined(__SSE2__)

struct WideLanes : PlainLanes {
  using PlainLanes::holds;
  static FS_INLINE bool holds(const HashedBucket<int32_t>& bucket, int32_t id) {
    const __m128i* quarters = reinterpret_cast<const __m128i*>(bucket.ids);
    const __m128i wanted = _mm_set1_epi32(id);
    __m128i found = _mm_cmpeq_epi32(_mm_load_si128(quarters), wanted);
    for (int i = 1; i < 4; ++i) {
      found = _mm_or_si128(found, _mm_cmpeq_epi32(_mm_load_si128(quarters + i), wanted));
    }
    return _mm_movemask_epi8(found) != 0;
  }
};

#else

using WideLanes = PlainLanes;

#endif

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_BUCKET_LANES_H_

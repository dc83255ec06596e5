// Entries of a dashboard (dashboard.h): runs of them are written, and four probes at a time are compared.
//
// A run of one value takes a store per vector; the last one overlaps its neighbour where a run must end exactly.
#ifndef FS_CPU_VECTOR_DASHBOARD_ENTRIES_H_
#define FS_CPU_VECTOR_DASHBOARD_ENTRIES_H_

#include "vector_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fs {
namespace {

#if defined(__AVX512F__)
using EntryVector = __m512i;
FS_INLINE EntryVector all_entries(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
FS_INLINE void store_entries(uint32_t* at, EntryVector values) { _mm512_storeu_si512(at, values); }
#elif defined(__AVX2__)
using EntryVector = __m256i;
FS_INLINE EntryVector all_entries(uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
FS_INLINE void store_entries(uint32_t* at, EntryVector values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), values);
}
#endif

// entries[0 .. count) = value; up to kEntrySlack behind them are written too.
void fill_entries(uint32_t* entries, int64_t count, uint32_t value) {
#if defined(__AVX2__)
  constexpr int64_t kLanes = sizeof(EntryVector) / sizeof(uint32_t);
  static_assert(kLanes <= kEntrySlack, "a store behind the last entry");
  const EntryVector values = all_entries(value);
  for (int64_t i = 0; i < count; i += kLanes) store_entries(entries + i, values);
#else
  for (int64_t i = 0; i < count; ++i) entries[i] = value;
#endif
}

// entries[0 .. count) = kNoSlot, and nothing else.
void clear_entries(uint32_t* entries, int64_t count) {
  int64_t i = 0;
#if defined(__AVX2__)
  constexpr int64_t kLanes = sizeof(EntryVector) / sizeof(uint32_t);
  const EntryVector none = all_entries(kNoSlot);
  for (; i + kLanes <= count; i += kLanes) store_entries(entries + i, none);
  if (count >= kLanes) {
    store_entries(entries + count - kLanes, none);
    return;
  }
#endif
  for (; i < count; ++i) entries[i] = kNoSlot;
}

// Probes below(used) of four words of a stream: which is the first that meets a live entry, kDashboardProbes: none; -1
// where a word may be one that `below` rejects (used / 2^32 of them), so that the probes are to be made singly.
int32_t probe_entries(const uint32_t* entries, uint32_t used, const uint32_t* words, int64_t stride) {
#if defined(__AVX2__)
  const __m256i bound = _mm256_set1_epi64x(used);
  const __m256i four = _mm256_set_epi64x(words[3 * stride], words[2 * stride], words[stride], words[0]);
  const __m256i products = _mm256_mul_epu32(four, bound);
  const __m256i low = _mm256_and_si256(products, _mm256_set1_epi64x(0xFFFFFFFFll));
  if (!_mm256_testz_si256(_mm256_cmpgt_epi64(bound, low), _mm256_set1_epi64x(-1))) return -1;
  const __m128i found =
      _mm256_i64gather_epi32(reinterpret_cast<const int*>(entries), _mm256_srli_epi64(products, 32), 4);
  const __m128i dead = _mm_cmpeq_epi32(found, _mm_set1_epi32(static_cast<int>(kNoSlot)));
  const uint32_t live = ~static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(dead)));
  return __builtin_ctz(live);  // bits 4 and above are set
#else
  for (int32_t i = 0; i < kDashboardProbes; ++i) {
    const uint64_t product = static_cast<uint64_t>(words[i * stride]) * used;
    if (static_cast<uint32_t>(product) < used) return -1;
    if (entries[product >> 32] != kNoSlot) return i;
  }
  return kDashboardProbes;
#endif
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_DASHBOARD_ENTRIES_H_

// Vectors of ids of edges, for induced_edges.h: which of them a bitmap has, those packed together, their local ids.
#ifndef FS_CPU_VECTOR_EDGE_LANES_H_
#define FS_CPU_VECTOR_EDGE_LANES_H_

#if defined(__AVX2__)

#include <immintrin.h>
#include <stdint.h>

#include "induced_task.h"

namespace fs {
namespace {

template <typename Id>
struct EdgeLanes;

// load, kept: of the first `count` lanes, others are 0 and not kept. largest: of unsigned numbers.
// store_packed, store_positions: the lanes in `kept` together, and numbers begin, begin + 1, ... of those lanes; they
// write whole vectors.

#if defined(__AVX512F__)

template <>
struct EdgeLanes<int32_t> {
  static constexpr int kCount = 16;
  using Vector = __m512i;

  static FS_INLINE Vector zero() { return _mm512_setzero_si512(); }
  static FS_INLINE __mmask16 first(int64_t count) { return static_cast<__mmask16>(_bzhi_u32(0xFFFF, count)); }
  static FS_INLINE Vector load(const int32_t* ids, int64_t count) {
    return _mm512_maskz_loadu_epi32(first(count), ids);
  }
  static FS_INLINE Vector largest(Vector a, Vector b) { return _mm512_max_epu32(a, b); }
  static FS_INLINE uint64_t reduce(Vector a) { return _mm512_reduce_max_epu32(a); }
  static FS_INLINE uint32_t kept(const NodeMembers<int32_t>& members, Vector ids, int64_t count) {
    const Vector word_mask = _mm512_set1_epi32(static_cast<int>(members.mask >> 5));
    const Vector words =
        _mm512_i32gather_epi32(_mm512_and_si512(_mm512_srli_epi32(ids, 5), word_mask), members.bits, 4);
    return _mm512_mask_test_epi32_mask(first(count), _mm512_rorv_epi32(words, ids), _mm512_set1_epi32(1));
  }
  static FS_INLINE void store_packed(int32_t* out, uint32_t kept, Vector ids) {
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(static_cast<__mmask16>(kept), ids));
  }
  static FS_INLINE void store_positions(int64_t* out, uint32_t kept, int64_t begin) {
    const Vector low = _mm512_add_epi64(_mm512_set1_epi64(begin), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi64(static_cast<__mmask8>(kept), low));
    const Vector high = _mm512_add_epi64(low, _mm512_set1_epi64(8));
    _mm512_storeu_si512(out + __builtin_popcount(kept & 0xFF),
                        _mm512_maskz_compress_epi64(static_cast<__mmask8>(kept >> 8), high));
  }
  static FS_INLINE void translate(int32_t* ids, int64_t count, const int32_t* locals) {
    const Vector known = load(ids, count);
    _mm512_mask_storeu_epi32(ids, first(count), _mm512_mask_i32gather_epi32(known, first(count), known, locals, 4));
  }
};

template <>
struct EdgeLanes<int64_t> {
  static constexpr int kCount = 8;
  using Vector = __m512i;

  static FS_INLINE Vector zero() { return _mm512_setzero_si512(); }
  static FS_INLINE __mmask8 first(int64_t count) { return static_cast<__mmask8>(_bzhi_u32(0xFF, count)); }
  static FS_INLINE Vector load(const int64_t* ids, int64_t count) {
    return _mm512_maskz_loadu_epi64(first(count), ids);
  }
  static FS_INLINE Vector largest(Vector a, Vector b) { return _mm512_max_epu64(a, b); }
  static FS_INLINE uint64_t reduce(Vector a) { return _mm512_reduce_max_epu64(a); }
  static FS_INLINE uint32_t kept(const NodeMembers<int64_t>& members, Vector ids, int64_t count) {
    const Vector word_mask = _mm512_set1_epi64(static_cast<long long>(members.mask >> 5));
    const __m256i words =
        _mm512_i64gather_epi32(_mm512_and_si512(_mm512_srli_epi64(ids, 5), word_mask), members.bits, 4);
    return _mm256_mask_test_epi32_mask(first(count), _mm256_rorv_epi32(words, _mm512_cvtepi64_epi32(ids)),
                                       _mm256_set1_epi32(1));
  }
  static FS_INLINE void store_packed(int64_t* out, uint32_t kept, Vector ids) {
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi64(static_cast<__mmask8>(kept), ids));
  }
  static FS_INLINE void store_positions(int64_t* out, uint32_t kept, int64_t begin) {
    store_packed(out, kept, _mm512_add_epi64(_mm512_set1_epi64(begin), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0)));
  }
};

#else

// Where the lanes of a packed vector come from, by the mask of those that are kept: lanes of 32 bits, a byte each, and
// pairs of such lanes.
struct PackedLanes {
  uint64_t lanes[256];
  uint64_t pairs[16];
  constexpr PackedLanes() : lanes(), pairs() {
    for (uint32_t kept = 0; kept < 256; ++kept) {
      int to = 0;
      for (uint64_t lane = 0; lane < 8; ++lane) {
        if ((kept >> lane & 1) != 0) lanes[kept] |= lane << (8 * to++);
      }
    }
    for (uint32_t kept = 0; kept < 16; ++kept) {
      int to = 0;
      for (uint64_t lane = 0; lane < 4; ++lane) {
        if ((kept >> lane & 1) != 0) pairs[kept] |= (2 * lane | (2 * lane + 1) << 8) << (16 * to++);
      }
    }
  }
};
constexpr PackedLanes kPackedLanes;

FS_INLINE __m256i reordered(__m256i lanes, const uint64_t* order) {
  return _mm256_permutevar8x32_epi32(lanes,
                                     _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(order))));
}
FS_INLINE void store_whole(void* out, __m256i lanes) { _mm256_storeu_si256(static_cast<__m256i*>(out), lanes); }

template <>
struct EdgeLanes<int32_t> {
  static constexpr int kCount = 8;
  using Vector = __m256i;

  static FS_INLINE Vector zero() { return _mm256_setzero_si256(); }
  static FS_INLINE Vector first(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static FS_INLINE Vector load(const int32_t* ids, int64_t count) { return _mm256_maskload_epi32(ids, first(count)); }
  static FS_INLINE Vector largest(Vector a, Vector b) { return _mm256_max_epu32(a, b); }
  static FS_INLINE uint64_t reduce(Vector a) {
    const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 1))));
  }
  static FS_INLINE uint32_t kept(const NodeMembers<int32_t>& members, Vector ids, int64_t count) {
    const Vector word_mask = _mm256_set1_epi32(static_cast<int>(members.mask >> 5));
    const int* bits = reinterpret_cast<const int*>(members.bits);
    const Vector words = _mm256_i32gather_epi32(bits, _mm256_and_si256(_mm256_srli_epi32(ids, 5), word_mask), 4);
    const Vector to_top = _mm256_andnot_si256(ids, _mm256_set1_epi32(31));
    const int found = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_sllv_epi32(words, to_top)));
    return _bzhi_u32(static_cast<uint32_t>(found), static_cast<uint32_t>(count));
  }
  static FS_INLINE void store_packed(int32_t* out, uint32_t kept, Vector ids) {
    store_whole(out, reordered(ids, kPackedLanes.lanes + kept));
  }
  static FS_INLINE void store_positions(int64_t* out, uint32_t kept, int64_t begin) {
    const Vector low = _mm256_add_epi64(_mm256_set1_epi64x(begin), _mm256_setr_epi64x(0, 1, 2, 3));
    store_whole(out, reordered(low, kPackedLanes.pairs + (kept & 15)));
    const Vector high = _mm256_add_epi64(low, _mm256_set1_epi64x(4));
    store_whole(out + __builtin_popcount(kept & 15), reordered(high, kPackedLanes.pairs + (kept >> 4)));
  }
  static FS_INLINE void translate(int32_t* ids, int64_t count, const int32_t* locals) {
    const Vector known = load(ids, count), there = first(count);
    _mm256_maskstore_epi32(ids, there, _mm256_mask_i32gather_epi32(known, locals, known, there, 4));
  }
};

#endif

}  // namespace
}  // namespace fs

#endif  // __AVX2__
#endif  // FS_CPU_VECTOR_EDGE_LANES_H_

// Vectors of 64-bit lanes for Philox, in the width of the instruction set being compiled.
//
// A lane holds one 32-bit word of one block. Its upper half does not matter: the widening multiplication reads lower
// halves only, so a round is two multiplications, two shifts and two three-way XORs without any shuffle. Two vectors
// make a pair; `interleave` and `pack` bring the lower halves of a pair together. Below AVX2 the rounds are a plain
// loop.
#ifndef FS_CPU_VECTOR_WIDE_H_
#define FS_CPU_VECTOR_WIDE_H_

#include <stdint.h>

#include "philox.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fs {
namespace {

#if defined(__AVX512F__)

struct Wide {
  using Vector = __m512i;
  static constexpr int kLanes = 8;
  static constexpr int kPairLanes = 16;
  static Vector all(uint64_t value) { return _mm512_set1_epi64(static_cast<long long>(value)); }
  static Vector load(const uint64_t* values) { return _mm512_loadu_si512(values); }
  static Vector load(const uint32_t* values) {
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values)));
  }
  static Vector even_numbers() { return _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0); }
  static Vector add(Vector a, Vector b) { return _mm512_add_epi64(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_epu32(a, b); }
  static Vector upper(Vector a) { return _mm512_srli_epi64(a, 32); }
  static Vector xor2(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
  static Vector xor3(Vector a, Vector b, Vector c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
  // words[2 l] from lane l of `even`, words[2 l + 1] from lane l of `odd`.
  static void interleave(Vector even, Vector odd, uint32_t* words) {
    _mm512_storeu_si512(words, _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA));
  }
  // words[l] from lane l of `low`, words[kLanes + l] from lane l of `high`.
  static void pack(Vector low, Vector high, uint32_t* words) {
    const Vector lower_halves = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    _mm512_storeu_si512(words, _mm512_permutex2var_epi32(low, lower_halves, high));
  }
};

#elif defined(__AVX2__)

struct Wide {
  using Vector = __m256i;
  static constexpr int kLanes = 4;
  static constexpr int kPairLanes = 8;
  static Vector all(uint64_t value) { return _mm256_set1_epi64x(static_cast<long long>(value)); }
  static Vector load(const uint64_t* values) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values)); }
  static Vector load(const uint32_t* values) {
    return _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }
  static Vector even_numbers() { return _mm256_set_epi64x(6, 4, 2, 0); }
  static Vector add(Vector a, Vector b) { return _mm256_add_epi64(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm256_mul_epu32(a, b); }
  static Vector upper(Vector a) { return _mm256_srli_epi64(a, 32); }
  static Vector xor2(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
  static Vector xor3(Vector a, Vector b, Vector c) { return xor2(xor2(a, b), c); }
  static void interleave(Vector even, Vector odd, uint32_t* words) {
    const Vector both = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), both);
  }
  static void pack(Vector low, Vector high, uint32_t* words) {
    const __m256 halves = _mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0x88);
    const Vector ordered = _mm256_permute4x64_epi64(_mm256_castps_si256(halves), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), ordered);
  }
};

#endif

#if defined(__AVX2__)

// The counters of kVectors vectors of blocks.
template <int kVectors>
struct Counters {
  Wide::Vector c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
};

// One round on all of them, with its keys in every lane.
template <int kVectors>
FS_INLINE void philox_round(Wide::Vector k0, Wide::Vector k1, Counters<kVectors>& c) {
  const Wide::Vector m0 = Wide::all(kPhiloxM0), m1 = Wide::all(kPhiloxM1);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const Wide::Vector p0 = Wide::multiply(c.c0[v], m0), p1 = Wide::multiply(c.c2[v], m1);
    c.c0[v] = Wide::xor3(Wide::upper(p1), c.c1[v], k0);
    c.c2[v] = Wide::xor3(Wide::upper(p0), c.c3[v], k1);
    c.c1[v] = p1;
    c.c3[v] = p0;
  }
}

#else

constexpr int kPlainBlocks = 16;  // side by side, for whatever vectors a compiler makes of plain loops

// All rounds on the counters of kPlainBlocks blocks.
inline void plain_rounds(StageKey key, uint32_t* __restrict__ c0, uint32_t* __restrict__ c1, uint32_t* __restrict__ c2,
                         uint32_t* __restrict__ c3) {
  uint32_t k0 = key.k0, k1 = key.k1;
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma omp simd
    for (int l = 0; l < kPlainBlocks; ++l) {
      const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * c0[l];
      const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * c2[l];
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1[l] ^ k0;
      const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3[l] ^ k1;
      c1[l] = static_cast<uint32_t>(p1);
      c3[l] = static_cast<uint32_t>(p0);
      c0[l] = n0;
      c2[l] = n2;
    }
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
}

#endif

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_WIDE_H_

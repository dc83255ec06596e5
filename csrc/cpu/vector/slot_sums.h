// Sums over the weights of a frontier's slots, in groups of kFanOut: finding the slot of a number and changing a weight
// read one group of each level. An entry is the sum of what lies before it in its group, so a group's first entry is 0;
// the levels above the lowest have the sums of whole groups. 1024 slots take 8 KB with 64 bits, 4.3 KB where the lowest
// level has 32.
#ifndef FS_CPU_VECTOR_SLOT_SUMS_H_
#define FS_CPU_VECTOR_SLOT_SUMS_H_

#include <stdint.h>

#include "platform.h"
#include "walker_tasks.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fs {
namespace {

static_assert(kFanOut == 32, "the vectors of a group");

#if defined(__AVX512F__)

// The last of 32 ascending sums that is at most `number`; the first is 0.
FS_INLINE int last_at_most(const uint64_t* sums, uint64_t number) {
  const __m512i all = _mm512_set1_epi64(static_cast<long long>(number));
  uint32_t bits = 0;
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    bits |= static_cast<uint32_t>(_mm512_cmple_epu64_mask(_mm512_load_si512(sums + 8 * v), all)) << (8 * v);
  }
  return 31 - __builtin_clz(bits);
}
FS_INLINE int last_at_most(const uint32_t* sums, uint64_t number) {
  const __m512i all = _mm512_set1_epi32(static_cast<int>(number));
  const uint32_t low = _mm512_cmple_epu32_mask(_mm512_load_si512(sums), all);
  const uint32_t high = _mm512_cmple_epu32_mask(_mm512_load_si512(sums + 16), all);
  return 31 - __builtin_clz(low | high << 16);
}
// Adds `change` to the sums behind place `at`.
FS_INLINE void add_behind(uint64_t* sums, int at, int64_t change) {
  const __m512i all = _mm512_set1_epi64(change);
  const uint32_t behind = 0xFFFFFFFEu << at;
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const __m512i old = _mm512_load_si512(sums + 8 * v);
    _mm512_store_si512(sums + 8 * v, _mm512_mask_add_epi64(old, static_cast<__mmask8>(behind >> (8 * v)), old, all));
  }
}
FS_INLINE void add_behind(uint32_t* sums, int at, int64_t change) {
  const __m512i all = _mm512_set1_epi32(static_cast<int>(change));
  const uint32_t behind = 0xFFFFFFFEu << at;
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const __m512i old = _mm512_load_si512(sums + 16 * v);
    _mm512_store_si512(sums + 16 * v, _mm512_mask_add_epi32(old, static_cast<__mmask16>(behind >> (16 * v)), old, all));
  }
}

#elif defined(__AVX2__)

// 32 zeros, then 32 ones: from place 31 - at on, lane j is all ones where j > at.
template <typename Word>
struct BehindMasks {
  Word words[64];
  constexpr BehindMasks() : words() {
    for (int i = 0; i < 64; ++i) words[i] = i < 32 ? Word{0} : static_cast<Word>(~Word{0});
  }
};
constexpr BehindMasks<uint64_t> kBehind64;
constexpr BehindMasks<uint32_t> kBehind32;

FS_INLINE const __m256i* vectors(const void* words) { return static_cast<const __m256i*>(words); }

// Sums stay below 2^63 or 2^31, so that signed comparisons serve.
FS_INLINE int last_at_most(const uint64_t* sums, uint64_t number) {
  const __m256i all = _mm256_set1_epi64x(static_cast<long long>(number));
  __m256i above = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int v = 0; v < 8; v += 2) {
    above = _mm256_add_epi64(above, _mm256_cmpgt_epi64(_mm256_load_si256(vectors(sums) + v), all));
    odd = _mm256_add_epi64(odd, _mm256_cmpgt_epi64(_mm256_load_si256(vectors(sums) + v + 1), all));
  }
  above = _mm256_add_epi64(above, odd);
  __m128i both = _mm_add_epi64(_mm256_castsi256_si128(above), _mm256_extracti128_si256(above, 1));
  both = _mm_add_epi64(both, _mm_unpackhi_epi64(both, both));
  return 31 + static_cast<int>(_mm_cvtsi128_si64(both));
}
FS_INLINE int last_at_most(const uint32_t* sums, uint64_t number) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(number));
  __m256i above[4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) above[v] = _mm256_cmpgt_epi32(_mm256_load_si256(vectors(sums) + v), all);
  const __m256i pairs =
      _mm256_packs_epi16(_mm256_packs_epi32(above[0], above[1]), _mm256_packs_epi32(above[2], above[3]));
  return 31 - __builtin_popcount(static_cast<uint32_t>(_mm256_movemask_epi8(pairs)));
}
FS_INLINE void add_behind(uint64_t* sums, int at, int64_t change) {
  const __m256i all = _mm256_set1_epi64x(change);
  const uint64_t* masks = kBehind64.words + 31 - at;
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) {
    __m256i* place = reinterpret_cast<__m256i*>(sums) + v;
    const __m256i mask = _mm256_loadu_si256(vectors(masks) + v);
    _mm256_store_si256(place, _mm256_add_epi64(_mm256_load_si256(place), _mm256_and_si256(mask, all)));
  }
}
FS_INLINE void add_behind(uint32_t* sums, int at, int64_t change) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(change));
  const uint32_t* masks = kBehind32.words + 31 - at;
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    __m256i* place = reinterpret_cast<__m256i*>(sums) + v;
    const __m256i mask = _mm256_loadu_si256(vectors(masks) + v);
    _mm256_store_si256(place, _mm256_add_epi32(_mm256_load_si256(place), _mm256_and_si256(mask, all)));
  }
}

#else

template <typename Sum>
FS_INLINE int last_at_most(const Sum* sums, uint64_t number) {
  int at = 0;
#pragma GCC unroll 5
  for (int step = 16; step > 0; step /= 2) at += sums[at + step] <= number ? step : 0;
  return at;
}
template <typename Sum>
FS_INLINE void add_behind(Sum* sums, int at, int64_t change) {
  for (int i = at + 1; i < kFanOut; ++i) sums[i] += static_cast<Sum>(change);
}

#endif

// kUpper: levels above the lowest; 0: as many as `size` takes.
template <typename Low, int kUpper>
class SlotSums {
 public:
  // Weight of slot i: weight_of(i).
  template <typename WeightOf>
  SlotSums(void* memory, int64_t size, const WeightOf& weight_of) : lowest_(static_cast<Low*>(memory)) {
    int64_t groups = (size + kFanOut - 1) / kFanOut;
    char* next = static_cast<char*>(memory) + groups * kFanOut * static_cast<int64_t>(sizeof(uint64_t));
    uint64_t* totals = reinterpret_cast<uint64_t*>(next);
    for (int64_t g = 0; g < groups; ++g) {
      uint64_t sum = 0;
      for (int64_t i = g * kFanOut; i < (g + 1) * kFanOut; ++i) {
        lowest_[i] = static_cast<Low>(sum);
        if (i < size) sum += weight_of(i);
      }
      if (groups > 1) totals[g] = sum;
      total_ = sum;
    }
    while (groups > 1) {
      upper_[num_upper_++] = totals;
      const int64_t above = (groups + kFanOut - 1) / kFanOut;
      uint64_t* next_totals = totals + above * kFanOut;
      for (int64_t g = 0; g < above; ++g) {
        uint64_t sum = 0;
        for (int64_t i = g * kFanOut; i < (g + 1) * kFanOut; ++i) {
          const uint64_t own = i < groups ? totals[i] : 0;
          totals[i] = sum;
          sum += own;
        }
        if (above > 1) next_totals[g] = sum;
        total_ = sum;
      }
      totals = next_totals;
      groups = above;
    }
  }

  uint64_t total() const { return total_; }

  // The slot in which `number` lies, below total().
  FS_INLINE int64_t find(uint64_t number) const {
    int64_t at = 0;
    for (int level = (kUpper > 0 ? kUpper : num_upper_) - 1; level >= 0; --level) {
      const uint64_t* group = upper_[level] + at * kFanOut;
      const int place = last_at_most(group, number);
      number -= group[place];
      at = at * kFanOut + place;
    }
    return at * kFanOut + last_at_most(lowest_ + at * kFanOut, number);
  }

  // Changes the weight of a slot.
  FS_INLINE void add(int64_t slot, int64_t change) {
    total_ += static_cast<uint64_t>(change);
    int64_t at = slot / kFanOut;
    add_behind(lowest_ + at * kFanOut, static_cast<int>(slot % kFanOut), change);
    for (int level = 0; level < (kUpper > 0 ? kUpper : num_upper_); ++level) {
      const int64_t above = at / kFanOut;
      add_behind(upper_[level] + above * kFanOut, static_cast<int>(at % kFanOut), change);
      at = above;
    }
  }

 private:
  static constexpr int kMostUpper = 12;

  Low* lowest_;
  uint64_t* upper_[kMostUpper];
  int num_upper_ = 0;
  uint64_t total_ = 0;
};

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_SLOT_SUMS_H_

// Sums over the weights of a frontier's slots, in groups of kFanOut: finding the slot of a number and changing a weight
// read one group of each level. An entry is the sum of what lies before it in its group, so a group's first entry is 0;
// the levels above the lowest have the sums of whole groups. 1024 slots take 8.4 KB with 64 bits, 4.2 KB with 32.
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

// The 32 sums of a group, ascending from 0: read, asked and changed in registers, and written back.
//   last_at_most(number)     place of the last that is at most `number`
//   add_behind(at, change)   adds `change` to those behind place `at`
template <typename Sum>
struct SumGroup;

#if defined(__AVX512F__)

template <>
struct SumGroup<uint32_t> {
  __m512i sums[2];

  static FS_INLINE SumGroup read(const uint32_t* from) {
    return {{_mm512_load_si512(from), _mm512_load_si512(from + 16)}};
  }
  FS_INLINE void write(uint32_t* to) const {
    _mm512_store_si512(to, sums[0]);
    _mm512_store_si512(to + 16, sums[1]);
  }
  FS_INLINE uint32_t last_at_most(uint64_t number) const {
    const __m512i all = _mm512_set1_epi32(static_cast<int>(number));
    const uint32_t low = _mm512_cmple_epu32_mask(sums[0], all), high = _mm512_cmple_epu32_mask(sums[1], all);
    return static_cast<uint32_t>(__builtin_popcount(low) + __builtin_popcount(high)) - 1;
  }
  FS_INLINE void add_behind(uint64_t at, int64_t change) {
    const __m512i all = _mm512_set1_epi32(static_cast<int>(change));
    const uint32_t behind = 0xFFFFFFFEu << at;
    sums[0] = _mm512_mask_add_epi32(sums[0], static_cast<__mmask16>(behind), sums[0], all);
    sums[1] = _mm512_mask_add_epi32(sums[1], static_cast<__mmask16>(behind >> 16), sums[1], all);
  }
};

template <>
struct SumGroup<uint64_t> {
  __m512i sums[4];

  static FS_INLINE SumGroup read(const uint64_t* from) {
    return {{_mm512_load_si512(from), _mm512_load_si512(from + 8), _mm512_load_si512(from + 16),
             _mm512_load_si512(from + 24)}};
  }
  FS_INLINE void write(uint64_t* to) const {
    for (int v = 0; v < 4; ++v) _mm512_store_si512(to + 8 * v, sums[v]);
  }
  FS_INLINE uint32_t last_at_most(uint64_t number) const {
    const __m512i all = _mm512_set1_epi64(static_cast<long long>(number));
    uint32_t bits = 0;
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) bits |= static_cast<uint32_t>(_mm512_cmple_epu64_mask(sums[v], all)) << (8 * v);
    return static_cast<uint32_t>(__builtin_popcount(bits)) - 1;
  }
  FS_INLINE void add_behind(uint64_t at, int64_t change) {
    const __m512i all = _mm512_set1_epi64(change);
    const uint32_t behind = 0xFFFFFFFEu << at;
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      sums[v] = _mm512_mask_add_epi64(sums[v], static_cast<__mmask8>(behind >> (8 * v)), sums[v], all);
    }
  }
};

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
template <>
struct SumGroup<uint32_t> {
  __m256i sums[4];

  static FS_INLINE SumGroup read(const uint32_t* from) {
    SumGroup group;
    for (int v = 0; v < 4; ++v) group.sums[v] = _mm256_load_si256(vectors(from) + v);
    return group;
  }
  FS_INLINE void write(uint32_t* to) const {
    for (int v = 0; v < 4; ++v) _mm256_store_si256(reinterpret_cast<__m256i*>(to) + v, sums[v]);
  }
  FS_INLINE uint32_t last_at_most(uint64_t number) const {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(number));
    __m256i above[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) above[v] = _mm256_cmpgt_epi32(sums[v], all);
    const __m256i pairs =
        _mm256_packs_epi16(_mm256_packs_epi32(above[0], above[1]), _mm256_packs_epi32(above[2], above[3]));
    return 31 - static_cast<uint32_t>(__builtin_popcount(static_cast<uint32_t>(_mm256_movemask_epi8(pairs))));
  }
  FS_INLINE void add_behind(uint64_t at, int64_t change) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(change));
    const uint32_t* masks = kBehind32.words + 31 - at;
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      sums[v] = _mm256_add_epi32(sums[v], _mm256_and_si256(_mm256_loadu_si256(vectors(masks) + v), all));
    }
  }
};

template <>
struct SumGroup<uint64_t> {
  __m256i sums[8];

  static FS_INLINE SumGroup read(const uint64_t* from) {
    SumGroup group;
    for (int v = 0; v < 8; ++v) group.sums[v] = _mm256_load_si256(vectors(from) + v);
    return group;
  }
  FS_INLINE void write(uint64_t* to) const {
    for (int v = 0; v < 8; ++v) _mm256_store_si256(reinterpret_cast<__m256i*>(to) + v, sums[v]);
  }
  FS_INLINE uint32_t last_at_most(uint64_t number) const {
    const __m256i all = _mm256_set1_epi64x(static_cast<long long>(number));
    __m256i above = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int v = 0; v < 8; v += 2) {
      above = _mm256_add_epi64(above, _mm256_cmpgt_epi64(sums[v], all));
      odd = _mm256_add_epi64(odd, _mm256_cmpgt_epi64(sums[v + 1], all));
    }
    above = _mm256_add_epi64(above, odd);
    __m128i both = _mm_add_epi64(_mm256_castsi256_si128(above), _mm256_extracti128_si256(above, 1));
    both = _mm_add_epi64(both, _mm_unpackhi_epi64(both, both));
    return 31 + static_cast<uint32_t>(_mm_cvtsi128_si64(both));
  }
  FS_INLINE void add_behind(uint64_t at, int64_t change) {
    const __m256i all = _mm256_set1_epi64x(change);
    const uint64_t* masks = kBehind64.words + 31 - at;
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {
      sums[v] = _mm256_add_epi64(sums[v], _mm256_and_si256(_mm256_loadu_si256(vectors(masks) + v), all));
    }
  }
};

#else

template <typename Sum>
struct SumGroup {
  Sum* sums;  // where they lie

  static FS_INLINE SumGroup read(Sum* from) { return {from}; }
  FS_INLINE void write(Sum*) const {}
  FS_INLINE uint32_t last_at_most(uint64_t number) const {
    uint32_t at = 0;
#pragma GCC unroll 5
    for (uint32_t step = 16; step > 0; step /= 2) at += sums[at + step] <= number ? step : 0;
    return at;
  }
  FS_INLINE void add_behind(uint64_t at, int64_t change) {
    for (uint64_t i = at + 1; i < kFanOut; ++i) sums[i] += static_cast<Sum>(change);
  }
};

#endif

// The total, and thus every sum, is below 2^31 with uint32_t. kUpper: levels above the lowest; 0: as many as `size`
// takes. One upper level stays in registers; it is read from memory where a single sum is asked for.
template <typename Sum, int kUpper>
class SlotSums {
 public:
  // Weight of slot i: weight_of(i).
  template <typename WeightOf>
  SlotSums(void* memory, int64_t size, const WeightOf& weight_of) : lowest_(static_cast<Sum*>(memory)) {
    int64_t groups = make_level(lowest_, size, weight_of);
    Sum* totals = lowest_ + groups * kFanOut;
    while (groups > 1) {
      upper_[num_upper_++] = totals;
      const int64_t above = make_level(totals, groups, [&](int64_t i) { return totals[i]; });
      totals += above * kFanOut;
      groups = above;
    }
    if (kUpper == 1) top_ = SumGroup<Sum>::read(upper_[0]);
  }

  uint64_t total() const { return total_; }

  // The slot in which `number` lies, below total().
  FS_INLINE int64_t find(uint64_t number) const {
    uint64_t at = 0;
    if (kUpper == 1) {
      at = top_.last_at_most(number);
      number -= upper_[0][at];
    }
    for (int level = kUpper == 1 ? -1 : num_upper_ - 1; level >= 0; --level) {
      Sum* const group = upper_[level] + at * kFanOut;
      const uint64_t place = SumGroup<Sum>::read(group).last_at_most(number);
      number -= group[place];
      at = at * kFanOut + place;
    }
    return static_cast<int64_t>(at * kFanOut + SumGroup<Sum>::read(lowest_ + at * kFanOut).last_at_most(number));
  }

  // Changes the weight of a slot.
  FS_INLINE void add(int64_t slot, int64_t change) {
    total_ += static_cast<uint64_t>(change);
    uint64_t at = add_at(lowest_, static_cast<uint64_t>(slot), change);
    if (kUpper == 1) {
      top_.add_behind(at, change);
      top_.write(upper_[0]);
      return;
    }
    for (int level = 0; level < num_upper_; ++level) at = add_at(upper_[level], at, change);
  }

 private:
  static constexpr int kMostUpper = 12;

  // Sums of a level over `size` weights, and behind them the totals of its groups, whose number it returns.
  template <typename WeightOf>
  int64_t make_level(Sum* sums, int64_t size, const WeightOf& weight_of) {
    const int64_t groups = (size + kFanOut - 1) / kFanOut;
    for (int64_t g = 0; g < groups; ++g) {
      uint64_t sum = 0;
      for (int64_t i = g * kFanOut; i < (g + 1) * kFanOut; ++i) {
        const uint64_t weight = i < size ? weight_of(i) : 0;
        sums[i] = static_cast<Sum>(sum);
        sum += weight;
      }
      if (groups > 1) sums[groups * kFanOut + g] = static_cast<Sum>(sum);
      total_ = sum;
    }
    return groups;
  }

  // Adds to the group of entry `at` of a level; returns the number of the group.
  static FS_INLINE uint64_t add_at(Sum* level, uint64_t at, int64_t change) {
    Sum* const sums = level + at / kFanOut * kFanOut;
    SumGroup<Sum> group = SumGroup<Sum>::read(sums);
    group.add_behind(at % kFanOut, change);
    group.write(sums);
    return at / kFanOut;
  }

  Sum* lowest_;
  Sum* upper_[kMostUpper];
  SumGroup<Sum> top_;  // where kUpper is 1: the group at upper_[0]
  int num_upper_ = 0;
  uint64_t total_ = 0;
};

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_SLOT_SUMS_H_

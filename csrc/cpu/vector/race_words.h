// Random words of the exponential race: one candidate per lane, the sample's number in every lane.
#ifndef FS_CPU_VECTOR_RACE_WORDS_H_
#define FS_CPU_VECTOR_RACE_WORDS_H_

#include "exponential_race.h"
#include "philox_nodes.h"

namespace fs {
namespace {

#if defined(__AVX2__)

// out[i] = race_word(key, orig_ids[i], sample_id) for 4 * Wide::kLanes candidates.
FS_INLINE void race_words_of_group(const RoundKeys& keys, const uint64_t* orig_ids, uint64_t sample_id, uint64_t* out) {
  Counters<4> c;
  for (int v = 0; v < 4; ++v) {
    c.c0[v] = Wide::all(sample_id);
    c.c1[v] = Wide::all(sample_id >> 32);
    c.c2[v] = Wide::load(orig_ids + v * Wide::kLanes);
    c.c3[v] = Wide::upper(c.c2[v]);
  }
  last_rounds(keys, 0, c);
  for (int v = 0; v < 4; ++v) {
    Wide::interleave(c.c0[v], c.c1[v], reinterpret_cast<uint32_t*>(out + v * Wide::kLanes));
  }
}

void race_words(StageKey key, const uint64_t* orig_ids, int64_t n, uint64_t sample_id, uint64_t* out) {
  constexpr int kStep = 4 * Wide::kLanes;
  const RoundKeys keys(key);
  const int64_t whole = n / kStep * kStep;
  for (int64_t i = 0; i < whole; i += kStep) race_words_of_group(keys, orig_ids + i, sample_id, out + i);
  if (whole == n) return;
  uint64_t rest[kStep] = {}, words[kStep];
  for (int64_t i = whole; i < n; ++i) rest[i - whole] = orig_ids[i];
  race_words_of_group(keys, rest, sample_id, words);
  for (int64_t i = whole; i < n; ++i) out[i] = words[i - whole];
}

#else

void race_words(StageKey key, const uint64_t* orig_ids, int64_t n, uint64_t sample_id, uint64_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = race_word(key, orig_ids[i], sample_id);
}

#endif

// Numbers of the candidates that may arrive before `limit`, in their order, to passed [n]; returns how many. A time is
// at least race_log_at_least / weight; `bound` is the limit and a little more (race_ranking.h).
int64_t race_filter(const uint64_t* words, const double* weights, int64_t n, double bound, int32_t* passed) {
  int64_t count = 0, i = 0;
#if defined(__AVX512DQ__)
  const __m512i one = _mm512_set1_epi64(1), error = _mm512_set1_epi64(kRaceLogError + 1);
  for (; i + 8 <= n; i += 8) {
    const __m512i word = _mm512_or_si512(_mm512_loadu_si512(words + i), one);
    const __m512i below_one = _mm512_srli_epi64(_mm512_sub_epi64(_mm512_setzero_si512(), word), 6);
    const __m512i least = _mm512_sub_epi64(_mm512_max_epi64(below_one, error), error);
    const __m512d latest = _mm512_mul_pd(_mm512_loadu_pd(weights + i), _mm512_set1_pd(bound));
    __mmask8 mask = _mm512_cmp_pd_mask(_mm512_cvtepi64_pd(least), latest, _CMP_NGT_UQ);
    for (; mask != 0; mask &= static_cast<__mmask8>(mask - 1))
      passed[count++] = static_cast<int32_t>(i) + __builtin_ctz(mask);
  }
#endif
  for (; i < n; ++i) {
    const double least = static_cast<double>(static_cast<int64_t>(race_log_at_least(words[i])));
    passed[count] = static_cast<int32_t>(i);
    count += !(least > weights[i] * bound);
  }
  return count;
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_RACE_WORDS_H_

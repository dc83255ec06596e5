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

// The filter looks at the upper half of a word alone. With x = 2^32 - 1 - upper, -ln U >= 1 - U is at least x * 2^26
// units of 2^-58, less what race_log is off by: nobody arrives before (x - 1) * 2^26 / weight. So it leaves out what
// only the lower half depends on; x and weight * bound are compared as doubles above 2^52, where integers need no
// conversion.

constexpr double kHalfUnit = 1.0 / (1 << 26);   // 2^-26: units of 2^-58 as units of 2^-32
constexpr double kOnes52 = 4503599627370496.0;  // 2^52
static_assert(kRaceLogError < 1 << 26, "race_log is off by less than a unit of x");

#if defined(__AVX2__)

// Upper halves of the words of 4 * Wide::kLanes candidates, in the lower halves of the lanes. Ids of 32 bits have the
// same third word after round 0, so that half of round 1 is theirs together.
template <typename OrigId>
FS_INLINE void upper_halves_of_group(const RoundKeys& keys, const OrigId* orig_ids, uint64_t sample_id,
                                     Wide::Vector upper[4]) {
  using Vector = Wide::Vector;
  const Vector m0 = Wide::all(kPhiloxM0), m1 = Wide::all(kPhiloxM1);
  const uint64_t of_sample = kPhiloxM0 * (sample_id & 0xFFFFFFFFull);  // round 0 of what all candidates share
  const Vector first0 = Wide::all(sample_id >> 32 ^ keys.k0[0]), first2 = Wide::all(of_sample >> 32 ^ keys.k1[0]);
  Counters<4> c;
  for (int v = 0; v < 4; ++v) {
    const Vector node = Wide::load(orig_ids + v * Wide::kLanes);
    c.c1[v] = Wide::multiply(node, m1);
    c.c0[v] = Wide::xor2(Wide::upper(c.c1[v]), first0);
    c.c2[v] = sizeof(OrigId) == 4 ? first2 : Wide::xor2(Wide::upper(node), first2);
    c.c3[v] = Wide::all(of_sample);
  }
#pragma GCC unroll 7
  for (int round = 1; round < kPhiloxRounds - 2; ++round) {
    philox_round(Wide::all(keys.k0[round]), Wide::all(keys.k1[round]), c);
  }
  const Vector k1 = Wide::all(keys.k1[kPhiloxRounds - 2]);
  for (int v = 0; v < 4; ++v) {
    const Vector p0 = Wide::multiply(c.c0[v], m0);
    upper[v] = Wide::multiply(Wide::xor3(Wide::upper(p0), c.c3[v], k1), m1);
  }
}

// Bits of the lanes whose candidates may arrive in time.
FS_INLINE uint32_t lanes_in_time(Wide::Vector upper, const double* weights, double scaled) {
#if defined(__AVX512DQ__)
  const __m512d latest = _mm512_fmadd_pd(_mm512_loadu_pd(weights), _mm512_set1_pd(scaled), _mm512_set1_pd(kOnes52 + 2));
  const __m512i x = _mm512_andnot_si512(upper, _mm512_set1_epi64(0xFFFFFFFF));
  const __m512d earliest = _mm512_castsi512_pd(_mm512_or_si512(x, _mm512_castpd_si512(_mm512_set1_pd(kOnes52))));
  return _mm512_cmp_pd_mask(earliest, latest, _CMP_NGT_UQ);
#else
  const __m256d latest = _mm256_fmadd_pd(_mm256_loadu_pd(weights), _mm256_set1_pd(scaled), _mm256_set1_pd(kOnes52 + 2));
  const __m256i x = _mm256_andnot_si256(upper, _mm256_set1_epi64x(0xFFFFFFFF));
  const __m256d earliest = _mm256_castsi256_pd(_mm256_or_si256(x, _mm256_castpd_si256(_mm256_set1_pd(kOnes52))));
  return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_cmp_pd(earliest, latest, _CMP_NGT_UQ)));
#endif
}

template <typename OrigId>
FS_INLINE int64_t filter_group(const RoundKeys& keys, const OrigId* orig_ids, const double* weights, uint64_t sample_id,
                               double scaled, int64_t first, int32_t* passed) {
  Wide::Vector upper[4];
  upper_halves_of_group(keys, orig_ids, sample_id, upper);
  uint32_t lanes = 0;
  for (int v = 0; v < 4; ++v) {
    lanes |= lanes_in_time(upper[v], weights + v * Wide::kLanes, scaled) << (v * Wide::kLanes);
  }
  int64_t count = 0;
  for (; lanes != 0; lanes &= lanes - 1) passed[count++] = static_cast<int32_t>(first) + __builtin_ctz(lanes);
  return count;
}

#endif

// Numbers of the candidates that may arrive before `limit`, in their order, to passed [n]; returns how many. `bound` is
// the limit and a little more (race_ranking.h).
template <typename OrigId>
int64_t race_filter(StageKey key, const OrigId* orig_ids, const double* weights, int64_t n, uint64_t sample_id,
                    double bound, int32_t* passed) {
  const double scaled = bound * kHalfUnit;
  int64_t count = 0, i = 0;
#if defined(__AVX2__)
  constexpr int kStep = 4 * Wide::kLanes;
  const RoundKeys keys(key);
  for (; i + kStep <= n; i += kStep) {
    count += filter_group(keys, orig_ids + i, weights + i, sample_id, scaled, i, passed + count);
  }
#endif
  for (; i < n; ++i) {
    const uint64_t upper = race_word(key, orig_ids[i], sample_id) >> 32;
    const double earliest = kOnes52 + static_cast<double>(0xFFFFFFFFull - upper);
    passed[count] = static_cast<int32_t>(i);
    count += !(earliest > weights[i] * scaled + (kOnes52 + 2));
  }
  return count;
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_RACE_WORDS_H_

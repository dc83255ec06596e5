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

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_RACE_WORDS_H_

// Random words of transit-parallel sampling (fastsample_transit.h): every pick of a sample has a stream of its own.
//
// The stage key is that of (domain, step k of the application, step of training); the counter has the sample's id and,
// in the upper half of the block number, the number of the pick in its step. A pick may draw 2^34 words.
#ifndef FS_CORE_TRANSIT_DRAW_H_
#define FS_CORE_TRANSIT_DRAW_H_

#include "philox.h"

namespace fs {

// What `next`, `step_transits` and `initial` draw from: the stream of one pick.
class PickStream : public NodeStream {
 public:
  FS_HD PickStream(StageKey key, int64_t sample_id, int64_t pick)
      : NodeStream(key, static_cast<uint64_t>(sample_id), static_cast<uint64_t>(pick) << 32) {}

  FS_HD uint64_t word64() {
    const uint64_t first = next();
    return first | static_cast<uint64_t>(next()) << 32;
  }
  // threshold: 0 .. 2^32, the probability times 2^32.
  FS_HD bool coin(uint64_t threshold) { return next() < threshold; }
};

// The length that FS_NEXT_PPR draws for a sample, 1 to count + 1, from the word of its `initial`. table [count] as in
// FsNextKind.
FS_HD int64_t ppr_length(uint64_t word, const int64_t* table, int64_t count) {
  const int64_t variate = static_cast<int64_t>(word >> 1);
  int64_t low = 0, left = count;  // entries before `low` are above the variate, those from low + left on are not
  while (left > 0) {
    const int64_t half = (left + 1) / 2;
    low += table[low + half - 1] > variate ? half : 0;  // a coin toss: no branch
    left -= half;
  }
  return 1 + low;
}

// Key of step `k` of an application at `step` of training; domain is kTransit, kStepTransits, kInitial or kRace.
FS_HD StageKey transit_key(uint64_t rng_seed, RandomDomain domain, int64_t k, uint64_t step) {
  return stage_key(rng_seed, domain, static_cast<uint32_t>(k), step);
}

// What the keys of a call on a device are made of: rng_seed and step, or the two words in their place, which only
// kernels read.
struct CallDraw {
  uint64_t rng_seed, step;
  const uint64_t* words;  // or NULL

  FS_HD StageKey key(RandomDomain domain, int64_t k) const {
    return words == nullptr ? transit_key(rng_seed, domain, k, step) : transit_key(words[0], domain, k, words[1]);
  }
};

}  // namespace fs

#endif  // FS_CORE_TRANSIT_DRAW_H_

// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
//
// Two levels of keys. A stage key is one Philox block keyed by rng_seed over (domain, stage, step): a stage is a hop of
// sampling, a layer of dropout or a step of an application. A node's stream is the sequence of Philox blocks keyed by
// the stage key over (block number, original node id). Nothing else enters, so a draw is the same on every thread,
// rank, partition and device, and every part of the counter keeps its full 64 bits.
#ifndef FS_CORE_PHILOX_H_
#define FS_CORE_PHILOX_H_

#include <stdint.h>

#include "platform.h"

namespace fs {

struct StageKey {
  uint32_t k0, k1;
};

enum RandomDomain : uint32_t {
  kSampling = 1,
  kDropout = 2,
  kLayer = 3,
  kTransit = 4,       // picks of an application's step (transit_draw.h)
  kStepTransits = 5,  // its choice of transits
  kInitial = 6,       // its start
  kRace = 7,          // order of the vertices of a combined neighbourhood
  kNegatives = 8,     // of skip-gram's pairs (fastsample_embedding.h)
  kEmbedding = 9,     // rows that embeddings start from
  // Of a subgraph (fastsample_subgraph.h), whose number is the step:
  kSubgraphRoots = 10,   // stream: slot or walker
  kSubgraphPops = 11,    // one stream: which slots advance
  kSubgraphHops = 12,    // stream: slot or walker
  kSubgraphDraws = 13,   // stream: number of the draw of a node or an edge
  kSubgraphProbes = 14,  // stream: number of the pop
  kSubgraphEgo = 15,     // stage: hop; stream: original id of the node that is expanded
  kSubgraphOrder = 16    // permutations of an epoch, which is the step
};

constexpr uint32_t kPhiloxM0 = 0xD2511F53u;
constexpr uint32_t kPhiloxM1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxW0 = 0x9E3779B9u;
constexpr uint32_t kPhiloxW1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 10;

// Replaces counter c[0..3] by its Philox4x32-10 block.
FS_HD void philox_block(StageKey key, uint32_t c[4]) {
  uint32_t k0 = key.k0, k1 = key.k1;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * c[2];
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
    c[1] = static_cast<uint32_t>(p1);
    c[3] = static_cast<uint32_t>(p0);
    c[0] = n0;
    c[2] = n2;
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
}

FS_HD StageKey stage_key(uint64_t rng_seed, RandomDomain domain, uint32_t stage, uint64_t step) {
  uint32_t c[4] = {domain, stage, static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)};
  philox_block({static_cast<uint32_t>(rng_seed), static_cast<uint32_t>(rng_seed >> 32)}, c);
  return {c[0], c[1]};
}

// High word of a product of 64-bit words.
FS_HD uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

// Uniform in 0 .. n - 1, exactly (Lemire's multiply-shift with rejection, TOMACS 2019), from a stream with next().
// n >= 1.
template <typename Stream>
FS_HD uint64_t draw_below(Stream& stream, uint64_t n) {
  if (n <= 0xFFFFFFFFull) {
    const uint32_t bound = static_cast<uint32_t>(n);
    uint64_t product = static_cast<uint64_t>(stream.next()) * bound;
    if (static_cast<uint32_t>(product) < bound) {
      const uint32_t biased = (0u - bound) % bound;
      while (static_cast<uint32_t>(product) < biased) product = static_cast<uint64_t>(stream.next()) * bound;
    }
    return product >> 32;
  }
  const uint64_t biased = (0ull - n) % n;
  uint64_t low, high;
  do {
    const uint64_t first = stream.next();
    const uint64_t word = first | static_cast<uint64_t>(stream.next()) << 32;
    low = word * n;
    high = multiply_high(word, n);
  } while (low < biased);
  return high;
}

// The stream of 32-bit words of one node, from a block on.
class NodeStream {
 public:
  FS_HD NodeStream(StageKey key, uint64_t orig_id, uint64_t first_block = 0)
      : key_(key), orig_id_(orig_id), block_(first_block) {}

  FS_HD uint32_t next() {
    if (used_ == 4) {
      words_[0] = static_cast<uint32_t>(block_);
      words_[1] = static_cast<uint32_t>(block_ >> 32);
      words_[2] = static_cast<uint32_t>(orig_id_);
      words_[3] = static_cast<uint32_t>(orig_id_ >> 32);
      philox_block(key_, words_);
      ++block_;
      used_ = 0;
    }
    return take();
  }

  FS_HD uint64_t below(uint64_t n) { return draw_below(*this, n); }

 private:
  // On a GPU an array that is indexed by a variable is in memory, so there the word is selected.
  FS_HD uint32_t take() {
    const int at = used_++;
#if defined(__CUDA_ARCH__)
    const uint32_t first = (at & 1) == 0 ? words_[0] : words_[1], second = (at & 1) == 0 ? words_[2] : words_[3];
    return at < 2 ? first : second;
#else
    return words_[at];
#endif
  }

  StageKey key_;
  uint64_t orig_id_;
  uint64_t block_;
  uint32_t words_[4];
  int used_ = 4;
};

}  // namespace fs

#endif  // FS_CORE_PHILOX_H_

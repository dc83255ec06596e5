// The first words of many nodes' streams: one node per lane, the same block number in every lane.
//
// Nodes come in groups of kGroupNodes, the words of a group as [word][node]. Within a group all blocks share what only
// depends on the node: of round 0 everything but the constants of the block number, of round 1 the first product. A
// round waits 7 cycles for a multiplication, a shift and an XOR; two blocks (of one node, or the first ones of two
// nodes) are computed side by side to fill them. Measured on one core of a Sapphire Rapids at 2.6 GHz nominal, ns per
// block of four words: 1.25 with AVX-512, 2.4 with AVX2, 5.1 with the baseline, 10.6 one node at a time (NodeStream).
#ifndef FS_CPU_VECTOR_PHILOX_NODES_H_
#define FS_CPU_VECTOR_PHILOX_NODES_H_

#include "philox.h"
#include "vector_kernels.h"
#include "wide.h"

namespace fs {
namespace {

#if defined(__AVX2__)

// Keys of all rounds, one word to a 64-bit lane, so that they are broadcast by the instruction that reads them.
struct RoundKeys {
  uint64_t k0[kPhiloxRounds], k1[kPhiloxRounds];

  explicit RoundKeys(StageKey key) {
    for (uint32_t round = 0; round < kPhiloxRounds; ++round) {
      k0[round] = key.k0 + round * kPhiloxW0;
      k1[round] = key.k1 + round * kPhiloxW1;
    }
  }
};

template <int kVectors>
FS_INLINE void last_rounds(const RoundKeys& keys, int first_round, Counters<kVectors>& c) {
  static_assert(kPhiloxRounds == 10, "the number of rounds to unroll");
#pragma GCC unroll 10
  for (int round = first_round; round < kPhiloxRounds; ++round) {
    philox_round(Wide::all(keys.k0[round]), Wide::all(keys.k1[round]), c);
  }
}

// A pair of vectors of nodes, and what all their blocks below 2^32 share.
struct NodePair {
  Wide::Vector c1[2];          // after round 0
  Wide::Vector c2[2];          // after round 0, without the block's share
  Wide::Vector p0[2], mix[2];  // product of round 1, and its share of c2 after round 1

  FS_INLINE NodePair(const RoundKeys& keys, const uint64_t* nodes) {
    for (int v = 0; v < 2; ++v) {
      const Wide::Vector node = Wide::load(nodes + v * Wide::kLanes);
      c1[v] = Wide::multiply(node, Wide::all(kPhiloxM1));
      const Wide::Vector c0 = Wide::xor2(Wide::upper(c1[v]), Wide::all(keys.k0[0]));
      c2[v] = Wide::xor2(Wide::upper(node), Wide::all(keys.k1[0]));
      p0[v] = Wide::multiply(c0, Wide::all(kPhiloxM0));
      mix[v] = Wide::xor2(Wide::upper(p0[v]), Wide::all(keys.k1[1]));
    }
  }

  // Counters of block number `block` after round 1, as vectors `at` and `at` + 1 of c.
  template <int kVectors>
  FS_INLINE void start(const RoundKeys& keys, uint32_t block, int at, Counters<kVectors>& c) const {
    const uint64_t product = static_cast<uint64_t>(kPhiloxM0) * block;
    const Wide::Vector upper = Wide::all(product >> 32), lower = Wide::all(product);
    for (int v = 0; v < 2; ++v) {
      const Wide::Vector p1 = Wide::multiply(Wide::xor2(c2[v], upper), Wide::all(kPhiloxM1));
      c.c0[at + v] = Wide::xor3(Wide::upper(p1), c1[v], Wide::all(keys.k0[1]));
      c.c1[at + v] = p1;
      c.c2[at + v] = Wide::xor2(mix[v], lower);
      c.c3[at + v] = p0[v];
    }
  }
};

// Vectors `at` and `at` + 1 to out[0 .. 3][kGroupNodes].
template <int kVectors>
FS_INLINE void store_words(const Counters<kVectors>& c, int at, uint32_t* out) {
  Wide::pack(c.c0[at], c.c0[at + 1], out);
  Wide::pack(c.c1[at], c.c1[at + 1], out + kGroupNodes);
  Wide::pack(c.c2[at], c.c2[at + 1], out + 2 * kGroupNodes);
  Wide::pack(c.c3[at], c.c3[at + 1], out + 3 * kGroupNodes);
}

// Blocks first_block .. first_block + num_blocks - 1 of the nodes of one pair.
inline void pair_words(const RoundKeys& keys, const uint64_t* nodes, uint32_t first_block, int32_t num_blocks,
                       uint32_t* out) {
  const NodePair pair(keys, nodes);
  int64_t block = 0;
  for (; block + 2 <= num_blocks; block += 2) {
    Counters<4> c;
    pair.start(keys, first_block + static_cast<uint32_t>(block), 0, c);
    pair.start(keys, first_block + static_cast<uint32_t>(block) + 1, 2, c);
    last_rounds(keys, 2, c);
    store_words(c, 0, out + block * 4 * kGroupNodes);
    store_words(c, 2, out + (block + 1) * 4 * kGroupNodes);
  }
  if (block < num_blocks) {
    Counters<2> c;
    pair.start(keys, first_block + static_cast<uint32_t>(block), 0, c);
    last_rounds(keys, 2, c);
    store_words(c, 0, out + block * 4 * kGroupNodes);
  }
}

// As VectorKernels::stream_words, from first_block on; blocks are below 2^32.
inline void stream_blocks(StageKey key, const uint64_t* nodes, int64_t num_groups, uint32_t first_block,
                          int32_t num_blocks, uint32_t* out) {
  static_assert(kGroupNodes % Wide::kPairLanes == 0, "a group is made of pairs");
  const RoundKeys keys(key);
  const int64_t group_words = static_cast<int64_t>(num_blocks) * 4 * kGroupNodes;
  for (int64_t group = 0; group < num_groups; ++group) {
    for (int first = 0; first < kGroupNodes; first += Wide::kPairLanes) {
      pair_words(keys, nodes + group * kGroupNodes + first, first_block, num_blocks, out + group * group_words + first);
    }
  }
}

// The first words of two pairs' nodes.
FS_INLINE void first_words_of_pairs(const RoundKeys& keys, const uint64_t* nodes, uint32_t* out) {
  Counters<4> c;
  NodePair(keys, nodes).start(keys, 0, 0, c);
  NodePair(keys, nodes + Wide::kPairLanes).start(keys, 0, 2, c);
  last_rounds(keys, 2, c);
  Wide::pack(c.c0[0], c.c0[1], out);
  Wide::pack(c.c0[2], c.c0[3], out + Wide::kPairLanes);
}

void first_words(StageKey key, const uint64_t* nodes, int64_t n, uint32_t* out) {
  constexpr int kStep = 2 * Wide::kPairLanes;
  const RoundKeys keys(key);
  const int64_t whole = n / kStep * kStep;
  for (int64_t i = 0; i < whole; i += kStep) first_words_of_pairs(keys, nodes + i, out + i);
  if (whole == n) return;
  uint64_t rest[kStep] = {};
  uint32_t words[kStep];
  for (int64_t i = whole; i < n; ++i) rest[i - whole] = nodes[i];
  first_words_of_pairs(keys, rest, words);
  for (int64_t i = whole; i < n; ++i) out[i] = words[i - whole];
}

#else

// One block of each node of a group; plain loops that a compiler turns into whatever vectors it has.
inline void group_block(StageKey key, const uint64_t* nodes, uint32_t block, uint32_t* out) {
  uint32_t c0[kGroupNodes], c1[kGroupNodes], c2[kGroupNodes], c3[kGroupNodes];
  for (int l = 0; l < kGroupNodes; ++l) {
    c0[l] = block;
    c1[l] = 0;
    c2[l] = static_cast<uint32_t>(nodes[l]);
    c3[l] = static_cast<uint32_t>(nodes[l] >> 32);
  }
  static_assert(kGroupNodes == kPlainBlocks);
  plain_rounds(key, c0, c1, c2, c3);
  for (int l = 0; l < kGroupNodes; ++l) {
    out[l] = c0[l];
    out[kGroupNodes + l] = c1[l];
    out[2 * kGroupNodes + l] = c2[l];
    out[3 * kGroupNodes + l] = c3[l];
  }
}

inline void stream_blocks(StageKey key, const uint64_t* nodes, int64_t num_groups, uint32_t first_block,
                          int32_t num_blocks, uint32_t* out) {
  for (int64_t group = 0; group < num_groups; ++group) {
    for (int32_t block = 0; block < num_blocks; ++block) {
      group_block(key, nodes + group * kGroupNodes, first_block + static_cast<uint32_t>(block), out);
      out += 4 * kGroupNodes;
    }
  }
}

void first_words(StageKey key, const uint64_t* nodes, int64_t n, uint32_t* out) {
  uint64_t group[kGroupNodes] = {};
  uint32_t words[4 * kGroupNodes];
  for (int64_t begin = 0; begin < n; begin += kGroupNodes) {
    const int64_t count = n - begin < kGroupNodes ? n - begin : kGroupNodes;
    for (int64_t i = 0; i < count; ++i) group[i] = nodes[begin + i];
    group_block(key, group, 0, words);
    for (int64_t i = 0; i < count; ++i) out[begin + i] = words[i];
  }
}

#endif

void stream_words(StageKey key, const uint64_t* nodes, int64_t num_groups, int32_t num_blocks, uint32_t* out) {
  stream_blocks(key, nodes, num_groups, 0, num_blocks, out);
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_PHILOX_NODES_H_

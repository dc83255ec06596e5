// The first words of many picks' streams (core/transit_draw.h): as stream_words of philox_nodes.h, with a number of its
// own in the upper half of every lane's block number, and only as many words as are used. Two pairs of vectors are
// computed side by side: one block per lane would wait for its own multiplications.
#ifndef FS_CPU_VECTOR_PICK_WORDS_H_
#define FS_CPU_VECTOR_PICK_WORDS_H_

#include "fastsample_transit.h"
#include "philox_nodes.h"

namespace fs {
namespace {

#if defined(__AVX2__)

// Starts the pair of vectors at node i.
template <int kVectors>
FS_INLINE void start_pair(const uint64_t* nodes, const uint64_t* numbers, int64_t i, int at, Counters<kVectors>& c) {
  for (int v = 0; v < 2; ++v) {
    const Wide::Vector node = Wide::load(nodes + i + v * Wide::kLanes);
    c.c0[at + v] = Wide::all(0);
    c.c1[at + v] = numbers == nullptr ? Wide::all(0) : Wide::load(numbers + i + v * Wide::kLanes);
    c.c2[at + v] = node;
    c.c3[at + v] = Wide::upper(node);
  }
}

template <int kWords, int kVectors>
FS_INLINE void store_pair(const Counters<kVectors>& c, int at, int64_t i, uint32_t* out) {
  uint32_t* words = out + i / kGroupNodes * (kWords * kGroupNodes) + i % kGroupNodes;
  Wide::pack(c.c0[at], c.c0[at + 1], words);
  if (kWords == 2) Wide::pack(c.c1[at], c.c1[at + 1], words + kGroupNodes);
}

// Of one stage, a group of nodes at a time: out [kWords][kGroupNodes] has words 0 .. kWords - 1 of block 0.
template <int kWords>
class PickWords {
 public:
  explicit PickWords(StageKey key) : key_(key), keys_(key) {}

  FS_INLINE void make(const uint64_t* nodes, uint32_t* out) const {
    constexpr int kPair = Wide::kPairLanes;
    for (int i = 0; i < kGroupNodes; i += kPair) {
      Counters<2> c;
      start_pair(nodes, nullptr, i, 0, c);
      last_rounds(keys_, 0, c);
      store_pair<kWords>(c, 0, i, out);
    }
  }
  StageKey key() const { return key_; }

 private:
  StageKey key_;
  RoundKeys keys_;
};

// out [num_groups][kWords][kGroupNodes]: words 0 .. kWords - 1 of block numbers[i] << 32 of node i.
template <int kWords>
void pick_words(StageKey key, const uint64_t* nodes, const uint64_t* numbers, int64_t num_groups, uint32_t* out) {
  constexpr int kPair = Wide::kPairLanes;
  const RoundKeys keys(key);
  const int64_t count = num_groups * kGroupNodes;
  int64_t i = 0;
  for (; i + 2 * kPair <= count; i += 2 * kPair) {
    Counters<4> c;
    start_pair(nodes, numbers, i, 0, c);
    start_pair(nodes, numbers, i + kPair, 2, c);
    last_rounds(keys, 0, c);
    store_pair<kWords>(c, 0, i, out);
    store_pair<kWords>(c, 2, i + kPair, out);
  }
  for (; i < count; i += kPair) {
    Counters<2> c;
    start_pair(nodes, numbers, i, 0, c);
    last_rounds(keys, 0, c);
    store_pair<kWords>(c, 0, i, out);
  }
}

#else

template <int kWords>
void pick_words(StageKey key, const uint64_t* nodes, const uint64_t* numbers, int64_t num_groups, uint32_t* out) {
  for (int64_t group = 0; group < num_groups; ++group) {
    uint32_t c0[kGroupNodes], c1[kGroupNodes], c2[kGroupNodes], c3[kGroupNodes];
    for (int l = 0; l < kGroupNodes; ++l) {
      const int64_t i = group * kGroupNodes + l;
      c0[l] = 0;
      c1[l] = numbers == nullptr ? 0 : static_cast<uint32_t>(numbers[i]);
      c2[l] = static_cast<uint32_t>(nodes[i]);
      c3[l] = static_cast<uint32_t>(nodes[i] >> 32);
    }
    plain_rounds(key, c0, c1, c2, c3);
    uint32_t* words = out + group * (kWords * kGroupNodes);
    for (int l = 0; l < kGroupNodes; ++l) {
      words[l] = c0[l];
      if (kWords == 2) words[kGroupNodes + l] = c1[l];
    }
  }
}

template <int kWords>
class PickWords {
 public:
  explicit PickWords(StageKey key) : key_(key) {}

  void make(const uint64_t* nodes, uint32_t* out) const { pick_words<kWords>(key_, nodes, nullptr, 1, out); }
  StageKey key() const { return key_; }

 private:
  StageKey key_;
};

#endif

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_PICK_WORDS_H_

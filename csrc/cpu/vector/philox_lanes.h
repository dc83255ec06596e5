// Sixteen neighbouring Philox blocks of one stream at once.
//
// Two vectors of 64-bit lanes (wide.h) hold a word of the even and of the odd blocks; the halves are interleaved once
// at the end. Other instruction sets get the plain loop.
#ifndef FS_CPU_VECTOR_PHILOX_LANES_H_
#define FS_CPU_VECTOR_PHILOX_LANES_H_

#include "philox.h"
#include "wide.h"

namespace fs {
namespace {

constexpr int kLanes = 16;  // blocks side by side

#if defined(__AVX2__)

// words[w][l]: word w of block first_block + l of the node's stream. first_block is a multiple of kLanes.
inline void philox_lanes(StageKey key, uint64_t node, uint64_t first_block, uint32_t words[4][kLanes]) {
  using Vector = Wide::Vector;
  for (int begin = 0; begin < kLanes; begin += Wide::kPairLanes) {
    const Vector even = Wide::add(Wide::all(first_block + static_cast<uint64_t>(begin)), Wide::even_numbers());
    Counters<2> c = {{even, Wide::add(even, Wide::all(1))},
                     {Wide::all(first_block >> 32), Wide::all(first_block >> 32)},
                     {Wide::all(node), Wide::all(node)},
                     {Wide::all(node >> 32), Wide::all(node >> 32)}};
    uint32_t k0 = key.k0, k1 = key.k1;
#pragma GCC unroll 10
    for (int round = 0; round < kPhiloxRounds; ++round) {
      philox_round(Wide::all(k0), Wide::all(k1), c);
      k0 += kPhiloxW0;
      k1 += kPhiloxW1;
    }
    Wide::interleave(c.c0[0], c.c0[1], words[0] + begin);
    Wide::interleave(c.c1[0], c.c1[1], words[1] + begin);
    Wide::interleave(c.c2[0], c.c2[1], words[2] + begin);
    Wide::interleave(c.c3[0], c.c3[1], words[3] + begin);
  }
}

#else

inline void philox_lanes(StageKey key, uint64_t node, uint64_t first_block, uint32_t words[4][kLanes]) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t block = first_block + static_cast<uint64_t>(l);
    c0[l] = static_cast<uint32_t>(block);
    c1[l] = static_cast<uint32_t>(block >> 32);
    c2[l] = static_cast<uint32_t>(node);
    c3[l] = static_cast<uint32_t>(node >> 32);
  }
  static_assert(kLanes == kPlainBlocks);
  plain_rounds(key, c0, c1, c2, c3);
  for (int l = 0; l < kLanes; ++l) {
    words[0][l] = c0[l];
    words[1][l] = c1[l];
    words[2][l] = c2[l];
    words[3][l] = c3[l];
  }
}

#endif

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_PHILOX_LANES_H_

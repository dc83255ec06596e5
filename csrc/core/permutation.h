// A permutation of 0 .. n - 1 by a key, one number at a time and without memory: an epoch's order of clusters or roots.
//
// A Feistel network of kPermutationRounds rounds on two halves of `bits` bits each (Luby and Rackoff, 1988), walked
// along its cycle until the number is below n (Black and Rogaway, CT-RSA 2002). Round r turns (left, right) into
// (right, left ^ f), f the lowest bits of word 0 of block `right` of stream r. Halves have at least 4 bits: two numbers
// then are as good as independent after 12 rounds, also where n is small. At most 4 walks on average from n = 65 on.
#ifndef FS_CORE_PERMUTATION_H_
#define FS_CORE_PERMUTATION_H_

#include <stdint.h>

#include "philox.h"
#include "platform.h"

namespace fs {

constexpr uint64_t kPermutationRounds = 12;
constexpr int kLeastHalfBits = 4;

class KeyedPermutation {
 public:
  // n: 1 .. 2^62.
  FS_HD KeyedPermutation(StageKey key, uint64_t n) : key_(key), n_(n) {
    while ((uint64_t{1} << (2 * bits_)) < n) ++bits_;
  }

  // Number at place i < n.
  FS_HD uint64_t operator()(uint64_t i) const {
    do {
      i = once(i);
    } while (i >= n_);
    return i;
  }

 private:
  FS_HD uint64_t once(uint64_t number) const {
    const uint64_t mask = (uint64_t{1} << bits_) - 1;
    uint64_t left = number >> bits_, right = number & mask;
    for (uint64_t round = 0; round < kPermutationRounds; ++round) {
      const uint64_t mixed = left ^ (NodeStream(key_, round, right).next() & mask);
      left = right;
      right = mixed;
    }
    return left << bits_ | right;
  }

  StageKey key_;
  uint64_t n_;
  int bits_ = kLeastHalfBits;
};

}  // namespace fs

#endif  // FS_CORE_PERMUTATION_H_

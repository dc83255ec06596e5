// Where the n-th of many random reads goes, without an array of positions that would be read along with them.
#ifndef FS_BENCH_MIX_H_
#define FS_BENCH_MIX_H_

#include <stdint.h>

#include "platform.h"

namespace fs {

// A bijection of 64-bit words that spreads neighbouring counters over both halves of the word.
FS_HD uint64_t mix(uint64_t counter) {
  uint64_t word = counter * 0x9E3779B97F4A7C15ull;
  word ^= word >> 32;
  return word * 0xD6E8FEB86659FD93ull;
}

}  // namespace fs

#endif  // FS_BENCH_MIX_H_

// A bijection of 64-bit words that changes half of the bits when one changes: the finaliser of MurmurHash3 (Appleby).
#ifndef FS_CPU_MIX64_H_
#define FS_CPU_MIX64_H_

#include <stdint.h>

namespace fs {

inline uint64_t mix64(uint64_t word) {
  word = (word ^ word >> 33) * 0xff51afd7ed558ccdULL;
  word = (word ^ word >> 33) * 0xc4ceb9fe1a85ec53ULL;
  return word ^ word >> 33;
}

}  // namespace fs

#endif  // FS_CPU_MIX64_H_

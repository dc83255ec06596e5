// The exponential race: a sample without replacement, by weight, that no order of drawing enters.
//
// Candidate u arrives at time E(u) / W(u), with E(u) exponential of rate 1 and W(u) its weight; the first s to arrive
// have the law of s successive draws by weight among those left (Efraimidis & Spirakis, "Weighted random sampling with
// a reservoir", Inf. Proc. Letters 2006). E(u) = -ln(U) comes from 64 random bits of (stage key, sample, original id),
// so a candidate's time depends on nothing but its weight, and threads, blocks and devices find the same winners.
//
// The logarithm is computed in integers: U = x / 2^64 with x odd, and E in units of 2^-58 (-ln(2^-64) = 44.4 takes the
// other 6 bits). With x = m / 2^s, m in 2^63 .. 2^64, and y = m / 2^64:
//   -ln U = s ln 2 + 2 atanh(z), z = (1 - y) / (1 + y) <= 1/3, atanh z = z + z w (1/3 + w/5 + w^2/7 + ...), w = z^2.
// Error: z is off by less than 2 units of 2^-64 (a quotient cut, a divisor cut by half a unit), the products by less
// than 3 more, doubled; s ln 2 by less than 32 (63 times half a unit); the last shift cuts less than 64 of these. So
// E / 2^58 is off by less than 110 * 2^-64 < kRaceLogError * 2^-58.
#ifndef FS_CORE_EXPONENTIAL_RACE_H_
#define FS_CORE_EXPONENTIAL_RACE_H_

#include <stdint.h>

#include "philox.h"
#include "platform.h"

namespace fs {

constexpr uint64_t kRaceLogError = 2;             // units of 2^-58
constexpr uint64_t kLn2 = 0xB17217F7D1CF79ACull;  // ln 2 in units of 2^-64, rounded
constexpr int kAtanhTerms = 19;                   // the first one left out is below 2^-64: 9^-19 / 41
constexpr uint64_t kWholeWord = 0xFFFFFFFFFFFFFFFFull;

// numerator * 2^63 / divisor, cut; numerator < divisor, divisor >= 2^63. Devices, which have no numbers of 128 bits,
// divide bit by bit; so do emulated ones, whose tests compare the two ways.
FS_HD uint64_t shifted_quotient(uint64_t numerator, uint64_t divisor) {
#if defined(__CUDA_ARCH__) || defined(FS_EMULATED)
  uint64_t quotient = 0, rest = numerator;
  for (int bit = 0; bit < 63; ++bit) {
    const bool carries = rest >> 63 != 0;
    rest <<= 1;
    quotient <<= 1;
    if (carries || rest >= divisor) {
      rest -= divisor;
      quotient |= 1;
    }
  }
  return quotient;
#else
  return static_cast<uint64_t>((static_cast<unsigned __int128>(numerator) << 63) / divisor);
#endif
}

FS_HD int leading_zeros(uint64_t word) {
#if defined(__CUDA_ARCH__)
  return __clzll(static_cast<long long>(word));
#else
  return __builtin_clzll(word);
#endif
}

// 1 / (2 term + 1) + w / (2 term + 3) + w^2 / (2 term + 5) + ... from kTerm on, in units of 2^-64. A recursion: no
// quotient is left to run time.
template <int kTerm>
FS_HD uint64_t atanh_terms(uint64_t w) {
  constexpr uint64_t kFirst = kWholeWord / static_cast<uint64_t>(2 * kTerm + 1);
  if constexpr (kTerm == kAtanhTerms) {
    return kFirst;
  } else {
    return multiply_high(atanh_terms<kTerm + 1>(w), w) + kFirst;
  }
}

// -ln((word | 1) / 2^64) in units of 2^-58, off by less than kRaceLogError.
FS_HD uint64_t race_log(uint64_t word) {
  const uint64_t x = word | 1;
  const int shift = leading_zeros(x);
  const uint64_t m = x << shift;
  const uint64_t z = shifted_quotient(0 - m, (1ull << 63) + (m >> 1));  // (2^64 - m) / (2^64 + m)
  const uint64_t w = multiply_high(z, z);
  const uint64_t atanh = z + multiply_high(z, multiply_high(w, atanh_terms<1>(w)));
  const uint64_t factor = static_cast<uint64_t>(shift);
  const uint64_t low = kLn2 * factor, sum = low + 2 * atanh;  // 2 atanh < 0.7 * 2^64
  const uint64_t high = multiply_high(kLn2, factor) + (sum < low);
  return high << 58 | sum >> 6;
}

// Time of arrival, in units of 2^-58: two IEEE operations, so that it is the same everywhere. weight > 0.
FS_HD double race_time(uint64_t log, double weight) { return static_cast<double>(log) / weight; }

// The 64 random bits of a candidate, by the stage key of domain kRace.
FS_HD uint64_t race_word(StageKey key, uint64_t orig_id, uint64_t sample_id) {
  NodeStream stream(key, orig_id, sample_id);
  const uint64_t first = stream.next();
  return first | static_cast<uint64_t>(stream.next()) << 32;
}

}  // namespace fs

#endif  // FS_CORE_EXPONENTIAL_RACE_H_

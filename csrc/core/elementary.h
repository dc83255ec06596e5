// exp and log of basic operations, without contraction: the same bits on every processor. No conversion between doubles
// and 64-bit integers, which narrow instruction sets lack for vectors: an integer travels in the mantissa of kRounder.
#ifndef FS_CORE_ELEMENTARY_H_
#define FS_CORE_ELEMENTARY_H_

#include <stdint.h>

#include "platform.h"

namespace fs {
namespace {

constexpr double kLog2e = 1.4426950408889634, kLn2High = 0x1.62e42fefa0000p-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, in the low bits
constexpr double kMostExponent = 700;
constexpr int kExpTerms = 13, kLogTerms = 11;

FS_INLINE uint64_t bits_of(double value) {
  uint64_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

FS_INLINE double from_bits(uint64_t bits) {
  double value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// 2^n of `rounded` = kRounder + n.
FS_INLINE double power_of_two(double rounded) { return from_bits((bits_of(rounded) + 1023) << 52); }

// exp(-x), x >= 0: 2^-n times the series of exp(-r), |r| <= ln(2) / 2; error below 2e-16.
FS_INLINE double exp_negative(double x) {
  x = x < kMostExponent ? x : kMostExponent;
  const double n = (x * kLog2e + kRounder) - kRounder;
  const double r = (n * kLn2High - x) + n * kLn2Low;
  double series = 1;
  for (int term = kExpTerms; term >= 1; --term) series = 1 + series * (r * (1.0 / term));
  return series * power_of_two(kRounder - n);
}

// exp(x) - 1, to the last bits of the result also near 0; x is cut to -700 .. 700.
FS_INLINE double exp_minus_one(double x) {
  x = x < kMostExponent ? x : kMostExponent;
  x = x > -kMostExponent ? x : -kMostExponent;
  const double rounded = x * kLog2e + kRounder, n = rounded - kRounder;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double series = 1;
  for (int term = kExpTerms; term >= 2; --term) series = 1 + series * (r * (1.0 / term));
  const double scale = power_of_two(rounded);
  return scale * (r * series) + (scale - 1);
}

// -ln(y), y > 0, normal: y = m 2^e with sqrt(1/2) < m < sqrt(2), ln m = 2 atanh((m - 1) / (m + 1)).
FS_INLINE double minus_log(double y) {
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDull, kBias = 1024;
  const uint64_t biased = (bits_of(y) - kSqrtHalf + (kBias << 52)) >> 52;  // the exponent and kBias
  const double e = from_bits(bits_of(kRounder) + biased - kBias) - kRounder;
  const double m = from_bits(bits_of(y) - ((biased - kBias) << 52));
  const double z = (m - 1) / (m + 1), w = z * z;
  double series = 0;
  for (int term = kLogTerms; term >= 0; --term) series = series * w + 1.0 / (2 * term + 1);
  return -(2 * z * series + e * kLn2Low) - e * kLn2High;
}

// ln(1 + x), x > -1, to the last bits of the result also near 0; below -1 + 2^-53 it is that of -1 + 2^-53.
FS_INLINE double log_one_plus(double x) {
  x = x > -1 + 0x1p-53 ? x : -1 + 0x1p-53;
  const double y = 1 + x;
  return (x - (y - 1)) / y - minus_log(y);
}

}  // namespace
}  // namespace fs

#endif  // FS_CORE_ELEMENTARY_H_

// Sixteen-bit floating point on raw bits, so that any compiler and any device reads the same values.
#ifndef FS_CORE_NUMBER_TYPES_H_
#define FS_CORE_NUMBER_TYPES_H_

#include <stdint.h>

#include "platform.h"

namespace fs {

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

FS_HD float float_from_bits(uint32_t bits) {
  union {
    uint32_t u;
    float f;
  } both;
  both.u = bits;
  return both.f;
}

FS_HD uint32_t bits_from_float(float value) {
  union {
    uint32_t u;
    float f;
  } both;
  both.f = value;
  return both.u;
}

FS_HD float to_float(Bfloat16 value) { return float_from_bits(static_cast<uint32_t>(value.bits) << 16); }

// Exponent moved by a multiplication with 2^112, which also normalises subnormals; infinities and NaN are patched.
FS_HD float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7FFFu) << 13;
  const uint32_t scaled = bits_from_float(float_from_bits(magnitude) * float_from_bits(0x77800000u));
  const uint32_t special = magnitude | 0x7F800000u;
  return float_from_bits(sign | (magnitude >= 0x0F800000u ? special : scaled));
}

// Round to nearest even; NaN stays NaN.
FS_HD Bfloat16 to_bfloat16(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return {static_cast<uint16_t>((is_nan ? (bits | 0x00400000u) : rounded) >> 16)};
}

}  // namespace fs

#endif  // FS_CORE_NUMBER_TYPES_H_

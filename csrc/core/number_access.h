// Loading and storing columns of any supported type through the type that the arithmetic uses.
#ifndef FS_CORE_NUMBER_ACCESS_H_
#define FS_CORE_NUMBER_ACCESS_H_

#include "number_types.h"

namespace fs {
namespace {

template <typename T>
struct Arithmetic {
  using type = float;
};
template <>
struct Arithmetic<double> {
  using type = double;
};

FS_HD double load(double value) { return value; }
FS_HD float load(float value) { return value; }
FS_HD float load(int8_t value) { return static_cast<float>(value); }
FS_HD float load(uint8_t value) { return static_cast<float>(value); }
FS_HD float load(int16_t value) { return static_cast<float>(value); }
FS_HD float load(Bfloat16 value) { return to_float(value); }
FS_HD float load(Float16 value) { return to_float(value); }

FS_HD void store(double* target, double value) { *target = value; }
FS_HD void store(float* target, float value) { *target = value; }
FS_HD void store(float* target, double value) { *target = static_cast<float>(value); }
FS_HD void store(Bfloat16* target, float value) { *target = to_bfloat16(value); }
FS_HD void store(Bfloat16* target, double value) { *target = to_bfloat16(static_cast<float>(value)); }

}  // namespace
}  // namespace fs

#endif  // FS_CORE_NUMBER_ACCESS_H_

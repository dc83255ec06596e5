// What the parts of the stress test share: how it ends, names of types, drawn numbers, and results held against those
// of an oracle.
#ifndef FS_TESTS_STRESS_BASICS_H_
#define FS_TESTS_STRESS_BASICS_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <random>
#include <string>
#include <vector>

#include "fastsample.h"

namespace stress {

inline void require(bool condition, const std::string& what) {
  if (condition) return;
  fprintf(stderr, "fastsample_stress: %s (last error: %s)\n", what.c_str(), fs_last_error());
  _Exit(1);
}
inline void succeed(FsStatus status, const char* operation) {
  if (status != FS_OK) require(false, operation);
}
// The call was refused, with these words in its line.
inline void refused(FsStatus status, const char* words) {
  require(status == FS_INVALID_ARGUMENT, std::string("accepted, but expected: ") + words);
  require(strstr(fs_last_error(), words) != nullptr, std::string("refused, but not with: ") + words);
}

struct Bfloat16 {
  uint16_t bits;
};

template <typename T>
constexpr int32_t type_code();
template <>
constexpr int32_t type_code<int32_t>() {
  return FS_INT32;
}
template <>
constexpr int32_t type_code<int64_t>() {
  return FS_INT64;
}
template <>
constexpr int32_t type_code<float>() {
  return FS_FLOAT32;
}
template <>
constexpr int32_t type_code<double>() {
  return FS_FLOAT64;
}
template <>
constexpr int32_t type_code<Bfloat16>() {
  return FS_BFLOAT16;
}

template <typename T>
T number(float value) {
  return static_cast<T>(value);
}
template <>
inline Bfloat16 number<Bfloat16>(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return {static_cast<uint16_t>(bits >> 16)};
}

using Generator = std::mt19937_64;

template <typename T>
std::vector<T> draw_numbers(int64_t count, Generator& generator) {
  std::uniform_real_distribution<float> values(-4, 4);
  std::vector<T> drawn(static_cast<size_t>(count));
  for (T& value : drawn) value = number<T>(values(generator));
  return drawn;
}

// The bytes that operators write, in the order of the calls: kept, or compared with those of an oracle.
class Written {
 public:
  explicit Written(const Written* oracle = nullptr) : oracle_(oracle) {}

  template <typename T>
  void add(const char* operation, const T* values, int64_t count) {
    const size_t size = static_cast<size_t>(count) * sizeof(T);
    if (size == 0) return;
    if (oracle_ == nullptr) {
      bytes_.append(reinterpret_cast<const char*>(values), size);
    } else {
      const bool equal = size_ + size <= oracle_->size_ && memcmp(oracle_->bytes_.data() + size_, values, size) == 0;
      if (!equal) require(false, std::string(operation) + ": another result than with one caller and one thread");
    }
    size_ += size;
  }
  template <typename T>
  void add(const char* operation, const std::vector<T>& values) {
    add(operation, values.data(), static_cast<int64_t>(values.size()));
  }
  size_t size() const { return size_; }

 private:
  const Written* oracle_;
  std::string bytes_;
  size_t size_ = 0;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_BASICS_H_

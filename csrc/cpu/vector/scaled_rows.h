// merge_rows of scaled rows: int8 numbers and one float32 scale per row (FsRowTable). A value is number * scale in
// float32, rounded once more where the result is bfloat16, so that a row has the same bits whichever table it is read
// from. As FS_INT8 rows come out packed: that is how they travel and how caches hold them.
#ifndef FS_CPU_VECTOR_SCALED_ROWS_H_
#define FS_CPU_VECTOR_SCALED_ROWS_H_

#include <stdint.h>
#include <string.h>

#include "number_access.h"
#include "row_place.h"
#include "vector_kernels.h"

namespace fs {
namespace {

constexpr int64_t kScaledAhead = 8;       // rows ahead that are requested
constexpr int64_t kScaledPrefetch = 512;  // bytes of a row that are requested; the hardware follows from there

struct ScaledRow {
  const int8_t* numbers;
  const char* scale;  // at any address
};

FS_INLINE ScaledRow scaled_row(const FsRowTables& tables, int64_t place) {
  if (place < 0) {
    const char* row = static_cast<const char*>(tables.fetched) + (-1 - place) * (tables.row_width + FS_SCALE_BYTES);
    return {reinterpret_cast<const int8_t*>(row), row + tables.row_width};
  }
  const FsRowTable& table = tables.tables[place_table(place)];
  const int64_t row = place_row(place);
  return {static_cast<const int8_t*>(table.rows) + row * table.row_stride,
          static_cast<const char*>(table.scales) + row * table.scale_stride};
}

FS_INLINE float scale_of(const ScaledRow& row) {
  float scale;
  memcpy(&scale, row.scale, sizeof(scale));
  return scale;
}

FS_INLINE void request_scaled(const FsRowTables& tables, int64_t place) {
  const ScaledRow row = scaled_row(tables, place);
  for (int64_t at = 0; at < tables.row_width && at < kScaledPrefetch; at += 64) __builtin_prefetch(row.numbers + at);
  __builtin_prefetch(row.scale);
}

template <typename Out>
void merge_values(const FsRowTables& tables, const int64_t* places, Out* out, int64_t begin, int64_t end) {
  const int64_t width = tables.row_width;
  for (int64_t i = begin; i < end; ++i) {
    if (i + kScaledAhead < end) request_scaled(tables, places[i + kScaledAhead]);
    const ScaledRow row = scaled_row(tables, places[i]);
    const int8_t* numbers = row.numbers;
    const float scale = scale_of(row);
    Out* to = out + i * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) store(to + c, load(numbers[c]) * scale);
  }
}

void merge_packed(const FsRowTables& tables, const int64_t* places, char* out, int64_t begin, int64_t end) {
  const int64_t width = tables.row_width;
  for (int64_t i = begin; i < end; ++i) {
    if (i + kScaledAhead < end) request_scaled(tables, places[i + kScaledAhead]);
    const ScaledRow row = scaled_row(tables, places[i]);
    char* to = out + i * (width + FS_SCALE_BYTES);
    memcpy(to, row.numbers, static_cast<size_t>(width));
    memcpy(to + width, row.scale, FS_SCALE_BYTES);
  }
}

// Not inlined: merge_rows of other types must not be compiled otherwise for its sake.
__attribute__((noinline)) void merge_scaled(const FsRowTables& tables, const int64_t* places, int32_t out_type,
                                            void* out, int64_t begin, int64_t end) {
  switch (out_type) {
    case FS_FLOAT32:
      return merge_values(tables, places, static_cast<float*>(out), begin, end);
    case FS_FLOAT64:
      return merge_values(tables, places, static_cast<double*>(out), begin, end);
    case FS_BFLOAT16:
      return merge_values(tables, places, static_cast<Bfloat16*>(out), begin, end);
    case FS_INT8:
      return merge_packed(tables, places, static_cast<char*>(out), begin, end);
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_SCALED_ROWS_H_

// merge_rows over a run of output rows: each row comes from the rank's own rows or from the fetched ones, converted on
// the way, so that features are read once and written once.
#ifndef FS_CPU_VECTOR_MERGE_ROWS_H_
#define FS_CPU_VECTOR_MERGE_ROWS_H_

#include <string.h>

#include "number_access.h"
#include "vector_kernels.h"

namespace fs {
namespace {

constexpr int64_t kMergeAhead = 8;       // rows ahead that are requested
constexpr int64_t kMergePrefetch = 512;  // bytes of a row that are requested; the hardware follows from there

template <typename In>
FS_HD const In* source_row(const FsRowPair& pair, int64_t place) {
  if (place >= 0) return static_cast<const In*>(pair.own) + place * pair.row_width;
  return static_cast<const In*>(pair.fetched) + (-1 - place) * pair.row_width;
}

template <typename In>
FS_HD void request_row(const FsRowPair& pair, int64_t place) {
  const char* bytes = reinterpret_cast<const char*>(source_row<In>(pair, place));
  const int64_t size = pair.row_width * static_cast<int64_t>(sizeof(In));
  for (int64_t at = 0; at < size && at < kMergePrefetch; at += 64) __builtin_prefetch(bytes + at);
}

template <typename In, typename Out>
struct CopyRow {
  static FS_HD void run(const In* from, Out* to, int64_t width) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) store(to + c, load(from[c]));
  }
};
template <typename Same>
struct CopyRow<Same, Same> {
  static FS_HD void run(const Same* from, Same* to, int64_t width) {
    memcpy(to, from, static_cast<size_t>(width) * sizeof(Same));
  }
};

template <typename In, typename Out>
void merge_typed(const FsRowPair& pair, const int64_t* places, Out* out, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    if (i + kMergeAhead < end) request_row<In>(pair, places[i + kMergeAhead]);
    CopyRow<In, Out>::run(source_row<In>(pair, places[i]), out + i * pair.row_width, pair.row_width);
  }
}

template <typename In>
void merge_from(const FsRowPair& pair, const int64_t* places, int32_t out_type, void* out, int64_t begin, int64_t end) {
  if (pair.in_type == out_type)
    merge_typed<In, In>(pair, places, static_cast<In*>(out), begin, end);
  else if (out_type == FS_FLOAT32)
    merge_typed<In, float>(pair, places, static_cast<float*>(out), begin, end);
  else if (out_type == FS_FLOAT64)
    merge_typed<In, double>(pair, places, static_cast<double*>(out), begin, end);
  else if (out_type == FS_BFLOAT16)
    merge_typed<In, Bfloat16>(pair, places, static_cast<Bfloat16*>(out), begin, end);
}

void merge_rows(const FsRowPair& pair, const int64_t* places, int32_t out_type, void* out, int64_t begin, int64_t end) {
  switch (pair.in_type) {
    case FS_FLOAT32:
      return merge_from<float>(pair, places, out_type, out, begin, end);
    case FS_FLOAT64:
      return merge_from<double>(pair, places, out_type, out, begin, end);
    case FS_BFLOAT16:
      return merge_from<Bfloat16>(pair, places, out_type, out, begin, end);
    case FS_FLOAT16:
      return merge_from<Float16>(pair, places, out_type, out, begin, end);
    case FS_INT8:
      return merge_from<int8_t>(pair, places, out_type, out, begin, end);
    case FS_UINT8:
      return merge_from<uint8_t>(pair, places, out_type, out, begin, end);
    case FS_INT16:
      return merge_from<int16_t>(pair, places, out_type, out, begin, end);
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_MERGE_ROWS_H_

// merge_rows over a run of output rows: each row comes from one of the tables or from the fetched rows, converted on
// the way, so that features are read once and written once.
#ifndef FS_CPU_VECTOR_MERGE_ROWS_H_
#define FS_CPU_VECTOR_MERGE_ROWS_H_

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "number_access.h"
#include "row_place.h"
#include "scaled_rows.h"
#include "vector_kernels.h"

namespace fs {
namespace {

constexpr int64_t kMergeAhead = 8;       // rows ahead that are requested
constexpr int64_t kMergePrefetch = 512;  // bytes of a row that are requested; the hardware follows from there

// Row of a table, place >= 0.
template <typename In>
FS_INLINE const In* table_row(const FsRowTables& tables, int64_t place) {
  return static_cast<const In*>(tables.tables[place_table(place)].rows) + place_row(place) * tables.row_width;
}

// Fetched row, place < 0.
template <typename Fetched>
FS_INLINE const Fetched* fetched_row(const FsRowTables& tables, int64_t place) {
  return static_cast<const Fetched*>(tables.fetched) + (-1 - place) * tables.row_width;
}

template <typename In, typename Fetched>
FS_INLINE void request_row(const FsRowTables& tables, int64_t place) {
  const char* bytes = place >= 0 ? reinterpret_cast<const char*>(table_row<In>(tables, place))
                                 : reinterpret_cast<const char*>(fetched_row<Fetched>(tables, place));
  const int64_t size = tables.row_width * static_cast<int64_t>(place >= 0 ? sizeof(In) : sizeof(Fetched));
  for (int64_t at = 0; at < size && at < kMergePrefetch; at += 64) __builtin_prefetch(bytes + at);
}

template <typename In, typename Out>
struct CopyRow {
  static FS_INLINE void run(const In* from, Out* to, int64_t width) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) store(to + c, load(from[c]));
  }
};
template <typename Same>
struct CopyRow<Same, Same> {
  static FS_INLINE void run(const Same* from, Same* to, int64_t width) {
    memcpy(to, from, static_cast<size_t>(width) * sizeof(Same));
  }
};

// Rows of one type into a table that no cache holds: stores that do not read the lines they overwrite save a third of
// the traffic to memory (read, write, and no read for ownership).
#if defined(__SSE2__)
constexpr int64_t kStreamBytes = 8 << 20;

bool can_stream(const void* out, int64_t row_bytes, int64_t num_rows) {
  return row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0 && row_bytes * num_rows >= kStreamBytes;
}

template <typename T>
void merge_streamed(const FsRowTables& tables, const int64_t* places, T* out, int64_t begin, int64_t end) {
  const int64_t row_chunks = tables.row_width * static_cast<int64_t>(sizeof(T)) / 16;
  __m128i* to = reinterpret_cast<__m128i*>(out) + begin * row_chunks;
  for (int64_t i = begin; i < end; ++i, to += row_chunks) {
    if (i + kMergeAhead < end) request_row<T, T>(tables, places[i + kMergeAhead]);
    const int64_t place = places[i];
    const T* row = place >= 0 ? table_row<T>(tables, place) : fetched_row<T>(tables, place);
    const __m128i* from = reinterpret_cast<const __m128i*>(row);
    for (int64_t chunk = 0; chunk < row_chunks; ++chunk) _mm_stream_si128(to + chunk, _mm_loadu_si128(from + chunk));
  }
  _mm_sfence();
}
#endif

template <typename In, typename Fetched, typename Out>
void merge_typed(const FsRowTables& tables, const int64_t* places, Out* out, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    if (i + kMergeAhead < end) request_row<In, Fetched>(tables, places[i + kMergeAhead]);
    const int64_t place = places[i];
    Out* to = out + i * tables.row_width;
    if (place >= 0) {
      CopyRow<In, Out>::run(table_row<In>(tables, place), to, tables.row_width);
    } else {
      CopyRow<Fetched, Out>::run(fetched_row<Fetched>(tables, place), to, tables.row_width);
    }
  }
}

template <typename In, typename Out>
void merge_into(const FsRowTables& tables, const int64_t* places, Out* out, int64_t begin, int64_t end) {
  if (tables.fetched_type == tables.in_type) {
    merge_typed<In, In>(tables, places, out, begin, end);
  } else {  // converted before they travelled
    merge_typed<In, Out>(tables, places, out, begin, end);
  }
}

template <typename In>
void merge_from(const FsRowTables& tables, const int64_t* places, int32_t out_type, void* out, int64_t begin,
                int64_t end) {
  if (tables.in_type == out_type) {
#if defined(__SSE2__)
    const int64_t row_bytes = tables.row_width * static_cast<int64_t>(sizeof(In));
    if (can_stream(out, row_bytes, end - begin)) {
      return merge_streamed<In>(tables, places, static_cast<In*>(out), begin, end);
    }
#endif
    merge_typed<In, In>(tables, places, static_cast<In*>(out), begin, end);
  } else if (out_type == FS_FLOAT32) {
    merge_into<In>(tables, places, static_cast<float*>(out), begin, end);
  } else if (out_type == FS_FLOAT64) {
    merge_into<In>(tables, places, static_cast<double*>(out), begin, end);
  } else if (out_type == FS_BFLOAT16) {
    merge_into<In>(tables, places, static_cast<Bfloat16*>(out), begin, end);
  }
}

void merge_rows(const FsRowTables& tables, const int64_t* places, int32_t out_type, void* out, int64_t begin,
                int64_t end) {
  if (tables.is_scaled) return merge_scaled(tables, places, out_type, out, begin, end);
  switch (tables.in_type) {
    case FS_FLOAT32:
      return merge_from<float>(tables, places, out_type, out, begin, end);
    case FS_FLOAT64:
      return merge_from<double>(tables, places, out_type, out, begin, end);
    case FS_BFLOAT16:
      return merge_from<Bfloat16>(tables, places, out_type, out, begin, end);
    case FS_FLOAT16:
      return merge_from<Float16>(tables, places, out_type, out, begin, end);
    case FS_INT8:
      return merge_from<int8_t>(tables, places, out_type, out, begin, end);
    case FS_UINT8:
      return merge_from<uint8_t>(tables, places, out_type, out, begin, end);
    case FS_INT16:
      return merge_from<int16_t>(tables, places, out_type, out, begin, end);
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_MERGE_ROWS_H_

// Checks of arguments that need no data, for the CPU and the CUDA library: each refusal is worded once. Refusals of
// values are in cpu/refusals.cpp.
#ifndef FS_CORE_REQUESTS_H_
#define FS_CORE_REQUESTS_H_

#include "fastsample.h"

namespace fs {

FsStatus fail(FsStatus status, const char* format, ...) __attribute__((format(printf, 2, 3)));

namespace {

inline FsStatus check_id_type(const char* operation, int32_t id_type) {
  if (id_type == FS_INT32 || id_type == FS_INT64) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: id type %d; expected int32 (0) or int64 (1)", operation, id_type);
}

// Of columns that are computed with.
inline FsStatus check_element_type(const char* operation, int32_t type) {
  if (type == FS_FLOAT32 || type == FS_FLOAT64 || type == FS_BFLOAT16) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: element type %d; expected float32, float64 or bfloat16", operation, type);
}

// Of weights that edges are drawn by.
inline FsStatus check_weight_type(const char* operation, int32_t type) {
  if (type == FS_FLOAT32 || type == FS_FLOAT64) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: weight type %d; expected float32 (2) or float64 (3)", operation, type);
}

// Of one call, as MOST_THREADS in fastsample_dist/ops/checks.py: far above it libgomp ends the process.
constexpr int32_t kMostCallThreads = 1024;

inline FsStatus check_threads(const char* operation, int32_t num_threads) {
  if (num_threads >= 1 && num_threads <= kMostCallThreads) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: num_threads is %d; expected an integer from 1 to %d", operation, num_threads,
              kMostCallThreads);
}

inline FsStatus check_parts(const char* operation, int64_t num_parts) {
  if (num_parts >= 1 && num_parts <= INT32_MAX) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: %lld parts; expected 1 to 2^31 - 1", operation,
              static_cast<long long>(num_parts));
}

// With replacement a fanout is the number of picks of every row, so their sum must fit.
inline FsStatus check_fanout(const char* operation, long long fanout, int hop, bool replace) {
  constexpr long long kMostReplaced = 1LL << 31;
  if (fanout < FS_TAKE_ALL) {
    return fail(FS_INVALID_ARGUMENT, "%s: fanouts holds %lld; expected -1 (all neighbours) or more in hop %d",
                operation, fanout, hop);
  }
  if (fanout == FS_TAKE_ALL && replace) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: fanouts holds -1 (all neighbours), which cannot be drawn with replacement in hop %d", operation,
                hop);
  }
  if (fanout > kMostReplaced && replace) {
    return fail(FS_INVALID_ARGUMENT, "%s: fanouts holds %lld; expected at most %lld with replacement in hop %d",
                operation, fanout, kMostReplaced, hop);
  }
  return FS_OK;
}

// What needs no graph. Python's names of methods have refusals of their own (ops/sample_spec.py).
inline FsStatus check_sample_spec(const char* operation, const FsSampleSpec& spec) {
  const bool is_known = spec.method >= FS_UNIFORM && spec.method <= FS_LABOR;
  if (!is_known || (spec.method == FS_LABOR && spec.replace != 0)) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: method %d with replace %d; expected 0 (uniform), 1 (weighted), or 2 (labor) with replace 0",
                operation, spec.method, spec.replace);
  }
  for (int32_t hop = 0; hop < spec.num_hops; ++hop) {
    const FsStatus status = check_fanout(operation, spec.fanouts[hop], spec.first_hop + hop, spec.replace != 0);
    if (status != FS_OK) return status;
  }
  return FS_OK;
}

inline FsStatus check_sample_request(const char* operation, const FsGraph& graph, const FsSampleSpec& spec) {
  const FsStatus status = check_sample_spec(operation, spec);
  if (status != FS_OK) return status;
  if (spec.method == FS_WEIGHTED && graph.weights == nullptr) {
    return fail(FS_INVALID_ARGUMENT, "%s: method weighted without weights; expected weights and alias tables",
                operation);
  }
  return check_id_type(operation, graph.id_type);
}

// Of scaled rows, of which merge_rows makes out_type.
inline FsStatus check_scaled_merge(const FsRowTables& tables, int32_t out_type) {
  const bool is_target =
      out_type == FS_FLOAT32 || out_type == FS_FLOAT64 || out_type == FS_BFLOAT16 || out_type == FS_INT8;
  if (tables.in_type != FS_INT8 || tables.fetched_type != FS_INT8 || !is_target) {
    return fail(FS_INVALID_ARGUMENT, "merge_rows: scaled rows of types %d and %d to type %d; expected %d and %d",
                tables.in_type, tables.fetched_type, out_type, FS_INT8, FS_INT8);
  }
  for (int32_t i = 0; i < tables.num_tables; ++i) {
    const FsRowTable& table = tables.tables[i];
    if (table.row_stride < tables.row_width || table.scale_stride < FS_SCALE_BYTES) {
      return fail(FS_INVALID_ARGUMENT, "merge_rows: table %d has rows every %d and scales every %d bytes", i,
                  table.row_stride, table.scale_stride);
    }
  }
  return FS_OK;
}

// Of what merge_rows makes out_type.
inline FsStatus check_merge(const FsRowTables& tables, int32_t out_type) {
  if (tables.num_tables < 1 || tables.num_tables > FS_MOST_TABLES) {
    return fail(FS_INVALID_ARGUMENT, "merge_rows: %d tables; expected 1 to %d", tables.num_tables, FS_MOST_TABLES);
  }
  if (tables.is_scaled) return check_scaled_merge(tables, out_type);
  const bool is_known = tables.in_type >= FS_FLOAT32 && tables.in_type <= FS_INT16;
  const bool is_target = out_type == FS_FLOAT32 || out_type == FS_FLOAT64 || out_type == FS_BFLOAT16;
  if (!is_known || (tables.in_type != out_type && !is_target)) {
    return fail(FS_INVALID_ARGUMENT, "merge_rows: no conversion from type %d to type %d", tables.in_type, out_type);
  }
  if (tables.fetched_type != tables.in_type && tables.fetched_type != out_type) {
    return fail(FS_INVALID_ARGUMENT, "merge_rows: fetched rows have type %d; expected %d or %d", tables.fetched_type,
                tables.in_type, out_type);
  }
  return FS_OK;
}

}  // namespace
}  // namespace fs

#endif  // FS_CORE_REQUESTS_H_

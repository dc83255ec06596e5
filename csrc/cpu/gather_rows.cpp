// gather_rows and merge_rows: rows of a table by id, with the cache lines of rows ahead requested early.
#include <string.h>

#include "parallel_rows.h"
#include "row_place.h"
#include "status.h"
#include "vector/vector_kernels.h"

namespace fs {
namespace {

constexpr int64_t kRowsAhead = 8;
constexpr int64_t kPrefetchBytes = 512;

template <typename Id>
FsStatus check_ids(const Id* ids, int64_t num_ids, int64_t num_rows) {
  for (int64_t i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= num_rows) {
      return refuse(FS_REFUSED_ID, "gather_rows", {{ids[i], i, 0, num_rows - 1}});
    }
  }
  return FS_OK;
}

template <typename Id>
void gather(const char* rows, int64_t row_bytes, const Id* ids, int64_t begin, int64_t end, char* out) {
  for (int64_t i = begin; i < end; ++i) {
    if (i + kRowsAhead < end) {
      const char* ahead = rows + static_cast<int64_t>(ids[i + kRowsAhead]) * row_bytes;
      for (int64_t at = 0; at < row_bytes && at < kPrefetchBytes; at += 64) __builtin_prefetch(ahead + at);
    }
    memcpy(out + i * row_bytes, rows + static_cast<int64_t>(ids[i]) * row_bytes, static_cast<size_t>(row_bytes));
  }
}

bool has_place(const FsRowTables& tables, int64_t place) {
  if (place < 0) return -1 - place < tables.num_fetched;
  const int64_t table = place_table(place);
  return table < tables.num_tables && place_row(place) < tables.tables[table].num_rows;
}

FsStatus refuse_place(const FsRowTables& tables, int64_t place, int64_t position) {
  const int64_t table = refused_table(place, tables.num_tables);
  const int64_t largest = place_in(table, tables.tables[table].num_rows - 1);
  return refuse(FS_REFUSED_PLACE, "merge_rows", {{place, position, -tables.num_fetched, largest}});
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_gather_rows(const void* rows, int64_t num_rows, int64_t row_bytes, int32_t id_type, const void* ids,
                        int64_t num_ids, void* out, int32_t num_threads) {
  return fs::with_id_type("gather_rows", id_type, [&](auto zero) {
    using Id = decltype(zero);
    const Id* typed_ids = static_cast<const Id*>(ids);
    const FsStatus status = fs::check_ids(typed_ids, num_ids, num_rows);
    if (status != FS_OK || row_bytes == 0) return status;
    fs::parallel_rows(num_ids, row_bytes, num_threads, [&](int64_t begin, int64_t end) {
      fs::gather(static_cast<const char*>(rows), row_bytes, typed_ids, begin, end, static_cast<char*>(out));
    });
    return FS_OK;
  });
}

FsStatus fs_merge_rows(const FsRowTables* tables, const int64_t* places, int64_t num_out, int32_t out_type, void* out,
                       int32_t num_threads) {
  const FsStatus status = fs::check_merge(*tables, out_type);
  if (status != FS_OK) return status;
  for (int64_t i = 0; i < num_out; ++i) {
    if (!fs::has_place(*tables, places[i])) return fs::refuse_place(*tables, places[i], i);
  }
  fs::parallel_rows(num_out, tables->row_width * 4, num_threads, [&](int64_t begin, int64_t end) {
    fs::vector_kernels().merge_rows(*tables, places, out_type, out, begin, end);
  });
  return FS_OK;
}

}  // extern "C"

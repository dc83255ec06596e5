// merge_rows on CUDA: rows of all tables in one launch, converted on the way as csrc/cpu/vector/merge_rows.h does.
// Kernel and memory: row_kernels.cuh, of scaled rows scaled_rows.cuh. Fetched rows may have the result's type already,
// where the sender converted them.
#include <type_traits>

#include "row_kernels.cuh"
#include "scaled_rows.cuh"

namespace fs {
namespace {

struct Merge {
  const FsRowTables& tables;
  const FsCudaRowCache* cache;
  const int64_t* places;
  int64_t num_out;
  int32_t out_type;
  void* out;
  const FsCudaBadPlace& bad;
  cudaStream_t stream;
};

NearTables near_tables(const FsRowTables& tables) {
  NearTables near = {};
  for (int32_t i = 1; i < tables.num_tables; ++i, ++near.count) {
    near.rows[near.count] = tables.tables[i].rows;
    near.num_rows[near.count] = tables.tables[i].num_rows;
  }
  return near;
}

template <typename In, typename Out>
RowTask<int64_t, In, Out> merge_task(const Merge& m) {
  RowTask<int64_t, In, Out> task = {};
  task.own = static_cast<const In*>(m.tables.tables[0].rows);
  task.num_own = m.tables.tables[0].num_rows;
  task.near = near_tables(m.tables);
  if (m.cache != nullptr) {
    task.cached = static_cast<const In*>(m.cache->rows);
    task.num_cached = m.cache->num_rows;
    task.cache_places = m.cache->places;
    task.has_wide_places = m.cache->place_type == FS_INT64;
  }
  task.fetched = m.tables.fetched;
  task.num_fetched = m.tables.num_fetched;
  task.is_converted = m.tables.fetched_type != m.tables.in_type;
  task.places = m.places;
  task.num_out = m.num_out;
  task.out = static_cast<Out*>(m.out);
  task.bad = m.bad;
  task.operation = FS_CUDA_MERGE_ROWS;
  return task;
}

// Whether rows and tables of a column type begin at multiples of a chunk of `count` columns.
bool fits(uint64_t starts, int64_t row_width, int64_t column_bytes, int64_t count) {
  return row_width % count == 0 && starts % static_cast<uint64_t>(column_bytes * count) == 0;
}

template <typename In, typename Out>
void launch_converting(const Merge& m) {
  if constexpr (!std::is_same<In, Out>::value) {
    constexpr int64_t kIn = sizeof(In), kOut = sizeof(Out);
    constexpr int kCount = static_cast<int>(16 / (kIn > kOut ? kIn : kOut));  // the wider side moves 16 bytes at a time
    const RowTask<int64_t, In, Out> task = merge_task<In, Out>(m);
    const int64_t width = m.tables.row_width;
    const uint64_t read = alignment_of(m.tables.tables[0].rows, m.cache, nullptr, nullptr) | alignment_of(task.near);
    const uint64_t fetched = reinterpret_cast<uintptr_t>(task.fetched), out = reinterpret_cast<uintptr_t>(task.out);
    if (fits(read, width, kIn, kCount) && fits(fetched, width, task.is_converted ? kOut : kIn, kCount) &&
        fits(out, width, kOut, kCount)) {
      launch_copy_rows<kCount>(task, width, m.stream);
    } else {
      launch_copy_rows<1>(task, width, m.stream);
    }
  }
}

template <typename In>
FsStatus merge_from(const Merge& m) {
  if (m.tables.in_type == m.out_type) {
    const int64_t row_bytes = m.tables.row_width * static_cast<int64_t>(sizeof(In));
    const RowTask<int64_t, int8_t, int8_t> task = merge_task<int8_t, int8_t>(m);
    const uint64_t alignment = alignment_of(task.own, m.cache, task.fetched, m.out) | alignment_of(task.near);
    launch_widest(task, row_bytes, alignment, m.stream);
  } else if (m.out_type == FS_FLOAT32) {
    launch_converting<In, float>(m);
  } else if (m.out_type == FS_FLOAT64) {
    launch_converting<In, double>(m);
  } else {
    launch_converting<In, Bfloat16>(m);
  }
  return launch_status("merge_rows");
}

template <typename Out>
FsStatus merge_scaled(const Merge& m) {
  ScaledTask<Out> task = {};
  task.rows = merge_task<int8_t, Out>(m);
  task.width = m.tables.row_width;
  for (int32_t i = 0; i < m.tables.num_tables; ++i) {
    const FsRowTable& table = m.tables.tables[i];
    task.scales[i] = {static_cast<const int8_t*>(table.scales), table.row_stride, table.scale_stride};
  }
  launch_scaled_rows(task, m.stream);
  return launch_status("merge_rows");
}

FsStatus merge_scaled(const Merge& m) {
  switch (m.out_type) {
    case FS_FLOAT32:
      return merge_scaled<float>(m);
    case FS_FLOAT64:
      return merge_scaled<double>(m);
    case FS_BFLOAT16:
      return merge_scaled<Bfloat16>(m);
    default:
      return merge_scaled<int8_t>(m);
  }
}

FsStatus merge(const Merge& m) {
  if (m.tables.is_scaled) return merge_scaled(m);
  switch (m.tables.in_type) {
    case FS_FLOAT32:
      return merge_from<float>(m);
    case FS_FLOAT64:
      return merge_from<double>(m);
    case FS_BFLOAT16:
      return merge_from<Bfloat16>(m);
    case FS_FLOAT16:
      return merge_from<Float16>(m);
    case FS_INT8:
      return merge_from<int8_t>(m);
    case FS_UINT8:
      return merge_from<uint8_t>(m);
    default:
      return merge_from<int16_t>(m);
  }
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_cuda_merge_rows(const FsRowTables* tables, const FsCudaRowCache* cache, const int64_t* places,
                                       int64_t num_out, int32_t out_type, void* out, const FsCudaBadPlace* bad,
                                       void* stream) {
  const FsStatus status = fs::check_merge(*tables, out_type);
  if (status != FS_OK || num_out == 0) return status;
  return fs::merge({*tables, cache, places, num_out, out_type, out, *bad, static_cast<cudaStream_t>(stream)});
}

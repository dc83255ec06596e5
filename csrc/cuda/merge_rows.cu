// merge_rows on CUDA: own and fetched rows in one launch, converted on the way as csrc/cpu/vector/merge_rows.h does.
// Kernel and memory: row_kernels.cuh. Fetched rows may have the result's type already, where the sender converted them.
#include <type_traits>

#include "row_kernels.cuh"

namespace fs {
namespace {

struct Merge {
  const FsRowPair& pair;
  const FsCudaRowCache* cache;
  const int64_t* places;
  int64_t num_out;
  int32_t out_type;
  void* out;
  const FsCudaBadPlace& bad;
  cudaStream_t stream;
};

template <typename In, typename Out>
RowTask<int64_t, In, Out> merge_task(const Merge& m) {
  RowTask<int64_t, In, Out> task = {};
  task.own = static_cast<const In*>(m.pair.own);
  task.num_own = m.pair.num_own;
  if (m.cache != nullptr) {
    task.cached = static_cast<const In*>(m.cache->rows);
    task.num_cached = m.cache->num_rows;
    task.cache_places = m.cache->places;
    task.has_wide_places = m.cache->place_type == FS_INT64;
  }
  task.fetched = m.pair.fetched;
  task.num_fetched = m.pair.num_fetched;
  task.is_converted = m.pair.fetched_type != m.pair.in_type;
  task.places = m.places;
  task.num_out = m.num_out;
  task.out = static_cast<Out*>(m.out);
  task.bad = m.bad;
  task.operation = FS_CUDA_MERGE_ROWS;
  return task;
}

// Whether rows and tables of a column type begin at multiples of a chunk of `count` columns.
bool fits(const void* table, int64_t row_width, int64_t column_bytes, int64_t count) {
  return row_width % count == 0 &&
         reinterpret_cast<uintptr_t>(table) % static_cast<uint64_t>(column_bytes * count) == 0;
}

template <typename In, typename Out>
void launch_converting(const Merge& m) {
  if constexpr (!std::is_same<In, Out>::value) {
    constexpr int64_t kIn = sizeof(In), kOut = sizeof(Out);
    constexpr int kCount = static_cast<int>(16 / (kIn > kOut ? kIn : kOut));  // the wider side moves 16 bytes at a time
    const RowTask<int64_t, In, Out> task = merge_task<In, Out>(m);
    const int64_t width = m.pair.row_width;
    if (fits(task.own, width, kIn, kCount) && fits(task.cached, width, kIn, kCount) &&
        fits(task.fetched, width, task.is_converted ? kOut : kIn, kCount) && fits(task.out, width, kOut, kCount)) {
      launch_copy_rows<kCount>(task, width, m.stream);
    } else {
      launch_copy_rows<1>(task, width, m.stream);
    }
  }
}

template <typename In>
FsStatus merge_from(const Merge& m) {
  if (m.pair.in_type == m.out_type) {
    const int64_t row_bytes = m.pair.row_width * static_cast<int64_t>(sizeof(In));
    const uint64_t alignment = alignment_of(m.pair.own, m.cache, m.pair.fetched, m.out);
    launch_widest(merge_task<int8_t, int8_t>(m), row_bytes, alignment, m.stream);
  } else if (m.out_type == FS_FLOAT32) {
    launch_converting<In, float>(m);
  } else if (m.out_type == FS_FLOAT64) {
    launch_converting<In, double>(m);
  } else {
    launch_converting<In, Bfloat16>(m);
  }
  return launch_status("merge_rows");
}

FsStatus merge(const Merge& m) {
  switch (m.pair.in_type) {
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

extern "C" FsStatus fs_cuda_merge_rows(const FsRowPair* pair, const FsCudaRowCache* cache, const int64_t* places,
                                       int64_t num_out, int32_t out_type, void* out, const FsCudaBadPlace* bad,
                                       void* stream) {
  const FsStatus status = fs::check_merge(*pair, out_type);
  if (status != FS_OK || num_out == 0) return status;
  return fs::merge({*pair, cache, places, num_out, out_type, out, *bad, static_cast<cudaStream_t>(stream)});
}

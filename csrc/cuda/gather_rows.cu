// gather_rows on CUDA: rows of a table by id, from device memory, from pinned host memory, or split between a cache in
// device memory and the table, in one launch. Kernel and memory: row_kernels.cuh.
#include "row_kernels.cuh"

namespace fs {
namespace {

template <typename Id>
RowTask<Id, int8_t, int8_t> gather_task(const FsCudaRows& rows, const void* ids, int64_t num_ids, void* out,
                                        const FsCudaBadPlace& bad) {
  RowTask<Id, int8_t, int8_t> task = {};
  task.own = static_cast<const int8_t*>(rows.rows);
  task.num_own = rows.num_rows;
  if (rows.cache != nullptr) {
    task.cached = static_cast<const int8_t*>(rows.cache->rows);
    task.num_cached = rows.cache->num_rows;
    task.cache_places = rows.cache->places;
    task.has_wide_places = rows.cache->place_type == FS_INT64;
  }
  task.places = static_cast<const Id*>(ids);
  task.num_out = num_ids;
  task.out = static_cast<int8_t*>(out);
  task.bad = bad;
  task.operation = FS_CUDA_GATHER_ROWS;
  return task;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_cuda_gather_rows(const FsCudaRows* rows, int32_t id_type, const void* ids, int64_t num_ids,
                                        void* out, const FsCudaBadPlace* bad, void* stream) {
  const FsStatus status = fs::check_id_type("gather_rows", id_type);
  if (status != FS_OK) return status;
  if (num_ids == 0) return FS_OK;
  const uint64_t alignment = fs::alignment_of(rows->rows, rows->cache, nullptr, out);
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  if (id_type == FS_INT32) {
    fs::launch_widest(fs::gather_task<int32_t>(*rows, ids, num_ids, out, *bad), rows->row_bytes, alignment, on);
  } else {
    fs::launch_widest(fs::gather_task<int64_t>(*rows, ids, num_ids, out, *bad), rows->row_bytes, alignment, on);
  }
  return fs::launch_status("gather_rows");
}

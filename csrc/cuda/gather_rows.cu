// gather_rows on CUDA: one warp copies one row at a time, sixteen bytes per lane where row size and addresses allow,
// else four bytes or one. Grid-stride over rows, so any number of ids runs with a bounded grid.
#include "device.cuh"

namespace fs {
namespace {

template <typename Id, typename Word>
FS_KERNEL void gather_rows_kernel(const Word* rows, int64_t num_rows, int64_t words_per_row, const Id* ids,
                                  int64_t num_ids, Word* out, int64_t* bad_id) {
  const int lane = lane_number();
  for (int64_t i = thread_number() / kWarp; i < num_ids; i += num_threads() / kWarp) {
    const int64_t id = ids[i];
    if (id < 0 || id >= num_rows) {
      if (lane == 0) {  // any of several bad ids may win: one is enough for the message
        bad_id[0] = 1;
        bad_id[1] = id;
      }
      continue;
    }
    for (int64_t w = lane; w < words_per_row; w += kWarp) out[i * words_per_row + w] = rows[id * words_per_row + w];
  }
}

struct Gather {
  const void* rows;
  int64_t num_rows, row_bytes;
  const void* ids;
  int64_t num_ids;
  void* out;
  int64_t* bad_id;
  cudaStream_t stream;
};

template <typename Id, typename Word>
void launch_words(const Gather& g) {
  launch(gather_rows_kernel<Id, Word>, blocks_for(g.num_ids * kWarp), g.stream, static_cast<const Word*>(g.rows),
         g.num_rows, g.row_bytes / static_cast<int64_t>(sizeof(Word)), static_cast<const Id*>(g.ids), g.num_ids,
         static_cast<Word*>(g.out), g.bad_id);
}

template <typename Id>
void launch_widest(const Gather& g) {
  const uint64_t alignment =
      reinterpret_cast<uintptr_t>(g.rows) | reinterpret_cast<uintptr_t>(g.out) | static_cast<uint64_t>(g.row_bytes);
  if (alignment % sizeof(int4) == 0) {
    launch_words<Id, int4>(g);
  } else if (alignment % sizeof(int32_t) == 0) {
    launch_words<Id, int32_t>(g);
  } else {
    launch_words<Id, int8_t>(g);
  }
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_gather_rows(const void* rows, int64_t num_rows, int64_t row_bytes, int32_t id_type, const void* ids,
                             int64_t num_ids, void* out, int64_t* out_bad_id, void* stream) {
  if (id_type != FS_INT32 && id_type != FS_INT64) {
    return fs::fail(FS_INVALID_ARGUMENT, "gather_rows: id type %d; expected int32 (0) or int64 (1)", id_type);
  }
  if (num_ids == 0 || row_bytes == 0) return FS_OK;
  const fs::Gather gather = {rows,    num_rows, row_bytes,  ids,
                             num_ids, out,      out_bad_id, static_cast<cudaStream_t>(stream)};
  if (id_type == FS_INT32) {
    fs::launch_widest<int32_t>(gather);
  } else {
    fs::launch_widest<int64_t>(gather);
  }
  return fs::launch_status("gather_rows");
}

}  // extern "C"

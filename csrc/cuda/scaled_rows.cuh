// merge_rows of scaled rows (FsRowTable): int8 numbers and a float32 scale per row, from several tables in one launch.
// A value is number * scale in float32, as csrc/cpu/vector/scaled_rows.h computes it; as FS_INT8 rows come out packed.
//
// Mapping: as in row_kernels.cuh. A group of 1 to 32 lanes works on kRowsAtOnce rows, a lane on up to 4 neighbouring
// columns of each; it reads all rows' chunks before it writes the first. All lanes read a row's scale: one address.
// Rows of width + 4 bytes begin anywhere in a line, so lanes are not shifted to lines as those of wider types are.
#ifndef FS_CUDA_SCALED_ROWS_CUH_
#define FS_CUDA_SCALED_ROWS_CUH_

#include "row_kernels.cuh"

namespace fs {
namespace {

struct RowScales {
  const int8_t* first;
  int32_t row_stride, stride;  // bytes from a row, and from a scale, to the next
};

// The tables, as other merges see them, and where their scales are. Cached and fetched rows are packed.
template <typename Out>
struct ScaledTask {
  RowTask<int64_t, int8_t, Out> rows;
  RowScales scales[FS_MOST_TABLES];
  int64_t width;
};

struct ScaledRow {
  const int8_t* numbers;  // null: not here
  const int8_t* scale;
};

FS_DEVICE ScaledRow packed_row(const void* rows, int64_t row, int64_t width) {
  const int8_t* numbers = static_cast<const int8_t*>(rows) + row * (width + FS_SCALE_BYTES);
  return {numbers, numbers + width};
}

template <typename Out>
FS_DEVICE ScaledRow find_scaled_row(const ScaledTask<Out>& task, int64_t i, int64_t place, int64_t slot, bool reports) {
  if (!has_place(task.rows, place)) {
    if (reports) report_bad_place(task.rows, i, place);
    return {nullptr, nullptr};
  }
  if (place < 0) return packed_row(task.rows.fetched, -1 - place, task.width);
  const int64_t table = place_table(place), row = place_row(place);
  const int8_t* first = task.rows.own;
  if (table == 0) {
    if (slot >= 0) return packed_row(task.rows.cached, slot, task.width);
  } else {
    first = static_cast<const int8_t*>(task.rows.near.rows[table - 1]);
  }
  const RowScales& scales = task.scales[table];
  return {first + row * scales.row_stride, scales.first + row * scales.stride};
}

FS_DEVICE float read_scale(const int8_t* from) {
  if (from == nullptr) return 0.0f;
  if (reinterpret_cast<uintptr_t>(from) % sizeof(float) == 0) return *reinterpret_cast<const float*>(from);
  float scale;
  memcpy(&scale, from, sizeof(scale));
  return scale;
}

// Columns of an output row: values, or the numbers as they are where rows come out packed.
template <typename Out, int kCount>
struct ScaleChunk {
  static FS_DEVICE Chunk<Out, kCount> run(const Chunk<int8_t, kCount>& numbers, float scale) {
    Chunk<Out, kCount> values;
    for (int c = 0; c < kCount; ++c) store(values.columns + c, load(numbers.columns[c]) * scale);
    return values;
  }
};
template <int kCount>
struct ScaleChunk<int8_t, kCount> {
  static FS_DEVICE Chunk<int8_t, kCount> run(const Chunk<int8_t, kCount>& numbers, float) { return numbers; }
};

template <int kCount, typename Out>
FS_KERNEL void __launch_bounds__(kThreads, kBlocksAtOnce) copy_scaled_rows(ScaledTask<Out> task) {
  constexpr bool kPacks = std::is_same<Out, int8_t>::value;
  const int64_t out_stride = task.width + (kPacks ? FS_SCALE_BYTES : 0);
  const int64_t groups = num_threads() / task.rows.lanes;
  const int lane = static_cast<int>(threadIdx.x) % task.rows.lanes;
  for (int64_t first = thread_number() / task.rows.lanes; first < task.rows.num_out; first += groups * kRowsAtOnce) {
    const PlacedRows rows = read_places(task.rows, first, groups);
    ScaledRow sources[kRowsAtOnce];
    float scales[kRowsAtOnce];
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int64_t i = first + r * groups;
      sources[r] = {nullptr, nullptr};
      if (i < task.rows.num_out) sources[r] = find_scaled_row(task, i, rows.places[r], rows.slots[r], lane == 0);
      scales[r] = read_scale(sources[r].scale);
    }
    for (int64_t number = lane; number < task.rows.chunks; number += task.rows.lanes) {
      Chunk<int8_t, kCount> numbers[kRowsAtOnce];
      for (int r = 0; r < kRowsAtOnce; ++r) {
        memset(&numbers[r], 0, sizeof(numbers[r]));
        if (sources[r].numbers != nullptr) numbers[r] = Chunk<int8_t, kCount>::read(sources[r].numbers, number);
      }
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int64_t i = first + r * groups;
        if (i >= task.rows.num_out) continue;
        ScaleChunk<Out, kCount>::run(numbers[r], scales[r]).write(task.rows.out + i * out_stride, number);
      }
    }
    for (int r = 0; kPacks && lane == 0 && r < kRowsAtOnce; ++r) {
      const int64_t i = first + r * groups;
      if (i < task.rows.num_out) memcpy(task.rows.out + i * out_stride + task.width, &scales[r], FS_SCALE_BYTES);
    }
  }
}

// The addresses and strides of all rows, or-ed: what a chunk of numbers must divide.
template <typename Out>
uint64_t alignment_of(const ScaledTask<Out>& task) {
  uint64_t all = reinterpret_cast<uintptr_t>(task.rows.own) | reinterpret_cast<uintptr_t>(task.rows.cached) |
                 reinterpret_cast<uintptr_t>(task.rows.fetched) | alignment_of(task.rows.near) |
                 static_cast<uint64_t>(task.width);
  for (int64_t i = 0; i <= task.rows.near.count; ++i) all |= static_cast<uint64_t>(task.scales[i].row_stride);
  return all;
}

template <int kCount, typename Out>
void launch_scaled_chunks(ScaledTask<Out> task, cudaStream_t stream) {
  task.rows.chunks = task.width / kCount;
  task.rows.lanes = 1;
  while (task.rows.lanes < task.rows.chunks && task.rows.lanes < kWarp) task.rows.lanes *= 2;
  const int64_t groups = (task.rows.num_out + kRowsAtOnce - 1) / kRowsAtOnce;
  launch(copy_scaled_rows<kCount, Out>, blocks_for(groups * task.rows.lanes), stream, task);
}

template <typename Out>
void launch_scaled_rows(const ScaledTask<Out>& task, cudaStream_t stream) {
  constexpr int kCount = sizeof(Out) > 4 ? 2 : 4;  // at most 16 bytes are written at a time
  const uint64_t out = reinterpret_cast<uintptr_t>(task.rows.out);
  if (alignment_of(task) % kCount == 0 && out % (kCount * sizeof(Out)) == 0) {
    launch_scaled_chunks<kCount>(task, stream);
  } else {
    launch_scaled_chunks<1>(task, stream);
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CUDA_SCALED_ROWS_CUH_

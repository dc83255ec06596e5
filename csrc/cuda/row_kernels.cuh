// Rows by number from several tables, copied or converted: what gather_rows and merge_rows share.
//
//   place >= 0   row of a table by core/row_place.h, the rank's own first; where the cache holds a copy of an own row,
//                the copy
//   place < 0    row -1 - place of the fetched table (gather_rows has none: such an id is refused)
//
// Mapping: a group of 1 to 32 lanes, as many as a row has chunks, works on kRowsAtOnce rows: it reads a chunk of each
// before it writes the first, so that enough reads are under way to hide their latency. A chunk is 16 bytes on the
// wider side where addresses and sizes allow, so a warp copies several narrow rows, or 512 bytes of a wide one, at a
// time. The grid strides over the rows.
//
// Memory: tables are read where they lie. Pinned host memory is read over the bus through unified addressing, and a bus
// read is efficient only as a whole line of 128 bytes. So the lanes of a row of at least a line are shifted: the
// group's first read starts at the line in which the row begins, the lanes before the row idle, and every later read of
// a quarter warp is one aligned line (Min et al., "Large Graph Convolutional Network Training with GPU-Oriented Data
// Communication Architecture", VLDB 2021, section 4.3). The cache and the fetched table are in device memory. A row
// that is in the cache is not read from the host, in the same launch.
//
// A place outside the tables never becomes an address: its row is filled with zeros and reported (FsCudaBadPlace).
#ifndef FS_CUDA_ROW_KERNELS_CUH_
#define FS_CUDA_ROW_KERNELS_CUH_

#include <string.h>

#include <type_traits>

#include "device.cuh"
#include "number_access.h"
#include "row_place.h"

namespace fs {
namespace {

constexpr int kRowsAtOnce = 4;
constexpr int kBlocksAtOnce = 4;     // per multiprocessor, half of what blocks_for gives each: two full rounds
constexpr int64_t kLineBytes = 128;  // of a bus read, and of the caches
constexpr uint64_t kMailboxTaken = static_cast<uint64_t>(FS_CUDA_MAILBOX_TAKEN);

// Bytes as one load or store moves them.
template <int kBytes>
struct RawWord;
template <>
struct RawWord<16> {
  using type = int4;
};
template <>
struct RawWord<8> {
  using type = int2;
};
template <>
struct RawWord<4> {
  using type = int32_t;
};
template <>
struct RawWord<2> {
  using type = int16_t;
};
template <>
struct RawWord<1> {
  using type = int8_t;
};

// kCount neighbouring columns of a row.
template <typename T, int kCount>
struct Chunk {
  using Raw = typename RawWord<static_cast<int>(sizeof(T)) * kCount>::type;
  T columns[kCount];

  static FS_DEVICE Chunk read(const T* from, int64_t number) {
    const Raw raw = reinterpret_cast<const Raw*>(from)[number];
    Chunk chunk;
    memcpy(&chunk, &raw, sizeof(raw));
    return chunk;
  }
  FS_DEVICE void write(T* to, int64_t number) const {
    Raw raw;
    memcpy(&raw, this, sizeof(raw));
    store_streaming(reinterpret_cast<Raw*>(to) + number, raw);
  }
};

template <typename In, typename Out, int kCount>
struct Convert {
  static FS_DEVICE Chunk<Out, kCount> run(const Chunk<In, kCount>& in) {
    Chunk<Out, kCount> out;
    for (int c = 0; c < kCount; ++c) store(out.columns + c, load(in.columns[c]));
    return out;
  }
};
template <typename Same, int kCount>
struct Convert<Same, Same, kCount> {
  static FS_DEVICE Chunk<Same, kCount> run(const Chunk<Same, kCount>& in) { return in; }
};

// Tables after the rank's own.
struct NearTables {
  const void* rows[FS_MOST_TABLES - 1];
  int64_t num_rows[FS_MOST_TABLES - 1];
  int64_t count;
};

// The tables, and what becomes of their rows. A row has `chunks` chunks; In and Out are a column's types.
template <typename Place, typename In, typename Out>
struct RowTask {
  const In* own;
  int64_t num_own;
  const In* cached;
  int64_t num_cached;
  const void* cache_places;  // [num_own] >= 0: row of `cached`, < 0: not in it; null: there is no cache
  bool has_wide_places;      // int64, else int32
  NearTables near;
  const void* fetched;
  int64_t num_fetched;
  bool is_converted;  // fetched rows are Out, else In
  const Place* places;
  int64_t num_out;
  Out* out;
  int64_t chunks;
  int lanes;
  bool shifts;  // lanes of own rows to the start of a line
  FsCudaBadPlace bad;
  int32_t operation;
};

// Where a row is read.
struct RowSource {
  const void* row;    // null: nowhere
  int32_t shift;      // chunks between the start of a line and that of the row
  bool is_converted;  // columns are Out, else In
};

// Whoever takes the empty mailbox writes all of it: two bad places never mix.
template <typename Place, typename In, typename Out>
FS_DEVICE void report_bad_place(const RowTask<Place, In, Out>& task, int64_t position, int64_t place) {
  if (task.bad.order != nullptr) position = task.bad.order[position];
  if (task.bad.first != nullptr) atomic_min(task.bad.first, static_cast<uint64_t>(position));
  int64_t* const mailbox = task.bad.mailbox;
  if (mailbox == nullptr || atomic_cas(reinterpret_cast<uint64_t*>(mailbox), 0, kMailboxTaken) != 0) return;
  const int64_t table = refused_table(place, task.near.count + 1);
  const int64_t num_rows = table == 0 ? task.num_own : task.near.num_rows[table - 1];
  store_now(mailbox + 1, place);
  store_now(mailbox + 2, position);
  store_now(mailbox + 3, -task.num_fetched);
  store_now(mailbox + FS_CUDA_MAILBOX_WORDS - 1, place_in(table, num_rows - 1));
  __threadfence_system();
  store_now(mailbox, int64_t{task.operation});
}

template <typename Place, typename In, typename Out>
FS_DEVICE bool is_own(const RowTask<Place, In, Out>& task, int64_t place) {
  return place >= 0 && place < task.num_own;
}

// What cache_places has of four rows: Slot is its type.
template <typename Slot, typename Place, typename In, typename Out>
FS_DEVICE void read_slots(const RowTask<Place, In, Out>& task, const int64_t* places, int64_t* slots) {
  const Slot* of_rows = static_cast<const Slot*>(task.cache_places);
  FS_UNROLL
  for (int r = 0; r < kRowsAtOnce; ++r) slots[r] = of_rows[is_own(task, places[r]) ? places[r] : 0];
}

template <typename Place, typename In, typename Out>
FS_DEVICE bool has_place(const RowTask<Place, In, Out>& task, int64_t place) {
  if (place < 0) return -1 - place < task.num_fetched;
  const int64_t table = place_table(place);
  if (table == 0) return place < task.num_own;
  return table <= task.near.count && place_row(place) < task.near.num_rows[table - 1];
}

// The places of a group's rows, and the cache's slots of those that are own rows, -1 for the others. Nothing branches
// on one before all have been asked for, so that their reads are under way together. After the last row: the last
// one's.
struct PlacedRows {
  int64_t places[kRowsAtOnce], slots[kRowsAtOnce];
};
template <typename Place, typename In, typename Out>
FS_DEVICE PlacedRows read_places(const RowTask<Place, In, Out>& task, int64_t first, int64_t groups) {
  PlacedRows rows;
  FS_UNROLL
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const int64_t i = first + r * groups;
    rows.places[r] = task.places[i < task.num_out ? i : task.num_out - 1];
    rows.slots[r] = -1;
  }
  if (task.cache_places == nullptr || task.num_own == 0) return rows;
  if (task.has_wide_places) {
    read_slots<int64_t>(task, rows.places, rows.slots);
  } else {
    read_slots<int32_t>(task, rows.places, rows.slots);
  }
  FS_UNROLL
  for (int r = 0; r < kRowsAtOnce; ++r) {
    if (!is_own(task, rows.places[r]) || rows.slots[r] >= task.num_cached) rows.slots[r] = -1;
  }
  return rows;
}

template <int kCount, typename Place, typename In, typename Out>
FS_DEVICE RowSource find_row(const RowTask<Place, In, Out>& task, int64_t i, int64_t place, int64_t slot,
                             bool reports) {
  const int64_t width = task.chunks * kCount;
  if (!has_place(task, place)) {
    if (reports) report_bad_place(task, i, place);
    return {nullptr, 0, false};
  }
  if (place < 0) {
    const int64_t start = (-1 - place) * width;
    if (!std::is_same<In, Out>::value && task.is_converted) {
      return {static_cast<const Out*>(task.fetched) + start, 0, true};
    }
    return {static_cast<const In*>(task.fetched) + start, 0, false};
  }
  const int64_t table = place_table(place);
  const In* row;
  if (table == 0) {
    if (slot >= 0) return {task.cached + slot * width, 0, false};
    row = task.own + place * width;
  } else {
    row = static_cast<const In*>(task.near.rows[table - 1]) + place_row(place) * width;
  }
  constexpr uint64_t kChunkBytes = sizeof(Chunk<In, kCount>);
  constexpr uint64_t kLine = kChunkBytes * kWarp < kLineBytes ? kChunkBytes * kWarp : kLineBytes;
  const uint64_t behind = reinterpret_cast<uintptr_t>(row) % kLine;
  return {row, task.shifts ? static_cast<int32_t>(behind / kChunkBytes) : 0, false};
}

template <int kCount, typename In, typename Out>
FS_DEVICE Chunk<Out, kCount> read_chunk(const RowSource& source, int64_t number) {
  if (source.row == nullptr) {
    Chunk<Out, kCount> zeros;
    memset(&zeros, 0, sizeof(zeros));
    return zeros;
  }
  if (!std::is_same<In, Out>::value && source.is_converted) {
    return Chunk<Out, kCount>::read(static_cast<const Out*>(source.row), number);
  }
  return Convert<In, Out, kCount>::run(Chunk<In, kCount>::read(static_cast<const In*>(source.row), number));
}

template <int kCount, typename Place, typename In, typename Out>
FS_KERNEL void __launch_bounds__(kThreads, kBlocksAtOnce) copy_rows(RowTask<Place, In, Out> task) {
  const int64_t groups = num_threads() / task.lanes;
  const int lane = static_cast<int>(threadIdx.x) % task.lanes;
  for (int64_t first = thread_number() / task.lanes; first < task.num_out; first += groups * kRowsAtOnce) {
    const PlacedRows rows = read_places(task, first, groups);
    RowSource sources[kRowsAtOnce];
    int64_t end = 0;
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int64_t i = first + r * groups;
      sources[r] = {nullptr, 0, false};
      if (i < task.num_out) sources[r] = find_row<kCount>(task, i, rows.places[r], rows.slots[r], lane == 0);
      if (task.chunks + sources[r].shift > end) end = task.chunks + sources[r].shift;
    }
    for (int64_t step = lane; step < end; step += task.lanes) {
      Chunk<Out, kCount> values[kRowsAtOnce];
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int64_t number = step - sources[r].shift;
        if (number >= 0 && number < task.chunks) values[r] = read_chunk<kCount, In, Out>(sources[r], number);
      }
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int64_t i = first + r * groups, number = step - sources[r].shift;
        if (i < task.num_out && number >= 0 && number < task.chunks) {
          values[r].write(task.out, i * task.chunks + number);
        }
      }
    }
  }
}

// The tables' starts, or-ed.
inline uint64_t alignment_of(const NearTables& near) {
  uint64_t starts = 0;
  for (int64_t i = 0; i < near.count; ++i) starts |= reinterpret_cast<uintptr_t>(near.rows[i]);
  return starts;
}

// Sets what follows from a row's size and enqueues the kernel.
template <int kCount, typename Place, typename In, typename Out>
void launch_copy_rows(RowTask<Place, In, Out> task, int64_t row_columns, cudaStream_t stream) {
  constexpr int64_t kChunkBytes = sizeof(Chunk<In, kCount>);
  constexpr int64_t kLine = kChunkBytes * kWarp < kLineBytes ? kChunkBytes * kWarp : kLineBytes;
  const int64_t row_bytes = row_columns * static_cast<int64_t>(sizeof(In));
  const uint64_t starts = reinterpret_cast<uintptr_t>(task.own) | alignment_of(task.near);
  const bool is_aligned = row_bytes % kLine == 0 && starts % kLine == 0;
  task.chunks = row_columns / kCount;
  task.shifts = row_bytes >= kLine && !is_aligned;
  const int64_t steps = task.chunks + (task.shifts ? kLine / kChunkBytes - 1 : 0);
  task.lanes = 1;
  while (task.lanes < steps && task.lanes < kWarp) task.lanes *= 2;
  const int64_t groups = (task.num_out + kRowsAtOnce - 1) / kRowsAtOnce;
  launch(copy_rows<kCount, Place, In, Out>, blocks_for(groups * task.lanes), stream, task);
}

// The tables' starts and the row size in bytes, or-ed: what a chunk's size must divide.
inline uint64_t alignment_of(const void* own, const FsCudaRowCache* cache, const void* fetched, const void* out) {
  const void* cached = cache == nullptr ? nullptr : cache->rows;
  return reinterpret_cast<uintptr_t>(own) | reinterpret_cast<uintptr_t>(cached) | reinterpret_cast<uintptr_t>(fetched) |
         reinterpret_cast<uintptr_t>(out);
}

// Rows that are copied as they are, in the widest words that fit.
template <typename Place, typename Word>
void launch_words(const RowTask<Place, int8_t, int8_t>& bytes, int64_t row_bytes, cudaStream_t stream) {
  const RowTask<Place, Word, Word> task = {reinterpret_cast<const Word*>(bytes.own),
                                           bytes.num_own,
                                           reinterpret_cast<const Word*>(bytes.cached),
                                           bytes.num_cached,
                                           bytes.cache_places,
                                           bytes.has_wide_places,
                                           bytes.near,
                                           bytes.fetched,
                                           bytes.num_fetched,
                                           false,
                                           bytes.places,
                                           bytes.num_out,
                                           reinterpret_cast<Word*>(bytes.out),
                                           0,
                                           0,
                                           false,
                                           bytes.bad,
                                           bytes.operation};
  launch_copy_rows<1>(task, row_bytes / static_cast<int64_t>(sizeof(Word)), stream);
}

template <typename Place>
void launch_widest(const RowTask<Place, int8_t, int8_t>& bytes, int64_t row_bytes, uint64_t alignment,
                   cudaStream_t stream) {
  alignment |= static_cast<uint64_t>(row_bytes);
  if (alignment % 16 == 0) {
    launch_words<Place, int4>(bytes, row_bytes, stream);
  } else if (alignment % 8 == 0) {
    launch_words<Place, int2>(bytes, row_bytes, stream);
  } else if (alignment % 4 == 0) {
    launch_words<Place, int32_t>(bytes, row_bytes, stream);
  } else if (alignment % 2 == 0) {
    launch_words<Place, int16_t>(bytes, row_bytes, stream);
  } else {
    launch_words<Place, int8_t>(bytes, row_bytes, stream);
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CUDA_ROW_KERNELS_CUH_

// The baseline of the sampling benchmark, and nothing a sampler of this library runs: one hop as DGL samples it on a
// GPU, written from its description in PGSampler (section II-C, figure 3) and GNNLab.
//
// A block takes a row. Its threads go through the row's neighbours and each decides by reservoir sampling (Vitter,
// 1985) whether a neighbour is kept: neighbour p takes one of the `fanout` slots with probability fanout / (p + 1), and
// of several that want a slot the last one keeps it, an atomic maximum. So the work of a row depends on its degree.
// Draws are keyed by (hop, row, thread): the same on every run, but not those of the library's samplers.
//
// Between the hops the host reads sizes back, allocates exactly and relabels, like DGL's to_block: all destinations and
// sources go into a table, whose value is the first place that brings a node; flags of first places, summed by the
// caller, are the new ids. A kernel per step, as few words as the steps allow.
#include "abi_entries.h"
#include "device.cuh"
#include "fastsample_bench.h"
#include "id_table.cuh"
#include "philox.h"
#include "pick.h"
#include "requests.h"

// clang-format off
static const FsAbiEntry kEntries[] = {
  FS_STRUCT(FsBenchHop, indptr, indices, rows, num_rows, fanout, id_type, hop, rng_seed, step)
  FS_STRUCT(FsBenchRelabel, rows, sources, num_rows, num_edges, num_ids, table, slots, id_type)
  FS_STRUCT(FsBenchNumbers, is_first, numbers, nodes, indices)
  FS_END};
// clang-format on

namespace fs {
namespace {

#if defined(FS_EMULATED)
constexpr int kRowThreads = kThreads;
constexpr int64_t kMostRowBlocks = 8;
#else
constexpr int kRowThreads = 128;  // of the block that takes a row
constexpr int64_t kMostRowBlocks = INT32_MAX;
#endif

template <typename Id>
struct ReservoirHop {
  const int64_t* indptr;
  const Id* indices;
  const Id* rows;
  int64_t num_rows;
  int64_t fanout;
  StageKey key;
};

template <typename Id>
FS_KERNEL void count_picks_kernel(ReservoirHop<Id> hop, int64_t* counts) {
  for (int64_t r = thread_number(); r < hop.num_rows; r += num_threads()) {
    const int64_t row = hop.rows[r];
    counts[r] = num_picks(hop.indptr[row + 1] - hop.indptr[row], hop.fanout, false);
  }
}

FS_DEVICE void atomic_max(int64_t* word, int64_t value) {
  atomicMax(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
}

// NodeStream with its words shifted along, so that they stay in registers: the baseline is to lose by its algorithm
// only.
class ShiftedStream {
 public:
  FS_DEVICE ShiftedStream(StageKey key, uint64_t id) : key_(key), id_(id) {}

  FS_DEVICE uint32_t next() {
    if (left_ == 0) {
      words_[0] = static_cast<uint32_t>(block_);
      words_[1] = static_cast<uint32_t>(block_ >> 32);
      words_[2] = static_cast<uint32_t>(id_);
      words_[3] = static_cast<uint32_t>(id_ >> 32);
      philox_block(key_, words_);
      ++block_;
      left_ = 4;
    }
    const uint32_t word = words_[0];
    words_[0] = words_[1];
    words_[1] = words_[2];
    words_[2] = words_[3];
    --left_;
    return word;
  }

 private:
  StageKey key_;
  uint64_t id_;
  uint64_t block_ = 0;
  uint32_t words_[4] = {};
  int left_ = 0;
};

template <typename Id>
FS_KERNEL void reservoir_kernel(ReservoirHop<Id> hop, const int64_t* places, Id* sources, int64_t* slots) {
  for (int64_t r = blockIdx.x; r < hop.num_rows; r += gridDim.x) {
    const int64_t row = hop.rows[r], begin = hop.indptr[row], degree = hop.indptr[row + 1] - begin;
    int64_t* const taken = slots + places[r];  // positions in the row, from 0
    Id* const out = sources + places[r];
    const int64_t count = degree < hop.fanout ? degree : hop.fanout;
    for (int64_t i = threadIdx.x; i < count; i += kRowThreads) taken[i] = i;
    __syncthreads();
    ShiftedStream stream(hop.key, static_cast<uint64_t>(r) * kRowThreads + threadIdx.x);
    for (int64_t p = hop.fanout + threadIdx.x; p < degree; p += kRowThreads) {
      const int64_t slot = static_cast<int64_t>(draw_below(stream, static_cast<uint64_t>(p) + 1));
      if (slot < hop.fanout) atomic_max(taken + slot, p);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count; i += kRowThreads) {
      const int64_t position = begin + taken[i];
      taken[i] = position;
      out[i] = hop.indices[position];
    }
  }
}

// Destinations, then sources.
template <typename Id>
struct RelabelItems {
  const Id* rows;
  int64_t num_rows;
  const Id* sources;
  int64_t num_items;
  DeviceIdTable<Id> table;
  int64_t* slots;  // [num_items]

  FS_DEVICE Id at(int64_t i) const { return i < num_rows ? rows[i] : sources[i - num_rows]; }
};

template <typename Id>
FS_KERNEL void insert_kernel(RelabelItems<Id> items) {
  for (int64_t i = thread_number(); i < items.num_items; i += num_threads()) {
    const uint64_t slot = items.table.insert(items.at(i));
    atomic_min(items.table.values + slot, static_cast<uint64_t>(i));
    items.slots[i] = static_cast<int64_t>(slot);
  }
}

template <typename Id>
FS_KERNEL void mark_first_kernel(RelabelItems<Id> items, int32_t* is_first) {
  for (int64_t i = thread_number(); i < items.num_items; i += num_threads()) {
    is_first[i] = items.table.values[items.slots[i]] == static_cast<uint64_t>(i);
  }
}

// `numbers` are inclusive sums of is_first.
template <typename Id>
FS_KERNEL void number_kernel(RelabelItems<Id> items, const int32_t* is_first, const int64_t* numbers, Id* nodes) {
  for (int64_t i = thread_number(); i < items.num_items; i += num_threads()) {
    if (is_first[i] == 0) continue;
    const int64_t number = numbers[i] - 1;
    items.table.values[items.slots[i]] = static_cast<uint64_t>(number);
    nodes[number] = items.at(i);
  }
}

template <typename Id>
FS_KERNEL void map_kernel(RelabelItems<Id> items, Id* indices) {
  for (int64_t i = items.num_rows + thread_number(); i < items.num_items; i += num_threads()) {
    indices[i - items.num_rows] = static_cast<Id>(items.table.values[items.slots[i]]);
  }
}

template <typename Id>
void launch_reservoir(const ReservoirHop<Id>& hop, const int64_t* places, Id* sources, int64_t* slots,
                      cudaStream_t stream) {
  const int blocks = static_cast<int>(hop.num_rows < kMostRowBlocks ? hop.num_rows : kMostRowBlocks);
#if defined(FS_EMULATED)
  launch(reservoir_kernel<Id>, blocks, stream, hop, places, sources, slots);
#else
  // clang-format off
  reservoir_kernel<Id><<<blocks, kRowThreads, 0, stream>>>(hop, places, sources, slots);
  // clang-format on
#endif
}

template <typename Id>
ReservoirHop<Id> reservoir_hop(const FsBenchHop& hop) {
  return {hop.indptr,
          static_cast<const Id*>(hop.indices),
          static_cast<const Id*>(hop.rows),
          hop.num_rows,
          hop.fanout,
          stage_key(hop.rng_seed, kSampling, static_cast<uint32_t>(hop.hop), hop.step)};
}

int64_t id_bytes(int32_t id_type) { return id_type == FS_INT32 ? 4 : 8; }

IdTableSize table_size(const FsBenchRelabel& task) {
  return id_table_size(task.num_rows + task.num_edges, task.num_ids, id_bytes(task.id_type));
}

template <typename Id>
RelabelItems<Id> relabel_items(const FsBenchRelabel& task) {
  const IdTableSize size = table_size(task);
  uint64_t* const values = static_cast<uint64_t*>(task.table);
  Id* const keys = size.is_direct ? nullptr : reinterpret_cast<Id*>(values + size.slots);
  return {static_cast<const Id*>(task.rows),     task.num_rows,
          static_cast<const Id*>(task.sources),  task.num_rows + task.num_edges,
          {keys, values, size.slots, size.bits}, task.slots};
}

template <typename Id>
void find_first(const FsBenchRelabel& task, int32_t* is_first, cudaStream_t stream) {
  const RelabelItems<Id> items = relabel_items<Id>(task);
  const int64_t bytes = items.table.slots * (8 + (items.table.keys == nullptr ? 0 : id_bytes(task.id_type)));
  cudaMemsetAsync(task.table, 0xFF, static_cast<size_t>(bytes), stream);
  launch(insert_kernel<Id>, blocks_for(items.num_items), stream, items);
  launch(mark_first_kernel<Id>, blocks_for(items.num_items), stream, items, is_first);
}

template <typename Id>
void number_nodes(const FsBenchRelabel& task, const FsBenchNumbers& numbers, cudaStream_t stream) {
  const RelabelItems<Id> items = relabel_items<Id>(task);
  launch(number_kernel<Id>, blocks_for(items.num_items), stream, items, numbers.is_first, numbers.numbers,
         static_cast<Id*>(numbers.nodes));
  if (task.num_edges > 0) {
    launch(map_kernel<Id>, blocks_for(task.num_edges), stream, items, static_cast<Id*>(numbers.indices));
  }
}

FsStatus check_hop(const FsBenchHop& hop) {
  if (hop.fanout < 1) {
    return fail(FS_INVALID_ARGUMENT, "reservoir: fanout %lld; expected at least 1", static_cast<long long>(hop.fanout));
  }
  return check_id_type("reservoir", hop.id_type);
}

}  // namespace
}  // namespace fs

extern "C" {

const FsAbiEntry* fs_cuda_bench_abi_entries(void) { return kEntries; }

FsStatus fs_cuda_bench_count_picks(const FsBenchHop* hop, int64_t* out_counts, void* stream) {
  const FsStatus status = fs::check_hop(*hop);
  if (status != FS_OK || hop->num_rows == 0) return status;
  cudaStream_t on = static_cast<cudaStream_t>(stream);
  const int blocks = fs::blocks_for(hop->num_rows);
  if (hop->id_type == FS_INT32) {
    fs::launch(fs::count_picks_kernel<int32_t>, blocks, on, fs::reservoir_hop<int32_t>(*hop), out_counts);
  } else {
    fs::launch(fs::count_picks_kernel<int64_t>, blocks, on, fs::reservoir_hop<int64_t>(*hop), out_counts);
  }
  return fs::launch_status("reservoir");
}

FsStatus fs_cuda_bench_reservoir(const FsBenchHop* hop, const int64_t* places, void* out_sources, int64_t* out_edges,
                                 void* stream) {
  const FsStatus status = fs::check_hop(*hop);
  if (status != FS_OK || hop->num_rows == 0) return status;
  cudaStream_t on = static_cast<cudaStream_t>(stream);
  if (hop->id_type == FS_INT32) {
    fs::launch_reservoir(fs::reservoir_hop<int32_t>(*hop), places, static_cast<int32_t*>(out_sources), out_edges, on);
  } else {
    fs::launch_reservoir(fs::reservoir_hop<int64_t>(*hop), places, static_cast<int64_t*>(out_sources), out_edges, on);
  }
  return fs::launch_status("reservoir");
}

FsStatus fs_cuda_bench_table_bytes(const FsBenchRelabel* task, int64_t* out_bytes) {
  const FsStatus status = fs::check_id_type("relabel", task->id_type);
  if (status != FS_OK) return status;
  const fs::IdTableSize size = fs::table_size(*task);
  *out_bytes = size.slots * (8 + (size.is_direct ? 0 : fs::id_bytes(task->id_type)));
  return FS_OK;
}

FsStatus fs_cuda_bench_find_first(const FsBenchRelabel* task, int32_t* out_is_first, void* stream) {
  const FsStatus status = fs::check_id_type("relabel", task->id_type);
  if (status != FS_OK || task->num_rows + task->num_edges == 0) return status;
  const auto find = task->id_type == FS_INT32 ? fs::find_first<int32_t> : fs::find_first<int64_t>;
  find(*task, out_is_first, static_cast<cudaStream_t>(stream));
  return fs::launch_status("relabel");
}

FsStatus fs_cuda_bench_number(const FsBenchRelabel* task, const FsBenchNumbers* numbers, void* stream) {
  const FsStatus status = fs::check_id_type("relabel", task->id_type);
  if (status != FS_OK || task->num_rows + task->num_edges == 0) return status;
  const auto number = task->id_type == FS_INT32 ? fs::number_nodes<int32_t> : fs::number_nodes<int64_t>;
  number(*task, *numbers, static_cast<cudaStream_t>(stream));
  return fs::launch_status("relabel");
}

}  // extern "C"

// The steps of one hop on the GPU, from row numbers to a message flow graph. Every kernel reads how much there is to do
// from the batch's state in device memory, so the host enqueues all hops without knowing it.
//
//   count_rows      picks of each row, sums per block                     (FastSample, algorithm 1: the R vector)
//   place_rows      prefix sums: the hop's indptr
//   sample_*        draw, read neighbours, put them into the id table     (sample_kernels.cuh)
//   count_new       which edges are the first to bring their node, sums per block
//   assign_new      local ids in the order of those edges
//   relabel         slots -> local ids
//
// The table's value of a node is its local id, or, while its hop is being sampled, kFirstEdge + the least edge that
// brings it: an atomic minimum, so the order of first appearance does not depend on the order of threads. `indices`
// holds slots of the table until relabel turns each into a local id in place.
#ifndef FS_CUDA_HOP_KERNELS_CUH_
#define FS_CUDA_HOP_KERNELS_CUH_

#include "batch_layout.cuh"
#include "csc_view.h"
#include "draw_rows.cuh"
#include "layer_pick.h"

namespace fs {

constexpr uint64_t kFirstEdge = 1ull << 62;

// One hop of a batch, as its kernels take it.
template <typename Id>
struct DeviceHop {
  CscView<Id> graph;
  const int64_t* num_positive;  // [rows of the graph] edges that can be picked, or null: all
  int64_t fanout;
  bool replace;
  int32_t number;      // in the batch, counted from the seeds
  const Id* rows;      // [num_rows]
  RowEdges* edges;     // [num_rows] where each row lies
  int64_t* indptr;     // [num_rows + 1] prefix sums of the picks
  Id* indices;         // [num_edges] slots, then local ids; without a table the source ids
  int64_t* edge_ids;   // [num_edges] positions in graph.indices, or null
  int64_t* positions;  // [num_edges] scratch of rows that a warp draws
  uint64_t* state;
  const uint64_t* stage_keys;
  int64_t* range_sums;
  uint32_t* new_edges;
  DeviceIdTable<Id> table;
  Id* nodes;  // [max_nodes] of the batch

  FS_DEVICE int64_t num_rows() const { return static_cast<int64_t>(state[num_rows_word(number)]); }
  FS_DEVICE int64_t num_edges() const { return static_cast<int64_t>(state[num_edges_word(number)]); }
  FS_DEVICE int64_t positive(int64_t r) const {
    return num_positive == nullptr ? edges[r].degree : num_positive[rows[r]];
  }
  FS_DEVICE StageKey key() const {
    const uint64_t word = stage_keys[number];
    return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
  }
};

// Seeds as destinations of hop 0, and the keys of all hops.
template <typename Id>
struct SeedTask {
  const Id* seeds;
  int64_t num_seeds, num_ids;
  uint64_t* state;
  uint64_t* stage_keys;
  DeviceIdTable<Id> table;
  Id* nodes;
  uint64_t rng_seed;
  uint64_t step;
  const uint64_t* step_on_device;  // null: `step`
  int32_t num_hops, first_hop;
  bool is_layer, shares_hops;  // FS_LABOR, layer_dependency

  FS_DEVICE uint64_t key_of(int64_t hop) const {
    const uint64_t now = step_on_device == nullptr ? step : *step_on_device;
    const uint32_t stage = shares_hops ? kAllHops : static_cast<uint32_t>(first_hop + hop);
    const StageKey key = stage_key(rng_seed, is_layer ? kLayer : kSampling, stage, now);
    return key.k0 | static_cast<uint64_t>(key.k1) << 32;
  }
};

template <typename Id>
FS_KERNEL void add_seeds(SeedTask<Id> task) {
  const int64_t first = thread_number();
  if (first < task.num_hops) task.stage_keys[first] = task.key_of(first);
  if (first == 0) task.state[kNumSeeds] = static_cast<uint64_t>(task.num_seeds);
  for (int64_t i = first; i < task.num_seeds; i += num_threads()) {
    const Id seed = task.seeds[i];
    task.nodes[i] = seed;
    if (seed < 0 || static_cast<int64_t>(seed) >= task.num_ids) {
      atomic_min(task.state + kBadSeed, static_cast<uint64_t>(i));
    } else {
      atomic_min(task.table.values + task.table.insert(seed), static_cast<uint64_t>(i));
    }
  }
}

// Where row `row` of the graph lies; nothing where there is no such row.
template <typename Id>
FS_DEVICE RowEdges row_edges(const CscView<Id>& graph, int64_t row) {
  if (!graph.has_row(row)) return {0, 0};
  const int64_t begin = graph.indptr[row];
  return {begin, graph.indptr[row + 1] - begin};
}

// Reports a row that does not exist and, on hop 0 of a batch, a repeated seed; returns whether the row exists.
template <typename Id>
FS_DEVICE bool check_row(const DeviceHop<Id>& hop, int64_t r, bool are_seeds) {
  const Id row = hop.rows[r];
  if (!hop.graph.has_row(row)) {
    atomic_min(hop.state + bad_row_word(hop.number), static_cast<uint64_t>(r));
    return false;
  }
  if (are_seeds && hop.table.values[hop.table.insert(row)] != static_cast<uint64_t>(r)) {
    atomic_min(hop.state + kRepeatedSeed, static_cast<uint64_t>(r));
  }
  return true;
}

// Counts the picks of the hop's rows.
template <typename Id>
FS_DEVICE void count_picks_of_range(const DeviceHop<Id>& hop, bool are_seeds) {
  const Range range = block_range(hop.num_rows());
  int64_t picks = 0;
  for (int64_t r = range.begin + threadIdx.x; r < range.end; r += kThreads) {
    const bool exists = check_row(hop, r, are_seeds);
    hop.edges[r] = row_edges(hop.graph, hop.rows[r]);
    const int64_t count = exists ? num_picks(hop.positive(r), hop.fanout, hop.replace) : 0;
    hop.indptr[r + 1] = count;
    picks += count;
  }
  picks = block_sum(picks);
  if (threadIdx.x == 0) hop.range_sums[blockIdx.x] = picks;
}

template <typename Id>
FS_KERNEL void count_rows(DeviceHop<Id> hop, bool are_seeds) {
  count_picks_of_range(hop, are_seeds);
}

// Launched with as many blocks as what counted the rows.
template <typename Id>
FS_KERNEL void place_rows(DeviceHop<Id> hop) {
  const Range range = block_range(hop.num_rows());
  // The bounds of the arrays are those of different seeds: where a seed is repeated, nothing is drawn.
  const bool is_refused = hop.state[kRepeatedSeed] != kNothing;
  int64_t before = is_refused ? 0 : sum_before(hop.range_sums);
  for (int64_t tile = range.begin; tile < range.end; tile += kThreads) {
    const int64_t r = tile + threadIdx.x;
    const int64_t count = r < range.end && !is_refused ? hop.indptr[r + 1] : 0;
    const BlockScan scan = block_scan(count);
    if (r < range.end) hop.indptr[r + 1] = before + scan.before + count;
    before += scan.total;
  }
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) hop.indptr[0] = 0;
  if (blockIdx.x == gridDim.x - 1) hop.state[num_edges_word(hop.number)] = static_cast<uint64_t>(before);
}

// Slots as they are in `indices` until they are relabelled. A table of int32 ids has less than 2^32 of them.
template <typename Id>
FS_DEVICE uint64_t slot_of(Id word);
template <>
FS_DEVICE uint64_t slot_of(int32_t word) {
  const uint32_t slot = static_cast<uint32_t>(word);
  return slot == ~0u ? kNoSlot : slot;
}
template <>
FS_DEVICE uint64_t slot_of(int64_t word) {
  return static_cast<uint64_t>(word);
}

// Whether edge e is the first to bring its node.
template <typename Id>
FS_DEVICE bool brings_node(const DeviceHop<Id>& hop, int64_t e) {
  const uint64_t slot = slot_of(hop.indices[e]);
  return slot != kNoSlot && hop.table.values[slot] == kFirstEdge + static_cast<uint64_t>(e);
}

template <typename Id>
FS_KERNEL void count_new(DeviceHop<Id> hop) {
  const int64_t num_edges = hop.num_edges();
  const Range words = block_range((num_edges + kWarp - 1) / kWarp);
  const int lane = lane_number();
  int64_t count = 0;
  for (int64_t w = words.begin + warp_in_block(); w < words.end; w += kWarps) {
    const int64_t e = w * kWarp + lane;
    const uint32_t bits = __ballot_sync(kAllLanes, e < num_edges && brings_node(hop, e));
    if (lane == 0) {
      hop.new_edges[w] = bits;
      count += __popc(bits);
    }
  }
  count = block_sum(count);
  if (threadIdx.x == 0) hop.range_sums[blockIdx.x] = count;
}

// Launched with as many blocks as count_new.
template <typename Id>
FS_KERNEL void assign_new(DeviceHop<Id> hop) {
  const Range words = block_range((hop.num_edges() + kWarp - 1) / kWarp);
  int64_t before = hop.num_rows() + sum_before(hop.range_sums);
  for (int64_t tile = words.begin; tile < words.end; tile += kThreads) {
    const int64_t w = tile + threadIdx.x;
    uint32_t bits = w < words.end ? hop.new_edges[w] : 0;
    const BlockScan scan = block_scan(__popc(bits));
    for (int64_t local = before + scan.before; bits != 0; bits &= bits - 1, ++local) {
      const uint64_t slot = slot_of(hop.indices[w * kWarp + __ffs(static_cast<int>(bits)) - 1]);
      hop.table.values[slot] = static_cast<uint64_t>(local);
      hop.nodes[local] = hop.table.id_at(slot);
    }
    before += scan.total;
  }
  if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1) {
    hop.state[num_src_word(hop.number)] = static_cast<uint64_t>(before);
  }
}

template <typename Id>
FS_DEVICE void relabel_edges(const DeviceHop<Id>& hop) {
  const int64_t num_edges = hop.num_edges();
  for (int64_t e = thread_number(); e < num_edges; e += num_threads()) {
    const uint64_t slot = slot_of(hop.indices[e]);
    hop.indices[e] = slot == kNoSlot ? Id{-1} : static_cast<Id>(hop.table.values[slot]);
  }
}

template <typename Id>
FS_KERNEL void relabel(DeviceHop<Id> hop) {
  relabel_edges(hop);
}

// relabel of one hop and count_rows of the next, which do not depend on each other. The grid strides over the edges; a
// block counts a range of the rows.
template <typename Id>
FS_KERNEL void relabel_and_count(DeviceHop<Id> hop, DeviceHop<Id> next) {
  relabel_edges(hop);
  count_picks_of_range(next, false);
}

}  // namespace fs

#endif  // FS_CUDA_HOP_KERNELS_CUH_

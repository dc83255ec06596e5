// The steps of one hop on the GPU, from row numbers to a message flow graph. Every kernel reads how much there is to do
// from the batch's state in device memory, so the host enqueues all hops without knowing it.
//
//   place_rows      picks of each row (FastSample, algorithm 1: the R vector), prefix sums: the hop's indptr
//   sample_*        draw, read neighbours, put them into the id table     (sample_kernels.cuh)
//   assign_new      local ids for the edges that are the first to bring their node, in the order of the edges
//   relabel         slots -> local ids, together with place_rows of the next hop
//
// Each is a function that all threads of a grid call, and a kernel of its own that calls it; one cooperative kernel
// calls all of them (cooperative_sampler.cu).
//
// The table's value of a node, above the batch's stamp, is its local id, or, while its hop is being sampled,
// kFirstEdge + the least edge that brings it: an atomic minimum, so the order of first appearance does not depend on
// the order of threads. `indices` holds slots of the table until relabel turns each into a local id in place
// (SlotWord).
#ifndef FS_CUDA_HOP_KERNELS_CUH_
#define FS_CUDA_HOP_KERNELS_CUH_

#include <type_traits>

#include "batch_layout.cuh"
#include "csc_view.h"
#include "draw_rows.cuh"
#include "layer_pick.h"

namespace fs {

constexpr uint64_t kFirstEdge = 1ull << (kStampShift - 2);

// One hop of a batch, as its kernels take it.
template <typename Id>
struct DeviceHop {
  CscView<Id> graph;
  const int64_t* num_positive;  // [rows of the graph] edges that can be picked, or null: all
  int64_t fanout;
  bool replace;
  int32_t number;       // in the batch, counted from the seeds
  const Id* rows;       // [num_rows]
  RowEdges* edges;      // [num_rows] where each row lies in graph.indices; recorded picks: in the records
  const int64_t* runs;  // [slots of the table] where a row's picks begin in the persistent kernel's records, or null
  int64_t* indptr;      // [num_rows + 1] prefix sums of the picks
  Id* indices;          // [num_edges] slots, then local ids; without a table the source ids
  int64_t* edge_ids;    // [num_edges] positions in graph.indices, or null
  int64_t* positions;   // [num_edges] scratch of rows that a warp draws
  uint64_t* state;
  const uint64_t* stage_keys;
  HopScans scans;
  DeviceIdTable<Id> table;
  Id* nodes;  // [max_nodes] of the batch

  FS_DEVICE int64_t num_given() const { return static_cast<int64_t>(state[num_rows_word(number)]); }
  FS_DEVICE uint64_t stamp() const { return state[kStamp]; }
  // The bounds of the arrays are those of different seeds: where a seed is repeated, nothing is drawn. That is known
  // behind place_rows of the first hop.
  FS_DEVICE bool is_refused() const { return state[kRepeatedSeed] != kNothing; }
  FS_DEVICE int64_t num_rows() const { return is_refused() ? 0 : num_given(); }
  FS_DEVICE int64_t num_edges() const { return is_refused() ? 0 : static_cast<int64_t>(state[num_edges_word(number)]); }
  FS_DEVICE int64_t positive(int64_t r) const {
    return num_positive == nullptr ? edges[r].degree : num_positive[rows[r]];
  }
  FS_DEVICE StageKey key() const {
    const uint64_t word = stage_keys[number];
    return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
  }
};

// Slot of a node, which is put in where it is new. kNoSlot: there is no room, which the state then says.
template <typename Id>
FS_DEVICE uint64_t enter_node(const DeviceIdTable<Id>& table, uint64_t* state, Id node) {
  const uint64_t slot = table.insert(node);
  if (slot == kNoSlot) store_now(state + kTableFull, uint64_t{0});
  return slot;
}

// What a batch starts from.
struct BatchMemory {
  uint64_t* cleared;  // [num_cleared] becomes ~0, but for the stamp and the replay; the state is its first piece
  int64_t num_cleared;
  uint64_t* last_stamp;  // of a table that stays, or null
  uint64_t* values;      // [slots] of that table
  int64_t slots;
  const FsCudaReplay* replay;  // or null
};

// Only here is the replay read over the bus.
FS_DEVICE uint64_t first_word(const BatchMemory& memory, uint64_t stamp, int64_t i) {
  if (i == kStamp) return stamp << kStampShift;
  if (memory.replay == nullptr || i < kReplayStep || i > kMovedBy) return ~0ull;
  return load_now(reinterpret_cast<const uint64_t*>(memory.replay) + (i - kReplayStep));
}

FS_KERNEL void clear_batch(BatchMemory memory) {
  const uint64_t last = memory.last_stamp == nullptr ? kNoValue : *memory.last_stamp;
  const uint64_t stamp = last - 1 < kMostStamp ? last - 1 : kMostStamp;  // after 0, and at first
  for (int64_t i = thread_number(); i < memory.num_cleared; i += num_threads()) {
    memory.cleared[i] = first_word(memory, stamp, i);
  }
  if (last != 0) return;
  for (int64_t i = thread_number(); i < memory.slots; i += num_threads()) memory.values[i] = kNoValue;
}

// Seeds as destinations of hop 0, and the keys of all hops.
template <typename Id>
struct SeedTask {
  const Id* seeds;
  int64_t num_seeds, num_ids;
  uint64_t* state;
  uint64_t* stage_keys;
  DeviceIdTable<Id> table;
  uint64_t* last_stamp;
  Id* nodes;
  uint64_t rng_seed;
  uint64_t step;
  bool is_replayed;  // seeds and step are those in the state
  int32_t num_hops, first_hop;
  bool is_layer, shares_hops;  // FS_LABOR, layer_dependency

  FS_DEVICE uint64_t key_of(int64_t hop) const {
    const uint64_t now = is_replayed ? state[kReplayStep] : step;
    const uint32_t stage = shares_hops ? kAllHops : static_cast<uint32_t>(first_hop + hop);
    const StageKey key = stage_key(rng_seed, is_layer ? kLayer : kSampling, stage, now);
    return key.k0 | static_cast<uint64_t>(key.k1) << 32;
  }
};

template <typename Id>
FS_DEVICE void put_seeds(const SeedTask<Id>& task) {
  const int64_t first = thread_number();
  if (first < task.num_hops) task.stage_keys[first] = task.key_of(first);
  const uint64_t stamp = task.state[kStamp];
  const Id* seeds = task.is_replayed ? reinterpret_cast<const Id*>(task.state[kReplayIds]) : task.seeds;
  if (first == 0) {
    task.state[kNumSeeds] = static_cast<uint64_t>(task.num_seeds);
    if (task.last_stamp != nullptr) *task.last_stamp = stamp >> kStampShift;
  }
  for (int64_t i = first; i < task.num_seeds; i += num_threads()) {
    const Id seed = seeds[i];
    task.nodes[i] = seed;
    if (seed < 0 || static_cast<int64_t>(seed) >= task.num_ids) {
      atomic_min(task.state + kBadSeed, static_cast<uint64_t>(i));
      continue;
    }
    const uint64_t slot = enter_node(task.table, task.state, seed);
    if (slot != kNoSlot) atomic_min(task.table.values + slot, stamp + static_cast<uint64_t>(i));
  }
}

template <typename Id>
FS_KERNEL void add_seeds(SeedTask<Id> task) {
  put_seeds(task);
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
  if (!are_seeds) return true;
  const uint64_t slot = hop.table.insert(row);
  if (slot != kNoSlot && hop.table.values[slot] != hop.stamp() + static_cast<uint64_t>(r)) {
    atomic_min(hop.state + kRepeatedSeed, static_cast<uint64_t>(r));
  }
  return true;
}

// Places of the hop's picks: count(r) says how many row r has, which may have been given twice.
template <typename Id, typename Count>
FS_DEVICE void place_picks(const DeviceHop<Id>& hop, const Count& count) {
  const int64_t num_given = hop.num_given();
  TileScan scan(hop.scans.rows, num_given);
  while (scan.next()) {
    int64_t picks[kStripes], before[kStripes];
    FS_UNROLL
    for (int i = 0; i < kStripes; ++i) picks[i] = scan.item(i) < num_given ? count(scan.item(i)) : 0;
    scan.place(picks, before);
    FS_UNROLL
    for (int i = 0; i < kStripes; ++i) {
      if (scan.item(i) < num_given) hop.indptr[scan.item(i) + 1] = before[i] + picks[i];
    }
    if (!scan.is_last() || threadIdx.x != 0) continue;
    hop.indptr[0] = 0;
    hop.state[num_edges_word(hop.number)] = static_cast<uint64_t>(scan.total());
  }
}

// Checks row r, and counts its picks. kRecorded: they are in the persistent kernel's records.
template <bool kRecorded, typename Id>
FS_DEVICE int64_t count_picks(const DeviceHop<Id>& hop, int64_t r, bool are_seeds) {
  const bool exists = check_row(hop, r, are_seeds);
  RowEdges edges = row_edges(hop.graph, hop.rows[r]);
  if (kRecorded && exists && edges.degree > 0) {  // a row without neighbours has no record
    const uint64_t slot = hop.table.insert(hop.rows[r]);
    if (slot != kNoSlot) edges.begin = hop.runs[slot];
  }
  hop.edges[r] = edges;
  if (!exists) return 0;
  return num_picks(hop.num_positive == nullptr ? edges.degree : hop.positive(r), hop.fanout, hop.replace);
}

template <bool kRecorded, typename Id>
FS_DEVICE void place_all_rows(const DeviceHop<Id>& hop, bool are_seeds) {
  place_picks(hop, [&](int64_t r) { return count_picks<kRecorded>(hop, r, are_seeds); });
}

template <bool kRecorded, typename Id>
FS_KERNEL void place_rows(DeviceHop<Id> hop, bool are_seeds) {
  place_all_rows<kRecorded>(hop, are_seeds);
}

// A slot as it is in `indices` until it is relabelled: with the mark kNotFirst where the edge is known not to be the
// first that brings its node, so that assign_new does not look at the node's value. All ones: no slot; the slot that
// the mark would turn into that never has it.
template <typename Id>
struct SlotWord {
  using Word = std::make_unsigned_t<Id>;
  static constexpr Word kNone = static_cast<Word>(~Word{0}), kNotFirst = Word{1} << (8 * sizeof(Id) - 1);

  FS_DEVICE static Id of(uint64_t slot, bool may_be_first) {
    const Word word = static_cast<Word>(slot), marked = word | kNotFirst;
    return static_cast<Id>(may_be_first || marked == kNone ? word : marked);
  }
  FS_DEVICE static bool may_be_first(Id word) { return (static_cast<Word>(word) & kNotFirst) == 0; }
  FS_DEVICE static uint64_t slot(Id word) {
    return static_cast<Word>(word) == kNone ? kNoSlot : static_cast<Word>(word) & ~kNotFirst;
  }
};

// Other blocks write the values of nodes that are not this edge's first meanwhile: a local id is less than any edge.
template <typename Id>
FS_DEVICE void number_new_nodes(const DeviceHop<Id>& hop) {
  const int64_t num_rows = hop.num_rows(), num_edges = hop.num_edges();
  const uint64_t stamp = hop.stamp();
  TileScan scan(hop.scans.edges, num_edges);
  while (scan.next()) {
    Id words[kStripes];
    int32_t is_first[kStripes];
    int64_t before[kStripes];
    FS_UNROLL
    for (int i = 0; i < kStripes; ++i) {
      words[i] = scan.item(i) < num_edges ? hop.indices[scan.item(i)] : Id{-1};
    }
    FS_UNROLL
    for (int i = 0; i < kStripes; ++i) {
      const uint64_t edge = stamp + kFirstEdge + static_cast<uint64_t>(scan.item(i));
      const bool may_be_first = SlotWord<Id>::may_be_first(words[i]);
      is_first[i] = may_be_first && load_now(hop.table.values + SlotWord<Id>::slot(words[i])) == edge ? 1 : 0;
    }
    scan.place(is_first, before);
    FS_UNROLL
    for (int i = 0; i < kStripes; ++i) {
      if (is_first[i] == 0) continue;
      const int64_t local = num_rows + before[i];
      const uint64_t slot = SlotWord<Id>::slot(words[i]);
      store_now(hop.table.values + slot, stamp + static_cast<uint64_t>(local));
      hop.nodes[local] = hop.table.id_at(slot);
    }
    if (scan.is_last() && threadIdx.x == 0) {
      hop.state[num_src_word(hop.number)] = static_cast<uint64_t>(num_rows + scan.total());
    }
  }
}

template <typename Id>
FS_KERNEL void assign_new(DeviceHop<Id> hop) {
  number_new_nodes(hop);
}

template <typename Id>
FS_DEVICE void relabel_edges(const DeviceHop<Id>& hop) {
  const int64_t num_edges = hop.num_edges();
  const uint64_t stamp = hop.stamp();
  for (int64_t e = thread_number(); e < num_edges; e += num_threads()) {
    const uint64_t slot = SlotWord<Id>::slot(hop.indices[e]);
    hop.indices[e] = slot == kNoSlot ? Id{-1} : static_cast<Id>(hop.table.values[slot] - stamp);
  }
}

template <typename Id>
FS_KERNEL void relabel(DeviceHop<Id> hop) {
  relabel_edges(hop);
}

// relabel of one hop and place_rows of the next, which do not depend on each other.
template <bool kRecorded, typename Id>
FS_DEVICE void relabel_edges_and_place(const DeviceHop<Id>& hop, const DeviceHop<Id>& next) {
  place_all_rows<kRecorded>(next, false);
  relabel_edges(hop);
}

template <bool kRecorded, typename Id>
FS_KERNEL void relabel_and_place(DeviceHop<Id> hop, DeviceHop<Id> next) {
  relabel_edges_and_place<kRecorded>(hop, next);
}

}  // namespace fs

#endif  // FS_CUDA_HOP_KERNELS_CUH_

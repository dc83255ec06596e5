// How large a mini-batch can become, and where its scratch lies: host arithmetic, so that nothing has to be read back
// between hops.
#ifndef FS_CUDA_BATCH_LAYOUT_CUH_
#define FS_CUDA_BATCH_LAYOUT_CUH_

#include <stdint.h>

#include <algorithm>

#if defined(FS_EMULATED) && defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "csc_view.h"
#include "id_table.cuh"
#include "pick.h"
#include "tile_scan.cuh"
#include "weighted_pick.h"

namespace fs {

// Words of the batch's state, the first thing in the workspace: see FsCudaBatch.
constexpr uint64_t kNothing = ~0ull;  // of a word that holds the first bad position
constexpr int64_t kBadSeed = FS_CUDA_BAD_SEED_WORD, kRepeatedSeed = FS_CUDA_REPEATED_SEED_WORD, kNumSeeds = 2,
                  kStamp = 3, kTableFull = FS_CUDA_TABLE_FULL_WORD;
// What clear_batch has read of FsCudaReplay.
constexpr int64_t kReplayStep = FS_CUDA_REPLAY_WORD, kReplayIds = kReplayStep + 1, kMovedBy = kReplayStep + 2;
constexpr int64_t kReplayWords = sizeof(FsCudaReplay) / sizeof(uint64_t);
static_assert(FS_CUDA_FIRST_HOP_WORD == FS_CUDA_REPLAY_WORD + kReplayWords, "one behind the other");
constexpr int64_t kFirstHopWord = FS_CUDA_FIRST_HOP_WORD, kHopWords = FS_CUDA_HOP_WORDS;
FS_HD int64_t num_edges_word(int hop) { return kFirstHopWord + kHopWords * hop; }
FS_HD int64_t bad_row_word(int hop) { return num_edges_word(hop) + 1; }
FS_HD int64_t bad_edge_word(int hop) { return num_edges_word(hop) + 2; }
FS_HD int64_t bad_scan_word(int hop) { return num_edges_word(hop) + 3; }
FS_HD int64_t num_src_word(int hop) { return num_edges_word(hop) + kHopWords - 1; }
// Rows of a hop: the seeds, or the sources of the hop before.
FS_HD int64_t num_rows_word(int hop) { return hop == 0 ? kNumSeeds : num_src_word(hop - 1); }
FS_HD int64_t state_words(int num_hops) { return kFirstHopWord + kHopWords * num_hops; }

// a * b, or `most` where that is less; a, b, most >= 0.
inline int64_t bounded_product(int64_t a, int64_t b, int64_t most) {
  return b != 0 && a > most / b ? most : std::min(a * b, most);
}

struct HopBound {
  int64_t rows, edges;
};

// Bounds of hop `hop` of at most `rows` rows, which take no edge twice and at most `most_edges` of them.
inline HopBound hop_bound(const FsSampleSpec& spec, int hop, int64_t max_degree, int64_t rows, int64_t most_edges) {
  const int64_t fanout = spec.fanouts[hop];
  if (spec.replace != 0) return {rows, bounded_product(rows, fanout, INT64_MAX)};
  const bool by_degree = fanout == kTakeAll || spec.method == FS_LABOR;  // whose fanout is a mean
  return {rows, bounded_product(rows, by_degree ? max_degree : std::min(fanout, max_degree), most_edges)};
}

#if defined(FS_EMULATED) && defined(__SANITIZE_ADDRESS__)
constexpr int64_t kGuardBytes = 256;  // after a guarded piece; touching them is an error
inline void guard(const char* begin, const char* end) { __asan_poison_memory_region(begin, end - begin); }
inline void allow(const char* begin, const char* end) { __asan_unpoison_memory_region(begin, end - begin); }
#else
constexpr int64_t kGuardBytes = 0;
inline void guard(const char*, const char*) {}
inline void allow(const char*, const char*) {}
#endif

// Hands out pieces of the workspace, one after the other. With a null start it only counts.
class Carver {
 public:
  explicit Carver(void* start) : start_(static_cast<char*>(start)) {}

  template <typename T>
  T* take(int64_t count) {
    char* place = start_ == nullptr ? nullptr : start_ + bytes_;
    const int64_t size = count * static_cast<int64_t>(sizeof(T));
    const int64_t end = bytes_ + (size + 255) / 256 * 256 + (guards_ ? kGuardBytes : 0);
    if (place != nullptr) allow(place, start_ + end);
    if (place != nullptr && guards_) guard(place + size, start_ + end);
    bytes_ = end;
    return reinterpret_cast<T*>(place);
  }
  // From here on every piece has a guard after it, where there are guards.
  void add_guards() { guards_ = true; }
  int64_t bytes() const { return bytes_; }

 private:
  char* start_;
  int64_t bytes_ = 0;
  bool guards_ = false;
};

// Words of a hop's two scans (tile_scan.cuh).
struct HopScans {
  uint64_t* rows;   // of the picks of its rows
  uint64_t* edges;  // of the edges that bring a node
};

// Values of the id table. A table with a slot for every node of the graph is not emptied between batches: each batch
// has a stamp, less than that of the batch before, above what its values say. So what an earlier batch has left is more
// than any value of this one and loses every atomic minimum. When the stamps have come to 0, the table is emptied once.
// A hashed table is emptied for every batch, and its only stamp is the first.
constexpr int kStampShift = 44;
constexpr uint64_t kMostStamp = (1ull << (64 - kStampShift)) - 2;  // kNoValue is above it

// Scratch of one batch. What comes before `edges` is set by clear_batch.
template <typename Id>
struct BatchScratch {
  uint64_t* state;       // [sizes.state_words]
  uint64_t* stage_keys;  // [num_hops] k0 | k1 << 32
  DeviceIdTable<Id> table;
  uint64_t* last_stamp;  // of a table that stays, null of another
  HopScans scans[FS_CUDA_MAX_HOPS];
  uint64_t* tasks;  // [max_tasks] of the persistent kernel's queue
  int64_t cleared_bytes;
  RowEdges* edges;     // [most rows of a hop]
  int64_t* runs;       // [num_hops, slots] of the persistent kernel, which sets it; else null
  int64_t* positions;  // [most edges of a hop that is drawn by warps, or by weight]
  // Of weighted draws without replacement:
  int64_t* rest_rows;  // [most rows of a hop] rows that alias draws gave up on
  uint64_t* num_rest;  // [1]
  double* trees;       // [num_trees, tree_size]
  int64_t tree_size;
  int num_trees;
  int64_t bytes;
};

constexpr int64_t kTreeBytes = 64 << 20;  // of all sum trees, unless one alone needs more
constexpr int kMostTrees = 256;

template <typename Id>
BatchScratch<Id> carve_scratch(const FsGraph& graph, const FsSampleSpec& spec, const FsCudaSampleSizes& sizes,
                               void* workspace, uint64_t* kept_table) {
  BatchScratch<Id> scratch = {};
  Carver carver(workspace);
  int64_t rows = 0, positions = 0;
  for (int hop = 0; hop < spec.num_hops; ++hop) {
    rows = std::max(rows, sizes.max_rows[hop]);
    if (spec.fanouts[hop] > kWarp || spec.method == FS_WEIGHTED) positions = std::max(positions, sizes.max_edges[hop]);
  }
  const IdTableSize table = id_table_size(sizes.table_nodes, graph.num_rows, sizeof(Id));
  scratch.state = carver.take<uint64_t>(sizes.state_words);
  scratch.stage_keys = carver.take<uint64_t>(spec.num_hops);
  scratch.table.slots = table.slots;
  scratch.table.bits = table.bits;
  if (sizes.table_nodes < sizes.max_nodes) scratch.table.most_probes = kMostProbes;
  if (table.is_direct) {
    scratch.last_stamp = kept_table;
    scratch.table.values = kept_table == nullptr ? nullptr : kept_table + 1;
  } else {
    scratch.table.values = carver.take<uint64_t>(table.slots);
    scratch.table.keys = carver.take<Id>(table.slots);
  }
  for (int hop = 0; hop < spec.num_hops; ++hop) {
    scratch.scans[hop] = {carver.take<uint64_t>(scan_words(sizes.max_rows[hop])),
                          carver.take<uint64_t>(scan_words(sizes.max_edges[hop]))};
  }
  scratch.tasks = carver.take<uint64_t>(sizes.max_tasks);
  scratch.cleared_bytes = carver.bytes();
  carver.add_guards();
  scratch.edges = carver.take<RowEdges>(rows);
  scratch.positions = carver.take<int64_t>(positions);
  if (spec.method == FS_WEIGHTED && spec.replace == 0) {
    scratch.tree_size = SumTree::size(sizes.max_degree);
    const int64_t fit = kTreeBytes / (scratch.tree_size * static_cast<int64_t>(sizeof(double)));
    scratch.num_trees = static_cast<int>(std::clamp<int64_t>(fit, 1, kMostTrees));
    scratch.rest_rows = carver.take<int64_t>(rows);
    scratch.num_rest = carver.take<uint64_t>(1);
    scratch.trees = carver.take<double>(scratch.num_trees * scratch.tree_size);
  }
  scratch.bytes = carver.bytes();
  return scratch;
}

}  // namespace fs

#endif  // FS_CUDA_BATCH_LAYOUT_CUH_

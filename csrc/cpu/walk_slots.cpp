// walk_slots: alias tables with ids in the place of positions (core/walk_slot.h), and sums of the rows' weights.
#include <mutex>

#include "alias_rows.h"
#include "fastsample_transit.h"
#include "walk_slot.h"

namespace fs {
namespace {

template <typename Weight>
double largest_of(const AliasRow<Weight>& row) {
  Weight largest = 0;
  for (int64_t i = 0; i < row.degree; ++i) largest = row.weights[i] > largest ? row.weights[i] : largest;
  return static_cast<double>(largest);
}

template <typename Id>
class SlotWriter;

static_assert(sizeof(uint64_t) == FS_SLOT_WORD_BYTES, "words are of 64 bits");

template <>
class SlotWriter<int32_t> {
 public:
  SlotWriter(void* slots, const FsEdgeWeights& edges)
      : words_(static_cast<uint64_t*>(slots)),
        thresholds_(reinterpret_cast<uint32_t*>(words_ + edges.num_edges)),
        bits_(edges.num_rows) {}

  void write(int64_t edge, uint32_t threshold, int64_t own, int64_t other) const {
    words_[edge] = bits_.word(threshold, own, other);
    thresholds_[edge] = threshold;
  }

 private:
  uint64_t* words_;
  uint32_t* thresholds_;
  WalkSlotBits bits_;
};

template <>
class SlotWriter<int64_t> {
 public:
  SlotWriter(void* slots, const FsEdgeWeights&) : slots_(static_cast<LongWalkSlot*>(slots)) {}

  void write(int64_t edge, uint32_t threshold, int64_t own, int64_t other) const {
    slots_[edge] = {threshold, 0, own, other};
  }

 private:
  LongWalkSlot* slots_;
};

// The first edge whose source is no row; INT64_MAX: none.
struct FirstBadEdge {
  std::mutex mutex;
  int64_t edge = INT64_MAX;

  void take(int64_t found) {
    const std::lock_guard<std::mutex> hold(mutex);
    edge = std::min(edge, found);
  }
};

template <typename Id>
struct SlotSink {
  const FsEdgeWeights& edges;
  const Id* indices;  // [num_edges]
  void* slots;        // as of fs_walk_slots, or null
  double* totals;     // [num_rows] or null
  double* maxima;     // [num_rows] or null
  FirstBadEdge* bad;

  bool needs_scratch() const { return slots != nullptr; }
  AliasEntry* place(int64_t, AliasEntry* scratch) const { return scratch; }

  template <typename Weight>
  void done(const AliasRow<Weight>& row) const {
    if (totals != nullptr) totals[row.row] = row.sum.total;
    if (maxima != nullptr) maxima[row.row] = largest_of(row);
    if (slots == nullptr) return;
    const SlotWriter<Id> out(slots, edges);
    const Id* ids = indices + row.begin;
    for (int64_t i = 0; i < row.degree; ++i) {
      if (ids[i] < 0 || ids[i] >= edges.num_rows) return bad->take(row.begin + i);
    }
    const bool has_ids = row.sum.num_positive > 0;
    for (int64_t i = 0; i < row.degree; ++i) {
      const AliasEntry& entry = row.entries[i];
      out.write(row.begin + i, entry.threshold, has_ids ? ids[i] : Id{-1}, has_ids ? ids[entry.alias] : Id{-1});
    }
  }
};

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_walk_slots(const FsEdgeWeights* edges, const void* indices, int32_t id_type, void* out_slots,
                                  double* out_totals, double* out_maxima) {
  return fs::guarded("walk_slots", [&] {
    return fs::with_id_type("walk_slots", id_type, [&](auto id) {
      using Id = decltype(id);
      const Id* sources = static_cast<const Id*>(indices);
      fs::FirstBadEdge bad;
      const fs::SlotSink<Id> sink = {*edges, sources, out_slots, out_totals, out_maxima, &bad};
      const FsStatus status = fs::alias_rows("walk_slots", *edges, sink);
      if (status != FS_OK || bad.edge == INT64_MAX) return status;
      return fs::refuse_source("walk_slots", sources[bad.edge], edges->num_rows - 1);
    });
  });
}

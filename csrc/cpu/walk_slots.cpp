// walk_slots: alias tables with ids in the place of positions (core/walk_slot.h), and sums of the rows' weights.
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
struct SlotSink {
  const Id* indices;    // [num_edges]
  WalkSlot<Id>* slots;  // [num_edges] or null
  double* totals;       // [num_rows] or null
  double* maxima;       // [num_rows] or null

  bool needs_scratch() const { return slots != nullptr; }
  AliasEntry* place(int64_t, AliasEntry* scratch) const { return scratch; }

  template <typename Weight>
  void done(const AliasRow<Weight>& row) const {
    if (totals != nullptr) totals[row.row] = row.sum.total;
    if (maxima != nullptr) maxima[row.row] = largest_of(row);
    if (slots == nullptr) return;
    const Id* ids = indices + row.begin;
    WalkSlot<Id>* out = slots + row.begin;
    for (int64_t i = 0; i < row.degree; ++i) {
      out[i] = {};
      out[i].threshold = row.entries[i].threshold;
      out[i].own = row.sum.num_positive > 0 ? ids[i] : Id{-1};
      out[i].other = row.sum.num_positive > 0 ? ids[row.entries[i].alias] : Id{-1};
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
      const fs::SlotSink<Id> sink = {static_cast<const Id*>(indices), static_cast<fs::WalkSlot<Id>*>(out_slots),
                                     out_totals, out_maxima};
      return fs::alias_rows("walk_slots", *edges, sink);
    });
  });
}

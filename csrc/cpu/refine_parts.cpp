// refine_parts: nodes move to the part that most of their links go to, within what parts may hold.
//
// Sums of links are kept for all parts and emptied by the list of those that a row has, so that a node costs its row
// and the parts in it, not all parts.
#include <algorithm>
#include <vector>

#include "neighbour_rows.h"

namespace fs {
namespace {

template <typename Id>
class Refiner {
 public:
  Refiner(const FsNeighbours& graph, const FsRefinement& spec, int32_t* parts, int64_t* loads)
      : rows_("refine_parts", graph, parts), spec_(spec), parts_(parts), loads_(loads) {}

  FsStatus run(int64_t first_turn, int64_t last_turn, int64_t* out_moved) {
    FsStatus status = check_parts("refine_parts", spec_.num_parts);
    if (status == FS_OK) status = check_limits();
    if (status == FS_OK) status = rows_.check_turns(first_turn, last_turn);
    if (status != FS_OK) return status;
    links_.assign(static_cast<size_t>(spec_.num_parts), 0);
    status = rows_.each(first_turn, last_turn, [&](int64_t node) { return refine(node); });
    *out_moved = moved_;
    return status;
  }

 private:
  FsStatus check_limits() const {
    const int32_t least = spec_.node_loads == nullptr ? 2 : 1;
    if (spec_.num_limits < least || spec_.num_limits > FS_STREAM_LIMITS) {
      return fail(FS_INVALID_ARGUMENT, "refine_parts: %d limits; expected %d to %d", spec_.num_limits, least,
                  FS_STREAM_LIMITS);
    }
    if (!(spec_.shed >= 0 && spec_.shed <= 1)) {
      return fail(FS_INVALID_ARGUMENT, "refine_parts: shed %g; expected 0 to 1", spec_.shed);
    }
    for (int32_t limit = 0; limit < spec_.num_limits; ++limit) {
      if (spec_.capacities[limit] < 1) return refuse_capacity("refine_parts", limit, spec_.capacities[limit]);
    }
    return FS_OK;
  }

  FsStatus refine(int64_t node) {
    if (rows_.degree(node) == 0) return FS_OK;
    const int32_t own = parts_[node];
    if (own < 0 || own >= spec_.num_parts) return rows_.refuse_label(node, "part", spec_.num_parts - 1);
    int64_t outside = -1;
    found_.clear();
    const FsStatus status = rows_.links(node, [&](int64_t neighbour, int64_t weight) {
      const int32_t part = parts_[neighbour];
      if (part < 0 || part >= spec_.num_parts) {
        outside = neighbour;
        return;
      }
      if (links_[at(part)] == 0) found_.push_back(part);  // again where the weights so far are 0
      links_[at(part)] += weight;
    });
    const int32_t best = status == FS_OK && outside < 0 ? best_part(node, own) : own;
    for (int32_t part : found_) links_[at(part)] = 0;
    if (status != FS_OK) return status;
    if (outside >= 0) return rows_.refuse_label(outside, "part", spec_.num_parts - 1);
    if (best != own) move(node, own, best);
    return FS_OK;
  }

  int32_t best_part(int64_t node, int32_t own) {
    for (int32_t limit = 0; limit < spec_.num_limits; ++limit) counts_[limit] = adds(node, limit);
    if (is_kept(own)) return own;
    int32_t best = own;
    double fullest = fill(own, false);
    double heaviest = static_cast<double>(links_[at(own)]) * (fullest > 1 ? 1 - spec_.shed : 1);
    for (int32_t part : found_) {
      const double links = static_cast<double>(links_[at(part)]);
      if (part == own || links < heaviest) continue;
      const double full = fill(part, true);
      if (full > 1 || (links == heaviest && full >= fullest)) continue;
      best = part;
      heaviest = links;
      fullest = full;
    }
    return best;
  }

  // Share of the fullest limit that the node counts against.
  double fill(int32_t part, bool with_node) const {
    const int64_t* held = loads_ + int64_t{part} * spec_.num_limits;
    double full = 0;
    for (int32_t limit = 0; limit < spec_.num_limits; ++limit) {
      if (counts_[limit] == 0) continue;
      const int64_t load = held[limit] + (with_node ? counts_[limit] : 0);
      full = std::max(full, static_cast<double>(load) / static_cast<double>(spec_.capacities[limit]));
    }
    return full;
  }

  bool is_kept(int32_t own) const {
    for (int32_t limit = 0; limit < spec_.num_limits; ++limit) {
      const int64_t held = loads_[int64_t{own} * spec_.num_limits + limit];
      if (counts_[limit] > 0 && held - counts_[limit] < spec_.floors[limit]) return true;
    }
    return false;
  }

  void move(int64_t node, int32_t own, int32_t part) {
    for (int32_t limit = 0; limit < spec_.num_limits; ++limit) {
      loads_[int64_t{own} * spec_.num_limits + limit] -= counts_[limit];
      loads_[int64_t{part} * spec_.num_limits + limit] += counts_[limit];
    }
    parts_[node] = part;
    ++moved_;
  }

  int64_t adds(int64_t node, int32_t limit) const {
    if (spec_.node_loads != nullptr) return spec_.node_loads[node * spec_.num_limits + limit];
    if (limit == 0) return 1;
    if (limit == 1) return spec_.in_offsets[node + 1] - spec_.in_offsets[node];
    return spec_.kinds[node] >> (limit - 2) & 1;
  }

  static size_t at(int32_t part) { return static_cast<size_t>(part); }

  NeighbourRows<Id> rows_;
  const FsRefinement& spec_;
  int32_t* parts_;
  int64_t* loads_;
  std::vector<int64_t> links_;             // [num_parts] all 0 between rows
  std::vector<int32_t> found_;             // parts that the row has links to
  int64_t counts_[FS_STREAM_LIMITS] = {};  // of the node
  int64_t moved_ = 0;
};

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_refine_parts(const FsNeighbours* graph, const FsRefinement* spec, int64_t first_turn,
                                    int64_t last_turn, int32_t* parts, int64_t* loads, int64_t* out_moved) {
  return fs::guarded("refine_parts", [&] {
    return fs::with_id_type("refine_parts", graph->id_type, [&](auto zero) {
      return fs::Refiner<decltype(zero)>(*graph, *spec, parts, loads).run(first_turn, last_turn, out_moved);
    });
  });
}

// refine_parts: nodes move to the part that most of their links go to, within what parts may hold.
//
// Sums of links are kept for all parts and emptied by the list of those that a row has, so that a node costs its row
// and the parts in it, not all parts. Of a row that is read ahead (turns.h) the sums are kept: what parts hold changes
// with every turn.
#include <algorithm>
#include <vector>

#include "turns.h"

namespace fs {
namespace {

struct PartSum {
  int32_t part;
  int64_t links;
};

// Sums of a row's links by part.
class PartSums {
 public:
  void begin(int32_t num_parts) { places_.assign(static_cast<size_t>(num_parts), -1); }

  void add(int32_t part, int64_t weight) {
    int32_t& place = places_[static_cast<size_t>(part)];
    if (place < 0) {
      place = static_cast<int32_t>(found_.size());
      found_.push_back({part, 0});
    }
    found_[static_cast<size_t>(place)].links += weight;
  }

  // In order of first appearance.
  const std::vector<PartSum>& found() const { return found_; }

  void clear() {
    for (const PartSum& sum : found_) places_[static_cast<size_t>(sum.part)] = -1;
    found_.clear();
  }

 private:
  std::vector<int32_t> places_;  // [num_parts] in found_; -1: not found
  std::vector<PartSum> found_;
};

template <typename Id>
class Refiner {
 public:
  Refiner(const FsNeighbours& graph, const FsRefinement& spec, int32_t* parts, int64_t* loads)
      : rows_("refine_parts", graph, parts), spec_(spec), parts_(parts), loads_(loads) {}

  FsStatus run(int64_t first_turn, int64_t last_turn, int32_t num_threads, int64_t* out_moved) {
    FsStatus status = check_parts("refine_parts", spec_.num_parts);
    if (status == FS_OK) status = check_limits();
    if (status == FS_OK) status = check_threads("refine_parts", num_threads);
    if (status != FS_OK) return status;
    sums_.begin(spec_.num_parts);
    status = Turns<Id, Refiner>(rows_, *this, num_threads).run(first_turn, last_turn);
    *out_moved = moved_;
    return status;
  }

  // Of each row its sums, nothing where all links are in the node's own part.
  class Reader {
   public:
    explicit Reader(const Refiner& law) : law_(law) { sums_.begin(law.spec_.num_parts); }

    bool read(const NeighbourRow& row, NearTurns& near) {
      const FsStatus status = law_.sum_links(row, sums_, [&](int64_t neighbour) { near.see(neighbour); });
      const std::vector<PartSum>& found = sums_.found();
      const bool stays = found.empty() || (found.size() == 1 && found[0].part == law_.parts_[row.node]);
      if (status == FS_OK && !stays) read_.insert(read_.end(), found.begin(), found.end());
      sums_.clear();
      return status == FS_OK;
    }

    size_t size() const { return read_.size(); }
    void clear() { read_.clear(); }
    static void soon(size_t) {}

   private:
    friend class Refiner;
    const Refiner& law_;
    PartSums sums_;
    std::vector<PartSum> read_;
  };

  FsStatus turn(const NeighbourRow& row) {
    const FsStatus status = sum_links(row, sums_, [](int64_t) {});
    if (status == FS_OK) move(row.node, best_part(row.node, sums_.found().data(), sums_.found().size()));
    sums_.clear();
    return status;
  }

  FsStatus turn(const NeighbourRow& row, const Reader& reader, size_t from, size_t to) {
    if (from < to) move(row.node, best_part(row.node, &reader.read_[from], to - from));
    return FS_OK;
  }

  int64_t moved() const { return moved_; }

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

  // Sums the links of a row by part into `sums`, and calls see(neighbour) for all neighbours.
  template <typename See>
  FsStatus sum_links(const NeighbourRow& row, PartSums& sums, See&& see) const {
    if (row.degree() == 0) return FS_OK;
    if (parts_[row.node] < 0 || parts_[row.node] >= spec_.num_parts) return refuse(row.node);
    int64_t outside = -1;
    const FsStatus status = rows_.links(row, [&](int64_t neighbour, int64_t weight) {
      see(neighbour);
      const int32_t part = parts_[neighbour];
      if (part < 0 || part >= spec_.num_parts) {
        outside = neighbour;
        return;
      }
      sums.add(part, weight);
    });
    return status != FS_OK || outside < 0 ? status : refuse(outside);
  }

  FsStatus refuse(int64_t node) const { return rows_.refuse_label(node, "part", spec_.num_parts - 1); }

  int32_t best_part(int64_t node, const PartSum* sums, size_t count) {
    const int32_t own = parts_[node];
    for (int32_t limit = 0; limit < spec_.num_limits; ++limit) counts_[limit] = adds(node, limit);
    if (count == 0 || is_kept(own)) return own;
    int32_t best = own;
    double fullest = fill(own, false), heaviest = 0;
    for (size_t i = 0; i < count; ++i) {
      if (sums[i].part == own) heaviest = static_cast<double>(sums[i].links) * (fullest > 1 ? 1 - spec_.shed : 1);
    }
    for (size_t i = 0; i < count; ++i) {
      const double links = static_cast<double>(sums[i].links);
      if (sums[i].part == own || links < heaviest) continue;
      const double full = fill(sums[i].part, true);
      if (full > 1 || (links == heaviest && full >= fullest)) continue;
      best = sums[i].part;
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

  void move(int64_t node, int32_t part) {
    const int32_t own = parts_[node];
    if (part == own) return;
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

  NeighbourRows<Id> rows_;
  const FsRefinement& spec_;
  int32_t* parts_;
  int64_t* loads_;
  PartSums sums_;
  int64_t counts_[FS_STREAM_LIMITS] = {};  // of the node
  int64_t moved_ = 0;
};

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_refine_parts(const FsNeighbours* graph, const FsRefinement* spec, int64_t first_turn,
                                    int64_t last_turn, int32_t num_threads, int32_t* parts, int64_t* loads,
                                    int64_t* out_moved) {
  return fs::guarded("refine_parts", [&] {
    return fs::with_id_type("refine_parts", graph->id_type, [&](auto zero) {
      return fs::Refiner<decltype(zero)>(*graph, *spec, parts, loads)
          .run(first_turn, last_turn, num_threads, out_moved);
    });
  });
}

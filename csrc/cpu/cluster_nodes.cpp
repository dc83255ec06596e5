// cluster_nodes: nodes of a graph take the labels of their neighbours, as long as what a label's nodes weigh together
// stays within a bound.
//
// A row's labels are summed in a hash table that is as large as the row needs, so that it stays in the first cache for
// most rows; it is emptied by the list of the slots that were used.
//
// Raghavan, Albert and Kumara, Phys. Rev. E 76, 2007 (label propagation); Meyerhenke, Sanders and Schulz, SEA 2014
// (with a bound, for partitioning); FS_JOIN_ALIKE: two-hop clustering (Gottesbueren et al., "Deep multilevel graph
// partitioning", ESA 2021).
#include <algorithm>
#include <vector>

#include "mix64.h"
#include "neighbour_rows.h"

namespace fs {
namespace {

constexpr int64_t kMostLabels = int64_t{1} << 21;  // of one row
constexpr int32_t kMostBound = int32_t{1} << 30;

// Sums of weights by label.
class LabelSums {
 public:
  struct Sum {
    int32_t label;
    int64_t weight;
  };

  // Room for the labels of a row.
  void begin(int64_t degree) {
    uint64_t slots = 16;
    while (slots < 2 * static_cast<uint64_t>(std::min(degree, kMostLabels))) slots *= 2;
    if (slots > slots_.size()) slots_.resize(slots, -1);
    mask_ = slots - 1;
  }

  void add(int32_t label, int64_t weight) {
    uint64_t slot = mix64(static_cast<uint64_t>(label)) & mask_;
    while (slots_[slot] >= 0) {
      Sum& sum = sums_[static_cast<size_t>(slots_[slot])];
      if (sum.label == label) {
        sum.weight += weight;
        return;
      }
      slot = (slot + 1) & mask_;
    }
    if (static_cast<int64_t>(sums_.size()) == kMostLabels) return;
    slots_[slot] = static_cast<int32_t>(sums_.size());
    sums_.push_back({label, weight});
    used_.push_back(static_cast<uint32_t>(slot));
  }

  // In order of first appearance.
  const std::vector<Sum>& sums() const { return sums_; }

  void clear() {
    for (uint32_t slot : used_) slots_[slot] = -1;
    used_.clear();
    sums_.clear();
  }

 private:
  std::vector<int32_t> slots_;  // position in sums_; -1: empty
  std::vector<uint32_t> used_;
  std::vector<Sum> sums_;
  uint64_t mask_ = 0;
};

template <typename Id>
class Clusters {
 public:
  Clusters(const FsNeighbours& graph, const FsClustering& spec, int32_t* labels, int32_t* loads, int32_t* open)
      : rows_("cluster_nodes", graph, labels),
        num_nodes_(graph.num_nodes),
        spec_(spec),
        labels_(labels),
        loads_(loads),
        open_(open) {}

  FsStatus run(int64_t first_turn, int64_t last_turn, int64_t* out_moved) {
    if (spec_.rule != FS_JOIN_HEAVIEST && spec_.rule != FS_JOIN_ALIKE) {
      return fail(FS_INVALID_ARGUMENT, "cluster_nodes: rule %d; expected heaviest (0) or alike (1)", spec_.rule);
    }
    if (spec_.bound < 1 || spec_.bound > kMostBound) {
      return fail(FS_INVALID_ARGUMENT, "cluster_nodes: bound %d; expected 1 to 2^30", spec_.bound);
    }
    FsStatus status = rows_.check_turns(first_turn, last_turn);
    if (status != FS_OK) return status;
    status = rows_.each(first_turn, last_turn,
                        [&](int64_t node) { return spec_.rule == FS_JOIN_HEAVIEST ? join(node) : join_alike(node); });
    *out_moved = moved_;
    return status;
  }

 private:
  FsStatus join(int64_t node) {
    if (rows_.degree(node) == 0) return FS_OK;
    const FsStatus status = sum_labels(node);
    if (status != FS_OK) return status;
    const int32_t own = labels_[node];
    int32_t best = own;
    int64_t heaviest = -1;
    uint64_t largest = 0;
    for (const LabelSums::Sum& sum : sums_.sums()) {
      if (sum.weight < heaviest || (sum.label != own && !has_room(sum.label, node))) continue;
      const uint64_t pair = static_cast<uint64_t>(node) << 32 | static_cast<uint32_t>(sum.label);
      const uint64_t drawn = mix64(spec_.rng_seed + pair);
      if (sum.weight > heaviest || drawn > largest) {
        best = sum.label;
        heaviest = sum.weight;
        largest = drawn;
      }
    }
    sums_.clear();
    move(node, best);
    return FS_OK;
  }

  FsStatus join_alike(int64_t node) {
    const int32_t own = labels_[node];
    if (own < 0 || own >= num_nodes_) return rows_.refuse_label(node, "label", num_nodes_ - 1);
    if (loads_[own] != spec_.node_weights[node] || spec_.node_weights[node] > spec_.bound / 2) return FS_OK;
    const FsStatus status = sum_labels(node);
    if (status != FS_OK) return status;
    int32_t found = -1;
    int64_t heaviest = -1;
    for (const LabelSums::Sum& sum : sums_.sums()) {
      if (sum.weight > heaviest || (sum.weight == heaviest && sum.label < found)) {
        found = sum.label;
        heaviest = sum.weight;
      }
    }
    sums_.clear();
    if (found < 0) return FS_OK;
    const int32_t before = open_[found];
    if (before >= 0 && before != own && has_room(before, node)) {
      move(node, before);
    } else {
      open_[found] = own;
    }
    return FS_OK;
  }

  FsStatus sum_labels(int64_t node) {
    sums_.begin(rows_.degree(node));
    int64_t outside = -1;
    const FsStatus status = rows_.links(node, [&](int64_t neighbour, int64_t weight) {
      const int32_t label = labels_[neighbour];
      if (label < 0 || label >= num_nodes_) {
        outside = neighbour;
        return;
      }
      if (spec_.within == nullptr || spec_.within[neighbour] == spec_.within[node]) sums_.add(label, weight);
    });
    if (status == FS_OK && labels_[node] >= 0 && labels_[node] < num_nodes_ && outside < 0) return FS_OK;
    sums_.clear();
    return status != FS_OK ? status : rows_.refuse_label(outside < 0 ? node : outside, "label", num_nodes_ - 1);
  }

  bool has_room(int32_t label, int64_t node) const {
    return int64_t{loads_[label]} + spec_.node_weights[node] <= spec_.bound;
  }

  void move(int64_t node, int32_t label) {
    if (label == labels_[node]) return;
    loads_[labels_[node]] -= spec_.node_weights[node];
    loads_[label] += spec_.node_weights[node];
    labels_[node] = label;
    ++moved_;
  }

  NeighbourRows<Id> rows_;
  LabelSums sums_;
  const int64_t num_nodes_;
  const FsClustering& spec_;
  int32_t* labels_;
  int32_t* loads_;
  int32_t* open_;
  int64_t moved_ = 0;
};

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_cluster_nodes(const FsNeighbours* graph, const FsClustering* spec, int64_t first_turn,
                                     int64_t last_turn, int32_t* labels, int32_t* loads, int32_t* open,
                                     int64_t* out_moved) {
  return fs::guarded("cluster_nodes", [&] {
    return fs::with_id_type("cluster_nodes", graph->id_type, [&](auto zero) {
      return fs::Clusters<decltype(zero)>(*graph, *spec, labels, loads, open).run(first_turn, last_turn, out_moved);
    });
  });
}

// cluster_nodes: nodes of a graph take the labels of their neighbours, as long as what a label's nodes weigh together
// stays within a bound.
//
// Of a row that is read ahead (turns.h) the labels that its node would like best are kept, the best first: loads change
// with every turn, so which of them has room is decided in the node's turn. Where none of them has, the row is read
// again.
//
// Raghavan, Albert and Kumara, Phys. Rev. E 76, 2007 (label propagation); Meyerhenke, Sanders and Schulz, SEA 2014
// (with a bound, for partitioning); FS_JOIN_ALIKE: two-hop clustering (Gottesbueren et al., "Deep multilevel graph
// partitioning", ESA 2021).
#include <vector>

#include "label_sums.h"
#include "mix64.h"
#include "turns.h"

namespace fs {
namespace {

constexpr int32_t kMostBound = int32_t{1} << 30;

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

  FsStatus run(int64_t first_turn, int64_t last_turn, int32_t num_threads, int64_t* out_moved) {
    if (spec_.rule != FS_JOIN_HEAVIEST && spec_.rule != FS_JOIN_ALIKE) {
      return fail(FS_INVALID_ARGUMENT, "cluster_nodes: rule %d; expected heaviest (0) or alike (1)", spec_.rule);
    }
    if (spec_.bound < 1 || spec_.bound > kMostBound) {
      return fail(FS_INVALID_ARGUMENT, "cluster_nodes: bound %d; expected 1 to 2^30", spec_.bound);
    }
    FsStatus status = check_threads("cluster_nodes", num_threads);
    if (status == FS_OK) status = Turns<Id, Clusters>(rows_, *this, num_threads).run(first_turn, last_turn);
    *out_moved = moved_;
    return status;
  }

  FsStatus turn(const NeighbourRow& row) { return spec_.rule == FS_JOIN_HEAVIEST ? join(row) : join_alike(row); }

  class Reader;

  FsStatus turn(const NeighbourRow& row, const Reader& reader, size_t from, size_t to) {
    const int64_t node = row.node;
    if (spec_.rule == FS_JOIN_ALIKE) return from == to ? FS_OK : join_found(node, reader.label(from));
    for (size_t i = from; i < to; ++i) {
      const int32_t label = reader.label(i);
      if (label == kMore) return join(row);
      if (label == labels_[node] || has_room(label, node)) {
        move(node, label);
        break;
      }
    }
    return FS_OK;
  }

  int64_t moved() const { return moved_; }

  // Of each row FS_JOIN_HEAVIEST leaves labels, FS_JOIN_ALIKE the label that was found, if any.
  class Reader {
   public:
    explicit Reader(const Clusters& law) : law_(law) {}

    bool read(const NeighbourRow& row, NearTurns& near) {
      const int64_t node = row.node;
      const int32_t own = law_.labels_[node];
      if (own < 0 || own >= law_.num_nodes_) return false;
      if (law_.spec_.rule == FS_JOIN_ALIKE && !law_.is_alone(node)) return true;
      if (law_.sum_labels(row, sums_, [&](int64_t neighbour) { near.see(neighbour); }) != FS_OK) return false;
      if (law_.spec_.rule == FS_JOIN_HEAVIEST) {
        rank(node);
      } else if (!sums_.sums().empty()) {
        labels_.push_back(heaviest(sums_));
      }
      sums_.clear();
      return true;
    }

    size_t size() const { return labels_.size(); }
    void clear() { labels_.clear(); }
    int32_t label(size_t at) const { return labels_[at]; }
    void soon(size_t at) const {
      if (labels_[at] >= 0) __builtin_prefetch(law_.loads_ + labels_[at]);
    }

   private:
    struct Ranked {
      int64_t weight;
      uint64_t drawn;
      int32_t label;
    };

    // The first kRanked labels, or those up to the node's own, which always has room.
    void rank(int64_t node) {
      Ranked best[kRanked];
      size_t count = 0;
      bool more = false;
      for (const LabelSums::Sum& sum : sums_.sums()) {
        const Ranked mine{sum.weight, law_.draw(node, sum.label), sum.label};
        size_t at = count;
        while (at > 0 && (mine.weight > best[at - 1].weight ||
                          (mine.weight == best[at - 1].weight && mine.drawn > best[at - 1].drawn))) {
          --at;
        }
        more = more || count == kRanked;
        if (at == kRanked) continue;
        if (count < kRanked) ++count;
        for (size_t i = count - 1; i > at; --i) best[i] = best[i - 1];
        best[at] = mine;
      }
      for (size_t i = 0; i < count; ++i) {
        labels_.push_back(best[i].label);
        if (best[i].label == law_.labels_[node]) return;
      }
      if (more) labels_.push_back(kMore);
    }

    const Clusters& law_;
    LabelSums sums_;
    std::vector<int32_t> labels_;
  };

 private:
  static constexpr size_t kRanked = 6;
  static constexpr int32_t kMore = -1;  // there are labels after those that are listed

  FsStatus join(const NeighbourRow& row) {
    if (row.degree() == 0) return FS_OK;
    const FsStatus status = sum_labels(row, sums_, [](int64_t) {});
    if (status != FS_OK) return status;
    const int64_t node = row.node;
    const int32_t own = labels_[node];
    int32_t best = own;
    int64_t heaviest = -1;
    uint64_t largest = 0;
    for (const LabelSums::Sum& sum : sums_.sums()) {
      if (sum.weight < heaviest || (sum.label != own && !has_room(sum.label, node))) continue;
      const uint64_t drawn = draw(node, sum.label);
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

  FsStatus join_alike(const NeighbourRow& row) {
    const int64_t node = row.node;
    const int32_t own = labels_[node];
    if (own < 0 || own >= num_nodes_) return rows_.refuse_label(node, "label", num_nodes_ - 1);
    if (!is_alone(node)) return FS_OK;
    const FsStatus status = sum_labels(row, sums_, [](int64_t) {});
    if (status != FS_OK) return status;
    const int32_t found = sums_.sums().empty() ? -1 : heaviest(sums_);
    sums_.clear();
    return found < 0 ? FS_OK : join_found(node, found);
  }

  // The label of the heaviest sum, the smallest of equals.
  static int32_t heaviest(const LabelSums& sums) {
    int32_t found = -1;
    int64_t most = -1;
    for (const LabelSums::Sum& sum : sums.sums()) {
      if (sum.weight > most || (sum.weight == most && sum.label < found)) {
        found = sum.label;
        most = sum.weight;
      }
    }
    return found;
  }

  FsStatus join_found(int64_t node, int32_t found) {
    const int32_t own = labels_[node], before = open_[found];
    if (before >= 0 && before != own && has_room(before, node)) {
      move(node, before);
    } else {
      open_[found] = own;
    }
    return FS_OK;
  }

  // Whether the node may join another that is alone. As only such nodes move then, others do not become it.
  bool is_alone(int64_t node) const {
    const int32_t weight = spec_.node_weights[node];
    return loads_[labels_[node]] == weight && weight <= spec_.bound / 2;
  }

  uint64_t draw(int64_t node, int32_t label) const {
    return mix64(spec_.rng_seed + (static_cast<uint64_t>(node) << 32 | static_cast<uint32_t>(label)));
  }

  // Sums the labels of a row into `sums`, which is empty if that fails, and calls see(neighbour) for all neighbours.
  template <typename See>
  FsStatus sum_labels(const NeighbourRow& row, LabelSums& sums, See&& see) const {
    const int64_t node = row.node;
    sums.begin(row.degree());
    int64_t outside = -1;
    const FsStatus status = rows_.links(row, [&](int64_t neighbour, int64_t weight) {
      see(neighbour);
      const int32_t label = labels_[neighbour];
      if (label < 0 || label >= num_nodes_) {
        outside = neighbour;
        return;
      }
      if (spec_.within == nullptr || spec_.within[neighbour] == spec_.within[node]) sums.add(label, weight);
    });
    if (status == FS_OK && labels_[node] >= 0 && labels_[node] < num_nodes_ && outside < 0) return FS_OK;
    sums.clear();
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
                                     int64_t last_turn, int32_t num_threads, int32_t* labels, int32_t* loads,
                                     int32_t* open, int64_t* out_moved) {
  return fs::guarded("cluster_nodes", [&] {
    return fs::with_id_type("cluster_nodes", graph->id_type, [&](auto zero) {
      return fs::Clusters<decltype(zero)>(*graph, *spec, labels, loads, open)
          .run(first_turn, last_turn, num_threads, out_moved);
    });
  });
}
